/* The waits for other ranks; lockstep/recorder/recorder.py says the same in Python. */
#include "pen.h"

int pen_wait_begins(Pen *pen, int *interrupted)
{
    int64_t now;
    *interrupted = NOT_WAITING;
    if (!pen->on || pen->held || pen->now_in == pen->at.code_sync)
        return 0;
    int code = pen->now_in;
    if (pen_cut(pen, (int)pen->at.code_sync, &now) < 0)
        return -1;
    if (!pen->first_arrival)
        pen->first_arrival = now;
    *interrupted = code;
    return 0;
}

PyObject *pen_wait_begins_told(Pen *pen, PyObject *unused)
{
    int interrupted;
    (void)unused;
    if (pen_wait_begins(pen, &interrupted) < 0) {
        PyObject *told = settled(pen);
        if (told == NULL)
            return NULL;
        Py_DECREF(told);
    }
    return PyLong_FromLong(interrupted);
}

/* Where collectives of a kind are counted, and the bytes that they put on the bus. */
int pen_resolve(Pen *pen, PyObject *kind, PyObject *ranks, Collectives *told)
{
    told->place = -1;
    told->bus = 0;
    if (kind == Py_None)
        return 0;
    PyObject *place = PyDict_GetItemWithError(pen->kinds, kind);
    if (place == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetObject(PyExc_KeyError, kind);
        return -1;
    }
    told->place = PyLong_AsSsize_t(place);
    told->in_pairs = PyUnicode_Compare(kind, name_send_recv) == 0;
    if (ranks == Py_None)
        return 0;
    PyObject *factor = PyObject_CallFunctionObjArgs(pen->bus_factor, kind, ranks, NULL);
    if (factor == NULL)
        return -1;
    told->bus = (int64_t)((double)told->size * PyFloat_AsDouble(factor));
    Py_DECREF(factor);
    return PyErr_Occurred() ? -1 : 0;
}

int pen_wait_ended(Pen *pen, int interrupted, const Collectives *told)
{
    if (interrupted == NOT_WAITING || !pen->on || pen->now_in != pen->at.code_sync)
        return 0;
    int64_t begun = pen->since, now;
    if (pen_cut(pen, interrupted, &now) < 0)
        return -1;
    if (!told->in_pairs)
        pen->last_arrival = now - pen->spent[pen->at.code_sync];
    if (told->place < 0 || !pen->on)
        return 0;
    uint64_t *words = pen->slot.buf;
    words[pen->at.slot_calls + told->place] += (uint64_t)told->calls;
    words[pen->at.slot_bytes + told->place] += (uint64_t)told->size;
    ((double *)words)[pen->at.slot_seconds + told->place] += (double)(now - begun) * 1e-9;
    ((uint64_t *)pen->seldom.buf)[pen->at.seldom_bus + told->place] += (uint64_t)told->bus;
    return 0;
}

PyObject *pen_wait_ended_told(Pen *pen, PyObject *args, PyObject *named)
{
    static char *names[] = {"interrupted", "kind", "calls", "size_bytes", "ranks", NULL};
    PyObject *kind, *ranks = Py_None;
    long long calls = 1, size = 0;
    int interrupted;
    if (!PyArg_ParseTupleAndKeywords(args, named, "iO|LLO:wait_ended", names, &interrupted, &kind,
                                     &calls, &size, &ranks))
        return NULL;
    if (interrupted == NOT_WAITING || !pen->on)
        Py_RETURN_NONE;
    Collectives told = {.calls = calls, .size = size};
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    if (pen_resolve(pen, kind, ranks, &told) < 0) {
        PyErr_Fetch(&type, &error, &trace); /* the wait is over all the same */
        told.place = -1;
    }
    int ended = pen_wait_ended(pen, interrupted, &told);
    if (type != NULL)
        PyErr_Restore(type, error, trace);
    if (ended < 0 || type != NULL)
        return settled(pen);
    Py_RETURN_NONE;
}
