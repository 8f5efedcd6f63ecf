/* The elementary functions where rounding needs more digits than double has: in a pair of doubles, a value and its
 * error, 106 bits together. It is for the few arguments that kernels/elementary/fast.h can't decide.
 *
 * Products are split by Dekker's method, sums by Knuth's (Numerische Mathematik 18, 1971; The Art of Computer
 * Programming 2, 4.2.2). They need no fused multiply-add, and none that a compiler puts in: -ffp-contract=off. */
#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* high + low, |low| at most half a unit in the last place of high. */
struct pair {
    double high, low;
};

union double_bits {
    double value;
    uint64_t bits;
};

static inline struct pair pair_sum(double a, double b)
{
    const double sum = a + b, b_part = sum - a, a_part = sum - b_part;
    return (struct pair){sum, (a - a_part) + (b - b_part)};
}

static inline struct pair pair_product(double a, double b)
{
    const double splitter = 0x1p27 + 1;
    const double product = a * b, a_far = splitter * a, b_far = splitter * b;
    const double a_high = a_far - (a_far - a), b_high = b_far - (b_far - b), a_low = a - a_high, b_low = b - b_high;
    return (struct pair){product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

static inline struct pair pair_add(struct pair a, struct pair b)
{
    const struct pair high = pair_sum(a.high, b.high), low = pair_sum(a.low, b.low);
    const struct pair sum = pair_sum(high.high, high.low + low.high);
    return pair_sum(sum.high, sum.low + low.low);
}

static inline struct pair pair_multiply(struct pair a, struct pair b)
{
    const struct pair product = pair_product(a.high, b.high);
    return pair_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

static inline struct pair pair_negative(struct pair a)
{
    return (struct pair){-a.high, -a.low};
}

static inline struct pair pair_divide(struct pair a, struct pair b)
{
    const double first = a.high / b.high;
    const struct pair rest = pair_add(a, pair_negative(pair_multiply((struct pair){first, 0.0}, b)));
    return pair_sum(first, (rest.high + rest.low) / b.high);
}

/* The binary32 number nearest to x, ties to even. x is rounded to odd at first: the last bit of a double that isn't
 * exact is set, so that no double is a tie which x isn't. */
static inline float pair_round(struct pair x)
{
    union double_bits odd = {.value = x.high};
    if (x.low != 0.0 && !(odd.bits & 1))
        odd.bits += (x.low > 0.0) == (x.high > 0.0) ? 1 : UINT64_MAX;
    return (float)odd.value;
}

/* 2^k, -1022 <= k <= 1023. */
static inline double power_of_two(int k)
{
    return (union double_bits){.bits = (uint64_t)(k + 1023) << 52}.value;
}

static inline struct pair pair_scale(struct pair x, int k)
{
    return (struct pair){x.high * power_of_two(k), x.low * power_of_two(k)};
}

/* e^x - 1 for |x| < 700: 2^k * (e^r - 1) + (2^k - 1), |r| <= ln2/2, and e^r - 1 by its series. */
static inline struct pair pair_expm1(struct pair x)
{
    const struct pair ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56}, one = {1.0, 0.0};
    const double halves = x.high * 0x1.71547652b82fep+0, shift = 0x1.8p+52;
    const double whole = (halves + shift) - shift;
    const struct pair r = pair_add(x, pair_negative(pair_multiply((struct pair){whole, 0.0}, ln2)));
    enum { TERMS = 26 };
    struct pair series = one;
    for (int n = TERMS; n > 1; n--)
        series = pair_add(one, pair_divide(pair_multiply(r, series), (struct pair){n, 0.0}));
    const int k = (int)whole;
    return pair_add(pair_scale(pair_multiply(r, series), k), pair_sum(power_of_two(k), -1.0));
}

/* The logarithm of a double > 0, from one that is nearly as good as double allows: log x = y + log(x / e^y), and of the
 * second logarithm's series two terms. */
static inline struct pair pair_log(double x, double y)
{
    const struct pair expm1 = pair_expm1((struct pair){y, 0.0});
    const struct pair rest = pair_add(pair_sum(x, -1.0), pair_negative(expm1));
    const struct pair ratio = pair_divide(rest, pair_add(expm1, (struct pair){1.0, 0.0}));
    return pair_add((struct pair){y, 0.0}, pair_add(ratio, (struct pair){-0.5 * ratio.high * ratio.high, 0.0}));
}

/* ---- The functions ---- */

static inline float exact_expf(float x)
{
    if (isnan(x) || x > 89.0f || x < -104.0f) /* beyond these the result overflows, or is 0 */
        return isnan(x) ? x : x > 0.0f ? INFINITY : 0.0f;
    return pair_round(pair_add(pair_expm1((struct pair){(double)x, 0.0}), (struct pair){1.0, 0.0}));
}

/* t / (t + 2), t = e^(2x) - 1. */
static inline float exact_tanhf(float x)
{
    if (!(x < 10.0f && x > -10.0f))
        return isnan(x) ? x : x > 0.0f ? 1.0f : -1.0f;
    if (x == 0.0f)
        return x;
    const struct pair t = pair_expm1((struct pair){2.0 * (double)x, 0.0});
    return pair_round(pair_divide(t, pair_add(t, (struct pair){2.0, 0.0})));
}

/* (e + 1/e) / 2, e = e^|x|. */
static inline float exact_coshf(float x)
{
    if (!(x < 90.0f && x > -90.0f))
        return isnan(x) ? x : INFINITY;
    const struct pair one = {1.0, 0.0}, e = pair_add(pair_expm1((struct pair){(double)x, 0.0}), one);
    return pair_round(pair_scale(pair_add(e, pair_divide(one, e)), -1));
}
