/* attention_forward: one head of one sequence at a time, or a part of a head's rows.
 *
 *   pack the head's keys' transpose and its values
 *   for t by MR               loop 1
 *     preatt of MR rows       scores_product: loops 4 and 2
 *     softmax of each row
 *     out of MR rows          sum_over_past: loops 4 and 2
 *
 * q, k and v are (T,hs) with rows 3C apart, out is (T,hs) with rows C apart. The prefetch plan of a row is the next
 * head's row: a head's rows lie a page or more apart, which the processor's own prefetchers do not follow. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/simd/attention.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/packing.h"
#include "kernels/simd/scratch.h"

enum {
    SMALL_HEAD = 2048,   /* T * T * hs up to which packing takes longer than it saves; measured */
    PARTS_PER_THREAD = 4 /* a head's rows are cut until there are as many parts for each thread */
};

/* One head of one sequence; k and v are C and 2C behind q. */
struct forward_head {
    float *out, *preatt, *att;
    const float *q;
};

static struct forward_head head_of(struct forward_head first, size_t bh, const struct head_sizes *sizes)
{
    const size_t b = bh / sizes->NH, h = bh % sizes->NH, T = sizes->T, hs = sizes->hs, C = sizes->C;
    return (struct forward_head){first.out + b * T * C + h * hs, first.preatt + bh * T * T, first.att + bh * T * T,
                                 first.q + b * T * 3 * C + h * hs};
}

SIMD_INLINE void prefetch_head(const struct forward_head *head, size_t t, const struct head_sizes *sizes)
{
    if (!head->q)
        return;
    prefetch_qkv(head->q, t, t + 1, sizes->hs, sizes->C);
    prefetch_rows(head->preatt, sizes->T, sizes->T, t, t + 1);
    prefetch_rows(head->att, sizes->T, sizes->T, t, t + 1);
    prefetch_rows(head->out, sizes->hs, sizes->C, t, t + 1);
}

/* att[t] of preatt[t] before it is scaled, and both past the causal edge. */
static void softmax_row(float *preatt, float *att, float scale, size_t t, size_t T)
{
    for (size_t t2 = 0; t2 <= t; t2++)
        preatt[t2] *= scale;
    const float z = SIMD_NAME(softmax_exponentials)(att, preatt, t + 1, NULL);
    const float r = z == 0.0f ? 0.0f : 1.0f / z;
    for (size_t t2 = 0; t2 <= t; t2++)
        att[t2] *= r;
    memset(preatt + t + 1, 0, (T - t - 1) * sizeof(float));
    memset(att + t + 1, 0, (T - t - 1) * sizeof(float));
}

/* Rows begin to end; meanwhile the next head's are prefetched. false: there is no memory to pack. */
static bool forward_packed(const struct forward_head *head, const struct forward_head *next,
                           const struct head_sizes *sizes, size_t begin, size_t end)
{
    const size_t T = sizes->T, hs = sizes->hs, C = sizes->C;
    const float *q = head->q, *k = q + C, *v = k + C;
    const size_t keys_room = rounded_up(end, NR) * hs, values_room = end * rounded_up(hs, NR);
    float *keys = kernels_scratch(keys_room + values_room);
    if (!keys)
        return false;
    float *values = keys + keys_room;
    SIMD_NAME(pack_b_transposed)(keys, k, 3 * C, hs, end);
    SIMD_NAME(pack_b)(values, v, 3 * C, end, hs, (struct share){0, end});
    for (size_t t = begin; t < end; t += MR) {
        const struct score_rows rows = {.t = t, .rows = smaller(MR, end - t), .count = end, .T = T, .hs = hs};
        SIMD_NAME(scores_product)(head->preatt, q, 3 * C, keys, &rows);
        for (size_t r = t; r < t + rows.rows; r++) {
            softmax_row(head->preatt + r * T, head->att + r * T, sizes->scale, r, T);
            prefetch_head(next, r, sizes);
        }
        SIMD_NAME(sum_over_past)(head->out, C, head->att, values, UNSCALED, &rows);
    }
    return true;
}

/* The same without packing: the first head's rows of those from this head on. */
static void forward_unpacked(const struct forward_head *head, const struct head_sizes *sizes, size_t begin, size_t end)
{
    for (size_t t = begin; t < end; t++)
        SIMD_NAME(attention_forward_unpacked)(head->out, head->preatt, head->att, head->q, 1, sizes->T, sizes->C,
                                              sizes->NH, (struct team){(int)t, (int)(sizes->NH * sizes->T), NULL});
}

/* The first row of part `part` of a head's `parts`, which have about as many scores each: row t has t + 1. */
static size_t first_row(size_t part, size_t parts, size_t T)
{
    const float row = sqrtf((float)part / (float)parts) * (float)T;
    return part == parts ? T : smaller((size_t)row / MR * MR, T);
}

void SIMD_NAME(attention_forward)(float *out /* (B,T,C) */, float *preatt /* (B,NH,T,T) */, float *att /* (B,NH,T,T) */,
                                  const float *qkv /* (B,T,3C) */, size_t B, size_t T, size_t C, size_t NH,
                                  struct team team)
{
    const size_t hs = C / NH, heads = B * NH, wanted = PARTS_PER_THREAD * (size_t)team.count;
    const struct head_sizes sizes = {T, hs, C, NH, (float)(1.0 / (double)sqrtf((float)hs))};
    const struct forward_head first = {out, preatt, att, qkv}, none = {0};
    if (T * T * hs <= SMALL_HEAD) {
        SIMD_NAME(attention_forward_unpacked)(out, preatt, att, qkv, B, T, C, NH, team);
        return;
    }
    const size_t parts = team.count == 1 || heads >= wanted ? 1 : parts_of(wanted, heads);
    const struct share own = team_share(team, heads * parts, 1);
    for (size_t unit = own.begin; unit < own.end; unit++) {
        const size_t bh = unit / parts, part = unit % parts;
        const size_t begin = first_row(part, parts, T), end = first_row(part + 1, parts, T);
        if (begin == end)
            continue;
        const struct forward_head head = head_of(first, bh, &sizes);
        const struct forward_head next = (bh + 1) * parts < own.end ? head_of(first, bh + 1, &sizes) : none;
        if (!forward_packed(&head, &next, &sizes, begin, end))
            forward_unpacked(&head, &sizes, begin, end);
    }
}
