/* Calls of the loop and its hooks: phases and waits. */
#include "device.h"

#include "type_tables.h"

#include <string.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int recorder_switch_phase(StepRecorder *recorder, int code, int64_t *now_ns)
{
    if (!recorder->on) {
        *now_ns = 0;
        return 0;
    }
    int64_t now = *now_ns = clock_ns();
    uint64_t word = (uint64_t)now << 4 | (uint64_t)code;
    int interrupted = recorder->phase;
    recorder->spent_ns[interrupted] += now - recorder->since_ns;
    recorder->phase = code;
    recorder->since_ns = now;
    if (recorder->heartbeat == recorder->page_heartbeat)
        /* One store, or a reader in another process could meet half a word. */
        __atomic_store_n(recorder->heartbeat_word, word, __ATOMIC_RELAXED);
    else if (call_heartbeat(recorder, word) < 0)
        return -1;
    if (recorder->clock != NULL && interrupted != code && device_boundary(recorder, now, code) < 0)
        return -1;
    if (now >= recorder->due_ns) {
        if (recorder->clock != NULL && recorder->clock->numbers != NULL && poll_numbers(recorder) < 0)
            return -1;
        if (recorder->on && call_tick(recorder, now) < 0)
            return -1;
    }
    if (recorder->measures)
        recorder->own_ns += clock_ns() - now;
    return 0;
}

int recorder_enter(StepRecorder *recorder, int code)
{
    int64_t now_ns;
    if (!recorder->on || recorder->held)
        return 0;
    /* What ends within an optimizer's step, such as its closure's backward, goes back to it. */
    if (code == PHASE_OTHER && recorder->optimizers > 0)
        code = PHASE_OPTIMIZER;
    return recorder_switch_phase(recorder, code, &now_ns);
}

static PyObject *enter(StepRecorder *recorder, int code)
{
    if (recorder_enter(recorder, code) < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

static int parse_code(PyObject *number)
{
    long code = PyLong_AsLong(number);
    if (code >= 0 && code < NUM_PHASES)
        return (int)code;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%R is the code of no phase", number);
    return -1;
}

static PyObject *method_enter_code(StepRecorder *recorder, PyObject *number)
{
    int code = parse_code(number);
    return code < 0 ? NULL : enter(recorder, code);
}

static PyObject *method_switch_phase(StepRecorder *recorder, PyObject *number)
{
    int64_t now_ns = 0;
    int code = parse_code(number);
    if (code < 0)
        return NULL;
    if (recorder_switch_phase(recorder, code, &now_ns) < 0) {
        PyObject *handled = handle_error(recorder);
        if (handled == NULL)
            return NULL;
        Py_DECREF(handled);
    }
    return PyLong_FromLongLong(now_ns);
}

static PyObject *method_enter_phase(StepRecorder *recorder, PyObject *phase)
{
    if (!recorder->on)
        Py_RETURN_NONE;
    PyObject *code = PyDict_GetItemWithError(recorder->codes, phase);
    if (code != NULL)
        return enter(recorder, (int)PyLong_AsLong(code));
    if (PyErr_Occurred())
        return NULL;
    code = PyObject_CallOneArg(recorder->code_of, phase); /* raises with the names of all phases */
    Py_XDECREF(code);
    return NULL;
}

static PyObject *method_phase_hook(StepRecorder *recorder, PyObject *number)
{
    int code = parse_code(number);
    return code < 0 ? NULL : new_phase_hook(recorder, code);
}

int recorder_arrives(StepRecorder *recorder)
{
    if (!recorder->on || recorder->first_arrival_ns)
        return 0;
    recorder->first_arrival_ns = clock_ns();
    return recorder->clock == NULL ? 0 : device_arrival(recorder, recorder->first_arrival_ns);
}

static PyObject *method_first_arrival(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    if (recorder_arrives(recorder) < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

int recorder_wait_begins(StepRecorder *recorder, int *interrupted)
{
    int64_t now_ns;
    *interrupted = NOT_WAITING;
    if (!recorder->on || recorder->held || recorder->phase == PHASE_SYNC)
        return 0;
    if (recorder->clock != NULL) {
        int is_on_stream = device_is_on_stream(recorder);
        if (is_on_stream <= 0)
            return is_on_stream; /* a collective that is started in another stream: nobody waits */
    }
    int code = recorder->phase;
    if (recorder_switch_phase(recorder, PHASE_SYNC, &now_ns) < 0)
        return -1;
    if (!recorder->first_arrival_ns)
        recorder->first_arrival_ns = now_ns;
    *interrupted = code;
    return 0;
}

static PyObject *method_wait_begins(StepRecorder *recorder, PyObject *unused)
{
    int interrupted;
    (void)unused;
    if (recorder_wait_begins(recorder, &interrupted) < 0) {
        PyObject *handled = handle_error(recorder);
        if (handled == NULL)
            return NULL;
        Py_DECREF(handled);
    }
    return PyLong_FromLong(interrupted);
}

int recorder_resolve(StepRecorder *recorder, PyObject *kind, PyObject *ranks, Collectives *collectives)
{
    collectives->kind = -1;
    collectives->bus_bytes = 0;
    if (kind == Py_None)
        return 0;
    PyObject *index = PyDict_GetItemWithError(recorder->kinds, kind);
    if (index == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetObject(PyExc_KeyError, kind);
        return -1;
    }
    collectives->kind = PyLong_AsSsize_t(index);
    collectives->is_pairwise = PyUnicode_Compare(kind, name_send_recv) == 0;
    if (ranks == Py_None)
        return 0;
    PyObject *factor = PyObject_CallFunctionObjArgs(recorder->bus_factor, kind, ranks, NULL);
    if (factor == NULL)
        return -1;
    collectives->bus_bytes = (int64_t)((double)collectives->size_bytes * PyFloat_AsDouble(factor));
    Py_DECREF(factor);
    return PyErr_Occurred() ? -1 : 0;
}

int recorder_wait_ended(StepRecorder *recorder, int interrupted, const Collectives *collectives)
{
    if (interrupted == NOT_WAITING || !recorder->on || recorder->phase != PHASE_SYNC)
        return 0;
    int64_t began_ns = recorder->since_ns, now_ns;
    if (recorder_switch_phase(recorder, interrupted, &now_ns) < 0)
        return -1;
    if (!collectives->is_pairwise)
        /* As if all waiting of the step came last: docs/decisions/0006-*.md. */
        recorder->last_arrival_ns = now_ns - recorder->spent_ns[PHASE_SYNC];
    double seconds = (double)(now_ns - began_ns) * 1e-9;
    if (recorder->clock != NULL) {
        device_wait_ended(recorder, collectives, seconds);
        seconds = 0; /* it counts when the step is settled */
    }
    if (collectives->kind < 0 || !recorder->on)
        return 0;
    Slot *slot = recorder->slot.buf;
    Periodic *periodic = recorder->periodic.buf;
    slot->collectives[collectives->kind] += (uint64_t)collectives->calls;
    slot->collective_bytes[collectives->kind] += (uint64_t)collectives->size_bytes;
    slot->collective_seconds[collectives->kind] += seconds;
    periodic->bus_bytes[collectives->kind] += (uint64_t)collectives->bus_bytes;
    return 0;
}

static PyObject *method_wait_ended(StepRecorder *recorder, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"interrupted", "kind", "calls", "size_bytes", "ranks", NULL};
    PyObject *kind, *ranks = Py_None;
    long long calls = 1, size_bytes = 0;
    int interrupted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|LLO:wait_ended", names, &interrupted, &kind,
                                     &calls, &size_bytes, &ranks))
        return NULL;
    if (interrupted == NOT_WAITING || !recorder->on)
        Py_RETURN_NONE;
    Collectives collectives = {.calls = calls, .size_bytes = size_bytes};
    PyObject *type = NULL, *error = NULL, *traceback = NULL;
    if (recorder_resolve(recorder, kind, ranks, &collectives) < 0) {
        PyErr_Fetch(&type, &error, &traceback); /* the wait is over all the same */
        collectives.kind = -1;
    }
    int ended = recorder_wait_ended(recorder, interrupted, &collectives);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    if (ended < 0 || type != NULL)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

static PyObject *method_stop(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    recorder->on = 0;
    Py_RETURN_NONE;
}

static PyObject *method_restart(StepRecorder *recorder, PyObject *moment)
{
    int64_t now_ns = PyLong_AsLongLong(moment);
    if (now_ns == -1 && PyErr_Occurred())
        return NULL;
    recorder->on = recorder->file.buf != NULL;
    memset(recorder->spent_ns, 0, sizeof recorder->spent_ns);
    recorder->phase = PHASE_OTHER;
    recorder->optimizers = 0;
    recorder->since_ns = now_ns;
    recorder->first_arrival_ns = recorder->last_arrival_ns = 0;
    recorder->waited_ns = -1;
    take_stops(recorder, &(Row){0}); /* they belong to no step, either */
    if (recorder->clock != NULL && recorder->on && device_begin(recorder, now_ns, recorder->phase) < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

static PyObject *method_release(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    recorder_release_page(recorder);
    Py_RETURN_NONE;
}

static PyObject *method_take_phases(StepRecorder *recorder, PyObject *unused)
{
    double seconds[STEP_PHASES];
    (void)unused;
    if (!recorder->on)
        Py_RETURN_NONE;
    recorder_end_phases(recorder, seconds);
    count_phases(recorder, seconds);
    Py_RETURN_NONE;
}

static PyObject *method_take_losses(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    int64_t count = recorder->num_losses < LOSSES ? recorder->num_losses : LOSSES;
    PyObject *losses = PyList_New((Py_ssize_t)count);
    for (int64_t n = 0; losses != NULL && n < count; n++) {
        int64_t index = (recorder->num_losses - count + n) % LOSSES;
        PyObject *loss = PyFloat_FromDouble(recorder->losses[index]);
        if (loss == NULL)
            Py_CLEAR(losses);
        else
            PyList_SET_ITEM(losses, (Py_ssize_t)n, loss);
    }
    if (losses != NULL)
        recorder->num_losses = 0;
    return losses;
}

PyMethodDef recorder_methods[] = {
    METHOD("enter_code", method_enter_code, METH_O),
    METHOD("switch_phase", method_switch_phase, METH_O),
    METHOD("enter_phase", method_enter_phase, METH_O),
    METHOD("phase_hook", method_phase_hook, METH_O),
    METHOD("first_arrival", method_first_arrival, METH_NOARGS),
    METHOD("wait_begins", method_wait_begins, METH_NOARGS),
    METHOD("wait_ended", method_wait_ended, METH_VARARGS | METH_KEYWORDS),
    METHOD("step", recorder_step, METH_FASTCALL | METH_KEYWORDS),
    METHOD("take_phases", method_take_phases, METH_NOARGS),
    METHOD("take_losses", method_take_losses, METH_NOARGS),
    METHOD("stop", method_stop, METH_NOARGS),
    METHOD("use_device", recorder_use_device, METH_O),
    METHOD("call_when_passed", recorder_call_when_passed, METH_O),
    METHOD("settle", recorder_settle, METH_NOARGS),
    METHOD("is_device_busy", recorder_is_device_busy, METH_NOARGS),
    METHOD("watch_run_queue", recorder_watch_run_queue, METH_O),
    METHOD("watch_stops", recorder_watch_stops, METH_NOARGS),
    METHOD("restart", method_restart, METH_O),
    METHOD("release", method_release, METH_NOARGS),
    END_OF_METHODS,
};
