/* The waits for other ranks; lockstep/recorder/recorder.py says the same in Python. */
#include "recorder.h"

int recorder_wait_begins(StepRecorder *recorder, int *interrupted)
{
    int64_t now;
    *interrupted = NOT_WAITING;
    if (!recorder->on || recorder->held || recorder->now_in == recorder->at.code_sync)
        return 0;
    int code = recorder->now_in;
    if (recorder_switch_phase(recorder, (int)recorder->at.code_sync, &now) < 0)
        return -1;
    if (!recorder->first_arrival)
        recorder->first_arrival = now;
    *interrupted = code;
    return 0;
}

PyObject *recorder_wait_begins_told(StepRecorder *recorder, PyObject *unused)
{
    int interrupted;
    (void)unused;
    if (recorder_wait_begins(recorder, &interrupted) < 0) {
        PyObject *told = settled(recorder);
        if (told == NULL)
            return NULL;
        Py_DECREF(told);
    }
    return PyLong_FromLong(interrupted);
}

/* Where collectives of a kind are counted, and the bytes that they put on the bus. */
int recorder_resolve(StepRecorder *recorder, PyObject *kind, PyObject *ranks, Collectives *told)
{
    told->place = -1;
    told->bus = 0;
    if (kind == Py_None)
        return 0;
    PyObject *place = PyDict_GetItemWithError(recorder->kinds, kind);
    if (place == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetObject(PyExc_KeyError, kind);
        return -1;
    }
    told->place = PyLong_AsSsize_t(place);
    told->in_pairs = PyUnicode_Compare(kind, name_send_recv) == 0;
    if (ranks == Py_None)
        return 0;
    PyObject *factor = PyObject_CallFunctionObjArgs(recorder->bus_factor, kind, ranks, NULL);
    if (factor == NULL)
        return -1;
    told->bus = (int64_t)((double)told->size * PyFloat_AsDouble(factor));
    Py_DECREF(factor);
    return PyErr_Occurred() ? -1 : 0;
}

int recorder_wait_ended(StepRecorder *recorder, int interrupted, const Collectives *told)
{
    if (interrupted == NOT_WAITING || !recorder->on || recorder->now_in != recorder->at.code_sync)
        return 0;
    int64_t begun = recorder->since, now;
    if (recorder_switch_phase(recorder, interrupted, &now) < 0)
        return -1;
    if (!told->in_pairs)
        recorder->last_arrival = now - recorder->spent[recorder->at.code_sync];
    if (told->place < 0 || !recorder->on)
        return 0;
    uint64_t *words = recorder->slot.buf;
    words[recorder->at.slot_calls + told->place] += (uint64_t)told->calls;
    words[recorder->at.slot_bytes + told->place] += (uint64_t)told->size;
    ((double *)words)[recorder->at.slot_seconds + told->place] += (double)(now - begun) * 1e-9;
    ((uint64_t *)recorder->periodic.buf)[recorder->at.periodic_bus + told->place] += (uint64_t)told->bus;
    return 0;
}

PyObject *recorder_wait_ended_told(StepRecorder *recorder, PyObject *args, PyObject *named)
{
    static char *names[] = {"interrupted", "kind", "calls", "size_bytes", "ranks", NULL};
    PyObject *kind, *ranks = Py_None;
    long long calls = 1, size = 0;
    int interrupted;
    if (!PyArg_ParseTupleAndKeywords(args, named, "iO|LLO:wait_ended", names, &interrupted, &kind,
                                     &calls, &size, &ranks))
        return NULL;
    if (interrupted == NOT_WAITING || !recorder->on)
        Py_RETURN_NONE;
    Collectives told = {.calls = calls, .size = size};
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    if (recorder_resolve(recorder, kind, ranks, &told) < 0) {
        PyErr_Fetch(&type, &error, &trace); /* the wait is over all the same */
        told.place = -1;
    }
    int ended = recorder_wait_ended(recorder, interrupted, &told);
    if (type != NULL)
        PyErr_Restore(type, error, trace);
    if (ended < 0 || type != NULL)
        return settled(recorder);
    Py_RETURN_NONE;
}
