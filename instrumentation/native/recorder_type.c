/* The type StepRecorder: creation, release, and the attributes that Python reads and sets. */
#include "recorder.h"

#include "type_tables.h"

PyTypeObject *StepRecorder_Type;

/* Whether everything that is written lies inside the buffers. */
static int check_sizes(const StepRecorder *recorder)
{
    bool fits = recorder->rows > 0 && recorder->slot.len >= (Py_ssize_t)sizeof(Slot)
                && recorder->file.len >= (Py_ssize_t)(RING_OFFSET + recorder->rows * (int64_t)sizeof(Row))
                && recorder->periodic.len >= (Py_ssize_t)sizeof(Periodic)
                && recorder->noted.len >= (Py_ssize_t)sizeof(Row);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the page is smaller than its layout");
    return fits ? 0 : -1;
}

static int parse_objects(StepRecorder *recorder, PyObject *args, PyObject *kwargs, PyObject *buffers[4])
{
    static char *names[] = {"file",  "slot",  "periodic", "noted",      "rows",       "heartbeat", "callbacks",
                            "codes", "kinds", "code_of",  "bus_factor", "sequence_figures", "ignored",   NULL};
    long long rows;
    bool is_parsed = PyArg_ParseTupleAndKeywords(
        args, kwargs, "$OOOOLOOO!O!OOOO:StepRecorder", names, &buffers[0], &buffers[1],
        &buffers[2], &buffers[3], &rows, &recorder->heartbeat,
        &recorder->callbacks, &PyDict_Type, &recorder->codes, &PyDict_Type, &recorder->kinds,
        &recorder->code_of, &recorder->bus_factor, &recorder->sequence_figures, &recorder->ignored);
    if (!is_parsed) { /* the references parsed so far are borrowed */
#define FORGET(name) recorder->name = NULL;
        RECORDER_OBJECTS(FORGET)
        return -1;
    }
    recorder->rows = rows;
    recorder->page_heartbeat = recorder->heartbeat;
    recorder->current_stream = recorder->current_device = recorder->device_index = Py_None;
    recorder->number_memory = recorder->number_types = recorder->number_formats = Py_None;
    recorder->passed_callbacks = Py_None;
#define HOLD(name) Py_INCREF(recorder->name);
    RECORDER_OBJECTS(HOLD)
    return 0;
}

static int recorder_init(StepRecorder *recorder, PyObject *args, PyObject *kwargs)
{
    PyObject *buffers[4];
    if (recorder->callbacks != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a recorder is initialised once");
        return -1;
    }
    if (parse_objects(recorder, args, kwargs, buffers) < 0
        || PyObject_GetBuffer(buffers[0], &recorder->file, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(buffers[1], &recorder->slot, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(buffers[2], &recorder->periodic, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(buffers[3], &recorder->noted, PyBUF_WRITABLE) < 0
        || check_sizes(recorder) < 0)
        return -1;
    char *file = recorder->file.buf;
    recorder->heartbeat_word = (uint64_t *)(file + HEARTBEAT_OFFSET);
    recorder->phase = PHASE_INIT;
    recorder->since_ns = recorder->step_began_ns = clock_ns();
    recorder->wake_rows = 1;
    recorder->wake_step = recorder->wake_ns = recorder->run_queue_due_ns = NEVER;
    recorder->waited_ns = -1;
    recorder->loss_floor = -Py_HUGE_VAL;
    recorder->loss_bound = recorder->usual_seconds = Py_HUGE_VAL;
    recorder->on = recorder->counts_batches = 1;
    return 0;
}

/* Releases the page, which can be closed from then on: mmap refuses while a buffer is exported. */
void recorder_release_page(StepRecorder *recorder)
{
    Py_buffer *buffers[] = {&recorder->file, &recorder->slot, &recorder->periodic, &recorder->noted};
    recorder->on = 0;
    recorder_release_stops(recorder);
    for (size_t n = 0; n < sizeof buffers / sizeof *buffers; n++) {
        if (buffers[n]->obj != NULL)
            PyBuffer_Release(buffers[n]);
        buffers[n]->buf = NULL;
    }
}

static int recorder_clear(StepRecorder *self)
{
    recorder_release_page(self);
    RECORDER_OBJECTS(CLEAR_FIELD)
    return 0;
}

DEFINE_TRAVERSE(recorder, StepRecorder, RECORDER_OBJECTS)
DEFINE_DEALLOC(recorder, StepRecorder, free_clock)

static PyMemberDef recorder_members[] = {
    MEMBER("on", T_BOOL, StepRecorder, on, READONLY),
    MEMBER("held", T_BOOL, StepRecorder, held, 0),
    MEMBER("counts_batches", T_BOOL, StepRecorder, counts_batches, 0),
    MEMBER("uses_device", T_BOOL, StepRecorder, uses_device, READONLY),
    MEMBER("phase", T_INT, StepRecorder, phase, READONLY),
    MEMBER("since_ns", T_LONGLONG, StepRecorder, since_ns, READONLY),
    MEMBER("measures", T_BOOL, StepRecorder, measures, 0),
    MEMBER("own_ns", T_LONGLONG, StepRecorder, own_ns, 0),
    MEMBER("due_ns", T_LONGLONG, StepRecorder, due_ns, 0),
    MEMBER("wake_rows", T_LONGLONG, StepRecorder, wake_rows, 0),
    MEMBER("wake_step", T_LONGLONG, StepRecorder, wake_step, 0),
    MEMBER("wake_ns", T_LONGLONG, StepRecorder, wake_ns, 0),
    MEMBER("next_step", T_LONGLONG, StepRecorder, next_step, 0),
    MEMBER("batch_tokens", T_LONGLONG, StepRecorder, batch_tokens, 0),
    MEMBER("batch_samples", T_LONGLONG, StepRecorder, batch_samples, 0),
    MEMBER("flags", T_LONGLONG, StepRecorder, flags, 0),
    MEMBER("lasting_flags", T_LONGLONG, StepRecorder, lasting_flags, 0),
    MEMBER("loss_floor", T_DOUBLE, StepRecorder, loss_floor, 0),
    MEMBER("loss_bound", T_DOUBLE, StepRecorder, loss_bound, 0),
    MEMBER("usual_seconds", T_DOUBLE, StepRecorder, usual_seconds, 0),
    MEMBER("slow_seconds", T_DOUBLE, StepRecorder, slow_seconds, 0),
    MEMBER("heartbeat", T_OBJECT_EX, StepRecorder, heartbeat, 0),
    END_OF_MEMBERS,
};
static PyType_Slot recorder_slots[] = {TABLE_SLOTS(recorder), NEW_SLOTS(recorder), END_OF_SLOTS};
DEFINE_SPEC(recorder, "StepRecorder", StepRecorder, 0);
