/* The portable loop of kernels/peak.h: the vectors that every processor of the architecture has, strict alone.
 * kernels/select.c takes it. */
#define SIMD_LEVEL ref
#define SIMD_BYTES 16
#include "kernels/simd/peak_loop.h"

#include "kernels/ref/ref.h"

static float strict(size_t rounds, float factor, float term)
{
    return peak_rounds(rounds, factor, term);
}

const struct peak peak_ref = {.strict = strict, .operations = PEAK_OPERATIONS};
