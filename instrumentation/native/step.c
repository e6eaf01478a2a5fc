/* The end of a step: parses its arguments and has its row written.
 *
 * The row is built on the stack and no pointer into the page outlives a call into Python: a tensor's
 * item(), an index, a callback or an event may close the page. From `write_step` to `commit_state` of
 * a host's step nothing calls Python, so that row and totals never disagree.
 */
#include "device.h"

#include <math.h>

static const double LARGEST = 3.4e38; /* a row has single precision */

typedef struct {
    PyObject *step, *loss, *norm, *rate, *tokens, *samples, *lengths; /* NULL where left out */
} Arguments;

static bool is_same(PyObject *name, PyObject *interned)
{
    return name == interned || PyUnicode_Compare(name, interned) == 0;
}

static int parse_arguments(Arguments *arguments, PyObject *const *values, PyObject *names)
{
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(names); n++) {
        PyObject *name = PyTuple_GET_ITEM(names, n);
        PyObject **argument = is_same(name, name_loss)               ? &arguments->loss
                              : is_same(name, name_tokens)           ? &arguments->tokens
                              : is_same(name, name_samples)          ? &arguments->samples
                              : is_same(name, name_step)             ? &arguments->step
                              : is_same(name, name_gradient_norm)    ? &arguments->norm
                              : is_same(name, name_learning_rate)    ? &arguments->rate
                              : is_same(name, name_sequence_lengths) ? &arguments->lengths
                                                                     : NULL;
        if (argument == NULL) {
            PyErr_Format(PyExc_TypeError, "step() got an unexpected keyword argument %R", name);
            return -1;
        }
        *argument = values[n];
    }
    return 0;
}

/* 1 and the number; 0 where it cannot be had without waiting for a device; -1 with an error. */
static int read_number(PyObject *value, double *number)
{
    if (value == NULL || value == Py_None)
        return 0;
    if (PyFloat_CheckExact(value)) {
        *number = PyFloat_AS_DOUBLE(value);
        return 1;
    }
    PyObject *is_cuda = PyObject_GetAttr(value, name_is_cuda);
    if (is_cuda == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
    } else {
        int on_device = PyObject_IsTrue(is_cuda);
        Py_DECREF(is_cuda);
        if (on_device)
            return on_device < 0 ? -1 : 0;
    }
    PyObject *item = PyObject_CallMethodNoArgs(value, name_item);
    if (item == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    PyObject *converted = PyNumber_Float(item == NULL ? value : item);
    Py_XDECREF(item);
    if (converted == NULL)
        return -1;
    *number = PyFloat_AS_DOUBLE(converted);
    Py_DECREF(converted);
    return 1;
}

/* The same, but a number that cannot be read is one that the step goes without. */
static int parse_number(StepRecorder *recorder, PyObject *value, double *number)
{
    int is_known = read_number(value, number);
    return is_known < 0 ? handle_part_error(recorder, "loop_numbers") : is_known;
}

/* -1 with an error where the value is no integer from `least` to `most`. */
static int read_integer(PyObject *value, const char *name, int64_t least, int64_t most, int64_t *number)
{
    if (value == NULL)
        return 0;
    PyObject *integer = PyNumber_Index(value);
    if (integer == NULL)
        return -1;
    *number = PyLong_AsLongLong(integer);
    Py_DECREF(integer);
    if (*number == -1 && PyErr_Occurred())
        return -1;
    if (*number < least || *number > most) {
        PyErr_Format(PyExc_ValueError, "%s %R is outside of what a row can hold", name, value);
        return -1;
    }
    return 0;
}

/* As `parse_number` does: the number stays what it is where the value is another object. */
static int parse_integer(StepRecorder *recorder, PyObject *value, const char *name, int64_t least,
                         int64_t most, int64_t *number)
{
    int64_t parsed = *number;
    if (read_integer(value, name, least, most, &parsed) < 0)
        return handle_part_error(recorder, "loop_numbers");
    *number = parsed;
    return 0;
}

static float to_row(double value)
{
    return fabs(value) > LARGEST ? (float)copysign(INFINITY, value) : (float)value;
}

static int take_loss(StepRecorder *recorder, double loss, Row *row)
{
    ((Slot *)recorder->slot.buf)->loss = loss;
    row->loss = to_row(loss);
    row->present |= ROW_HAS_LOSS;
    if (recorder->loss_floor < loss && loss <= recorder->loss_bound) {
        recorder->losses[recorder->num_losses++ % LOSSES] = loss;
        row->flags |= (uint32_t)recorder->lasting_flags;
        return 0;
    }
    return call_inspect_number(recorder, name_inspect_loss, loss, &row->flags);
}

static int take_norm(StepRecorder *recorder, double norm, Row *row)
{
    ((Slot *)recorder->slot.buf)->gradient_norm = norm;
    row->gradient_norm = to_row(norm);
    row->present |= ROW_HAS_GRADIENT_NORM;
    if (-LARGEST < norm && norm < LARGEST)
        return 0;
    return call_inspect_number(recorder, name_inspect_norm, norm, &row->flags);
}

/* Takes loss, norm and rate into the row and the slot; 1 where the recorder went off meanwhile. */
static int take_numbers(StepRecorder *recorder, const Arguments *arguments, Row *row)
{
    double loss, norm, rate;
    uint64_t present = SLOT_HAS_STEP;
    int has_loss = parse_number(recorder, arguments->loss, &loss);
    int has_norm = has_loss < 0 ? -1 : parse_number(recorder, arguments->norm, &norm);
    int has_rate = has_norm < 0 ? -1 : parse_number(recorder, arguments->rate, &rate);
    if (has_rate < 0)
        return -1;
    if (!recorder->on)
        return 1;
    row->flags = (uint32_t)recorder->flags;
    if (has_loss) {
        present |= SLOT_HAS_LOSS;
        if (take_loss(recorder, loss, row) < 0)
            return -1;
        if (!recorder->on)
            return 1;
    }
    if (has_norm) {
        present |= SLOT_HAS_GRADIENT_NORM;
        if (take_norm(recorder, norm, row) < 0)
            return -1;
        if (!recorder->on)
            return 1;
    }
    if (has_rate) {
        ((Slot *)recorder->slot.buf)->learning_rate = rate;
        present |= SLOT_HAS_LEARNING_RATE;
    }
    Slot *slot = recorder->slot.buf;
    slot->present |= present;
    slot->nonfinite_steps += (row->flags & FLAG_NONFINITE) != 0;
    recorder->flags = 0;
    return 0;
}

static int read_lengths(StepRecorder *recorder, const Arguments *arguments, Row *row)
{
    long long total, count, shortest, longest;
    double squares;
    int has_lengths = arguments->lengths == NULL ? 0 : PyObject_IsTrue(arguments->lengths);
    if (has_lengths <= 0)
        return has_lengths;
    PyObject *figures = PyObject_CallOneArg(recorder->sequence_figures, arguments->lengths);
    if (figures == NULL)
        return -1;
    int is_parsed = PyArg_ParseTuple(figures, "LLLLd", &shortest, &longest, &total, &count, &squares);
    Py_DECREF(figures);
    if (!is_parsed)
        return -1;
    put_extra(row, EXTRA_SEQUENCE_MIN, (double)shortest);
    put_extra(row, EXTRA_SEQUENCE_MAX, (double)longest);
    put_extra(row, EXTRA_SEQUENCE_SQUARES, squares);
    if (row->tokens == 0)
        row->tokens = (uint32_t)total;
    if (row->samples == 0)
        row->samples = (uint32_t)count;
    return 0;
}

static int parse_count(StepRecorder *recorder, PyObject *value, const char *name, uint32_t *count)
{
    int64_t number = 0;
    int status = parse_integer(recorder, value, name, 0, UINT32_MAX, &number);
    *count = (uint32_t)number;
    return status;
}

static int take_lengths(StepRecorder *recorder, const Arguments *arguments, Row *row)
{
    int status = read_lengths(recorder, arguments, row) < 0 ? handle_part_error(recorder, "loop_numbers") : 0;
    if (recorder->batch_samples && row->samples && (row->tokens || !recorder->batch_tokens))
        recorder->counts_batches = false; /* the loop says all that they would */
    if (row->tokens == 0)
        row->tokens = (uint32_t)recorder->batch_tokens;
    if (row->samples == 0)
        row->samples = (uint32_t)recorder->batch_samples;
    recorder->batch_tokens = recorder->batch_samples = 0;
    return status;
}

static int end_step(StepRecorder *recorder, const Arguments *arguments)
{
    int64_t now_ns;
    Row row = {.step = recorder->next_step};
    recorder->optimizers = 0; /* one that failed has no end */
    if (recorder_switch_phase(recorder, PHASE_OTHER, &now_ns) < 0)
        return -1;
    if (arguments->step != Py_None
        && parse_integer(recorder, arguments->step, "step", INT64_MIN, INT64_MAX - 1, &row.step) < 0)
        return -1;
    recorder->next_step = row.step + 1;
    if (recorder->clock != NULL && recorder->clock->numbers != NULL
        && (poll_numbers(recorder) < 0
            || take_numbers_on_device(recorder, arguments->loss, arguments->norm, arguments->rate) < 0))
        return -1;
    if (take_numbers(recorder, arguments, &row) < 0
        || parse_count(recorder, arguments->tokens, "tokens", &row.tokens) < 0
        || parse_count(recorder, arguments->samples, "samples", &row.samples) < 0
        || take_lengths(recorder, arguments, &row) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    double parts[STEP_PHASES];
    recorder_end_phases(recorder, parts);
    row.start_ns = recorder->step_began_ns;
    recorder->step_began_ns = now_ns;
    double seconds = (double)(now_ns - row.start_ns) * 1e-9;
    row.seconds = (float)seconds;
    if (seconds > recorder->usual_seconds && call_inspect_step(recorder, &row, parts) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    bool is_timed = false;
    if (recorder->clock != NULL && device_end_step(recorder, now_ns, parts, seconds, &is_timed) < 0)
        return -1;
    if (!recorder->on)
        return 0;
    if (is_timed)
        row.flags |= FLAG_DEVICE_PENDING;
    take_run_queue(recorder, now_ns, &row);
    take_stops(recorder, &row);
    int64_t steps = write_step(recorder, &row, parts);
    if (recorder->clock == NULL) {
        count_phases(recorder, parts);
        settle_step(recorder, seconds);
    } else if (device_settle(recorder, now_ns, 1) < 0) {
        return -1;
    }
    if (!recorder->on)
        return 0;
    commit_state(recorder, now_ns);
    return call_step_ended(recorder, row.step, seconds, now_ns, steps);
}

PyObject *recorder_step(StepRecorder *recorder, PyObject *const *values, Py_ssize_t num_positional,
                        PyObject *names)
{
    Arguments arguments = {.step = Py_None};
    if (num_positional != 0) {
        PyErr_SetString(PyExc_TypeError, "step() takes its arguments by name only");
        return NULL;
    }
    if (names != NULL && parse_arguments(&arguments, values, names) < 0)
        return NULL;
    if (!recorder->on && recorder->callbacks != NULL)
        return PyObject_CallMethodOneArg(recorder->callbacks, name_step_while_off, arguments.step);
    if (!recorder->on)
        Py_RETURN_NONE;
    if (end_step(recorder, &arguments) < 0)
        return handle_error(recorder);
    Py_RETURN_NONE;
}
