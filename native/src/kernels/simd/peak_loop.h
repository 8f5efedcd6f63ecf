/* The loops of kernels/level.h. */
#pragma once

#include "kernels/level.h"
#include "kernels/simd/vector.h"

/* As many independent chains as fit 16 registers beside two operands. A processor that starts two operations in a
 * cycle, each of which takes 3 or 4 cycles, needs 6 or 8. */
enum { PEAK_CHAINS = 14 };

/* Fused multiplications and additions; or products and sums in chains of their own, as in a matmul no product depends
 * on another. */
peak_function SIMD_NAME(peak_chains);

/* The micro-kernel: every load is from the first-level cache, as all rows of a are one row, and all of b. Its products
 * are no chains, so that it may come closer to what the arithmetic pipes can do. */
peak_function SIMD_NAME(peak_microkernel);
