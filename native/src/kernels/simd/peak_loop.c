/* The loops of peak_loop.h. */
#include "kernels/simd/peak_loop.h"

#include "kernels/simd/microkernel.h"

float SIMD_NAME(peak_chains)(size_t rounds, float factor, float term)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector chains[PEAK_CHAINS], sum = {0};
    for (int i = 0; i < PEAK_CHAINS; i++)
        chains[i] = vector_of((float)i);
    for (size_t round = 0; round < rounds; round++) {
        UNROLLED
        for (int i = 0; i < PEAK_CHAINS; i++)
            if (IS_FUSED)
                chains[i] = VECTOR_MULTIPLY_ADD(chains[i], factors, terms);
            else
                chains[i] = i % 2 ? chains[i] + terms : chains[i] * factors;
    }
    for (int i = 0; i < PEAK_CHAINS; i++) /* else the compiler need not compute every round */
        sum += chains[i];
    return sum[0];
}

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
