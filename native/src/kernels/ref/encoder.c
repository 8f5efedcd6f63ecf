/* Token and position embeddings: forward, and the gradients of both tables.
 * kernels/select.c offers them to the encoder codelets. */
#include "ref.h"

#include <string.h>

void encoder_forward_ref(float *restrict out /* (B,T,C) */, const int32_t *tokens /* (B,T) */,
                         const float *restrict wte /* (V,C) */, const float *restrict wpe /* (maxT,C) */, size_t B,
                         size_t T, size_t C, struct team team)
{
    const struct share rows = team_share(team, B * T, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        const float *token = wte + (size_t)tokens[n] * C;
        const float *position = wpe + n % T * C;
        for (size_t c = 0; c < C; c++)
            out[n * C + c] = token[c] + position[c];
    }
}

void encoder_backward_ref(float *restrict dwte /* (V,C) */, float *restrict dwpe /* (maxT,C) */,
                          const float *restrict dout /* (B,T,C) */, const int32_t *tokens /* (B,T) */, size_t B,
                          size_t T, size_t C, size_t maxT, enum sum_start dwpe_start, struct team team)
{
    /* Columns, not rows: a token may come in any row. */
    const struct share columns = team_share(team, C, FLOATS_PER_LINE);
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            const float *d = dout + (b * T + t) * C;
            float *dtoken = dwte + (size_t)tokens[b * T + t] * C;
            float *dposition = dwpe + t * C;
            if (b == 0 && dwpe_start == SUM_FROM_ZERO) {
                for (size_t c = columns.begin; c < columns.end; c++) {
                    dtoken[c] += d[c];
                    dposition[c] = 0.0f + d[c];
                }
            } else {
                for (size_t c = columns.begin; c < columns.end; c++) {
                    dtoken[c] += d[c];
                    dposition[c] += d[c];
                }
            }
        }
    if (dwpe_start == SUM_FROM_ZERO)
        for (size_t t = T; t < maxT; t++)
            memset(dwpe + t * C + columns.begin, 0, (columns.end - columns.begin) * sizeof(float));
}
