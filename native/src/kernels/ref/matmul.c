/* Matrix products with a weight: forward, and the gradients of its input, weight and bias.
 * kernels/select.c offers them to the matmul codelets. */
#include "product.h"
#include "ref.h"

enum {
    FEW_ROWS = 4,  /* up to here making panels takes longer than it saves */
    BLOCK_N = 256, /* rows at a time: what a panel reads and writes of them stays in the second-level cache */
    BLOCK_OC = 64  /* rows of dweight at a time: their part of dout takes two panels' room */
};

static void forward_few_rows(float *restrict out, const float *restrict inp, const float *restrict weight,
                             const float *restrict bias, size_t N, size_t C, size_t OC)
{
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < OC; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                sum += inp[n * C + i] * weight[o * C + i];
            out[n * OC + o] = sum;
        }
}

void matmul_forward_ref(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                        const float *bias /* (OC) */, size_t N, size_t C, size_t OC)
{
    if (N <= FEW_ROWS) {
        forward_few_rows(out, inp, weight, bias, N, C, OC);
        return;
    }
    struct panel panel; /* weight's rows o as columns, i its steps */
    for (size_t n = 0; n < N; n += BLOCK_N) {
        const size_t rows = smaller(BLOCK_N, N - n);
        for (size_t o = 0; o < OC; o += PANEL_COLUMNS) {
            const size_t columns = smaller(PANEL_COLUMNS, OC - o);
            for (size_t i = 0; i < C; i += PANEL_DEPTH) {
                const float *initial = i > 0 ? NULL : bias ? bias + o : panel_zeros;
                panel_transpose(&panel, weight + o * C + i, C, smaller(PANEL_DEPTH, C - i), columns);
                panel_product(out + n * OC + o, OC, initial, inp + n * C + i, C, rows, &panel);
            }
        }
    }
}

static void backward_input_few_rows(float *restrict dinp, const float *restrict dout, const float *restrict weight,
                                    size_t N, size_t C, size_t OC, enum sum_start start)
{
    for (size_t n = 0; n < N; n++, dinp += C, dout += OC) {
        for (size_t i = 0; start == SUM_FROM_ZERO && i < C; i++)
            dinp[i] = 0.0f;
        for (size_t o = 0; o < OC; o++)
            for (size_t i = 0; i < C; i++)
                dinp[i] += weight[o * C + i] * dout[o];
    }
}

void matmul_backward_input_ref(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                               const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, enum sum_start start)
{
    if (N <= FEW_ROWS) {
        backward_input_few_rows(dinp, dout, weight, N, C, OC, start);
        return;
    }
    struct panel panel; /* weight's columns i, o its steps */
    for (size_t n = 0; n < N; n += BLOCK_N) {
        const size_t rows = smaller(BLOCK_N, N - n);
        /* o outside i: the weight, which can be far larger than dinp, is read in its own order. */
        for (size_t o = 0; o < OC; o += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, OC - o);
            const float *initial = o == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
            for (size_t i = 0; i < C; i += PANEL_COLUMNS) {
                panel_copy(&panel, weight + o * C + i, C, depth, smaller(PANEL_COLUMNS, C - i));
                panel_product(dinp + n * C + i, C, initial, dout + n * OC + o, OC, rows, &panel);
            }
        }
    }
}

static void backward_weight_few_rows(float *restrict dweight, const float *restrict dout, const float *restrict inp,
                                     size_t N, size_t C, size_t OC, enum sum_start start)
{
    for (size_t o = 0; o < OC; o++, dweight += C) {
        for (size_t i = 0; start == SUM_FROM_ZERO && i < C; i++)
            dweight[i] = 0.0f;
        for (size_t n = 0; n < N; n++)
            for (size_t i = 0; i < C; i++)
                dweight[i] += inp[n * C + i] * dout[n * OC + o];
    }
}

static void backward_weight_many_rows(float *dweight, const float *dout, const float *inp, size_t N, size_t C,
                                      size_t OC, enum sum_start start)
{
    struct panel panel;                 /* inp's columns i, n its steps */
    float doutT[BLOCK_OC][PANEL_DEPTH]; /* dout's columns o as rows */
    for (size_t o = 0; o < OC; o += BLOCK_OC) {
        const size_t rows = smaller(BLOCK_OC, OC - o);
        for (size_t n = 0; n < N; n += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, N - n);
            const float *initial = n == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
            transpose(doutT[0], PANEL_DEPTH, dout + n * OC + o, OC, depth, rows);
            for (size_t i = 0; i < C; i += PANEL_COLUMNS) {
                panel_copy(&panel, inp + n * C + i, C, depth, smaller(PANEL_COLUMNS, C - i));
                panel_product(dweight + o * C + i, C, initial, doutT[0], PANEL_DEPTH, rows, &panel);
            }
        }
    }
}

void matmul_backward_weight_ref(float *dweight /* (OC,C) */, float *dbias /* (OC) */, const float *dout /* (N,OC) */,
                                const float *inp /* (N,C) */, size_t N, size_t C, size_t OC, enum sum_start start)
{
    if (N <= FEW_ROWS)
        backward_weight_few_rows(dweight, dout, inp, N, C, OC, start);
    else
        backward_weight_many_rows(dweight, dout, inp, N, C, OC, start);
    if (!dbias)
        return;
    if (start == SUM_FROM_ZERO)
        for (size_t o = 0; o < OC; o++)
            dbias[o] = 0.0f;
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < OC; o++)
            dbias[o] += dout[n * OC + o];
}
