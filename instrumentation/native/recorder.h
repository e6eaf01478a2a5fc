/* The recorder in C: what lockstep/recorder/recorder.py does, for a loop whose caches hold other things.
 *
 * It knows no offset of the page: it asks for them by name at its birth, and lockstep/recorder/native.py
 * answers from the one table of the format.
 */
#ifndef LOCKSTEP_RECORDER_H
#define LOCKSTEP_RECORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Words of eight bytes in the slots, bytes in a row, bits, codes and sizes. */
#define PLACES(X)                                                                                  \
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
    X(slot_buckets, "slot.step_buckets")                                                           \
    X(slot_checksum, "slot.checksum")                                                              \
    X(bit_step, "slot.bit.step")                                                                   \
    X(bit_loss, "slot.bit.loss")                                                                   \
    X(bit_norm, "slot.bit.gradient_norm")                                                          \
    X(bit_rate, "slot.bit.learning_rate")                                                          \
    X(periodic_bus, "periodic.bus_bytes")                                                              \
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
    X(at_heartbeat, "at.heartbeat")                                                                        \
    X(at_slot_0, "at.slot.0")                                                                      \
    X(at_slot_1, "at.slot.1")                                                                      \
    X(at_ring, "at.ring")                                                                          \
    X(row_size, "size.row")                                                                        \
    X(slot_size, "size.slot")                                                                      \
    X(periodic_size, "size.periodic")                                                                  \
    X(rows, "rows")                                                                                \
    X(losses, "losses")

typedef struct {
#define MEMBER(member, name) int64_t member;
    PLACES(MEMBER)
#undef MEMBER
} Places;

enum { PHASES_AT_MOST = 16, IN_STEP = 8, ROW_AT_MOST = 256, NOT_WAITING = -1 };

/* Objects that a recorder holds. */
#define HELD(X)                                                                                    \
    X(heartbeat) X(own_heartbeat) /* the same, unless a sampled step is listened to */                     \
    X(callbacks) X(numbers) X(codes) X(kinds) X(code_of) X(bus_factor) X(figures_of) X(ignored)

typedef struct {
    PyObject_HEAD
    /* What a mark touches stands together, so that it is few lines of the cache.
     * `on` is asked again after every call into Python: a signal's handler may close the page. */
    char on, held, measures;
    int now_in;
    int64_t since, due, own, begun, first_arrival, last_arrival;
    int64_t spent[PHASES_AT_MOST];
    uint64_t *heartbeat_word;
#define HOLD(name) PyObject *name;
    HELD(HOLD)
#undef HOLD
    /* Until when nobody need be asked. */
    int64_t look_at, wake_step, wake_ns, next_step, flags, lasting_flags;
    double loss_floor, loss_bound, usual_seconds, slow_seconds;
    Py_buffer file, slot, periodic;
    double *buckets, *losses;
    Py_ssize_t num_buckets;
    int64_t num_losses; /* since they were taken */
    Places at;
} StepRecorder;

/* Collectives that a rank has waited for. */
typedef struct {
    Py_ssize_t place; /* of their kind; below zero where they are not counted */
    bool in_pairs;    /* sends and receives, which bring two ranks together, not the group */
    int64_t calls, size, bus;
} Collectives;

/* A step as its row has it, but for the seconds of its phases. */
typedef struct {
    int64_t number, begun, tokens, samples, shortest, longest;
    uint32_t present, flags;
    double total, loss, norm, squares;
} Row;

/* Stands around torch.autograd.backward; its attributes are those of lockstep.strategies.backward.Listener. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    char inside, nests;
    unsigned long thread;
    long long calls;
    PyObject *recorder, *ended, *original;
    PyObject *wait; /* DDP's, which ends with the backward that runs now; or NULL */
    long backward, other;
} Backward;

extern PyTypeObject *StepRecorder_Type, *PhaseHook_Type, *Backward_Type, *GradientWait_Type, *Forward_Type;
extern PyType_Spec recorder_spec, phase_hook_spec, backward_spec, wait_spec, forward_spec;
extern PyMethodDef recorder_methods[];

/* Names that are looked up in every step, made once. */
#define NAMES(X)                                                                                   \
    X(tick) X(inspect_loss) X(inspect_norm) X(inspect_step) X(step_ended) X(step_while_off)        \
    X(fail) X(take) X(item) X(is_cuda) X(step) X(loss) X(gradient_norm) X(learning_rate)           \
    X(tokens) X(samples) X(sequence_lengths) X(send_recv) X(tap)                                 \
    X(require_backward_grad_sync)
#define NAME(name) extern PyObject *name_##name;
NAMES(NAME)
#undef NAME

int64_t clock_ns(void);
uint32_t checksum_of(const void *data, size_t num_words); /* words of four bytes */
void prepare_checksum(void);

int recorder_switch_phase(StepRecorder *recorder, int code, int64_t *now); /* -1 with an error set */
int recorder_enter(StepRecorder *recorder, int code);
int recorder_wait_begins(StepRecorder *recorder, int *interrupted);
int recorder_wait_ended(StepRecorder *recorder, int interrupted, const Collectives *told);
int recorder_resolve(StepRecorder *recorder, PyObject *kind, PyObject *ranks, Collectives *told);
PyObject *recorder_wait_begins_told(StepRecorder *recorder, PyObject *unused);
PyObject *recorder_wait_ended_told(StepRecorder *recorder, PyObject *args, PyObject *named);
PyObject *wait_ended_of(PyObject *wait);
PyObject *new_phase_hook(StepRecorder *recorder, int code);
PyObject *recorder_release(StepRecorder *recorder, PyObject *unused);
void recorder_phases(StepRecorder *recorder, double seconds[IN_STEP]);
/* The row into the ring, then the state into the older slot; gives the number of rows so far. */
int64_t write_step(StepRecorder *recorder, Row *row, const double seconds[IN_STEP], int64_t now);
PyObject *recorder_step(StepRecorder *recorder, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *settled(StepRecorder *recorder); /* None; an error of ours goes to the callbacks, not to the loop */

#endif
