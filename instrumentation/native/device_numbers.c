/* Numbers of the loop that are on the device: gathered there in each step, copied to the host now and then.
 *
 * A copy of some bytes goes into the loop's stream behind the step's work. Four times a second what
 * was gathered is copied into pinned memory, with an event behind it; nothing waits for either.
 */
#include "device.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { COLUMNS = 3, NUMBER_BYTES = 8, TO_HOST = 2, ON_DEVICE = 3 };
static const int64_t COPY_EVERY_NS = 250000000, LAST_WAIT_NS = 5000000;

/* The codes of lockstep/recorder/device.py. */
enum { ABSENT, FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };
static const size_t SIZES[] = {0, 4, 8, 2, 2};

typedef struct {
    int64_t step;
    uint8_t formats[COLUMNS];
} Gathered;

struct DeviceNumbers {
    char *on_device, *on_host; /* [rows][COLUMNS] numbers of any format */
    int64_t rows, num_taken, num_copied, num_read, copy_due_ns;
    void *event;
    bool is_copying, failed;
    Gathered gathered[];
};

static int get_integer(PyObject *owner, const char *name, long long *number)
{
    PyObject *value = PyObject_GetAttrString(owner, name);
    *number = value ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

int create_numbers(DeviceClock *clock, PyObject *memory)
{
    long long on_device, on_host, rows;
    if (get_integer(memory, "device_address", &on_device) < 0 || get_integer(memory, "host_address", &on_host) < 0
        || get_integer(memory, "rows", &rows) < 0)
        return -1;
    DeviceNumbers *numbers = PyMem_Calloc(1, sizeof *numbers + (size_t)rows * sizeof(Gathered));
    if (numbers == NULL)
        return PyErr_NoMemory(), -1;
    numbers->on_device = (char *)on_device;
    numbers->on_host = (char *)on_host;
    numbers->rows = rows;
    clock->numbers = numbers;
    return 0;
}

void free_numbers(DeviceClock *clock)
{
    if (clock->numbers != NULL && clock->numbers->event != NULL)
        clock->runtime.EventDestroy(clock->numbers->event);
    PyMem_Free(clock->numbers);
    clock->numbers = NULL;
}

static int note_failure(StepRecorder *recorder)
{
    recorder->clock->numbers->failed = true;
    return handle_part_error(recorder, "device_numbers");
}

static int call_integer(PyObject *value, PyObject *method, long long *number)
{
    PyObject *result = PyObject_CallMethodNoArgs(value, method);
    *number = result ? PyLong_AsLongLong(result) : -1;
    Py_XDECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

/* Format of a number on this device, and its address; ABSENT for anything else, -1 with an error. */
static int locate(StepRecorder *recorder, PyObject *value, long long *address)
{
    long long count, device;
    /* Exact types: to read a distributed tensor takes a collective, which would block the step. */
    int is_plain = PySet_Contains(recorder->number_types, (PyObject *)Py_TYPE(value));
    if (is_plain <= 0)
        return is_plain;
    if (call_integer(value, name_get_device, &device) < 0)
        return -1;
    if (device != recorder->clock->device)
        return ABSENT;
    PyObject *type = PyObject_GetAttr(value, name_dtype);
    PyObject *code = type ? PyDict_GetItemWithError(recorder->number_formats, type) : NULL;
    Py_XDECREF(type);
    if (code == NULL || call_integer(value, name_numel, &count) < 0 || count != 1)
        return PyErr_Occurred() ? -1 : ABSENT;
    return call_integer(value, name_data_ptr, address) < 0 ? -1 : (int)PyLong_AsLong(code);
}

/* Starts the copy of what was gathered since the last one, up to the end of the ring. */
static int start_copy(DeviceClock *clock, void *stream)
{
    DeviceNumbers *numbers = clock->numbers;
    int64_t first = numbers->num_copied % numbers->rows, count = numbers->num_taken - numbers->num_copied;
    if (count > numbers->rows - first)
        count = numbers->rows - first;
    size_t row_bytes = COLUMNS * NUMBER_BYTES, offset = (size_t)first * row_bytes;
    int code = numbers->event == NULL ? CALL(clock, EventCreateWithFlags, &numbers->event, 0) : 0;
    if (code == 0)
        code = CALL(clock, MemcpyAsync, numbers->on_host + offset, numbers->on_device + offset,
                    (size_t)count * row_bytes, TO_HOST, stream);
    if (code == 0)
        code = CALL(clock, EventRecord, numbers->event, stream);
    if (code != 0)
        return set_runtime_error("MemcpyAsync", code);
    numbers->num_copied += count;
    numbers->is_copying = true;
    return 0;
}

static int gather(DeviceClock *clock, int64_t step, const int *formats, const long long *addresses, void *stream)
{
    DeviceNumbers *numbers = clock->numbers;
    int64_t index = numbers->num_taken % numbers->rows;
    Gathered *row = &numbers->gathered[index];
    for (int column = 0; column < COLUMNS; column++) {
        row->formats[column] = (uint8_t)formats[column];
        if (formats[column] == ABSENT)
            continue;
        char *place = numbers->on_device + (index * COLUMNS + column) * NUMBER_BYTES;
        int code = CALL(clock, MemcpyAsync, place, (void *)addresses[column], SIZES[formats[column]], ON_DEVICE,
                        stream);
        if (code != 0)
            return set_runtime_error("MemcpyAsync", code);
    }
    row->step = step;
    numbers->num_taken++;
    return 0;
}

int take_numbers_on_device(StepRecorder *recorder, PyObject *loss, PyObject *norm, PyObject *rate)
{
    DeviceClock *clock = recorder->clock;
    DeviceNumbers *numbers = clock->numbers;
    PyObject *values[COLUMNS] = {loss, norm, rate};
    int formats[COLUMNS] = {ABSENT, ABSENT, ABSENT}, num_present = 0;
    long long addresses[COLUMNS];
    void *stream = NULL;
    if (numbers->failed)
        return 0;
    for (int column = 0; column < COLUMNS; column++) {
        if (values[column] == NULL || values[column] == Py_None || PyFloat_CheckExact(values[column]))
            continue;
        formats[column] = locate(recorder, values[column], &addresses[column]);
        if (formats[column] < 0)
            return note_failure(recorder);
        num_present += formats[column] != ABSENT;
    }
    if (num_present == 0)
        return 0;
    int is_ready = loop_stream(recorder, &stream);
    if (is_ready > 0)
        is_ready = takes_work(recorder);
    if (is_ready < 0)
        return note_failure(recorder);
    if (is_ready == 0 || numbers->num_taken - numbers->num_read >= numbers->rows) {
        if (recorder->on)
            ((Periodic *)recorder->periodic.buf)->device_dropped++;
        return 0;
    }
    if (gather(clock, recorder->next_step - 1, formats, addresses, stream) < 0)
        return note_failure(recorder);
    int64_t now_ns = recorder->since_ns;
    bool is_due = now_ns >= numbers->copy_due_ns
                  || numbers->num_taken - numbers->num_copied >= numbers->rows / 2;
    if (!numbers->is_copying && is_due) {
        numbers->copy_due_ns = now_ns + COPY_EVERY_NS;
        if (start_copy(clock, stream) < 0)
            return note_failure(recorder);
    }
    return 0;
}

static double of_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
}

static double read_number(const char *place, int format)
{
    double wide;
    float single;
    uint16_t half;
    uint32_t word;
    switch (format) {
    case FLOAT64:
        return memcpy(&wide, place, sizeof wide), wide;
    case FLOAT32:
        return memcpy(&single, place, sizeof single), (double)single;
    case FLOAT16:
        return memcpy(&half, place, sizeof half), of_half(half);
    default:
        memcpy(&half, place, sizeof half);
        word = (uint32_t)half << 16;
        return memcpy(&single, &word, sizeof single), (double)single;
    }
}

/* What was copied, as (step, loss, norm, rate) each; None for what was not a number on the device. */
static PyObject *rows_of(DeviceNumbers *numbers)
{
    PyObject *rows = PyList_New(0);
    for (; rows != NULL && numbers->num_read < numbers->num_copied; numbers->num_read++) {
        int64_t index = numbers->num_read % numbers->rows;
        const Gathered *gathered = &numbers->gathered[index];
        PyObject *row = PyTuple_New(1 + COLUMNS);
        if (row != NULL)
            PyTuple_SET_ITEM(row, 0, PyLong_FromLongLong(gathered->step));
        for (int column = 0; row != NULL && column < COLUMNS; column++) {
            const char *place = numbers->on_host + (index * COLUMNS + column) * NUMBER_BYTES;
            int format = gathered->formats[column];
            PyObject *number = format == ABSENT ? Py_NewRef(Py_None) : PyFloat_FromDouble(read_number(place, format));
            PyTuple_SET_ITEM(row, 1 + column, number);
        }
        if (row == NULL || PyErr_Occurred() || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

int poll_numbers(StepRecorder *recorder)
{
    DeviceClock *clock = recorder->clock;
    DeviceNumbers *numbers = clock->numbers;
    if (numbers->failed || !numbers->is_copying)
        return 0;
    int passed = takes_work(recorder);
    if (passed > 0)
        passed = has_passed(CALL(clock, EventQuery, numbers->event));
    if (passed < 0)
        return note_failure(recorder);
    if (passed == 0)
        return 0;
    numbers->is_copying = false;
    PyObject *rows = rows_of(numbers);
    PyObject *result = rows ? PyObject_CallMethodOneArg(recorder->callbacks, name_late_numbers, rows) : NULL;
    Py_XDECREF(rows);
    Py_XDECREF(result);
    numbers->failed = result == Py_False; /* the part is off by now */
    return result == NULL ? note_failure(recorder) : 0;
}

/* At the end of the loop, the one place that may wait for some milliseconds. */
int read_last_numbers(StepRecorder *recorder)
{
    DeviceClock *clock = recorder->clock;
    DeviceNumbers *numbers = clock->numbers;
    const struct timespec pause = {.tv_nsec = 200000};
    int64_t until_ns = clock_ns() + LAST_WAIT_NS;
    while (recorder->on && !numbers->failed && numbers->num_read < numbers->num_taken && clock_ns() < until_ns) {
        void *stream = NULL;
        int is_ready = numbers->is_copying ? 0 : loop_stream(recorder, &stream);
        if (is_ready > 0)
            is_ready = takes_work(recorder);
        if (is_ready < 0 || (is_ready > 0 && start_copy(clock, stream) < 0))
            return note_failure(recorder);
        if (poll_numbers(recorder) < 0)
            return -1;
        if (numbers->is_copying)
            nanosleep(&pause, NULL);
    }
    return 0;
}
