/* The exported functions about the build, the machine and the kernels. Those of the runtime, of sessions, of
 * losses and of training states are in runtime/, session/, codelets/ and io/. */
#include <fenv.h>
#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "build_info.h"
#include "kernels/kernels.h"
#include "kernels/level.h"
#include "runtime/machine.h"
#include "status.h"

enum { MAX_PEAK_SECONDS = 60 };

int starpullm_abi_version(void)
{
    return STARPULLM_ABI_VERSION;
}

status starpullm_build_info(struct starpullm_build_info *info)
{
    CHECK_STRUCT(info);
    *info = (struct starpullm_build_info){
        .size = sizeof *info,
        .version = BUILD_VERSION,
        .compiler = BUILD_COMPILER,
        .compiler_flags = BUILD_COMPILER_FLAGS,
        .build_type = BUILD_TYPE,
        .starpu_version = BUILD_STARPU_VERSION,
        .starpu_prefix = BUILD_STARPU_PREFIX,
    };
    return STARPULLM_OK;
}

status starpullm_machine_info(struct starpullm_machine_info *info)
{
    CHECK_STRUCT(info);
    static _Thread_local struct topology topology;
    TRY(topology_read(&topology));
    const struct runtime_features features = runtime_features();
    *info = (struct starpullm_machine_info){
        .size = sizeof *info,
        .cores = topology.cores,
        .processing_units = topology.processing_units,
        .numa_nodes = topology.numa_nodes,
        .synthetic = topology.synthetic,
        .processor = topology.processor,
        .simd_level = kernels_level(),
        .starpu_version = runtime_starpu_version(),
        .starpu_max_workers = features.max_workers,
        .starpu_max_contexts = features.max_contexts,
        .starpu_max_nodes = features.max_nodes,
        .l2_cache = kernels_caches()->l2,
    };
    return STARPULLM_OK;
}

const char *starpullm_kernel_name(size_t index)
{
    static const char *const names[] = {
#define KERNEL(name, parameters) #name,
#include "kernels/kernels.def"
    };
    return index < sizeof names / sizeof *names ? names[index] : NULL;
}

status starpullm_kernel(const char *level, const char *name, struct starpullm_kernel_info *info)
{
    CHECK_POINTERS(level, name);
    CHECK_STRUCT(info);
    const struct kernels *kernels = kernels_of_level(level);
    if (!kernels)
        return invalid_argument("level: found \"%s\", expected a SIMD level of this machine", level);
    const struct starpullm_kernel_info all[] = {
#define KERNEL(name, parameters) {sizeof(struct starpullm_kernel_info), #parameters, (const void *)kernels->name},
#include "kernels/kernels.def"
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(starpullm_kernel_name(i), name) == 0) {
            *info = all[i];
            return STARPULLM_OK;
        }
    return invalid_argument("kernel: found \"%s\", expected one of starpullm_kernel_name()", name);
}

status starpullm_fit_caches(size_t l2_cache)
{
    if (!l2_cache)
        return invalid_argument("l2_cache: found 0 bytes, expected a positive size");
    struct caches caches = *kernels_caches();
    caches.l2 = l2_cache;
    kernels_fit_caches(&caches);
    return STARPULLM_OK;
}

status starpullm_peak_gflops(double *gflops, int32_t fused, double seconds)
{
    CHECK_POINTERS(gflops);
    if (!(seconds > 0 && seconds <= MAX_PEAK_SECONDS))
        return invalid_argument("seconds: found %g, expected more than 0 and at most %d", seconds, MAX_PEAK_SECONDS);
    *gflops = peak_measure(fused, seconds) / 1e9;
    return STARPULLM_OK;
}

/* By its bits: a comparison may take a denormal operand for 0. */
static bool is_zero(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == 0;
}

const char *starpullm_float_environment(void)
{
    if (fegetround() != FE_TONEAREST)
        return "the rounding mode isn't to nearest";
    volatile float smallest_normal = FLT_MIN, half = 0.5f, denormal = FLT_TRUE_MIN, one = 1.0f;
    if (is_zero(smallest_normal * half))
        return "flush-to-zero is on: denormal results become 0";
    if (is_zero(denormal * one))
        return "denormals-are-zero is on: denormal operands count as 0";
    return "";
}
