/* CRC-32 as zlib has it, four bytes at a time by tables of nibbles: half a kilobyte in all, for what
 * is larger has left the caches by the time a step ends. */
#include "pen.h"

#include <string.h>

/* shifted[n][v]: the rest that v leaves in nibble n of a word, counted from the lowest. */
static uint32_t shifted[8][16];

void prepare_seals(void)
{
    for (uint32_t value = 0; value < 16; value++) {
        uint32_t rest = value;
        for (int nibble = 7; nibble >= 0; nibble--) {
            for (int bit = 0; bit < 4; bit++)
                rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
            shifted[nibble][value] = rest;
        }
    }
}

uint32_t seal_of(const void *data, size_t num_words)
{
    const char *at = data;
    uint32_t rest = ~0u;
    for (; num_words > 0; num_words--, at += 4) {
        uint32_t word;
        memcpy(&word, at, 4);
        word ^= rest;
        rest = 0;
        for (int nibble = 0; nibble < 8; nibble++)
            rest ^= shifted[nibble][word >> 4 * nibble & 15];
    }
    return ~rest;
}
