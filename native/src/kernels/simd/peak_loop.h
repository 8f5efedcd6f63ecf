/* The loops of kernels/peak.h: as many independent chains as fit 16 registers beside two operands. A processor that
 * starts two operations in a cycle, each of which takes 3 or 4 cycles, needs 6 or 8. */
#pragma once

#include "kernels/peak.h"
#include "kernels/simd/vector.h"

enum { PEAK_CHAINS = 14 };

peak_function SIMD_NAME(peak_fused);
peak_function SIMD_NAME(peak_microkernel);

/* What the compiler must not see through, so that it computes every round. */
static inline float peak_sum(const vector chains[PEAK_CHAINS])
{
    vector sum = {0};
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum += chains[i];
    return sum[0];
}
