/* Birth and end of a pen, and what Python may read and set of it. */
#include "pen.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *Pen_Type;

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

static int take_buckets(Pen *pen, PyObject *told)
{
    pen->num_buckets = PyTuple_Size(told);
    if (pen->num_buckets < 0)
        return -1;
    pen->buckets = PyMem_Calloc((size_t)pen->num_buckets, sizeof *pen->buckets);
    if (pen->buckets == NULL)
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t n = 0; n < pen->num_buckets; n++) {
        pen->buckets[n] = PyFloat_AsDouble(PyTuple_GET_ITEM(told, n));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Whether what is written lies inside of what was given to write on. */
static int has_room(const Pen *pen)
{
    const Places *at = &pen->at;
    bool fits = at->at_ring + at->rows * at->row_size <= pen->file.len && at->rows > 0 && at->losses > 0
                && at->row_size <= ROW_AT_MOST && at->slot_size <= pen->slot.len
                && at->at_slot_0 + at->slot_size <= at->at_ring
                && at->at_slot_1 + at->slot_size <= at->at_ring && at->at_pulse % 8 == 0
                && at->slot_checksum * 8 < at->slot_size && at->seldom_size <= pen->seldom.len;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the page is smaller than the places that are told");
    return fits ? 0 : -1;
}

static int pen_init(Pen *pen, PyObject *args, PyObject *named)
{
    static char *names[] = {"file",    "slot",    "seldom",     "places",    "buckets",
                            "pulse",   "owner",   "codes",      "kinds",
                            "code_of", "bus_factor", "figures_of", "ignored", NULL};
    PyObject *file, *slot, *seldom, *places, *buckets;
    if (pen->owner != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a pen is born once");
        return -1;
    }
    bool good = PyArg_ParseTupleAndKeywords(
        args, named, "$OOOO!O!OOO!O!OOOO:Pen", names, &file, &slot, &seldom, &PyDict_Type, &places,
        &PyTuple_Type, &buckets, &pen->pulse, &pen->owner, &PyDict_Type,
        &pen->codes, &PyDict_Type, &pen->kinds, &pen->code_of, &pen->bus_factor, &pen->figures_of,
        &pen->ignored);
    if (!good) { /* what was parsed is borrowed */
#define FORGET(name) pen->name = NULL;
        HELD(FORGET)
        return -1;
    }
    pen->own_pulse = pen->pulse;
    pen->numbers = Py_None;
#define HOLD_ON(name) Py_INCREF(pen->name);
    HELD(HOLD_ON)
    if (PyObject_GetBuffer(file, &pen->file, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(slot, &pen->slot, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(seldom, &pen->seldom, PyBUF_WRITABLE) < 0
        || take_places(&pen->at, places) < 0 || take_buckets(pen, buckets) < 0
        || has_room(pen) < 0)
        return -1;
    pen->losses = PyMem_Calloc((size_t)pen->at.losses, sizeof *pen->losses);
    if (pen->losses == NULL)
        return PyErr_NoMemory(), -1;
    pen->pulse_word = (uint64_t *)((char *)pen->file.buf + pen->at.at_pulse);
    pen->now_in = (int)pen->at.code_init;
    pen->since = pen->begun = clock_ns();
    pen->look_at = 1;
    pen->wake_step = pen->wake_ns = (int64_t)1 << 62;
    pen->loss_floor = -Py_HUGE_VAL;
    pen->loss_bound = pen->usual_seconds = Py_HUGE_VAL;
    pen->on = 1;
    return 0;
}

/* Lets go of the page, which can be closed from then on. */
static void release_buffers(Pen *pen)
{
    pen->on = 0;
    for (Py_buffer **one = (Py_buffer *[]){&pen->file, &pen->slot, &pen->seldom, NULL}; *one; one++)
        if ((*one)->obj != NULL)
            PyBuffer_Release(*one);
    pen->file.buf = pen->slot.buf = pen->seldom.buf = NULL;
}

PyObject *pen_release(Pen *pen, PyObject *unused)
{
    (void)unused;
    release_buffers(pen);
    Py_RETURN_NONE;
}

static int pen_traverse(Pen *pen, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(pen));
#define VISIT(name) Py_VISIT(pen->name);
    HELD(VISIT)
    return 0;
}

static int pen_clear(Pen *pen)
{
    release_buffers(pen);
#define CLEAR(name) Py_CLEAR(pen->name);
    HELD(CLEAR)
    return 0;
}

static void pen_dealloc(Pen *pen)
{
    PyTypeObject *type = Py_TYPE(pen);
    PyObject_GC_UnTrack(pen);
    pen_clear(pen);
    PyMem_Free(pen->buckets);
    PyMem_Free(pen->losses);
    type->tp_free(pen);
    Py_DECREF(type);
}

/* What the owner and its helpers read and set between steps. */
static PyMemberDef pen_members[] = {
    {"on", T_BOOL, offsetof(Pen, on), READONLY, NULL},
    {"held", T_BOOL, offsetof(Pen, held), 0, NULL},
    {"now_in", T_INT, offsetof(Pen, now_in), READONLY, NULL},
    {"since_ns", T_LONGLONG, offsetof(Pen, since), READONLY, NULL},
    {"measures", T_BOOL, offsetof(Pen, measures), 0, NULL},
    {"own_ns", T_LONGLONG, offsetof(Pen, own), 0, NULL},
    {"due_ns", T_LONGLONG, offsetof(Pen, due), 0, NULL},
    {"look_at", T_LONGLONG, offsetof(Pen, look_at), 0, NULL},
    {"wake_step", T_LONGLONG, offsetof(Pen, wake_step), 0, NULL},
    {"wake_ns", T_LONGLONG, offsetof(Pen, wake_ns), 0, NULL},
    {"next_step", T_LONGLONG, offsetof(Pen, next_step), 0, NULL},
    {"flags", T_LONGLONG, offsetof(Pen, flags), 0, NULL},
    {"lasting_flags", T_LONGLONG, offsetof(Pen, lasting_flags), 0, NULL},
    {"loss_floor", T_DOUBLE, offsetof(Pen, loss_floor), 0, NULL},
    {"loss_bound", T_DOUBLE, offsetof(Pen, loss_bound), 0, NULL},
    {"usual_seconds", T_DOUBLE, offsetof(Pen, usual_seconds), 0, NULL},
    {"slow_seconds", T_DOUBLE, offsetof(Pen, slow_seconds), 0, NULL},
    {"pulse", T_OBJECT_EX, offsetof(Pen, pulse), 0, NULL},
    {"numbers", T_OBJECT_EX, offsetof(Pen, numbers), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot pen_slots[] = {
    {Py_tp_init, pen_init},       {Py_tp_dealloc, pen_dealloc}, {Py_tp_traverse, pen_traverse},
    {Py_tp_clear, pen_clear},     {Py_tp_methods, pen_methods}, {Py_tp_members, pen_members},
    {Py_tp_new, PyType_GenericNew}, {0, NULL},
};
PyType_Spec pen_spec = {
    "lockstep._native.Pen", sizeof(Pen), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pen_slots};
