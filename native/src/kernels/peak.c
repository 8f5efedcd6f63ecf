/* The measurement of what a core can do at most. */
#include "clock.h"
#include "kernels/level.h"

enum { ROUNDS = 20000 }; /* tens of microseconds: the clock costs nothing against them */

static double measure(struct peak_loop loop, double seconds)
{
    /* Volatile: the compiler must not compute the loop itself, nor leave it out. */
    volatile float factor = 1.0f, term = 1.0f, result = loop.run(ROUNDS, factor, term);
    const uint64_t start = now_ns();
    double elapsed, rounds = 0;
    do {
        result = loop.run(ROUNDS, factor, term);
        rounds += ROUNDS;
        elapsed = 1e-9 * (double)(now_ns() - start);
    } while (elapsed < seconds);
    (void)result;
    return rounds * loop.operations / elapsed;
}

double peak_measure(bool fused, double seconds)
{
    const struct peak *peak = kernels_peak(kernels_level());
    const struct peak_loop *loops = fused ? peak->fused : peak->strict;
    if (!loops[PEAK_CHAINS_ALONE].run)
        return 0;
    const double chains = measure(loops[PEAK_CHAINS_ALONE], seconds / 2),
                 matmul = measure(loops[PEAK_MICROKERNEL], seconds / 2);
    return chains > matmul ? chains : matmul;
}
