/* The ordered product: c[r,j] = sum over k ascending of a[r,k] * b[k,j], each sum carried through memory from one block
 * of k to the next. matmul.c and attention.c build every matrix product from it.
 *
 * A panel is a block of b, contiguous, on the caller's stack; it is made once and meets as many rows of a as there are.
 * Its columns are independent outputs, so vectors go across them. */
#ifndef STARPULLM_KERNELS_REF_PRODUCT_H
#define STARPULLM_KERNELS_REF_PRODUCT_H

#include <stddef.h>

enum {
    PANEL_COLUMNS = 32, /* 8 SSE sums: enough to hide an addition's latency, few enough to stay in registers */
    PANEL_DEPTH = 128   /* 16 KB: a panel and the rows that meet it stay in the first-level cache */
};

struct panel {
    size_t depth, columns;                    /* in use */
    float values[PANEL_DEPTH][PANEL_COLUMNS]; /* (depth,columns); a column past the last is 0 or unused */
};

/* The panel of b (depth,columns), whose rows are ldb apart. */
void panel_copy(struct panel *panel, const float *b, size_t ldb, size_t depth, size_t columns);

/* The same of its transpose bt (columns,depth), whose rows are ldbt apart. */
void panel_transpose(struct panel *panel, const float *bt, size_t ldbt, size_t depth, size_t columns);

/* out[j,i] = in[i,j] of in (rows,columns). */
void transpose(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns);

/* Initial values of sums that start from zero. */
extern const float panel_zeros[PANEL_COLUMNS];

/* c[r,j] = ordered sum over k of a[r,k] * panel[k,j], for r < rows, starting from initial[j], or from c's present value
 * if initial is NULL. */
void panel_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                   const struct panel *panel);

/* Which k row r's sum has. */
enum steps { ALL_STEPS, STEPS_UP_TO_ROW /* k <= r */, STEPS_FROM_ROW /* k >= r */ };

/* The same with terms (a[r,k] * panel[k,j]) * scale. Scale 1 changes nothing and costs nothing. */
void panel_product_scaled(float *c, size_t ldc, const float *initial, const float *a, size_t lda, size_t rows,
                          const struct panel *panel, float scale, enum steps steps);

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
