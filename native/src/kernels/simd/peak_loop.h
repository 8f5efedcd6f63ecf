/* The loops of kernels/level.h: as many independent chains as fit 16 registers beside two operands. A processor that
 * starts two operations in a cycle, each of which takes 3 or 4 cycles, needs 6 or 8. */
#pragma once

#include "kernels/level.h"
#include "kernels/simd/vector.h"

enum { PEAK_CHAINS = 14 };

peak_function SIMD_NAME(peak_fused);
peak_function SIMD_NAME(peak_microkernel);

/* Products and sums are chains of their own, as in a matmul no product depends on another; or fused, where the file
 * that calls it is compiled so. */
SIMD_INLINE float peak_chains_of(size_t rounds, float factor, float term, bool fused)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector chains[PEAK_CHAINS], sum = {0};
    for (int i = 0; i < PEAK_CHAINS; i++)
        chains[i] = vector_of((float)i);
    for (size_t round = 0; round < rounds; round++) {
        UNROLLED
        for (int i = 0; i < PEAK_CHAINS; i++)
            chains[i] = fused ? chains[i] * factors + terms : i % 2 ? chains[i] + terms : chains[i] * factors;
    }
    for (int i = 0; i < PEAK_CHAINS; i++) /* else the compiler need not compute every round */
        sum += chains[i];
    return sum[0];
}
