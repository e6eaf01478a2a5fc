/* A hook that marks one phase; lockstep/recorder/recorder.py says the same in Python. */
#include "pen.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *Marker_Type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Pen *pen;
    int code;
    PyObject *also; /* or NULL */
    long long quiet_from, quiet_until;
} Marker;

static PyObject *marked(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Marker *marker = (Marker *)self;
    Pen *pen = marker->pen;
    if (pen_enter(pen, marker->code) < 0)
        return settled(pen);
    bool is_quiet = marker->quiet_from <= pen->next_step && pen->next_step < marker->quiet_until;
    if (is_quiet || marker->also == NULL || marker->also == Py_None || !pen->on)
        Py_RETURN_NONE;
    PyObject *also = Py_NewRef(marker->also), *told = PyObject_Vectorcall(also, args, count, names);
    Py_DECREF(also);
    if (told == NULL)
        return NULL;
    Py_DECREF(told); /* of a hook before an optimizer's step it would be its new arguments */
    Py_RETURN_NONE;
}

PyObject *new_marker(Pen *pen, int code)
{
    Marker *marker = PyObject_GC_New(Marker, Marker_Type);
    if (marker == NULL)
        return NULL;
    marker->call = marked;
    marker->pen = (Pen *)Py_NewRef(pen);
    marker->code = code;
    marker->also = NULL;
    marker->quiet_from = marker->quiet_until = 0;
    PyObject_GC_Track(marker);
    return (PyObject *)marker;
}

/* A copy of what is watched is not watched. */
static PyObject *marker_reduce(Marker *marker, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(O())", marker->pen->ignored);
}

static int marker_traverse(Marker *marker, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(marker));
    Py_VISIT(marker->pen);
    Py_VISIT(marker->also);
    return 0;
}

static int marker_clear(Marker *marker)
{
    Py_CLEAR(marker->also); /* and not the pen, which it may still be asked for */
    return 0;
}

static void marker_dealloc(Marker *marker)
{
    PyTypeObject *type = Py_TYPE(marker);
    PyObject_GC_UnTrack(marker);
    marker_clear(marker);
    Py_CLEAR(marker->pen);
    type->tp_free(marker);
    Py_DECREF(type);
}

static PyMemberDef marker_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Marker, call), READONLY, NULL},
    {"also", T_OBJECT, offsetof(Marker, also), 0, NULL},
    {"quiet_from", T_LONGLONG, offsetof(Marker, quiet_from), 0, NULL},
    {"quiet_until", T_LONGLONG, offsetof(Marker, quiet_until), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef marker_methods[] = {
    {"__reduce__", (PyCFunction)marker_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot marker_slots[] = {
    {Py_tp_dealloc, marker_dealloc}, {Py_tp_traverse, marker_traverse},
    {Py_tp_clear, marker_clear},     {Py_tp_members, marker_members},
    {Py_tp_methods, marker_methods}, {Py_tp_call, PyVectorcall_Call},
    {0, NULL},
};
PyType_Spec marker_spec = {
    "lockstep._native.Marker", sizeof(Marker), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    marker_slots};
