/* The functions and tables that every type with references needs, made from a list of its fields.
 *
 * FIELDS is a macro that applies X to each field of the struct that is a PyObject pointer.
 */
#ifndef LOCKSTEP_TYPE_TABLES_H
#define LOCKSTEP_TYPE_TABLES_H

#include <stddef.h>
#include <structmember.h>

#define VISIT_FIELD(name) Py_VISIT(self->name);
#define CLEAR_FIELD(name) Py_CLEAR(self->name);

#define DEFINE_TRAVERSE(prefix, Type, FIELDS)                                                      \
    static int prefix##_traverse(Type *self, visitproc visit, void *arg)                           \
    {                                                                                              \
        Py_VISIT(Py_TYPE(self));                                                                   \
        FIELDS(VISIT_FIELD)                                                                        \
        return 0;                                                                                  \
    }

#define DEFINE_CLEAR(prefix, Type, FIELDS)                                                         \
    static int prefix##_clear(Type *self)                                                          \
    {                                                                                              \
        FIELDS(CLEAR_FIELD)                                                                        \
        return 0;                                                                                  \
    }

/* `free_memory` is called with the object once its references are gone. */
#define DEFINE_DEALLOC(prefix, Type, free_memory)                                                  \
    static void prefix##_dealloc(Type *self)                                                       \
    {                                                                                              \
        PyTypeObject *type = Py_TYPE(self);                                                        \
        PyObject_GC_UnTrack(self);                                                                 \
        prefix##_clear(self);                                                                      \
        free_memory(self);                                                                         \
        type->tp_free(self);                                                                       \
        Py_DECREF(type); /* an instance of a heap type holds its type */                           \
    }

#define FREE_NOTHING(self) ((void)(self))

#define DEFINE_COLLECTION(prefix, Type, FIELDS)                                                    \
    DEFINE_TRAVERSE(prefix, Type, FIELDS)                                                          \
    DEFINE_CLEAR(prefix, Type, FIELDS)                                                             \
    DEFINE_DEALLOC(prefix, Type, FREE_NOTHING)

#define TABLE_SLOTS(prefix)                                                                        \
    {Py_tp_dealloc, prefix##_dealloc}, {Py_tp_traverse, prefix##_traverse},                        \
        {Py_tp_clear, prefix##_clear}, {Py_tp_members, prefix##_members},                          \
        {Py_tp_methods, prefix##_methods}
#define NEW_SLOTS(prefix) {Py_tp_init, prefix##_init}, {Py_tp_new, PyType_GenericNew}
#define CALL_SLOT {Py_tp_call, PyVectorcall_Call}
#define END_OF_SLOTS {0, NULL}

#define MEMBER(name, kind, Type, field, flags) {name, kind, offsetof(Type, field), flags, NULL}
#define VECTORCALL_MEMBER(Type)                                                                    \
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Type, call), READONLY, NULL}
#define END_OF_MEMBERS {NULL, 0, 0, 0, NULL}

#define METHOD(name, function, flags) {name, (PyCFunction)(void (*)(void))(function), flags, NULL}
#define END_OF_METHODS {NULL, NULL, 0, NULL}

#define DEFINE_SPEC(prefix, name, Type, flags)                                                     \
    PyType_Spec prefix##_spec = {                                                                  \
        "lockstep._native." name, sizeof(Type), 0,                                                 \
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | (flags), prefix##_slots}

#endif
