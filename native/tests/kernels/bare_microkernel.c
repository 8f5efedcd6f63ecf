/* The choice of a level's bare micro-kernels. levels.def is made by CMake: LEVEL(name) for each level of this build. */
#include "bare_microkernel.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/level.h"

#define LEVEL(name)                         \
    extern const struct level level_##name; \
    peak_function peak_microkernel_##name##_fused;
#include "levels.def"
#undef LEVEL

static bool has_fused(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

struct bare_microkernel bare_microkernel_of(const char *level)
{
    struct bare_microkernel bare = {0};
#define LEVEL(name)                                                                               \
    if (strcmp(level, #name) == 0) {                                                              \
        bare.strict = level_##name.peak.strict[PEAK_MICROKERNEL];                                 \
        bare.fused = (struct peak_loop){peak_microkernel_##name##_fused, bare.strict.operations}; \
    }
#include "levels.def"
    if (!has_fused())
        bare.fused.run = NULL;
    return bare;
}
