/* attention_backward: one head of one sequence at a time.
 *
 *   datt = dout * values'            pack values' transpose; for t by MR: scores_product
 *   dvalues = att' * dout            pack dout; sum_over_future
 *   dpreatt, of att and datt         LANES rows at a time
 *   dqueries = dpreatt * keys        pack keys; for t by MR: sum_over_past
 *   dkeys = dpreatt' * queries       pack queries; sum_over_future
 *
 * q, k, v and their gradients are (T,hs) with rows 3C apart, dout is (T,hs) with rows C apart. The prefetch plan of a
 * step is the next head's rows. A head is one thread's: dk needs dpreatt of all later rows. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/simd/attention.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/packing.h"
#include "kernels/simd/scratch.h"

enum {
    SMALL_HEAD = 1024, /* T * T * hs up to which packing takes longer than it saves; measured */
    /* t3 at a time: a sum and a factor of each stay in registers, beside what one step needs */
    SOFTMAX_COLUMNS = SIMD_REGISTERS == 16 || LANES < 8 ? 4 : 8
};
_Static_assert(LANES % SOFTMAX_COLUMNS == 0, "no columns are on both sides of the first row");

/* One head of one sequence. */
struct backward_head {
    float *dq, *dpreatt, *datt;
    const float *dout, *q, *att;
};

static struct backward_head head_of(struct backward_head first, size_t bh, const struct head_sizes *sizes)
{
    const size_t b = bh / sizes->NH, h = bh % sizes->NH, T = sizes->T, hs = sizes->hs, C = sizes->C,
                 row = b * T * 3 * C + h * hs;
    return (struct backward_head){first.dq + row,          first.dpreatt + bh * T * T,
                                  first.datt + bh * T * T, first.dout + b * T * C + h * hs,
                                  first.q + row,           first.att + bh * T * T};
}

/* ---- The softmax's gradient: dpreatt[t,t3] = ordered sum over t2 <= t from 0 of
 *      (att[t,t2] * ((t2 == t3 ? 1 : 0) - att[t,t3])) * datt[t,t2]. Lanes go across rows t.
 *
 * A column's att and datt serve two sums: that of the larger column, whose turn it is, and that of the smaller one,
 * which has had the terms of all columns in between. For t2 != t3 the product of the two att is the same when t2 and t3
 * change places, but for the sign of a zero. No strict sum keeps that: it starts from +0, and so is never -0. A fused
 * one may be, by a product that is too small for a denormal number; so fused sums that are 0 at last are computed
 * again.
 * ---- */

/* Lanes l >= n are all ones in the vector at lanes_from + LANES - n. */
static const int32_t lanes_from[2 * LANES] = {[LANES... 2 * LANES - 1] = -1};

/* sum + product * datt; if it is masked, only in the lanes of the rows that take column t2's terms: t + l >= t2. */
SIMD_INLINE vector add_causal(vector sum, vector product, vector datt, bool masked, size_t t2, size_t t)
{
    const vector added = VECTOR_MULTIPLY_ADD(product, datt, sum);
    if (!masked)
        return added;
    return vector_select(*(const vector_int_unaligned *)(lanes_from + LANES - (t2 - t)), added, sum);
}

/* sum[j] += t2's term; the sum `own` is that of column t2 itself, -1 if it isn't among them. */
SIMD_INLINE void add_terms(vector *sum, const vector *factor, int own, const float *attT, const float *dattT, size_t t2,
                           size_t t, bool masked)
{
    const vector att = vector_load(attT + t2 * LANES), datt = vector_load(dattT + t2 * LANES);
    UNROLLED
    for (int j = 0; j < SOFTMAX_COLUMNS; j++) {
        vector product = att * factor[j];
        if (j == own)
            product = att * (vector_of(1.0f) - att);
        sum[j] = add_causal(sum[j], product, datt, masked, t2, t);
    }
}

/* SOFTMAX_COLUMNS columns from t3 on, for a vector of rows from t on: attT, dattT and dpreattT are the rows'
 * transposes, a row's lane in every vector. The columns get their terms up to t3 and their own; the columns before them
 * get theirs. With `last`, these are columns of the rows' own t, from t to count: they get all their terms, and only
 * the columns before t get theirs.
 *
 * The pointers aren't restrict, so that the columns' datt is read from memory in each step: kept in registers, it left
 * too few of AVX2's, and the compiler stored and reloaded a sum, which took 1.6 times as long. */
SIMD_INLINE void softmax_backward_columns(float *dpreattT, const float *attT, const float *dattT, size_t t3, size_t t,
                                          size_t count, bool last)
{
    const vector zero = {0};
    vector sum[SOFTMAX_COLUMNS], factor[SOFTMAX_COLUMNS];
    for (size_t j = 0; j < SOFTMAX_COLUMNS; j++) {
        sum[j] = zero;
        factor[j] = zero - vector_load(attT + (t3 + j) * LANES);
    }
    size_t t2 = 0;
    for (; t2 < (last ? t : t3); t2++) {
        const vector att = vector_load(attT + t2 * LANES), datt = vector_load(dattT + t2 * LANES);
        vector before = vector_load(dpreattT + t2 * LANES);
        for (size_t j = 0; j < SOFTMAX_COLUMNS; j++) {
            const vector product = att * factor[j];
            sum[j] = VECTOR_MULTIPLY_ADD(product, datt, sum[j]);
            before = add_causal(before, product, vector_load(dattT + (t3 + j) * LANES), last, t3 + j, t);
        }
        vector_store(dpreattT + t2 * LANES, before);
    }
    for (; t2 < t3; t2++)
        add_terms(sum, factor, -1, attT, dattT, t2, t, last);
    UNROLLED
    for (int own = 0; own < SOFTMAX_COLUMNS; own++)
        add_terms(sum, factor, own, attT, dattT, t3 + (size_t)own, t, last);
    for (t2 = t3 + SOFTMAX_COLUMNS; last && t2 < count; t2++)
        add_terms(sum, factor, -1, attT, dattT, t2, t, last);
    for (size_t j = 0; j < SOFTMAX_COLUMNS; j++)
        vector_store(dpreattT + (t3 + j) * LANES, sum[j]);
}

/* Floats of the room that softmax_backward_rows() takes: three transposes. */
static size_t softmax_room(size_t T)
{
    return 3 * rounded_up(T, SOFTMAX_COLUMNS) * LANES;
}

/* Row t's sums that are 0, by the formula. */
static void repeat_zeros(float *dpreatt, const float *att, const float *datt, size_t t)
{
    for (size_t t3 = 0; t3 <= t; t3++) {
        if (dpreatt[t3] != 0.0f)
            continue;
        float sum = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++)
            sum = MULTIPLY_ADD(att[t2] * ((t2 == t3 ? 1.0f : 0.0f) - att[t3]), datt[t2], sum);
        dpreatt[t3] = sum;
    }
}

/* Rows t to t + rows, at most a vector of them. */
static void softmax_backward_rows(const struct backward_head *head, float *room, size_t t, size_t rows, size_t T)
{
    const size_t count = t + rows, vectors = rounded_up(count, SOFTMAX_COLUMNS);
    float *attT = room, *dattT = attT + vectors * LANES, *dpreattT = dattT + vectors * LANES;
    if (rows < LANES)
        memset(room, 0, 2 * vectors * LANES * sizeof(float));
    SIMD_NAME(transpose)(attT, LANES, head->att + t * T, T, rows, count);
    SIMD_NAME(transpose)(dattT, LANES, head->datt + t * T, T, rows, count);
    size_t t3 = 0;
    for (; t3 < t; t3 += SOFTMAX_COLUMNS)
        softmax_backward_columns(dpreattT, attT, dattT, t3, t, count, false);
    for (; t3 < count; t3 += SOFTMAX_COLUMNS)
        softmax_backward_columns(dpreattT, attT, dattT, t3, t, count, true);
    SIMD_NAME(transpose)(head->dpreatt + t * T, T, dpreattT, LANES, count, rows);
    for (size_t r = t; IS_FUSED && r < count; r++)
        repeat_zeros(head->dpreatt + r * T, head->att + r * T, head->datt + r * T, r);
}

/* ---- A head ---- */

/* datt of a head; meanwhile the next head's queries, keys and values are prefetched. */
static void backward_scores(const struct backward_head *head, const struct backward_head *next,
                            const struct head_sizes *sizes, float *packed)
{
    const size_t T = sizes->T, hs = sizes->hs, C = sizes->C;
    SIMD_NAME(pack_b_transposed)(packed, head->q + 2 * C, 3 * C, hs, T);
    for (size_t t = 0; t < T; t += MR) {
        const struct score_rows rows = {.t = t, .rows = smaller(MR, T - t), .count = T, .T = T, .hs = hs};
        SIMD_NAME(scores_product)(head->datt, head->dout, C, packed, &rows);
        if (next->q)
            prefetch_qkv(next->q, t, t + rows.rows, hs, C);
    }
}

/* dpreatt of a head, and both it and datt past the causal edge. */
static void backward_softmax(const struct backward_head *head, const struct backward_head *next,
                             const struct head_sizes *sizes, float *room)
{
    const size_t T = sizes->T;
    for (size_t t = 0; t < T; t += LANES) {
        const size_t rows = smaller(LANES, T - t);
        softmax_backward_rows(head, room, t, rows, T);
        if (next->q) {
            prefetch_rows(next->dout, sizes->hs, sizes->C, t, t + rows);
            prefetch_rows(next->att, T, T, t, t + rows);
        }
    }
    for (size_t t = 0; t < T; t++) {
        memset(head->dpreatt + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
        memset(head->datt + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
    }
}

/* false: there is no memory to pack. */
static bool backward_packed(const struct backward_head *head, const struct backward_head *next,
                            const struct head_sizes *sizes)
{
    const size_t T = sizes->T, hs = sizes->hs, C = sizes->C;
    float *dq = head->dq, *dk = dq + C, *dv = dk + C;
    const float *q = head->q, *k = q + C;
    const size_t b_room = rounded_up(T, NR) * rounded_up(hs, NR);
    float *b = kernels_scratch(b_room + softmax_room(T) + SIMD_NAME(sum_over_future_room)());
    if (!b)
        return false;
    float *room = b + b_room, *a = room + softmax_room(T);
    backward_scores(head, next, sizes, b);
    SIMD_NAME(pack_b)(b, head->dout, C, T, hs, (struct share){0, T});
    SIMD_NAME(sum_over_future)(dv, 3 * C, head->att, b, a, UNSCALED, T, hs);
    backward_softmax(head, next, sizes, room);
    SIMD_NAME(pack_b)(b, k, 3 * C, T, hs, (struct share){0, T});
    for (size_t t = 0; t < T; t += MR) {
        const struct score_rows rows = {.t = t, .rows = smaller(MR, T - t), .count = T, .T = T, .hs = hs};
        SIMD_NAME(sum_over_past)(dq, 3 * C, head->dpreatt, b, sizes->scale, &rows);
        if (next->q)
            prefetch_qkv(next->dq, t, t + rows.rows, hs, C);
    }
    SIMD_NAME(pack_b)(b, q, 3 * C, T, hs, (struct share){0, T});
    SIMD_NAME(sum_over_future)(dk, 3 * C, head->dpreatt, b, a, sizes->scale, T, hs);
    return true;
}

void SIMD_NAME(attention_backward)(float *dqkv /* (B,T,3C) */, float *dpreatt /* (B,NH,T,T) */,
                                   float *datt /* (B,NH,T,T) */, const float *dout /* (B,T,C) */,
                                   const float *qkv /* (B,T,3C) */, const float *att /* (B,NH,T,T) */, size_t B,
                                   size_t T, size_t C, size_t NH, struct team team)
{
    const size_t hs = C / NH;
    const struct head_sizes sizes = {T, hs, C, NH, 1.0f / sqrtf((float)hs)};
    if (T * T * hs <= SMALL_HEAD) {
        SIMD_NAME(attention_backward_unpacked)(dqkv, dpreatt, datt, dout, qkv, att, B, T, C, NH, team);
        return;
    }
    const struct share own = team_share(team, B * NH, 1);
    const struct backward_head first = {dqkv, dpreatt, datt, dout, qkv, att}, none = {0};
    for (size_t bh = own.begin; bh < own.end; bh++) {
        const struct backward_head head = head_of(first, bh, &sizes);
        const struct backward_head next = bh + 1 < own.end ? head_of(first, bh + 1, &sizes) : none;
        if (!backward_packed(&head, &next, &sizes)) /* the first head of those from this one on */
            SIMD_NAME(attention_backward_unpacked)(head.dq, head.dpreatt, head.datt, head.dout, head.q, head.att, 1, T,
                                                   C, NH, (struct team){0, (int)NH, NULL});
    }
}
