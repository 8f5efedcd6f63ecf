/* The GELU activation in its tanh form: forward and backward. */
#include "kernels/ref/ref.h"

#include <math.h>

/* g of docs/numerics.md; pi is written out, as M_PI isn't C11. */
static float tanh_slope(void)
{
    return sqrtf((float)(2.0 / 3.14159265358979323846));
}

void gelu_forward_ref(float *out, const float *inp, size_t count, struct team team)
{
    const struct share own = team_share(team, count, FLOATS_PER_LINE);
    const float g = tanh_slope();
    for (size_t i = own.begin; i < own.end; i++) {
        const float x = inp[i];
        const float u = 0.044715f * x * x * x;
        out[i] = (0.5f * x) * (1.0f + cr_tanhf(g * (x + u)));
    }
}

void gelu_backward_ref(float *dinp, const float *dout, const float *inp, size_t count, struct team team)
{
    const struct share own = team_share(team, count, FLOATS_PER_LINE);
    const float g = tanh_slope();
    for (size_t i = own.begin; i < own.end; i++) {
        const float x = inp[i];
        const float u = 0.044715f * x * x * x;
        const float y = g * (x + u);
        const float th = cr_tanhf(y);
        const float ch = cr_coshf(y);
        const float se = 1.0f / (ch * ch);
        const float d = 0.5f * (1.0f + th) + (x * 0.5f * se * g) * (1.0f + (3.0f * 0.044715f) * x * x);
        dinp[i] = 0.0f + d * dout[i];
    }
}
