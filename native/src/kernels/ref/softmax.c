/* Softmax over the vocabulary.
 * kernels/select.c offers it to the softmax codelet. */
#include "softmax.h"

#include <math.h>
#include <string.h>

#include "ref.h"

enum { LANES = 32 };

/* The largest of x and -10000. Unlike a sum it may be taken in any order: a NaN never wins, and which of two zeros of
 * different sign does makes no difference to expf(x - mx). */
static float largest(const float *x, size_t count)
{
    float mx = -10000.0f;
    size_t i = 0;
    if (count >= LANES) {
        float lane[LANES];
        for (size_t j = 0; j < LANES; j++)
            lane[j] = mx;
        for (; i + LANES <= count; i += LANES)
            for (size_t j = 0; j < LANES; j++)
                lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
        for (size_t j = 0; j < LANES; j++)
            mx = lane[j] > mx ? lane[j] : mx;
    }
    for (; i < count; i++)
        mx = x[i] > mx ? x[i] : mx;
    return mx;
}

float softmax_exponentials(float *restrict e, const float *restrict x, size_t count)
{
    const float mx = largest(x, count);
    float z = 0.0f;
    for (size_t i = 0; i < count; i++) {
        e[i] = expf(x[i] - mx);
        z += e[i];
    }
    return z;
}

void softmax_forward_ref(float *probs /* (N,Vp) */, const float *logits /* (N,Vp) */, size_t N, size_t V, size_t Vp,
                         struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        float *p = probs + n * Vp;
        const float z = softmax_exponentials(p, logits + n * Vp, V);
        for (size_t v = 0; v < V; v++)
            p[v] = p[v] / z;
        memset(p + V, 0, (Vp - V) * sizeof(float));
    }
}
