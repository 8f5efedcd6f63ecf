/* This level's loops of kernels/peak.h, and the strict one: multiplication and addition are rounded one by one, as the
 * matmuls' are. kernels/select.c takes them. */
#include "kernels/simd/peak_loop.h"
#include "kernels/simd/simd.h"

static float strict(size_t rounds, float factor, float term)
{
    return peak_rounds(rounds, factor, term);
}

const struct peak SIMD_NAME(peak) = {
    .strict = strict,
    .fused = SIMD_NAME(peak_fused),
    .operations = PEAK_OPERATIONS,
};
