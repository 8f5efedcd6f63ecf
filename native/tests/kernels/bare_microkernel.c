/* The choice of a level's bare micro-kernels. levels.def is made by CMake: LEVEL(name) for each level of this build. */
#include "bare_microkernel.h"

#include <string.h>

#define LEVEL(name)                                     \
    void bare_microkernel_##name(size_t calls);         \
    void bare_microkernel_##name##_fused(size_t calls); \
    double bare_operations_##name(void);
#include "levels.def"
#undef LEVEL

struct bare_microkernel bare_microkernel_of(const char *level)
{
#define LEVEL(name)                                                                \
    if (strcmp(level, #name) == 0)                                                 \
        return (struct bare_microkernel){.strict = bare_microkernel_##name,        \
                                         .fused = bare_microkernel_##name##_fused, \
                                         .operations = bare_operations_##name()};
#include "levels.def"
    return (struct bare_microkernel){0};
}
