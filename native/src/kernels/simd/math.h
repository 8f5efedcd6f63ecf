/* The elementary functions of a vector: kernels/elementary/fast.h for this level. */
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif
#include <stdbool.h>

#include "kernels/elementary/scalar.h"
#include "kernels/simd/vector.h"

/* As many doubles, or integers of their size, as a vector has floats: two registers. */
typedef double vector_wide __attribute__((vector_size(2 * SIMD_BYTES), may_alias));
typedef uint64_t vector_wide_bits __attribute__((vector_size(2 * SIMD_BYTES), may_alias));

SIMD_INLINE vector vector_abs(vector x)
{
    return (vector)((vector_int)x & INT32_MAX);
}

/* |x| with the sign of `sign`. */
SIMD_INLINE vector vector_copy_sign(vector x, vector sign)
{
    return (vector)(((vector_int)x & INT32_MAX) | ((vector_int)sign & INT32_MIN));
}

/* *bits = exp2_table's elements at the lowest five bits of *k. */
#if SIMD_BYTES == 64 && !defined(__clang__)
/* The whole table in registers: two lookups among sixteen values, and the fifth bit chooses. */
typedef uint64_t vector_eight __attribute__((vector_size(64), aligned(8), may_alias));

SIMD_INLINE vector_eight exp2_eight(vector_eight k)
{
    const vector_eight *const table = (const vector_eight *)exp2_table;
    const vector_eight lower = __builtin_shuffle(table[0], table[1], k),
                       upper = __builtin_shuffle(table[2], table[3], k);
    return (vector_eight)_mm512_mask_blend_epi64(_mm512_test_epi64_mask((__m512i)k, _mm512_set1_epi64(16)),
                                                 (__m512i)lower, (__m512i)upper);
}

SIMD_INLINE void vector_look_up(vector_wide_bits *bits, const vector_wide_bits *k)
{
    vector_eight halves[2];
    memcpy(halves, k, sizeof halves);
    halves[0] = exp2_eight(halves[0]);
    halves[1] = exp2_eight(halves[1]);
    memcpy(bits, halves, sizeof halves);
}
#else
SIMD_INLINE void vector_look_up(vector_wide_bits *bits, const vector_wide_bits *k)
{
    for (int i = 0; i < LANES; i++)
        (*bits)[i] = exp2_table[(*k)[i] & 31];
}
#endif

#define REAL vector
#define WIDE vector_wide
#define WIDE_BITS vector_wide_bits
#define TO_WIDE(x) __builtin_convertvector(x, vector_wide)
#define TO_REAL(y) __builtin_convertvector(y, vector)
#define BITS_OF(y) ((vector_wide_bits)(y))
#define WIDE_OF(bits) ((vector_wide)(bits))
#define ALL(x) vector_of(x)
#define ABS(x) vector_abs(x)
#define COPY_SIGN(x, sign) vector_copy_sign(x, sign)
#define SELECT(condition, x, y) vector_select(condition, x, y)
#define LOOK_UP(bits, k) vector_look_up(bits, k)
#define NAME(f) fast_vector_##f
#define INLINE SIMD_INLINE
#include "kernels/elementary/fast.h"

/* Whether any element's sign bit is set. */
SIMD_INLINE bool vector_any(const vector_wide_bits *bits)
{
#if SIMD_BYTES == 64
    const __m512i *const halves = (const __m512i *)bits;
    return _mm512_movepi64_mask(halves[0] | halves[1]) != 0;
#elif SIMD_BYTES == 32
    const __m256i *const halves = (const __m256i *)bits;
    return _mm256_movemask_pd((__m256d)(halves[0] | halves[1])) != 0;
#elif defined(__SSE2__)
    const __m128i *const halves = (const __m128i *)bits;
    return _mm_movemask_pd((__m128d)(halves[0] | halves[1])) != 0;
#else
    return ((*bits)[0] | (*bits)[1] | (*bits)[2] | (*bits)[3]) >> 63;
#endif
}

/* function(x) of each lane. */
static __attribute__((noinline, cold)) vector vector_lane_by_lane(vector x, float (*function)(float))
{
    for (int i = 0; i < LANES; i++)
        x[i] = function(x[i]);
    return x;
}

SIMD_INLINE vector vector_expf(vector x)
{
    vector_wide_bits unsure;
    const vector e = fast_vector_expf(&unsure, x);
    if (__builtin_expect(vector_any(&unsure), 0))
        return vector_lane_by_lane(x, cr_expf);
    return e;
}

SIMD_INLINE vector vector_tanhf(vector x)
{
    vector_wide_bits unsure;
    const vector t = fast_vector_tanhf(&unsure, x);
    if (__builtin_expect(vector_any(&unsure), 0))
        return vector_lane_by_lane(x, cr_tanhf);
    return t;
}

SIMD_INLINE vector vector_coshf_tanhf(vector *tanhf, vector x)
{
    vector_wide_bits unsure;
    vector t;
    const vector c = fast_vector_coshf_tanhf(&unsure, &t, x);
    if (__builtin_expect(vector_any(&unsure), 0)) {
        *tanhf = vector_lane_by_lane(x, cr_tanhf);
        return vector_lane_by_lane(x, cr_coshf);
    }
    *tanhf = t;
    return c;
}
