/* What a step leaves in the page; lockstep/recorder/rows.py says the same in Python. */
#include "recorder.h"

#include <string.h>

static void count_step(StepRecorder *recorder, const Row *row)
{
    uint64_t *words = recorder->slot.buf;
    const Places *at = &recorder->at;
    Py_ssize_t bucket = 0;
    while (bucket < recorder->num_buckets && recorder->buckets[bucket] < row->total)
        bucket++;
    words[at->slot_step] = (uint64_t)row->number;
    words[at->slot_tokens] += (uint64_t)row->tokens;
    words[at->slot_samples] += (uint64_t)row->samples;
    words[at->slot_buckets + bucket]++;
    ((double *)words)[at->slot_sum] += row->total;
}

#define PUT(row, at, type, value) (*(type *)((char *)(row) + (at)) = (type)(value))

static int64_t write_row(StepRecorder *recorder, Row *told, const double seconds[IN_STEP])
{
    const Places *at = &recorder->at;
    uint64_t *words = recorder->slot.buf, row[ROW_AT_MOST / 8] = {0};
    uint64_t number = words[at->slot_steps];
    if (recorder->last_arrival)
        told->present |= (uint32_t)at->row_bit_last;
    if (recorder->first_arrival)
        told->present |= (uint32_t)at->row_bit_first;
    PUT(row, at->row_number, uint64_t, number);
    PUT(row, at->row_step, int64_t, told->number);
    PUT(row, at->row_start, int64_t, told->begun);
    PUT(row, at->row_first, int64_t, recorder->first_arrival);
    PUT(row, at->row_last, int64_t, recorder->last_arrival);
    PUT(row, at->row_seconds, float, told->total);
    for (int n = 0; n < IN_STEP; n++)
        PUT(row, at->row_phases + 4 * n, float, seconds[n]);
    PUT(row, at->row_loss, float, told->loss);
    PUT(row, at->row_norm, float, told->norm);
    PUT(row, at->row_tokens, uint32_t, told->tokens);
    PUT(row, at->row_samples, uint32_t, told->samples);
    PUT(row, at->row_present, uint32_t, told->present);
    PUT(row, at->row_flags, uint32_t, told->flags);
    PUT(row, at->row_shortest, uint32_t, told->shortest);
    PUT(row, at->row_longest, uint32_t, told->longest);
    PUT(row, at->row_squares, float, told->squares);
    PUT(row, at->row_checksum, uint32_t, checksum_of(row, (size_t)at->row_checksum / 4));
    recorder->first_arrival = recorder->last_arrival = 0;
    char *file = recorder->file.buf;
    memcpy(file + at->at_ring + (int64_t)(number % (uint64_t)at->rows) * at->row_size, row,
           (size_t)at->row_size);
    words[at->slot_steps] = number + 1;
    return (int64_t)number + 1;
}

static void commit(StepRecorder *recorder, int64_t now)
{
    const Places *at = &recorder->at;
    uint64_t *words = recorder->slot.buf, sequence = ++words[0];
    words[at->slot_written] = (uint64_t)now;
    words[at->slot_checksum] = checksum_of(words, (size_t)at->slot_checksum * 2);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* the row first */
    char *file = recorder->file.buf;
    memcpy(file + (sequence & 1 ? at->at_slot_1 : at->at_slot_0), words, (size_t)at->slot_size);
}

int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[IN_STEP], int64_t now)
{
    count_step(recorder, row);
    int64_t steps = write_row(recorder, row, seconds);
    commit(recorder, now);
    return steps;
}
