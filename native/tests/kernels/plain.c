/* The operations of docs/numerics.md, row by row, in the simplest loops; shares no code with the library.
 * test_kernels.c takes its bits, bench_kernels.c its speed, as the yardstick. */
#include "plain.h"

#include <math.h>

/* A kernel's team, which nothing here shares its work with: each call computes everything. */
#define ALONE struct team team __attribute__((unused))

/* What an accumulation adds its first term to. */
static float present(enum sum_start start, const float *value)
{
    return start == SUM_FROM_ZERO ? 0.0f : *value;
}

static void encoder_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, size_t B, size_t T,
                            size_t C, ALONE)
{
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            const size_t n = b * T + t;
            for (size_t c = 0; c < C; c++)
                out[n * C + c] = wte[(size_t)tokens[n] * C + c] + wpe[t * C + c];
        }
}

static void encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, size_t B, size_t T,
                             size_t C, size_t maxT, enum sum_start dwpe_start, ALONE)
{
    for (size_t i = 0; i < maxT * C; i++)
        dwpe[i] = present(dwpe_start, &dwpe[i]);
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            const size_t n = b * T + t;
            for (size_t c = 0; c < C; c++) {
                dwte[(size_t)tokens[n] * C + c] += dout[n * C + c];
                dwpe[t * C + c] += dout[n * C + c];
            }
        }
}

static void layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                              const float *bias, size_t N, size_t C, ALONE)
{
    for (size_t n = 0; n < N; n++) {
        const float *x = inp + n * C;
        float m = 0.0f;
        for (size_t c = 0; c < C; c++)
            m += x[c];
        m = m / (float)C;
        float v = 0.0f;
        for (size_t c = 0; c < C; c++) {
            const float d = x[c] - m;
            v += d * d;
        }
        v = v / (float)C;
        const float s = 1.0f / sqrtf(v + 1e-5f);
        for (size_t c = 0; c < C; c++)
            out[n * C + c] = (s * (x[c] - m)) * weight[c] + bias[c];
        mean[n] = m;
        rstd[n] = s;
    }
}

static void layernorm_backward_input(float *dinp, const float *dout, const float *inp, const float *mean,
                                     const float *rstd, const float *weight, size_t N, size_t C, enum sum_start start,
                                     ALONE)
{
    for (size_t n = 0; n < N; n++) {
        const float *x = inp + n * C;
        const float *d = dout + n * C;
        float a = 0.0f, q = 0.0f;
        for (size_t c = 0; c < C; c++) {
            const float nrm = (x[c] - mean[n]) * rstd[n];
            const float dn = weight[c] * d[c];
            a += dn;
            q += dn * nrm;
        }
        a = a / (float)C;
        q = q / (float)C;
        for (size_t c = 0; c < C; c++) {
            const float nrm = (x[c] - mean[n]) * rstd[n];
            const float dn = weight[c] * d[c];
            float value = 0.0f;
            value += dn;
            value -= a;
            value -= nrm * q;
            value *= rstd[n];
            dinp[n * C + c] = present(start, &dinp[n * C + c]) + value;
        }
    }
}

static void layernorm_backward_weight(float *dweight, float *dbias, const float *dout, const float *inp,
                                      const float *mean, const float *rstd, size_t N, size_t C, enum sum_start start,
                                      ALONE)
{
    for (size_t c = 0; c < C; c++)
        dweight[c] = present(start, &dweight[c]);
    for (size_t c = 0; c < C; c++)
        dbias[c] = present(start, &dbias[c]);
    for (size_t n = 0; n < N; n++)
        for (size_t c = 0; c < C; c++) {
            const float nrm = (inp[n * C + c] - mean[n]) * rstd[n];
            dbias[c] += dout[n * C + c];
            dweight[c] += nrm * dout[n * C + c];
        }
}

static void matmul_forward(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,
                           size_t OC, ALONE)
{
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < OC; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                sum += inp[n * C + i] * weight[o * C + i];
            out[n * OC + o] = sum;
        }
}

static void matmul_backward_input(float *dinp, const float *dout, const float *weight, size_t N, size_t C, size_t OC,
                                  enum sum_start start, ALONE)
{
    for (size_t n = 0; n < N; n++) {
        for (size_t i = 0; i < C; i++)
            dinp[n * C + i] = present(start, &dinp[n * C + i]);
        for (size_t o = 0; o < OC; o++)
            for (size_t i = 0; i < C; i++)
                dinp[n * C + i] += weight[o * C + i] * dout[n * OC + o];
    }
}

static void matmul_backward_weight(float *dweight, float *dbias, const float *dout, const float *inp, size_t N,
                                   size_t C, size_t OC, enum sum_start start, ALONE)
{
    for (size_t o = 0; o < OC; o++) {
        for (size_t i = 0; i < C; i++)
            dweight[o * C + i] = present(start, &dweight[o * C + i]);
        if (dbias)
            dbias[o] = present(start, &dbias[o]);
        for (size_t n = 0; n < N; n++) {
            if (dbias)
                dbias[o] += dout[n * OC + o];
            for (size_t i = 0; i < C; i++)
                dweight[o * C + i] += inp[n * C + i] * dout[n * OC + o];
        }
    }
}

static void attention_forward(float *out, float *preatt, float *att, const float *qkv, size_t B, size_t T, size_t C,
                              size_t NH, ALONE)
{
    const size_t hs = C / NH;
    const float scale = (float)(1.0 / (double)sqrtf((float)hs));
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++)
            for (size_t h = 0; h < NH; h++) {
                const float *q = qkv + (b * T + t) * 3 * C + h * hs;
                float *pre = preatt + ((b * NH + h) * T + t) * T;
                float *a = att + ((b * NH + h) * T + t) * T;
                float *o = out + (b * T + t) * C + h * hs;
                float mx = -10000.0f;
                for (size_t t2 = 0; t2 <= t; t2++) {
                    const float *k = qkv + (b * T + t2) * 3 * C + h * hs + C;
                    float sum = 0.0f;
                    for (size_t i = 0; i < hs; i++)
                        sum += q[i] * k[i];
                    pre[t2] = sum * scale;
                    if (pre[t2] > mx)
                        mx = pre[t2];
                }
                float z = 0.0f;
                for (size_t t2 = 0; t2 <= t; t2++) {
                    a[t2] = expf(pre[t2] - mx);
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
                        o[i] += a[t2] * v[i];
                }
            }
}

static void attention_backward(float *dqkv, float *dpreatt, float *datt, const float *dout, const float *qkv,
                               const float *att, size_t B, size_t T, size_t C, size_t NH, ALONE)
{
    const size_t hs = C / NH;
    const float scale = 1.0f / sqrtf((float)hs);
    for (size_t i = 0; i < B * T * 3 * C; i++)
        dqkv[i] = 0.0f;
    for (size_t i = 0; i < B * NH * T * T; i++)
        dpreatt[i] = datt[i] = 0.0f;
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++)
            for (size_t h = 0; h < NH; h++) {
                const float *a = att + ((b * NH + h) * T + t) * T;
                const float *d = dout + (b * T + t) * C + h * hs;
                const float *q = qkv + (b * T + t) * 3 * C + h * hs;
                float *dq = dqkv + (b * T + t) * 3 * C + h * hs;
                float *da = datt + ((b * NH + h) * T + t) * T;
                float *dpre = dpreatt + ((b * NH + h) * T + t) * T;
                for (size_t t2 = 0; t2 <= t; t2++) {
                    const float *v = qkv + (b * T + t2) * 3 * C + h * hs + 2 * C;
                    float *dv = dqkv + (b * T + t2) * 3 * C + h * hs + 2 * C;
                    for (size_t i = 0; i < hs; i++) {
                        da[t2] += v[i] * d[i];
                        dv[i] += a[t2] * d[i];
                    }
                }
                for (size_t t2 = 0; t2 <= t; t2++)
                    for (size_t t3 = 0; t3 <= t; t3++) {
                        const float indicator = t2 == t3 ? 1.0f : 0.0f;
                        dpre[t3] += (a[t2] * (indicator - a[t3])) * da[t2];
                    }
                for (size_t t2 = 0; t2 <= t; t2++) {
                    const float *k = qkv + (b * T + t2) * 3 * C + h * hs + C;
                    float *dk = dqkv + (b * T + t2) * 3 * C + h * hs + C;
                    for (size_t i = 0; i < hs; i++) {
                        dq[i] += (k[i] * dpre[t2]) * scale;
                        dk[i] += (q[i] * dpre[t2]) * scale;
                    }
                }
            }
}

static float gelu_g(void)
{
    return sqrtf((float)(2.0 / 3.14159265358979323846));
}

static void gelu_forward(float *out, const float *inp, size_t count, ALONE)
{
    const float g = gelu_g();
    for (size_t i = 0; i < count; i++) {
        const float x = inp[i];
        const float u = 0.044715f * x * x * x;
        out[i] = (0.5f * x) * (1.0f + tanhf(g * (x + u)));
    }
}

static void gelu_backward(float *dinp, const float *dout, const float *inp, size_t count, enum sum_start start, ALONE)
{
    const float g = gelu_g();
    for (size_t i = 0; i < count; i++) {
        const float x = inp[i];
        const float u = 0.044715f * x * x * x;
        const float y = g * (x + u);
        const float th = tanhf(y);
        const float ch = coshf(y);
        const float se = 1.0f / (ch * ch);
        const float d = 0.5f * (1.0f + th) + (x * 0.5f * se * g) * (1.0f + (3.0f * 0.044715f) * x * x);
        dinp[i] = present(start, &dinp[i]) + d * dout[i];
    }
}

static void residual_forward(float *out, const float *a, const float *b, size_t count, ALONE)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

static void residual_backward(float *da, float *db, const float *dout, size_t count, enum sum_start start, ALONE)
{
    for (size_t i = 0; i < count; i++) {
        da[i] = present(start, &da[i]) + dout[i];
        db[i] = present(start, &db[i]) + dout[i];
    }
}

static void softmax_forward(float *probs, const float *logits, size_t N, size_t V, size_t Vp, ALONE)
{
    for (size_t n = 0; n < N; n++) {
        const float *l = logits + n * Vp;
        float *p = probs + n * Vp;
        float mx = -10000.0f;
        for (size_t v = 0; v < V; v++)
            if (l[v] > mx)
                mx = l[v];
        float z = 0.0f;
        for (size_t v = 0; v < V; v++) {
            p[v] = expf(l[v] - mx);
            z += p[v];
        }
        for (size_t v = 0; v < V; v++)
            p[v] = p[v] / z;
        for (size_t v = V; v < Vp; v++)
            p[v] = 0.0f;
    }
}

static void crossentropy_forward(float *losses, const float *probs, const int32_t *targets, size_t N, size_t Vp, ALONE)
{
    for (size_t n = 0; n < N; n++)
        losses[n] = -logf(probs[n * Vp + (size_t)targets[n]]);
}

static void mean_loss(float *mean, const float *losses, size_t N, float divisor, enum sum_start start, ALONE)
{
    float sum = present(start, mean);
    for (size_t n = 0; n < N; n++)
        sum += losses[n];
    *mean = divisor != 0.0f ? sum / divisor : sum;
}

static void crossentropy_softmax_backward(float *dlogits, const float *dlosses, const float *probs,
                                          const int32_t *targets, size_t N, size_t V, size_t Vp, enum sum_start start,
                                          ALONE)
{
    for (size_t n = 0; n < N; n++) {
        for (size_t v = 0; v < V; v++) {
            const float indicator = v == (size_t)targets[n] ? 1.0f : 0.0f;
            float *d = &dlogits[n * Vp + v];
            *d = present(start, d) + (probs[n * Vp + v] - indicator) * dlosses[n];
        }
        for (size_t v = V; v < Vp; v++)
            dlogits[n * Vp + v] = present(start, &dlogits[n * Vp + v]);
    }
}

static void gradient_add(float *sum, const float *term, size_t count, ALONE)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += term[i];
}

static void adamw_update(float *params, float *m, float *v, const float *grads, size_t count,
                         const struct adamw_options *options, int64_t step, ALONE)
{
    const float beta1 = options->beta1, beta2 = options->beta2;
    const float correction1 = 1.0f - powf(beta1, (float)step);
    const float correction2 = 1.0f - powf(beta2, (float)step);
    for (size_t i = 0; i < count; i++) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * grads[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * grads[i] * grads[i];
        const float mh = m[i] / correction1;
        const float vh = v[i] / correction2;
        params[i] -= options->learning_rate * (mh / (sqrtf(vh) + options->eps) + options->weight_decay * params[i]);
    }
}

const struct kernels plain = {
    .encoder_forward = encoder_forward,
    .encoder_backward = encoder_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward_input = layernorm_backward_input,
    .layernorm_backward_weight = layernorm_backward_weight,
    .matmul_forward = matmul_forward,
    .matmul_backward_input = matmul_backward_input,
    .matmul_backward_weight = matmul_backward_weight,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .residual_forward = residual_forward,
    .residual_backward = residual_backward,
    .softmax_forward = softmax_forward,
    .crossentropy_forward = crossentropy_forward,
    .mean_loss = mean_loss,
    .crossentropy_softmax_backward = crossentropy_softmax_backward,
    .gradient_add = gradient_add,
    .adamw_update = adamw_update,
};
