/* The recorder's methods for a device: its events, made once, and what is called when it has passed them. */
#include "device.h"

#include <string.h>

static PyObject *or_handle(StepRecorder *recorder, int status)
{
    if (status < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

/* Fills lists with events and their methods `record`. */
static int create_events(PyObject *create, PyObject *events, PyObject *records)
{
    for (Py_ssize_t n = 0; n < POOL_EVENTS; n++) {
        PyObject *event = PyObject_CallNoArgs(create);
        PyObject *method = event ? PyObject_GetAttrString(event, "record") : NULL;
        if (method == NULL) {
            Py_XDECREF(event);
            return -1;
        }
        PyList_SET_ITEM(events, n, event);
        PyList_SET_ITEM(records, n, method);
    }
    return 0;
}

static int take_device(StepRecorder *recorder, PyObject *device)
{
    PyObject *create = PyObject_GetAttrString(device, "create_event");
    PyObject *capturing = PyObject_GetAttrString(device, "is_capturing");
    PyObject *current = PyObject_GetAttrString(device, "current_stream");
    PyObject *events = PyList_New(POOL_EVENTS), *records = PyList_New(POOL_EVENTS), *callbacks = PyDict_New();
    PyObject *stream = current ? PyObject_CallNoArgs(current) : NULL;
    bool is_complete = create && capturing && current && events && records && callbacks && stream
                       && create_events(create, events, records) == 0;
    Py_XDECREF(create);
    if (!is_complete) {
        PyObject *taken[] = {capturing, current, events, records, callbacks, stream};
        for (size_t n = 0; n < sizeof taken / sizeof *taken; n++)
            Py_XDECREF(taken[n]);
        return -1;
    }
    Py_XSETREF(recorder->is_capturing, capturing);
    Py_XSETREF(recorder->current_stream, current);
    Py_XSETREF(recorder->events, events);
    Py_XSETREF(recorder->records, records);
    Py_XSETREF(recorder->passed_callbacks, callbacks);
    Py_XSETREF(recorder->stream, stream);
    return 0;
}

PyObject *recorder_use_device(StepRecorder *recorder, PyObject *device)
{
    if (!recorder->on || recorder->clock != NULL)
        Py_RETURN_NONE;
    if (take_device(recorder, device) < 0)
        return NULL;
    DeviceClock *clock = PyMem_Calloc(1, sizeof *clock);
    if (clock == NULL)
        return PyErr_NoMemory();
    memset(clock->phases, PHASE_OTHER, sizeof clock->phases);
    memset(clock->usual_phase, NOT_TIMED, sizeof clock->usual_phase);
    clock->first = clock->passed = NOT_TIMED;
    clock->stride = clock->written_stride = 1;
    recorder->clock = clock;
    recorder->uses_device = 1;
    return or_handle(recorder, device_begin(recorder, clock_ns(), recorder->phase));
}

PyObject *recorder_call_when_passed(StepRecorder *recorder, PyObject *callback)
{
    DeviceClock *clock = recorder->clock;
    if (clock == NULL || !recorder->on || clock->num_pushed == clock->num_settled)
        Py_RETURN_NONE;
    int64_t number = clock->pending[(clock->num_pushed - 1) % (MAX_PENDING + 2)].number;
    PyObject *key = PyLong_FromLongLong(number);
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
    if (recorder->clock == NULL || !recorder->on)
        Py_RETURN_NONE;
    return or_handle(recorder, device_settle_all(recorder, clock_ns()));
}
