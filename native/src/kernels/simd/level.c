/* What this level offers to kernels/select.c; and its strict loop of kernels/peak.h, in which multiplication and
 * addition are rounded one by one, as in the matmuls. */
#include "kernels/level.h"

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/peak_loop.h"

static float strict(size_t rounds, float factor, float term)
{
    return peak_rounds(rounds, factor, term);
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
    .peak = {.strict = strict, .fused = SIMD_NAME(peak_fused), .operations = PEAK_OPERATIONS},
};
