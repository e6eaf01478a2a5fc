/* The clock of the phases; lockstep/recorder/recorder.py says the same in Python. */
#include "recorder.h"

#include <string.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

PyObject *settled(StepRecorder *recorder)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL; /* an interrupt is the user's */
    if (recorder->callbacks == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *told = PyObject_CallMethodOneArg(recorder->callbacks, name_fail, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return told;
}

static int tick(StepRecorder *recorder, int64_t now)
{
    PyObject *moment = PyLong_FromLongLong(now);
    if (moment == NULL)
        return -1;
    PyObject *next = PyObject_CallMethodOneArg(recorder->callbacks, name_tick, moment);
    Py_DECREF(moment);
    if (next == NULL)
        return -1;
    recorder->due = PyLong_AsLongLong(next);
    Py_DECREF(next);
    return PyErr_Occurred() ? -1 : 0;
}

static int tell_pulse(StepRecorder *recorder, uint64_t word)
{
    PyObject *place = PyLong_FromLong(0), *mark = PyLong_FromUnsignedLongLong(word);
    int told = place && mark ? PyObject_SetItem(recorder->heartbeat, place, mark) : -1;
    Py_XDECREF(place);
    Py_XDECREF(mark);
    return told;
}

int recorder_switch_phase(StepRecorder *recorder, int code, int64_t *moment)
{
    if (!recorder->on) {
        *moment = 0;
        return 0;
    }
    int64_t now = *moment = clock_ns();
    uint64_t word = (uint64_t)now << 4 | (uint64_t)code;
    recorder->spent[recorder->now_in] += now - recorder->since;
    recorder->now_in = code;
    recorder->since = now;
    if (recorder->heartbeat == recorder->own_heartbeat)
        __atomic_store_n(recorder->heartbeat_word, word, __ATOMIC_RELAXED);
    else if (tell_pulse(recorder, word) < 0)
        return -1;
    if (now >= recorder->due && tick(recorder, now) < 0)
        return -1;
    if (recorder->measures)
        recorder->own += clock_ns() - now;
    return 0;
}

int recorder_enter(StepRecorder *recorder, int code)
{
    int64_t now;
    if (!recorder->on || recorder->held)
        return 0;
    return recorder_switch_phase(recorder, code, &now);
}

static PyObject *entered(StepRecorder *recorder, int code)
{
    if (recorder_enter(recorder, code) < 0)
        return settled(recorder);
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

static PyObject *recorder_enter_code(StepRecorder *recorder, PyObject *told)
{
    int code = code_from(told);
    return code < 0 ? NULL : entered(recorder, code);
}

static PyObject *recorder_switch_phase_code(StepRecorder *recorder, PyObject *told)
{
    int64_t now = 0;
    int code = code_from(told);
    if (code < 0)
        return NULL;
    if (recorder_switch_phase(recorder, code, &now) < 0) {
        PyObject *told = settled(recorder);
        if (told == NULL)
            return NULL;
        Py_DECREF(told);
    }
    return PyLong_FromLongLong(now);
}

static PyObject *recorder_enter_phase(StepRecorder *recorder, PyObject *phase)
{
    if (!recorder->on)
        Py_RETURN_NONE;
    PyObject *code = PyDict_GetItemWithError(recorder->codes, phase);
    if (code != NULL)
        return entered(recorder, (int)PyLong_AsLong(code));
    if (PyErr_Occurred())
        return NULL;
    code = PyObject_CallOneArg(recorder->code_of, phase); /* which says what is wrong */
    Py_XDECREF(code);
    return NULL;
}

static PyObject *recorder_first_arrival(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    if (recorder->on && !recorder->first_arrival)
        recorder->first_arrival = clock_ns();
    Py_RETURN_NONE;
}

static PyObject *recorder_stop(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    recorder->on = 0;
    Py_RETURN_NONE;
}

static PyObject *recorder_restart(StepRecorder *recorder, PyObject *told)
{
    int64_t now = PyLong_AsLongLong(told);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    recorder->on = recorder->file.buf != NULL;
    memset(recorder->spent, 0, sizeof recorder->spent);
    recorder->now_in = (int)recorder->at.code_other;
    recorder->since = now;
    recorder->first_arrival = recorder->last_arrival = 0;
    Py_RETURN_NONE;
}

/* The step's seconds by phase, added to the totals and begun anew. */
void recorder_phases(StepRecorder *recorder, double seconds[IN_STEP])
{
    const Places *at = &recorder->at;
    double *totals = (double *)recorder->slot.buf + at->slot_phases;
    int64_t outside = recorder->spent[at->code_init] + recorder->spent[at->code_restore];
    for (int n = 0; n < IN_STEP; n++) {
        seconds[n] = (double)recorder->spent[at->code_first + n] * 1e-9;
        totals[at->code_first + n] += seconds[n];
    }
    totals[at->code_init] += (double)recorder->spent[at->code_init] * 1e-9;
    totals[at->code_restore] += (double)recorder->spent[at->code_restore] * 1e-9;
    recorder->begun += outside; /* of the job, but of no step */
    memset(recorder->spent, 0, sizeof recorder->spent);
}

static PyObject *take_phases(StepRecorder *recorder, PyObject *unused)
{
    double s[IN_STEP];
    (void)unused;
    if (!recorder->on)
        Py_RETURN_NONE;
    recorder_phases(recorder, s);
    return Py_BuildValue("(dddddddd)", s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
}

static PyObject *take_losses(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    int64_t kept = recorder->num_losses < recorder->at.losses ? recorder->num_losses : recorder->at.losses;
    PyObject *losses = PyList_New((Py_ssize_t)kept);
    for (int64_t n = 0; losses != NULL && n < kept; n++) {
        int64_t place = (recorder->num_losses - kept + n) % recorder->at.losses;
        PyObject *loss = PyFloat_FromDouble(recorder->losses[place]);
        if (loss == NULL)
            Py_CLEAR(losses);
        else
            PyList_SET_ITEM(losses, (Py_ssize_t)n, loss);
    }
    if (losses != NULL)
        recorder->num_losses = 0;
    return losses;
}

static PyObject *recorder_phase_hook(StepRecorder *recorder, PyObject *told)
{
    int code = code_from(told);
    return code < 0 ? NULL : new_phase_hook(recorder, code);
}

PyMethodDef recorder_methods[] = {
    {"enter_code", (PyCFunction)recorder_enter_code, METH_O, NULL},
    {"switch_phase", (PyCFunction)recorder_switch_phase_code, METH_O, NULL},
    {"enter_phase", (PyCFunction)recorder_enter_phase, METH_O, NULL},
    {"phase_hook", (PyCFunction)recorder_phase_hook, METH_O, NULL},
    {"first_arrival", (PyCFunction)recorder_first_arrival, METH_NOARGS, NULL},
    {"wait_begins", (PyCFunction)recorder_wait_begins_told, METH_NOARGS, NULL},
    {"wait_ended", (PyCFunction)(void (*)(void))recorder_wait_ended_told, METH_VARARGS | METH_KEYWORDS, NULL},
    {"step", (PyCFunction)(void (*)(void))recorder_step, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"take_phases", (PyCFunction)take_phases, METH_NOARGS, NULL},
    {"take_losses", (PyCFunction)take_losses, METH_NOARGS, NULL},
    {"stop", (PyCFunction)recorder_stop, METH_NOARGS, NULL},
    {"restart", (PyCFunction)recorder_restart, METH_O, NULL},
    {"release", (PyCFunction)recorder_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
