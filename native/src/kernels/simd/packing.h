/* Packing: copies of parts of A and B in the order in which the micro-kernel reads them, or at a distance of rows
 * without a set conflict. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/simd/vector.h"
#include "kernels/team.h"

/* The micro-panels of b (k,n), whose rows are ldb apart: each (k,rounded_up(columns,LANES)) of at most NR columns,
 * unused columns 0. They lie one after the other: that of column j begins at packed + j * k. Only those steps of them
 * are written. */
void SIMD_NAME(pack_b)(float *packed, const float *b, size_t ldb, size_t k, size_t n, struct share steps);

/* The steps of k in units of a team: a backward pass of one sequence has few. */
enum { PACKED_STEPS = 8 };

static inline struct share packed_steps(struct share units, size_t k)
{
    return (struct share){units.begin * PACKED_STEPS, smaller(units.end * PACKED_STEPS, k)};
}

/* The same, with all steps, of bt's transpose, bt (n,k), its rows ldbt apart. */
void SIMD_NAME(pack_b_transposed)(float *packed, const float *bt, size_t ldbt, size_t k, size_t n);

/* The micro-panels of at's transpose, at (k,m), its rows ldat apart: each (k,MR). That of row i begins at
 * packed + i * k. */
void SIMD_NAME(pack_a_transposed)(float *packed, const float *at, size_t ldat, size_t k, size_t m);

/* Rows of a matrix, ld floats apart. */
struct rows {
    const float *first;
    size_t ld;
};

/* How many floats rows_without_conflict() takes for rows ld apart. */
size_t SIMD_NAME(rows_room)(size_t ld, size_t rows, size_t columns);

/* x (rows,columns), whose rows are ld apart, in place, or if they have a set conflict a copy in `room`. A copy
 * prefetches, unless the rows have been `prefetched`. */
struct rows SIMD_NAME(rows_without_conflict)(float *room, const float *x, size_t ld, size_t rows, size_t columns,
                                             bool prefetched);
