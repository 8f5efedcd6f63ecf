/* The measurement of what a core can do at most. */
#include "kernels/peak.h"

#include <time.h>

enum { ROUNDS = 20000 }; /* tens of microseconds: the clock costs nothing against them */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double peak_measure(bool fused, double seconds)
{
    const struct peak *peak = kernels_peak();
    peak_loop *const loop = fused ? peak->fused : peak->strict;
    if (!loop)
        return 0;
    /* Volatile: the compiler must not compute the loop itself, nor leave it out. */
    volatile float factor = 0.5f, term = 1.0f, result = loop(ROUNDS, factor, term);
    const double start = now();
    double elapsed, rounds = 0;
    do {
        result = loop(ROUNDS, factor, term);
        rounds += ROUNDS;
        elapsed = now() - start;
    } while (elapsed < seconds);
    (void)result;
    return rounds * peak->operations / elapsed;
}
