/* A hook that marks one phase, whatever it is called with. */
#include "pen.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *Marker_Type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Pen *pen;
    int code;
} Marker;

static PyObject *marked(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Marker *marker = (Marker *)self;
    (void)args, (void)count, (void)names;
    if (pen_enter(marker->pen, marker->code) < 0)
        return settled(marker->pen);
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
    return 0;
}

static void marker_dealloc(Marker *marker)
{
    PyTypeObject *type = Py_TYPE(marker);
    PyObject_GC_UnTrack(marker);
    Py_CLEAR(marker->pen);
    type->tp_free(marker);
    Py_DECREF(type);
}

static PyMemberDef marker_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Marker, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef marker_methods[] = {
    {"__reduce__", (PyCFunction)marker_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot marker_slots[] = {
    {Py_tp_dealloc, marker_dealloc}, {Py_tp_traverse, marker_traverse},
    {Py_tp_members, marker_members}, {Py_tp_methods, marker_methods},
    {Py_tp_call, PyVectorcall_Call}, {0, NULL},
};
PyType_Spec marker_spec = {
    "lockstep._native.Marker", sizeof(Marker), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    marker_slots};
