/* How long the loop's threads had a core and waited for one. */
#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 96 };

int64_t read_run_queue(int descriptor, int64_t *core_ns)
{
    char text[TEXT_BYTES + 1], *waited, *end;
    ssize_t size = pread(descriptor, text, TEXT_BYTES, 0);
    if (size <= 0)
        return -1;
    text[size] = '\0';
    /* Nanoseconds on a core, nanoseconds on a run queue, time slices. */
    *core_ns = strtoll(text, &waited, 10);
    int64_t nanoseconds = strtoll(waited, &end, 10);
    return end == waited ? -1 : nanoseconds;
}

/* Nanoseconds that all watched threads have waited so far, and have had a core; -1 where one cannot be read. */
static int64_t read_waited_ns(const StepRecorder *recorder, int64_t *core_ns)
{
    int64_t sum = 0, of_thread;
    *core_ns = 0;
    for (int n = 0; n < recorder->num_run_queues; n++) {
        int64_t nanoseconds = read_run_queue(recorder->run_queues[n], &of_thread);
        if (nanoseconds < 0)
            return -1;
        *core_ns += of_thread;
        sum += nanoseconds;
    }
    return sum;
}

void take_run_queue(StepRecorder *recorder, int64_t now_ns, Row *row)
{
    if (now_ns < recorder->run_queue_due_ns)
        return;
    int64_t core_before = recorder->core_ns, before = recorder->waited_ns;
    int64_t waited_ns = read_waited_ns(recorder, &recorder->core_ns);
    recorder->waited_ns = waited_ns;
    recorder->run_queue_due_ns = waited_ns < 0 ? NEVER : now_ns + RUN_QUEUE_EVERY_NS;
    if (before < 0 || waited_ns < before)
        return;
    Periodic *periodic = recorder->periodic.buf;
    double seconds = (double)(waited_ns - before) * 1e-9;
    int64_t core_ns = recorder->core_ns - core_before;
    put_extra(row, EXTRA_RUN_QUEUE_SECONDS, seconds);
    put_extra(row, EXTRA_CORE_SECONDS, core_ns > 0 ? (double)core_ns * 1e-9 : 0.0);
    periodic->run_queue_seconds += seconds;
    periodic->present |= PERIODIC_HAS_RUN_QUEUE_SECONDS;
}

PyObject *recorder_watch_run_queue(StepRecorder *recorder, PyObject *descriptors)
{
    if (!PyTuple_Check(descriptors) || PyTuple_GET_SIZE(descriptors) > MAX_RUN_QUEUES) {
        PyErr_SetString(PyExc_ValueError, "descriptors must be a tuple of few integers");
        return NULL;
    }
    int numbers[MAX_RUN_QUEUES], count = (int)PyTuple_GET_SIZE(descriptors);
    for (int n = 0; n < count; n++) {
        numbers[n] = (int)PyLong_AsLong(PyTuple_GET_ITEM(descriptors, n));
        if (PyErr_Occurred())
            return NULL;
    }
    memcpy(recorder->run_queues, numbers, sizeof numbers);
    recorder->num_run_queues = count;
    recorder->waited_ns = -1;
    recorder->run_queue_due_ns = count ? 0 : NEVER;
    Py_RETURN_NONE;
}
