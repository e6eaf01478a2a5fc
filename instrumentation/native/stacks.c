/* Writes the stacks of all threads once a time has come that no step's end has put off.
 *
 * faulthandler walks frames of threads that may run on, as those of a rank that was stopped and goes on, and
 * that has crashed ranks. So a process of its own walks them, which shares the memory and has its own handlers
 * of signals: a fault ends that one, and faulthandler writes no more then. It is asked by the signal that is
 * registered for it.
 *
 * The thread takes no lock, and nothing of Python. A forked child has no such thread and no such time.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_SLEEP_NS = 250000000, STACK_BYTES = 1 << 18, LONGEST_WRITE_SECONDS = 10 };

static int64_t due_ns = NEVER; /* atomic */
static int stacks_signal;
static bool is_started;
static char writer_stack[STACK_BYTES] __attribute__((aligned(16)));

static void end_writer(int number)
{
    syscall(SYS_exit_group, number);
}

static int write_stacks(void *unused)
{
    static const int ends[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM};
    struct sigaction action = {.sa_handler = end_writer};
    (void)unused;
    for (size_t index = 0; index < sizeof ends / sizeof *ends; index++)
        sigaction(ends[index], &action, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm(LONGEST_WRITE_SECONDS);
    syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), stacks_signal);
    end_writer(0);
    return 0;
}

static void *wait_until_due(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "lockstep-stacks");
    for (;;) {
        int64_t due = __atomic_load_n(&due_ns, __ATOMIC_ACQUIRE), left_ns = due - clock_ns();
        if (left_ns > 0) {
            const struct timespec sleep = {.tv_nsec = left_ns < LONGEST_SLEEP_NS ? left_ns : LONGEST_SLEEP_NS};
            nanosleep(&sleep, NULL);
        } else if (__atomic_compare_exchange_n(&due_ns, &due, NEVER, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            /* Without a signal at its end, so that no handler and no wait() of the job sees it. */
            pid_t writer = clone(write_stacks, writer_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, NULL);
            if (writer > 0)
                waitpid(writer, NULL, __WCLONE);
        }
    }
    return NULL;
}

static void forget(void)
{
    due_ns = NEVER;
    is_started = false;
}

PyObject *write_stacks_at(PyObject *module, PyObject *arguments)
{
    long long at_ns;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Li", &at_ns, &stacks_signal))
        return NULL;
    __atomic_store_n(&due_ns, at_ns ? at_ns : NEVER, __ATOMIC_RELEASE);
    if (!is_started && at_ns) {
        static bool knows_forks;
        if (!knows_forks)
            pthread_atfork(NULL, NULL, forget);
        knows_forks = true;
        is_started = start_thread(wait_until_due, NULL);
    }
    return PyBool_FromLong(is_started);
}
