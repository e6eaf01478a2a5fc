/* Calls of the recorder's callbacks in Python, each where one comparison says that it is due.
 *
 * Each may re-enter the recorder: `tick` and `step_ended` commit the periodic slot, `fail` stops the
 * recorder, and the user's close releases it. The recorder lives on: its caller holds a reference.
 * Objects that are made for a call are released here, with or without an error.
 */
#include "recorder.h"

/* The error that is set, as an object of its own; none is set afterwards. */
static PyObject *take_error(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

PyObject *handle_error(StepRecorder *recorder)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL; /* an interrupt is the user's */
    if (recorder->callbacks == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *error = take_error();
    PyObject *result = PyObject_CallMethodOneArg(recorder->callbacks, name_fail, error);
    Py_XDECREF(error);
    return result;
}

int handle_part_error(StepRecorder *recorder, const char *part)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1; /* an interrupt is the user's */
    PyObject *error = take_error(), *name = PyUnicode_FromString(part), *result = NULL;
    if (recorder->callbacks == NULL || name == NULL)
        PyErr_Clear();
    else
        result = PyObject_CallMethodObjArgs(recorder->callbacks, name_part_failed, name, error, NULL);
    int status = result == NULL && PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(result);
    Py_XDECREF(name);
    Py_XDECREF(error);
    return status;
}

int call_tick(StepRecorder *recorder, int64_t now_ns)
{
    PyObject *moment = PyLong_FromLongLong(now_ns);
    if (moment == NULL)
        return -1;
    PyObject *next = PyObject_CallMethodOneArg(recorder->callbacks, name_tick, moment);
    Py_DECREF(moment);
    if (next == NULL)
        return -1;
    recorder->due_ns = PyLong_AsLongLong(next);
    Py_DECREF(next);
    return PyErr_Occurred() ? -1 : 0;
}

/* Writes the word through the object that stands in for the page's heartbeat. */
int call_heartbeat(StepRecorder *recorder, uint64_t word)
{
    PyObject *index = PyLong_FromLong(0), *number = PyLong_FromUnsignedLongLong(word);
    int status = index && number ? PyObject_SetItem(recorder->heartbeat, index, number) : -1;
    Py_XDECREF(index);
    Py_XDECREF(number);
    return status;
}

static int add_flags(PyObject *result, uint32_t *flags)
{
    if (result == NULL)
        return -1;
    *flags |= (uint32_t)PyLong_AsUnsignedLongMask(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

int call_inspect_number(StepRecorder *recorder, PyObject *method, double number, uint32_t *flags)
{
    PyObject *value = PyFloat_FromDouble(number);
    if (value == NULL)
        return -1;
    PyObject *result = PyObject_CallMethodOneArg(recorder->callbacks, method, value);
    Py_DECREF(value);
    return add_flags(result, flags);
}

int call_inspect_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES])
{
    PyObject *parts = PyTuple_New(STEP_PHASES);
    for (int n = 0; parts != NULL && n < STEP_PHASES; n++) {
        PyObject *part = PyFloat_FromDouble(seconds[n]);
        if (part == NULL)
            Py_CLEAR(parts);
        else
            PyTuple_SET_ITEM(parts, n, part);
    }
    PyObject *number = PyLong_FromLongLong(row->step), *result = NULL;
    if (parts != NULL && number != NULL)
        result = PyObject_CallMethodObjArgs(recorder->callbacks, name_inspect_step, number, parts, NULL);
    Py_XDECREF(parts);
    Py_XDECREF(number);
    return add_flags(result, &row->flags);
}

int call_step_ended(StepRecorder *recorder, int64_t number, double seconds, int64_t now_ns, int64_t steps)
{
    /* Each 256th step goes through, for the running median of slow steps. */
    if (steps < recorder->wake_rows && number < recorder->wake_step && now_ns < recorder->wake_ns
        && !(seconds > recorder->slow_seconds) && (number & 255))
        return 0;
    PyObject *values[4] = {PyLong_FromLongLong(now_ns), PyLong_FromLongLong(number),
                           PyLong_FromLongLong(steps), PyFloat_FromDouble(seconds)};
    PyObject *result = NULL;
    if (values[0] && values[1] && values[2] && values[3])
        result = PyObject_CallMethodObjArgs(recorder->callbacks, name_step_ended, values[0],
                                            values[1], values[2], values[3], NULL);
    for (int n = 0; n < 4; n++)
        Py_XDECREF(values[n]);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}
