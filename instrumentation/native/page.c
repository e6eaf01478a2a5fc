/* Writes of the page: rows, totals and the two alternating slots. */
#include "recorder.h"

#include <stddef.h>
#include <string.h>

void recorder_end_phases(StepRecorder *recorder, double seconds[STEP_PHASES])
{
    const int64_t *spent_ns = recorder->spent_ns;
    Slot *slot = recorder->slot.buf;
    for (int n = 0; n < STEP_PHASES; n++)
        seconds[n] = (double)spent_ns[FIRST_STEP_PHASE + n] * 1e-9;
    slot->phase_seconds[PHASE_INIT] += (double)spent_ns[PHASE_INIT] * 1e-9;
    slot->phase_seconds[PHASE_RESTORE] += (double)spent_ns[PHASE_RESTORE] * 1e-9;
    /* They count in the totals only: the step begins after them. */
    recorder->step_began_ns += spent_ns[PHASE_INIT] + spent_ns[PHASE_RESTORE];
    memset(recorder->spent_ns, 0, sizeof recorder->spent_ns);
}

void count_phases(StepRecorder *recorder, const double seconds[STEP_PHASES])
{
    Slot *slot = recorder->slot.buf;
    for (int n = 0; n < STEP_PHASES; n++)
        slot->phase_seconds[FIRST_STEP_PHASE + n] += seconds[n];
}

void settle_step(StepRecorder *recorder, double seconds)
{
    Slot *slot = recorder->slot.buf;
    int bucket = 0;
    while (bucket < NUM_BUCKETS && STEP_BUCKETS[bucket] < seconds)
        bucket++;
    slot->settled_steps++;
    slot->step_buckets[bucket]++;
    slot->step_seconds_sum += seconds;
}

void put_phases(Row *row, const double seconds[STEP_PHASES])
{
    for (int n = 0; n < STEP_PHASES; n++)
        row->phase_seconds[n] = (float)seconds[n];
}

void put_extra(Row *row, int extra, double number)
{
    row->extras[extra] = number;
    row->present |= (uint32_t)FIRST_EXTRA_BIT << extra;
}

uint64_t checksum_of_row(const Row *row)
{
    return checksum_of(row, offsetof(Row, checksum) / 4);
}

Row *row_in_ring(StepRecorder *recorder, uint64_t number)
{
    return (Row *)((char *)recorder->file.buf + RING_OFFSET) + number % (uint64_t)recorder->rows;
}

/* Takes in the extras that Python has set of the next row. */
static void take_noted(StepRecorder *recorder, Row *row)
{
    Row *noted = recorder->noted.buf;
    if (noted->present == 0)
        return;
    for (int extra = 0; extra < NUM_EXTRAS; extra++)
        if (noted->present & (uint32_t)FIRST_EXTRA_BIT << extra)
            put_extra(row, extra, noted->extras[extra]);
    memset(noted, 0, sizeof *noted);
}

void commit_state(StepRecorder *recorder, int64_t now_ns)
{
    Slot *slot = recorder->slot.buf;
    slot->sequence++;
    slot->written_ns = now_ns;
    slot->checksum = checksum_of(slot, offsetof(Slot, checksum) / 4);
    /* A reader that finds the new state finds the row that it counts. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    int64_t offset = slot->sequence & 1 ? SLOT_OFFSET_1 : SLOT_OFFSET_0;
    memcpy((char *)recorder->file.buf + offset, slot, sizeof *slot);
}

int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES])
{
    Slot *slot = recorder->slot.buf;
    slot->step = row->step;
    slot->tokens += row->tokens;
    slot->samples += row->samples;
    row->number = (uint32_t)slot->steps;
    row->first_arrival_ns = recorder->first_arrival_ns;
    row->last_arrival_ns = recorder->last_arrival_ns;
    if (row->last_arrival_ns)
        row->present |= ROW_HAS_LAST_ARRIVAL_NS;
    if (row->first_arrival_ns)
        row->present |= ROW_HAS_FIRST_ARRIVAL_NS;
    recorder->first_arrival_ns = recorder->last_arrival_ns = 0;
    put_phases(row, seconds);
    take_noted(recorder, row);
    row->checksum = checksum_of_row(row);
    memcpy(row_in_ring(recorder, slot->steps), row, sizeof *row);
    return (int64_t)++slot->steps;
}
