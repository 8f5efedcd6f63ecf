/* Every sum as numerics.md writes it. The compiler's lanes go across the channels of a head, or across positions t3. */
#include "kernels/simd/attention_unpacked.h"

#include <math.h>

/* One row t of a head: preatt[t2], att[t2], out[i]. */
static void forward_row(float *restrict out, float *restrict preatt, float *restrict att, const float *restrict q,
                        const float *restrict k, const float *restrict v, const struct head_sizes *sizes, size_t t)
{
    const size_t T = sizes->T, hs = sizes->hs, row = 3 * sizes->C;
    const float scale = sizes->scale;
    float mx = -10000.0f, z = 0.0f;
    for (size_t t2 = 0; t2 <= t; t2++) {
        float sum = 0.0f;
        for (size_t i = 0; i < hs; i++)
            sum += q[i] * k[t2 * row + i];
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
            out[i] += att[t2] * v[t2 * row + i];
    }
    for (size_t t2 = t + 1; t2 < T; t2++)
        preatt[t2] = att[t2] = 0.0f;
}

void attention_forward_unpacked(const struct forward_head *head, const struct head_sizes *sizes, size_t begin,
                                size_t end)
{
    const size_t T = sizes->T, C = sizes->C;
    for (size_t t = begin; t < end; t++)
        forward_row(head->out + t * C, head->preatt + t * T, head->att + t * T, head->q + t * 3 * C, head->q + C,
                    head->q + 2 * C, sizes, t);
}

/* Row t: datt[t2] = sum over i of v[t2,i] * dout[i]; dv[t2,i] accumulates att[t2] * dout[i]. */
static void backward_values(float *restrict dv, float *restrict datt, const float *restrict dout,
                            const float *restrict v, const float *restrict att, const struct head_sizes *sizes,
                            size_t t)
{
    const size_t T = sizes->T, hs = sizes->hs, row = 3 * sizes->C;
    for (size_t t2 = 0; t2 <= t; t2++) {
        float sum = 0.0f;
        for (size_t i = 0; i < hs; i++) {
            sum += v[t2 * row + i] * dout[i];
            dv[t2 * row + i] += att[t2] * dout[i];
        }
        datt[t2] = sum;
    }
    for (size_t t2 = t + 1; t2 < T; t2++)
        datt[t2] = 0.0f;
}

/* Row t: dpreatt[t3] = sum over t2 <= t of (att[t2] * ((t2 == t3 ? 1 : 0) - att[t3])) * datt[t2]. */
static void backward_softmax(float *restrict dpreatt, const float *restrict att, const float *restrict datt, size_t t,
                             size_t T)
{
    for (size_t t3 = 0; t3 < T; t3++)
        dpreatt[t3] = 0.0f;
    for (size_t t2 = 0; t2 <= t; t2++)
        for (size_t t3 = 0; t3 <= t; t3++)
            dpreatt[t3] += (att[t2] * ((t2 == t3 ? 1.0f : 0.0f) - att[t3])) * datt[t2];
}

/* Row t: dq[i] accumulates (k[t2,i] * dpreatt[t2]) * scale; dk[t2,i] accumulates (q[i] * dpreatt[t2]) * scale. */
static void backward_queries_keys(float *restrict dq, float *restrict dk, const float *restrict dpreatt,
                                  const float *restrict q, const float *restrict k, const struct head_sizes *sizes,
                                  size_t t)
{
    const size_t hs = sizes->hs, row = 3 * sizes->C;
    const float scale = sizes->scale;
    for (size_t t2 = 0; t2 <= t; t2++)
        for (size_t i = 0; i < hs; i++) {
            dq[i] += (k[t2 * row + i] * dpreatt[t2]) * scale;
            dk[t2 * row + i] += (q[i] * dpreatt[t2]) * scale;
        }
}

void attention_backward_unpacked(const struct backward_head *head, const struct head_sizes *sizes)
{
    const size_t T = sizes->T, hs = sizes->hs, C = sizes->C, row = 3 * C;
    const float *q = head->q, *k = q + C, *v = k + C, *att = head->att;
    float *dq = head->dq, *dk = dq + C, *dv = dk + C, *datt = head->datt, *dpreatt = head->dpreatt;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < hs; i++)
            dq[t * row + i] = dk[t * row + i] = dv[t * row + i] = 0.0f;
    for (size_t t = 0; t < T; t++, att += T, datt += T, dpreatt += T) {
        backward_values(dv, datt, head->dout + t * C, v, att, sizes, t);
        backward_softmax(dpreatt, att, datt, t, T);
        backward_queries_keys(dq + t * row, dk, dpreatt, q + t * row, k, sizes, t);
    }
}
