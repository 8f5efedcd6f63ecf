/* The ordered product's inner loops for this level, and the copies that make their operands: a tile of sums stays in
 * vector registers, each lane one output, while its terms are added one after the other. matmul.c and attention.c build
 * every matrix product from it.
 *
 * A tile is c[r,j] = sum over k ascending of a[r,k] * b[k,j]: rows r meet one value of a, columns j are lanes. Of a,
 * so few values are read that they may lie anywhere. b's may lie apart too; where they don't lie well, they are packed
 * into a panel, which the loop over k reads in order. */
#ifndef STARPULLM_SIMD_TILE_H
#define STARPULLM_SIMD_TILE_H

#include <stddef.h>

#include "kernels/simd/vector.h"

/* As many sums as leave registers for a step's values of b, one of a and a term: of AVX2's 16 registers, or of
 * AVX-512's and NEON's 32. */
enum {
    TILE_ROWS = SIMD_BYTES == 64 ? 12
    : SIMD_BYTES == 32           ? 6
                                 : 8,
    TILE_VECTORS = SIMD_BYTES == 16 ? 3 : 2,
    TILE_COLUMNS = TILE_VECTORS * LANES,
    TILE_DEPTH = 768 /* most steps between two stores of the running sums: a tile's rows of a stay in the first-level
                        cache while b comes from the second */
};

/* Cache lines that are asked for while a tile is computed, one with each of its first steps, since of many at one time
 * the processor forgets most: `count` of them in rows of `length` floats, lda apart, from `first`, whose row ends at
 * row_end. */
struct lines {
    const float *first, *row_end;
    size_t count, length, lda;
};

/* c (rows,columns) of at most a tile, starting from initial[r], or from c's present value if initial is NULL. a's value
 * of row r and step k is a[r * a_row + k * a_step], and one of the two distances is 1. b's is b[k * ldb + j], and there
 * are whole vectors of them. */
void SIMD_NAME(tile_product)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row, size_t a_step,
                             const float *b, size_t ldb, size_t rows, size_t columns, size_t depth,
                             const struct lines *ahead);

/* The same with terms (a[r,k] * b[k,j]) * scale, b a panel. Scale 1 changes nothing and costs nothing. */
void SIMD_NAME(tile_product_scaled)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row,
                                    size_t a_step, const float *b, size_t rows, size_t columns, size_t depth,
                                    float scale);

/* Which k < rows row r's sum has. */
enum triangle { STEPS_UP_TO_ROW /* k <= r */, STEPS_FROM_ROW /* k >= r */ };

/* The same over a triangle of steps, at any two distances. */
void SIMD_NAME(tile_triangle)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row, size_t a_step,
                              const float *b, size_t rows, size_t columns, enum triangle triangle, float scale);

/* Whole vectors for `columns` columns. */
static inline size_t panel_width(size_t columns)
{
    return (columns + LANES - 1) / LANES * LANES;
}

/* The panels of b (depth,columns), its rows ldb apart, one after the other: each (depth,panel_width) of at most
 * TILE_COLUMNS columns, unused ones 0. Row by row, and each asks for the next: one panel after the other would come
 * back to every row, pages apart, when the processor has forgotten it. */
void SIMD_NAME(panels_copy)(float *panels, const float *b, size_t ldb, size_t depth, size_t columns);

/* panel (depth,panel_width(columns)) = bt's transpose, bt (columns,depth), its rows ldbt apart; unused columns are 0.
 */
void SIMD_NAME(panel_transpose)(float *panel, const float *bt, size_t ldbt, size_t depth, size_t columns);

/* The tiles of a, each (TILE_DEPTH,TILE_ROWS) = from's transpose, from (depth,rows), its rows ldfrom apart. */
void SIMD_NAME(pack_steps)(float *a, const float *from, size_t ldfrom, size_t rows, size_t depth);

/* out[j,i] = in[i,j] of in (rows,columns). */
void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns);

/* Initial values of sums that start from zero. */
extern const float SIMD_NAME(tile_zeros)[TILE_ROWS];

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The size of the first of the fewest equal parts of `items` that are at most `most`, a multiple of grain. */
static inline size_t even_part(size_t items, size_t most, size_t grain)
{
    const size_t parts = (items + most - 1) / most;
    return parts == 0 ? grain : ((items + parts - 1) / parts + grain - 1) / grain * grain;
}

#endif
