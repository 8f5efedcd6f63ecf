/* The copies of packing.h. A copy goes row by row and prefetches the next row: micro-panel by micro-panel would come
 * back to every row, pages apart, when the processor has forgotten it. */
#include "kernels/simd/packing.h"

#include <string.h>

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"

void SIMD_NAME(pack_b)(float *packed, const float *b, size_t ldb, size_t k, size_t n, struct share steps)
{
    b += steps.begin * ldb;
    for (size_t p = steps.begin; p < steps.end; p++, b += ldb)
        for (size_t j = 0; j < n; j += NR) {
            const size_t columns = smaller(NR, n - j), width = rounded_up(columns, LANES);
            float *to = packed + j * k + p * width;
            for (size_t i = 0; p + 1 < k && i < columns; i += FLOATS_PER_LINE)
                __builtin_prefetch(b + ldb + j + i, 0, 2);
            if (columns == NR)
                for (size_t v = 0; v < NR_VECTORS; v++)
                    vector_store(to + v * LANES, vector_load(b + j + v * LANES));
            else {
                memcpy(to, b + j, columns * sizeof(float));
                for (size_t i = columns; i < width; i++)
                    to[i] = 0.0f;
            }
        }
}

/* Steps that are transposed at a time: as many rows of a micro-panel stay in the first-level cache while its columns
 * are written, LANES at a time. */
enum { TRANSPOSED_STEPS = 64 };

static void transpose_panel(float *panel, const float *bt, size_t ldbt, size_t k, size_t n)
{
    const size_t width = rounded_up(n, LANES);
    for (size_t p = 0; p < k; p += TRANSPOSED_STEPS) {
        const size_t next = p + TRANSPOSED_STEPS, steps = smaller(TRANSPOSED_STEPS, k - p);
        for (size_t j = 0; j < n; j++) /* NR rows are more streams than the processor's own prefetcher follows */
            for (size_t i = next; i < smaller(next + TRANSPOSED_STEPS, k); i += FLOATS_PER_LINE)
                __builtin_prefetch(bt + j * ldbt + i, 0, 2);
        SIMD_NAME(transpose)(panel + p * width, width, bt + p, ldbt, n, steps);
    }
    for (size_t p = 0; n < width && p < k; p++)
        for (size_t j = n; j < width; j++)
            panel[p * width + j] = 0.0f;
}

void SIMD_NAME(pack_b_transposed)(float *packed, const float *bt, size_t ldbt, size_t k, size_t n)
{
    for (size_t j = 0; j < n; j += NR)
        transpose_panel(packed + j * k, bt + j * ldbt, ldbt, k, smaller(NR, n - j));
}

void SIMD_NAME(pack_a_transposed)(float *packed, const float *at, size_t ldat, size_t k, size_t m)
{
    for (size_t p = 0; p < k; p++, at += ldat) {
        float *to = packed + p * MR;
        size_t i = 0;
        for (; i + MR <= m; i += MR, to += MR * k)
            memcpy(to, at + i, MR * sizeof(float));
        for (size_t j = 0; i + j < m; j++)
            to[j] = at[i + j];
    }
}

size_t SIMD_NAME(rows_room)(size_t ld, size_t rows, size_t columns)
{
    return has_set_conflict(ld) ? rows * row_distance(columns) : 0;
}

struct rows SIMD_NAME(rows_without_conflict)(float *room, const float *x, size_t ld, size_t rows, size_t columns,
                                             bool prefetched)
{
    if (!has_set_conflict(ld))
        return (struct rows){x, ld};
    const size_t ldroom = row_distance(columns);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; !prefetched && r + 1 < rows && j < columns; j += FLOATS_PER_LINE)
            __builtin_prefetch(x + (r + 1) * ld + j, 0, 2);
        memcpy(room + r * ldroom, x + r * ld, columns * sizeof(float));
    }
    return (struct rows){room, ldroom};
}
