/* matmul_forward: out[n,o] = bias[o] + sum over i of inp[n,i] * weight[o,i].
 *
 * As C = A * B: A is weight (m = OC, k = C), B the transpose of inp (k = C, n = N), C the transpose of out. One value
 * of weight meets a vector of inp's rows.
 *
 *   loop 5: for jc < n by NC            pack B (k,NC), all k at once
 *   loop 3:   for ic < m by MC          a team's units: each thread takes some of (MC,NG)
 *   loop 2:     for jg < NC by NG
 *   loop 4:       for pc < k by KC      A (MC,KC) is read in place, or copied if its rows have a set conflict
 *   loop 2:         for jr < NG by NR
 *   loop 1:           for ir < MC by MR micro-kernel; after the last pc the sums are transposed into out
 *
 * Loop 3 is outside loop 4: a block of C is finished before the next is begun, so that only one block of sums (MC,NG)
 * is stored and reloaded. The prefetch plan of a block is the block of A that comes next; that of a column of
 * micro-tiles is the micro-panel of B that comes next, where blocking.h says that it pays. */
#include <string.h>

#include "kernels/simd/blocking.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/packing.h"
#include "kernels/simd/scratch.h"

/* One thread's product and its scratch memory. */
struct forward {
    float *out;                       /* (n,m), rows ldout apart */
    const float *inp, *weight, *bias; /* (n,k), (m,k), (m) or NULL */
    size_t m, n, k, ldout;
    struct blocking blocking;
    float *b;    /* the micro-panels of B; the team's */
    float *sums; /* (MC,NG), rows ldsums apart */
    float *rows; /* A's, where they have a set conflict */
    size_t ldsums;
    size_t jc, nc; /* the columns that are packed */
    bool prefetch_b;
};

/* Where a block begins, and its sizes. */
struct block {
    size_t ic, jc, pc, m, n, k;
    const float *b; /* the micro-panels of its columns */
    size_t next_ic; /* of the block after it; m: there is none */
};

/* The block of A that is needed after this one. */
static struct prefetch_lines next_a(const struct forward *f, const struct block *block)
{
    const size_t KC = f->blocking.KC, next_pc = block->pc + block->k;
    if (next_pc < f->k)
        return prefetch_lines(f->weight + block->ic * f->k + next_pc, block->m, smaller(KC, f->k - next_pc), f->k);
    return prefetch_lines(f->weight + block->next_ic * f->k, smaller(f->blocking.MC, f->m - block->next_ic), KC, f->k);
}

/* The micro-panel of B that begins at column jr. */
static struct prefetch_lines next_b(const struct forward *f, const struct block *block, size_t jr)
{
    if (!f->prefetch_b || jr >= block->n)
        return (struct prefetch_lines){0};
    const size_t width = rounded_up(smaller(NR, block->n - jr), LANES), length = block->k * width;
    return prefetch_lines(block->b + jr * f->k + block->pc * width, 1, length, length);
}

/* Rows begin to end of a column of micro-tiles: the sums become out's. */
static void transpose_sums(const struct forward *f, const struct block *block, size_t jr, size_t n, size_t begin,
                           size_t end)
{
    SIMD_NAME(transpose)(f->out + (block->jc + jr) * f->ldout + block->ic + begin, f->ldout,
                         f->sums + begin * f->ldsums + jr, f->ldsums, end - begin, n);
}

/* Loop 1: a column of micro-tiles, n columns wide from jr on. */
static void forward_column(const struct forward *f, const struct block *block, struct rows a, size_t jr, size_t n,
                           struct prefetch_plan *plan)
{
    const bool last = block->pc + block->k == f->k;
    const size_t width = rounded_up(n, LANES);
    const size_t share = parts_of(n * MR, block->m); /* rows of out that each micro-tile prefetches */
    const float *bias = f->bias ? f->bias + block->ic : NULL;
    float *out = f->out + (block->jc + jr) * f->ldout + block->ic;
    struct product tile = {.ldc = f->ldsums,
                           .rs_a = a.ld,
                           .cs_a = 1,
                           .b = block->b + jr * f->k + block->pc * width,
                           .ldb = width,
                           .n = width,
                           .k = block->k};
    /* One micro-tile fewer than there are, because one may belong to the block's plan. */
    const size_t tiles = parts_of(block->m, MR);
    struct prefetch_plan plan_b = prefetch_plan(next_b(f, block, jr + NR), tiles > 1 ? tiles - 1 : 1, block->k);
    size_t transposed = 0;
    for (size_t ir = 0; ir < block->m; ir += MR) {
        /* A few rows of finished sums before each micro-tile: after the last one their latest sums would still be
         * awaited, and many lines be written at a time. */
        const size_t finished = ir / LANES * LANES;
        if (last && finished > transposed)
            transpose_sums(f, block, jr, n, transposed, finished);
        transposed = finished;
        tile.c = f->sums + ir * f->ldsums + jr;
        tile.initial = block->pc > 0 ? NULL : bias ? bias + ir : SIMD_NAME(zeros);
        tile.a = a.first + ir * a.ld;
        tile.m = smaller(MR, block->m - ir);
        prefetch_next(&tile.prefetch, plan);
        if (tile.prefetch.count == 0)
            prefetch_next(&tile.prefetch, &plan_b);
        const size_t row = ir / MR * share;
        if (last && tile.prefetch.count == 0 && row < n)
            tile.prefetch = prefetch_lines(out + row * f->ldout, smaller(share, n - row), block->m, f->ldout);
        SIMD_NAME(microkernel)(&tile);
    }
    if (last)
        transpose_sums(f, block, jr, n, transposed, block->m);
}

/* Loops 4 and 2, for units that have the same rows. */
static void forward_unit(const struct forward *f, struct block block)
{
    for (; block.pc < f->k; block.pc += block.k) {
        block.k = smaller(f->blocking.KC, f->k - block.pc);
        const struct rows a = SIMD_NAME(rows_without_conflict)(f->rows, f->weight + block.ic * f->k + block.pc, f->k,
                                                               block.m, block.k, true);
        struct prefetch_plan plan = prefetch_plan(next_a(f, &block), tiles_of(block.m, block.n), block.k);
        for (size_t jr = 0; jr < block.n; jr += NR)
            forward_column(f, &block, a, jr, smaller(NR, block.n - jr), &plan);
    }
}

static void forward_units(void *forward, struct share units)
{
    const struct forward *f = forward;
    const size_t MC = f->blocking.MC, NG = f->blocking.NG, wide = parts_of(f->nc, NG);
    for (size_t unit = units.begin, next; unit < units.end; unit = next) {
        const size_t ic = unit / wide * MC, jg = unit % wide * NG;
        next = smaller(unit + f->blocking.together, smaller(unit / wide * wide + wide, units.end));
        forward_unit(f, (struct block){.ic = ic,
                                       .jc = f->jc + jg,
                                       .m = smaller(MC, f->m - ic),
                                       .n = smaller((next - unit) * NG, f->nc - jg),
                                       .b = f->b + jg * f->k,
                                       .next_ic = next < units.end ? next / wide * MC : f->m});
    }
}

enum { PIECE = 64 }; /* steps of a micro-panel that a thread packs at a time, at least */

static void forward_pack(void *forward, struct share units)
{
    const struct forward *f = forward;
    const size_t pieces = parts_of(f->k, PIECE);
    for (size_t unit = units.begin, next; unit < units.end; unit = next) {
        const size_t jr = unit / pieces * NR, n = smaller(NR, f->nc - jr), p = unit % pieces * PIECE;
        next = smaller(unit / pieces * pieces + pieces, units.end);
        SIMD_NAME(pack_b_transposed)(f->b + jr * f->k + p * rounded_up(n, LANES), f->inp + (f->jc + jr) * f->k + p,
                                     f->k, smaller((next - unit) * PIECE, f->k - p), n);
    }
}

/* Loop 5. false: there is no memory to pack. */
static bool forward_packed(struct forward *f, struct team team)
{
    const struct blocking blocking = SIMD_NAME(blocking_forward)(team, f->m, f->n, f->k);
    f->blocking = blocking;
    f->ldsums = row_distance(blocking.together * blocking.NG);
    f->b = team_scratch(team, blocking.NC * f->k, &f->sums,
                        blocking.MC * f->ldsums + SIMD_NAME(rows_room)(f->k, blocking.MC, blocking.KC));
    if (!f->b)
        return false;
    f->rows = f->sums + blocking.MC * f->ldsums;
    size_t before = 0;
    for (f->jc = 0; f->jc < f->n; f->jc += f->nc) {
        f->nc = smaller(blocking.NC, f->n - f->jc);
        f->prefetch_b = SIMD_NAME(prefetch_pays)(f->nc * f->k);
        team_wait(team, before); /* B's memory is used again */
        team_phase(team_together(team), &before, parts_of(f->nc, NR) * parts_of(f->k, PIECE), forward_pack, f);
        team_wait(team, before);
        team_phase(team, &before, units_of(&blocking, f->m, f->nc), forward_units, f);
    }
    return true;
}

void SIMD_NAME(matmul_forward)(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                               const float *bias /* (OC) */, size_t N, size_t C, size_t OC, struct team team)
{
    struct forward f = {.out = out, .inp = inp, .weight = weight, .bias = bias, .m = OC, .n = N, .k = C, .ldout = OC};
    if (!SIMD_NAME(is_small_matmul)(OC, N, C) && forward_packed(&f, team))
        return;
    const struct share own = team_share(team, OC, FLOATS_PER_LINE);
    for (size_t n = 0; n < N; n++)
        for (size_t o = own.begin; o < own.end; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                sum = MULTIPLY_ADD(inp[n * C + i], weight[o * C + i], sum);
            out[n * OC + o] = sum;
        }
}
