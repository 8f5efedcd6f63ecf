/* Memory for packed operands, one block per thread, kept until the thread ends.
 * matmul.c and attention.c call it. */
#ifndef STARPULLM_SIMD_SCRATCH_H
#define STARPULLM_SIMD_SCRATCH_H

#include <stddef.h>

/* This thread's block, of at least `count` floats, on a cache line of its own; what an earlier call left there may be
 * gone. NULL if there is no memory. */
float *kernels_scratch(size_t count);

#endif
