/* matmul_backward_weight: dweight[o,i] += sum over n of inp[n,i] * dout[n,o]; dbias[o] += sum over n of dout[n,o].
 *
 * As C = A * B: A is the transpose of the tile's columns of dout (m = rows, k = N), B is inp (k = N, n = C), C is
 * dweight.
 *
 *   loop 5: for jc < n by NC
 *   loop 4:   for pc < k by KC        pack B (KC,NC)
 *   loop 3:     for ic < m by MC      pack A (KC,MC); add its columns to dbias, while they are in a cache
 *   loop 2:       for jg < NC by NG   a group of columns
 *   loop 1:         for ir < MC by MR
 *   loop 2:           for jr < NG by NR   micro-kernel
 *
 * Within a group loop 2 is inside loop 1: rows of dweight often lie whole pages apart, and a processor takes a load for
 * one of what it has just stored at the same place of another page. The prefetch plan of a block is the block of A that
 * comes next. */
#include <string.h>

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/packing.h"
#include "kernels/simd/scratch.h"

/* One thread's product and its scratch memory. */
struct backward_weight {
    float *dweight, *dbias;  /* (m,n), rows ldc apart; (m) or NULL */
    const float *dout, *inp; /* (k,m), rows ldat apart; (k,n), rows ldc apart */
    size_t m, n, k, ldc, ldat;
    enum sum_start start;
    struct blocking blocking;
    float *b, *a; /* micro-panels */
};

/* A block of C and of the steps: rows from ic and columns from jc on, m, n and k of rows, columns and steps. */
struct block {
    size_t ic, jc, m, n, k;
    const float *initial;
};

/* Loops 1 and 2, for one group of columns: jg to end. */
static void backward_weight_group(const struct backward_weight *w, const struct block *block, size_t jg, size_t end,
                                  struct prefetch_plan *plan)
{
    float *c = w->dweight + block->ic * w->ldc + block->jc;
    struct product tile = {
        .ldc = w->ldc, .initial = block->initial, .rs_a = 1, .cs_a = MR, .k = block->k, .prefetch = {0}};
    for (size_t ir = 0; ir < block->m; ir += MR)
        for (size_t jr = jg; jr < end; jr += NR) {
            tile.m = smaller(MR, block->m - ir);
            tile.n = smaller(NR, end - jr);
            tile.ldb = rounded_up(tile.n, LANES);
            tile.c = c + ir * w->ldc + jr;
            tile.a = w->a + ir * block->k;
            tile.b = w->b + jr * block->k;
            prefetch_next(&tile.prefetch, plan);
            const bool row_ends = jr + tile.n == end;
            const size_t next_ir = row_ends ? ir + MR : ir, next_jr = row_ends ? jg : jr + tile.n;
            if (tile.prefetch.count == 0 && !block->initial && next_ir < block->m) /* the next micro-tile's sums */
                tile.prefetch = prefetch_lines(c + next_ir * w->ldc + next_jr, smaller(MR, block->m - next_ir),
                                               smaller(NR, end - next_jr), w->ldc);
            SIMD_NAME(microkernel)(&tile);
        }
}

/* dbias[o] accumulates, over k rows of dout in order, dout[n,o]; m columns, rows ld apart. */
static void backward_bias(float *dbias, const float *dout, size_t m, size_t k, size_t ld, enum sum_start start)
{
    enum { COLUMNS = 8 * MR }; /* whose sums stay in registers */
    float sum[COLUMNS];
    for (size_t o = 0; o < m; o += COLUMNS) {
        const size_t columns = smaller(COLUMNS, m - o);
        for (size_t j = 0; j < columns; j++)
            sum[j] = start == SUM_FROM_ZERO ? 0.0f : dbias[o + j];
        if (columns == COLUMNS)
            for (size_t n = 0; n < k; n++)
                for (size_t j = 0; j < COLUMNS; j++)
                    sum[j] += dout[n * ld + o + j];
        else
            for (size_t n = 0; n < k; n++)
                for (size_t j = 0; j < columns; j++)
                    sum[j] += dout[n * ld + o + j];
        memcpy(dbias + o, sum, columns * sizeof(float));
    }
}

/* Loops 3 and 2, for the packed part of B: k steps from pc on, n columns from jc on. */
static void backward_weight_columns(const struct backward_weight *w, size_t jc, size_t n, size_t pc, size_t k)
{
    const struct blocking *blocking = &w->blocking;
    const bool first = pc == 0 && w->start == SUM_FROM_ZERO;
    struct block block = {.jc = jc, .n = n, .k = k, .initial = first ? SIMD_NAME(zeros) : NULL};
    for (size_t ic = 0; ic < w->m; ic += blocking->MC) {
        block.ic = ic;
        block.m = smaller(blocking->MC, w->m - ic);
        const float *dout = w->dout + pc * w->ldat + ic;
        SIMD_NAME(pack_a_transposed)(w->a, dout, w->ldat, k, block.m);
        if (w->dbias && jc == 0)
            backward_bias(w->dbias + ic, dout, block.m, k, w->ldat, first ? SUM_FROM_ZERO : SUM_CONTINUES);
        const size_t next_m = smaller(blocking->MC, w->m - ic - block.m);
        struct prefetch_plan plan =
            prefetch_plan(prefetch_lines(dout + block.m, k, next_m, w->ldat), tiles_of(block.m, n), k);
        for (size_t jg = 0; jg < n; jg += blocking->NG)
            backward_weight_group(w, &block, jg, smaller(jg + blocking->NG, n), &plan);
    }
}

/* Loops 5 and 4. false: there is no memory to pack. */
static bool backward_weight_packed(struct backward_weight *w)
{
    const struct blocking blocking = SIMD_NAME(blocking_backward_weight)(w->n, w->k);
    w->blocking = blocking;
    w->b = kernels_scratch((blocking.NC + blocking.MC) * blocking.KC);
    if (!w->b)
        return false;
    w->a = w->b + blocking.NC * blocking.KC;
    for (size_t jc = 0; jc < w->n; jc += blocking.NC)
        for (size_t pc = 0; pc < w->k; pc += blocking.KC) {
            const size_t n = smaller(blocking.NC, w->n - jc), k = smaller(blocking.KC, w->k - pc);
            SIMD_NAME(pack_b)(w->b, w->inp + pc * w->ldc + jc, w->ldc, k, n);
            backward_weight_columns(w, jc, n, pc, k);
        }
    return true;
}

void SIMD_NAME(matmul_backward_weight)(float *dweight /* (rows,C) */, float *dbias /* (rows) */,
                                       const float *dout /* (N,OC) */, const float *inp /* (N,C) */, size_t N, size_t C,
                                       size_t OC, size_t first, size_t rows, enum sum_start start, struct team team)
{
    const struct rectangle own = SIMD_NAME(team_rectangle)(team, rows, C);
    struct backward_weight w = {.dweight = dweight + own.rows.begin * C + own.columns.begin,
                                .dbias = dbias && own.columns.begin == 0 ? dbias + own.rows.begin : NULL,
                                .dout = dout + first + own.rows.begin,
                                .inp = inp + own.columns.begin,
                                .m = own.rows.end - own.rows.begin,
                                .n = own.columns.end - own.columns.begin,
                                .k = N,
                                .ldc = C,
                                .ldat = OC,
                                .start = start};
    if (w.m == 0 || w.n == 0)
        return;
    /* A single row gives each value of dweight one term: nothing to gain by packing. */
    if (N > 1 && !SIMD_NAME(is_small_matmul)(rows, C, N) && backward_weight_packed(&w))
        return;
    for (size_t o = 0; o < w.m; o++)
        SIMD_NAME(unpacked_row)(w.dweight + o * C, start, w.dout + o, OC, w.inp, C, w.n, N);
    if (w.dbias)
        backward_bias(w.dbias, w.dout, w.m, N, OC, start);
}
