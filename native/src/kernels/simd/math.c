/* math.h's functions over arrays, for the comparison with the platform's (kernels/libm.h). */
#include "kernels/simd/math.h"

#include "kernels/simd/kernels_simd.h"

#define MAP(function)                                                         \
    void SIMD_NAME(map_##function)(float *out, const float *in, size_t count) \
    {                                                                         \
        size_t i = 0;                                                         \
        for (; i + LANES <= count; i += LANES)                                \
            vector_store(out + i, vector_##function(vector_load(in + i)));    \
        if (i < count) {                                                      \
            float rest[LANES] = {0};                                          \
            memcpy(rest, in + i, (count - i) * sizeof *rest);                 \
            vector_store(rest, vector_##function(vector_load(rest)));         \
            memcpy(out + i, rest, (count - i) * sizeof *rest);                \
        }                                                                     \
    }
MAP(expf)
MAP(tanhf)
MAP(coshf)
