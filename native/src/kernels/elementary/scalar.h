/* expf, tanhf, coshf, logf and powf, correctly rounded: the value of each is the binary32 number nearest to the exact
 * one, ties to even, whatever the machine, compiler and C library. Special values are those of C (Annex F); no flag is
 * meant. */
#pragma once

#include "kernels/elementary/exact.h"
#include "kernels/elementary/table.h"

static inline double wide_of(uint64_t bits)
{
    return (union double_bits){.bits = bits}.value;
}

static inline uint64_t bits_of_wide(double y)
{
    return (union double_bits){.value = y}.bits;
}

#define REAL float
#define WIDE double
#define WIDE_BITS uint64_t
#define TO_WIDE(x) ((double)(x))
#define TO_REAL(y) ((float)(y))
#define BITS_OF(y) bits_of_wide(y)
#define WIDE_OF(bits) wide_of(bits)
#define ALL(x) (x)
#define ABS(x) fabsf(x)
#define COPY_SIGN(x, sign) copysignf(x, sign)
#define SELECT(condition, x, y) ((condition) ? (x) : (y))
#define LOOK_UP(bits, k) (*(bits) = exp2_table[*(k) & 31])
#define NAME(f) fast_##f
#define INLINE static inline
#include "kernels/elementary/fast.h"

static inline float cr_expf(float x)
{
    uint64_t unsure;
    const float result = fast_expf(&unsure, x);
    return unsure >> 63 ? exact_expf(x) : result;
}

static inline float cr_tanhf(float x)
{
    uint64_t unsure;
    const float result = fast_tanhf(&unsure, x);
    return unsure >> 63 ? exact_tanhf(x) : result;
}

static inline float cr_coshf(float x)
{
    uint64_t unsure;
    float tanh;
    const float result = fast_coshf_tanhf(&unsure, &tanh, x);
    return unsure >> 63 ? exact_coshf(x) : result;
}

/* The logarithm of a positive double in double: k ln2 + log m, sqrt(1/2) <= m < sqrt(2), and log m by its series in
 * s = (m - 1)/(m + 1). Error: 2^-50 of it. */
static inline double cr_log_in_double(double x)
{
    const uint64_t sqrt_half = UINT64_C(0x3fe6a09e667f3bcd);
    const uint64_t above = bits_of_wide(x) - sqrt_half;
    const double k = (double)((int64_t)above >> 52);
    const double m = wide_of((above & ((UINT64_C(1) << 52) - 1)) + sqrt_half);
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    double series = 0.0;
    for (int n = 23; n >= 3; n -= 2)
        series = square * (series + 1.0 / n);
    return k * 0x1.62e42fefa39efp-1 + 2.0 * (s + s * series);
}

static inline float cr_logf(float x)
{
    if (!(x > 0.0f && x <= FLT_MAX))
        return x == 0.0f ? -INFINITY : x > 0.0f || isnan(x) ? x : NAN;
    const double log = cr_log_in_double(x);
    uint64_t unsure;
    fast_near_boundary(&unsure, &log, ERROR_BITS);
    return unsure >> 63 ? pair_round(pair_log(x, log)) : (float)log;
}

/* x^y = e^(y log x), of a positive x, both finite. */
static inline float cr_power(double x, double y)
{
    enum { POWER_ERROR_BITS = 11 }; /* |y log x| < 104, in which log's error counts */
    const struct pair one = {1.0, 0.0};
    const double log = cr_log_in_double(x), exponent = y * log;
    if (!(exponent < 89.0 && exponent > -104.0))
        return exponent > 0.0 ? INFINITY : 0.0f;
    double fast, unused;
    fast_exponential(&fast, &unused, &exponent);
    uint64_t unsure;
    fast_near_boundary(&unsure, &fast, POWER_ERROR_BITS);
    if (fast >= (double)FLT_MIN && !(unsure >> 63))
        return (float)fast;
    struct pair power = pair_add(pair_expm1(pair_multiply((struct pair){y, 0.0}, pair_log(x, log))), one);
    /* What is so near to a double is taken for it: the tie 4097^2, for one. */
    if (fabs(power.low) < 0x1p-88 * power.high)
        power.low = 0.0;
    return pair_round(power);
}

static inline float cr_powf(float x, float y)
{
    if (x == 1.0f || y == 0.0f)
        return 1.0f;
    if (isnan(x) || isnan(y))
        return x + y;
    /* From 2^24 on every float is an even number. */
    const bool large = fabsf(y) >= 0x1p24f, whole = large || (float)(int32_t)y == y;
    const bool negative = signbit(x) && whole && !large && ((int32_t)y & 1);
    float power;
    if (x == -1.0f && isinf(y))
        return 1.0f;
    if (x == 0.0f || isinf(x) || isinf(y))
        power = (fabsf(x) > 1.0f) == (y > 0.0f) ? INFINITY : 0.0f;
    else if (x < 0.0f && !whole)
        return NAN;
    else
        power = cr_power(fabs((double)x), (double)y);
    return negative ? -power : power;
}
