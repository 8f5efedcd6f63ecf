/* Causal attention: forward and backward, one head of one sequence at a time.
 * kernels/select.c offers them to the attention codelets. At most B*NH threads of a team have work.
 *
 * Per head, with t, t2 and t3 positions and t2, t3 <= t: q, k and v are (T,hs) with rows 3C apart, out is (T,hs) with
 * rows C apart, the scores are (T,T). Panels are made once and used for all the rows that need them; where the causal
 * edge cuts through a panel, each row takes its own part of it. */
#include "ref.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "product.h"
#include "softmax.h"

/* T * hs up to which a head is small; measured. */
enum { SMALL_FORWARD = 512, SMALL_BACKWARD = 128 };

/* scores[t,t2] = ordered sum over i from 0 of a[t,i] * b[t2,i]. Blocks that the causal edge cuts are computed whole;
 * the caller overwrites what is past it. */
static void scores_product(float *scores, const float *a, size_t lda, const float *b, size_t ldb, size_t T, size_t hs)
{
    struct panel panel;
    for (size_t t2 = 0; t2 < T; t2 += PANEL_COLUMNS) {
        const size_t columns = smaller(PANEL_COLUMNS, T - t2);
        for (size_t i = 0; i < hs; i += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, hs - i);
            panel_transpose(&panel, b + t2 * ldb + i, ldb, depth, columns);
            panel_product(scores + t2 * T + t2, T, i == 0 ? panel_zeros : NULL, a + t2 * lda + i, lda, T - t2, &panel);
        }
    }
}

/* c[t,i] = ordered sum over t2 <= t from 0 of (scores[t,t2] * b[t2,i]) * scale. */
static void sum_over_past(float *c, size_t ldc, const float *scores, const float *b, size_t ldb, float scale, size_t T,
                          size_t hs)
{
    struct panel panel;
    for (size_t t2 = 0; t2 < T; t2 += PANEL_DEPTH) {
        const size_t depth = smaller(PANEL_DEPTH, T - t2);
        for (size_t i = 0; i < hs; i += PANEL_COLUMNS) {
            const size_t columns = smaller(PANEL_COLUMNS, hs - i);
            const float *initial = t2 == 0 ? panel_zeros : NULL;
            panel_copy(&panel, b + t2 * ldb + i, ldb, depth, columns);
            /* On the causal edge row t takes the panel's steps up to its own; the rows after it take all. */
            panel_product_scaled(c + t2 * ldc + i, ldc, initial, scores + t2 * T + t2, T, depth, &panel, scale,
                                 STEPS_UP_TO_ROW);
            const size_t t = t2 + depth;
            if (t < T)
                panel_product_scaled(c + t * ldc + i, ldc, initial, scores + t * T + t2, T, T - t, &panel, scale,
                                     ALL_STEPS);
        }
    }
}

enum { BLOCK_ROWS = 32 }; /* t2 at a time: their scores take as much room as a panel */
_Static_assert(PANEL_DEPTH % BLOCK_ROWS == 0, "the causal edge meets a block in its first row or not at all");

/* c[t2,i] = ordered sum over t >= t2 from 0 of (scores[t,t2] * b[t,i]) * scale. */
static void sum_over_future(float *c, size_t ldc, const float *scores, const float *b, size_t ldb, float scale,
                            size_t T, size_t hs)
{
    struct panel panel;
    float scoresT[BLOCK_ROWS][PANEL_DEPTH]; /* a block of scores, each t2's values of t side by side */
    for (size_t begin = 0; begin < T; begin += PANEL_DEPTH) {
        const size_t end = smaller(begin + PANEL_DEPTH, T);
        for (size_t t2 = 0; t2 < end; t2 += BLOCK_ROWS) {
            /* On the causal edge the sums begin, t2's at t = t2; before it they continue. */
            const bool edge = t2 >= begin;
            const size_t t = edge ? t2 : begin;
            const size_t rows = smaller(BLOCK_ROWS, end - t2);
            transpose(scoresT[0], PANEL_DEPTH, scores + t * T + t2, T, end - t, rows);
            for (size_t i = 0; i < hs; i += PANEL_COLUMNS) {
                panel_copy(&panel, b + t * ldb + i, ldb, end - t, smaller(PANEL_COLUMNS, hs - i));
                panel_product_scaled(c + t2 * ldc + i, ldc, edge ? panel_zeros : NULL, scoresT[0], PANEL_DEPTH, rows,
                                     &panel, scale, edge ? STEPS_FROM_ROW : ALL_STEPS);
            }
        }
    }
}

/* One small head: making panels would take longer than it saves, so every sum is done as numerics.md writes it. q, k, v
 * are (T,hs) with rows 3C apart, out (T,hs) with rows C apart. */
static void forward_small_head(float *restrict out, float *restrict preatt, float *restrict att,
                               const float *restrict q, const float *restrict k, const float *restrict v, float scale,
                               size_t T, size_t hs, size_t C)
{
    for (size_t t = 0; t < T; t++, q += 3 * C, out += C, preatt += T, att += T) {
        float mx = -10000.0f, z = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++) {
            float sum = 0.0f;
            for (size_t i = 0; i < hs; i++)
                sum += q[i] * k[t2 * 3 * C + i];
            preatt[t2] = sum * scale;
            if (preatt[t2] > mx)
                mx = preatt[t2];
        }
        for (size_t t2 = 0; t2 <= t; t2++) {
            att[t2] = expf(preatt[t2] - mx);
            z += att[t2];
        }
        const float r = z == 0.0f ? 0.0f : 1.0f / z;
        for (size_t i = 0; i < hs; i++)
            out[i] = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++) {
            att[t2] *= r;
            for (size_t i = 0; i < hs; i++)
                out[i] += att[t2] * v[t2 * 3 * C + i];
        }
        for (size_t t2 = t + 1; t2 < T; t2++)
            preatt[t2] = att[t2] = 0.0f;
    }
}

void attention_forward_ref(float *out /* (B,T,C) */, float *preatt /* (B,NH,T,T) */, float *att /* (B,NH,T,T) */,
                           const float *qkv /* (B,T,3C) */, size_t B, size_t T, size_t C, size_t NH, struct team team)
{
    const size_t hs = C / NH;
    const float scale = (float)(1.0 / (double)sqrtf((float)hs));
    const struct share heads = team_share(team, B * NH, 1);
    for (size_t bh = heads.begin; bh < heads.end; bh++) {
        const size_t b = bh / NH, h = bh % NH;
        const float *q = qkv + b * T * 3 * C + h * hs, *k = q + C, *v = k + C;
        if (T <= 64 && T * hs <= SMALL_FORWARD) {
            forward_small_head(out + b * T * C + h * hs, preatt + bh * T * T, att + bh * T * T, q, k, v, scale, T, hs,
                               C);
            continue;
        }
        scores_product(preatt + bh * T * T, q, 3 * C, k, 3 * C, T, hs);
        for (size_t t = 0; t < T; t++) {
            float *pre = preatt + (bh * T + t) * T;
            float *a = att + (bh * T + t) * T;
            for (size_t t2 = 0; t2 <= t; t2++)
                pre[t2] *= scale;
            const float z = softmax_exponentials(a, pre, t + 1);
            const float r = z == 0.0f ? 0.0f : 1.0f / z;
            for (size_t t2 = 0; t2 <= t; t2++)
                a[t2] *= r;
            memset(pre + t + 1, 0, (T - t - 1) * sizeof(float));
            memset(a + t + 1, 0, (T - t - 1) * sizeof(float));
        }
        sum_over_past(out + b * T * C + h * hs, C, att + bh * T * T, v, 3 * C, 1.0f, T, hs);
    }
}

enum { TILE = 24 }; /* t3 at a time: 6 SSE sums and their 6 factors stay in registers */

/* one_at + TILE - 1 - i has a 1 at i and zeros beside it. */
static const float one_at[2 * TILE - 1] = {[TILE - 1] = 1.0f};

/* sum[j] accumulates (att[t2] * factor[j]) * datt[t2], begin <= t2 < end. */
static inline void accumulate_tile(float *restrict sum, const float *restrict factor, const float *restrict att,
                                   const float *restrict datt, size_t begin, size_t end)
{
    for (size_t t2 = begin; t2 < end; t2++)
        for (size_t j = 0; j < TILE; j++)
            sum[j] += (att[t2] * factor[j]) * datt[t2];
}

/* dpreatt[t3] = ordered sum over t2 < count from 0 of (att[t2] * ((t2 == t3 ? 1 : 0) - att[t3])) * datt[t2]. */
static void softmax_backward(float *restrict dpreatt, const float *restrict att, const float *restrict datt,
                             size_t count)
{
    for (size_t t3 = 0; t3 < count; t3 += TILE) {
        const size_t tile = smaller(TILE, count - t3);
        float sum[TILE] = {0}, a[TILE] = {0}, factor[TILE];
        for (size_t j = 0; j < tile; j++)
            a[j] = att[t3 + j];
        for (size_t j = 0; j < TILE; j++)
            factor[j] = 0.0f - a[j];
        accumulate_tile(sum, factor, att, datt, 0, t3);
        for (size_t i = 0; i < tile; i++) {
            const float *indicator = one_at + TILE - 1 - i;
            for (size_t j = 0; j < TILE; j++)
                sum[j] += (att[t3 + i] * (indicator[j] - a[j])) * datt[t3 + i];
        }
        accumulate_tile(sum, factor, att, datt, t3 + tile, count);
        for (size_t j = 0; j < tile; j++)
            dpreatt[t3 + j] = sum[j];
    }
}

/* One small head, likewise; dq, dk, dv as q, k, v, and d as out. */
static void backward_small_head(float *restrict dq, float *restrict dk, float *restrict dv, float *restrict dpreatt,
                                float *restrict datt, const float *restrict d, const float *restrict q,
                                const float *restrict k, const float *restrict v, const float *restrict att,
                                float scale, size_t T, size_t hs, size_t C)
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

void attention_backward_ref(float *dqkv /* (B,T,3C) */, float *dpreatt /* (B,NH,T,T) */, float *datt /* (B,NH,T,T) */,
                            const float *dout /* (B,T,C) */, const float *qkv /* (B,T,3C) */,
                            const float *att /* (B,NH,T,T) */, size_t B, size_t T, size_t C, size_t NH,
                            struct team team)
{
    const size_t hs = C / NH;
    const float scale = 1.0f / sqrtf((float)hs);
    const struct share heads = team_share(team, B * NH, 1);
    for (size_t bh = heads.begin; bh < heads.end; bh++) {
        const size_t b = bh / NH, h = bh % NH;
        const size_t offset = b * T * 3 * C + h * hs;
        const float *q = qkv + offset, *k = q + C, *v = k + C;
        float *dq = dqkv + offset, *dk = dq + C, *dv = dk + C;
        const float *d = dout + b * T * C + h * hs;
        const float *a = att + bh * T * T;
        float *da = datt + bh * T * T;
        float *dpre = dpreatt + bh * T * T;
        if (T <= 24 && T * hs <= SMALL_BACKWARD) {
            backward_small_head(dq, dk, dv, dpre, da, d, q, k, v, a, scale, T, hs, C);
            continue;
        }
        scores_product(da, d, C, v, 3 * C, T, hs);
        sum_over_future(dv, 3 * C, a, d, C, 1.0f, T, hs);
        for (size_t t = 0; t < T; t++) {
            softmax_backward(dpre + t * T, a + t * T, da + t * T, t + 1);
            memset(dpre + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
            memset(da + t * T + t + 1, 0, (T - t - 1) * sizeof(float));
        }
        sum_over_past(dq, 3 * C, dpre, k, 3 * C, scale, T, hs);
        sum_over_future(dk, 3 * C, dpre, q, 3 * C, scale, T, hs);
    }
}
