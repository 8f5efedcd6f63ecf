/* matmul_backward_weight: dweight[o,i] += sum over n of inp[n,i] * dout[n,o]; dbias[o] += sum over n of dout[n,o].
 *
 * As C = A * B: A is the transpose of the tile's columns of dout (m = rows, k = N), B is inp (k = N, n = C), C is
 * dweight.
 *
 *   loop 5: for jc < n by NC
 *   loop 4:   for pc < k by KC        pack B (KC,NC)
 *   loop 3:     for ib < m by MP      pack A (KC,MP); add its columns to dbias, while they are in a cache
 *   loop 3:       for ic < MP by MC   a team's units: each thread takes some of (MC,NG)
 *   loop 2:         for jg < NC by NG a group of columns
 *   loop 1:           for ir < MC by MR
 *   loop 2:             for jr < NG by NR   micro-kernel
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
    float *b, *a;                  /* micro-panels; the team's */
    size_t jc, nc, pc, kc, ib, mp; /* the columns, steps and rows that are packed */
    const float *initial;          /* of the sums */
    bool adds_bias;
    struct prefetch_plan plan;
};

/* Loops 1 and 2, for m of the packed rows from ic on and a group of the columns: jg to end. */
static void backward_weight_group(struct backward_weight *w, size_t ic, size_t m, size_t jg, size_t end)
{
    float *c = w->dweight + (w->ib + ic) * w->ldc + w->jc;
    struct product tile = {.ldc = w->ldc, .initial = w->initial, .rs_a = 1, .cs_a = MR, .k = w->kc, .prefetch = {0}};
    for (size_t ir = 0; ir < m; ir += MR)
        for (size_t jr = jg; jr < end; jr += NR) {
            tile.m = smaller(MR, m - ir);
            tile.n = smaller(NR, end - jr);
            tile.ldb = rounded_up(tile.n, LANES);
            tile.c = c + ir * w->ldc + jr;
            tile.a = w->a + (ic + ir) * w->kc;
            tile.b = w->b + jr * w->kc;
            prefetch_next(&tile.prefetch, &w->plan);
            const bool row_ends = jr + tile.n == end;
            const size_t next_ir = row_ends ? ir + MR : ir, next_jr = row_ends ? jg : jr + tile.n;
            if (tile.prefetch.count == 0 && !w->initial && next_ir < m) /* the next micro-tile's sums */
                tile.prefetch = prefetch_lines(c + next_ir * w->ldc + next_jr, smaller(MR, m - next_ir),
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

enum { UNIT_ROWS = 48 }; /* that a thread packs at a time, at least: cache lines and micro-tiles of every level */

static void backward_weight_pack_a(void *backward_weight, struct share units)
{
    const struct backward_weight *w = backward_weight;
    const size_t i = units.begin * UNIT_ROWS, m = smaller(units.end * UNIT_ROWS, w->mp) - i;
    const float *dout = w->dout + w->pc * w->ldat + w->ib + i;
    SIMD_NAME(pack_a_transposed)(w->a + i * w->kc, dout, w->ldat, w->kc, m);
    if (w->adds_bias && w->jc == 0)
        backward_bias(w->dbias + w->ib + i, dout, m, w->kc, w->ldat, w->initial ? SUM_FROM_ZERO : SUM_CONTINUES);
}

static void backward_weight_pack_b(void *backward_weight, struct share units)
{
    const struct backward_weight *w = backward_weight;
    SIMD_NAME(pack_b)(w->b, w->inp + w->pc * w->ldc + w->jc, w->ldc, w->kc, w->nc, packed_steps(units, w->kc));
}

static void backward_weight_units(void *backward_weight, struct share units)
{
    struct backward_weight *w = backward_weight;
    const size_t MC = w->blocking.MC, NG = w->blocking.NG, wide = parts_of(w->nc, NG);
    for (size_t unit = units.begin; unit < units.end; unit++) {
        const size_t ic = unit / wide * MC, jg = unit % wide * NG;
        backward_weight_group(w, ic, smaller(MC, w->mp - ic), jg, smaller(jg + NG, w->nc));
    }
}

/* Loop 3, for the part of B that is being packed. */
static void backward_weight_rows(struct backward_weight *w, struct team team, size_t *before)
{
    for (w->ib = 0; w->ib < w->m; w->ib += w->mp) {
        w->mp = smaller(w->blocking.MP, w->m - w->ib);
        if (w->ib > 0) /* A's memory is used again */
            team_wait(team, *before);
        team_phase(team_together(team), before, parts_of(w->mp, UNIT_ROWS), backward_weight_pack_a, w);
        team_wait(team, *before);
        const size_t next_m = team.count > 1 ? 0 : smaller(w->blocking.MP, w->m - w->ib - w->mp);
        w->plan = prefetch_plan(prefetch_lines(w->dout + w->pc * w->ldat + w->ib + w->mp, w->kc, next_m, w->ldat),
                                tiles_of(w->mp, w->nc), w->kc);
        team_phase(team, before, units_of(&w->blocking, w->mp, w->nc), backward_weight_units, w);
    }
}

/* Loops 5 and 4. false: there is no memory to pack. */
static bool backward_weight_packed(struct backward_weight *w, struct team team)
{
    const struct blocking blocking = SIMD_NAME(blocking_backward_weight)(team, w->m, w->n, w->k);
    w->blocking = blocking;
    float *own;
    w->b = team_scratch(team, (blocking.NC + blocking.MP) * blocking.KC, &own, 0);
    if (!w->b)
        return false;
    w->a = w->b + blocking.NC * blocking.KC;
    w->adds_bias = w->dbias && (team.board || team.index == 0); /* without a board each thread packs */
    size_t before = 0;
    for (w->jc = 0; w->jc < w->n; w->jc += w->nc)
        for (w->pc = 0; w->pc < w->k; w->pc += w->kc) {
            w->nc = smaller(blocking.NC, w->n - w->jc);
            w->kc = smaller(blocking.KC, w->k - w->pc);
            w->initial = w->pc == 0 && w->start == SUM_FROM_ZERO ? SIMD_NAME(zeros) : NULL;
            team_wait(team, before); /* B's memory is used again, and the next steps follow these */
            team_phase(team_together(team), &before, parts_of(w->kc, PACKED_STEPS), backward_weight_pack_b, w);
            backward_weight_rows(w, team, &before);
        }
    return true;
}

void SIMD_NAME(matmul_backward_weight)(float *dweight /* (rows,C) */, float *dbias /* (rows) */,
                                       const float *dout /* (N,OC) */, const float *inp /* (N,C) */, size_t N, size_t C,
                                       size_t OC, size_t first, size_t rows, enum sum_start start, struct team team)
{
    struct backward_weight w = {.dweight = dweight,
                                .dbias = dbias,
                                .dout = dout + first,
                                .inp = inp,
                                .m = rows,
                                .n = C,
                                .k = N,
                                .ldc = C,
                                .ldat = OC,
                                .start = start};
    /* A single row gives each value of dweight one term: nothing to gain by packing. */
    if (N > 1 && !SIMD_NAME(is_small_matmul)(rows, C, N) && backward_weight_packed(&w, team))
        return;
    const struct share own = team_share(team, rows, FLOATS_PER_LINE);
    for (size_t o = own.begin; o < own.end; o++)
        SIMD_NAME(unpacked_row)(dweight + o * C, start, w.dout + o, OC, inp, C, C, N);
    if (dbias)
        backward_bias(dbias + own.begin, w.dout + own.begin, own.end - own.begin, N, OC, start);
}
