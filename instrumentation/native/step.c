/* The end of a step: takes in what the loop tells; lockstep/recorder/recorder.py does the same in Python. */
#include "recorder.h"

#include <math.h>

static const double LARGEST = 3.4e38; /* what a row can hold */

typedef struct {
    PyObject *step, *loss, *norm, *rate, *tokens, *samples, *lengths;
} Told;

static bool is_same(PyObject *name, PyObject *known)
{
    return name == known || PyUnicode_Compare(name, known) == 0;
}

static int told_by_names(Told *told, PyObject *const *values, PyObject *names)
{
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(names); n++) {
        PyObject *name = PyTuple_GET_ITEM(names, n);
        PyObject **place = is_same(name, name_loss)               ? &told->loss
                           : is_same(name, name_tokens)           ? &told->tokens
                           : is_same(name, name_samples)          ? &told->samples
                           : is_same(name, name_step)             ? &told->step
                           : is_same(name, name_gradient_norm)    ? &told->norm
                           : is_same(name, name_learning_rate)    ? &told->rate
                           : is_same(name, name_sequence_lengths) ? &told->lengths
                                                                  : NULL;
        if (place == NULL) {
            PyErr_Format(PyExc_TypeError, "step() got an unexpected keyword argument %R", name);
            return -1;
        }
        *place = values[n];
    }
    return 0;
}

/* 1 and the number; 0 where it is not known without waiting for a device; -1 with an error. */
static int number_of(PyObject *value, double *number)
{
    if (value == NULL || value == Py_None)
        return 0;
    if (PyFloat_CheckExact(value)) {
        *number = PyFloat_AS_DOUBLE(value);
        return 1;
    }
    PyObject *there = PyObject_GetAttr(value, name_is_cuda);
    if (there == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
    } else {
        int on_device = PyObject_IsTrue(there);
        Py_DECREF(there);
        if (on_device)
            return on_device < 0 ? -1 : 0;
    }
    PyObject *made, *got = PyObject_CallMethodNoArgs(value, name_item);
    if (got == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    made = PyNumber_Float(got == NULL ? value : got);
    Py_XDECREF(got);
    if (made == NULL)
        return -1;
    *number = PyFloat_AS_DOUBLE(made);
    Py_DECREF(made);
    return 1;
}

/* -1 with an error where it is no whole number of at least `least` and at most `most`. */
static int whole(PyObject *value, const char *name, int64_t least, int64_t most, int64_t *number)
{
    if (value == NULL)
        return 0;
    PyObject *index = PyNumber_Index(value);
    if (index == NULL)
        return -1;
    *number = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (*number == -1 && PyErr_Occurred())
        return -1;
    if (*number < least || *number > most) {
        PyErr_Format(PyExc_ValueError, "%s %R is outside of what a row can hold", name, value);
        return -1;
    }
    return 0;
}

static int ask_flags(PyObject *asked, uint32_t *flags)
{
    if (asked == NULL)
        return -1;
    *flags |= (uint32_t)PyLong_AsUnsignedLongMask(asked);
    Py_DECREF(asked);
    return PyErr_Occurred() ? -1 : 0;
}

static int ask_of_number(StepRecorder *recorder, PyObject *method, double number, uint32_t *flags)
{
    PyObject *value = PyFloat_FromDouble(number);
    if (value == NULL)
        return -1;
    PyObject *asked = PyObject_CallMethodOneArg(recorder->callbacks, method, value);
    Py_DECREF(value);
    return ask_flags(asked, flags);
}

static double fitting(double value)
{
    return fabs(value) > LARGEST ? copysign(INFINITY, value) : value;
}

/* Takes in loss, norm and rate, as the row and the slot have them; 1 where the recorder went off. */
static int take_numbers(StepRecorder *recorder, const Told *told, Row *row)
{
    const Places *at = &recorder->at;
    double loss, norm, rate;
    int64_t known = at->bit_step;
    int is_known = number_of(told->loss, &loss);
    int has_norm = is_known < 0 ? -1 : number_of(told->norm, &norm);
    int has_rate = has_norm < 0 ? -1 : number_of(told->rate, &rate);
    if (has_rate < 0)
        return -1;
    if (!recorder->on)
        return 1;
    double *floats = recorder->slot.buf;
    row->flags = (uint32_t)recorder->flags;
    if (is_known) {
        floats[at->slot_loss] = loss;
        row->loss = fitting(loss);
        known |= at->bit_loss;
        row->present |= (uint32_t)at->row_bit_loss;
        if (recorder->loss_floor < loss && loss <= recorder->loss_bound) {
            recorder->losses[recorder->num_losses++ % at->losses] = loss;
            row->flags |= (uint32_t)recorder->lasting_flags;
        } else if (ask_of_number(recorder, name_inspect_loss, loss, &row->flags) < 0)
            return -1;
        if (!recorder->on)
            return 1;
    }
    if (has_norm) {
        floats[at->slot_norm] = norm;
        row->norm = fitting(norm);
        known |= at->bit_norm;
        row->present |= (uint32_t)at->row_bit_norm;
        if (!(-LARGEST < norm && norm < LARGEST)
            && ask_of_number(recorder, name_inspect_norm, norm, &row->flags) < 0)
            return -1;
        if (!recorder->on)
            return 1;
    }
    if (has_rate) {
        floats[at->slot_rate] = rate;
        known |= at->bit_rate;
    }
    uint64_t *words = recorder->slot.buf;
    words[at->slot_present] |= (uint64_t)known;
    words[at->slot_nonfinite] += (row->flags & at->flag_nonfinite) != 0;
    recorder->flags = 0;
    return 0;
}

static int take_lengths(StepRecorder *recorder, const Told *told, Row *row)
{
    if (told->lengths != NULL) {
        int there = PyObject_IsTrue(told->lengths);
        if (there < 0)
            return -1;
        if (there) {
            long long total, number, shortest, longest;
            PyObject *figures = PyObject_CallOneArg(recorder->figures_of, told->lengths);
            if (figures == NULL)
                return -1;
            int good = PyArg_ParseTuple(figures, "LLLLd", &shortest, &longest, &total, &number,
                                        &row->squares);
            Py_DECREF(figures);
            if (!good)
                return -1;
            row->shortest = shortest;
            row->longest = longest;
            row->present |= (uint32_t)recorder->at.row_bits_lengths;
            if (row->tokens == 0)
                row->tokens = total;
            if (row->samples == 0)
                row->samples = number;
        }
    }
    if (row->tokens > UINT32_MAX || row->longest > UINT32_MAX || row->shortest < 0) {
        PyErr_Format(PyExc_ValueError, "sequence_lengths are outside of what a row can hold");
        return -1;
    }
    return 0;
}

static int ask_of_step(StepRecorder *recorder, Row *row, const double seconds[IN_STEP])
{
    PyObject *parts = PyTuple_New(IN_STEP);
    for (int n = 0; parts != NULL && n < IN_STEP; n++) {
        PyObject *part = PyFloat_FromDouble(seconds[n]);
        if (part == NULL)
            Py_CLEAR(parts);
        else
            PyTuple_SET_ITEM(parts, n, part);
    }
    PyObject *number = PyLong_FromLongLong(row->number), *asked = NULL;
    if (parts != NULL && number != NULL)
        asked = PyObject_CallMethodObjArgs(recorder->callbacks, name_inspect_step, number, parts, NULL);
    Py_XDECREF(parts);
    Py_XDECREF(number);
    return ask_flags(asked, &row->flags);
}

static int ask_device(StepRecorder *recorder, const Told *told)
{
    PyObject *number = PyLong_FromLongLong(recorder->next_step - 1);
    if (number == NULL)
        return -1;
    PyObject *taken = PyObject_CallMethodObjArgs(
        recorder->numbers, name_take, number, told->loss ? told->loss : Py_None,
        told->norm ? told->norm : Py_None, told->rate ? told->rate : Py_None, NULL);
    Py_DECREF(number);
    Py_XDECREF(taken);
    return taken == NULL ? -1 : 0;
}

static int tell_ended(StepRecorder *recorder, int64_t now, int64_t number, int64_t steps, double total)
{
    if (steps < recorder->look_at && number < recorder->wake_step && now < recorder->wake_ns
        && !(total > recorder->slow_seconds) && (number & 255))
        return 0;
    PyObject *values[4] = {PyLong_FromLongLong(now), PyLong_FromLongLong(number),
                           PyLong_FromLongLong(steps), PyFloat_FromDouble(total)};
    PyObject *told = NULL;
    if (values[0] && values[1] && values[2] && values[3])
        told = PyObject_CallMethodObjArgs(recorder->callbacks, name_step_ended, values[0], values[1],
                                          values[2], values[3], NULL);
    for (int n = 0; n < 4; n++)
        Py_XDECREF(values[n]);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

static int step(StepRecorder *recorder, const Told *told)
{
    int64_t now;
    Row row = {.number = recorder->next_step};
    if (recorder_switch_phase(recorder, (int)recorder->at.code_other, &now) < 0)
        return -1;
    if (told->step != Py_None
        && whole(told->step, "step", INT64_MIN, INT64_MAX - 1, &row.number) < 0)
        return -1;
    recorder->next_step = row.number + 1;
    if (recorder->numbers != Py_None && ask_device(recorder, told) < 0)
        return -1;
    if (take_numbers(recorder, told, &row) < 0
        || whole(told->tokens, "tokens", 0, UINT32_MAX, &row.tokens) < 0
        || whole(told->samples, "samples", 0, UINT32_MAX, &row.samples) < 0
        || take_lengths(recorder, told, &row) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    double seconds[IN_STEP];
    recorder_phases(recorder, seconds);
    int64_t begun = recorder->begun;
    recorder->begun = now;
    double total = (double)(now - begun) * 1e-9;
    if (total > recorder->usual_seconds && ask_of_step(recorder, &row, seconds) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    row.total = total;
    row.begun = begun;
    int64_t steps = write_step(recorder, &row, seconds, now);
    return tell_ended(recorder, now, row.number, steps, total);
}

PyObject *recorder_step(StepRecorder *recorder, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Told told = {.step = Py_None};
    if (count != 0) {
        PyErr_SetString(PyExc_TypeError, "step() takes its arguments by name only");
        return NULL;
    }
    if (names != NULL && told_by_names(&told, args, names) < 0)
        return NULL;
    if (!recorder->on && recorder->callbacks != NULL)
        return PyObject_CallMethodOneArg(recorder->callbacks, name_step_while_off, told.step);
    if (!recorder->on)
        Py_RETURN_NONE;
    if (step(recorder, &told) < 0)
        return settled(recorder);
    Py_RETURN_NONE;
}
