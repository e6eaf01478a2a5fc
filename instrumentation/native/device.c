/* Events in the device's stream.
 *
 * Two lists own all events and their bound methods `record`, made once; items are borrowed for a call.
 * A device's own error ends its part (`failed`), never the step. What has run Python returns -1 only
 * for an interrupt, and its caller looks at `on` and `failed` again.
 */
#include "device.h"

/* The device, or our use of it, has failed: rows are the host's from now on. -1 for an interrupt. */
static int note_failure(StepRecorder *recorder)
{
    recorder->clock->failed = true;
    return handle_part_error(recorder, "device_events");
}

static int is_true(StepRecorder *recorder, PyObject *result)
{
    if (result == NULL)
        return note_failure(recorder);
    int answer = PyObject_IsTrue(result);
    Py_DECREF(result);
    return answer;
}

static int set_stream(StepRecorder *recorder, bool *is_same)
{
    PyObject *stream = PyObject_CallNoArgs(recorder->current_stream);
    if (stream == NULL)
        return note_failure(recorder);
    int equal = PyObject_RichCompareBool(stream, recorder->stream, Py_EQ);
    *is_same = equal == 1;
    Py_XSETREF(recorder->stream, stream);
    return equal < 0 ? -1 : 0;
}

/* 1 where the event is in the stream, 0 where the step can have none, -1 with an error. */
static int record(StepRecorder *recorder, int64_t now_ns, int phase, bool is_first)
{
    DeviceClock *clock = recorder->clock;
    int64_t count = clock->count, index = count % POOL_EVENTS;
    int64_t in_step = clock->first < 0 || is_first ? 0 : count - clock->first;
    if (in_step >= MAX_EVENTS)
        return clock->overflowed = true, 0;
    if (count - clock->oldest >= POOL_EVENTS || clock->failed)
        return 0;
    int capturing = is_true(recorder, PyObject_CallNoArgs(recorder->is_capturing));
    if (capturing != 0 || clock->failed)
        return capturing < 0 ? -1 : 0;
    int caught_up = 0;
    /* An empty stream: the device has done all it was given, and waits for the host. */
    if (clock->phases[(count + POOL_EVENTS - 1) % POOL_EVENTS] != PHASE_SYNC)
        caught_up = is_true(recorder, PyObject_CallMethodNoArgs(recorder->stream, name_query));
    if (caught_up < 0 || clock->failed)
        return caught_up < 0 ? -1 : 0;
    PyObject *done = PyObject_CallOneArg(PyList_GET_ITEM(recorder->records, index), recorder->stream);
    if (done == NULL)
        return note_failure(recorder);
    Py_DECREF(done);
    clock->host_ns[index] = now_ns;
    clock->phases[index] = (uint8_t)phase;
    clock->marks[index] = caught_up ? CAUGHT_UP : 0;
    clock->count = count + 1;
    return 1;
}

int device_begin(StepRecorder *recorder, int64_t now_ns, int phase)
{
    DeviceClock *clock = recorder->clock;
    bool is_same;
    clock->first = NOT_TIMED;
    if (set_stream(recorder, &is_same) < 0)
        return -1;
    int status = record(recorder, now_ns, phase, false);
    if (status > 0)
        clock->first = clock->count - 1;
    clock->waits = 0;
    clock->is_skipping = false;
    return status < 0 ? -1 : 0;
}

/* The running step is not timed; its events are free but the first, which ends another. */
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
    if (phase == PHASE_SYNC) {
        clock->waits++;
        clock->is_skipping = clock->waits % clock->stride != 0;
        if (clock->is_skipping)
            return 0;
    } else if (clock->is_skipping) {
        clock->is_skipping = false;
        if (phase == clock->phases[(clock->count - 1) % POOL_EVENTS])
            return 0;
    }
    int status = record(recorder, now_ns, phase, false);
    if (status == 0)
        give_up(clock);
    return status < 0 ? -1 : 0;
}

int device_arrival(StepRecorder *recorder, int64_t now_ns)
{
    DeviceClock *clock = recorder->clock;
    if (clock->first < 0)
        return 0;
    int status = record(recorder, now_ns, clock->phases[(clock->count - 1) % POOL_EVENTS], false);
    if (status > 0)
        clock->marks[(clock->count - 1) % POOL_EVENTS] |= ARRIVAL;
    if (status == 0)
        give_up(clock);
    return status < 0 ? -1 : 0;
}

/* 1 where the calling thread gives its work to the loop's stream, else 0; -1 with an error. */
int device_is_on_stream(StepRecorder *recorder)
{
    if (recorder->clock->failed)
        return 1;
    PyObject *stream = PyObject_CallNoArgs(recorder->current_stream);
    if (stream == NULL)
        return note_failure(recorder) < 0 ? -1 : 1;
    int equal = PyObject_RichCompareBool(stream, recorder->stream, Py_EQ);
    Py_DECREF(stream);
    return equal;
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
    bool is_same = true;
    *first = clock->first;
    *last = clock->count - 1;
    if (set_stream(recorder, &is_same) < 0)
        return -1;
    int64_t index = *last % POOL_EVENTS, other = PHASE_OTHER;
    bool has_event = *first >= 0 && is_same && *last > *first && clock->host_ns[index] == now_ns
                     && clock->phases[index] == other;
    if (!has_event) {
        int status = record(recorder, now_ns, (int)other, *first < 0);
        if (status < 0)
            return -1;
        *last = clock->count - 1;
        if (status == 0)
            *first = *last = NOT_TIMED;
    }
    if (clock->overflowed) {
        clock->overflowed = false;
        clock->stride *= 2;
    }
    clock->first = *last;
    clock->waits = 0;
    clock->is_skipping = false;
    if (*first < 0 || *last <= *first)
        *first = *last = NOT_TIMED;
    return 0;
}

int device_has_passed(StepRecorder *recorder, int64_t last)
{
    PyObject *event = PyList_GET_ITEM(recorder->events, last % POOL_EVENTS);
    return is_true(recorder, PyObject_CallMethodNoArgs(event, name_query));
}

int device_measure(StepRecorder *recorder, const PendingRow *row, int64_t now_ns, DeviceTimes *times,
                   double *begin)
{
    DeviceClock *clock = recorder->clock;
    int64_t first = row->first, last = row->last;
    double position_ns = 0, low = (double)clock->host_ns[first % POOL_EVENTS];
    bool is_caught_up = clock->marks[first % POOL_EVENTS] & CAUGHT_UP;
    for (int64_t number = first + 1; number <= last; number++) {
        int64_t index = number % POOL_EVENTS;
        PyObject *span = PyObject_CallMethodOneArg(
            PyList_GET_ITEM(recorder->events, (number - 1) % POOL_EVENTS), name_elapsed_time,
            PyList_GET_ITEM(recorder->events, index));
        if (span == NULL)
            return note_failure(recorder);
        double span_ns = PyFloat_AsDouble(span) * 1e6;
        Py_DECREF(span);
        if (PyErr_Occurred())
            return -1;
        clock->spans[number - first - 1] = span_ns;
        position_ns += span_ns;
        is_caught_up = is_caught_up || clock->marks[index] & CAUGHT_UP;
        /* No event passes before the host has recorded it. */
        double bound = (double)clock->host_ns[index] - position_ns;
        low = bound > low ? bound : low;
    }
    *begin = low;
    if (clock->passed == first && !is_caught_up) {
        double expected = clock->passed_ns > low ? clock->passed_ns : low;
        double latest = (double)now_ns - position_ns > low ? (double)now_ns - position_ns : low;
        *begin = expected < latest ? expected : latest;
    }
    clock->passed = last;
    clock->passed_ns = *begin + position_ns;
    divide_step(clock, first, last, *begin, times);
    return 1;
}
