/* The plain model: GPT-2 trained one sequence after the other, to be read from top to bottom beside docs/numerics.md.
 *
 * The scenarios (starpullm/checks/scenario) compare the library with it. It shares nothing with the library but the
 * scalar elementary functions: no kernel, no StarPU, no threads, no vectors. The caller owns all memory, and sets all
 * gradients to +0 before a backward pass: every gradient here accumulates (`+=`) into what is there.
 *
 * Letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded vocabulary, OC output
 * channels. Shapes stand beside the names; arrays are dense and row-major. */
#include <fenv.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/elementary/scalar.h"

/* The term of a sum of products. Of the two libraries that native/CMakeLists.txt makes of this file, one has fused
 * sums. */
#ifdef FUSED
#define ADD_PRODUCT(sum, a, b) ((sum) = fmaf(a, b, sum))
#else
#define ADD_PRODUCT(sum, a, b) ((sum) += (a) * (b))
#endif

/* ---- What the caller gives ---- */

struct parameters {
    float *wte;      /* (Vp,C) */
    float *wpe;      /* (maxT,C) */
    float *ln1w;     /* (L,C) */
    float *ln1b;     /* (L,C) */
    float *qkvw;     /* (L,3C,C) */
    float *qkvb;     /* (L,3C) */
    float *attprojw; /* (L,C,C) */
    float *attprojb; /* (L,C) */
    float *ln2w;     /* (L,C) */
    float *ln2b;     /* (L,C) */
    float *fcw;      /* (L,4C,C) */
    float *fcb;      /* (L,4C) */
    float *fcprojw;  /* (L,C,4C) */
    float *fcprojb;  /* (L,C) */
    float *lnfw;     /* (C) */
    float *lnfb;     /* (C) */
};

struct activations {
    float *encoded;   /* (B,T,C) */
    float *ln1;       /* (L,B,T,C) */
    float *ln1_mean;  /* (L,B,T) */
    float *ln1_rstd;  /* (L,B,T) */
    float *qkv;       /* (L,B,T,3C) */
    float *atty;      /* (L,B,T,C) */
    float *preatt;    /* (L,B,NH,T,T) */
    float *att;       /* (L,B,NH,T,T) */
    float *attproj;   /* (L,B,T,C) */
    float *residual2; /* (L,B,T,C) */
    float *ln2;       /* (L,B,T,C) */
    float *ln2_mean;  /* (L,B,T) */
    float *ln2_rstd;  /* (L,B,T) */
    float *fch;       /* (L,B,T,4C) */
    float *fch_gelu;  /* (L,B,T,4C) */
    float *fcproj;    /* (L,B,T,C) */
    float *residual3; /* (L,B,T,C) */
    float *lnf;       /* (B,T,C) */
    float *lnf_mean;  /* (B,T) */
    float *lnf_rstd;  /* (B,T) */
    float *logits;    /* (B,T,Vp) */
    float *probs;     /* (B,T,Vp) */
    float *losses;    /* (B,T) */
};

struct plain_model {
    size_t B, T, C, NH, L, V, Vp;
    struct parameters params, grads;
    struct activations acts, dacts;
};

/* The parameters of layer l. */
static struct parameters of_layer(const struct plain_model *s, struct parameters p, size_t l)
{
    const size_t C = s->C;
    p.ln1w += l * C;
    p.ln1b += l * C;
    p.qkvw += l * 3 * C * C;
    p.qkvb += l * 3 * C;
    p.attprojw += l * C * C;
    p.attprojb += l * C;
    p.ln2w += l * C;
    p.ln2b += l * C;
    p.fcw += l * 4 * C * C;
    p.fcb += l * 4 * C;
    p.fcprojw += l * C * 4 * C;
    p.fcprojb += l * C;
    return p;
}

/* The activations of sequence b in layer l: without their dimensions L and B. */
static struct activations of_sequence(const struct plain_model *s, struct activations a, size_t l, size_t b)
{
    const size_t T = s->T, C = s->C, heads = s->NH * T * T, one = l * s->B + b;
    a.encoded += b * T * C;
    a.ln1 += one * T * C;
    a.ln1_mean += one * T;
    a.ln1_rstd += one * T;
    a.qkv += one * T * 3 * C;
    a.atty += one * T * C;
    a.preatt += one * heads;
    a.att += one * heads;
    a.attproj += one * T * C;
    a.residual2 += one * T * C;
    a.ln2 += one * T * C;
    a.ln2_mean += one * T;
    a.ln2_rstd += one * T;
    a.fch += one * T * 4 * C;
    a.fch_gelu += one * T * 4 * C;
    a.fcproj += one * T * C;
    a.residual3 += one * T * C;
    a.lnf += b * T * C;
    a.lnf_mean += b * T;
    a.lnf_rstd += b * T;
    a.logits += b * T * s->Vp;
    a.probs += b * T * s->Vp;
    a.losses += b * T;
    return a;
}

/* ---- Forward, for one sequence ---- */

static void encoder_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, size_t T, size_t C)
{
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < C; c++)
            out[t * C + c] = wte[(size_t)tokens[t] * C + c] + wpe[t * C + c];
}

static void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                              const float *bias, size_t T, size_t C)
{
    for (size_t t = 0; t < T; t++, x += C, out += C) {
        float m = 0.0f, v = 0.0f;
        for (size_t c = 0; c < C; c++)
            m += x[c];
        m /= (float)C;
        for (size_t c = 0; c < C; c++)
            v += (x[c] - m) * (x[c] - m);
        v /= (float)C;
        const float s = 1.0f / sqrtf(v + 1e-5f);
        for (size_t c = 0; c < C; c++)
            out[c] = s * (x[c] - m) * weight[c] + bias[c];
        mean[t] = m;
        rstd[t] = s;
    }
}

/* weight (OC,C); bias (OC) or NULL. */
static void matmul_forward(float *out, const float *x, const float *weight, const float *bias, size_t T, size_t C,
                           size_t OC)
{
    for (size_t t = 0; t < T; t++)
        for (size_t o = 0; o < OC; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                ADD_PRODUCT(sum, x[t * C + i], weight[o * C + i]);
            out[t * OC + o] = sum;
        }
}

static void attention_forward(float *out, float *preatt, float *att, const float *qkv, size_t T, size_t C, size_t NH)
{
    const size_t hs = C / NH;
    const float scale = (float)(1.0 / (double)sqrtf((float)hs));
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < NH; h++) {
            const float *q = qkv + t * 3 * C + h * hs;
            float *pre = preatt + (h * T + t) * T, *a = att + (h * T + t) * T, *o = out + t * C + h * hs;
            float highest = -10000.0f, total = 0.0f;
            for (size_t t2 = 0; t2 <= t; t2++) {
                const float *k = qkv + t2 * 3 * C + C + h * hs;
                float sum = 0.0f;
                for (size_t i = 0; i < hs; i++)
                    ADD_PRODUCT(sum, q[i], k[i]);
                pre[t2] = sum * scale;
                if (pre[t2] > highest)
                    highest = pre[t2];
            }
            for (size_t t2 = 0; t2 <= t; t2++) {
                a[t2] = cr_expf(pre[t2] - highest);
                total += a[t2];
            }
            const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
            for (size_t t2 = 0; t2 < T; t2++) {
                a[t2] = t2 <= t ? a[t2] * inverse : 0.0f;
                pre[t2] = t2 <= t ? pre[t2] : 0.0f;
            }
            for (size_t i = 0; i < hs; i++) {
                float sum = 0.0f;
                for (size_t t2 = 0; t2 <= t; t2++)
                    ADD_PRODUCT(sum, a[t2], qkv[t2 * 3 * C + 2 * C + h * hs + i]);
                o[i] = sum;
            }
        }
}

static float gelu_factor(void)
{
    return sqrtf((float)(2.0 / 3.14159265358979323846));
}

static void gelu_forward(float *out, const float *inp, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float x = inp[i], cube = 0.044715f * x * x * x;
        out[i] = 0.5f * x * (1.0f + cr_tanhf(gelu_factor() * (x + cube)));
    }
}

static void residual_forward(float *out, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

static void softmax_forward(float *probs, const float *logits, size_t T, size_t V, size_t Vp)
{
    for (size_t t = 0; t < T; t++, probs += Vp, logits += Vp) {
        float highest = -10000.0f, total = 0.0f;
        for (size_t v = 0; v < V; v++)
            if (logits[v] > highest)
                highest = logits[v];
        for (size_t v = 0; v < V; v++) {
            probs[v] = cr_expf(logits[v] - highest);
            total += probs[v];
        }
        for (size_t v = 0; v < Vp; v++)
            probs[v] = v < V ? probs[v] / total : 0.0f;
    }
}

static void forward(const struct plain_model *s, size_t b, const int32_t *tokens)
{
    const size_t T = s->T, C = s->C;
    struct activations a = of_sequence(s, s->acts, 0, b);
    struct parameters p = s->params;
    encoder_forward(a.encoded, tokens, p.wte, p.wpe, T, C);
    const float *residual = a.encoded;
    for (size_t l = 0; l < s->L; l++) {
        a = of_sequence(s, s->acts, l, b);
        p = of_layer(s, s->params, l);
        layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, residual, p.ln1w, p.ln1b, T, C);
        matmul_forward(a.qkv, a.ln1, p.qkvw, p.qkvb, T, C, 3 * C);
        attention_forward(a.atty, a.preatt, a.att, a.qkv, T, C, s->NH);
        matmul_forward(a.attproj, a.atty, p.attprojw, p.attprojb, T, C, C);
        residual_forward(a.residual2, residual, a.attproj, T * C);
        layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual2, p.ln2w, p.ln2b, T, C);
        matmul_forward(a.fch, a.ln2, p.fcw, p.fcb, T, C, 4 * C);
        gelu_forward(a.fch_gelu, a.fch, T * 4 * C);
        matmul_forward(a.fcproj, a.fch_gelu, p.fcprojw, p.fcprojb, T, 4 * C, C);
        residual_forward(a.residual3, a.residual2, a.fcproj, T * C);
        residual = a.residual3;
    }
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, residual, p.lnfw, p.lnfb, T, C);
    matmul_forward(a.logits, a.lnf, p.wte, NULL, T, C, s->Vp);
    softmax_forward(a.probs, a.logits, T, s->V, s->Vp);
}

/* ---- Backward, for one sequence ---- */

static void crossentropy_softmax_backward(float *dlogits, const float *dlosses, const float *probs,
                                          const int32_t *targets, size_t T, size_t V, size_t Vp)
{
    for (size_t t = 0; t < T; t++)
        for (size_t v = 0; v < V; v++) {
            const float indicator = v == (size_t)targets[t] ? 1.0f : 0.0f;
            dlogits[t * Vp + v] += (probs[t * Vp + v] - indicator) * dlosses[t];
        }
}

/* dbias is NULL where there is none. */
static void matmul_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                            const float *weight, size_t T, size_t C, size_t OC)
{
    for (size_t t = 0; t < T; t++)
        for (size_t o = 0; o < OC; o++) {
            const float d = dout[t * OC + o];
            if (dbias)
                dbias[o] += d;
            for (size_t i = 0; i < C; i++) {
                ADD_PRODUCT(dx[t * C + i], weight[o * C + i], d);
                ADD_PRODUCT(dweight[o * C + i], x[t * C + i], d);
            }
        }
}

static void layernorm_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                               const float *weight, const float *mean, const float *rstd, size_t T, size_t C)
{
    for (size_t t = 0; t < T; t++, x += C, dx += C, dout += C) {
        float a = 0.0f, q = 0.0f;
        for (size_t c = 0; c < C; c++) {
            const float normed = (x[c] - mean[t]) * rstd[t], d = weight[c] * dout[c];
            a += d;
            q += d * normed;
        }
        a /= (float)C;
        q /= (float)C;
        for (size_t c = 0; c < C; c++) {
            const float normed = (x[c] - mean[t]) * rstd[t], d = weight[c] * dout[c];
            dbias[c] += dout[c];
            dweight[c] += normed * dout[c];
            dx[c] += (0.0f + d - a - normed * q) * rstd[t];
        }
    }
}

static void gelu_backward(float *dx, const float *dout, const float *inp, size_t count)
{
    const float g = gelu_factor();
    for (size_t i = 0; i < count; i++) {
        const float x = inp[i], cube = 0.044715f * x * x * x;
        const float argument = g * (x + cube), tangent = cr_tanhf(argument), cosine = cr_coshf(argument);
        const float secant = 1.0f / (cosine * cosine);
        const float slope = 1.0f + 3.0f * 0.044715f * x * x;
        dx[i] += (0.5f * (1.0f + tangent) + x * 0.5f * secant * g * slope) * dout[i];
    }
}

static void residual_backward(float *da, float *db, const float *dout, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        da[i] += dout[i];
        db[i] += dout[i];
    }
}

static void attention_backward(float *dqkv, float *dpreatt, float *datt, const float *dout, const float *qkv,
                               const float *att, size_t T, size_t C, size_t NH)
{
    const size_t hs = C / NH, row = 3 * C;
    const float scale = 1.0f / sqrtf((float)hs);
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < NH; h++) {
            const float *q = qkv + h * hs, *k = q + C, *v = k + C, *d = dout + t * C + h * hs;
            float *dq = dqkv + h * hs, *dk = dq + C, *dv = dk + C;
            const float *a = att + (h * T + t) * T;
            float *da = datt + (h * T + t) * T, *dpre = dpreatt + (h * T + t) * T;
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t i = 0; i < hs; i++) {
                    ADD_PRODUCT(da[t2], v[t2 * row + i], d[i]);
                    ADD_PRODUCT(dv[t2 * row + i], a[t2], d[i]);
                }
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t t3 = 0; t3 <= t; t3++)
                    ADD_PRODUCT(dpre[t3], a[t2] * ((t2 == t3 ? 1.0f : 0.0f) - a[t3]), da[t2]);
            for (size_t t2 = 0; t2 <= t; t2++)
                for (size_t i = 0; i < hs; i++) {
                    ADD_PRODUCT(dq[t * row + i], k[t2 * row + i] * dpre[t2], scale);
                    ADD_PRODUCT(dk[t2 * row + i], q[t * row + i] * dpre[t2], scale);
                }
        }
}

static void backward(const struct plain_model *s, size_t b, const int32_t *targets)
{
    const size_t T = s->T, C = s->C, L = s->L;
    struct parameters p = s->params, d = s->grads;
    struct activations a = of_sequence(s, s->acts, L - 1, b), da = of_sequence(s, s->dacts, L - 1, b);
    for (size_t t = 0; t < T; t++)
        da.losses[t] = 1.0f / (float)(s->B * T);
    crossentropy_softmax_backward(da.logits, da.losses, a.probs, targets, T, s->V, s->Vp);
    matmul_backward(da.lnf, d.wte, NULL, da.logits, a.lnf, p.wte, T, C, s->Vp);
    layernorm_backward(da.residual3, d.lnfw, d.lnfb, da.lnf, a.residual3, p.lnfw, a.lnf_mean, a.lnf_rstd, T, C);
    for (size_t l = L; l-- > 0;) {
        p = of_layer(s, s->params, l);
        d = of_layer(s, s->grads, l);
        a = of_sequence(s, s->acts, l, b);
        da = of_sequence(s, s->dacts, l, b);
        const size_t below = l > 0 ? l - 1 : 0;
        const float *residual = l > 0 ? of_sequence(s, s->acts, below, b).residual3 : a.encoded;
        float *dresidual = l > 0 ? of_sequence(s, s->dacts, below, b).residual3 : da.encoded;
        residual_backward(da.residual2, da.fcproj, da.residual3, T * C);
        matmul_backward(da.fch_gelu, d.fcprojw, d.fcprojb, da.fcproj, a.fch_gelu, p.fcprojw, T, 4 * C, C);
        gelu_backward(da.fch, da.fch_gelu, a.fch, T * 4 * C);
        matmul_backward(da.ln2, d.fcw, d.fcb, da.fch, a.ln2, p.fcw, T, C, 4 * C);
        layernorm_backward(da.residual2, d.ln2w, d.ln2b, da.ln2, a.residual2, p.ln2w, a.ln2_mean, a.ln2_rstd, T, C);
        residual_backward(dresidual, da.attproj, da.residual2, T * C);
        matmul_backward(da.atty, d.attprojw, d.attprojb, da.attproj, a.atty, p.attprojw, T, C, C);
        attention_backward(da.qkv, da.preatt, da.att, da.atty, a.qkv, a.att, T, C, s->NH);
        matmul_backward(da.ln1, d.qkvw, d.qkvb, da.qkv, a.ln1, p.qkvw, T, C, 3 * C);
        layernorm_backward(dresidual, d.ln1w, d.ln1b, da.ln1, residual, p.ln1w, a.ln1_mean, a.ln1_rstd, T, C);
    }
}

static void encoder_backward(const struct plain_model *s, size_t b, const int32_t *tokens)
{
    const float *dout = of_sequence(s, s->dacts, 0, b).encoded;
    for (size_t t = 0; t < s->T; t++)
        for (size_t c = 0; c < s->C; c++) {
            s->grads.wte[(size_t)tokens[t] * s->C + c] += dout[t * s->C + c];
            s->grads.wpe[t * s->C + c] += dout[t * s->C + c];
        }
}

/* ---- What the caller calls: each with the contract's floating-point environment, whatever the caller's is ---- */

#define PUBLIC __attribute__((visibility("default")))

static fenv_t enter(void)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}

/* The activations of inputs (B,T). */
PUBLIC void plain_forward(const struct plain_model *s, const int32_t *inputs)
{
    const fenv_t callers = enter();
    for (size_t b = 0; b < s->B; b++)
        forward(s, b, inputs + b * s->T);
    fesetenv(&callers);
}

/* The losses of targets (B,T) after plain_forward(), and their mean. */
PUBLIC float plain_loss(const struct plain_model *s, const int32_t *targets)
{
    const fenv_t callers = enter();
    const size_t N = s->B * s->T;
    float sum = 0.0f;
    for (size_t n = 0; n < N; n++) {
        s->acts.losses[n] = -cr_logf(s->acts.probs[n * s->Vp + (size_t)targets[n]]);
        sum += s->acts.losses[n];
    }
    sum /= (float)N;
    fesetenv(&callers);
    return sum;
}

/* Adds what the sequences from `begin` to `end` contribute to the gradients, the embeddings' part last. */
PUBLIC void plain_backward(const struct plain_model *s, const int32_t *inputs, const int32_t *targets, size_t begin,
                           size_t end)
{
    const fenv_t callers = enter();
    for (size_t b = begin; b < end; b++)
        backward(s, b, targets + b * s->T);
    for (size_t b = begin; b < end; b++)
        encoder_backward(s, b, inputs + b * s->T);
    fesetenv(&callers);
}

/* AdamW of one tensor; step counts from 1. */
PUBLIC void plain_update(float *params, float *m, float *v, const float *grads, size_t count, float learning_rate,
                         float beta1, float beta2, float eps, float weight_decay, int64_t step)
{
    const fenv_t callers = enter();
    const float correction1 = 1.0f - cr_powf(beta1, (float)step), correction2 = 1.0f - cr_powf(beta2, (float)step);
    for (size_t i = 0; i < count; i++) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * grads[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * grads[i] * grads[i];
        const float mh = m[i] / correction1, vh = v[i] / correction2;
        params[i] -= learning_rate * (mh / (sqrtf(vh) + eps) + weight_decay * params[i]);
    }
    fesetenv(&callers);
}
