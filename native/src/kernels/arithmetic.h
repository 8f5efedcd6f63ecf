/* What the compiler has to guarantee so that a kernel has the bits of docs/numerics.md, and what a thread sets for
 * them; a build in which it doesn't is an error. That multiplication and addition aren't fused can't be seen here:
 * native/CMakeLists.txt says -ffp-contract=off, and test_kernels.c would find it. */
#pragma once

#include <fenv.h>
#include <float.h>
#include <math.h>

#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__)
#error "no fast-math option: kernels keep the order of sums, signed zeros, infinities and NaNs"
#endif

#if FLT_EVAL_METHOD != 0
#error "binary32 operations must be rounded to binary32 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
_Static_assert(FLT_RADIX == 2 && FLT_MANT_DIG == 24 && FLT_MAX_EXP == 128, "float is binary32");
_Static_assert(DBL_MANT_DIG == 53 && DBL_MAX_EXP == 1024, "double is binary64");

/* Sets the floating-point environment of numerics.md, whatever the calling thread has; returns that, for fesetenv(). */
static inline fenv_t arithmetic_enter(void)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}

/* ---- The term of a sum of products, in which the two contracts differ: sum + a * b. An object that has such sums is
 *      compiled for one of them: ARITHMETIC is strict or fused. ---- */

#ifndef ARITHMETIC
#define ARITHMETIC strict
#endif
#define ARITHMETIC_JOIN_(name, arithmetic) name##_##arithmetic
#define ARITHMETIC_JOIN(name, arithmetic) ARITHMETIC_JOIN_(name, arithmetic)
#define ARITHMETIC_NAME(name) ARITHMETIC_JOIN(name, ARITHMETIC)

enum { is_fused_strict = 0, is_fused_fused = 1 };
#define IS_FUSED ARITHMETIC_NAME(is_fused)

static inline float multiply_add_strict(float a, float b, float sum)
{
    return sum + a * b;
}

/* An instruction where the object may use one, else a call of libm, which rounds once too, but takes long. */
static inline float multiply_add_fused(float a, float b, float sum)
{
    return fmaf(a, b, sum);
}
#define MULTIPLY_ADD ARITHMETIC_NAME(multiply_add)

/* The vector source (kernels/simd) is written in the compiler's vector extensions; this one is the newest of them. */
#if !defined(__has_builtin)
#error "GCC 12 or later, or Clang"
#elif !__has_builtin(__builtin_shufflevector)
#error "GCC 12 or later, or Clang: there is no __builtin_shufflevector"
#endif
