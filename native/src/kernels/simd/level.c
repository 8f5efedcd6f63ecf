/* What this level offers to kernels/select.c. */
#include "kernels/level.h"

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/microkernel.h"
#include "kernels/simd/peak_loop.h"

/* What native/CMakeLists.txt compiles a second time, as level SIMD_LEVEL_fused. Its micro-tile may have another size.
 */
#define FUSED_NAME(name) SIMD_JOIN(SIMD_NAME(name), fused)
#define KERNEL(name, parameters)
#define PRODUCT_KERNEL(name, parameters) void FUSED_NAME(name) parameters;
#include "kernels/kernels.def"
peak_function FUSED_NAME(peak_chains), FUSED_NAME(peak_microkernel);
void FUSED_NAME(fit_caches)(const struct caches *caches);

static void fit_caches(const struct caches *caches)
{
    SIMD_NAME(fit_caches)(caches);
    FUSED_NAME(fit_caches)(caches);
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
    .fused =
        {
#define KERNEL(name, parameters) .name = SIMD_NAME(name),
#define PRODUCT_KERNEL(name, parameters) .name = FUSED_NAME(name),
#include "kernels/kernels.def"
        },
    .peak = {.strict = {[PEAK_CHAINS_ALONE] = {SIMD_NAME(peak_chains), PEAK_CHAINS * LANES},
                        [PEAK_MICROKERNEL] = {SIMD_NAME(peak_microkernel), 2 * MR * NR}},
             .fused = {[PEAK_CHAINS_ALONE] = {FUSED_NAME(peak_chains), 2 * PEAK_CHAINS * LANES},
                       [PEAK_MICROKERNEL] = {FUSED_NAME(peak_microkernel), 2 * FUSED_ROWS * FUSED_VECTORS * LANES}}},
    .fit_caches = fit_caches,
};
