/* Causal attention: forward and backward, one head of one sequence at a time.
 * override.c offers them.
 *
 * Per head, with t, t2 and t3 positions and t2, t3 <= t: q, k and v are (T,hs) with rows 3C apart, out is (T,hs) with
 * rows C apart, the scores are (T,T). What the causal edge cuts off is not computed, but for the rest of its tile. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/softmax.h"
#include "kernels/simd/tile.h"

enum {
    SMALL_FORWARD = 2048, /* T * T * hs up to which packing takes longer than it saves; measured */
    SMALL_BACKWARD = 1024,
    UNITS_PER_THREAD = 4 /* a head is cut until there are so many parts for each thread */
};

static size_t rounded_up(size_t x, size_t grain)
{
    return (x + grain - 1) / grain * grain;
}

/* ---- Memory ---- */

/* GCC 12 takes a function that only asks for memory for one without effect, and leaves out its calls. */
#define ASKING static inline __attribute__((always_inline)) void

/* Rows begin to end of x, each `length` floats, ld apart, are asked for. A head's rows lie a page or more apart, so the
 * processor doesn't foresee that the next head's will be needed. */
ASKING ask_for_rows(const float *x, size_t length, size_t ld, size_t begin, size_t end)
{
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < length; i += FLOATS_PER_LINE)
            __builtin_prefetch(x + t * ld + i, 0, 2);
}

/* The same of a head's queries, keys and values, or of their gradients. */
ASKING ask_for_qkv(const float *qkv, size_t begin, size_t end, size_t hs, size_t C)
{
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < 3; i++)
            ask_for_rows(qkv + i * C, hs, 3 * C, t, t + 1);
}

/* ---- Panels and products of a head ---- */

/* Panels of b's transpose, b (count,hs): every t2 a column, every i a step. Takes rounded_up(count, TILE_COLUMNS) * hs
 * floats. */
static void transposed_panels(float *panels, const float *b, size_t ldb, size_t count, size_t hs)
{
    for (size_t t2 = 0; t2 < count; t2 += TILE_COLUMNS)
        SIMD_NAME(panel_transpose)(panels + t2 * hs, b + t2 * ldb, ldb, hs, smaller(TILE_COLUMNS, count - t2));
}

/* Rows t to t + rows of scores[t,t2] = ordered sum over i from 0 of from[t,i] * b[t2,i], b being `count` transposed
 * panels. Tiles that the causal edge cuts are computed whole; the caller overwrites what is past it. */
static void scores_rows(float *scores, const float *from, size_t ldfrom, const float *panels, size_t t, size_t rows,
                        size_t count, size_t T, size_t hs)
{
    for (size_t i = 0; i < hs; i += TILE_DEPTH) {
        const size_t depth = smaller(TILE_DEPTH, hs - i);
        for (size_t t2 = 0; t2 < t + rows; t2 += TILE_COLUMNS) {
            const size_t columns = smaller(TILE_COLUMNS, count - t2);
            SIMD_NAME(tile_product_scaled)(scores + t * T + t2, T, i == 0 ? SIMD_NAME(tile_zeros) : NULL,
                                           from + t * ldfrom + i, ldfrom, 1,
                                           panels + t2 * hs + i * panel_width(columns), rows, columns, depth, 1.0f);
        }
    }
}

/* Rows t to t + rows of c[t,i] = ordered sum over t2 <= t from 0 of (scores[t,t2] * b[t2,i]) * scale, b being panels of
 * `count` steps. */
static void sum_over_past(float *c, size_t ldc, const float *scores, const float *panels, float scale, size_t t,
                          size_t rows, size_t count, size_t T, size_t hs)
{
    for (size_t t2 = 0; t2 < t; t2 += TILE_DEPTH) {
        const size_t depth = smaller(TILE_DEPTH, t - t2);
        for (size_t i = 0; i < hs; i += TILE_COLUMNS) {
            const size_t columns = smaller(TILE_COLUMNS, hs - i);
            SIMD_NAME(tile_product_scaled)(c + t * ldc + i, ldc, t2 == 0 ? SIMD_NAME(tile_zeros) : NULL,
                                           scores + t * T + t2, T, 1, panels + i * count + t2 * panel_width(columns),
                                           rows, columns, depth, scale);
        }
    }
    for (size_t i = 0; i < hs; i += TILE_COLUMNS) {
        const size_t columns = smaller(TILE_COLUMNS, hs - i);
        SIMD_NAME(tile_triangle)(c + t * ldc + i, ldc, t == 0 ? SIMD_NAME(tile_zeros) : NULL, scores + t * T + t, T, 1,
                                 panels + i * count + t * panel_width(columns), rows, columns, STEPS_UP_TO_ROW, scale);
    }
}

/* c[t2,i] = ordered sum over t >= t2 from 0 of (scores[t,t2] * b[t,i]) * scale, b being panels of T steps. */
static void sum_over_future(float *c, size_t ldc, const float *scores, const float *panels, float *a, float scale,
                            size_t T, size_t hs)
{
    for (size_t t2 = 0; t2 < T; t2 += TILE_ROWS) {
        const size_t rows = smaller(TILE_ROWS, T - t2);
        for (size_t i = 0; i < hs; i += TILE_COLUMNS) {
            const size_t columns = smaller(TILE_COLUMNS, hs - i);
            SIMD_NAME(tile_triangle)(c + t2 * ldc + i, ldc, SIMD_NAME(tile_zeros), scores + t2 * T + t2, 1, T,
                                     panels + i * T + t2 * panel_width(columns), rows, columns, STEPS_FROM_ROW, scale);
        }
        for (size_t t = t2 + rows; t < T; t += TILE_DEPTH) {
            const size_t depth = smaller(TILE_DEPTH, T - t);
            SIMD_NAME(pack_steps)(a, scores + t * T + t2, T, rows, depth);
            for (size_t i = 0; i < hs; i += TILE_COLUMNS) {
                const size_t columns = smaller(TILE_COLUMNS, hs - i);
                SIMD_NAME(tile_product_scaled)(c + t2 * ldc + i, ldc, NULL, a, 1, TILE_ROWS,
                                               panels + i * T + t * panel_width(columns), rows, columns, depth, scale);
            }
        }
    }
}

/* ---- Forward ---- */

/* att[t] of preatt[t] before it is scaled, and what both are past the causal edge. */
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

/* One head of one sequence. */
struct forward_head {
    float *out, *preatt, *att;
    const float *qkv; /* NULL: there is none */
};

static struct forward_head forward_head(struct forward_head first, size_t bh, size_t T, size_t C, size_t NH)
{
    const size_t b = bh / NH, h = bh % NH, hs = C / NH;
    return (struct forward_head){first.out + b * T * C + h * hs, first.preatt + bh * T * T, first.att + bh * T * T,
                                 first.qkv + b * T * 3 * C + h * hs};
}

ASKING ask_for_forward(struct forward_head head, size_t t, size_t T, size_t hs, size_t C)
{
    if (!head.qkv)
        return;
    ask_for_qkv(head.qkv, t, t + 1, hs, C);
    ask_for_rows(head.preatt, T, T, t, t + 1);
    ask_for_rows(head.att, T, T, t, t + 1);
    ask_for_rows(head.out, hs, C, t, t + 1);
}

/* Rows begin to end of one head where there is no memory to pack: every sum as numerics.md writes it. */
static void forward_unpacked(float *restrict out, float *restrict preatt, float *restrict att, const float *restrict q,
                             const float *restrict k, const float *restrict v, float scale, size_t begin, size_t end,
                             size_t T, size_t hs, size_t C)
{
    for (size_t t = begin; t < end; t++) {
        for (size_t t2 = 0; t2 <= t; t2++) {
            float sum = 0.0f;
            for (size_t i = 0; i < hs; i++)
                sum += q[t * 3 * C + i] * k[t2 * 3 * C + i];
            preatt[t * T + t2] = sum;
        }
        softmax_row(preatt + t * T, att + t * T, scale, t, T);
        for (size_t i = 0; i < hs; i++)
            out[t * C + i] = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++)
            for (size_t i = 0; i < hs; i++)
                out[t * C + i] += att[t * T + t2] * v[t2 * 3 * C + i];
    }
}

static void forward_rows(struct forward_head head, float scale, size_t begin, size_t end, size_t T, size_t hs, size_t C,
                         struct forward_head next)
{
    float *out = head.out, *preatt = head.preatt, *att = head.att;
    const float *q = head.qkv, *k = q + C, *v = k + C;
    const size_t key_room = rounded_up(end, TILE_COLUMNS) * hs, value_room = end * rounded_up(hs, TILE_COLUMNS);
    float *keys = kernels_scratch(key_room + value_room);
    if (!keys) {
        forward_unpacked(out, preatt, att, q, k, v, scale, begin, end, T, hs, C);
        return;
    }
    float *values = keys + key_room;
    transposed_panels(keys, k, 3 * C, end, hs);
    SIMD_NAME(panels_copy)(values, v, 3 * C, end, hs);
    for (size_t t = begin; t < end; t += TILE_ROWS) {
        const size_t rows = smaller(TILE_ROWS, end - t);
        scores_rows(preatt, q, 3 * C, keys, t, rows, end, T, hs);
        for (size_t r = t; r < t + rows; r++) {
            softmax_row(preatt + r * T, att + r * T, scale, r, T);
            ask_for_forward(next, r, T, hs, C);
        }
        sum_over_past(out, C, att, values, 1.0f, t, rows, end, T, hs);
    }
}

/* The first row of a head's part `part` of `parts` with as many scores each, as rows have t + 1 of them. */
static size_t first_row(size_t part, size_t parts, size_t T)
{
    const float row = sqrtf((float)part / (float)parts) * (float)T;
    return part == parts ? T : smaller((size_t)row / TILE_ROWS * TILE_ROWS, T);
}

void SIMD_NAME(attention_forward)(float *out /* (B,T,C) */, float *preatt /* (B,NH,T,T) */, float *att /* (B,NH,T,T) */,
                                  const float *qkv /* (B,T,3C) */, size_t B, size_t T, size_t C, size_t NH,
                                  struct team team)
{
    const size_t hs = C / NH, heads = B * NH, wanted = UNITS_PER_THREAD * (size_t)team.count;
    const float scale = (float)(1.0 / (double)sqrtf((float)hs));
    if (T * T * hs <= SMALL_FORWARD) {
        attention_forward_ref(out, preatt, att, qkv, B, T, C, NH, team);
        return;
    }
    const size_t parts = team.count == 1 || heads >= wanted ? 1 : (wanted + heads - 1) / heads;
    const struct share own = team_share(team, heads * parts, 1);
    const struct forward_head first = {out, preatt, att, qkv}, none = {0};
    for (size_t unit = own.begin; unit < own.end; unit++) {
        const size_t bh = unit / parts, part = unit % parts;
        const size_t begin = first_row(part, parts, T), end = first_row(part + 1, parts, T);
        const bool more = (bh + 1) * parts < own.end;
        if (begin < end)
            forward_rows(forward_head(first, bh, T, C, NH), scale, begin, end, T, hs, C,
                         more ? forward_head(first, bh + 1, T, C, NH) : none);
    }
}

/* ---- Backward ---- */

enum { SOFTMAX_COLUMNS = SIMD_BYTES == 32 ? 6 : 12 }; /* t3 at a time: their sums and factors stay in registers */

/* The lanes l >= n are all ones in the vector at lanes_from + LANES - n. */
static const int32_t lanes_from[2 * LANES] = {[LANES... 2 * LANES - 1] = -1};

/* sum[j] accumulates (att * factor[j]) * datt, in the lanes of mask if it is `masked`: as no sum here is ever -0,
 * adding +0 in the others changes nothing. */
static inline __attribute__((always_inline)) void add_terms(vector *sum, const vector *factor, vector att, vector datt,
                                                            bool masked, vector_int mask)
{
    for (int j = 0; j < SOFTMAX_COLUMNS; j++) {
        vector term = (att * factor[j]) * datt;
        if (masked)
            term = (vector)((vector_int)term & mask);
        sum[j] += term;
    }
}

/* dpreatt of one tile of t3 for a vector of rows from t on: attT, dattT and dpreattT are the rows' transposes, a row's
 * lane in every vector. Lane l takes the t2 <= t + l, of `count` in all. */
static void softmax_backward_tile(float *restrict dpreattT, const float *restrict attT, const float *restrict dattT,
                                  size_t t3, size_t t, size_t count)
{
    vector sum[SOFTMAX_COLUMNS], factor[SOFTMAX_COLUMNS], with_indicator[SOFTMAX_COLUMNS];
    const vector zero = {0};
    for (int j = 0; j < SOFTMAX_COLUMNS; j++) {
        sum[j] = zero;
        factor[j] = zero - vector_load(attT + (t3 + (size_t)j) * LANES);
        with_indicator[j] = factor[j];
    }
#define AT(x) vector_load((x) + t2 * LANES)
#define MASK *(const vector_int_unaligned *)(lanes_from + LANES - (t2 > t ? t2 - t : 0))
    size_t t2 = 0;
    for (; t2 < smaller(t3, t); t2++)
        add_terms(sum, factor, AT(attT), AT(dattT), false, (vector_int){0});
    for (; t2 < t3; t2++)
        add_terms(sum, factor, AT(attT), AT(dattT), true, MASK);
    for (; t2 < smaller(t3 + SOFTMAX_COLUMNS, count); t2++) {
        with_indicator[t2 - t3] = vector_of(1.0f) - AT(attT);
        add_terms(sum, with_indicator, AT(attT), AT(dattT), true, MASK);
        with_indicator[t2 - t3] = zero - AT(attT);
    }
    for (; t2 < t; t2++)
        add_terms(sum, factor, AT(attT), AT(dattT), false, (vector_int){0});
    for (; t2 < count; t2++)
        add_terms(sum, factor, AT(attT), AT(dattT), true, MASK);
#undef AT
#undef MASK
    for (int j = 0; j < SOFTMAX_COLUMNS; j++)
        vector_store(dpreattT + (t3 + (size_t)j) * LANES, sum[j]);
}

/* Rows t to t + rows, at most a vector of them: dpreatt[t3] = ordered sum over t2 <= t from 0 of (att[t2] * ((t2 == t3
 * ? 1 : 0) - att[t3])) * datt[t2]. room holds three transposes of rounded_up(T, SOFTMAX_COLUMNS) vectors. */
static void softmax_backward_rows(float *dpreatt, const float *att, const float *datt, float *room, size_t t,
                                  size_t rows, size_t T)
{
    const size_t count = t + rows, vectors = rounded_up(count, SOFTMAX_COLUMNS);
    float *attT = room, *dattT = attT + vectors * LANES, *dpreattT = dattT + vectors * LANES;
    if (rows < LANES)
        memset(room, 0, 2 * vectors * LANES * sizeof(float));
    else
        memset(attT + count * LANES, 0, (vectors - count) * LANES * sizeof(float));
    SIMD_NAME(transpose)(attT, LANES, att + t * T, T, rows, count);
    SIMD_NAME(transpose)(dattT, LANES, datt + t * T, T, rows, count);
    for (size_t t3 = 0; t3 < count; t3 += SOFTMAX_COLUMNS)
        softmax_backward_tile(dpreattT, attT, dattT, t3, t, count);
    SIMD_NAME(transpose)(dpreatt + t * T, T, dpreattT, LANES, count, rows);
}

/* One head where there is no memory to pack: every sum as numerics.md writes it. */
static void backward_unpacked(float *restrict dq, float *restrict dk, float *restrict dv, float *restrict dpreatt,
                              float *restrict datt, const float *restrict d, const float *restrict q,
                              const float *restrict k, const float *restrict v, const float *restrict att, float scale,
                              size_t T, size_t hs, size_t C)
{
    const size_t row = 3 * C;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < hs; i++)
            dq[t * row + i] = dk[t * row + i] = dv[t * row + i] = 0.0f;
    for (size_t t = 0; t < T; t++, d += C, att += T, datt += T, dpreatt += T) {
        for (size_t t2 = 0; t2 <= t; t2++) {
            float sum = 0.0f;
            for (size_t i = 0; i < hs; i++) {
                sum += v[t2 * row + i] * d[i];
                dv[t2 * row + i] += att[t2] * d[i];
            }
            datt[t2] = sum;
        }
        for (size_t t2 = 0; t2 < T; t2++)
            dpreatt[t2] = 0.0f;
        for (size_t t2 = t + 1; t2 < T; t2++)
            datt[t2] = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++)
            for (size_t t3 = 0; t3 <= t; t3++)
                dpreatt[t3] += (att[t2] * ((t2 == t3 ? 1.0f : 0.0f) - att[t3])) * datt[t2];
        for (size_t t2 = 0; t2 <= t; t2++)
            for (size_t i = 0; i < hs; i++) {
                dq[t * row + i] += (k[t2 * row + i] * dpreatt[t2]) * scale;
                dk[t2 * row + i] += (q[t * row + i] * dpreatt[t2]) * scale;
            }
    }
}

/* One head of one sequence. */
struct backward_head {
    float *dqkv, *dpreatt, *datt;
    const float *dout, *qkv, *att; /* dqkv and qkv NULL: there is none */
};

static struct backward_head backward_head(struct backward_head first, size_t bh, size_t T, size_t C, size_t NH)
{
    const size_t b = bh / NH, h = bh % NH, hs = C / NH, row = b * T * 3 * C + h * hs;
    return (struct backward_head){first.dqkv + row,        first.dpreatt + bh * T * T,
                                  first.datt + bh * T * T, first.dout + b * T * C + h * hs,
                                  first.qkv + row,         first.att + bh * T * T};
}

static void backward_rows(struct backward_head head, float scale, size_t T, size_t hs, size_t C,
                          struct backward_head next)
{
    float *dq = head.dqkv, *dk = dq + C, *dv = dk + C, *dpreatt = head.dpreatt, *datt = head.datt;
    const float *d = head.dout, *q = head.qkv, *k = q + C, *v = k + C, *att = head.att;
    const size_t panel_room = rounded_up(T, TILE_COLUMNS) * rounded_up(hs, TILE_COLUMNS);
    const size_t softmax_room = 3 * rounded_up(T, SOFTMAX_COLUMNS) * LANES;
    float *panels = kernels_scratch(panel_room + softmax_room + TILE_ROWS * TILE_DEPTH);
    if (!panels) {
        backward_unpacked(dq, dk, dv, dpreatt, datt, d, q, k, v, att, scale, T, hs, C);
        return;
    }
    float *room = panels + panel_room, *a = room + softmax_room;
    transposed_panels(panels, v, 3 * C, T, hs);
    for (size_t t = 0; t < T; t += TILE_ROWS) {
        const size_t rows = smaller(TILE_ROWS, T - t);
        scores_rows(datt, d, C, panels, t, rows, T, T, hs);
        if (next.qkv)
            ask_for_qkv(next.qkv, t, t + rows, hs, C);
    }
    SIMD_NAME(panels_copy)(panels, d, C, T, hs);
    sum_over_future(dv, 3 * C, att, panels, a, 1.0f, T, hs);
    for (size_t t = 0; t < T; t += LANES) {
        const size_t rows = smaller(LANES, T - t);
        softmax_backward_rows(dpreatt, att, datt, room, t, rows, T);
        if (next.qkv) {
            ask_for_rows(next.dout, hs, C, t, t + rows);
            ask_for_rows(next.att, T, T, t, t + rows);
        }
    }
    for (size_t t = 0; t < T; t++) {
        memset(dpreatt + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
        memset(datt + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
    }
    SIMD_NAME(panels_copy)(panels, k, 3 * C, T, hs);
    for (size_t t = 0; t < T; t += TILE_ROWS) {
        const size_t rows = smaller(TILE_ROWS, T - t);
        sum_over_past(dq, 3 * C, dpreatt, panels, scale, t, rows, T, T, hs);
        if (next.qkv)
            ask_for_qkv(next.dqkv, t, t + rows, hs, C);
    }
    SIMD_NAME(panels_copy)(panels, q, 3 * C, T, hs);
    sum_over_future(dk, 3 * C, dpreatt, panels, a, scale, T, hs);
}

void SIMD_NAME(attention_backward)(float *dqkv /* (B,T,3C) */, float *dpreatt /* (B,NH,T,T) */,
                                   float *datt /* (B,NH,T,T) */, const float *dout /* (B,T,C) */,
                                   const float *qkv /* (B,T,3C) */, const float *att /* (B,NH,T,T) */, size_t B,
                                   size_t T, size_t C, size_t NH, struct team team)
{
    const size_t hs = C / NH;
    const float scale = 1.0f / sqrtf((float)hs);
    if (T * T * hs <= SMALL_BACKWARD) {
        attention_backward_ref(dqkv, dpreatt, datt, dout, qkv, att, B, T, C, NH, team);
        return;
    }
    /* Whole heads: dk needs what dpreatt of all later rows comes to. */
    const struct share own = team_share(team, B * NH, 1);
    const struct backward_head first = {dqkv, dpreatt, datt, dout, qkv, att}, none = {0};
    for (size_t bh = own.begin; bh < own.end; bh++)
        backward_rows(backward_head(first, bh, T, C, NH), scale, T, hs, C,
                      bh + 1 < own.end ? backward_head(first, bh + 1, T, C, NH) : none);
}
