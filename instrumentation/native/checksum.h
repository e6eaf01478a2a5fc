/* The checksum of the page's sections; no Python, for NCCL's plugin has it too. */
#ifndef LOCKSTEP_CHECKSUM_H
#define LOCKSTEP_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint32_t checksum_of(const void *data, size_t num_words); /* words of four bytes */
void prepare_checksum(void);

#endif
