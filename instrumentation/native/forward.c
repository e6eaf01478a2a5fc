/* The beginning of a forward, and whether backwards are still seen where they are listened to;
 * lockstep/strategies/hooks.py does the same in Python.
 */
#include "recorder.h"

#include "type_tables.h"

PyTypeObject *Forward_Type;

#define FORWARD_OBJECTS(X) X(recorder) X(backwards) X(choose) X(trains)

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
#define OBJECT_FIELD(name) PyObject *name;
    FORWARD_OBJECTS(OBJECT_FIELD)
#undef OBJECT_FIELD
    int code;
    char on_graph, evaluates;
    long long last_calls; /* backwards, at the last forward */
} Forward;

static PyObject *forward_called(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Forward *forward = (Forward *)self;
    StepRecorder *recorder = (StepRecorder *)forward->recorder;
    (void)args, (void)count, (void)names;
    if (forward->evaluates) {
        PyObject *trains = PyObject_CallNoArgs(forward->trains);
        if (trains == NULL)
            return NULL;
        forward->evaluates = trains != Py_True;
        Py_DECREF(trains);
        if (forward->evaluates) {
            if (recorder_enter(recorder, PHASE_EVAL) < 0)
                return handle_error(recorder);
            Py_RETURN_NONE;
        }
    }
    if (recorder_enter(recorder, forward->code) < 0)
        return handle_error(recorder);
    long long calls = ((Backward *)forward->backwards)->calls;
    bool is_outside = calls != forward->last_calls;
    forward->last_calls = calls;
    if (is_outside && !forward->on_graph)
        Py_RETURN_NONE;
    return PyObject_CallOneArg(forward->choose, is_outside ? Py_True : Py_False);
}

/* A copy of a watched model is not watched. */
static PyObject *forward_reduce(Forward *forward, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(O())", ((StepRecorder *)forward->recorder)->ignored);
}

static int forward_init(Forward *forward, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "backwards", "phase", "choose", "trains", NULL};
    PyObject *recorder, *backwards, *choose, *trains;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!iOO:Forward", names, StepRecorder_Type, &recorder,
                                     Backward_Type, &backwards, &forward->code, &choose, &trains))
        return -1;
    Py_XSETREF(forward->recorder, Py_NewRef(recorder));
    Py_XSETREF(forward->backwards, Py_NewRef(backwards));
    Py_XSETREF(forward->choose, Py_NewRef(choose));
    Py_XSETREF(forward->trains, Py_NewRef(trains));
    forward->call = forward_called;
    forward->last_calls = -1;
    return 0;
}

DEFINE_COLLECTION(forward, Forward, FORWARD_OBJECTS)

static PyMemberDef forward_members[] = {
    VECTORCALL_MEMBER(Forward),
    MEMBER("on_graph", T_BOOL, Forward, on_graph, 0),
    MEMBER("evaluates", T_BOOL, Forward, evaluates, 0),
    END_OF_MEMBERS,
};
static PyMethodDef forward_methods[] = {
    METHOD("__reduce__", forward_reduce, METH_NOARGS),
    END_OF_METHODS,
};
static PyType_Slot forward_slots[] = {TABLE_SLOTS(forward), NEW_SLOTS(forward), CALL_SLOT, END_OF_SLOTS};
DEFINE_SPEC(forward, "Forward", Forward, Py_TPFLAGS_HAVE_VECTORCALL);
