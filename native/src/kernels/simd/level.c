/* What this level offers to kernels/select.c; and its strict chains of kernels/level.h. */
#include "kernels/level.h"

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/microkernel.h"
#include "kernels/simd/peak_loop.h"

static float peak_chains(size_t rounds, float factor, float term)
{
    return peak_chains_of(rounds, factor, term, false);
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
    .peak = {.strict = {[PEAK_CHAINS_ALONE] = {peak_chains, PEAK_CHAINS * LANES},
                        [PEAK_MICROKERNEL] = {SIMD_NAME(peak_microkernel), 2 * MR * NR}},
             .fused = {SIMD_NAME(peak_fused), 2 * PEAK_CHAINS * LANES}},
    .fit_caches = SIMD_NAME(fit_caches),
};
