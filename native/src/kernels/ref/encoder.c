/* Token and position embeddings: forward, and the gradients of both tables. */
#include "kernels/ref/ref.h"

void encoder_forward_ref(float *restrict out, const int32_t *tokens, const float *restrict wte,
                         const float *restrict wpe, size_t B, size_t T, size_t C, struct team team)
{
    const struct share rows = team_share(team, B * T, 1);
    for (size_t n = rows.begin; n < rows.end; n++)
        for (size_t c = 0; c < C; c++)
            out[n * C + c] = wte[(size_t)tokens[n] * C + c] + wpe[n % T * C + c];
}

void encoder_backward_ref(float *restrict dwte, float *restrict dwpe, const float *restrict dout, const int32_t *tokens,
                          size_t B, size_t T, size_t C, size_t maxT, size_t first, size_t rows,
                          enum sum_start dwpe_start, struct team team)
{
    const struct share columns = team_share(team, C, FLOATS_PER_LINE); /* several rows n may have the same token */
    for (size_t n = 0; n < B * T; n++) {
        const size_t row = (size_t)tokens[n] - first; /* of a token before the first: above every row */
        if (row < rows)
            for (size_t c = columns.begin; c < columns.end; c++)
                dwte[row * C + c] += dout[n * C + c];
    }
    if (!dwpe)
        return;
    for (size_t t = 0; t < maxT; t++)
        for (size_t c = columns.begin; c < columns.end; c++)
            dwpe[t * C + c] = present(dwpe_start, &dwpe[t * C + c]);
    for (size_t n = 0; n < B * T; n++)
        for (size_t c = columns.begin; c < columns.end; c++)
            dwpe[n % T * C + c] += dout[n * C + c];
}
