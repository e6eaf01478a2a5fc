/* Stands around torch.autograd.backward; lockstep/strategies/backward.py says the same in Python. */
#include "recorder.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *Backward_Type;

static int backward_enters(Backward *listener, long code)
{
    if (Py_IS_TYPE(listener->recorder, StepRecorder_Type))
        return recorder_enter((StepRecorder *)listener->recorder, (int)code);
    if (listener->recorder == Py_None)
        return 0;
    PyObject *entered = PyObject_CallMethod(listener->recorder, "enter_code", "l", code);
    Py_XDECREF(entered);
    return entered == NULL ? -1 : 0;
}

/* Marks without a word about what is wrong: the error that is set may be the user's own. */
static void backward_marks(Backward *listener, long code)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (backward_enters(listener, code) < 0 && Py_IS_TYPE(listener->recorder, StepRecorder_Type))
        Py_XDECREF(settled((StepRecorder *)listener->recorder));
    if (type != NULL)
        PyErr_Restore(type, error, trace);
}

/* Tells those that wait for the end of the backward; gives the result, or NULL with an error. */
static PyObject *tell_ended(Backward *listener, PyObject *result)
{
    PyObject *told = listener->ended;
    listener->ended = PyList_New(0);
    if (listener->ended == NULL) {
        listener->ended = told;
        Py_XDECREF(result);
        return NULL;
    }
    for (Py_ssize_t n = 0; result != NULL && n < PyList_GET_SIZE(told); n++) {
        PyObject *done = PyObject_CallNoArgs(PyList_GET_ITEM(told, n));
        if (done == NULL)
            Py_CLEAR(result);
        Py_XDECREF(done);
    }
    Py_DECREF(told);
    return result;
}

static PyObject *end_phase(Backward *listener, PyObject *result)
{
    backward_marks(listener, listener->other);
    if (result != NULL && PyErr_Occurred())
        Py_CLEAR(result);
    return result;
}

static PyObject *backward_called(PyObject *self, PyObject *const *args, size_t count,
                                 PyObject *names)
{
    Backward *listener = (Backward *)self;
    if (listener->inside || PyThread_get_thread_ident() != listener->thread) {
        listener->nests |= listener->inside;
        return PyObject_Vectorcall(listener->original, args, count, names);
    }
    listener->inside = 1;
    listener->calls++;
    backward_marks(listener, listener->backward);
    PyObject *result = NULL;
    if (!PyErr_Occurred()) /* such as an interrupt in the mark */
        result = PyObject_Vectorcall(listener->original, args, count, names);
    listener->inside = 0;
    PyObject *wait = listener->wait;
    listener->wait = NULL;
    if (wait != NULL && result != NULL) { /* one that failed while it waited waits still */
        PyObject *done = wait_ended_of(wait);
        if (done == NULL)
            Py_CLEAR(result);
        Py_XDECREF(done);
    }
    if (PyList_GET_SIZE(listener->ended) > 0)
        result = tell_ended(listener, result);
    else if (wait == NULL)
        result = end_phase(listener, result);
    Py_XDECREF(wait);
    return result;
}

static int backward_init(Backward *listener, PyObject *args, PyObject *named)
{
    static char *names[] = {"backward", "other", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "ll:Listener", names, &listener->backward,
                                     &listener->other))
        return -1;
    Py_XSETREF(listener->original, Py_NewRef(Py_None));
    Py_XSETREF(listener->recorder, Py_NewRef(Py_None));
    Py_XSETREF(listener->ended, PyList_New(0));
    listener->call = backward_called;
    return listener->ended == NULL ? -1 : 0;
}

static int backward_traverse(Backward *listener, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(listener));
    Py_VISIT(listener->recorder);
    Py_VISIT(listener->wait);
    Py_VISIT(listener->ended);
    Py_VISIT(listener->original);
    return 0;
}

static int backward_clear(Backward *listener)
{
    Py_CLEAR(listener->recorder);
    Py_CLEAR(listener->wait);
    Py_CLEAR(listener->ended);
    Py_CLEAR(listener->original);
    return 0;
}

static void backward_dealloc(Backward *listener)
{
    PyTypeObject *type = Py_TYPE(listener);
    PyObject_GC_UnTrack(listener);
    backward_clear(listener);
    type->tp_free(listener);
    Py_DECREF(type);
}

static PyMemberDef backward_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Backward, call), READONLY, NULL},
    {"original", T_OBJECT, offsetof(Backward, original), 0, NULL},
    {"inside", T_BOOL, offsetof(Backward, inside), READONLY, NULL},
    {"nests", T_BOOL, offsetof(Backward, nests), 0, NULL},
    {"calls", T_LONGLONG, offsetof(Backward, calls), READONLY, NULL},
    {"thread", T_ULONG, offsetof(Backward, thread), 0, NULL},
    {"recorder", T_OBJECT, offsetof(Backward, recorder), 0, NULL},
    {"ended", T_OBJECT, offsetof(Backward, ended), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot backward_slots[] = {
    {Py_tp_init, backward_init},         {Py_tp_dealloc, backward_dealloc},
    {Py_tp_traverse, backward_traverse}, {Py_tp_clear, backward_clear},
    {Py_tp_members, backward_members},   {Py_tp_call, PyVectorcall_Call},
    {Py_tp_new, PyType_GenericNew},      {0, NULL},
};
PyType_Spec backward_spec = {
    "lockstep._native.Listener", sizeof(Backward), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, backward_slots};
