/* Heads of attention, and their forward and backward without packing or micro-tiles: for heads so small that packing
 * takes longer than it saves, and where there is no memory to pack. Compiled once for all levels: a small head has few
 * outputs side by side, fewer than the lanes of a long vector. */
#pragma once

#include <stddef.h>

/* q, k, v and their gradients are (T,hs) with rows 3C apart, out and dout are (T,hs) with rows C apart, the scores
 * (preatt, att and their gradients) are (T,T). */
struct head_sizes {
    size_t T, hs, C;
    float scale;
};

/* One head of one sequence, forward; k and v are C and 2C behind q. */
struct forward_head {
    float *out, *preatt, *att;
    const float *q;
};

/* One head of one sequence, backward. */
struct backward_head {
    float *dq, *dpreatt, *datt;
    const float *dout, *q, *att;
};

/* Rows t with begin <= t < end. */
void attention_forward_unpacked(const struct forward_head *head, const struct head_sizes *sizes, size_t begin,
                                size_t end);

void attention_backward_unpacked(const struct backward_head *head, const struct head_sizes *sizes);
