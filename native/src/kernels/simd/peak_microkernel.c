/* The micro-kernel as a loop of kernels/level.h: every load is from the first-level cache, as all rows of a are one
 * row, and all of b. Its products are no chains, so that it may come closer to what the arithmetic pipes can do. */
#include "kernels/simd/microkernel.h"
#include "kernels/simd/peak_loop.h"

float SIMD_NAME(peak_microkernel)(size_t rounds, float factor, float term)
{
    enum { STEPS = 512 };
    float a[STEPS], b[NR], c[MR * NR];
    for (size_t i = 0; i < STEPS; i++)
        a[i] = factor;
    for (size_t j = 0; j < NR; j++)
        b[j] = term;
    struct product product = {
        .c = c, .ldc = NR, .initial = SIMD_NAME(zeros), .a = a, .cs_a = 1, .b = b, .m = MR, .n = NR};
    for (size_t step = 0; step < rounds; step += STEPS) {
        product.k = smaller(STEPS, rounds - step);
        SIMD_NAME(microkernel)(&product);
    }
    return c[0];
}
