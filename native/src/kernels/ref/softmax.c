/* Softmax over the vocabulary. */
#include "kernels/ref/ref.h"

#include <math.h>

void softmax_forward_ref(float *probs, const float *logits, size_t N, size_t V, size_t Vp, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        const float *l = logits + n * Vp;
        float *p = probs + n * Vp;
        float mx = -10000.0f;
        for (size_t v = 0; v < V; v++)
            if (l[v] > mx)
                mx = l[v];
        float z = 0.0f;
        for (size_t v = 0; v < V; v++) {
            p[v] = cr_expf(l[v] - mx);
            z += p[v];
        }
        for (size_t v = 0; v < V; v++)
            p[v] = p[v] / z;
        for (size_t v = V; v < Vp; v++)
            p[v] = 0.0f;
    }
}
