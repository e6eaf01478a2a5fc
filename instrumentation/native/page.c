/* What a step leaves in the page; lockstep/recorder/rows.py does the same in Python. */
#include "recorder.h"

#include <string.h>

void recorder_end_phases(StepRecorder *recorder, double seconds[STEP_PHASES])
{
    const Layout *layout = &recorder->layout;
    const int64_t *spent_ns = recorder->spent_ns;
    double *totals = (double *)recorder->slot.buf + layout->slot_phases;
    for (int n = 0; n < STEP_PHASES; n++)
        seconds[n] = (double)spent_ns[layout->code_first + n] * 1e-9;
    totals[layout->code_init] += (double)spent_ns[layout->code_init] * 1e-9;
    totals[layout->code_restore] += (double)spent_ns[layout->code_restore] * 1e-9;
    /* They count in the totals only: the step begins after them. */
    recorder->step_began_ns += spent_ns[layout->code_init] + spent_ns[layout->code_restore];
    memset(recorder->spent_ns, 0, sizeof recorder->spent_ns);
}

void count_phases(StepRecorder *recorder, const double seconds[STEP_PHASES])
{
    const Layout *layout = &recorder->layout;
    double *totals = (double *)recorder->slot.buf + layout->slot_phases + layout->code_first;
    for (int n = 0; n < STEP_PHASES; n++)
        totals[n] += seconds[n];
}

void settle_step(StepRecorder *recorder, double seconds)
{
    uint64_t *words = recorder->slot.buf;
    const Layout *layout = &recorder->layout;
    Py_ssize_t bucket = 0;
    while (bucket < recorder->num_buckets && recorder->buckets[bucket] < seconds)
        bucket++;
    words[layout->slot_settled]++;
    words[layout->slot_buckets + bucket]++;
    ((double *)words)[layout->slot_sum] += seconds;
}

static void count_work(StepRecorder *recorder, const Row *row)
{
    uint64_t *words = recorder->slot.buf;
    const Layout *layout = &recorder->layout;
    words[layout->slot_step] = (uint64_t)row->number;
    words[layout->slot_tokens] += (uint64_t)row->tokens;
    words[layout->slot_samples] += (uint64_t)row->samples;
}

#define PUT(bytes, offset, type, value) (*(type *)((char *)(bytes) + (offset)) = (type)(value))

static int64_t write_row(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES])
{
    const Layout *layout = &recorder->layout;
    uint64_t *words = recorder->slot.buf, bytes[MAX_ROW_BYTES / 8] = {0};
    uint64_t number = words[layout->slot_steps];
    if (recorder->last_arrival_ns)
        row->present |= (uint32_t)layout->row_bit_last;
    if (recorder->first_arrival_ns)
        row->present |= (uint32_t)layout->row_bit_first;
    PUT(bytes, layout->row_number, uint64_t, number);
    PUT(bytes, layout->row_step, int64_t, row->number);
    PUT(bytes, layout->row_start, int64_t, row->began_ns);
    PUT(bytes, layout->row_first, int64_t, recorder->first_arrival_ns);
    PUT(bytes, layout->row_last, int64_t, recorder->last_arrival_ns);
    PUT(bytes, layout->row_seconds, float, row->seconds);
    for (int n = 0; n < STEP_PHASES; n++)
        PUT(bytes, layout->row_phases + 4 * n, float, seconds[n]);
    PUT(bytes, layout->row_loss, float, row->loss);
    PUT(bytes, layout->row_norm, float, row->norm);
    PUT(bytes, layout->row_tokens, uint32_t, row->tokens);
    PUT(bytes, layout->row_samples, uint32_t, row->samples);
    PUT(bytes, layout->row_present, uint32_t, row->present);
    PUT(bytes, layout->row_flags, uint32_t, row->flags);
    PUT(bytes, layout->row_shortest, uint32_t, row->shortest);
    PUT(bytes, layout->row_longest, uint32_t, row->longest);
    PUT(bytes, layout->row_squares, float, row->squares);
    PUT(bytes, layout->row_run_queue, float, row->waited);
    PUT(bytes, layout->row_checksum, uint32_t, checksum_of(bytes, (size_t)layout->row_checksum / 4));
    recorder->first_arrival_ns = recorder->last_arrival_ns = 0;
    int64_t index = (int64_t)(number % (uint64_t)layout->rows);
    char *file = recorder->file.buf;
    memcpy(file + layout->offset_ring + index * layout->row_size, bytes, (size_t)layout->row_size);
    words[layout->slot_steps] = number + 1;
    return (int64_t)number + 1;
}

void commit_state(StepRecorder *recorder, int64_t now_ns)
{
    const Layout *layout = &recorder->layout;
    uint64_t *words = recorder->slot.buf, sequence = ++words[0];
    words[layout->slot_written] = (uint64_t)now_ns;
    words[layout->slot_checksum] = checksum_of(words, (size_t)layout->slot_checksum * 2);
    /* A reader that finds the new state finds the row that it counts. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    char *file = recorder->file.buf;
    int64_t offset = sequence & 1 ? layout->offset_slot_1 : layout->offset_slot_0;
    memcpy(file + offset, words, (size_t)layout->slot_size);
}

int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES])
{
    count_work(recorder, row);
    return write_row(recorder, row, seconds);
}
