/* The ordered product: sums over k ascending of a[r,k] * b[k,j], for a panel of b's columns at a time, each sum carried
 * through memory from one block of k to the next. matmul.c and attention.c build every matrix product from it.
 *
 * A panel is a block of b: at most PANEL_DEPTH steps of k by PANEL_COLUMNS columns, contiguous, made on the caller's
 * stack and used for as many rows of a as there are. Columns are independent outputs, so vectors go across them. */
#ifndef STARPULLM_KERNELS_REF_PRODUCT_H
#define STARPULLM_KERNELS_REF_PRODUCT_H

#include <stddef.h>

enum {
    PANEL_COLUMNS = 32, /* 8 SSE accumulators: enough to hide the additions' latency, few enough to stay in registers */
    PANEL_DEPTH = 128   /* 16 KB a panel: it and the rows that meet it stay in the first-level cache */
};

typedef float panel_row[PANEL_COLUMNS];

/* Initial values of sums that start from zero. */
extern const panel_row panel_zeros;

/* panel[k][j] = b[k,j] of b (depth,columns), whose rows are ldb apart. Columns past the last are set to 0. */
void panel_copy(panel_row *panel, const float *b, size_t ldb, size_t depth, size_t columns);

/* panel[k][j] = bt[j,k] of bt (columns,depth), whose rows are ldbt apart. Columns past the last are set to 0. */
void panel_transpose(panel_row *panel, const float *bt, size_t ldbt, size_t depth, size_t columns);

/* out[j,i] = in[i,j] of in (rows,columns). */
void transpose(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns);

/* c[r,j] = ordered sum over k < depth of (a[r,k] * panel[k][j]) * scale, for r < rows, j < columns. The sum starts from
 * initial[j], or from c's present value if initial is NULL. Scale 1 changes nothing and costs nothing. */
void panel_product(float *c, size_t ldc, const float *initial, const float *a, size_t lda, const panel_row *panel,
                   float scale, size_t rows, size_t depth, size_t columns);

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

#endif
