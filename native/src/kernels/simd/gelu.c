/* The GELU activation in its tanh form: forward and backward. */
#include <math.h>

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/math.h"

static const float cubic = 0.044715f;

/* g of docs/numerics.md; pi is written out, as M_PI isn't C11. */
static float tanh_slope(void)
{
    return sqrtf((float)(2.0 / 3.14159265358979323846));
}

SIMD_INLINE vector forward(vector x, float g)
{
    return (0.5f * x) * (1.0f + vector_tanhf(g * (x + cubic * x * x * x)));
}

/* The derivative times dout. */
SIMD_INLINE vector backward(vector x, vector dout, float g)
{
    const vector y = g * (x + cubic * x * x * x);
    vector th;
    const vector ch = vector_coshf_tanhf(&th, y);
    const vector se = 1.0f / (ch * ch);
    return (0.5f * (1.0f + th) + (x * 0.5f * se * g) * (1.0f + (3.0f * cubic) * x * x)) * dout;
}

void SIMD_NAME(gelu_forward)(float *out /* (count) */, const float *inp /* (count) */, size_t count, struct team team)
{
    const float g = tanh_slope();
    const struct share share = team_share(team, count, FLOATS_PER_LINE);
    size_t i = share.begin;
    for (; i + LANES <= share.end; i += LANES)
        vector_store(out + i, forward(vector_load(inp + i), g));
    if (i < share.end) {
        float x[LANES] = {0}, rest[LANES];
        memcpy(x, inp + i, (share.end - i) * sizeof *x);
        vector_store(rest, forward(vector_load(x), g));
        memcpy(out + i, rest, (share.end - i) * sizeof *rest);
    }
}

void SIMD_NAME(gelu_backward)(float *dinp /* (count) */, const float *dout /* (count) */,
                              const float *inp /* (count) */, size_t count, struct team team)
{
    const float g = tanh_slope();
    const struct share share = team_share(team, count, FLOATS_PER_LINE);
    size_t i = share.begin;
    for (; i + LANES <= share.end; i += LANES)
        vector_store(dinp + i, 0.0f + backward(vector_load(inp + i), vector_load(dout + i), g));
    if (i < share.end) {
        float x[LANES] = {0}, d[LANES] = {0}, term[LANES];
        memcpy(x, inp + i, (share.end - i) * sizeof *x);
        memcpy(d, dout + i, (share.end - i) * sizeof *d);
        vector_store(term, backward(vector_load(x), vector_load(d), g));
        for (size_t j = 0; i + j < share.end; j++)
            dinp[i + j] = 0.0f + term[j];
    }
}
