/* The micro-kernels of microkernel.h: one function for each size of micro-tile that this level can meet. */
#include "kernels/simd/microkernel.h"

#include <stdbool.h>
#include <string.h>

const float SIMD_NAME(zeros)[MR] = {0};

/* The sum with one more term, which is scaled if that is asked for. */
SIMD_INLINE vector add_term(vector sum, vector a, vector b, bool scaled, float scale)
{
    return scaled ? VECTOR_MULTIPLY_ADD(a * b, vector_of(scale), sum) : VECTOR_MULTIPLY_ADD(a, b, sum);
}

/* One step of the sums: rows x vectors products. a[j] is the step's value in row 4 * j; addressing modes reach those
 * one, two and three rows further. If a is packed, a[0] reaches all. */
SIMD_INLINE void add_step(vector sum[MR][NR_VECTORS], const float *const a[3], size_t rs_a, const float *b, int rows,
                          int vectors, bool packed, bool scaled, float scale)
{
    vector step[NR_VECTORS];
    for (int v = 0; v < vectors; v++)
        step[v] = vector_load(b + v * LANES);
    for (int i = 0; i < rows; i++) {
        const vector factor = vector_broadcast(packed ? a[0] + i : a[i / 4] + (size_t)(i % 4) * rs_a);
        for (int v = 0; v < vectors; v++)
            sum[i][v] = add_term(sum[i][v], factor, step[v], scaled, scale);
    }
}

/* With constant sizes this becomes straight-line code whose sums live in registers. */
SIMD_INLINE void product_of(const struct product *product, int rows, int vectors, bool packed, bool scaled, float scale)
{
    float *restrict c = product->c;
    const float *restrict a = product->a, *restrict b = product->b, *initial = product->initial;
    const size_t ldc = product->ldc, ldb = product->ldb, depth = product->k;
    const size_t rs_a = packed ? 1 : product->rs_a, cs_a = packed ? MR : 1;
    vector sum[MR][NR_VECTORS];
    UNROLLED
    for (int i = 0; i < rows; i++) {
        UNROLLED
        for (int v = 0; v < vectors; v++)
            sum[i][v] = initial ? vector_of(initial[i]) : vector_load(c + (size_t)i * ldc + v * LANES);
    }
    const float *bases[3] = {a, a + 4 * rs_a, a + 8 * rs_a};
    const size_t lines = smaller(product->prefetch.count, depth);
    size_t p = 0;
    if (lines > 0) {
        const float *line = product->prefetch.line, *row_end = product->prefetch.row_end;
        const size_t ld = product->prefetch.ld, gap = ld - product->prefetch.length;
        for (; p < lines; p++, b += ldb, bases[0] += cs_a, bases[1] += cs_a, bases[2] += cs_a) {
            __builtin_prefetch(line, 0, 2);
            line += FLOATS_PER_LINE;
            const bool ended = line >= row_end;
            line += ended ? gap : 0;
            row_end += ended ? ld : 0;
            add_step(sum, bases, rs_a, b, rows, vectors, packed, scaled, scale);
        }
    }
    for (; p < depth; p++, b += ldb, bases[0] += cs_a, bases[1] += cs_a, bases[2] += cs_a)
        add_step(sum, bases, rs_a, b, rows, vectors, packed, scaled, scale);
    UNROLLED
    for (int i = 0; i < rows; i++) {
        UNROLLED
        for (int v = 0; v < vectors; v++)
            vector_store(c + (size_t)i * ldc + v * LANES, sum[i][v]);
    }
}

/* X(rows, vectors) for every micro-tile of this level: each number of rows and vectors is what remains at some edge. */
#define WIDTHS_1(X, rows) X(rows, 1)
#define WIDTHS_2(X, rows) WIDTHS_1(X, rows) X(rows, 2)
#define WIDTHS_3(X, rows) WIDTHS_2(X, rows) X(rows, 3)
#define WIDTHS_4(X, rows) WIDTHS_3(X, rows) X(rows, 4)
#define WIDTHS(X, rows) SIMD_JOIN(WIDTHS, NR_VECTORS)(X, rows)
#define TILES_3(X) WIDTHS(X, 1) WIDTHS(X, 2) WIDTHS(X, 3)
#define TILES_4(X) TILES_3(X) WIDTHS(X, 4)
#define TILES_5(X) TILES_4(X) WIDTHS(X, 5)
#define TILES_6(X) TILES_5(X) WIDTHS(X, 6)
#define TILES_8(X) TILES_6(X) WIDTHS(X, 7) WIDTHS(X, 8)
#define TILES_12(X) TILES_8(X) WIDTHS(X, 9) WIDTHS(X, 10) WIDTHS(X, 11) WIDTHS(X, 12)
#define ALL_TILES(X) SIMD_JOIN(TILES, MR)(X)

typedef void product_function(const struct product *product, float scale);

#define FUNCTION(name, rows, vectors, packed, scaled)                                 \
    static void name##_##rows##_##vectors(const struct product *product, float scale) \
    {                                                                                 \
        product_of(product, rows, vectors, packed, scaled, scale);                    \
    }
#define FUNCTIONS(rows, vectors)                           \
    FUNCTION(row_major, rows, vectors, false, false)       \
    FUNCTION(row_major_scaled, rows, vectors, false, true) \
    FUNCTION(packed, rows, vectors, true, false)           \
    FUNCTION(packed_scaled, rows, vectors, true, true)
ALL_TILES(FUNCTIONS)

#define ROW_MAJOR(rows, vectors) [rows - 1][vectors - 1] = row_major_##rows##_##vectors,
#define ROW_MAJOR_SCALED(rows, vectors) [rows - 1][vectors - 1] = row_major_scaled_##rows##_##vectors,
#define PACKED(rows, vectors) [rows - 1][vectors - 1] = packed_##rows##_##vectors,
#define PACKED_SCALED(rows, vectors) [rows - 1][vectors - 1] = packed_scaled_##rows##_##vectors,
static product_function *const functions[2][2][MR][NR_VECTORS] = {
    {{ALL_TILES(ROW_MAJOR)}, {ALL_TILES(ROW_MAJOR_SCALED)}}, {{ALL_TILES(PACKED)}, {ALL_TILES(PACKED_SCALED)}}};

void SIMD_NAME(microkernel_scaled)(const struct product *product, float scale)
{
    const size_t n = product->n, vectors = parts_of(n, LANES);
    product_function *const function = functions[product->cs_a != 1][scale != UNSCALED][product->m - 1][vectors - 1];
    if (n == vectors * LANES) {
        function(product, scale);
        return;
    }
    float tile[MR][NR] = {0}; /* what the unused columns come to is dropped */
    struct product whole = *product;
    whole.c = tile[0];
    whole.ldc = NR;
    if (!product->initial)
        for (size_t i = 0; i < product->m; i++)
            memcpy(tile[i], product->c + i * product->ldc, n * sizeof(float));
    function(&whole, scale);
    for (size_t i = 0; i < product->m; i++)
        memcpy(product->c + i * product->ldc, tile[i], n * sizeof(float));
}

void SIMD_NAME(microkernel)(const struct product *product)
{
    SIMD_NAME(microkernel_scaled)(product, UNSCALED);
}

/* One row of a triangle, `vectors` (constant) vectors of it, starting from *initial, or from c if that is NULL. */
SIMD_INLINE void triangle_row(float *restrict c, const float *initial, const float *restrict a, size_t cs_a,
                              const float *restrict b, size_t depth, int vectors, float scale)
{
    vector sum[NR_VECTORS];
    for (int v = 0; v < vectors; v++)
        sum[v] = initial ? vector_of(*initial) : vector_load(c + v * LANES);
    for (size_t p = 0; p < depth; p++, a += cs_a, b += vectors * LANES)
        for (int v = 0; v < vectors; v++)
            sum[v] = add_term(sum[v], vector_broadcast(a), vector_load(b + v * LANES), scale != UNSCALED, scale);
    for (int v = 0; v < vectors; v++)
        vector_store(c + v * LANES, sum[v]);
}

#define TRIANGLE_ROW(i, vectors)                                      \
    case vectors:                                                     \
        triangle_row(to, initial, a, cs_a, b, depth, vectors, scale); \
        break;

void SIMD_NAME(microkernel_triangular)(const struct product *product, enum triangle triangle, float scale)
{
    const size_t m = product->m, n = product->n, width = rounded_up(n, LANES);
    const size_t rs_a = product->rs_a, cs_a = product->cs_a, ldc = product->ldc;
    const bool whole = n == width;
    float part[NR] = {0};
    for (size_t i = 0; i < m; i++) {
        const size_t begin = triangle == FROM_ROW ? i : 0, depth = triangle == FROM_ROW ? m - i : i + 1;
        const float *a = product->a + i * rs_a + begin * cs_a, *b = product->b + begin * width;
        const float *initial = product->initial ? product->initial + i : NULL;
        float *row = product->c + i * ldc, *to = whole ? row : part;
        if (!whole && !initial)
            memcpy(part, row, n * sizeof(float));
        switch (width / LANES) {
            WIDTHS(TRIANGLE_ROW, i)
        }
        if (!whole)
            memcpy(row, part, n * sizeof(float));
    }
}
