/* DDP's wait at the end of a backward, once all is settled: one that marks itself, on one thread.
 *
 * Anything else goes to the methods of lockstep/strategies/hooks.py, which also say why it is done so.
 */
#include "recorder.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *GradientWait_Type;

/* Objects that it holds: a weak reference to the model, torch's queue, the dictionary that has the
 * tap, what to call where a step is not as usual, and its own method, made once. */
#define PARTS(X) X(model) X(queue) X(taps) X(arrived_otherwise) X(begins_otherwise) X(begins)

typedef struct {
    PyObject_HEAD
    StepRecorder *recorder;
    Backward *backwards;
    int interrupted;
    char on_graph;
    Collectives told;
#define PART(name) PyObject *name;
    PARTS(PART)
#undef PART
} GradientWait;

static int is_usual(const GradientWait *wait)
{
    const Backward *backwards = wait->backwards;
    return !wait->on_graph && backwards->inside && !backwards->nests
           && PyThread_get_thread_ident() == backwards->thread
           && PyDict_GetItemWithError(wait->taps, name_tap) == Py_None;
}

/* The model's own attribute, looked for where it stands: a walk along its classes is long. */
static int is_synchronised(const GradientWait *wait)
{
    PyObject *model = PyObject_CallNoArgs(wait->model);
    if (model == NULL || model == Py_None) {
        Py_XDECREF(model);
        return model == NULL ? -1 : 0;
    }
    PyObject *own = PyObject_GenericGetDict(model, NULL);
    PyObject *told = own ? PyDict_GetItemWithError(own, name_require_backward_grad_sync) : NULL;
    int is_so = told != NULL ? PyObject_IsTrue(told) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(own);
    Py_DECREF(model);
    return is_so;
}

/* The gradient that completes the first bucket is ready. */
static PyObject *wait_arrived(GradientWait *wait, PyObject *parameter)
{
    (void)parameter;
    int synchronised = is_synchronised(wait);
    if (synchronised < 0)
        return NULL;
    if (!synchronised)
        Py_RETURN_NONE;
    if (!is_usual(wait))
        return PyObject_CallNoArgs(wait->arrived_otherwise);
    StepRecorder *recorder = wait->recorder;
    if (recorder->on && !recorder->first_arrival)
        recorder->first_arrival = clock_ns();
    return PyObject_CallOneArg(wait->queue, wait->begins);
}

/* The last local gradient is ready; the reducer waits for the others next. */
static PyObject *wait_begins(GradientWait *wait, PyObject *unused)
{
    (void)unused;
    if (!is_usual(wait))
        return PyObject_CallNoArgs(wait->begins_otherwise);
    if (recorder_wait_begins(wait->recorder, &wait->interrupted) < 0)
        return settled(wait->recorder);
    Py_XSETREF(wait->backwards->wait, Py_NewRef(wait));
    Py_RETURN_NONE;
}

PyObject *wait_ended_of(PyObject *self)
{
    GradientWait *wait = (GradientWait *)self;
    StepRecorder *recorder = wait->recorder;
    int code = (int)recorder->at.code_other;
    int done = wait->interrupted == NOT_WAITING ? recorder_enter(recorder, code)
                                                : recorder_wait_ended(recorder, code, &wait->told);
    if (done < 0)
        return settled(recorder);
    Py_RETURN_NONE;
}

static int wait_init(GradientWait *wait, PyObject *args, PyObject *named)
{
    static char *names[] = {"recorder",    "backwards", "model", "queue", "taps", "arrived_otherwise",
                            "begins_otherwise", "kind", "calls", "size_bytes", "ranks", NULL};
    PyObject *recorder, *backwards, *model, *queue, *taps, *arrived, *begins, *kind, *ranks;
    long long calls, size;
    if (!PyArg_ParseTupleAndKeywords(args, named, "$O!O!OOO!OOOLLO:GradientWait", names, StepRecorder_Type,
                                     &recorder, Backward_Type, &backwards, &model, &queue, &PyDict_Type,
                                     &taps, &arrived, &begins, &kind, &calls, &size, &ranks))
        return -1;
    Py_XSETREF(wait->recorder, (StepRecorder *)Py_NewRef(recorder));
    Py_XSETREF(wait->backwards, (Backward *)Py_NewRef(backwards));
    Py_XSETREF(wait->model, Py_NewRef(model));
    Py_XSETREF(wait->queue, Py_NewRef(queue));
    Py_XSETREF(wait->taps, Py_NewRef(taps));
    Py_XSETREF(wait->arrived_otherwise, Py_NewRef(arrived));
    Py_XSETREF(wait->begins_otherwise, Py_NewRef(begins));
    Py_XSETREF(wait->begins, PyObject_GetAttrString((PyObject *)wait, "begin"));
    wait->told = (Collectives){.calls = calls, .size = size};
    wait->interrupted = NOT_WAITING;
    return wait->begins == NULL ? -1 : recorder_resolve(wait->recorder, kind, ranks, &wait->told);
}

static int wait_traverse(GradientWait *wait, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(wait));
    Py_VISIT(wait->recorder);
    Py_VISIT(wait->backwards);
#define VISIT(name) Py_VISIT(wait->name);
    PARTS(VISIT)
    return 0;
}

static int wait_clear(GradientWait *wait)
{
    Py_CLEAR(wait->recorder);
    Py_CLEAR(wait->backwards);
#define CLEAR(name) Py_CLEAR(wait->name);
    PARTS(CLEAR)
    return 0;
}

static void wait_dealloc(GradientWait *wait)
{
    PyTypeObject *type = Py_TYPE(wait);
    PyObject_GC_UnTrack(wait);
    wait_clear(wait);
    type->tp_free(wait);
    Py_DECREF(type);
}

static PyMemberDef wait_members[] = {
    {"on_graph", T_BOOL, offsetof(GradientWait, on_graph), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef wait_methods[] = {
    {"arrive", (PyCFunction)wait_arrived, METH_O, NULL},
    {"begin", (PyCFunction)wait_begins, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot wait_slots[] = {
    {Py_tp_init, wait_init},       {Py_tp_dealloc, wait_dealloc}, {Py_tp_traverse, wait_traverse},
    {Py_tp_clear, wait_clear},     {Py_tp_methods, wait_methods}, {Py_tp_members, wait_members},
    {Py_tp_new, PyType_GenericNew}, {0, NULL},
};
PyType_Spec wait_spec = {"lockstep._native.GradientWait", sizeof(GradientWait), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, wait_slots};
