/* Rows that wait for the device; lockstep/recorder/device_rows.py does the same in Python. */
#include "device.h"

#include <string.h>

#define PUT(bytes, offset, type, value) (*(type *)((char *)(bytes) + (offset)) = (type)(value))

static PendingRow *pending_at(DeviceClock *clock, int64_t number)
{
    return &clock->pending[number % (MAX_PENDING + 2)];
}

int device_end_step(StepRecorder *recorder, int64_t now_ns, const double parts[STEP_PHASES], double total,
                    bool *is_timed)
{
    DeviceClock *clock = recorder->clock;
    const Layout *layout = &recorder->layout;
    int64_t first, last;
    if (device_end(recorder, now_ns, &first, &last) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    PendingRow *row = pending_at(clock, clock->num_pushed++);
    uint64_t *words = recorder->slot.buf, *periodic = recorder->periodic.buf;
    row->number = (int64_t)words[layout->slot_steps];
    row->first = first;
    row->last = last;
    row->total = total;
    memcpy(row->parts, parts, sizeof row->parts);
    memcpy(row->collective, clock->collective, sizeof row->collective);
    memset(clock->collective, 0, sizeof clock->collective);
    if (clock->stride != clock->written_stride) {
        clock->written_stride = clock->stride;
        periodic[layout->periodic_stride] = (uint64_t)clock->stride;
        periodic[layout->periodic_present] |= (uint64_t)layout->bit_stride;
    }
    *is_timed = first >= 0;
    return 0;
}

static void count_row(StepRecorder *recorder, const double *phases, const double *collective, double total)
{
    const Layout *layout = &recorder->layout;
    double *floats = recorder->slot.buf;
    for (int n = 0; n < STEP_PHASES; n++)
        floats[layout->slot_phases + layout->code_first + n] += phases[n];
    for (int64_t kind = 0; kind < layout->kinds; kind++)
        floats[layout->slot_seconds + kind] += collective[kind];
    settle_step(recorder, total);
}

static void settle_by_host(StepRecorder *recorder, const PendingRow *row)
{
    DeviceClock *clock = recorder->clock;
    count_row(recorder, row->parts, row->collective, row->total);
    ((uint64_t *)recorder->periodic.buf)[recorder->layout.periodic_dropped]++;
    clock->num_settled++;
    if (row->last >= 0)
        clock->oldest = row->last;
}

/* Writes the row once more, unless the ring holds a newer one in its place. */
static void rewrite(StepRecorder *recorder, int64_t number, const DeviceTimes *times)
{
    const Layout *layout = &recorder->layout;
    uint64_t bytes[MAX_ROW_BYTES / 8] = {0};
    char *place = (char *)recorder->file.buf + layout->offset_ring + number % layout->rows * layout->row_size;
    memcpy(bytes, place, (size_t)layout->row_size);
    if (*(int64_t *)((char *)bytes + layout->row_number) != number)
        return;
    uint32_t present = *(uint32_t *)((char *)bytes + layout->row_present);
    uint32_t flags = *(uint32_t *)((char *)bytes + layout->row_flags);
    present &= ~(uint32_t)(layout->row_bit_first | layout->row_bit_last);
    present |= (uint32_t)layout->row_bit_idle;
    if (times->first_arrival_ns)
        present |= (uint32_t)layout->row_bit_first;
    if (times->last_arrival_ns)
        present |= (uint32_t)layout->row_bit_last;
    flags = (flags & ~(uint32_t)layout->flag_pending) | (uint32_t)layout->flag_device;
    PUT(bytes, layout->row_start, int64_t, times->begin_ns);
    PUT(bytes, layout->row_first, int64_t, times->first_arrival_ns);
    PUT(bytes, layout->row_last, int64_t, times->last_arrival_ns);
    PUT(bytes, layout->row_seconds, float, times->total);
    for (int n = 0; n < STEP_PHASES; n++)
        PUT(bytes, layout->row_phases + 4 * n, float, times->seconds[layout->code_first + n]);
    PUT(bytes, layout->row_present, uint32_t, present);
    PUT(bytes, layout->row_flags, uint32_t, flags);
    PUT(bytes, layout->row_idle, float,
        times->idle[layout->code_forward] + times->idle[layout->code_backward]
            + times->idle[layout->code_optimizer] + times->idle[layout->code_other]);
    PUT(bytes, layout->row_checksum, uint32_t, checksum_of(bytes, (size_t)layout->row_checksum / 4));
    memcpy(place, bytes, (size_t)layout->row_size);
}

static void settle_by_device(StepRecorder *recorder, const PendingRow *row, const DeviceTimes *times)
{
    const Layout *layout = &recorder->layout;
    DeviceClock *clock = recorder->clock;
    rewrite(recorder, row->number, times);
    count_row(recorder, times->seconds + layout->code_first, times->collective, times->total);
    uint64_t *periodic = recorder->periodic.buf;
    for (int n = 0; n < STEP_PHASES; n++)
        ((double *)periodic)[layout->periodic_idle + n] += times->idle[layout->code_first + n];
    periodic[layout->periodic_device_steps]++;
    periodic[layout->periodic_launch_bound] += times->is_launch_bound;
    clock->num_settled++;
    clock->oldest = row->last;
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

int device_settle(StepRecorder *recorder, int64_t now_ns, int64_t keep)
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
        int has_passed = device_has_passed(recorder, row.last);
        if (has_passed < 0)
            return -1;
        if (!recorder->on)
            break;
        if (!has_passed) {
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
