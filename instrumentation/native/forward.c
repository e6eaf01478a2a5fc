/* The beginning of a forward, and whether the way to see its backward is still the right one;
 * lockstep/strategies/forward.py says the same in Python.
 */
#include "recorder.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *Forward_Type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    StepRecorder *recorder;
    Backward *backwards;
    int code;
    char on_graph;
    long long marked;
    PyObject *choose;
} Forward;

static PyObject *forward_begins(PyObject *self, PyObject *const *args, size_t count,
                                PyObject *names)
{
    Forward *forward = (Forward *)self;
    (void)args, (void)count, (void)names;
    if (recorder_enter(forward->recorder, forward->code) < 0)
        return settled(forward->recorder);
    long long calls = forward->backwards->calls;
    bool outside = calls != forward->marked;
    forward->marked = calls;
    if (outside && !forward->on_graph)
        Py_RETURN_NONE;
    return PyObject_CallOneArg(forward->choose, outside ? Py_True : Py_False);
}

/* A copy of what is watched is not watched. */
static PyObject *forward_reduce(Forward *forward, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(O())", forward->recorder->ignored);
}

static int forward_init(Forward *forward, PyObject *args, PyObject *named)
{
    static char *names[] = {"recorder", "backwards", "phase", "choose", NULL};
    PyObject *recorder, *backwards, *choose;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!O!iO:Forward", names, StepRecorder_Type, &recorder,
                                     Backward_Type, &backwards, &forward->code, &choose))
        return -1;
    Py_XSETREF(forward->recorder, (StepRecorder *)Py_NewRef(recorder));
    Py_XSETREF(forward->backwards, (Backward *)Py_NewRef(backwards));
    Py_XSETREF(forward->choose, Py_NewRef(choose));
    forward->call = forward_begins;
    forward->marked = -1;
    return 0;
}

static int forward_traverse(Forward *forward, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(forward));
    Py_VISIT(forward->recorder);
    Py_VISIT(forward->backwards);
    Py_VISIT(forward->choose);
    return 0;
}

static int forward_clear(Forward *forward)
{
    Py_CLEAR(forward->recorder);
    Py_CLEAR(forward->backwards);
    Py_CLEAR(forward->choose);
    return 0;
}

static void forward_dealloc(Forward *forward)
{
    PyTypeObject *type = Py_TYPE(forward);
    PyObject_GC_UnTrack(forward);
    forward_clear(forward);
    type->tp_free(forward);
    Py_DECREF(type);
}

static PyMemberDef forward_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Forward, call), READONLY, NULL},
    {"on_graph", T_BOOL, offsetof(Forward, on_graph), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef forward_methods[] = {
    {"__reduce__", (PyCFunction)forward_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot forward_slots[] = {
    {Py_tp_init, forward_init},         {Py_tp_dealloc, forward_dealloc},
    {Py_tp_traverse, forward_traverse}, {Py_tp_clear, forward_clear},
    {Py_tp_members, forward_members},   {Py_tp_methods, forward_methods},
    {Py_tp_call, PyVectorcall_Call},    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};
PyType_Spec forward_spec = {
    "lockstep._native.Forward", sizeof(Forward), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, forward_slots};
