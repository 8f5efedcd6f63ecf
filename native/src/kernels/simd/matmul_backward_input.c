/* matmul_backward_input: dinp[n,i] = sum over o of weight[o,i] * dout[n,o].
 *
 * As C = A * B: A is dout (m = N, k = OC), B is weight (k = OC, n = C), C is dinp.
 *
 *   loop 4: for pc < k by KC          A (m,KC) is read in place, or copied if its rows have a set conflict
 *   loop 5:   for jc < n by NC        pack B (KC,NC)
 *   loop 1:     for ir < m by MR
 *   loop 2:       for jr < NC by NR   micro-kernel
 *
 * There is no loop 3: all m rows meet a block of B. Loop 4 is outermost, so that the weight, far larger than dinp where
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
    float *b;    /* the micro-panels of a block of B */
    float *rows; /* A's, where they have a set conflict */
};

/* The block of B that is needed after the one at (pc,jc). */
static struct prefetch_lines next_b(const struct backward_input *w, size_t pc, size_t jc)
{
    const size_t KC = w->blocking.KC, NC = w->blocking.NC, kc = smaller(KC, w->k - pc), next_pc = pc + kc;
    if (jc + NC < w->n)
        return prefetch_lines(w->weight + pc * w->ldb + jc + NC, kc, smaller(NC, w->n - jc - NC), w->ldb);
    return prefetch_lines(w->weight + next_pc * w->ldb, smaller(KC, w->k - next_pc), NC, w->ldb);
}

/* Loops 1 and 2, for the block of B at (pc,jc); a is A's part. */
static void backward_input_block(const struct backward_input *w, struct rows a, size_t pc, size_t jc)
{
    const size_t kc = smaller(w->blocking.KC, w->k - pc), nc = smaller(w->blocking.NC, w->n - jc);
    SIMD_NAME(pack_b)(w->b, w->weight + pc * w->ldb + jc, w->ldb, kc, nc);
    struct prefetch_plan plan = prefetch_plan(next_b(w, pc, jc), tiles_of(w->m, nc), kc);
    struct product tile = {
        .ldc = w->ldb, .initial = pc == 0 ? SIMD_NAME(zeros) : NULL, .rs_a = a.ld, .cs_a = 1, .k = kc};
    for (size_t ir = 0; ir < w->m; ir += MR)
        for (size_t jr = 0; jr < nc; jr += NR) {
            tile.c = w->dinp + ir * w->ldb + jc + jr;
            tile.a = a.first + ir * a.ld;
            tile.b = w->b + jr * kc;
            tile.m = smaller(MR, w->m - ir);
            tile.n = smaller(NR, nc - jr);
            tile.ldb = rounded_up(tile.n, LANES);
            prefetch_next(&tile.prefetch, &plan);
            SIMD_NAME(microkernel)(&tile);
        }
}

/* Loops 4 and 5. false: there is no memory to pack. */
static bool backward_input_packed(struct backward_input *w)
{
    const struct blocking blocking = SIMD_NAME(blocking_backward_input)(w->m, w->n, w->k);
    w->blocking = blocking;
    w->b = kernels_scratch(blocking.KC * blocking.NC + SIMD_NAME(rows_room)(w->k, w->m, blocking.KC));
    if (!w->b)
        return false;
    w->rows = w->b + blocking.KC * blocking.NC;
    for (size_t pc = 0; pc < w->k; pc += blocking.KC) {
        const struct rows a =
            SIMD_NAME(rows_without_conflict)(w->rows, w->dout + pc, w->k, w->m, smaller(blocking.KC, w->k - pc), false);
        for (size_t jc = 0; jc < w->n; jc += blocking.NC)
            backward_input_block(w, a, pc, jc);
    }
    return true;
}

void SIMD_NAME(matmul_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                                      const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, struct team team)
{
    const struct rectangle own = SIMD_NAME(team_rectangle)(team, N, C);
    struct backward_input w = {.dinp = dinp + own.rows.begin * C + own.columns.begin,
                               .dout = dout + own.rows.begin * OC,
                               .weight = weight + own.columns.begin,
                               .m = own.rows.end - own.rows.begin,
                               .n = own.columns.end - own.columns.begin,
                               .k = OC,
                               .ldb = C};
    if (w.m == 0 || w.n == 0)
        return;
    /* A single row uses each value of weight once: nothing to gain by keeping sums in registers. */
    if (N == 1 || SIMD_NAME(is_small_matmul)(N, C, OC) || !backward_input_packed(&w))
        for (size_t n = 0; n < w.m; n++)
            SIMD_NAME(unpacked_row)(w.dinp + n * C, SUM_FROM_ZERO, w.dout + n * OC, 1, w.weight, C, w.n, OC);
}
