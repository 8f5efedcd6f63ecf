/* The GELU activation in its tanh form: forward and backward.
 * kernels/select.c offers them to the gelu codelets. */
#include "ref.h"

#include <math.h>

/* libm is called one element at a time; what comes before and after it is vectorised, a block of elements each. */
enum { BLOCK = 256 };

static const float cubic = 0.044715f;

/* sqrtf(binary32(2/pi)); pi written out, as M_PI isn't C11. */
static float tanh_slope(void)
{
    return sqrtf((float)(2.0 / 3.14159265358979323846));
}

void gelu_forward_ref(float *restrict out /* (count) */, const float *restrict inp /* (count) */, size_t count,
                      struct team team)
{
    const struct share part = team_share(team, count, FLOATS_PER_LINE);
    const float g = tanh_slope();
    for (size_t i = part.begin; i < part.end; i += BLOCK) {
        const size_t block = part.end - i < BLOCK ? part.end - i : BLOCK;
        const float *x = inp + i;
        float th[BLOCK];
        for (size_t j = 0; j < block; j++)
            th[j] = g * (x[j] + cubic * x[j] * x[j] * x[j]);
        for (size_t j = 0; j < block; j++)
            th[j] = tanhf(th[j]);
        for (size_t j = 0; j < block; j++)
            out[i + j] = (0.5f * x[j]) * (1.0f + th[j]);
    }
}

void gelu_backward_ref(float *restrict dinp /* (count) */, const float *restrict dout /* (count) */,
                       const float *restrict inp /* (count) */, size_t count, enum sum_start start, struct team team)
{
    const struct share part = team_share(team, count, FLOATS_PER_LINE);
    const float g = tanh_slope();
    for (size_t i = part.begin; i < part.end; i += BLOCK) {
        const size_t block = part.end - i < BLOCK ? part.end - i : BLOCK;
        const float *x = inp + i;
        float th[BLOCK], ch[BLOCK], term[BLOCK];
        for (size_t j = 0; j < block; j++)
            th[j] = ch[j] = g * (x[j] + cubic * x[j] * x[j] * x[j]);
        for (size_t j = 0; j < block; j++)
            th[j] = tanhf(th[j]);
        for (size_t j = 0; j < block; j++)
            ch[j] = coshf(ch[j]);
        for (size_t j = 0; j < block; j++) {
            const float se = 1.0f / (ch[j] * ch[j]);
            const float d = 0.5f * (1.0f + th[j]) + (x[j] * 0.5f * se * g) * (1.0f + (3.0f * cubic) * x[j] * x[j]);
            term[j] = d * dout[i + j];
        }
        if (start == SUM_FROM_ZERO)
            for (size_t j = 0; j < block; j++)
                dinp[i + j] = 0.0f + term[j];
        else
            for (size_t j = 0; j < block; j++)
                dinp[i + j] += term[j];
    }
}
