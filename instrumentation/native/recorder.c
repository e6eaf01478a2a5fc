/* Birth and end of a recorder, and what Python may read and set of it. */
#include "recorder.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *StepRecorder_Type;

static int take_places(Places *at, PyObject *told)
{
    static const struct {
        const char *name;
        size_t at;
    } places[] = {
#define PLACE(member, name) {name, offsetof(Places, member)},
        PLACES(PLACE)
#undef PLACE
    };
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        PyObject *place = PyDict_GetItemString(told, places[n].name);
        if (place == NULL) {
            PyErr_Format(PyExc_KeyError, "no place is told of %s", places[n].name);
            return -1;
        }
        int64_t number = PyLong_AsLongLong(place);
        if (number == -1 && PyErr_Occurred())
            return -1;
        *(int64_t *)((char *)at + places[n].at) = number;
    }
    return 0;
}

static int take_buckets(StepRecorder *recorder, PyObject *told)
{
    recorder->num_buckets = PyTuple_Size(told);
    if (recorder->num_buckets < 0)
        return -1;
    recorder->buckets = PyMem_Calloc((size_t)recorder->num_buckets, sizeof *recorder->buckets);
    if (recorder->buckets == NULL)
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t n = 0; n < recorder->num_buckets; n++) {
        recorder->buckets[n] = PyFloat_AsDouble(PyTuple_GET_ITEM(told, n));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Whether what is written lies inside of what was given to write on. */
static int has_room(const StepRecorder *recorder)
{
    const Places *at = &recorder->at;
    bool fits = at->at_ring + at->rows * at->row_size <= recorder->file.len && at->rows > 0 && at->losses > 0
                && at->row_size <= ROW_AT_MOST && at->slot_size <= recorder->slot.len
                && at->at_slot_0 + at->slot_size <= at->at_ring
                && at->at_slot_1 + at->slot_size <= at->at_ring && at->at_heartbeat % 8 == 0
                && at->slot_checksum * 8 < at->slot_size && at->periodic_size <= recorder->periodic.len;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the page is smaller than the places that are told");
    return fits ? 0 : -1;
}

static int recorder_init(StepRecorder *recorder, PyObject *args, PyObject *named)
{
    static char *names[] = {"file",    "slot",    "periodic",     "places",    "buckets",
                            "heartbeat",   "callbacks",   "codes",      "kinds",
                            "code_of", "bus_factor", "figures_of", "ignored", NULL};
    PyObject *file, *slot, *periodic, *places, *buckets;
    if (recorder->callbacks != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a recorder is born once");
        return -1;
    }
    bool good = PyArg_ParseTupleAndKeywords(
        args, named, "$OOOO!O!OOO!O!OOOO:StepRecorder", names, &file, &slot, &periodic, &PyDict_Type, &places,
        &PyTuple_Type, &buckets, &recorder->heartbeat, &recorder->callbacks, &PyDict_Type,
        &recorder->codes, &PyDict_Type, &recorder->kinds, &recorder->code_of, &recorder->bus_factor, &recorder->figures_of,
        &recorder->ignored);
    if (!good) { /* what was parsed is borrowed */
#define FORGET(name) recorder->name = NULL;
        HELD(FORGET)
        return -1;
    }
    recorder->own_heartbeat = recorder->heartbeat;
    recorder->numbers = Py_None;
#define HOLD_ON(name) Py_INCREF(recorder->name);
    HELD(HOLD_ON)
    if (PyObject_GetBuffer(file, &recorder->file, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(slot, &recorder->slot, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(periodic, &recorder->periodic, PyBUF_WRITABLE) < 0
        || take_places(&recorder->at, places) < 0 || take_buckets(recorder, buckets) < 0
        || has_room(recorder) < 0)
        return -1;
    recorder->losses = PyMem_Calloc((size_t)recorder->at.losses, sizeof *recorder->losses);
    if (recorder->losses == NULL)
        return PyErr_NoMemory(), -1;
    recorder->heartbeat_word = (uint64_t *)((char *)recorder->file.buf + recorder->at.at_heartbeat);
    recorder->now_in = (int)recorder->at.code_init;
    recorder->since = recorder->begun = clock_ns();
    recorder->look_at = 1;
    recorder->wake_step = recorder->wake_ns = (int64_t)1 << 62;
    recorder->loss_floor = -Py_HUGE_VAL;
    recorder->loss_bound = recorder->usual_seconds = Py_HUGE_VAL;
    recorder->on = 1;
    return 0;
}

/* Lets go of the page, which can be closed from then on. */
static void release_buffers(StepRecorder *recorder)
{
    recorder->on = 0;
    for (Py_buffer **one = (Py_buffer *[]){&recorder->file, &recorder->slot, &recorder->periodic, NULL}; *one; one++)
        if ((*one)->obj != NULL)
            PyBuffer_Release(*one);
    recorder->file.buf = recorder->slot.buf = recorder->periodic.buf = NULL;
}

PyObject *recorder_release(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    release_buffers(recorder);
    Py_RETURN_NONE;
}

static int recorder_traverse(StepRecorder *recorder, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(recorder));
#define VISIT(name) Py_VISIT(recorder->name);
    HELD(VISIT)
    return 0;
}

static int recorder_clear(StepRecorder *recorder)
{
    release_buffers(recorder);
#define CLEAR(name) Py_CLEAR(recorder->name);
    HELD(CLEAR)
    return 0;
}

static void recorder_dealloc(StepRecorder *recorder)
{
    PyTypeObject *type = Py_TYPE(recorder);
    PyObject_GC_UnTrack(recorder);
    recorder_clear(recorder);
    PyMem_Free(recorder->buckets);
    PyMem_Free(recorder->losses);
    type->tp_free(recorder);
    Py_DECREF(type);
}

/* What the callbacks and its helpers read and set between steps. */
static PyMemberDef recorder_members[] = {
    {"on", T_BOOL, offsetof(StepRecorder, on), READONLY, NULL},
    {"held", T_BOOL, offsetof(StepRecorder, held), 0, NULL},
    {"now_in", T_INT, offsetof(StepRecorder, now_in), READONLY, NULL},
    {"since_ns", T_LONGLONG, offsetof(StepRecorder, since), READONLY, NULL},
    {"measures", T_BOOL, offsetof(StepRecorder, measures), 0, NULL},
    {"own_ns", T_LONGLONG, offsetof(StepRecorder, own), 0, NULL},
    {"due_ns", T_LONGLONG, offsetof(StepRecorder, due), 0, NULL},
    {"look_at", T_LONGLONG, offsetof(StepRecorder, look_at), 0, NULL},
    {"wake_step", T_LONGLONG, offsetof(StepRecorder, wake_step), 0, NULL},
    {"wake_ns", T_LONGLONG, offsetof(StepRecorder, wake_ns), 0, NULL},
    {"next_step", T_LONGLONG, offsetof(StepRecorder, next_step), 0, NULL},
    {"flags", T_LONGLONG, offsetof(StepRecorder, flags), 0, NULL},
    {"lasting_flags", T_LONGLONG, offsetof(StepRecorder, lasting_flags), 0, NULL},
    {"loss_floor", T_DOUBLE, offsetof(StepRecorder, loss_floor), 0, NULL},
    {"loss_bound", T_DOUBLE, offsetof(StepRecorder, loss_bound), 0, NULL},
    {"usual_seconds", T_DOUBLE, offsetof(StepRecorder, usual_seconds), 0, NULL},
    {"slow_seconds", T_DOUBLE, offsetof(StepRecorder, slow_seconds), 0, NULL},
    {"heartbeat", T_OBJECT_EX, offsetof(StepRecorder, heartbeat), 0, NULL},
    {"numbers", T_OBJECT_EX, offsetof(StepRecorder, numbers), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot recorder_slots[] = {
    {Py_tp_init, recorder_init},       {Py_tp_dealloc, recorder_dealloc}, {Py_tp_traverse, recorder_traverse},
    {Py_tp_clear, recorder_clear},     {Py_tp_methods, recorder_methods}, {Py_tp_members, recorder_members},
    {Py_tp_new, PyType_GenericNew}, {0, NULL},
};
PyType_Spec recorder_spec = {
    "lockstep._native.StepRecorder", sizeof(StepRecorder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, recorder_slots};
