/* The exponentials of a softmax, over the vocabulary or over attention scores. */
#pragma once

#include <stddef.h>

#include "kernels/simd/vector.h"

/* e[i] = expf(x[i] - mx), mx being the largest of x and -10000. Returns the ordered sum of e from 0. e and x
 * don't overlap. `next` (count), if it isn't NULL, is prefetched. */
float SIMD_NAME(softmax_exponentials)(float *e /* (count) */, const float *x /* (count) */, size_t count,
                                      const float *next);
