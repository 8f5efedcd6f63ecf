/* The loop of kernels/peak.h, once for all levels and roundings: the options that a file is compiled with decide
 * whether its product and sum become one instruction. peak.c, peak_fused.c and ref/peak.c include it. */
#ifndef STARPULLM_PEAK_LOOP_H
#define STARPULLM_PEAK_LOOP_H

#include "kernels/peak.h"
#include "kernels/simd/vector.h"

/* Enough sums to hide what a multiplication and an addition take one after the other (6 to 8 cycles, two pairs begun in
 * each), few enough that they and two factors fit the registers: 16, or 32 with AVX-512 and NEON. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { PEAK_SUMS = 24 };
#else
enum { PEAK_SUMS = 12 };
#endif

enum { PEAK_OPERATIONS = 2 * PEAK_SUMS * LANES };

peak_loop SIMD_NAME(peak_fused); /* of every level but ref */

static inline float peak_rounds(size_t rounds, float factor, float term)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector sum[PEAK_SUMS];
    for (int s = 0; s < PEAK_SUMS; s++)
        sum[s] = vector_of((float)s);
    for (size_t round = 0; round < rounds; round++)
        for (int s = 0; s < PEAK_SUMS; s++)
            sum[s] = sum[s] * factors + terms;
    vector total = sum[0];
    for (int s = 1; s < PEAK_SUMS; s++)
        total += sum[s];
    return total[0];
}

#endif
