/* The tiles and the packing of simd/tile.h.
 * matmul.c and attention.c call them. */
#include "kernels/simd/tile.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/team.h"

const float SIMD_NAME(tile_zeros)[TILE_ROWS] = {0};

/* ---- Tiles ---- */

/* Constant rows, vectors and strides make this straight-line code whose sums live in registers, so each tile has a
 * function to itself. */
static inline __attribute__((always_inline)) void tile(float *restrict c, size_t ldc, const float *initial,
                                                       const float *restrict a, size_t a_row, size_t a_step,
                                                       const float *restrict b, size_t ldb, size_t depth,
                                                       const struct lines *ahead, int rows, int vectors, bool scaled,
                                                       float scale)
{
    vector sum[TILE_ROWS][TILE_VECTORS];
    if (rows > TILE_ROWS || vectors > TILE_VECTORS)
        return; /* not of this level */
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int v = 0; v < vectors; v++)
            sum[r][v] = initial ? vector_of(initial[r]) : vector_load(c + (size_t)r * ldc + v * LANES);
    }
    /* Rows at any distance: few enough pointers for the registers, their neighbours one and three distances further. */
    const float *bases[3] = {a, a + 4 * a_row, a + 8 * a_row};
    const float *line = ahead->first, *row_end = ahead->row_end;
    const size_t lines = ahead->count, gap = ahead->lda - ahead->length, lda = ahead->lda;
    for (size_t k = 0; k < depth; k++, bases[0] += a_step, bases[1] += a_step, bases[2] += a_step) {
        if (k < lines) {
            __builtin_prefetch(line, 0, 2);
            line += FLOATS_PER_LINE;
            const bool ended = line >= row_end;
            line += ended ? gap : 0;
            row_end += ended ? lda : 0;
        }
        vector step[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            step[v] = vector_load(b + k * ldb + v * LANES);
        for (int r = 0; r < rows; r++) {
            const vector factor = vector_of(bases[r / 4][(size_t)(r % 4) * a_row]);
            for (int v = 0; v < vectors; v++) {
                vector term = factor * step[v];
                if (scaled)
                    term *= vector_of(scale);
                sum[r][v] += term;
            }
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        UNROLLED
        for (int v = 0; v < vectors; v++)
            vector_store(c + (size_t)r * ldc + v * LANES, sum[r][v]);
    }
}

typedef void tile_function(float *c, size_t ldc, const float *initial, const float *a, size_t lda, const float *b,
                           size_t ldb, size_t depth, const struct lines *ahead, float scale);

#define TILE(name, rows, vectors, a_row, a_step, scaled)                                                          \
    static void name##_##rows##_##vectors(float *c, size_t ldc, const float *initial, const float *a, size_t lda, \
                                          const float *b, size_t ldb, size_t depth, const struct lines *ahead,    \
                                          float scale)                                                            \
    {                                                                                                             \
        tile(c, ldc, initial, a, a_row, a_step, b, ldb, depth, ahead, rows, vectors, scaled, scale);              \
    }
#define TILES_OF_ROWS(rows, vectors)                  \
    TILE(by_rows, rows, vectors, lda, 1, false)       \
    TILE(by_rows_scaled, rows, vectors, lda, 1, true) \
    TILE(by_steps, rows, vectors, 1, lda, false)      \
    TILE(by_steps_scaled, rows, vectors, 1, lda, true)
#define TILES(rows) TILES_OF_ROWS(rows, 1) TILES_OF_ROWS(rows, 2) TILES_OF_ROWS(rows, 3)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)
TILES(7)
TILES(8)
TILES(9)
TILES(10)
TILES(11)
TILES(12)

#define NAMES(name, rows) {name##_##rows##_1, name##_##rows##_2, name##_##rows##_3}
#define ALL_NAMES(name)                                                                                \
    {NAMES(name, 1), NAMES(name, 2), NAMES(name, 3), NAMES(name, 4),  NAMES(name, 5),  NAMES(name, 6), \
     NAMES(name, 7), NAMES(name, 8), NAMES(name, 9), NAMES(name, 10), NAMES(name, 11), NAMES(name, 12)}
static tile_function *const tiles[2][2][12][3] = {{ALL_NAMES(by_rows), ALL_NAMES(by_rows_scaled)},
                                                  {ALL_NAMES(by_steps), ALL_NAMES(by_steps_scaled)}};
_Static_assert(TILE_ROWS <= 12 && TILE_VECTORS <= 3, "every tile has a function");

static void product(float *c, size_t ldc, const float *initial, const float *a, size_t a_row, size_t a_step,
                    const float *b, size_t ldb, size_t rows, size_t columns, size_t depth, const struct lines *ahead,
                    float scale)
{
    const size_t vectors = (columns + LANES - 1) / LANES;
    const bool by_steps = a_step != 1;
    const size_t lda = by_steps ? a_step : a_row;
    tile_function *const function = tiles[by_steps][scale != 1.0f][rows - 1][vectors - 1];
    if (columns == vectors * LANES) {
        function(c, ldc, initial, a, lda, b, ldb, depth, ahead, scale);
        return;
    }
    float part[TILE_ROWS][TILE_COLUMNS]; /* what the unused columns come to is dropped */
    memset(part, 0, sizeof part);
    if (!initial)
        for (size_t r = 0; r < rows; r++)
            memcpy(part[r], c + r * ldc, columns * sizeof(float));
    function(part[0], TILE_COLUMNS, initial, a, lda, b, ldb, depth, ahead, scale);
    for (size_t r = 0; r < rows; r++)
        memcpy(c + r * ldc, part[r], columns * sizeof(float));
}

void SIMD_NAME(tile_product)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row, size_t a_step,
                             const float *b, size_t ldb, size_t rows, size_t columns, size_t depth,
                             const struct lines *ahead)
{
    product(c, ldc, initial, a, a_row, a_step, b, ldb, rows, columns, depth, ahead, 1.0f);
}

void SIMD_NAME(tile_product_scaled)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row,
                                    size_t a_step, const float *b, size_t rows, size_t columns, size_t depth,
                                    float scale)
{
    static const struct lines nothing;
    product(c, ldc, initial, a, a_row, a_step, b, panel_width(columns), rows, columns, depth, &nothing, scale);
}

/* One row of a triangle, `vectors` (constant) vectors of it. */
static inline void triangle_row(float *restrict c, const float *restrict a, size_t a_step, const float *restrict b,
                                size_t depth, size_t vectors, float scale)
{
    vector sum[TILE_VECTORS];
    for (size_t v = 0; v < vectors; v++)
        sum[v] = vector_load(c + v * LANES);
    for (size_t k = 0; k < depth; k++)
        for (size_t v = 0; v < vectors; v++)
            sum[v] += (vector_of(a[k * a_step]) * vector_load(b + (k * vectors + v) * LANES)) * vector_of(scale);
    for (size_t v = 0; v < vectors; v++)
        vector_store(c + v * LANES, sum[v]);
}

void SIMD_NAME(tile_triangle)(float *c, size_t ldc, const float *initial, const float *a, size_t a_row, size_t a_step,
                              const float *b, size_t rows, size_t columns, enum triangle triangle, float scale)
{
    float part[TILE_COLUMNS] = {0};
    const size_t width = panel_width(columns);
    const bool whole = columns == width;
    for (size_t r = 0; r < rows; r++) {
        const size_t begin = triangle == STEPS_FROM_ROW ? r : 0;
        const size_t depth = triangle == STEPS_FROM_ROW ? rows - r : r + 1;
        const float *a_first = a + r * a_row + begin * a_step, *b_first = b + begin * width;
        float *row = c + r * ldc, *to = whole ? row : part;
        if (initial)
            for (size_t j = 0; j < columns; j++)
                to[j] = initial[r];
        else if (!whole)
            memcpy(part, row, columns * sizeof(float));
        if (width == TILE_COLUMNS)
            triangle_row(to, a_first, a_step, b_first, depth, TILE_VECTORS, scale);
        else if (width == LANES)
            triangle_row(to, a_first, a_step, b_first, depth, 1, scale);
        else
            triangle_row(to, a_first, a_step, b_first, depth, 2, scale);
        if (!whole)
            memcpy(row, part, columns * sizeof(float));
    }
}

/* ---- Packing ---- */

void SIMD_NAME(panels_copy)(float *panels, const float *b, size_t ldb, size_t depth, size_t columns)
{
    for (size_t k = 0; k < depth; k++, b += ldb)
        for (size_t j = 0; j < columns; j += TILE_COLUMNS) {
            const size_t part = smaller(TILE_COLUMNS, columns - j), width = panel_width(part);
            float *to = panels + j * depth + k * width;
            for (size_t i = 0; k + 1 < depth && i < part; i += FLOATS_PER_LINE)
                __builtin_prefetch(b + ldb + j + i, 0, 2);
            if (part == TILE_COLUMNS)
                for (size_t v = 0; v < TILE_VECTORS; v++)
                    vector_store(to + v * LANES, vector_load(b + j + v * LANES));
            else {
                memcpy(to, b + j, part * sizeof(float));
                for (size_t i = part; i < width; i++)
                    to[i] = 0.0f;
            }
        }
}

enum { TURNED = 64 };

void SIMD_NAME(panel_transpose)(float *panel, const float *bt, size_t ldbt, size_t depth, size_t columns)
{
    const size_t width = panel_width(columns);
    for (size_t k = 0; k < depth; k += TURNED) { /* few enough rows of the panel for the first-level cache */
        for (size_t j = 0; j < columns; j++)     /* rows far apart are too many streams for the processor to foresee */
            for (size_t i = k + TURNED; i < smaller(k + 2 * TURNED, depth); i += 16)
                __builtin_prefetch(bt + j * ldbt + i, 0, 2);
        SIMD_NAME(transpose)(panel + k * width, width, bt + k, ldbt, columns, smaller(TURNED, depth - k));
    }
    for (size_t k = 0; columns < width && k < depth; k++)
        for (size_t j = columns; j < width; j++)
            panel[k * width + j] = 0.0f;
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

/* A square of LANES by LANES in registers: whole cache lines are read and written, wherever the rows lie. */
static inline void transpose_square(float *restrict out, size_t ldout, const float *restrict in, size_t ldin)
{
    vector row[LANES], half[4], quad[LANES];
    UNROLLED
    for (int i = 0; i < LANES; i++)
        row[i] = vector_load(in + (size_t)i * ldin);
    /* quad[i + c]: of each quad of columns its c-th, of rows i to i + 3 */
    UNROLLED
    for (int i = 0; i < LANES; i += 4) {
        half[0] = __builtin_shufflevector(row[i], row[i + 1], SIMD_VALUES_01);
        half[1] = __builtin_shufflevector(row[i], row[i + 1], SIMD_VALUES_23);
        half[2] = __builtin_shufflevector(row[i + 2], row[i + 3], SIMD_VALUES_01);
        half[3] = __builtin_shufflevector(row[i + 2], row[i + 3], SIMD_VALUES_23);
        quad[i] = __builtin_shufflevector(half[0], half[2], SIMD_PAIRS_01);
        quad[i + 1] = __builtin_shufflevector(half[0], half[2], SIMD_PAIRS_23);
        quad[i + 2] = __builtin_shufflevector(half[1], half[3], SIMD_PAIRS_01);
        quad[i + 3] = __builtin_shufflevector(half[1], half[3], SIMD_PAIRS_23);
    }
    UNROLLED
    for (int c = 0; c < 4; c++) {
#if SIMD_BYTES == 16
        vector_store(out + (size_t)c * ldout, quad[c]);
#else
        const vector even = __builtin_shufflevector(quad[c], quad[c + 4], SIMD_EVEN_QUADS);
        const vector odd = __builtin_shufflevector(quad[c], quad[c + 4], SIMD_ODD_QUADS);
#if SIMD_BYTES == 32
        vector_store(out + (size_t)c * ldout, even);
        vector_store(out + (size_t)(c + 4) * ldout, odd);
#else
        const vector more_even = __builtin_shufflevector(quad[c + 8], quad[c + 12], SIMD_EVEN_QUADS);
        const vector more_odd = __builtin_shufflevector(quad[c + 8], quad[c + 12], SIMD_ODD_QUADS);
        vector_store(out + (size_t)c * ldout, __builtin_shufflevector(even, more_even, SIMD_EVEN_QUADS));
        vector_store(out + (size_t)(c + 4) * ldout, __builtin_shufflevector(odd, more_odd, SIMD_EVEN_QUADS));
        vector_store(out + (size_t)(c + 8) * ldout, __builtin_shufflevector(even, more_even, SIMD_ODD_QUADS));
        vector_store(out + (size_t)(c + 12) * ldout, __builtin_shufflevector(odd, more_odd, SIMD_ODD_QUADS));
#endif
#endif
    }
}

void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns)
{
    const size_t whole_rows = rows - rows % LANES, whole_columns = columns - columns % LANES;
    for (size_t i = 0; i < whole_rows; i += LANES)
        for (size_t j = 0; j < whole_columns; j += LANES)
            transpose_square(out + j * ldout + i, ldout, in + i * ldin + j, ldin);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            out[j * ldout + i] = in[i * ldin + j];
}
