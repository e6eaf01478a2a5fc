/* A hook that enters one phase.
 *
 * torch owns the hook, and the hook its recorder. The callback gets a reference for the time of its
 * call, in which it may set another one or close the recorder.
 */
#include "recorder.h"

#include "type_tables.h"

PyTypeObject *PhaseHook_Type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *recorder;
    int code;
    PyObject *callback; /* or NULL */
    long long quiet_from, quiet_until;
} PhaseHook;

static PyObject *phase_hook_called(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    PhaseHook *hook = (PhaseHook *)self;
    StepRecorder *recorder = (StepRecorder *)hook->recorder;
    if (hook->code == PHASE_OPTIMIZER)
        recorder->optimizers++;
    else if (hook->code == PHASE_OTHER && recorder->optimizers > 0)
        recorder->optimizers--;
    if (recorder_enter(recorder, hook->code) < 0)
        return handle_error(recorder);
    bool is_quiet = hook->quiet_from <= recorder->next_step && recorder->next_step < hook->quiet_until;
    if (is_quiet || hook->callback == NULL || hook->callback == Py_None || !recorder->on)
        Py_RETURN_NONE;
    PyObject *callback = Py_NewRef(hook->callback);
    PyObject *result = PyObject_Vectorcall(callback, args, count, names);
    Py_DECREF(callback);
    if (result == NULL)
        return NULL;
    Py_DECREF(result); /* of a hook before an optimizer's step it would be its new arguments */
    Py_RETURN_NONE;
}

PyObject *new_phase_hook(StepRecorder *recorder, int code)
{
    PhaseHook *hook = PyObject_GC_New(PhaseHook, PhaseHook_Type);
    if (hook == NULL)
        return NULL;
    hook->call = phase_hook_called;
    hook->recorder = Py_NewRef(recorder);
    hook->code = code;
    hook->callback = NULL;
    hook->quiet_from = hook->quiet_until = 0;
    PyObject_GC_Track(hook);
    return (PyObject *)hook;
}

/* A copy of a watched optimizer is not watched. */
static PyObject *phase_hook_reduce(PhaseHook *hook, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(O())", ((StepRecorder *)hook->recorder)->ignored);
}

/* The recorder is released at the end only: a cleared hook may still be called. */
static void release_recorder(PhaseHook *hook)
{
    Py_CLEAR(hook->recorder);
}

#define VISITED(X) X(recorder) X(callback)
#define CLEARED(X) X(callback)
DEFINE_TRAVERSE(phase_hook, PhaseHook, VISITED)
DEFINE_CLEAR(phase_hook, PhaseHook, CLEARED)
DEFINE_DEALLOC(phase_hook, PhaseHook, release_recorder)

static PyMemberDef phase_hook_members[] = {
    VECTORCALL_MEMBER(PhaseHook),
    MEMBER("callback", T_OBJECT, PhaseHook, callback, 0),
    MEMBER("quiet_from", T_LONGLONG, PhaseHook, quiet_from, 0),
    MEMBER("quiet_until", T_LONGLONG, PhaseHook, quiet_until, 0),
    END_OF_MEMBERS,
};
static PyMethodDef phase_hook_methods[] = {
    METHOD("__reduce__", phase_hook_reduce, METH_NOARGS),
    END_OF_METHODS,
};
static PyType_Slot phase_hook_slots[] = {TABLE_SLOTS(phase_hook), CALL_SLOT, END_OF_SLOTS};
DEFINE_SPEC(phase_hook, "PhaseHook", PhaseHook,
            Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION);
