/* The module lockstep._native: the recorder, and what torch calls in an ordinary step. */
#include "recorder.h"
#include "type_tables.h"

#define NAME(name) PyObject *name_##name;
NAMES(NAME)
#undef NAME

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static PyMethodDef functions[] = {
    {"write_stacks_at", write_stacks_at, METH_VARARGS, NULL},
    END_OF_METHODS,
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    prepare_checksum();
#define NAME(name)                                                                                 \
    if ((name_##name = PyUnicode_InternFromString(#name)) == NULL)                                 \
        return NULL;
    NAMES(NAME)
#undef NAME
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL
        && (add_type(module, &recorder_spec, &StepRecorder_Type) < 0
            || add_type(module, &phase_hook_spec, &PhaseHook_Type) < 0
            || add_type(module, &backward_spec, &Backward_Type) < 0
            || add_type(module, &gradient_wait_spec, &GradientWait_Type) < 0
            || add_type(module, &forward_spec, &Forward_Type) < 0
            || PyModule_AddStringConstant(module, "PAGE_LAYOUT", PAGE_LAYOUT) < 0))
        Py_CLEAR(module);
    return module;
}
