/* What this level offers to kernels/select.c; and its strict loops of kernels/peak.h. */
#include "kernels/level.h"

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/microkernel.h"
#include "kernels/simd/peak_loop.h"

/* Products and sums are chains of their own, as in a matmul no product depends on another. */
static float peak_chains(size_t rounds, float factor, float term)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector chains[PEAK_CHAINS];
    for (int i = 0; i < PEAK_CHAINS; i++)
        chains[i] = vector_of((float)i);
    for (size_t round = 0; round < rounds; round++) {
        UNROLLED
        for (int i = 0; i < PEAK_CHAINS; i += 2) {
            chains[i] *= factors;
            chains[i + 1] += terms;
        }
    }
    return peak_sum(chains);
}

/* The micro-kernel, whose every load is from the first-level cache: all rows of a are one row, and all of b. Its
 * products are no chains, so that it may come closer to what the arithmetic pipes can do. */
static float peak_microkernel(size_t rounds, float factor, float term)
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

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

const struct level SIMD_NAME(level) = {
    .name = TEXT(SIMD_LEVEL),
    .kernels =
        {
#define KERNEL(name, parameters) .name = SIMD_NAME(name),
#include "kernels/kernels.def"
        },
    .vector_libm = {[LIBM_EXPF] = SIMD_NAME(map_expf),
                    [LIBM_TANHF] = SIMD_NAME(map_tanhf),
                    [LIBM_COSHF] = SIMD_NAME(map_coshf)},
    .peak = {.strict = {{peak_chains, PEAK_CHAINS * LANES}, {peak_microkernel, 2 * MR * NR}},
             .fused = {SIMD_NAME(peak_fused), 2 * PEAK_CHAINS * LANES}},
};
