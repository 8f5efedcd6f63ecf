/* The vector type of the level that a file of this folder is being compiled for, in the compiler's own vector
 * extensions. Every file here is compiled once per level (native/CMakeLists.txt), and those of sums of products
 * once more for fused ones, with SIMD_LEVEL the level's name, such as avx2 or avx2_fused, SIMD_BYTES the width of a
 * vector, SIMD_REGISTERS the number of vector registers, and SIMD_ROWS and SIMD_VECTORS the size of a micro-tile;
 * SIMD_NAME(f) is f's name at this level. Lanes go across outputs, never along a sum (docs/numerics.md, Rules). */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/arithmetic.h"

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

/* For small functions in inner loops: a call would take longer than some of them, and without it the compiler loads
 * constants once per loop. */
#define SIMD_INLINE static inline __attribute__((always_inline))

/* Before a loop over an array of vectors whose bounds are constants: unrolls it so early that the array is kept in
 * registers. */
#ifdef __clang__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* x in every lane; subtracting +0 changes no value, not even -0. */
static inline vector vector_of(float x)
{
    return x - (vector){0};
}

/* The float at x in every lane, broadcast as an integer: on Zen 4 the 512-bit vbroadcastss takes arithmetic pipes,
 * which vpbroadcastd does not (a 12 x 2 micro-kernel 78 and 117 GF/s; vectors of 32 bytes have no such difference). */
SIMD_INLINE vector vector_broadcast(const float *x)
{
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    return (vector)(bits - (vector_int){0});
}

/* Where mask (all ones or all zeros in every lane) is set, a; else b. */
SIMD_INLINE vector vector_select(vector_int mask, vector a, vector b)
{
    return (vector)((mask & (vector_int)a) | (~mask & (vector_int)b));
}

/* MULTIPLY_ADD in each lane. */
SIMD_INLINE vector vector_multiply_add_strict(vector a, vector b, vector sum)
{
    return sum + a * b;
}

/* SIMD_FMA(a, b, sum): the level's instruction, where it has one; no extension of the compiler stands for it. */
SIMD_INLINE vector vector_multiply_add_fused(vector a, vector b, vector sum)
{
#ifdef SIMD_FMA
    return SIMD_FMA(a, b, sum);
#else
    for (int i = 0; i < LANES; i++)
        sum[i] = fmaf(a[i], b[i], sum[i]);
    return sum;
#endif
}
#define VECTOR_MULTIPLY_ADD ARITHMETIC_NAME(vector_multiply_add)

/* ---- Sizes ---- */

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t parts_of(size_t items, size_t part)
{
    return (items + part - 1) / part;
}

/* The smallest multiple of grain that isn't below `items`. */
static inline size_t rounded_up(size_t items, size_t grain)
{
    return parts_of(items, grain) * grain;
}
