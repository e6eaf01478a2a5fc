/* A hook that marks one phase; lockstep/recorder/recorder.py says the same in Python. */
#include "recorder.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *PhaseHook_Type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    StepRecorder *recorder;
    int code;
    PyObject *also; /* or NULL */
    long long quiet_from, quiet_until;
} PhaseHook;

static PyObject *marked(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    PhaseHook *hook = (PhaseHook *)self;
    StepRecorder *recorder = hook->recorder;
    if (recorder_enter(recorder, hook->code) < 0)
        return settled(recorder);
    bool is_quiet = hook->quiet_from <= recorder->next_step && recorder->next_step < hook->quiet_until;
    if (is_quiet || hook->also == NULL || hook->also == Py_None || !recorder->on)
        Py_RETURN_NONE;
    PyObject *also = Py_NewRef(hook->also), *told = PyObject_Vectorcall(also, args, count, names);
    Py_DECREF(also);
    if (told == NULL)
        return NULL;
    Py_DECREF(told); /* of a hook before an optimizer's step it would be its new arguments */
    Py_RETURN_NONE;
}

PyObject *new_phase_hook(StepRecorder *recorder, int code)
{
    PhaseHook *hook = PyObject_GC_New(PhaseHook, PhaseHook_Type);
    if (hook == NULL)
        return NULL;
    hook->call = marked;
    hook->recorder = (StepRecorder *)Py_NewRef(recorder);
    hook->code = code;
    hook->also = NULL;
    hook->quiet_from = hook->quiet_until = 0;
    PyObject_GC_Track(hook);
    return (PyObject *)hook;
}

/* A copy of what is watched is not watched. */
static PyObject *phase_hook_reduce(PhaseHook *hook, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(O())", hook->recorder->ignored);
}

static int phase_hook_traverse(PhaseHook *hook, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(hook));
    Py_VISIT(hook->recorder);
    Py_VISIT(hook->also);
    return 0;
}

static int phase_hook_clear(PhaseHook *hook)
{
    Py_CLEAR(hook->also); /* and not the recorder, which it may still be asked for */
    return 0;
}

static void phase_hook_dealloc(PhaseHook *hook)
{
    PyTypeObject *type = Py_TYPE(hook);
    PyObject_GC_UnTrack(hook);
    phase_hook_clear(hook);
    Py_CLEAR(hook->recorder);
    type->tp_free(hook);
    Py_DECREF(type);
}

static PyMemberDef phase_hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PhaseHook, call), READONLY, NULL},
    {"also", T_OBJECT, offsetof(PhaseHook, also), 0, NULL},
    {"quiet_from", T_LONGLONG, offsetof(PhaseHook, quiet_from), 0, NULL},
    {"quiet_until", T_LONGLONG, offsetof(PhaseHook, quiet_until), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef phase_hook_methods[] = {
    {"__reduce__", (PyCFunction)phase_hook_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot phase_hook_slots[] = {
    {Py_tp_dealloc, phase_hook_dealloc}, {Py_tp_traverse, phase_hook_traverse},
    {Py_tp_clear, phase_hook_clear},     {Py_tp_members, phase_hook_members},
    {Py_tp_methods, phase_hook_methods}, {Py_tp_call, PyVectorcall_Call},
    {0, NULL},
};
PyType_Spec phase_hook_spec = {
    "lockstep._native.PhaseHook", sizeof(PhaseHook), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    phase_hook_slots};
