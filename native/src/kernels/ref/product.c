/* The ordered product's inner loops and the copies that make its panels.
 * matmul.c and attention.c call them. */
#include "product.h"

#include <stdbool.h>
#include <string.h>

/* Few columns have narrower rows: the zeros beside them aren't multiplied along. GCC unrolls a loop of 16 or less before
 * it vectorises, and then doesn't; so 20, not 16. */
enum { NARROW = 20 };

const float panel_zeros[PANEL_COLUMNS] = {0};

static void clear_unused(struct panel *panel) {
    const size_t width = panel->columns <= NARROW ? NARROW : PANEL_COLUMNS;
    for (size_t k = 0; k < panel->depth; k++)
        for (size_t j = panel->columns; j < width; j++) panel->values[k][j] = 0.0f;
}

void panel_copy(struct panel *panel, const float *b, size_t ldb, size_t depth, size_t columns) {
    panel->depth = depth;
    panel->columns = columns;
    if (columns == PANEL_COLUMNS)
        for (size_t k = 0; k < depth; k++) memcpy(panel->values[k], b + k * ldb, PANEL_COLUMNS * sizeof(float));
    else
        for (size_t k = 0; k < depth; k++) memcpy(panel->values[k], b + k * ldb, columns * sizeof(float));
    clear_unused(panel);
}

void panel_transpose(struct panel *panel, const float *bt, size_t ldbt, size_t depth, size_t columns) {
    panel->depth = depth;
    panel->columns = columns;
    transpose(panel->values[0], PANEL_COLUMNS, bt, ldbt, columns, depth);
    clear_unused(panel);
}

void transpose(float *restrict out, size_t ldout, const float *restrict in, size_t ldin, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) out[j * ldout + i] = in[i * ldin + j];
}

/* One row of c. `width` is a constant wherever this is inlined, so the sums live in registers. */
static inline void row_product(float *c, const float *initial, const float *a,
                               const float (*restrict values)[PANEL_COLUMNS], size_t depth, size_t width, bool scaled,
                               float scale) {
    float sum[PANEL_COLUMNS];
    for (size_t j = 0; j < width; j++) sum[j] = initial[j];
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < width; j++) {
            const float term = a[k] * values[k][j];
            sum[j] += scaled ? term * scale : term;
        }
    for (size_t j = 0; j < width; j++) c[j] = sum[j];
}

static inline void rows_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                                const struct panel *panel, size_t width, bool scaled, float scale, enum steps steps) {
    const size_t columns = panel->columns;
    float part[PANEL_COLUMNS] = {0};
    for (size_t r = 0; r < rows; r++) {
        float *row = c + r * ldc;
        const float *first = initial ? initial : row;
        const size_t begin = steps == STEPS_FROM_ROW ? r : 0;
        const size_t depth = (steps == STEPS_UP_TO_ROW ? r + 1 : panel->depth) - begin;
        const bool whole = columns == width;
        if (!whole) memcpy(part, first, columns * sizeof(float));
        row_product(whole ? row : part, whole ? first : part, a + r * lda + begin, panel->values + begin, depth, width,
                    scaled, scale);
        if (!whole) memcpy(row, part, columns * sizeof(float));
    }
}

void panel_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                   const struct panel *panel) {
    if (panel->columns <= NARROW)
        rows_product(c, ldc, initial, a, lda, rows, panel, NARROW, false, 1.0f, ALL_STEPS);
    else
        rows_product(c, ldc, initial, a, lda, rows, panel, PANEL_COLUMNS, false, 1.0f, ALL_STEPS);
}

void panel_product_scaled(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                          const struct panel *panel, float scale, enum steps steps) {
    const bool scaled = scale != 1.0f;
    if (scaled && panel->columns <= NARROW)
        rows_product(c, ldc, initial, a, lda, rows, panel, NARROW, true, scale, steps);
    else if (scaled)
        rows_product(c, ldc, initial, a, lda, rows, panel, PANEL_COLUMNS, true, scale, steps);
    else if (panel->columns <= NARROW)
        rows_product(c, ldc, initial, a, lda, rows, panel, NARROW, false, 1.0f, steps);
    else
        rows_product(c, ldc, initial, a, lda, rows, panel, PANEL_COLUMNS, false, 1.0f, steps);
}
