/* Matrix products with a weight: forward, and the gradients of its input, weight and bias. */
#include "kernels/ref/ref.h"

void matmul_forward_ref(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,
                        size_t OC, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++)
        for (size_t o = 0; o < OC; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                sum = MULTIPLY_ADD(inp[n * C + i], weight[o * C + i], sum);
            out[n * OC + o] = sum;
        }
}

void matmul_backward_input_ref(float *dinp, const float *dout, const float *weight, size_t N, size_t C, size_t OC,
                               struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        for (size_t i = 0; i < C; i++)
            dinp[n * C + i] = 0.0f;
        for (size_t o = 0; o < OC; o++)
            for (size_t i = 0; i < C; i++)
                dinp[n * C + i] = MULTIPLY_ADD(weight[o * C + i], dout[n * OC + o], dinp[n * C + i]);
    }
}

void matmul_backward_weight_ref(float *dweight, float *dbias, const float *dout, const float *inp, size_t N, size_t C,
                                size_t OC, size_t first, size_t rows, enum sum_start start, struct team team)
{
    const struct share own = team_share(team, rows, FLOATS_PER_LINE);
    for (size_t o = own.begin; o < own.end; o++) {
        for (size_t i = 0; i < C; i++)
            dweight[o * C + i] = present(start, &dweight[o * C + i]);
        for (size_t n = 0; n < N; n++)
            for (size_t i = 0; i < C; i++)
                dweight[o * C + i] = MULTIPLY_ADD(inp[n * C + i], dout[n * OC + first + o], dweight[o * C + i]);
        if (!dbias)
            continue;
        dbias[o] = present(start, &dbias[o]);
        for (size_t n = 0; n < N; n++)
            dbias[o] += dout[n * OC + first + o];
    }
}
