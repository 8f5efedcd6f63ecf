/* The prefetch plan: which cache lines the micro-kernel prefetches, and when. Apart from the products, whose results do
 * not depend on it.
 *
 * The prefetch distance is one block: while a block's micro-tiles are computed, the next block's operand is prefetched.
 * The processor's own prefetchers follow a row, but a block's rows lie pages apart. A processor drops most of the
 * prefetches that are issued in a burst, so the micro-kernel issues one line with each step of its loop over k. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/simd/vector.h"
#include "kernels/team.h"

/* `count` cache lines, in rows of `length` floats that are ld apart. The next line is `line`; its row ends at row_end.
 */
struct prefetch_lines {
    const float *line, *row_end;
    size_t count, length, ld;
};

/* The lines of x (rows,length), its rows ld apart. */
static inline struct prefetch_lines prefetch_lines(const float *x, size_t rows, size_t length, size_t ld)
{
    return (struct prefetch_lines){.line = x,
                                   .row_end = x + length,
                                   .count = rows * parts_of(length, FLOATS_PER_LINE),
                                   .length = length,
                                   .ld = ld};
}

/* One block's lines, spread over the micro-tiles of the block before it. A micro-tile with k steps prefetches k lines
 * or none, so that the branch in its loop is predicted. */
struct prefetch_plan {
    struct prefetch_lines lines; /* of the whole block */
    size_t tiles, k;             /* micro-tiles that are computed meanwhile, and the steps of each */
    size_t busy_tiles;           /* how many of them prefetch */
    size_t due;                  /* busy_tiles is added for each micro-tile; one that reaches `tiles` prefetches */
    size_t issued;               /* lines */
};

static inline struct prefetch_plan prefetch_plan(struct prefetch_lines lines, size_t tiles, size_t k)
{
    return (struct prefetch_plan){.lines = lines, .tiles = tiles, .k = k, .busy_tiles = parts_of(lines.count, k)};
}

/* What the next micro-tile prefetches. Fills `lines` value by value: a copy of a whole struct would load what was
 * stored just before in smaller parts, which processors cannot forward. */
static inline void prefetch_next(struct prefetch_lines *lines, struct prefetch_plan *plan)
{
    lines->count = 0;
    plan->due += plan->busy_tiles;
    if (plan->due < plan->tiles)
        return;
    plan->due -= plan->tiles;
    const size_t length = plan->lines.length, ld = plan->lines.ld;
    const size_t per_row = parts_of(length, FLOATS_PER_LINE), row = plan->issued / per_row;
    lines->line = plan->lines.line + row * ld + plan->issued % per_row * FLOATS_PER_LINE;
    lines->row_end = plan->lines.row_end + row * ld;
    lines->count = smaller(plan->k, plan->lines.count - plan->issued);
    lines->length = length;
    lines->ld = ld;
    plan->issued += lines->count;
}

/* Prefetches rows begin to end of x, each `length` floats, ld apart, at once. Always inlined: GCC 12 takes a function
 * that does nothing but prefetch for one without effect, and removes its calls. */
SIMD_INLINE void prefetch_rows(const float *x, size_t length, size_t ld, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++)
        for (size_t i = 0; i < length; i += FLOATS_PER_LINE)
            __builtin_prefetch(x + row * ld + i, 0, 2);
}
