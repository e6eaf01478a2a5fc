/* The device's course through steps: events, rows that wait for it, and its times. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include "recorder.h"

enum {
    MAX_EVENTS = 512,
    POOL_EVENTS = 4 * MAX_EVENTS,
    MAX_PENDING = 64,
    MOST_AT_ONCE = 4,
    NOT_TIMED = -1,
    CAUGHT_UP = 1,
    ARRIVAL = 2,
    GROUP_END = 4,
    KIND_SHIFT = 3
};

/* A row whose time is not in the totals yet; first and last are events, or NOT_TIMED. */
typedef struct {
    int64_t number, first, last;
    double parts[STEP_PHASES], total, collective[NUM_KINDS];
} PendingRow;

/* A step as the device went through it. */
typedef struct {
    int64_t begin_ns, first_arrival_ns, last_arrival_ns;
    double seconds[NUM_PHASES], idle[NUM_PHASES], total, collective[NUM_KINDS];
    bool is_launch_bound;
} DeviceTimes;

struct DeviceClock {
    int64_t count, first, oldest, waits, passed, stride, written_stride;
    bool is_skipping, failed, overflowed;
    double passed_ns;
    int64_t host_ns[POOL_EVENTS];
    uint8_t phases[POOL_EVENTS], marks[POOL_EVENTS];
    double spans[MAX_EVENTS + 1];
    double usual_device[MAX_EVENTS + 1], usual_host[MAX_EVENTS + 1];
    int8_t usual_phase[MAX_EVENTS + 1];
    PendingRow pending[MAX_PENDING + 2];
    int64_t num_pushed, num_settled;
    double collective[NUM_KINDS]; /* of the running step, by the host */
};

/* device.c. Functions that return int return -1 with an error set. */
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

#endif
