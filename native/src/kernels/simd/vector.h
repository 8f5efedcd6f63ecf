/* The vector type of the level that a file of this folder is being compiled for, in the compiler's own vector
 * extensions. Every file here is compiled once per level (native/CMakeLists.txt), with SIMD_LEVEL the level's name,
 * SIMD_BYTES the width of a vector and SIMD_REGISTERS the number of vector registers; SIMD_NAME(f) is f's name at this
 * level. Lanes go across outputs, never along a sum (docs/numerics.md, Rules). */
#ifndef STARPULLM_VECTOR_H
#define STARPULLM_VECTOR_H

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

/* What turns squares over, within quads of four lanes, which processors permute fastest: of each quad of a and the same
 * of b, values 0 and 1 in turn, or 2 and 3; the pair 0 and 1 of both, or 2 and 3. Then whole quads: the even ones of a
 * and of b, or the odd ones. The compilers want the lanes' numbers as constants. */
#if SIMD_BYTES == 64
#define SIMD_VALUES_01 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define SIMD_VALUES_23 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define SIMD_PAIRS_01 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define SIMD_PAIRS_23 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define SIMD_EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define SIMD_ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif SIMD_BYTES == 32
#define SIMD_VALUES_01 0, 8, 1, 9, 4, 12, 5, 13
#define SIMD_VALUES_23 2, 10, 3, 11, 6, 14, 7, 15
#define SIMD_PAIRS_01 0, 1, 8, 9, 4, 5, 12, 13
#define SIMD_PAIRS_23 2, 3, 10, 11, 6, 7, 14, 15
#define SIMD_EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11
#define SIMD_ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define SIMD_VALUES_01 0, 4, 1, 5
#define SIMD_VALUES_23 2, 6, 3, 7
#define SIMD_PAIRS_01 0, 1, 4, 5
#define SIMD_PAIRS_23 2, 3, 6, 7
#endif

#endif
