/* The recorder, which writes one rank's page. lockstep/recorder/plain.py is a plain one for where this is not compiled.
 *
 * Fields, bits and codes of the page are those of page_layout.h, which is generated from its table;
 * lockstep/recorder/native.py takes a module of no other table.
 *
 * Threads. Every function runs with the GIL held and none releases it, so that between two calls
 * into Python nothing else touches a recorder. The heartbeat, slots and rows have readers in other
 * processes: a single aligned store, a checksum and two alternating slots are what they rely on.
 *
 * Re-entry. Each call into Python can run anything: another thread, a signal's handler, a finalizer.
 * It may call any method of the same recorder, also `stop`, which clears `on`, and `release`, which
 * also unmaps the page. So whoever called into Python reads `on` again before it touches `slot`,
 * `periodic`, `noted` or `file`, and holds copies of what it goes on with instead of pointers into a
 * ring. Into Python go: the callbacks (callbacks.c), numbers and lengths that are no floats (step.c),
 * the current stream, numbers on a device (device_*.c), what waits for a passed step
 * (device_rows.c), and a heartbeat that stands in for the page's. All else here is plain arithmetic on memory.
 *
 * References. A recorder owns one to each of RECORDER_OBJECTS from its creation until the collector
 * clears it, None where there is nothing yet, and to its exports of the page until
 * `recorder_release_page`. Its `clock` is freed with it and not before, for it is used after calls
 * into Python. Arguments are borrowed from the caller, for the time of the call.
 */
#ifndef LOCKSTEP_RECORDER_H
#define LOCKSTEP_RECORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "checksum.h"
#include "page_layout.h"

enum { NOT_WAITING = -1 };
static const int64_t NEVER = (int64_t)1 << 62; /* nanoseconds or steps */

#define RECORDER_OBJECTS(X)                                                                        \
    X(heartbeat)                                                                                   \
    X(page_heartbeat) /* the same object, unless the operations of a step are recorded */          \
    X(callbacks) X(codes) X(kinds) X(code_of) X(bus_factor) X(sequence_figures) X(ignored)    \
    X(current_stream) X(current_device) X(device_index) /* of a device, or None */                 \
    X(number_memory) X(number_types) X(number_formats)  /* of the numbers that are on it */        \
    X(passed_callbacks) /* by number of the row */

typedef struct DeviceClock DeviceClock;
typedef struct StopClock StopClock;

typedef struct {
    PyObject_HEAD
    /* What a change of phase touches is adjacent, so that it is few lines of the cache.
     * `on` is read again after every call into Python: a signal's handler may close the page. */
    char on, held, measures, uses_device, counts_batches;
    int phase, optimizers; /* whose steps run now, one inside the other */
    int64_t since_ns, due_ns, own_ns, step_began_ns, first_arrival_ns, last_arrival_ns;
    int64_t spent_ns[NUM_PHASES];
    uint64_t *heartbeat_word;
    DeviceClock *clock; /* NULL until a device is used */
#define OBJECT_FIELD(name) PyObject *name;
    RECORDER_OBJECTS(OBJECT_FIELD)
#undef OBJECT_FIELD
    /* Bounds up to which no callback is due. */
    int64_t batch_tokens, batch_samples; /* of the batches that the loop took in this step */
    int64_t wake_rows, wake_step, wake_ns, next_step, flags, lasting_flags;
    double loss_floor, loss_bound, usual_seconds, slow_seconds;
    Py_buffer file, slot, periodic, noted; /* `noted`: what is known of the next row by now */
    int64_t rows;
    double losses[LOSSES];
    int64_t num_losses; /* since they were taken; the ring holds the newest of them */
    int run_queues[MAX_RUN_QUEUES], num_run_queues; /* descriptors of the loop's threads */
    int64_t run_queue_due_ns, core_ns, waited_ns;   /* the latter two of the last read; waited_ns or -1 */
    StopClock *stops; /* NULL until they are watched */
} StepRecorder;

/* Collectives that a rank has waited for. */
typedef struct {
    Py_ssize_t kind;  /* index of their kind; below zero where they are not counted */
    bool is_pairwise; /* sends and receives, which bring two ranks together, not the group */
    int64_t calls, size_bytes, bus_bytes;
} Collectives;

/* Replaces torch.autograd.backward; its attributes are those of lockstep.patches.backward.Listener. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    char inside, nests;
    unsigned long thread;
    long long calls;
    PyObject *recorder, *ended, *original;
    PyObject *wait; /* DDP's, which ends with the backward that runs now; or NULL */
    long backward_code, other_code;
} Backward;

extern PyTypeObject *StepRecorder_Type, *PhaseHook_Type, *Backward_Type, *GradientWait_Type, *Forward_Type;
extern PyType_Spec recorder_spec, phase_hook_spec, backward_spec, gradient_wait_spec, forward_spec;
extern PyMethodDef recorder_methods[];

/* Names that are looked up in every step, interned once. */
#define NAMES(X)                                                                                   \
    X(tick) X(inspect_loss) X(inspect_norm) X(inspect_step) X(step_ended) X(step_while_off)        \
    X(fail) X(part_failed) X(item) X(is_cuda) X(step) X(loss) X(gradient_norm)             \
    X(learning_rate) X(tokens) X(samples) X(sequence_lengths) X(send_recv) X(tap)                  \
    X(require_backward_grad_sync) X(late_numbers) X(get_device) X(dtype) X(numel) X(data_ptr)
#define NAME(name) extern PyObject *name_##name;
NAMES(NAME)
#undef NAME

/* recorder.c. Functions that return int return -1 with an error set. */
int64_t clock_ns(void);
int recorder_switch_phase(StepRecorder *recorder, int code, int64_t *now_ns);
int recorder_enter(StepRecorder *recorder, int code);
int recorder_arrives(StepRecorder *recorder);
int recorder_wait_begins(StepRecorder *recorder, int *interrupted);
int recorder_wait_ended(StepRecorder *recorder, int interrupted, const Collectives *collectives);
/* Fills kind and bus_bytes from the names that Python uses. */
int recorder_resolve(StepRecorder *recorder, PyObject *kind, PyObject *ranks, Collectives *collectives);

/* device_type.c: methods of the recorder. */
PyObject *recorder_use_device(StepRecorder *recorder, PyObject *device);
PyObject *recorder_call_when_passed(StepRecorder *recorder, PyObject *callback);
PyObject *recorder_settle(StepRecorder *recorder, PyObject *unused);
PyObject *recorder_is_device_busy(StepRecorder *recorder, PyObject *unused);
void free_clock(StepRecorder *recorder);

/* recorder_type.c */
void recorder_release_page(StepRecorder *recorder);

/* callbacks.c: calls into Python. */
PyObject *handle_error(StepRecorder *recorder); /* hands the set error to the callbacks; None */
/* The same for an error of one part, which the recorder goes on without; -1 for an interrupt. */
int handle_part_error(StepRecorder *recorder, const char *part);
int call_tick(StepRecorder *recorder, int64_t now_ns);
int call_heartbeat(StepRecorder *recorder, uint64_t word);
int call_inspect_number(StepRecorder *recorder, PyObject *method, double number, uint32_t *flags);
int call_inspect_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES]);
int call_step_ended(StepRecorder *recorder, int64_t number, double seconds, int64_t now_ns, int64_t steps);

/* step.c */
PyObject *recorder_step(StepRecorder *recorder, PyObject *const *values, Py_ssize_t num_positional,
                        PyObject *names);

/* page.c: the step's seconds by phase, begun anew; only what is no part of a step goes into the totals; */
void recorder_end_phases(StepRecorder *recorder, double seconds[STEP_PHASES]);
void count_phases(StepRecorder *recorder, const double seconds[STEP_PHASES]);
/* the duration of the oldest step whose time is not in the totals yet; */
void settle_step(StepRecorder *recorder, double seconds);
/* the row into the ring, with what was noted of it; returns the number of rows; */
int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES]);
void put_phases(Row *row, const double seconds[STEP_PHASES]);
void put_extra(Row *row, int extra, double number);
uint64_t checksum_of_row(const Row *row);
Row *row_in_ring(StepRecorder *recorder, uint64_t number);
/* then the state into the older slot. */
void commit_state(StepRecorder *recorder, int64_t now_ns);

/* run_queue.c: what the loop's threads waited for a core since the last read, where one is due. */
void take_run_queue(StepRecorder *recorder, int64_t now_ns, Row *row);
PyObject *recorder_watch_run_queue(StepRecorder *recorder, PyObject *descriptors);
/* Nanoseconds that the thread of a schedstat has waited for a core, and has had one; -1 where unreadable. */
int64_t read_run_queue(int descriptor, int64_t *core_ns);

/* stops.c: for how long the process stood still since the last row. */
void take_stops(StepRecorder *recorder, Row *row);
PyObject *recorder_watch_stops(StepRecorder *recorder, PyObject *unused);
void recorder_release_stops(StepRecorder *recorder);
bool start_thread(void *(*run)(void *), void *argument);

PyObject *write_stacks_at(PyObject *module, PyObject *arguments); /* stacks.c */

PyObject *new_phase_hook(StepRecorder *recorder, int code); /* phase_hook.c */
PyObject *end_gradient_wait(PyObject *wait);                /* ddp.c */

#endif
