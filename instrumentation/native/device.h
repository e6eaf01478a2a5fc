/* The device's course through steps: events, rows that wait for it, its times, and numbers that are on it. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include "recorder.h"

enum {
    MAX_EVENTS = 2048,
    POOL_EVENTS = 4 * MAX_EVENTS,
    MAX_PENDING = 64,
    MOST_AT_ONCE = 4,
    MAX_STRIDE = 1024,
    NOT_TIMED = -1,
    CAUGHT_UP = 1,
    ARRIVAL = 2,
    GROUP_END = 4,
    KIND_SHIFT = 3,
    DEVICE_BUSY = 600, /* cudaErrorNotReady, hipErrorNotReady */
    FIRST_CAPTURE_ERROR = 900,
    LAST_CAPTURE_ERROR = 910
};

/* What is called of the device's runtime; CUDA's and HIP's functions differ in their prefix only.
 * Each returns 0 or the number of an error. */
#define RUNTIME_FUNCTIONS(X)                                                                       \
    X(EventCreateWithFlags, (void **event, unsigned flags))                                        \
    X(EventDestroy, (void *event))                                                                 \
    X(EventRecord, (void *event, void *stream))                                                    \
    X(EventQuery, (void *event))                                                                   \
    X(EventElapsedTime, (float *milliseconds, void *begin, void *end))                             \
    X(StreamIsCapturing, (void *stream, int *status))                                              \
    X(StreamQuery, (void *stream))                                                                 \
    X(MemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream))              \
    X(GetLastError, (void))

typedef struct {
#define FUNCTION_FIELD(name, parameters) int(*name) parameters;
    RUNTIME_FUNCTIONS(FUNCTION_FIELD)
#undef FUNCTION_FIELD
} DeviceRuntime;

/* A row whose time is not in the totals yet; first and last are events, or NOT_TIMED. */
typedef struct {
    int64_t number, first, last;
    double parts[STEP_PHASES], total, collective[NUM_KINDS];
    bool is_awaited; /* its step was to be timed */
} PendingRow;

/* A step as the device went through it. */
typedef struct {
    int64_t begin_ns, first_arrival_ns, last_arrival_ns;
    double seconds[NUM_PHASES], idle[NUM_PHASES], total, collective[NUM_KINDS];
    bool is_launch_bound;
} DeviceTimes;

typedef struct DeviceNumbers DeviceNumbers;

struct DeviceClock {
    DeviceRuntime runtime;
    void *stream; /* the loop's */
    long device;
    int64_t allowance_ns, num_calls, call_ns;
    int64_t noted_calls, noted_ns; /* of them, before the running step */
    double usual_call_ns, usual_step_ns, usual_calls; /* the latter of a step that is not timed */
    int64_t count, first, oldest, passed, stride, written_stride;
    bool failed, is_awaited; /* the running step is to be timed */
    int64_t newest_ns; /* of the change of phase that the newest event is of */
    double passed_ns; /* of the event `passed`, by the host's clock */
    void *events[POOL_EVENTS], *free_events[POOL_EVENTS]; /* made once; free to be recorded again */
    int num_free;
    int64_t host_ns[POOL_EVENTS];
    uint8_t phases[POOL_EVENTS], marks[POOL_EVENTS];
    double spans[MAX_EVENTS + 1];
    double usual_device[MAX_EVENTS + 1], usual_host[MAX_EVENTS + 1];
    int8_t usual_phase[MAX_EVENTS + 1];
    PendingRow pending[MAX_PENDING + 2];
    int64_t num_pushed, num_settled;
    double collective[NUM_KINDS]; /* of the running step, by the host */
    DeviceTimes newest;           /* of the last step that was timed */
    DeviceNumbers *numbers;       /* NULL where none are read */
};

/* A call of the runtime, counted and timed: what the stride of the stamps follows. */
#define CALL(clock, name, ...) (call_begins(clock), call_ended(clock, (clock)->runtime.name(__VA_ARGS__)))

/* device_runtime.c. Functions that return int return -1 with an error set. */
int load_runtime(const char *library, const char *prefix, DeviceRuntime *runtime);
void call_begins(DeviceClock *clock);
int call_ended(DeviceClock *clock, int code);
/* 1 where all that was asked has passed, 0 where it has not; -1 with an error. */
int has_passed(int code);
int set_runtime_error(const char *function, int code);
/* 1 where the thread's stream takes work now, 0 where a graph is captured, in which a query would end the
 * capture and an event would become a part of the graph; -1 with an error. */
int takes_work(StepRecorder *recorder);
/* Raw handle of the stream that takes the calling thread's work; */
int current_stream(StepRecorder *recorder, void **stream);
/* the same, and 1 unless the thread works on another device now. */
int loop_stream(StepRecorder *recorder, void **stream);
/* The stride that keeps the calls of a step within the allowance. */
void adjust_stride(DeviceClock *clock, int64_t num_events);
double towards(double usual, double value);

/* device.c. All events before this one are free. */
void free_events_before(DeviceClock *clock, int64_t number);
int device_begin(StepRecorder *recorder, int64_t now_ns, int phase);
int device_boundary(StepRecorder *recorder, int64_t now_ns, int phase);
int device_arrival(StepRecorder *recorder, int64_t now_ns);
int device_is_on_stream(StepRecorder *recorder);
void device_wait_ended(StepRecorder *recorder, const Collectives *collectives, double seconds);
int device_end(StepRecorder *recorder, int64_t now_ns, int64_t *first, int64_t *last);
int device_has_passed(StepRecorder *recorder, int64_t last);
/* 1 and the times; 0 where the device has failed. */
int device_measure(StepRecorder *recorder, const PendingRow *row, int64_t now_ns, DeviceTimes *times,
                   double *begin);

/* device_rows.c */
int device_end_step(StepRecorder *recorder, int64_t now_ns, const double parts[STEP_PHASES], double total,
                    bool *is_timed);
int device_settle(StepRecorder *recorder, int64_t now_ns, int64_t keep);
int device_settle_all(StepRecorder *recorder, int64_t now_ns);

/* device_times.c */
void divide_step(DeviceClock *clock, int64_t first, int64_t last, double begin,
                 DeviceTimes *times);

/* device_numbers.c */
int create_numbers(DeviceClock *clock, PyObject *memory);
void free_numbers(DeviceClock *clock);
int take_numbers_on_device(StepRecorder *recorder, PyObject *loss, PyObject *norm, PyObject *rate);
int poll_numbers(StepRecorder *recorder);
int read_last_numbers(StepRecorder *recorder);

#endif
