/* The tiles and the packing of simd/tile.h.
 * matmul.c and attention.c call them. */
#include "kernels/simd/tile.h"

#include <stdbool.h>
#include <string.h>

const float SIMD_NAME(tile_zeros)[TILE_ROWS] = {0};

/* ---- Tiles ---- */

/* Constant rows, vectors and strides make this straight-line code whose sums live in registers, so each tile has a
 * function to itself. */
static inline __attribute__((always_inline)) void tile(float *restrict c, size_t ldc, const float *initial,
                                                       const float *restrict a, size_t a_row, size_t a_step,
                                                       const float *restrict b, size_t depth, int rows, int vectors)
{
    vector sum[TILE_ROWS][TILE_VECTORS];
    if (rows > TILE_ROWS || vectors > TILE_VECTORS)
        return; /* not of this level */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = initial ? vector_of(initial[r]) : vector_load(c + (size_t)r * ldc + v * LANES);
    for (size_t k = 0; k < depth; k++) {
        vector step[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            step[v] = vector_load(b + k * (size_t)(vectors * LANES) + v * LANES);
        for (int r = 0; r < rows; r++) {
            const vector factor = vector_of(a[(size_t)r * a_row + k * a_step]);
            for (int v = 0; v < vectors; v++)
                sum[r][v] += factor * step[v];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            vector_store(c + (size_t)r * ldc + v * LANES, sum[r][v]);
}

typedef void tile_function(float *c, size_t ldc, const float *initial, const float *a, const float *b, size_t depth);

#define TILE(rows, vectors)                                                                                            \
    static void tile_rows_##rows##_##vectors(float *c, size_t ldc, const float *initial, const float *a,               \
                                             const float *b, size_t depth)                                             \
    {                                                                                                                  \
        tile(c, ldc, initial, a, TILE_DEPTH, 1, b, depth, rows, vectors);                                              \
    }                                                                                                                  \
    static void tile_steps_##rows##_##vectors(float *c, size_t ldc, const float *initial, const float *a,              \
                                              const float *b, size_t depth)                                            \
    {                                                                                                                  \
        tile(c, ldc, initial, a, 1, TILE_ROWS, b, depth, rows, vectors);                                               \
    }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
TILES(7) TILES(8) TILES(9) TILES(10) TILES(11) TILES(12)

#define NAMES(packed, rows) {packed##_##rows##_1, packed##_##rows##_2, packed##_##rows##_3}
#define ALL_NAMES(packed)                                                                                              \
    {NAMES(packed, 1), NAMES(packed, 2), NAMES(packed, 3), NAMES(packed, 4),  NAMES(packed, 5),  NAMES(packed, 6),     \
     NAMES(packed, 7), NAMES(packed, 8), NAMES(packed, 9), NAMES(packed, 10), NAMES(packed, 11), NAMES(packed, 12)}
static tile_function *const tiles[2][12][3] = {[PACKED_ROWS] = ALL_NAMES(tile_rows),
                                               [PACKED_STEPS] = ALL_NAMES(tile_steps)};
_Static_assert(TILE_ROWS <= 12 && TILE_VECTORS <= 3, "every tile has a function");

void SIMD_NAME(tile_product)(float *c, size_t ldc, const float *initial, const float *a, enum packed packed,
                             const float *b, size_t rows, size_t columns, size_t depth)
{
    const size_t vectors = (columns + LANES - 1) / LANES;
    tile_function *const product = tiles[packed][rows - 1][vectors - 1];
    if (columns == vectors * LANES) {
        product(c, ldc, initial, a, b, depth);
        return;
    }
    float part[TILE_ROWS][TILE_COLUMNS]; /* what the unused columns come to is dropped */
    memset(part, 0, sizeof part);
    if (!initial)
        for (size_t r = 0; r < rows; r++)
            memcpy(part[r], c + r * ldc, columns * sizeof(float));
    product(part[0], TILE_COLUMNS, initial, a, b, depth);
    for (size_t r = 0; r < rows; r++)
        memcpy(c + r * ldc, part[r], columns * sizeof(float));
}

/* ---- Packing ---- */

void SIMD_NAME(panel_copy)(float *panel, const float *b, size_t ldb, size_t depth, size_t columns)
{
    const size_t width = panel_width(columns);
    if (columns == TILE_COLUMNS)
        for (size_t k = 0; k < depth; k++)
            for (size_t v = 0; v < TILE_VECTORS; v++)
                vector_store(panel + k * TILE_COLUMNS + v * LANES, vector_load(b + k * ldb + v * LANES));
    else
        for (size_t k = 0; k < depth; k++) {
            memcpy(panel + k * width, b + k * ldb, columns * sizeof(float));
            for (size_t j = columns; j < width; j++)
                panel[k * width + j] = 0.0f;
        }
}

void SIMD_NAME(panel_transpose)(float *panel, const float *bt, size_t ldbt, size_t depth, size_t columns)
{
    const size_t width = panel_width(columns);
    for (size_t k = 0; k < depth; k += TILE_DEPTH) /* as much of the panel as the first-level cache holds */
        SIMD_NAME(transpose)(panel + k * width, width, bt + k, ldbt, columns, smaller(TILE_DEPTH, depth - k));
    for (size_t k = 0; columns < width && k < depth; k++)
        for (size_t j = columns; j < width; j++)
            panel[k * width + j] = 0.0f;
}

void SIMD_NAME(pack_rows)(float *a, const float *from, size_t ldfrom, size_t rows, size_t depth)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(a + r * TILE_DEPTH, from + r * ldfrom, depth * sizeof(float));
}

void SIMD_NAME(pack_steps)(float *a, const float *from, size_t ldfrom, size_t rows, size_t depth)
{
    const size_t tile = TILE_ROWS * TILE_DEPTH;
    for (size_t k = 0; k < depth; k++) {
        float *to = a + k * TILE_ROWS;
        size_t r = 0;
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS, to += tile)
            memcpy(to, from + k * ldfrom + r, TILE_ROWS * sizeof(float));
        for (size_t i = 0; r + i < rows; i++)
            to[i] = from[k * ldfrom + r + i];
    }
}

typedef float four __attribute__((vector_size(16)));
typedef float four_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

static inline four four_load(const float *x)
{
    return *(const four_unaligned *)x;
}

static inline void four_store(float *x, four v)
{
    *(four_unaligned *)x = v;
}

static inline void transpose_4x4(float *out, size_t ldout, const float *in, size_t ldin)
{
    const four a = four_load(in), b = four_load(in + ldin), c = four_load(in + 2 * ldin), d = four_load(in + 3 * ldin);
    const four ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const four cd01 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd23 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    four_store(out, __builtin_shufflevector(ab01, cd01, 0, 1, 4, 5));
    four_store(out + ldout, __builtin_shufflevector(ab01, cd01, 2, 3, 6, 7));
    four_store(out + 2 * ldout, __builtin_shufflevector(ab23, cd23, 0, 1, 4, 5));
    four_store(out + 3 * ldout, __builtin_shufflevector(ab23, cd23, 2, 3, 6, 7));
}

void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns)
{
    const size_t whole_rows = rows - rows % 4, whole_columns = columns - columns % 4;
    for (size_t i = 0; i < whole_rows; i += 4)
        for (size_t j = 0; j < whole_columns; j += 4)
            transpose_4x4(out + j * ldout + i, ldout, in + i * ldin + j, ldin);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            out[j * ldout + i] = in[i * ldin + j];
}
