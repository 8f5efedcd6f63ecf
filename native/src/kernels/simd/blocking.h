/* The blocking of a matmul: how large the blocks are into which the five loops around the micro-kernel cut a product,
 * and which part of the output each thread of a team computes. Where each size comes from stands in blocking.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"
#include "kernels/simd/microkernel.h"
#include "kernels/simd/vector.h"
#include "kernels/team.h"

/* The block sizes of one product C (m,n) = A (m,k) * B (k,n), none of whose sizes is 0. */
struct blocking {
    size_t MC;       /* loop 3: rows of A and of C, a multiple of MR */
    size_t KC;       /* loop 4: steps between two stores of the running sums, a multiple of LANES */
    size_t MP;       /* of backward_weight, which packs A: rows that are packed at a time, a multiple of MR */
    size_t NC;       /* loop 5: columns of B and of C, a multiple of NR */
    size_t NG;       /* columns that meet all MC rows before the next columns do, a multiple of NR */
    size_t together; /* of forward: units of the same rows that a thread computes as one, at most */
};

/* Derives the block sizes from these caches; not while kernels run. */
void SIMD_NAME(fit_caches)(const struct caches *caches);

/* What a team packs at a time takes three eighths of its second-level caches together. Its units of (MC,NG) are smaller
 * than one thread's blocks, so that there are several for each thread. */
struct blocking SIMD_NAME(blocking_forward)(struct team team, size_t m, size_t n, size_t k);
struct blocking SIMD_NAME(blocking_backward_input)(struct team team, size_t m, size_t n, size_t k);
struct blocking SIMD_NAME(blocking_backward_weight)(struct team team, size_t m, size_t n, size_t k);

/* Units of (MC,NG) in an output (m,n), numbered along a row. */
static inline size_t units_of(const struct blocking *blocking, size_t m, size_t n)
{
    return parts_of(m, blocking->MC) * parts_of(n, blocking->NG);
}

/* The KC of attention's products. */
size_t SIMD_NAME(blocking_attention_KC)(void);

/* Whether `count` floats that are read for each block should be prefetched into the second-level cache each time. */
bool SIMD_NAME(prefetch_pays)(size_t count);

/* Micro-tiles of a block (m,n). */
static inline size_t tiles_of(size_t m, size_t n)
{
    return parts_of(m, MR) * parts_of(n, NR);
}

/* Products of so few terms that packing takes longer than it saves. */
bool SIMD_NAME(is_small_matmul)(size_t m, size_t n, size_t k);

/* Rows ld floats apart fall into few sets of the first-level cache, which cannot hold MR of them at the same time. */
static inline bool has_set_conflict(size_t ld)
{
    /* 64 sets of 64-byte lines repeat every 1024 floats; a multiple of half of it leaves two sets. */
    return ld % 512 == 0;
}

/* A distance of rows of `length` floats without a set conflict: an odd number of cache lines. */
static inline size_t row_distance(size_t length)
{
    return (parts_of(length, FLOATS_PER_LINE) | 1) * FLOATS_PER_LINE;
}
