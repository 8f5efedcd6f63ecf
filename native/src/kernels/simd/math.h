/* expf, tanhf and coshf of a vector, with the bits of glibc 2.36's on x86-64; kernels/libm.h tells whether the
 * platform's libm has the same.
 *
 * These functions aren't correctly rounded, so their bits are those of one way to compute them: the same reduced
 * argument, table and coefficients, and the same order wherever that can be seen in the result. Branches become
 * selections lane by lane; where two of them give the same bits, there is one. A NaN gives a NaN of any payload. */
#pragma once

#include <math.h>

#include "kernels/simd/vector.h"

/* As many doubles, or integers of their size, as a vector has floats: two registers. */
typedef double vector_wide __attribute__((vector_size(2 * SIMD_BYTES), may_alias));
typedef uint64_t vector_wide_bits __attribute__((vector_size(2 * SIMD_BYTES), may_alias));

/* Unsigned, for what may wrap around. */
typedef uint32_t vector_bits __attribute__((vector_size(SIMD_BYTES), may_alias));

/* Where mask (all ones or all zeros in every lane) is set, a; else b. */
SIMD_INLINE vector vector_select(vector_int mask, vector a, vector b)
{
    return (vector)((mask & (vector_int)a) | (~mask & (vector_int)b));
}

SIMD_INLINE vector vector_abs(vector x)
{
    return (vector)((vector_int)x & INT32_MAX);
}

/* |x| with the sign of `sign`. */
SIMD_INLINE vector vector_copy_sign(vector x, vector sign)
{
    return (vector)(((vector_int)x & INT32_MAX) | ((vector_int)sign & INT32_MIN));
}

/* The bits of 2^(j/32), less j << 47, which a whole k/32 = n + j/32 puts back and n on top of it. */
static const uint64_t exp2_table[32] = {
    0x3ff0000000000000, 0x3fefd9b0d3158574, 0x3fefb5586cf9890f, 0x3fef9301d0125b51, 0x3fef72b83c7d517b,
    0x3fef54873168b9aa, 0x3fef387a6e756238, 0x3fef1e9df51fdee1, 0x3fef06fe0a31b715, 0x3feef1a7373aa9cb,
    0x3feedea64c123422, 0x3feece086061892d, 0x3feebfdad5362a27, 0x3feeb42b569d4f82, 0x3feeab07dd485429,
    0x3feea47eb03a5585, 0x3feea09e667f3bcd, 0x3fee9f75e8ec5f74, 0x3feea11473eb0187, 0x3feea589994cce13,
    0x3feeace5422aa0db, 0x3feeb737b0cdc5e5, 0x3feec49182a3f090, 0x3feed503b23e255d, 0x3feee89f995ad3ad,
    0x3feeff76f2fb5e47, 0x3fef199bdd85529c, 0x3fef3720dcef9069, 0x3fef5818dcfba487, 0x3fef7c97337b9b5f,
    0x3fefa4afa2a490da, 0x3fefd0765b6e4540,
};

/* power = the table's values at the lowest five bits of k. */
#if SIMD_BYTES == 64 && !defined(__clang__)
/* The whole table in registers: two lookups among sixteen values, and the fifth bit chooses. */
typedef uint64_t vector_eight __attribute__((vector_size(64), aligned(8), may_alias));

SIMD_INLINE vector_eight exp2_eight(vector_eight k)
{
    const vector_eight *const table = (const vector_eight *)exp2_table;
    const vector_eight lower = __builtin_shuffle(table[0], table[1], k),
                       upper = __builtin_shuffle(table[2], table[3], k);
    const vector_eight is_upper = (vector_eight)((k & 16) != 0);
    return (is_upper & upper) | (~is_upper & lower);
}

SIMD_INLINE void exp2_look_up(vector_wide_bits *power, const vector_wide_bits *k)
{
    vector_eight halves[2];
    memcpy(halves, k, sizeof halves);
    halves[0] = exp2_eight(halves[0]);
    halves[1] = exp2_eight(halves[1]);
    memcpy(power, halves, sizeof halves);
}
#else
SIMD_INLINE void exp2_look_up(vector_wide_bits *power, const vector_wide_bits *k)
{
    for (int i = 0; i < LANES; i++)
        (*power)[i] = exp2_table[(*k)[i] & 31];
}
#endif

/* e^x = 2^(k/32) * 2^(r/32), k whole and |r| <= 1/2, in double; the second factor is a cubic polynomial of r.
 *
 * glibc has an expf with fused multiply-add and one without, chosen by CPU, whose results differ for two x; this is the
 * first. Only one of its fused operations matters, r = x * 32/ln2 - k: with 32/ln2 in two parts whose products with a
 * float are exact it is rounded once without fusing. */
SIMD_INLINE vector vector_expf(vector x)
{
    const double per_ln2_high = 0x1.7154765p+5, per_ln2_low = 0x1.5c17fp-26; /* 32/ln2 */
    const double shift = 0x1.8p+52; /* what is added to it loses its fraction and has a whole part in its low bits */
    const double c1 = 0x1.62e42ff0c52d6p-6, c2 = 0x1.ebfce50fac4f3p-13, c3 = 0x1.c6af84b912394p-20;
    const vector_wide wide = __builtin_convertvector(x, vector_wide);
    const vector_wide quotient = wide * per_ln2_high;
    const vector_wide shifted = quotient + shift;
    const vector_wide r = (quotient - (shifted - shift)) + wide * per_ln2_low;
    const vector_wide_bits k = (vector_wide_bits)shifted;
    vector_wide_bits power;
    exp2_look_up(&power, &k);
    power += k << 47;
    const vector_wide y = (((c3 * r + c2) * r + c1) * r + 1.0) * (vector_wide)power;
    const vector e = __builtin_convertvector(y, vector);
    /* Beyond these k doesn't fit; a NaN is neither and stays. */
    const vector_int underflow = x < -104.0f, overflow = x > 89.0f;
    return vector_select(overflow, vector_of(INFINITY), (vector)(~underflow & (vector_int)e));
}

/* e^r - 1 = r - expm1_rest(r, error) for a small r that stands for r + error; in float, as all that follows. */
SIMD_INLINE vector expm1_rest(vector r, vector error)
{
    const float q1 = -0x1.111112p-5f, q2 = 0x1.a01a02p-10f, q3 = -0x1.4ce19ap-14f, q4 = 0x1.0cfca8p-18f,
                q5 = -0x1.afdb76p-23f;
    const vector half = 0.5f * r, square = r * half;
    const vector r1 = 1.0f + square * (q1 + square * (q2 + square * (q3 + square * (q4 + square * q5))));
    const vector t = 3.0f - r1 * half;
    const vector e = square * ((r1 - t) / (6.0f - r * t));
    return (r * (e - error) - error) - square;
}

/* By t = e^y - 1: for |x| >= 1 y = 2|x| and 1 - 2/(t + 2), else y = -2|x| and -t/(t + 2); with the sign of x.
 *
 * t = 2^k * (e^r - 1) + (2^k - 1), where y = k * ln2 + r; the second part is added in the order that keeps most digits:
 * before the multiplication by 2^k, after it, or in parts, by the range of y. */
SIMD_INLINE vector vector_tanhf(vector x)
{
    const float ln2_high = 0x1.62e3p-1f, ln2_low = 0x1.2fefa2p-17f, per_ln2 = 0x1.715476p+0f, shift = 0x1.8p+23f;
    const vector a = vector_abs(x);
    const vector_int middle = a >= 0x1.0a2b24p-1f, big = a >= 1.0f; /* middle, up to 1: k < -1 */
    const vector y = (vector)((vector_int)(a + a) ^ (~big & INT32_MIN));
    const vector shifted = y * per_ln2 + shift;
    const vector whole = shifted - shift;
    const vector_bits k = (vector_bits)shifted << 23;
    const vector high = y - whole * ln2_high, low = whole * ln2_low;
    const vector r = high - low;
    const vector error = (high - r) - low;
    const vector_bits one = (vector_bits)vector_of(1.0f);
    const vector scale = (vector)(one + k), inverse = (vector)(one - k);
    /* k >= 2: 1 - 2^-k before, 0 after; k < -1: 1 before, -1 after; k = -1 or 0: 0 before, 2^k - 1 after. */
    const vector before = (vector)(middle & (vector_int)(1.0f - (vector)(big & (vector_int)inverse)));
    const vector after = (vector)(~big & (vector_int)((vector)(~middle & (vector_int)scale) - 1.0f));
    const vector t = ((r - expm1_rest(r, error)) + before) * scale + after;
    const vector q = vector_select(big, vector_of(2.0f), t) / (t + 2.0f);
    const vector tanh = (vector)(big & (vector_int)one) - q;
    /* From about 9 on it is 1, also where k didn't fit; a NaN stays. */
    return vector_copy_sign(vector_select(a >= 10.0f, vector_of(1.0f), tanh), x);
}

/* For |x| < ln2/2 1 + t*t/(2 + 2t), t = e^|x| - 1; else e/2 + 1/(2e), e = e^|x|; and where e would overflow, by the
 * root of e. */
SIMD_INLINE vector vector_coshf(vector x)
{
    const vector a = vector_abs(x);
    const vector_int small = a < 0x1.62e43p-2f, large = a >= 0x1.62e3p+6f;
    const vector e = vector_expf(vector_select(large, 0.5f * a, a));
    const vector t = a - expm1_rest(a, vector_of(0.0f));
    const vector w = 1.0f + t;
    const vector q = vector_select(small, t * t, vector_of(0.5f)) / vector_select(small, w + w, e);
    const vector h = 0.5f * e;
    return vector_select(large, h * e, vector_select(small, vector_of(1.0f), h) + q);
}
