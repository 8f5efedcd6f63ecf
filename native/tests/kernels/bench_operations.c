/* The operations that bench_kernels measures: their buffers, their sizes, and one call of each. */
#include "bench_operations.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/ref/ref.h"

/* ---- Buffers: every operation takes its own from one pool, filled with values as they occur in training ---- */

enum {
    HUGE_PAGE = 2 << 20, /* bytes */
    POOL_SIZE = 80 << 20 /* floats; the logits' matmul takes most */
};

static float *pool;
static size_t pool_used;

bool operations_start(void)
{
    pool = aligned_alloc(HUGE_PAGE, POOL_SIZE * sizeof *pool);
    if (pool)
        (void)madvise(pool, POOL_SIZE * sizeof *pool, MADV_HUGEPAGE); /* as the library's large buffers */
    return pool != NULL;
}

void operations_stop(void)
{
    free(pool);
}

const float *operations_pool(void)
{
    return pool;
}

size_t operations_pool_bytes(void)
{
    return POOL_SIZE * sizeof *pool;
}

static float *take(size_t count)
{
    if (pool_used + count > POOL_SIZE) {
        fprintf(stderr, "bench_kernels: the pool is too small\n");
        exit(1);
    }
    float *x = pool + pool_used;
    pool_used += (count + 15) / 16 * 16;
    return x;
}

static float *values(size_t count)
{
    static uint32_t state = 1;
    float *x = take(count);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    return x;
}

static float *zeros(size_t count)
{
    float *x = take(count);
    memset(x, 0, count * sizeof *x);
    return x;
}

static int32_t *indices(size_t count, size_t limit)
{
    int32_t *x = (int32_t *)(void *)take(count);
    for (size_t i = 0; i < count; i++)
        x[i] = (int32_t)(i * 7919 % limit);
    return x;
}

/* ---- Operations ---- */

static struct sizes s;
static float *a, *b, *c, *d, *e, *f;
static int32_t *ids;

static size_t N(void)
{
    return s.B * s.T;
}

static void encoder_setup(void)
{
    a = zeros(N() * s.C), b = values(s.V * s.C), c = values(s.T * s.C), ids = indices(N(), s.V);
}
static void encoder_forward(const struct kernels *k, struct team team)
{
    k->encoder_forward(a, ids, b, c, s.B, s.T, s.C, team);
}
static void encoder_backward(const struct kernels *k, struct team team)
{
    k->encoder_backward(b, c, a, ids, s.B, s.T, s.C, s.T, 0, s.V, SUM_FROM_ZERO, team);
}

static void layernorm_setup(void)
{
    a = values(N() * s.C), b = values(N() * s.C), c = values(N() * s.C);
    d = values(N()), e = values(N()), f = values(2 * s.C);
}
static void layernorm_forward(const struct kernels *k, struct team team)
{
    k->layernorm_forward(a, d, e, b, f, f + s.C, N(), s.C, team);
}
static void layernorm_backward_input(const struct kernels *k, struct team team)
{
    k->layernorm_backward_input(a, b, c, d, e, f, N(), s.C, SUM_CONTINUES, team);
}
static void layernorm_backward_weight(const struct kernels *k, struct team team)
{
    k->layernorm_backward_weight(f, f + s.C, b, c, d, e, N(), s.C, SUM_CONTINUES, team);
}

static void matmul_setup(void)
{
    a = values(N() * s.OC), b = values(N() * s.C), c = values(s.OC * s.C), d = values(s.OC);
}
static void matmul_forward(const struct kernels *k, struct team team)
{
    k->matmul_forward(a, b, c, d, N(), s.C, s.OC, team);
}
static void matmul_backward_input(const struct kernels *k, struct team team)
{
    k->matmul_backward_input(b, a, c, N(), s.C, s.OC, team);
}
static void matmul_backward_weight(const struct kernels *k, struct team team)
{
    k->matmul_backward_weight(c, d, a, b, N(), s.C, s.OC, 0, s.OC, SUM_FROM_ZERO, team);
}

static void attention_setup(void)
{
    a = values(N() * 3 * s.C), b = values(N() * s.C), c = zeros(N() * 3 * s.C);
    d = zeros(s.B * s.NH * s.T * s.T), e = zeros(s.B * s.NH * s.T * s.T), f = zeros(s.B * s.NH * s.T * s.T);
    attention_forward_ref(c, e, f, a, s.B, s.T, s.C, s.NH, team_of_one);
}
static void attention_forward(const struct kernels *k, struct team team)
{
    k->attention_forward(b, d, f, a, s.B, s.T, s.C, s.NH, team);
}
static void attention_backward(const struct kernels *k, struct team team)
{
    k->attention_backward(c, d, e, b, a, f, s.B, s.T, s.C, s.NH, team);
}

static void elements_setup(void)
{
    a = values(N() * s.C), b = values(N() * s.C), c = values(N() * s.C);
}
static void gelu_forward(const struct kernels *k, struct team team)
{
    k->gelu_forward(a, b, N() * s.C, team);
}
static void gelu_backward(const struct kernels *k, struct team team)
{
    k->gelu_backward(a, b, c, N() * s.C, team);
}
static void residual_forward(const struct kernels *k, struct team team)
{
    k->residual_forward(a, b, c, N() * s.C, team);
}
static void residual_backward(const struct kernels *k, struct team team)
{
    k->residual_backward(a, b, c, N() * s.C, team);
}

static size_t Vp(void)
{
    return (s.V + 127) / 128 * 128;
}
static void loss_setup(void)
{
    a = zeros(N() * Vp()), b = values(N() * Vp()), c = values(N()), ids = indices(N(), s.V), d = zeros(1);
}
static void softmax_forward(const struct kernels *k, struct team team)
{
    k->softmax_forward(a, b, N(), s.V, Vp(), team);
}
static void crossentropy_forward(const struct kernels *k, struct team team)
{
    k->crossentropy_forward(c, b, ids, N(), Vp(), team);
}
static void mean_loss(const struct kernels *k, struct team team)
{
    k->mean_loss(d, c, N(), (float)N(), SUM_FROM_ZERO, team);
}
static void crossentropy_softmax_backward(const struct kernels *k, struct team team)
{
    k->crossentropy_softmax_backward(a, c, b, ids, N(), s.V, Vp(), team);
}

static void gradient_setup(void)
{
    a = values(s.OC * s.C), b = values(s.OC * s.C);
}
static void gradient_add(const struct kernels *k, struct team team)
{
    k->gradient_add(a, b, s.OC * s.C, team);
}

static void adamw_setup(void)
{
    const size_t count = s.OC * s.C;
    a = values(count), b = zeros(count), c = zeros(count), d = values(count);
}
static void adamw_update(const struct kernels *k, struct team team)
{
    const struct adamw_options options = {1e-4f, 0.9f, 0.999f, 1e-8f, 0.1f};
    k->adamw_update(a, b, c, d, s.OC * s.C, &options, 10, team);
}

#define OPERATION(name, setup, sizes, flops) {#name, setup##_setup, name, sizes, sizeof sizes / sizeof *sizes, flops}

static const struct sizes rows[] = {
    {.B = 1, .T = 64, .C = 16, .V = 512},    {.B = 2, .T = 32, .C = 48, .V = 512},
    {.B = 1, .T = 7, .C = 768, .V = 50257},  {.B = 1, .T = 64, .C = 768, .V = 50257},
    {.B = 4, .T = 64, .C = 768, .V = 50257},
};
static const struct sizes elements[] = {
    {.B = 1, .T = 64, .C = 16}, {.B = 2, .T = 32, .C = 48}, {.B = 1, .T = 64, .C = 3072}, {.B = 4, .T = 64, .C = 3072}};
static const struct sizes matmuls[] = {
    {.B = 1, .T = 1, .C = 768, .OC = 768},     {.B = 1, .T = 1, .C = 768, .OC = 3072},
    {.B = 1, .T = 1, .C = 3072, .OC = 768},    {.B = 1, .T = 4, .C = 768, .OC = 3072},
    {.B = 1, .T = 8, .C = 768, .OC = 3072},    {.B = 1, .T = 12, .C = 768, .OC = 3072},
    {.B = 1, .T = 1, .C = 768, .OC = 50304},   {.B = 1, .T = 5, .C = 16, .OC = 16},
    {.B = 1, .T = 64, .C = 16, .OC = 16},      {.B = 1, .T = 64, .C = 16, .OC = 48},
    {.B = 1, .T = 64, .C = 48, .OC = 192},     {.B = 2, .T = 32, .C = 64, .OC = 64},
    {.B = 1, .T = 64, .C = 64, .OC = 509},     {.B = 1, .T = 64, .C = 768, .OC = 768},
    {.B = 1, .T = 64, .C = 768, .OC = 2304},   {.B = 1, .T = 64, .C = 768, .OC = 3072},
    {.B = 4, .T = 64, .C = 768, .OC = 768},    {.B = 4, .T = 64, .C = 768, .OC = 2304},
    {.B = 4, .T = 64, .C = 768, .OC = 3072},   {.B = 4, .T = 64, .C = 3072, .OC = 768},
    {.B = 12, .T = 64, .C = 768, .OC = 768},   {.B = 12, .T = 64, .C = 768, .OC = 2304},
    {.B = 12, .T = 64, .C = 768, .OC = 3072},  {.B = 12, .T = 64, .C = 3072, .OC = 768},
    {.B = 1, .T = 64, .C = 768, .OC = 50304},  {.B = 4, .T = 64, .C = 768, .OC = 50304},
    {.B = 12, .T = 64, .C = 768, .OC = 50304},
};
static const struct sizes heads[] = {
    {.B = 4, .T = 16, .C = 16, .NH = 4},     {.B = 4, .T = 64, .C = 16, .NH = 2},
    {.B = 4, .T = 64, .C = 48, .NH = 3},     {.B = 4, .T = 64, .C = 64, .NH = 2},
    {.B = 1, .T = 64, .C = 768, .NH = 12},   {.B = 1, .T = 256, .C = 768, .NH = 12},
    {.B = 1, .T = 1024, .C = 768, .NH = 12},
};
static const struct sizes vocabularies[] = {
    {.B = 1, .T = 64, .V = 61}, {.B = 1, .T = 64, .V = 509}, {.B = 1, .T = 64, .V = 50257}};
static const struct sizes parameters[] = {{.C = 16, .OC = 48}, {.C = 768, .OC = 768}, {.C = 768, .OC = 3072}};

const struct operation operations[] = {
    OPERATION(encoder_forward, encoder, rows, false),
    OPERATION(encoder_backward, encoder, rows, false),
    OPERATION(layernorm_forward, layernorm, rows, false),
    OPERATION(layernorm_backward_input, layernorm, rows, false),
    OPERATION(layernorm_backward_weight, layernorm, rows, false),
    OPERATION(matmul_forward, matmul, matmuls, true),
    OPERATION(matmul_backward_input, matmul, matmuls, true),
    OPERATION(matmul_backward_weight, matmul, matmuls, true),
    OPERATION(attention_forward, attention, heads, false),
    OPERATION(attention_backward, attention, heads, false),
    OPERATION(gelu_forward, elements, elements, false),
    OPERATION(gelu_backward, elements, elements, false),
    OPERATION(residual_forward, elements, elements, false),
    OPERATION(residual_backward, elements, elements, false),
    OPERATION(softmax_forward, loss, vocabularies, false),
    OPERATION(crossentropy_forward, loss, vocabularies, false),
    OPERATION(mean_loss, loss, vocabularies, false),
    OPERATION(crossentropy_softmax_backward, loss, vocabularies, false),
    OPERATION(gradient_add, gradient, parameters, false),
    OPERATION(adamw_update, adamw, parameters, false),
};
const size_t num_operations = sizeof operations / sizeof *operations;

void operation_prepare(const struct operation *operation, const struct sizes *sizes)
{
    s = *sizes;
    pool_used = 0;
    operation->setup();
}
