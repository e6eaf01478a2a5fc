/* Events in the device's stream, in each step whose number the stride divides.
 *
 * A device's own error ends its part (`failed`), never the step. Only the current stream is asked of
 * torch, by a function without a Python frame; what reports a failure runs Python, returns -1 only for
 * an interrupt, and its caller looks at `on` and `failed` again.
 */
#include "device.h"

static const double DRIFT = 1e-4;      /* of the device's clock against the host's */
static const double CLOSE_NS = 100e3;  /* an event that passes so soon was put into an empty stream */

/* The device, or our use of it, has failed: rows are the host's from now on. -1 for an interrupt. */
static int note_failure(StepRecorder *recorder)
{
    recorder->clock->failed = true;
    return handle_part_error(recorder, "device_events");
}

/* 1 where the event is in the stream, 0 where the step can have none, -1 with an error. */
static int record(StepRecorder *recorder, int64_t now_ns, int phase)
{
    DeviceClock *clock = recorder->clock;
    int64_t count = clock->count, index = count % POOL_EVENTS;
    bool is_full = clock->first >= 0 && count - clock->first >= MAX_EVENTS;
    if (is_full || count - clock->oldest >= POOL_EVENTS || clock->failed)
        return 0;
    int is_ready = takes_work(recorder);
    if (is_ready <= 0)
        return is_ready < 0 ? note_failure(recorder) : 0;
    void **event = &clock->events[index];
    if (*event == NULL && clock->num_free > 0)
        *event = clock->free_events[--clock->num_free];
    int code = *event == NULL ? CALL(clock, EventCreateWithFlags, event, 0) : 0;
    clock->host_ns[index] = clock_ns();
    if (code == 0)
        code = CALL(clock, EventRecord, *event, clock->stream);
    if (code != 0)
        return set_runtime_error("EventRecord", code), note_failure(recorder);
    clock->newest_ns = now_ns;
    clock->phases[index] = (uint8_t)phase;
    clock->marks[index] = 0;
    clock->count = count + 1;
    return 1;
}

void free_events_before(DeviceClock *clock, int64_t number)
{
    for (; clock->oldest < number; clock->oldest++) {
        void **event = &clock->events[clock->oldest % POOL_EVENTS];
        clock->free_events[clock->num_free++] = *event;
        *event = NULL;
    }
}

/* Whether the step that begins is one to be timed. */
static bool is_due(const StepRecorder *recorder)
{
    DeviceClock *clock = recorder->clock;
    return clock->is_awaited = recorder->next_step % clock->stride == 0;
}

int device_begin(StepRecorder *recorder, int64_t now_ns, int phase)
{
    DeviceClock *clock = recorder->clock;
    clock->first = NOT_TIMED;
    if (clock->failed || !is_due(recorder))
        return 0;
    int status = loop_stream(recorder, &clock->stream);
    if (status < 0)
        return note_failure(recorder);
    if (status > 0)
        status = record(recorder, now_ns, phase);
    if (status > 0)
        clock->first = clock->count - 1;
    return status < 0 ? -1 : 0;
}

/* The running step is not timed; its events are free but the first, which may end another. */
static void give_up(DeviceClock *clock)
{
    clock->count = clock->first + 1;
    clock->first = NOT_TIMED;
}

int device_boundary(StepRecorder *recorder, int64_t now_ns, int phase)
{
    DeviceClock *clock = recorder->clock;
    if (clock->first < 0)
        return 0;
    int status = record(recorder, now_ns, phase);
    if (status == 0)
        give_up(clock);
    return status < 0 ? -1 : 0;
}

int device_arrival(StepRecorder *recorder, int64_t now_ns)
{
    DeviceClock *clock = recorder->clock;
    if (clock->first < 0)
        return 0;
    int status = device_boundary(recorder, now_ns, clock->phases[(clock->count - 1) % POOL_EVENTS]);
    if (clock->first >= 0)
        clock->marks[(clock->count - 1) % POOL_EVENTS] |= ARRIVAL;
    return status;
}

/* 1 where the calling thread gives its work to the loop's stream, else 0; -1 with an error. */
int device_is_on_stream(StepRecorder *recorder)
{
    void *stream = NULL;
    if (recorder->clock->failed)
        return 1;
    if (current_stream(recorder, &stream) < 0)
        return note_failure(recorder) < 0 ? -1 : 1;
    return stream == recorder->clock->stream;
}

void device_wait_ended(StepRecorder *recorder, const Collectives *collectives, double seconds)
{
    DeviceClock *clock = recorder->clock;
    if (collectives->kind >= 0)
        clock->collective[collectives->kind] += seconds;
    int64_t before = clock->count - 2;
    if (clock->first < 0 || before < clock->first
        || clock->phases[before % POOL_EVENTS] != PHASE_SYNC)
        return;
    clock->marks[(before + 1) % POOL_EVENTS]
        |= (uint8_t)((collectives->is_pairwise ? 0 : GROUP_END) | (collectives->kind + 1) << KIND_SHIFT);
}

int device_end(StepRecorder *recorder, int64_t now_ns, int64_t *first, int64_t *last)
{
    DeviceClock *clock = recorder->clock;
    void *before = clock->stream;
    bool is_next_due = is_due(recorder);
    *first = *last = NOT_TIMED;
    if (clock->failed || (clock->first < 0 && !is_next_due))
        return 0;
    int64_t begin = clock->first, newest = clock->count - 1, index = newest % POOL_EVENTS;
    int status = loop_stream(recorder, &clock->stream);
    if (status < 0)
        status = note_failure(recorder);
    bool has_event = status > 0 && clock->stream == before && newest > begin && begin >= 0
                     && clock->newest_ns == now_ns && clock->phases[index] == PHASE_OTHER;
    if (status > 0 && !has_event)
        status = record(recorder, now_ns, PHASE_OTHER);
    if (status <= 0) {
        if (begin >= 0)
            give_up(clock);
        return status;
    }
    newest = clock->count - 1;
    if (begin >= 0) {
        *first = begin;
        *last = newest;
    }
    clock->first = is_next_due ? newest : NOT_TIMED;
    return 0;
}

int device_has_passed(StepRecorder *recorder, int64_t last)
{
    DeviceClock *clock = recorder->clock;
    int passed = takes_work(recorder);
    if (passed > 0)
        passed = has_passed(CALL(clock, EventQuery, clock->events[last % POOL_EVENTS]));
    return passed < 0 ? note_failure(recorder) : passed;
}

/* Adds the nanoseconds from one event to another; -1 with an error. */
static int add_span(DeviceClock *clock, int64_t begin, int64_t end, double *nanoseconds)
{
    float milliseconds = 0;
    if (begin == end)
        return 0;
    int code = CALL(clock, EventElapsedTime, &milliseconds, clock->events[begin % POOL_EVENTS],
                    clock->events[end % POOL_EVENTS]);
    *nanoseconds += (double)milliseconds * 1e6;
    return code == 0 ? 0 : set_runtime_error("EventElapsedTime", code);
}

/* Marks events that passed as they were recorded: the device had done all it was given. */
static void mark_caught_up(DeviceClock *clock, int64_t first, int64_t last, double at_ns)
{
    for (int64_t number = first; number <= last; number++) {
        int64_t index = number % POOL_EVENTS, before = (number + POOL_EVENTS - 1) % POOL_EVENTS;
        bool is_after_wait = number > first && clock->phases[before] == PHASE_SYNC;
        if (!is_after_wait && at_ns - (double)clock->host_ns[index] < CLOSE_NS)
            clock->marks[index] |= CAUGHT_UP;
        at_ns += number < last ? clock->spans[number - first] : 0;
    }
}

int device_measure(StepRecorder *recorder, const PendingRow *row, int64_t now_ns, DeviceTimes *times,
                   double *begin)
{
    DeviceClock *clock = recorder->clock;
    int64_t first = row->first, last = row->last;
    double position_ns = 0, gap_ns = 0, low = (double)clock->host_ns[first % POOL_EVENTS];
    if (clock->passed >= 0 && add_span(clock, clock->passed, first, &gap_ns) < 0)
        return note_failure(recorder);
    for (int64_t number = first + 1; number <= last; number++) {
        double *span_ns = &clock->spans[number - first - 1];
        *span_ns = 0;
        if (add_span(clock, number - 1, number, span_ns) < 0)
            return note_failure(recorder);
        position_ns += *span_ns;
        /* No event passes before the host has recorded it. */
        double bound = (double)clock->host_ns[number % POOL_EVENTS] - position_ns;
        low = bound > low ? bound : low;
    }
    /* Once an event passed as it was recorded, both clocks are known to each other. */
    double expected = clock->passed >= 0 ? clock->passed_ns + gap_ns * (1 - DRIFT) : low;
    double true_begin = expected > low ? expected : low;
    double latest = (double)now_ns - position_ns > low ? (double)now_ns - position_ns : low;
    mark_caught_up(clock, first, last, true_begin);
    *begin = true_begin < latest ? true_begin : latest;
    clock->passed = last;
    clock->passed_ns = true_begin + position_ns;
    divide_step(clock, first, last, *begin, times);
    return 1;
}
