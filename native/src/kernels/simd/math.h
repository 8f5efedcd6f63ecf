/* expf, tanhf and coshf of a vector, with the bits of the platform's libm where that is a glibc from 2.28 to 2.40 on
 * x86-64 (kernels/libm.h tells). gelu.c and softmax.c call them; `starpullm doctor --prove-libm` compares all 2^32
 * inputs.
 *
 * A result has the bits of the scalar function if it is rounded to the same binary32 at every step that can be seen in
 * it. So each function goes the way of the C library's: the same reduced argument, the same table and coefficients,
 * the same order of operations. Branches become lane by lane selections; where two of them give the same bits, there is
 * one. A NaN gives a NaN of any payload. */
#ifndef STARPULLM_SIMD_MATH_H
#define STARPULLM_SIMD_MATH_H

#include "kernels/simd/vector.h"

/* As many doubles, or integers of their size, as a vector has floats: two registers. */
typedef double vector_wide __attribute__((vector_size(2 * SIMD_BYTES), may_alias));
typedef int64_t vector_wide_int __attribute__((vector_size(2 * SIMD_BYTES), may_alias));

/* Where mask (all ones or all zeros in every lane) is set, a; else b. */
static inline __attribute__((always_inline)) vector vector_select(vector_int mask, vector a, vector b)
{
    return (vector)((mask & (vector_int)a) | (~mask & (vector_int)b));
}

static inline __attribute__((always_inline)) vector vector_abs(vector x)
{
    return (vector)((vector_int)x & INT32_MAX);
}

/* |x| with the sign of `sign`. */
static inline __attribute__((always_inline)) vector vector_copy_sign(vector x, vector sign)
{
    return (vector)(((vector_int)x & INT32_MAX) | ((vector_int)sign & INT32_MIN));
}

/* 2^k, k a normal exponent. */
static inline __attribute__((always_inline)) vector vector_exp2_int(vector_int k)
{
    return (vector)((k + 127) << 23);
}

/* The bits of 2^(j/32), less j << 47, which a whole k/32 = n + j/32 puts back and n on top of it. */
static const int64_t exp2_table[32] = {
    0x3ff0000000000000, 0x3fefd9b0d3158574, 0x3fefb5586cf9890f, 0x3fef9301d0125b51, 0x3fef72b83c7d517b,
    0x3fef54873168b9aa, 0x3fef387a6e756238, 0x3fef1e9df51fdee1, 0x3fef06fe0a31b715, 0x3feef1a7373aa9cb,
    0x3feedea64c123422, 0x3feece086061892d, 0x3feebfdad5362a27, 0x3feeb42b569d4f82, 0x3feeab07dd485429,
    0x3feea47eb03a5585, 0x3feea09e667f3bcd, 0x3fee9f75e8ec5f74, 0x3feea11473eb0187, 0x3feea589994cce13,
    0x3feeace5422aa0db, 0x3feeb737b0cdc5e5, 0x3feec49182a3f090, 0x3feed503b23e255d, 0x3feee89f995ad3ad,
    0x3feeff76f2fb5e47, 0x3fef199bdd85529c, 0x3fef3720dcef9069, 0x3fef5818dcfba487, 0x3fef7c97337b9b5f,
    0x3fefa4afa2a490da, 0x3fefd0765b6e4540,
};

/* e^x = 2^(k/32) * 2^(r/32), k whole and |r| <= 1/2, in double; the second factor is a cubic polynomial of r.
 *
 * glibc has an expf with fused multiply-add and one without, chosen by CPU, whose floats differ for two x; this is the
 * first. Only one of its fused operations matters, r = x * 32/ln2 - k: with 32/ln2 in two parts whose products with a
 * float are exact it is rounded once without fusing. */
static inline __attribute__((always_inline)) vector vector_expf(vector x)
{
    const double per_ln2_high = 0x1.7154765p+5, per_ln2_low = 0x1.5c17fp-26; /* 32/ln2 */
    const double round = 0x1.8p+52;                                         /* adding it leaves a whole number */
    const double c1 = 0x1.62e42ff0c52d6p-6, c2 = 0x1.ebfce50fac4f3p-13, c3 = 0x1.c6af84b912394p-20;
    /* Beyond these e^x is 0 or infinity; a NaN stays. */
    x = vector_select(x > 89.0f, vector_of(89.0f), x);
    x = vector_select(x < -104.0f, vector_of(-104.0f), x);
    const vector_wide wide = __builtin_convertvector(x, vector_wide);
    const vector_wide quotient = wide * per_ln2_high;
    const vector_wide rounded = quotient + round;
    const vector_wide r = (quotient - (rounded - round)) + wide * per_ln2_low;
    /* rounded's low bits are k's. */
    const vector_wide_int k = (vector_wide_int)rounded;
    vector_wide_int power;
    for (int i = 0; i < LANES; i++)
        power[i] = exp2_table[k[i] & 31];
    power += k << 47;
    const vector_wide y = (((c3 * r + c2) * r + c1) * r + 1.0) * (vector_wide)power;
    return __builtin_convertvector(y, vector);
}

/* e^x - 1 = 2^k * (e^r - 1) + (2^k - 1) in float. -e^r's part beyond r is `less`: e^r - 1 = r - less. */
static inline __attribute__((always_inline)) vector expm1_less(vector r, vector correction)
{
    const float q1 = -0x1.111112p-5f, q2 = 0x1.a01a02p-10f, q3 = -0x1.4ce19ap-14f, q4 = 0x1.0cfca8p-18f,
                q5 = -0x1.afdb76p-23f;
    const vector half = 0.5f * r, square = r * half;
    const vector r1 = 1.0f + square * (q1 + square * (q2 + square * (q3 + square * (q4 + square * q5))));
    const vector t = 3.0f - r1 * half;
    const vector e = square * ((r1 - t) / (6.0f - r * t));
    return (r * (e - correction) - correction) - square;
}

static inline __attribute__((always_inline)) vector vector_tanhf(vector x)
{
    const float ln2_high = 0x1.62e3p-1f, ln2_low = 0x1.2fefa2p-17f, per_ln2 = 0x1.715476p+0f;
    const vector a = vector_abs(x);
    const vector_int big = a >= 1.0f;
    /* Twice |x|, which from 20 on gives 1 (and for a NaN whatever it gives), positive if big. */
    vector y = a + a;
    y = vector_select(y < 20.0f, y, vector_of(20.0f));
    y = (vector)((vector_int)y ^ (~big & INT32_MIN));
    /* expm1f */
    const vector_int k = __builtin_convertvector(y * per_ln2 + vector_copy_sign(vector_of(0.5f), y), vector_int);
    const vector whole = __builtin_convertvector(k, vector);
    const vector high = y - whole * ln2_high, low = whole * ln2_low;
    const vector r = high - low;
    const vector correction = (high - r) - low;
    const vector scale = vector_exp2_int(k);
    const vector one = vector_of(1.0f), zero = vector_of(0.0f);
    const vector_int less_than_half = k < -1;
    const vector before = vector_select(big, 1.0f - vector_exp2_int(-k), vector_select(less_than_half, one, zero));
    const vector after = vector_select(big, zero, vector_select(less_than_half, -one, scale - 1.0f));
    const vector t = ((r - expm1_less(r, correction)) + before) * scale + after;
    /* */
    const vector q = vector_select(big, vector_of(2.0f), t) / (t + 2.0f);
    const vector tanh = vector_copy_sign(vector_select(big, 1.0f - q, q), x);
    return vector_select(x == x, tanh, x + x);
}

static inline __attribute__((always_inline)) vector vector_coshf(vector x)
{
    const vector a = vector_abs(x);
    const vector_int small = a < 0x1.62e43p-2f, large = a >= 0x1.62e3p+6f;
    const vector e = vector_expf(vector_select(large, 0.5f * a, a));
    const vector t = a - expm1_less(a, vector_of(0.0f));
    const vector w = 1.0f + t;
    const vector q = vector_select(small, t * t, vector_of(0.5f)) / vector_select(small, w + w, e);
    const vector h = 0.5f * e;
    return vector_select(large, h * e, vector_select(small, vector_of(1.0f), h) + q);
}

#endif
