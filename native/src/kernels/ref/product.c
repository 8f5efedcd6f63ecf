/* The ordered product's inner loops and the copies that make its panels.
 * matmul.c and attention.c call them. */
#include "product.h"

#include <stdbool.h>
#include <string.h>

/* Up to this many columns, rows are computed no wider. 20 and not 16, as GCC unrolls a loop of 16 before it could
 * vectorise it. */
enum { NARROW = 20 };

const float panel_zeros[PANEL_COLUMNS] = {0};

/* Fewer than PANEL_COLUMNS values. Of a memcpy whose size is known to be small GCC makes a string instruction, which
 * takes longer than such a row's product. */
static inline void copy_part(float *to, const float *from, size_t columns)
{
    if (columns & 16)
        memcpy(to, from, 16 * sizeof(float)), to += 16, from += 16;
    if (columns & 8)
        memcpy(to, from, 8 * sizeof(float)), to += 8, from += 8;
    if (columns & 4)
        memcpy(to, from, 4 * sizeof(float)), to += 4, from += 4;
    if (columns & 2)
        memcpy(to, from, 2 * sizeof(float)), to += 2, from += 2;
    if (columns & 1)
        *to = *from;
}
_Static_assert(PANEL_COLUMNS <= 32, "copy_part copies at most 31 values");

static void clear_unused(struct panel *panel)
{
    const size_t width = panel->columns <= NARROW ? NARROW : PANEL_COLUMNS;
    for (size_t k = 0; k < panel->depth; k++)
        for (size_t j = panel->columns; j < width; j++)
            panel->values[k][j] = 0.0f;
}

void panel_copy(struct panel *panel, const float *b, size_t ldb, size_t depth, size_t columns)
{
    panel->depth = depth;
    panel->columns = columns;
    if (columns == PANEL_COLUMNS)
        for (size_t k = 0; k < depth; k++)
            memcpy(panel->values[k], b + k * ldb, PANEL_COLUMNS * sizeof(float));
    else
        for (size_t k = 0; k < depth; k++)
            copy_part(panel->values[k], b + k * ldb, columns);
    clear_unused(panel);
}

void panel_transpose(struct panel *panel, const float *bt, size_t ldbt, size_t depth, size_t columns)
{
    panel->depth = depth;
    panel->columns = columns;
    transpose(panel->values[0], PANEL_COLUMNS, bt, ldbt, columns, depth);
    clear_unused(panel);
}

void transpose(float *restrict out, size_t ldout, const float *restrict in, size_t ldin, size_t rows, size_t columns)
{
    size_t i = 0;
    for (; i + 4 <= rows; i += 4) /* four rows at a time make one vector of each column */
        for (size_t j = 0; j < columns; j++)
            for (size_t r = 0; r < 4; r++)
                out[j * ldout + i + r] = in[(i + r) * ldin + j];
    for (; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            out[j * ldout + i] = in[i * ldin + j];
}

/* One row of c, `width` columns of it. A constant width and `scaled` make the loop over j straight-line code whose sums
 * live in registers, so each of the four has a function to itself. */
static inline void row_product(float *c, const float *initial, const float *a,
                               const float (*restrict values)[PANEL_COLUMNS], size_t depth, size_t width, bool scaled,
                               float scale)
{
    float sum[PANEL_COLUMNS];
    for (size_t j = 0; j < width; j++)
        sum[j] = initial[j];
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < width; j++) {
            const float term = a[k] * values[k][j];
            sum[j] += scaled ? term * scale : term;
        }
    for (size_t j = 0; j < width; j++)
        c[j] = sum[j];
}

typedef void row_function(float *c, const float *initial, const float *a, const float (*values)[PANEL_COLUMNS],
                          size_t depth, float scale);

static void wide_row(float *c, const float *initial, const float *a, const float (*values)[PANEL_COLUMNS], size_t depth,
                     float scale)
{
    row_product(c, initial, a, values, depth, PANEL_COLUMNS, false, scale);
}
static void wide_row_scaled(float *c, const float *initial, const float *a, const float (*values)[PANEL_COLUMNS],
                            size_t depth, float scale)
{
    row_product(c, initial, a, values, depth, PANEL_COLUMNS, true, scale);
}
static void narrow_row(float *c, const float *initial, const float *a, const float (*values)[PANEL_COLUMNS],
                       size_t depth, float scale)
{
    row_product(c, initial, a, values, depth, NARROW, false, scale);
}
static void narrow_row_scaled(float *c, const float *initial, const float *a, const float (*values)[PANEL_COLUMNS],
                              size_t depth, float scale)
{
    row_product(c, initial, a, values, depth, NARROW, true, scale);
}

void panel_product_scaled(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                          const struct panel *panel, float scale, enum steps steps)
{
    const size_t columns = panel->columns;
    const bool narrow = columns <= NARROW, scaled = scale != 1.0f;
    row_function *const product =
        narrow ? (scaled ? narrow_row_scaled : narrow_row) : (scaled ? wide_row_scaled : wide_row);
    const bool whole = columns == PANEL_COLUMNS || columns == NARROW;
    float part[PANEL_COLUMNS] = {0}; /* a row that isn't whole; what its unused columns come to is dropped */
    for (size_t r = 0; r < rows; r++) {
        float *row = c + r * ldc;
        const float *first = initial ? initial : row;
        const size_t begin = steps == STEPS_FROM_ROW ? r : 0;
        const size_t depth = (steps == STEPS_UP_TO_ROW ? r + 1 : panel->depth) - begin;
        if (!whole)
            copy_part(part, first, columns);
        product(whole ? row : part, whole ? first : part, a + r * lda + begin, panel->values + begin, depth, scale);
        if (!whole)
            copy_part(row, part, columns);
    }
}

void panel_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                   const struct panel *panel)
{
    panel_product_scaled(c, ldc, initial, a, lda, rows, panel, 1.0f, ALL_STEPS);
}
