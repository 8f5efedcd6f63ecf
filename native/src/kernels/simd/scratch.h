/* Memory for packed operands: one block per thread, kept until the thread ends. */
#pragma once

#include <stddef.h>

/* This thread's block, of at least `count` floats; it begins on a page. Its contents are undefined, and the block of an
 * earlier call may be freed. NULL: out of memory. */
float *kernels_scratch(size_t count);
