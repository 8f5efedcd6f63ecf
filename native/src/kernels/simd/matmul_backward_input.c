/* matmul_backward_input: dinp[n,i] = sum over o of weight[o,i] * dout[n,o].
 *
 * As C = A * B: A is dout (m = N, k = OC), B is weight (k = OC, n = C), C is dinp.
 *
 *   loop 4: for pc < k by KC
 *   loop 5:   for jc < n by NC        pack B (KC,NC)
 *   loop 3:     for ic < m by MC      a team's units: each thread takes some of (MC,NG)
 *   loop 2:       for jg < NC by NG   A (MC,KC) is read in place, or copied if its rows have a set conflict
 *   loop 1:         for ir < MC by MR
 *   loop 2:           for jr < NG by NR   micro-kernel
 *
 * In one thread all m rows meet a block of B. Loop 4 is outermost, so that the weight, far larger than dinp where
 * it matters (the vocabulary's), is read in its own order. B is packed even for few rows: read in place, each step's
 * values lie in another page, which no prefetcher follows (avx2 0.68 of OpenBLAS's speed, packed 0.97; avx512 is as
 * fast either way; Zen 4, N = 256). The prefetch plan of a block is the block of B that comes next. */
#include <string.h>

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/packing.h"
#include "kernels/simd/scratch.h"

/* One thread's product and its scratch memory. */
struct backward_input {
    float *dinp;                /* (m,n), rows ldb apart */
    const float *dout, *weight; /* (m,k); (k,n), rows ldb apart */
    size_t m, n, k, ldb;
    struct blocking blocking;
    bool alone;    /* no team packs the next block of B */
    float *b;      /* the micro-panels of a block of B; the team's */
    float *rows;   /* A's, where they have a set conflict */
    struct rows a; /* of the unit's rows, from pc on */
    size_t a_ic, a_pc;
    size_t pc, kc, jc, nc; /* the steps and columns that are packed */
};

/* The block of B that is needed after the present one. */
static struct prefetch_lines next_b(const struct backward_input *w)
{
    const size_t KC = w->blocking.KC, NC = w->blocking.NC, next_pc = w->pc + w->kc;
    if (w->jc + NC < w->n)
        return prefetch_lines(w->weight + w->pc * w->ldb + w->jc + NC, w->kc, smaller(NC, w->n - w->jc - NC), w->ldb);
    return prefetch_lines(w->weight + next_pc * w->ldb, smaller(KC, w->k - next_pc), NC, w->ldb);
}

/* Loops 1 and 2, for a unit: m rows from ic on, n of the packed columns from jg on. */
static void backward_input_unit(const struct backward_input *w, size_t ic, size_t m, size_t jg, size_t n)
{
    struct prefetch_plan plan = prefetch_plan(w->alone ? next_b(w) : (struct prefetch_lines){0}, tiles_of(m, n), w->kc);
    struct product tile = {
        .ldc = w->ldb, .initial = w->pc == 0 ? SIMD_NAME(zeros) : NULL, .rs_a = w->a.ld, .cs_a = 1, .k = w->kc};
    for (size_t ir = 0; ir < m; ir += MR)
        for (size_t jr = jg; jr < jg + n; jr += NR) {
            tile.c = w->dinp + (ic + ir) * w->ldb + w->jc + jr;
            tile.a = w->a.first + ir * w->a.ld;
            tile.b = w->b + jr * w->kc;
            tile.m = smaller(MR, m - ir);
            tile.n = smaller(NR, jg + n - jr);
            tile.ldb = rounded_up(tile.n, LANES);
            prefetch_next(&tile.prefetch, &plan);
            SIMD_NAME(microkernel)(&tile);
        }
}

static void backward_input_units(void *backward_input, struct share units)
{
    struct backward_input *w = backward_input;
    const size_t MC = w->blocking.MC, NG = w->blocking.NG, wide = parts_of(w->nc, NG);
    for (size_t unit = units.begin; unit < units.end; unit++) {
        const size_t ic = unit / wide * MC, jg = unit % wide * NG, m = smaller(MC, w->m - ic);
        if (!w->a.first || w->a_ic != ic || w->a_pc != w->pc)
            w->a = SIMD_NAME(rows_without_conflict)(w->rows, w->dout + ic * w->k + w->pc, w->k, m, w->kc, false);
        w->a_ic = ic;
        w->a_pc = w->pc;
        backward_input_unit(w, ic, m, jg, smaller(NG, w->nc - jg));
    }
}

static void backward_input_pack(void *backward_input, struct share units)
{
    const struct backward_input *w = backward_input;
    SIMD_NAME(pack_b)(w->b, w->weight + w->pc * w->ldb + w->jc, w->ldb, w->kc, w->nc, packed_steps(units, w->kc));
}

/* Loops 4 and 5. false: there is no memory to pack. */
static bool backward_input_packed(struct backward_input *w, struct team team)
{
    const struct blocking blocking = SIMD_NAME(blocking_backward_input)(team, w->m, w->n, w->k);
    w->blocking = blocking;
    w->alone = team.count == 1;
    w->b =
        team_scratch(team, blocking.KC * blocking.NC, &w->rows, SIMD_NAME(rows_room)(w->k, blocking.MC, blocking.KC));
    if (!w->b)
        return false;
    size_t before = 0;
    for (w->pc = 0; w->pc < w->k; w->pc += w->kc)
        for (w->jc = 0; w->jc < w->n; w->jc += w->nc) {
            w->kc = smaller(blocking.KC, w->k - w->pc);
            w->nc = smaller(blocking.NC, w->n - w->jc);
            team_wait(team, before); /* B's memory is used again */
            team_phase(team_together(team), &before, parts_of(w->kc, PACKED_STEPS), backward_input_pack, w);
            team_wait(team, before);
            team_phase(team, &before, units_of(&blocking, w->m, w->nc), backward_input_units, w);
        }
    return true;
}

void SIMD_NAME(matmul_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                                      const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, struct team team)
{
    struct backward_input w = {.dinp = dinp, .dout = dout, .weight = weight, .m = N, .n = C, .k = OC, .ldb = C};
    /* A single row uses each value of weight once: nothing to gain by keeping sums in registers. */
    if (N > 1 && !SIMD_NAME(is_small_matmul)(N, C, OC) && backward_input_packed(&w, team))
        return;
    const struct share own = team_share(team, C, NR);
    for (size_t n = 0; n < N && own.begin < own.end; n++)
        SIMD_NAME(unpacked_row)(dinp + n * C + own.begin, SUM_FROM_ZERO, dout + n * OC, 1, weight + own.begin, C,
                                own.end - own.begin, OC);
}
