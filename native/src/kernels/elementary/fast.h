/* The elementary functions of docs/numerics.md in double arithmetic, for a scalar and for vectors of any width: expf,
 * tanhf and coshf, correctly rounded.
 *
 * Each result is computed in double, to within an error of 2^-45 of it. Where no boundary between two floats' intervals
 * (the middle of two neighbours) is that near, it is rounded to the right float. Elsewhere, for about one argument in a
 * million, kernels/elementary/exact.h decides.
 *
 * The file that includes this one says what it is for:
 *   REAL                float, or a vector of them
 *   WIDE, WIDE_BITS     double, or as many of them as REAL has floats; uint64_t likewise
 *   TO_WIDE(x), TO_REAL(y), BITS_OF(y), WIDE_OF(bits)   conversions of a value; the same bits as the other type
 *   ALL(x)              the float x as a REAL
 *   ABS(x), COPY_SIGN(x, sign), SELECT(condition, x, y)   of REALs, as fabsf, copysignf and ?: for each element
 *   LOOK_UP(bits, k)    *bits = exp2_table's elements at the lowest five bits of *k
 *   NAME(f), INLINE     the name that function f gets, and how it is declared */

/* Sets the sign bit where *y is so near to a boundary that an error of 2^bits units in its last place matters. On a
 * boundary the last 29 bits of a double are 2^28. */
INLINE void NAME(near_boundary)(WIDE_BITS *near, const WIDE *y, int bits)
{
    const uint64_t width = UINT64_C(1) << bits, middle = UINT64_C(1) << 28, last = (UINT64_C(1) << 29) - 1;
    *near = ((BITS_OF(*y) + (middle + width)) & (last & ~(2 * width - 1))) - 1;
}

/* *exp = e^y and *expm1 = e^y - 1, |y| < 700: e^y = 2^(k/32) * e^(r * ln2/32), k whole and |r| <= 1/2. The second
 * factor, less 1, is a polynomial, whose error is 2^-46.1 of it; that of r is 2^-53 of y * 32/ln2. */
INLINE void NAME(exponential)(WIDE *exp, WIDE *expm1, const WIDE *y)
{
    const double per_ln2 = 0x1.71547652b82fep+5, shift = 0x1.8p+52; /* what is added to shift loses its fraction */
    const double c1 = 0x1.62e42fefa39efp-6, c2 = 0x1.ebfbdff8131c3p-13, c3 = 0x1.c6b08d70400d0p-20,
                 c4 = 0x1.3b2b1bee88b09p-27, c5 = 0x1.5d884e708e6aap-35;
    const WIDE quotient = *y * per_ln2, shifted = quotient + shift;
    const WIDE r = quotient - (shifted - shift);
    const WIDE_BITS k = BITS_OF(shifted);
    WIDE_BITS bits;
    LOOK_UP(&bits, &k);
    const WIDE power = WIDE_OF(bits + (k << 47));
    const WIDE square = r * r;
    const WIDE part = (power * r) * ((c5 * square + (c4 * r + c3)) * square + (c2 * r + c1));
    *exp = power + part;
    *expm1 = (power - 1.0) + part;
}

/* From 89 on it is infinity, below -104 it is 0. Below -87 the result has fewer bits than near_boundary looks at. Of
 * all arguments there (native/tests/kernels/test_elementary.c tries them) one has a result that no double tells from
 * the boundary. */
INLINE REAL NAME(expf)(WIDE_BITS *unsure, REAL x)
{
    const WIDE wide = TO_WIDE(x);
    WIDE e, unused;
    NAME(exponential)(&e, &unused, &wide);
    NAME(near_boundary)(unsure, &e, ERROR_BITS);
    const REAL small = SELECT(x == -0x1.65cf3p+6f, ALL(0x1.edb9cp-130f), TO_REAL(e));
    return SELECT(x > 90.0f, ALL(INFINITY), SELECT(x < -110.0f, ALL(0.0f), small));
}

/* t / (t + 2), t = e^(2|x|) - 1, with x's sign. From 9.02 on it is 1. */
INLINE REAL NAME(tanhf)(WIDE_BITS *unsure, REAL x)
{
    const WIDE twice = TO_WIDE(2.0f * ABS(x));
    WIDE t, unused;
    NAME(exponential)(&unused, &t, &twice);
    const WIDE tanh = t / (t + 2.0);
    NAME(near_boundary)(unsure, &tanh, ERROR_BITS);
    return COPY_SIGN(SELECT(ABS(x) > 10.0f, ALL(1.0f), TO_REAL(tanh)), x);
}

/* Both, with one division: of e = e^|x|, (e^2 + 1) / 2e and (e - 1)(e + 1) / (e^2 + 1). From 89.5 on coshf is infinity.
 */
INLINE REAL NAME(coshf_tanhf)(WIDE_BITS *unsure, REAL *tanhf, REAL x)
{
    const WIDE magnitude = TO_WIDE(ABS(x));
    WIDE e, t;
    WIDE_BITS of_cosh;
    NAME(exponential)(&e, &t, &magnitude);
    const WIDE sum = e * e + 1.0;
    const WIDE inverse = 1.0 / (e * sum);
    const WIDE tanh = t * (e + 1.0) * (e * inverse), cosh = (0.5 * sum) * (sum * inverse);
    NAME(near_boundary)(unsure, &tanh, ERROR_BITS);
    NAME(near_boundary)(&of_cosh, &cosh, ERROR_BITS);
    *unsure |= of_cosh;
    *tanhf = COPY_SIGN(SELECT(ABS(x) > 90.0f, ALL(1.0f), TO_REAL(tanh)), x);
    return SELECT(ABS(x) > 90.0f, ALL(INFINITY), TO_REAL(cosh));
}

#undef REAL
#undef WIDE
#undef WIDE_BITS
#undef TO_WIDE
#undef TO_REAL
#undef BITS_OF
#undef WIDE_OF
#undef ALL
#undef ABS
#undef COPY_SIGN
#undef SELECT
#undef LOOK_UP
#undef NAME
#undef INLINE
