/* DDP's wait at the end of an ordinary backward: one that is seen from outside, on one thread.
 *
 * Any other goes to the methods of lockstep/strategies/hooks.py, which also explains why.
 *
 * The gradient's hook runs inside torch.autograd.backward, while the engine holds the GIL for it. It
 * lends itself to the listener as `wait` (a reference of the listener's), which gives it back when
 * the backward has ended. The model is held weakly: a watch must not keep it.
 */
#include "recorder.h"

#include "type_tables.h"

PyTypeObject *GradientWait_Type;

#define WAIT_OBJECTS(X)                                                                            \
    X(recorder) X(backwards)                                                                       \
    X(model) /* a weak reference */                                                                \
    X(queue) /* of the autograd engine, for callbacks at the end of the backward */                \
    X(taps) /* the dictionary with the listener to operations */                                   \
    X(arrived_otherwise) X(begins_otherwise) /* called where a step is not ordinary */             \
    X(begins) /* its own method, bound once */

typedef struct {
    PyObject_HEAD
#define OBJECT_FIELD(name) PyObject *name;
    WAIT_OBJECTS(OBJECT_FIELD)
#undef OBJECT_FIELD
    int interrupted;
    char on_graph;
    Collectives collectives;
} GradientWait;

static int is_ordinary(const GradientWait *wait)
{
    const Backward *backwards = (const Backward *)wait->backwards;
    const StepRecorder *recorder = (const StepRecorder *)wait->recorder;
    /* A device has a thread of its own for the backward, for which the loop's waits. */
    return !wait->on_graph && backwards->inside && !backwards->nests
           && (recorder->clock != NULL || PyThread_get_thread_ident() == backwards->thread)
           && PyDict_GetItemWithError(wait->taps, name_tap) == Py_None;
}

/* The model's attribute, read from its own dictionary: a lookup along its classes is slow. */
static int is_synchronised(const GradientWait *wait)
{
    PyObject *model = PyObject_CallNoArgs(wait->model);
    if (model == NULL || model == Py_None) {
        Py_XDECREF(model);
        return model == NULL ? -1 : 0;
    }
    PyObject *attributes = PyObject_GenericGetDict(model, NULL), *flag = NULL;
    if (attributes != NULL)
        flag = PyDict_GetItemWithError(attributes, name_require_backward_grad_sync);
    int is_true = flag != NULL ? PyObject_IsTrue(flag) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(attributes);
    Py_DECREF(model);
    return is_true;
}

/* The result, or None where there is an error: it is ours, and must not get into the backward. */
static PyObject *without_part(StepRecorder *recorder, PyObject *result)
{
    if (result != NULL)
        return result;
    if (handle_part_error(recorder, "gradient_buckets") < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The gradient that completes the first bucket is ready. */
static PyObject *gradient_wait_arrived(GradientWait *wait, PyObject *parameter)
{
    (void)parameter;
    int synchronised = is_synchronised(wait);
    StepRecorder *recorder = (StepRecorder *)wait->recorder;
    if (synchronised < 0)
        return without_part(recorder, NULL);
    if (!synchronised)
        Py_RETURN_NONE;
    if (!is_ordinary(wait))
        return PyObject_CallNoArgs(wait->arrived_otherwise);
    if (recorder_arrives(recorder) < 0)
        return without_part(recorder, NULL);
    return without_part(recorder, PyObject_CallOneArg(wait->queue, wait->begins));
}

/* The last local gradient is ready; the reducer waits for the others next. */
static PyObject *gradient_wait_begins(GradientWait *wait, PyObject *unused)
{
    (void)unused;
    if (!is_ordinary(wait))
        return PyObject_CallNoArgs(wait->begins_otherwise);
    StepRecorder *recorder = (StepRecorder *)wait->recorder;
    if (recorder_wait_begins(recorder, &wait->interrupted) < 0)
        return handle_error(recorder);
    Py_XSETREF(((Backward *)wait->backwards)->wait, Py_NewRef(wait));
    Py_RETURN_NONE;
}

PyObject *end_gradient_wait(PyObject *self)
{
    GradientWait *wait = (GradientWait *)self;
    StepRecorder *recorder = (StepRecorder *)wait->recorder;
    int code = PHASE_OTHER;
    int ended = wait->interrupted == NOT_WAITING
                    ? recorder_enter(recorder, code)
                    : recorder_wait_ended(recorder, code, &wait->collectives);
    if (ended < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}

static int gradient_wait_init(GradientWait *wait, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder",    "backwards", "model", "queue", "taps", "arrived_otherwise",
                            "begins_otherwise", "kind", "calls", "size_bytes", "ranks", NULL};
    PyObject *recorder, *backwards, *model, *queue, *taps, *arrived, *begins, *kind, *ranks;
    long long calls, size_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!OOO!OOOLLO:GradientWait", names, StepRecorder_Type,
                                     &recorder, Backward_Type, &backwards, &model, &queue, &PyDict_Type,
                                     &taps, &arrived, &begins, &kind, &calls, &size_bytes, &ranks))
        return -1;
    Py_XSETREF(wait->recorder, Py_NewRef(recorder));
    Py_XSETREF(wait->backwards, Py_NewRef(backwards));
    Py_XSETREF(wait->model, Py_NewRef(model));
    Py_XSETREF(wait->queue, Py_NewRef(queue));
    Py_XSETREF(wait->taps, Py_NewRef(taps));
    Py_XSETREF(wait->arrived_otherwise, Py_NewRef(arrived));
    Py_XSETREF(wait->begins_otherwise, Py_NewRef(begins));
    Py_XSETREF(wait->begins, PyObject_GetAttrString((PyObject *)wait, "begin"));
    wait->collectives = (Collectives){.calls = calls, .size_bytes = size_bytes};
    wait->interrupted = NOT_WAITING;
    if (wait->begins == NULL)
        return -1;
    return recorder_resolve((StepRecorder *)recorder, kind, ranks, &wait->collectives);
}

DEFINE_COLLECTION(gradient_wait, GradientWait, WAIT_OBJECTS)

static PyMemberDef gradient_wait_members[] = {
    MEMBER("on_graph", T_BOOL, GradientWait, on_graph, 0),
    END_OF_MEMBERS,
};
static PyMethodDef gradient_wait_methods[] = {
    METHOD("arrive", gradient_wait_arrived, METH_O),
    METHOD("begin", gradient_wait_begins, METH_NOARGS),
    END_OF_METHODS,
};
static PyType_Slot gradient_wait_slots[] = {TABLE_SLOTS(gradient_wait), NEW_SLOTS(gradient_wait), END_OF_SLOTS};
DEFINE_SPEC(gradient_wait, "GradientWait", GradientWait, 0);
