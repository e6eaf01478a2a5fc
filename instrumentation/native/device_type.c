/* The recorder's methods for a device: what is called of it, and what is called when it has passed a step. */
#include "device.h"

#include <string.h>

static PyObject *or_handle(StepRecorder *recorder, int status)
{
    if (status < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

static void take_object(PyObject *owner, const char *name, PyObject **place)
{
    PyObject *value = PyErr_Occurred() ? NULL : PyObject_GetAttrString(owner, name);
    if (value != NULL)
        Py_XSETREF(*place, value);
}

/* Objects of the device that the recorder calls; -1 with an error. */
static int take_device(StepRecorder *recorder, PyObject *device, DeviceClock *clock)
{
    PyObject *library = NULL, *prefix = NULL, *allowance = NULL, *memory = NULL;
    take_object(device, "current_stream", &recorder->current_stream);
    take_object(device, "current_device", &recorder->current_device);
    take_object(device, "index", &recorder->device_index);
    take_object(device, "memory", &recorder->number_memory);
    take_object(device, "library", &library);
    take_object(device, "prefix", &prefix);
    take_object(device, "allowance_ns", &allowance);
    memory = recorder->number_memory;
    const char *path = library ? PyUnicode_AsUTF8(library) : NULL, *text = prefix ? PyUnicode_AsUTF8(prefix) : NULL;
    if (allowance != NULL)
        clock->allowance_ns = PyLong_AsLongLong(allowance);
    clock->device = PyErr_Occurred() ? -1 : PyLong_AsLong(recorder->device_index);
    int status = PyErr_Occurred() || load_runtime(path, text, &clock->runtime) < 0 ? -1 : 0;
    if (status == 0 && memory != Py_None) {
        take_object(memory, "types", &recorder->number_types);
        take_object(memory, "formats", &recorder->number_formats);
        status = PyErr_Occurred() ? -1 : create_numbers(clock, memory);
    }
    Py_XDECREF(library);
    Py_XDECREF(prefix);
    Py_XDECREF(allowance);
    return status;
}

PyObject *recorder_use_device(StepRecorder *recorder, PyObject *device)
{
    if (!recorder->on || recorder->clock != NULL)
        Py_RETURN_NONE;
    DeviceClock *clock = PyMem_Calloc(1, sizeof *clock);
    PyObject *callbacks = PyDict_New();
    if (clock == NULL || callbacks == NULL || take_device(recorder, device, clock) < 0) {
        Py_XDECREF(callbacks);
        PyMem_Free(clock);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_XSETREF(recorder->passed_callbacks, callbacks);
    memset(clock->phases, PHASE_OTHER, sizeof clock->phases);
    memset(clock->usual_phase, NOT_TIMED, sizeof clock->usual_phase);
    clock->first = clock->passed = NOT_TIMED;
    clock->stride = clock->written_stride = 1;
    recorder->clock = clock;
    recorder->uses_device = 1;
    return or_handle(recorder, device_begin(recorder, clock_ns(), recorder->phase));
}

PyObject *recorder_is_device_busy(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    DeviceClock *clock = recorder->clock;
    int code = 0;
    if (clock == NULL || clock->failed)
        Py_RETURN_NONE;
    /* Asked in a hang by another thread: a driver that hangs itself must not hold the loop's lock. */
    int (*query)(void *) = clock->runtime.StreamQuery;
    int (*last_error)(void) = clock->runtime.GetLastError;
    void *stream = clock->stream;
    Py_BEGIN_ALLOW_THREADS
    code = query(stream);
    if (code != 0)
        last_error();
    Py_END_ALLOW_THREADS
    if (code != 0 && code != DEVICE_BUSY)
        Py_RETURN_NONE;
    return PyBool_FromLong(code == DEVICE_BUSY);
}

PyObject *recorder_call_when_passed(StepRecorder *recorder, PyObject *callback)
{
    DeviceClock *clock = recorder->clock;
    if (clock == NULL || !recorder->on || clock->num_pushed == clock->num_settled)
        Py_RETURN_NONE;
    const PendingRow *row = &clock->pending[(clock->num_pushed - 1) % (MAX_PENDING + 2)];
    if (row->first < 0)
        Py_RETURN_NONE;
    PyObject *key = PyLong_FromLongLong(row->number);
    if (key == NULL || PyDict_SetItem(recorder->passed_callbacks, key, callback) < 0) {
        Py_XDECREF(key);
        return NULL;
    }
    Py_DECREF(key);
    Py_RETURN_NONE;
}

PyObject *recorder_settle(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    DeviceClock *clock = recorder->clock;
    if (clock == NULL || !recorder->on)
        Py_RETURN_NONE;
    if (clock->numbers != NULL && read_last_numbers(recorder) < 0)
        return handle_error(recorder);
    return or_handle(recorder, device_settle_all(recorder, clock_ns()));
}

void free_clock(StepRecorder *recorder)
{
    DeviceClock *clock = recorder->clock;
    if (clock == NULL)
        return;
    free_numbers(clock);
    for (int n = 0; n < POOL_EVENTS; n++)
        if (clock->events[n] != NULL)
            clock->runtime.EventDestroy(clock->events[n]);
    while (clock->num_free > 0)
        clock->runtime.EventDestroy(clock->free_events[--clock->num_free]);
    PyMem_Free(clock);
}
