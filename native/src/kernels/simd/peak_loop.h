/* The loop of kernels/peak.h, once for all levels and roundings: the options that a file is compiled with decide
 * whether its product and sum become one instruction. */
#ifndef STARPULLM_PEAK_LOOP_H
#define STARPULLM_PEAK_LOOP_H

#include "kernels/peak.h"
#include "kernels/simd/vector.h"

/* Enough sums to hide the latency of a multiplication and an addition (6 to 8 cycles, in each of which two pairs can
 * start), few enough that they and the two operands fit the registers. */
enum { PEAK_SUMS = 12, PEAK_GROUPS = SIMD_REGISTERS / 16, PEAK_OPERATIONS = 2 * PEAK_GROUPS * PEAK_SUMS * LANES };

peak_loop SIMD_NAME(peak_fused);

/* Constant bounds make the inner loops straight-line code whose sums live in registers. */
static inline float peak_rounds(size_t rounds, float factor, float term)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector sum[PEAK_GROUPS][PEAK_SUMS];
    for (int g = 0; g < PEAK_GROUPS; g++)
        for (int s = 0; s < PEAK_SUMS; s++)
            sum[g][s] = vector_of((float)(g * PEAK_SUMS + s));
    for (size_t round = 0; round < rounds; round++)
        for (int g = 0; g < PEAK_GROUPS; g++)
            for (int s = 0; s < PEAK_SUMS; s++)
                sum[g][s] = sum[g][s] * factors + terms;
    vector total = {0};
    for (int g = 0; g < PEAK_GROUPS; g++)
        for (int s = 0; s < PEAK_SUMS; s++)
            total += sum[g][s];
    return total[0];
}

#endif
