/* The measurement of what a core can do at most. */
#include "kernels/level.h"

#include <time.h>

enum { ROUNDS = 20000 }; /* tens of microseconds: the clock costs nothing against them */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double measure(struct peak_loop loop, double seconds)
{
    /* Volatile: the compiler must not compute the loop itself, nor leave it out. */
    volatile float factor = 1.0f, term = 1.0f, result = loop.run(ROUNDS, factor, term);
    const double start = now();
    double elapsed, rounds = 0;
    do {
        result = loop.run(ROUNDS, factor, term);
        rounds += ROUNDS;
        elapsed = now() - start;
    } while (elapsed < seconds);
    (void)result;
    return rounds * loop.operations / elapsed;
}

double peak_measure(bool fused, double seconds)
{
    const struct peak *peak = kernels_peak();
    if (fused)
        return peak->fused.run ? measure(peak->fused, seconds) : 0;
    const double chains = measure(peak->strict[PEAK_CHAINS_ALONE], seconds / 2),
                 matmul = measure(peak->strict[PEAK_MICROKERNEL], seconds / 2);
    return chains > matmul ? chains : matmul;
}
