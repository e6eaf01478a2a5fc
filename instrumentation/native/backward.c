/* Replaces torch.autograd.backward; lockstep/patches/backward.py does the same in Python.
 *
 * torch.autograd owns the listener, which owns the original, its recorder and what waits for the end.
 * The original runs hooks of any kind, so the listener is called again from inside itself (`inside`,
 * `nests`) and from autograd's threads (`thread`): those calls pass through. `wait` and `ended` are
 * taken out before they are called, for what they call may set them anew.
 */
#include "recorder.h"

#include "type_tables.h"

PyTypeObject *Backward_Type;

static int enter_phase(Backward *listener, long code)
{
    if (Py_IS_TYPE(listener->recorder, StepRecorder_Type))
        return recorder_enter((StepRecorder *)listener->recorder, (int)code);
    if (listener->recorder == Py_None)
        return 0;
    PyObject *result = PyObject_CallMethod(listener->recorder, "enter_code", "l", code);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Leaves the error that is set as it is: it may be the user's own. */
static void enter_phase_quietly(Backward *listener, long code)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (enter_phase(listener, code) < 0 && Py_IS_TYPE(listener->recorder, StepRecorder_Type))
        Py_XDECREF(handle_error((StepRecorder *)listener->recorder));
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
}

/* Calls what waits for the end of the backward; returns the result, or NULL with an error. */
static PyObject *call_ended(Backward *listener, PyObject *result)
{
    PyObject *callbacks = listener->ended;
    listener->ended = PyList_New(0);
    if (listener->ended == NULL) {
        listener->ended = callbacks;
        Py_XDECREF(result);
        return NULL;
    }
    for (Py_ssize_t n = 0; result != NULL && n < PyList_GET_SIZE(callbacks); n++) {
        PyObject *returned = PyObject_CallNoArgs(PyList_GET_ITEM(callbacks, n));
        if (returned == NULL)
            Py_CLEAR(result);
        Py_XDECREF(returned);
    }
    Py_DECREF(callbacks);
    return result;
}

static PyObject *end_phase(Backward *listener, PyObject *result)
{
    enter_phase_quietly(listener, listener->other_code);
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
    enter_phase_quietly(listener, listener->backward_code);
    PyObject *result = NULL;
    if (!PyErr_Occurred()) /* such as an interrupt while the phase began */
        result = PyObject_Vectorcall(listener->original, args, count, names);
    listener->inside = 0;
    PyObject *wait = listener->wait;
    listener->wait = NULL;
    if (wait != NULL && result != NULL) { /* one that failed while it waited waits still */
        PyObject *returned = end_gradient_wait(wait);
        if (returned == NULL)
            Py_CLEAR(result);
        Py_XDECREF(returned);
    }
    if (PyList_GET_SIZE(listener->ended) > 0)
        result = call_ended(listener, result);
    else if (wait == NULL)
        result = end_phase(listener, result);
    Py_XDECREF(wait);
    return result;
}

static int backward_init(Backward *listener, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"backward", "other", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ll:Listener", names, &listener->backward_code,
                                     &listener->other_code))
        return -1;
    Py_XSETREF(listener->original, Py_NewRef(Py_None));
    Py_XSETREF(listener->recorder, Py_NewRef(Py_None));
    Py_XSETREF(listener->ended, PyList_New(0));
    listener->call = backward_called;
    return listener->ended == NULL ? -1 : 0;
}

#define BACKWARD_OBJECTS(X) X(recorder) X(wait) X(ended) X(original)
DEFINE_COLLECTION(backward, Backward, BACKWARD_OBJECTS)

static PyMemberDef backward_members[] = {
    VECTORCALL_MEMBER(Backward),
    MEMBER("original", T_OBJECT, Backward, original, 0),
    MEMBER("inside", T_BOOL, Backward, inside, READONLY),
    MEMBER("nests", T_BOOL, Backward, nests, 0),
    MEMBER("calls", T_LONGLONG, Backward, calls, READONLY),
    MEMBER("thread", T_ULONG, Backward, thread, 0),
    MEMBER("recorder", T_OBJECT, Backward, recorder, 0),
    MEMBER("ended", T_OBJECT, Backward, ended, READONLY),
    END_OF_MEMBERS,
};
static PyMethodDef backward_methods[] = {END_OF_METHODS};
static PyType_Slot backward_slots[] = {TABLE_SLOTS(backward), NEW_SLOTS(backward), CALL_SLOT, END_OF_SLOTS};
DEFINE_SPEC(backward, "Listener", Backward, Py_TPFLAGS_HAVE_VECTORCALL);
