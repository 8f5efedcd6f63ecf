/* The part of a softmax that attention.c and softmax.c share.
 * Both call it once per row. */
#ifndef STARPULLM_KERNELS_REF_SOFTMAX_H
#define STARPULLM_KERNELS_REF_SOFTMAX_H

#include <stddef.h>

/* e[i] = expf(x[i] - mx), mx being the largest x, starting from -10000. Returns the ordered sum over i from 0 of
 * e[i]. */
float softmax_exponentials(float *e, const float *x, size_t count);

#endif
