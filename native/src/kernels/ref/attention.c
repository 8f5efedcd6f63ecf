/* Causal attention: forward and backward. A thread computes rows of heads; backward whole heads, as dk and dv of a row
 * need all later rows. */
#include "kernels/ref/ref.h"

#include <math.h>

void attention_forward_ref(float *out, float *preatt, float *att, const float *qkv, size_t B, size_t T, size_t C,
                           size_t NH, struct team team)
{
    const size_t hs = C / NH;
    const float scale = (float)(1.0 / (double)sqrtf((float)hs));
    const struct share rows = team_share(team, B * NH * T, 1);
    for (size_t row = rows.begin; row < rows.end; row++) {
        const size_t bh = row / T, t = row % T, b = bh / NH, h = bh % NH;
        const float *q = qkv + (b * T + t) * 3 * C + h * hs;
        float *pre = preatt + row * T;
        float *a = att + row * T;
        float *o = out + (b * T + t) * C + h * hs;
        float mx = -10000.0f;
        for (size_t t2 = 0; t2 <= t; t2++) {
            const float *k = qkv + (b * T + t2) * 3 * C + h * hs + C;
            float sum = 0.0f;
            for (size_t i = 0; i < hs; i++)
                sum = MULTIPLY_ADD(q[i], k[i], sum);
            pre[t2] = sum * scale;
            if (pre[t2] > mx)
                mx = pre[t2];
        }
        float z = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++) {
            a[t2] = cr_expf(pre[t2] - mx);
            z += a[t2];
        }
        const float r = z == 0.0f ? 0.0f : 1.0f / z;
        for (size_t t2 = 0; t2 <= t; t2++)
            a[t2] *= r;
        for (size_t t2 = t + 1; t2 < T; t2++)
            pre[t2] = a[t2] = 0.0f;
        for (size_t i = 0; i < hs; i++)
            o[i] = 0.0f;
        for (size_t t2 = 0; t2 <= t; t2++) {
            const float *v = qkv + (b * T + t2) * 3 * C + h * hs + 2 * C;
            for (size_t i = 0; i < hs; i++)
                o[i] = MULTIPLY_ADD(a[t2], v[i], o[i]);
        }
    }
}

void attention_backward_ref(float *dqkv, float *dpreatt, float *datt, const float *dout, const float *qkv,
                            const float *att, size_t B, size_t T, size_t C, size_t NH, struct team team)
{
    const size_t hs = C / NH, row = 3 * C;
    const float scale = 1.0f / sqrtf((float)hs);
    const struct share heads = team_share(team, B * NH, 1);
    for (size_t bh = heads.begin; bh < heads.end; bh++) {
        const size_t b = bh / NH, h = bh % NH;
        const float *q = qkv + b * T * row + h * hs, *k = q + C, *v = k + C;
        float *dq = dqkv + b * T * row + h * hs, *dk = dq + C, *dv = dk + C;
        for (size_t t = 0; t < T; t++)
            for (size_t i = 0; i < hs; i++)
                dq[t * row + i] = dk[t * row + i] = dv[t * row + i] = 0.0f;
        for (size_t t = 0; t < T; t++) {
            const float *a = att + (bh * T + t) * T;
            const float *d = dout + (b * T + t) * C + h * hs;
            float *da = datt + (bh * T + t) * T;
            float *dpre = dpreatt + (bh * T + t) * T;
            for (size_t t2 = 0; t2 < T; t2++)
                dpre[t2] = da[t2] = 0.0f;
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t i = 0; i < hs; i++) {
                    da[t2] = MULTIPLY_ADD(v[t2 * row + i], d[i], da[t2]);
                    dv[t2 * row + i] = MULTIPLY_ADD(a[t2], d[i], dv[t2 * row + i]);
                }
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t t3 = 0; t3 <= t; t3++) {
                    const float indicator = t2 == t3 ? 1.0f : 0.0f;
                    dpre[t3] = MULTIPLY_ADD(a[t2] * (indicator - a[t3]), da[t2], dpre[t3]);
                }
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t i = 0; i < hs; i++) {
                    dq[t * row + i] = MULTIPLY_ADD(k[t2 * row + i] * dpre[t2], scale, dq[t * row + i]);
                    dk[t2 * row + i] = MULTIPLY_ADD(q[t * row + i] * dpre[t2], scale, dk[t2 * row + i]);
                }
        }
    }
}
