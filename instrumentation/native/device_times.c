/* From the events of a step to its times: own work, waits, and how long the host held it up. */
#include "device.h"

static const double LEAST_SHARE = 0.1;

static void learn(DeviceClock *clock, int64_t place, int phase, double device_ns, double host_ns)
{
    if (clock->usual_phase[place] != phase) {
        clock->usual_phase[place] = (int8_t)phase;
        clock->usual_device[place] = device_ns;
        clock->usual_host[place] = host_ns;
        return;
    }
    clock->usual_device[place] = towards(clock->usual_device[place], device_ns);
    clock->usual_host[place] = towards(clock->usual_host[place], host_ns);
}

static double lower(double a, double b)
{
    return a < b ? a : b;
}

/* Nanoseconds of a segment with work in which the stream waited for the host. */
static double idle_of(DeviceClock *clock, int64_t place, int64_t number, double until_host)
{
    int64_t index = (number + 1) % POOL_EVENTS, before = number % POOL_EVENTS;
    int phase = clock->phases[before], mark = clock->marks[index];
    double span = clock->spans[place];
    bool is_known = clock->usual_phase[place] == phase;
    bool is_inside = phase == PHASE_BACKWARD || phase == PHASE_OPTIMIZER
                     || clock->phases[index] == PHASE_SYNC;
    if (mark & CAUGHT_UP && (is_inside || mark & ARRIVAL)) {
        double idle = span - (is_known ? clock->usual_device[place] : 0.0);
        return idle > 0 ? idle : 0;
    }
    double host_span = (double)(clock->host_ns[index] - clock->host_ns[before]), idle = 0;
    if (is_known) {
        idle = lower(lower(span - clock->usual_device[place], host_span - clock->usual_host[place]), until_host);
        if (idle < LEAST_SHARE * span)
            idle = 0;
    }
    learn(clock, place, phase, span - idle, host_span - idle);
    return idle;
}

static void finish(double begin, double unexplained, DeviceTimes *times)
{
    int64_t forward = PHASE_FORWARD, backward = PHASE_BACKWARD;
    if (times->idle[backward] > times->seconds[backward] / 2 && times->idle[forward] == 0)
        times->idle[forward] = unexplained;
    double before = times->seconds[PHASE_INIT] + times->seconds[PHASE_RESTORE];
    double all = 0;
    for (int phase = 0; phase < NUM_PHASES; phase++)
        all += times->seconds[phase];
    times->begin_ns = (int64_t)begin + (int64_t)(before * 1e9);
    times->total = all - before;
    double launches = times->idle[forward] + times->idle[backward] + times->idle[PHASE_OPTIMIZER];
    times->is_launch_bound = times->total > 0 && launches >= LEAST_SHARE * times->total;
}

void divide_step(DeviceClock *clock, int64_t first, int64_t last, double begin,
                 DeviceTimes *times)
{
    double at = begin, unexplained = 0;
    bool is_optimized = false;
    *times = (DeviceTimes){0};
    for (int64_t number = first; number < last; number++) {
        int64_t place = number - first, index = (number + 1) % POOL_EVENTS;
        int phase = clock->phases[number % POOL_EVENTS], mark = clock->marks[index];
        double span = clock->spans[place], until_host = (double)clock->host_ns[index] - at;
        at += span;
        times->seconds[phase] += span * 1e-9;
        is_optimized = is_optimized || phase == PHASE_OPTIMIZER;
        if (!times->first_arrival_ns && (mark & ARRIVAL || clock->phases[index] == PHASE_SYNC))
            times->first_arrival_ns = (int64_t)at;
        if (mark & GROUP_END)
            times->last_arrival_ns = (int64_t)(at - times->seconds[PHASE_SYNC] * 1e9);
        if (mark >> KIND_SHIFT)
            times->collective[(mark >> KIND_SHIFT) - 1] += span * 1e-9;
        if (phase == FIRST_STEP_PHASE || (phase == PHASE_OTHER && is_optimized)) {
            /* Nothing is launched here, so what lasts until the host comes is waiting. */
            times->idle[phase] += lower(span, until_host > 0 ? until_host : 0) * 1e-9;
        } else if (phase == PHASE_FORWARD || phase == PHASE_BACKWARD
                   || phase == PHASE_OPTIMIZER || phase == PHASE_OTHER) {
            double idle = idle_of(clock, place, number, until_host);
            times->idle[phase] += idle * 1e-9;
            if (phase == PHASE_FORWARD && mark & CAUGHT_UP && idle == 0)
                unexplained += span * 1e-9;
        }
    }
    finish(begin, unexplained, times);
}
