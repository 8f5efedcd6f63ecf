/* The micro-kernel: the product of a micro-panel of A (MR rows) and one of B (NR columns), whose MR x NR sums stay in
 * vector registers. Every matrix product of this folder is built from it.
 *
 * c[i,j] = sum over p ascending of a[i,p] * b[p,j]. Columns j are the lanes, so a sum is never spread over lanes. A sum
 * starts from `initial` or from C and takes its terms in order; it is split along k only by storing and reloading C. */
#pragma once

#include <stddef.h>

#include "kernels/simd/prefetch.h"
#include "kernels/simd/vector.h"

/* MR rows and NR_VECTORS vectors of columns, as native/CMakeLists.txt chooses them for each level. With three operands
 * an instruction leaves its factors as they are, so the sums take what one step's NR_VECTORS vectors of b, one value
 * of a and one term leave of the registers. SSE2 has two operands: each product overwrites a copy of b's vector, which
 * is loaded for it and needs no register between products; a broadcast takes two instructions, so fewer rows are
 * better (3 x 4 was measured to be 1.0 to 1.2 times as fast as 6 x 2 and 4 x 3 at GPT-2's sizes, 2-core virtual AMD
 * EPYC). The preprocessor needs the numbers. */
#define MR SIMD_ROWS
#define NR_VECTORS SIMD_VECTORS
enum { NR = NR_VECTORS * LANES };
_Static_assert(MR *NR_VECTORS + 2 <= SIMD_REGISTERS, "the sums of a micro-tile, a value of a and a term fit");

/* c (m,n) += a (m,k) * b (k,n), with m <= MR and n <= NR. */
struct product {
    float *c; /* rows ldc apart */
    size_t ldc;
    const float *initial; /* (m): what each row's sums start from; NULL: c's present values */
    const float *a;       /* a[i,p] is a[i * rs_a + p * cs_a] */
    size_t rs_a, cs_a;
    const float *b; /* rows ldb apart, rounded_up(n, LANES) values in each */
    size_t ldb;
    size_t m, n, k;
    struct prefetch_lines prefetch;
};

/* `initial` of sums that start from zero. */
extern const float SIMD_NAME(zeros)[MR];

/* a is row-major (cs_a = 1) or a packed micro-panel (rs_a = 1, cs_a = MR). */
void SIMD_NAME(microkernel)(const struct product *product);

/* The same with terms (a[i,p] * b[p,j]) * scale, or without a scale, which in a fused sum isn't a scale of 1: the
 * product is then not rounded before it is added. */
#define UNSCALED 0.0f
void SIMD_NAME(microkernel_scaled)(const struct product *product, float scale);

/* Which p < m row i's sum takes. */
enum triangle { UP_TO_ROW /* p <= i */, FROM_ROW /* p >= i */ };

/* The same over a triangle of a, with any strides; k is m, and b a packed micro-panel. */
void SIMD_NAME(microkernel_triangular)(const struct product *product, enum triangle triangle, float scale);
