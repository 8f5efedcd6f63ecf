/* The ordered product's inner loops and the copies that make its panels.
 * matmul.c and attention.c call them. */
#include "product.h"

#include <stdbool.h>
#include <string.h>

const panel_row panel_zeros = {0};

void panel_copy(panel_row *panel, const float *b, size_t ldb, size_t depth, size_t columns) {
    for (size_t k = 0; k < depth; k++) {
        memcpy(panel[k], b + k * ldb, columns * sizeof(float));
        for (size_t j = columns; j < PANEL_COLUMNS; j++) panel[k][j] = 0.0f;
    }
}

void panel_transpose(panel_row *panel, const float *bt, size_t ldbt, size_t depth, size_t columns) {
    transpose(panel[0], PANEL_COLUMNS, bt, ldbt, columns, depth);
    for (size_t k = 0; k < depth; k++)
        for (size_t j = columns; j < PANEL_COLUMNS; j++) panel[k][j] = 0.0f;
}

void transpose(float *restrict out, size_t ldout, const float *restrict in, size_t ldin, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) out[j * ldout + i] = in[i * ldin + j];
}

/* One row of c, PANEL_COLUMNS wide. The sums live in registers: the loop over j has a constant trip count. */
static inline void row_product(float *c, const float *initial, const float *a, const panel_row *restrict panel,
                               bool scaled, float scale, size_t depth) {
    panel_row sum;
    for (size_t j = 0; j < PANEL_COLUMNS; j++) sum[j] = initial[j];
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < PANEL_COLUMNS; j++) {
            const float term = a[k] * panel[k][j];
            sum[j] += scaled ? term * scale : term;
        }
    for (size_t j = 0; j < PANEL_COLUMNS; j++) c[j] = sum[j];
}

static inline void rows_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda,
                                const panel_row *panel, bool scaled, float scale, size_t rows, size_t depth,
                                size_t columns) {
    for (size_t r = 0; r < rows; r++) {
        float *row = c + r * ldc;
        const float *first = initial ? initial : row;
        if (columns == PANEL_COLUMNS) {
            row_product(row, first, a + r * lda, panel, scaled, scale, depth);
        } else {
            panel_row part = {0};
            memcpy(part, first, columns * sizeof(float));
            row_product(part, part, a + r * lda, panel, scaled, scale, depth);
            memcpy(row, part, columns * sizeof(float));
        }
    }
}

void panel_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, const panel_row *panel,
                   float scale, size_t rows, size_t depth, size_t columns) {
    if (scale == 1.0f)
        rows_product(c, ldc, initial, a, lda, panel, false, 1.0f, rows, depth, columns);
    else
        rows_product(c, ldc, initial, a, lda, panel, true, scale, rows, depth, columns);
}
