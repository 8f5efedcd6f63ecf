/* The reference kernels: each as plain as its formula in docs/numerics.md, to be read beside it. Every other kernel is
 * held to their bits; they are held to those of golden records and of a transcription in NumPy.
 *
 * A thread computes its share of the outermost independent outputs; nothing else here is about speed. */
#pragma once

#include "kernels/elementary/scalar.h"
#include "kernels/kernels.h"

#define KERNEL(name, parameters) void name##_ref parameters;
#include "kernels/kernels.def"

/* What an accumulation adds its first term to. */
static inline float present(enum sum_start start, const float *value)
{
    return start == SUM_FROM_ZERO ? 0.0f : *value;
}
