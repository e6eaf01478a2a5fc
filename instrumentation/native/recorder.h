/* The recorder in C: what lockstep/recorder/recorder.py does, for a loop whose caches hold other data.
 *
 * No offset of the page is written here: each is looked up by its name in the table that
 * lockstep/recorder/native.py makes from the one definition of the format.
 */
#ifndef LOCKSTEP_RECORDER_H
#define LOCKSTEP_RECORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Indices of eight-byte words in the slots, byte offsets in a row, bits, codes and sizes. */
#define LAYOUT(X)                                                                                  \
    X(slot_present, "slot.present")                                                                \
    X(slot_step, "slot.step")                                                                      \
    X(slot_written, "slot.written_ns")                                                             \
    X(slot_loss, "slot.loss")                                                                      \
    X(slot_norm, "slot.gradient_norm")                                                             \
    X(slot_rate, "slot.learning_rate")                                                             \
    X(slot_steps, "slot.steps")                                                                    \
    X(slot_samples, "slot.samples")                                                                \
    X(slot_tokens, "slot.tokens")                                                                  \
    X(slot_nonfinite, "slot.nonfinite_steps")                                                      \
    X(slot_phases, "slot.phase_seconds")                                                           \
    X(slot_calls, "slot.collectives")                                                              \
    X(slot_bytes, "slot.collective_bytes")                                                         \
    X(slot_seconds, "slot.collective_seconds")                                                     \
    X(slot_sum, "slot.step_seconds_sum")                                                           \
    X(slot_settled, "slot.settled_steps")                                                          \
    X(slot_buckets, "slot.step_buckets")                                                           \
    X(slot_checksum, "slot.checksum")                                                              \
    X(bit_step, "slot.bit.step")                                                                   \
    X(bit_loss, "slot.bit.loss")                                                                   \
    X(bit_norm, "slot.bit.gradient_norm")                                                          \
    X(bit_rate, "slot.bit.learning_rate")                                                          \
    X(periodic_bus, "periodic.bus_bytes")                                                              \
    X(periodic_present, "periodic.present")                                                        \
    X(periodic_idle, "periodic.host_bound_seconds")                                                \
    X(periodic_device_steps, "periodic.device_steps")                                              \
    X(periodic_launch_bound, "periodic.launch_bound_steps")                                        \
    X(periodic_dropped, "periodic.device_dropped")                                                 \
    X(periodic_stride, "periodic.device_stride")                                                   \
    X(bit_stride, "periodic.bit.device_stride")                                                    \
    X(row_idle, "row.host_bound_seconds")                                                          \
    X(row_bit_idle, "row.bit.host_bound_seconds")                                                  \
    X(row_run_queue, "row.run_queue_seconds")                                                      \
    X(row_bit_run_queue, "row.bit.run_queue_seconds")                                              \
    X(periodic_run_queue, "periodic.run_queue_seconds")                                            \
    X(bit_run_queue, "periodic.bit.run_queue_seconds")                                             \
    X(run_queue_every, "run_queue_every")                                                          \
    X(flag_device, "flag.device")                                                                  \
    X(flag_pending, "flag.device_pending")                                                         \
    X(code_forward, "code.forward")                                                                \
    X(code_backward, "code.backward")                                                              \
    X(code_optimizer, "code.optimizer")                                                            \
    X(kinds, "kinds")                                                                              \
    X(row_number, "row.number")                                                                    \
    X(row_step, "row.step")                                                                        \
    X(row_start, "row.start_ns")                                                                   \
    X(row_first, "row.first_arrival_ns")                                                           \
    X(row_last, "row.last_arrival_ns")                                                             \
    X(row_seconds, "row.seconds")                                                                  \
    X(row_phases, "row.data_seconds")                                                              \
    X(row_loss, "row.loss")                                                                        \
    X(row_norm, "row.gradient_norm")                                                               \
    X(row_tokens, "row.tokens")                                                                    \
    X(row_samples, "row.samples")                                                                  \
    X(row_present, "row.present")                                                                  \
    X(row_flags, "row.flags")                                                                      \
    X(row_shortest, "row.sequence_min")                                                            \
    X(row_longest, "row.sequence_max")                                                             \
    X(row_squares, "row.sequence_squares")                                                         \
    X(row_checksum, "row.checksum")                                                                \
    X(row_bit_loss, "row.bit.loss")                                                                \
    X(row_bit_norm, "row.bit.gradient_norm")                                                       \
    X(row_bit_first, "row.bit.first_arrival_ns")                                                   \
    X(row_bit_last, "row.bit.last_arrival_ns")                                                     \
    X(row_bits_lengths, "row.bits.lengths")                                                        \
    X(flag_nonfinite, "flag.nonfinite")                                                            \
    X(code_init, "code.init")                                                                      \
    X(code_first, "code.data")                                                                     \
    X(code_sync, "code.sync")                                                                      \
    X(code_other, "code.other")                                                                    \
    X(code_restore, "code.restore")                                                                \
    X(offset_heartbeat, "offset.heartbeat")                                                        \
    X(offset_slot_0, "offset.slot.0")                                                            \
    X(offset_slot_1, "offset.slot.1")                                                            \
    X(offset_ring, "offset.ring")                                                                  \
    X(row_size, "size.row")                                                                        \
    X(slot_size, "size.slot")                                                                      \
    X(periodic_size, "size.periodic")                                                              \
    X(rows, "rows")                                                                                \
    X(losses, "losses")

typedef struct {
#define LAYOUT_FIELD(field, name) int64_t field;
    LAYOUT(LAYOUT_FIELD)
#undef LAYOUT_FIELD
} Layout;

enum { MAX_PHASES = 16, STEP_PHASES = 8, MAX_ROW_BYTES = 256, NOT_WAITING = -1, MAX_RUN_QUEUES = 16 };
static const int64_t NEVER = (int64_t)1 << 62; /* nanoseconds or steps */

#define RECORDER_OBJECTS(X)                                                                        \
    X(heartbeat)                                                                                   \
    X(page_heartbeat) /* the same object, unless the operations of a step are recorded */          \
    X(callbacks) X(numbers) X(codes) X(kinds) X(code_of) X(bus_factor) X(figures_of) X(ignored)    \
    X(is_capturing) X(current_stream) X(stream) X(events) X(records) /* of a device, or None */    \
    X(passed_callbacks) /* by number of the row */

typedef struct DeviceClock DeviceClock;

typedef struct {
    PyObject_HEAD
    /* What a change of phase touches is adjacent, so that it is few lines of the cache.
     * `on` is read again after every call into Python: a signal's handler may close the page. */
    char on, held, measures, uses_device;
    int phase;
    int64_t since_ns, due_ns, own_ns, step_began_ns, first_arrival_ns, last_arrival_ns;
    int64_t spent_ns[MAX_PHASES];
    uint64_t *heartbeat_word;
    DeviceClock *clock; /* NULL until a device is used */
#define OBJECT_FIELD(name) PyObject *name;
    RECORDER_OBJECTS(OBJECT_FIELD)
#undef OBJECT_FIELD
    /* Bounds up to which no callback is due. */
    int64_t wake_rows, wake_step, wake_ns, next_step, flags, lasting_flags;
    double loss_floor, loss_bound, usual_seconds, slow_seconds;
    Py_buffer file, slot, periodic;
    double *buckets, *losses;
    Py_ssize_t num_buckets;
    int64_t num_losses; /* since they were taken; the ring holds the newest of them */
    int run_queues[MAX_RUN_QUEUES], num_run_queues; /* descriptors of the loop's threads */
    int64_t run_queue_due_ns, waited_ns;            /* the latter of the last read, or -1 */
    Layout layout;
} StepRecorder;

/* Collectives that a rank has waited for. */
typedef struct {
    Py_ssize_t kind;  /* index of their kind; below zero where they are not counted */
    bool is_pairwise; /* sends and receives, which bring two ranks together, not the group */
    int64_t calls, size_bytes, bus_bytes;
} Collectives;

/* A step as its row has it, but for the seconds of its phases. */
typedef struct {
    int64_t number, began_ns, tokens, samples, shortest, longest;
    uint32_t present, flags;
    double seconds, loss, norm, squares, waited;
} Row;

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
    X(fail) X(part_failed) X(take) X(item) X(is_cuda) X(step) X(loss) X(gradient_norm)             \
    X(learning_rate) X(tokens) X(samples) X(sequence_lengths) X(send_recv) X(tap)                  \
    X(require_backward_grad_sync) X(query) X(elapsed_time)
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
int call_step_ended(StepRecorder *recorder, const Row *row, int64_t now_ns, int64_t steps);

/* step.c */
PyObject *recorder_step(StepRecorder *recorder, PyObject *const *values, Py_ssize_t num_positional,
                        PyObject *names);

/* page.c: the step's seconds by phase, begun anew; only what is no part of a step goes into the totals; */
void recorder_end_phases(StepRecorder *recorder, double seconds[STEP_PHASES]);
void count_phases(StepRecorder *recorder, const double seconds[STEP_PHASES]);
/* the duration of the oldest step whose time is not in the totals yet; */
void settle_step(StepRecorder *recorder, double seconds);
/* the row into the ring; returns the number of rows; then the state into the older slot. */
int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[STEP_PHASES]);
void commit_state(StepRecorder *recorder, int64_t now_ns);

/* run_queue.c: what the loop's threads waited for a core since the last read, where one is due. */
void take_run_queue(StepRecorder *recorder, int64_t now_ns, Row *row);
PyObject *recorder_watch_run_queue(StepRecorder *recorder, PyObject *descriptors);

/* checksum.c */
uint32_t checksum_of(const void *data, size_t num_words); /* words of four bytes */
void prepare_checksum(void);

PyObject *new_phase_hook(StepRecorder *recorder, int code); /* phase_hook.c */
PyObject *end_gradient_wait(PyObject *wait);                /* ddp.c */

#endif
