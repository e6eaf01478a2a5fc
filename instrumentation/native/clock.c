/* The clock of the phases; lockstep/recorder/recorder.py says the same in Python. */
#include "pen.h"

#include <string.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

PyObject *settled(Pen *pen)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL; /* an interrupt is the user's */
    if (pen->owner == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *told = PyObject_CallMethodOneArg(pen->owner, name_fail, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return told;
}

static int tick(Pen *pen, int64_t now)
{
    PyObject *moment = PyLong_FromLongLong(now);
    if (moment == NULL)
        return -1;
    PyObject *next = PyObject_CallMethodOneArg(pen->owner, name_tick, moment);
    Py_DECREF(moment);
    if (next == NULL)
        return -1;
    pen->due = PyLong_AsLongLong(next);
    Py_DECREF(next);
    return PyErr_Occurred() ? -1 : 0;
}

static int tell_pulse(Pen *pen, uint64_t word)
{
    PyObject *place = PyLong_FromLong(0), *mark = PyLong_FromUnsignedLongLong(word);
    int told = place && mark ? PyObject_SetItem(pen->pulse, place, mark) : -1;
    Py_XDECREF(place);
    Py_XDECREF(mark);
    return told;
}

int pen_cut(Pen *pen, int code, int64_t *moment)
{
    if (!pen->on) {
        *moment = 0;
        return 0;
    }
    int64_t now = *moment = clock_ns();
    uint64_t word = (uint64_t)now << 4 | (uint64_t)code;
    pen->spent[pen->now_in] += now - pen->since;
    pen->now_in = code;
    pen->since = now;
    if (pen->pulse == pen->own_pulse)
        __atomic_store_n(pen->pulse_word, word, __ATOMIC_RELAXED);
    else if (tell_pulse(pen, word) < 0)
        return -1;
    if (now >= pen->due && tick(pen, now) < 0)
        return -1;
    if (pen->measures)
        pen->own += clock_ns() - now;
    return 0;
}

int pen_enter(Pen *pen, int code)
{
    int64_t now;
    if (!pen->on || pen->held)
        return 0;
    return pen_cut(pen, code, &now);
}

static PyObject *entered(Pen *pen, int code)
{
    if (pen_enter(pen, code) < 0)
        return settled(pen);
    Py_RETURN_NONE;
}

static int code_from(PyObject *told)
{
    long code = PyLong_AsLong(told);
    if (code >= 0 && code < PHASES_AT_MOST)
        return (int)code;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%R is the code of no phase", told);
    return -1;
}

static PyObject *pen_enter_code(Pen *pen, PyObject *told)
{
    int code = code_from(told);
    return code < 0 ? NULL : entered(pen, code);
}

static PyObject *pen_cut_code(Pen *pen, PyObject *told)
{
    int64_t now = 0;
    int code = code_from(told);
    if (code < 0)
        return NULL;
    if (pen_cut(pen, code, &now) < 0) {
        PyObject *told = settled(pen);
        if (told == NULL)
            return NULL;
        Py_DECREF(told);
    }
    return PyLong_FromLongLong(now);
}

static PyObject *pen_mark(Pen *pen, PyObject *phase)
{
    if (!pen->on)
        Py_RETURN_NONE;
    PyObject *code = PyDict_GetItemWithError(pen->codes, phase);
    if (code != NULL)
        return entered(pen, (int)PyLong_AsLong(code));
    if (PyErr_Occurred())
        return NULL;
    code = PyObject_CallOneArg(pen->code_of, phase); /* which says what is wrong */
    Py_XDECREF(code);
    return NULL;
}

static PyObject *pen_first_arrival(Pen *pen, PyObject *unused)
{
    (void)unused;
    if (pen->on && !pen->first_arrival)
        pen->first_arrival = clock_ns();
    Py_RETURN_NONE;
}

static PyObject *pen_stop(Pen *pen, PyObject *unused)
{
    (void)unused;
    pen->on = 0;
    Py_RETURN_NONE;
}

static PyObject *pen_restart(Pen *pen, PyObject *told)
{
    int64_t now = PyLong_AsLongLong(told);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    pen->on = pen->file.buf != NULL;
    memset(pen->spent, 0, sizeof pen->spent);
    pen->now_in = (int)pen->at.code_other;
    pen->since = now;
    pen->first_arrival = pen->last_arrival = 0;
    Py_RETURN_NONE;
}

/* The step's seconds by phase, added to the totals and begun anew. */
void pen_phases(Pen *pen, double seconds[IN_STEP])
{
    const Places *at = &pen->at;
    double *totals = (double *)pen->slot.buf + at->slot_phases;
    int64_t outside = pen->spent[at->code_init] + pen->spent[at->code_restore];
    for (int n = 0; n < IN_STEP; n++) {
        seconds[n] = (double)pen->spent[at->code_first + n] * 1e-9;
        totals[at->code_first + n] += seconds[n];
    }
    totals[at->code_init] += (double)pen->spent[at->code_init] * 1e-9;
    totals[at->code_restore] += (double)pen->spent[at->code_restore] * 1e-9;
    pen->begun += outside; /* of the job, but of no step */
    memset(pen->spent, 0, sizeof pen->spent);
}

static PyObject *take_phases(Pen *pen, PyObject *unused)
{
    double s[IN_STEP];
    (void)unused;
    if (!pen->on)
        Py_RETURN_NONE;
    pen_phases(pen, s);
    return Py_BuildValue("(dddddddd)", s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
}

static PyObject *take_losses(Pen *pen, PyObject *unused)
{
    (void)unused;
    int64_t kept = pen->num_losses < pen->at.losses ? pen->num_losses : pen->at.losses;
    PyObject *losses = PyList_New((Py_ssize_t)kept);
    for (int64_t n = 0; losses != NULL && n < kept; n++) {
        int64_t place = (pen->num_losses - kept + n) % pen->at.losses;
        PyObject *loss = PyFloat_FromDouble(pen->losses[place]);
        if (loss == NULL)
            Py_CLEAR(losses);
        else
            PyList_SET_ITEM(losses, (Py_ssize_t)n, loss);
    }
    if (losses != NULL)
        pen->num_losses = 0;
    return losses;
}

static PyObject *pen_marker(Pen *pen, PyObject *told)
{
    int code = code_from(told);
    return code < 0 ? NULL : new_marker(pen, code);
}

PyMethodDef pen_methods[] = {
    {"enter", (PyCFunction)pen_enter_code, METH_O, NULL},
    {"cut", (PyCFunction)pen_cut_code, METH_O, NULL},
    {"mark", (PyCFunction)pen_mark, METH_O, NULL},
    {"marker", (PyCFunction)pen_marker, METH_O, NULL},
    {"first_arrival", (PyCFunction)pen_first_arrival, METH_NOARGS, NULL},
    {"wait_begins", (PyCFunction)pen_wait_begins_told, METH_NOARGS, NULL},
    {"wait_ended", (PyCFunction)(void (*)(void))pen_wait_ended_told, METH_VARARGS | METH_KEYWORDS, NULL},
    {"step", (PyCFunction)(void (*)(void))pen_step, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"take_phases", (PyCFunction)take_phases, METH_NOARGS, NULL},
    {"take_losses", (PyCFunction)take_losses, METH_NOARGS, NULL},
    {"stop", (PyCFunction)pen_stop, METH_NOARGS, NULL},
    {"restart", (PyCFunction)pen_restart, METH_O, NULL},
    {"release", (PyCFunction)pen_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
