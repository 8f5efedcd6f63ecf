/* The vector type of the level that a file of this folder is being compiled for, in the compiler's own vector
 * extensions. Every file here is compiled once per level (native/CMakeLists.txt), with SIMD_LEVEL its name and
 * SIMD_BYTES its width; SIMD_NAME(f) is f's name at this level. Lanes go across outputs, never along a sum
 * (docs/numerics.md, Rules). */
#ifndef STARPULLM_VECTOR_H
#define STARPULLM_VECTOR_H

#include <stdint.h>
#include <string.h>

#define SIMD_JOIN_(name, level) name##_##level
#define SIMD_JOIN(name, level) SIMD_JOIN_(name, level)
#define SIMD_NAME(name) SIMD_JOIN(name, SIMD_LEVEL)

enum { LANES = SIMD_BYTES / 4 };

typedef float vector __attribute__((vector_size(SIMD_BYTES), may_alias));
typedef int32_t vector_int __attribute__((vector_size(SIMD_BYTES), may_alias));

/* The same at any multiple of 4 bytes. */
typedef float vector_unaligned __attribute__((vector_size(SIMD_BYTES), aligned(4), may_alias));
typedef int32_t vector_int_unaligned __attribute__((vector_size(SIMD_BYTES), aligned(4), may_alias));

static inline vector vector_load(const float *x)
{
    return *(const vector_unaligned *)x;
}

static inline void vector_store(float *x, vector v)
{
    *(vector_unaligned *)x = v;
}

/* Before a loop over an array of vectors, its bounds constants: unrolled so early that the array is registers only. */
#ifdef __clang__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* x in every lane; taking away +0 changes no value, not even -0. */
static inline vector vector_of(float x)
{
    return x - (vector){0};
}

/* The values of the lower, or the upper, halves of a and b in turn. The compilers want the lanes' numbers as constants.
 */
#if SIMD_BYTES == 64
#define SIMD_LOW_LANES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SIMD_HIGH_LANES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif SIMD_BYTES == 32
#define SIMD_LOW_LANES 0, 8, 1, 9, 2, 10, 3, 11
#define SIMD_HIGH_LANES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define SIMD_LOW_LANES 0, 4, 1, 5
#define SIMD_HIGH_LANES 2, 6, 3, 7
#endif

static inline vector vector_interleave_low(vector a, vector b)
{
    return __builtin_shufflevector(a, b, SIMD_LOW_LANES);
}

static inline vector vector_interleave_high(vector a, vector b)
{
    return __builtin_shufflevector(a, b, SIMD_HIGH_LANES);
}

#endif
