/* For how long the process stood still: stopped by a signal, frozen by its cgroup, paused with its machine.
 *
 * No counter of the kernel tells it. A thread sleeps again and again: what comes on top of a sleep is time
 * in which no thread of the process ran, but for what this thread then waited for a core. A wake-up may
 * cost 40 us in a virtual machine, so that it sleeps longer until it has noticed a stop.
 *
 * It takes no lock and calls nothing of Python. It shares a StopClock with its recorder; who lets go of it
 * last frees it, so that nobody waits for the thread. A forked child has the clock without the thread:
 * its time stands.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    SLEEP_NS = 25000000,
    SHORT_SLEEP_NS = 10000000,
    SHORT_SLEEPS = 1000,      /* after a stop */
    LEAST_STOP_NS = 10000000, /* less is a late timer */
    READ_EVERY = 64,          /* sleeps: of each the timer's slack is taken for a wait until then */
    STACK_BYTES = 1 << 18,    /* with room for what libraries keep for each thread */
    THREAD_AND_RECORDER = 2,
};

struct StopClock { /* its fields are atomic */
    int64_t stopped_ns; /* since they were taken */
    int is_known, num_owners;
};

static void let_go(StopClock *clock)
{
    if (__atomic_sub_fetch(&clock->num_owners, 1, __ATOMIC_ACQ_REL) == 0)
        free(clock);
}

/* Adds up the stops until the recorder lets go. */
static void watch_stops(StopClock *clock, int run_queue)
{
    int64_t core_ns, short_ns = 0, waited_ns = read_run_queue(run_queue, &core_ns);
    for (int64_t number = 1, num_short = 0;; number++, num_short -= num_short > 0) {
        const struct timespec sleep = {.tv_nsec = num_short ? SHORT_SLEEP_NS : SLEEP_NS};
        int64_t began_ns = clock_ns();
        nanosleep(&sleep, NULL);
        int64_t late_ns = clock_ns() - began_ns - sleep.tv_nsec;
        if (__atomic_load_n(&clock->num_owners, __ATOMIC_ACQUIRE) < THREAD_AND_RECORDER)
            return;
        if (late_ns < LEAST_STOP_NS && number % READ_EVERY != 1) {
            short_ns += late_ns; /* nearly all of it was a wait */
            continue;
        }
        int64_t before_ns = waited_ns;
        waited_ns = read_run_queue(run_queue, &core_ns);
        if (waited_ns < 0 || core_ns <= 0)
            break; /* a kernel that counts nothing has zeros, and this thread has run */
        __atomic_store_n(&clock->is_known, 1, __ATOMIC_RELAXED);
        int64_t wait_ns = waited_ns - before_ns - short_ns;
        short_ns = 0;
        late_ns -= wait_ns > 0 ? wait_ns : 0;
        if (late_ns >= LEAST_STOP_NS) {
            /* It began somewhere in the sleep. */
            __atomic_fetch_add(&clock->stopped_ns, late_ns + sleep.tv_nsec / 2, __ATOMIC_RELAXED);
            num_short = SHORT_SLEEPS;
        }
    }
    __atomic_store_n(&clock->is_known, 0, __ATOMIC_RELAXED);
}

static void *run_thread(void *clock)
{
    pthread_setname_np(pthread_self(), "lockstep-stops");
    int run_queue = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (run_queue >= 0) {
        watch_stops(clock, run_queue);
        close(run_queue);
    }
    let_go(clock);
    return NULL;
}

/* Starts a thread that no signal of the process interrupts; false where there is none. */
bool start_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool is_started = pthread_create(&thread, &attributes, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return is_started;
}

PyObject *recorder_watch_stops(StepRecorder *recorder, PyObject *unused)
{
    (void)unused;
    StopClock *clock = recorder->stops == NULL ? calloc(1, sizeof *clock) : NULL;
    if (clock != NULL) {
        clock->num_owners = THREAD_AND_RECORDER;
        if (start_thread(run_thread, clock))
            recorder->stops = clock;
        else
            free(clock);
    }
    Py_RETURN_NONE;
}

void recorder_release_stops(StepRecorder *recorder)
{
    if (recorder->stops != NULL)
        let_go(recorder->stops);
    recorder->stops = NULL;
}

void take_stops(StepRecorder *recorder, Row *row)
{
    StopClock *clock = recorder->stops;
    int64_t stopped_ns = 0;
    if (clock == NULL || !__atomic_load_n(&clock->is_known, __ATOMIC_RELAXED))
        return;
    /* A store costs the line of the cache, and stops are rare. */
    if (__atomic_load_n(&clock->stopped_ns, __ATOMIC_RELAXED) != 0)
        stopped_ns = __atomic_exchange_n(&clock->stopped_ns, 0, __ATOMIC_RELAXED);
    put_extra(row, EXTRA_STOPPED_SECONDS, (double)stopped_ns * 1e-9);
}
