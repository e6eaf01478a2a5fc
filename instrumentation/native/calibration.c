/* How fast the loop's core is now: for how long it takes a calculation that is always the same.
 *
 * A core that shares its execution units with another thread or guest, or runs at a lower frequency, does less
 * in the same time, and no counter that a process may read tells it: neither waits nor time on the core differ.
 * The calculation has eight independent chains of integers, so that it needs as many units as there are.
 */
#include "recorder.h"

enum {
    CALIBRATION_EVERY_NS = 25000000,
    ROUNDS = 1000, /* one microsecond */
    TIMES = 4,     /* the longest does not count: cold caches, an interrupt or another thread */
};

static void calculate(void)
{
    uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8;
    for (uint64_t n = 0; n < ROUNDS; n++) {
        a += n, b ^= n, c -= n, d += n, e ^= n, f -= n, g += n, h ^= n;
        /* Keeps the compiler from calculating more than one round at a time. */
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h));
    }
}

void take_calibration(StepRecorder *recorder, int64_t now_ns, Row *row)
{
    if (now_ns < recorder->calibration_due_ns || recorder->clock != NULL)
        return;
    recorder->calibration_due_ns = now_ns + CALIBRATION_EVERY_NS;
    int64_t total_ns = 0, longest_ns = 0, began_ns = clock_ns();
    for (int n = 0; n < TIMES; n++) {
        calculate();
        int64_t ended_ns = clock_ns(), spent_ns = ended_ns - began_ns;
        total_ns += spent_ns;
        longest_ns = spent_ns > longest_ns ? spent_ns : longest_ns;
        began_ns = ended_ns;
    }
    total_ns -= longest_ns;
    if (total_ns > 0 && total_ns <= UINT16_MAX) {
        row->calibration_ns = (uint16_t)total_ns;
        row->present |= ROW_HAS_CALIBRATION_NS;
    }
}
