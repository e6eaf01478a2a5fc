/* Rows that wait for the device: written with the host's times, then once more with the device's.
 *
 * Of a step between two that are timed the totals take the host's duration, divided as the device
 * divided the last one that was timed. `pending` is a ring that only the end of a step fills. What
 * reports a failure can run a `settle` from inside this one, so a row is copied first; the dictionary
 * of callbacks gives up its entry before it is called.
 */
#include "device.h"

#include <string.h>

static PendingRow *pending_at(DeviceClock *clock, int64_t number)
{
    return &clock->pending[number % (MAX_PENDING + 2)];
}

/* What the calls of a step took but for those that settle others. */
static void note_calls(DeviceClock *clock, bool is_timed, double total)
{
    int64_t calls = clock->num_calls - clock->noted_calls, spent_ns = clock->call_ns - clock->noted_ns;
    /* It shrinks at once and grows slowly: a checkpoint is no reason to stamp more. */
    double step_ns = total * 1e9, most_ns = clock->usual_step_ns ? 1.1 * clock->usual_step_ns : step_ns;
    clock->usual_step_ns = step_ns < most_ns ? step_ns : most_ns;
    if (calls > 0) {
        double call_ns = (double)spent_ns / (double)calls;
        clock->usual_call_ns = clock->usual_call_ns ? towards(clock->usual_call_ns, call_ns) : call_ns;
    }
    if (!is_timed)
        clock->usual_calls += ((double)calls - clock->usual_calls) / 64;
}

int device_end_step(StepRecorder *recorder, int64_t now_ns, const double parts[STEP_PHASES], double total,
                    bool *is_timed)
{
    DeviceClock *clock = recorder->clock;
    int64_t first, last;
    bool is_awaited = clock->is_awaited;
    if (device_end(recorder, now_ns, &first, &last) < 0)
        return -1;
    note_calls(clock, is_awaited, total);
    if (!recorder->on)
        return 0;
    PendingRow *row = pending_at(clock, clock->num_pushed++);
    row->number = (int64_t)((Slot *)recorder->slot.buf)->steps;
    row->first = first;
    row->last = last;
    row->total = total;
    row->is_awaited = is_awaited;
    memcpy(row->parts, parts, sizeof row->parts);
    memcpy(row->collective, clock->collective, sizeof row->collective);
    memset(clock->collective, 0, sizeof clock->collective);
    if (clock->stride != clock->written_stride) {
        clock->written_stride = clock->stride;
        Periodic *periodic = recorder->periodic.buf;
        periodic->device_stride = (uint64_t)clock->stride;
        periodic->present |= PERIODIC_HAS_DEVICE_STRIDE;
    }
    *is_timed = first >= 0;
    return 0;
}

static void count_row(StepRecorder *recorder, const double *phases, const double *collective, double total)
{
    Slot *slot = recorder->slot.buf;
    count_phases(recorder, phases);
    for (int kind = 0; kind < NUM_KINDS; kind++)
        slot->collective_seconds[kind] += collective[kind];
    settle_step(recorder, total);
}

/* Counts a step that lasted `scale` times as long as one that was timed. */
static void count_scaled(StepRecorder *recorder, const DeviceTimes *times, double scale)
{
    double phases[STEP_PHASES], collective[NUM_KINDS];
    Periodic *periodic = recorder->periodic.buf;
    for (int n = 0; n < STEP_PHASES; n++) {
        phases[n] = times->seconds[FIRST_STEP_PHASE + n] * scale;
        periodic->host_bound_seconds[n] += times->idle[FIRST_STEP_PHASE + n] * scale;
    }
    for (int kind = 0; kind < NUM_KINDS; kind++)
        collective[kind] = times->collective[kind] * scale;
    count_row(recorder, phases, collective, times->total * scale);
}

static void settle_by_host(StepRecorder *recorder, const PendingRow *row)
{
    DeviceClock *clock = recorder->clock;
    Periodic *periodic = recorder->periodic.buf;
    const DeviceTimes *newest = &clock->newest;
    if (row->is_awaited || clock->failed || !(newest->total > 0)) {
        count_row(recorder, row->parts, row->collective, row->total);
        periodic->device_dropped += row->is_awaited;
    } else {
        count_scaled(recorder, newest, row->total / newest->total);
    }
    clock->num_settled++;
    if (row->last >= 0) {
        free_events_before(clock, row->last);
        clock->passed = NOT_TIMED;
    }
}

/* Writes the row once more, unless the ring holds a newer one in its place. */
static void rewrite(StepRecorder *recorder, int64_t number, const DeviceTimes *times)
{
    Row *place = row_in_ring(recorder, (uint64_t)number), row;
    memcpy(&row, place, sizeof row);
    if (row.number != (uint32_t)number)
        return;
    row.present &= ~(uint32_t)(ROW_HAS_FIRST_ARRIVAL_NS | ROW_HAS_LAST_ARRIVAL_NS);
    if (times->first_arrival_ns)
        row.present |= ROW_HAS_FIRST_ARRIVAL_NS;
    if (times->last_arrival_ns)
        row.present |= ROW_HAS_LAST_ARRIVAL_NS;
    row.flags = (row.flags & ~(uint32_t)FLAG_DEVICE_PENDING) | FLAG_DEVICE;
    row.start_ns = times->begin_ns;
    row.first_arrival_ns = times->first_arrival_ns;
    row.last_arrival_ns = times->last_arrival_ns;
    row.seconds = (float)times->total;
    put_phases(&row, times->seconds + FIRST_STEP_PHASE);
    put_extra(&row, EXTRA_HOST_BOUND_SECONDS,
              times->idle[PHASE_FORWARD] + times->idle[PHASE_BACKWARD] + times->idle[PHASE_OPTIMIZER]
                  + times->idle[PHASE_OTHER]);
    row.checksum = checksum_of_row(&row);
    memcpy(place, &row, sizeof row);
}

static void settle_by_device(StepRecorder *recorder, const PendingRow *row, const DeviceTimes *times)
{
    DeviceClock *clock = recorder->clock;
    rewrite(recorder, row->number, times);
    count_scaled(recorder, times, 1);
    Periodic *periodic = recorder->periodic.buf;
    periodic->device_steps++;
    periodic->launch_bound_steps += times->is_launch_bound;
    clock->newest = *times;
    clock->num_settled++;
    free_events_before(clock, row->last);
    adjust_stride(clock, row->last - row->first + 1);
}

static PyObject *boundaries_of(const DeviceClock *clock, const PendingRow *row, double begin, PyObject **phases)
{
    Py_ssize_t num_spans = (Py_ssize_t)(row->last - row->first);
    PyObject *times = PyList_New(num_spans + 1);
    *phases = PyList_New(num_spans);
    double at = begin;
    for (Py_ssize_t n = 0; times && *phases && n <= num_spans; n++) {
        PyObject *moment = PyLong_FromLongLong((long long)at);
        if (moment == NULL)
            return Py_XDECREF(times), NULL;
        PyList_SET_ITEM(times, n, moment);
        if (n == num_spans)
            break;
        at += clock->spans[n];
        PyObject *code = PyLong_FromLong(clock->phases[(row->first + n) % POOL_EVENTS]);
        if (code == NULL)
            return Py_XDECREF(times), NULL;
        PyList_SET_ITEM(*phases, n, code);
    }
    return times;
}

/* Calls what waits for this step, with its boundaries and phases. */
static int call_passed(StepRecorder *recorder, const PendingRow *row, double begin)
{
    if (PyDict_GET_SIZE(recorder->passed_callbacks) == 0)
        return 0;
    PyObject *number = PyLong_FromLongLong(row->number), *phases = NULL, *times = NULL, *result = NULL;
    PyObject *callback = number ? PyDict_GetItemWithError(recorder->passed_callbacks, number) : NULL;
    if (callback == NULL) {
        Py_XDECREF(number);
        return PyErr_Occurred() ? -1 : 0;
    }
    Py_INCREF(callback);
    if (PyDict_DelItem(recorder->passed_callbacks, number) == 0)
        times = boundaries_of(recorder->clock, row, begin, &phases);
    if (times != NULL && phases != NULL)
        result = PyObject_CallFunctionObjArgs(callback, times, phases, NULL);
    Py_XDECREF(result);
    Py_XDECREF(times);
    Py_XDECREF(phases);
    Py_DECREF(callback);
    Py_DECREF(number);
    return result == NULL ? -1 : 0;
}

static int settle(StepRecorder *recorder, int64_t now_ns, int64_t keep)
{
    DeviceClock *clock = recorder->clock;
    for (int n = 0; n < MOST_AT_ONCE && recorder->on; n++) {
        int64_t num_pending = clock->num_pushed - clock->num_settled;
        if (num_pending <= keep)
            break;
        PendingRow row = *pending_at(clock, clock->num_settled);
        if (clock->failed || row.first < 0) {
            settle_by_host(recorder, &row);
            continue;
        }
        int passed = device_has_passed(recorder, row.last);
        if (passed < 0)
            return -1;
        if (!recorder->on)
            break;
        if (!passed) {
            if (num_pending <= MAX_PENDING)
                break;
            settle_by_host(recorder, &row);
            continue;
        }
        DeviceTimes times;
        double begin;
        int is_measured = device_measure(recorder, &row, now_ns, &times, &begin);
        if (is_measured <= 0 || !recorder->on)
            return is_measured < 0 ? -1 : 0;
        settle_by_device(recorder, &row, &times);
        if (call_passed(recorder, &row, begin) < 0)
            return -1;
    }
    return 0;
}

int device_settle(StepRecorder *recorder, int64_t now_ns, int64_t keep)
{
    DeviceClock *clock = recorder->clock;
    int status = settle(recorder, now_ns, keep);
    clock->noted_calls = clock->num_calls;
    clock->noted_ns = clock->call_ns;
    return status;
}

int device_settle_all(StepRecorder *recorder, int64_t now_ns)
{
    DeviceClock *clock = recorder->clock;
    int64_t before = -1;
    while (recorder->on && clock->num_pushed > clock->num_settled && clock->num_settled != before) {
        before = clock->num_settled;
        if (device_settle(recorder, now_ns, 0) < 0)
            return -1;
    }
    while (recorder->on && clock->num_pushed > clock->num_settled)
        settle_by_host(recorder, pending_at(clock, clock->num_settled));
    return 0;
}
