/* The runtime of a device (CUDA's or HIP's): its functions, found once, and what calls of them cost.
 *
 * None of them waits. An error of ours is taken from the runtime at once: torch asks for the last
 * error after its own launches and would take it for the loop's.
 */
#include "device.h"

#include <dlfcn.h>

static const double CALL_NS = 20e3 / 6; /* the least that a call counts: six make 20 us */
static const double STEP_SHARE = 1e-3, SLOWLY = 64.0;

double towards(double usual, double value)
{
    return value < usual ? value : usual + (value - usual) / SLOWLY;
}

int load_runtime(const char *library, const char *prefix, DeviceRuntime *runtime)
{
    /* The process has it mapped already: this takes the handle and loads nothing. */
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    char name[64];
    if (handle == NULL) {
        PyErr_Format(PyExc_OSError, "%s cannot be opened: %s", library, dlerror());
        return -1;
    }
#define FIND(function, parameters)                                                                 \
    snprintf(name, sizeof name, "%s%s", prefix, #function);                                        \
    *(void **)&runtime->function = dlsym(handle, name);                                            \
    if (runtime->function == NULL) {                                                               \
        PyErr_Format(PyExc_OSError, "%s has no function %s", library, name);                       \
        return -1;                                                                                 \
    }
    RUNTIME_FUNCTIONS(FIND)
#undef FIND
    return 0;
}

void call_begins(DeviceClock *clock)
{
    clock->num_calls++;
    clock->call_ns -= clock_ns();
}

int call_ended(DeviceClock *clock, int code)
{
    clock->call_ns += clock_ns();
    if (code != 0)
        clock->runtime.GetLastError();
    return code;
}

int has_passed(int code)
{
    if (code == 0 || code == DEVICE_BUSY)
        return code == 0;
    return set_runtime_error("a query", code);
}

int set_runtime_error(const char *function, int code)
{
    PyErr_Format(PyExc_RuntimeError, "the device's runtime answers %s with error %d", function, code);
    return -1;
}

int current_stream(StepRecorder *recorder, void **stream)
{
    PyObject *handle = PyObject_CallOneArg(recorder->current_stream, recorder->device_index);
    if (handle == NULL)
        return -1;
    *stream = PyLong_AsVoidPtr(handle);
    Py_DECREF(handle);
    return PyErr_Occurred() ? -1 : 0;
}

int takes_work(StepRecorder *recorder)
{
    DeviceClock *clock = recorder->clock;
    void *stream = NULL;
    int status = 0;
    if (current_stream(recorder, &stream) < 0)
        return -1;
    int code = CALL(clock, StreamIsCapturing, stream, &status);
    if (code >= FIRST_CAPTURE_ERROR && code <= LAST_CAPTURE_ERROR)
        return 0;
    return code != 0 ? set_runtime_error("StreamIsCapturing", code) : status == 0;
}

int loop_stream(StepRecorder *recorder, void **stream)
{
    PyObject *device = PyObject_CallNoArgs(recorder->current_device);
    long index = device ? PyLong_AsLong(device) : -1;
    Py_XDECREF(device);
    if (PyErr_Occurred() || current_stream(recorder, stream) < 0)
        return -1;
    return index == recorder->clock->device;
}

void adjust_stride(DeviceClock *clock, int64_t num_events)
{
    double call_ns = clock->usual_call_ns > CALL_NS ? clock->usual_call_ns : CALL_NS;
    double allowance_ns = clock->usual_step_ns * STEP_SHARE;
    if (allowance_ns < (double)clock->allowance_ns)
        allowance_ns = (double)clock->allowance_ns;
    /* Each event is asked for, recorded and measured; some queries find that the last has passed. */
    double timed_ns = (double)(3 * num_events + 4) * call_ns;
    double left_ns = allowance_ns - clock->usual_calls * call_ns;
    int64_t stride = 1;
    while (stride < MAX_STRIDE && timed_ns > left_ns * (double)stride)
        stride *= 2;
    /* It falls only well below the allowance: ranks whose steps last alike time the same steps. */
    if (stride > clock->stride || timed_ns < 0.75 * left_ns * (double)stride)
        clock->stride = stride;
}
