/* Softmax over the vocabulary, and the exponentials, which attention needs too.
 *
 * The ordered sum is a chain of dependent additions. Meanwhile the processor computes the next exponentials, which take
 * about as long; computing the sums of several rows at the same time was measured to be no faster. */

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/math.h"

static const float least = -10000.0f;

static inline vector larger(vector a, vector b)
{
    return vector_select(a > b, a, b);
}

/* The largest of x and -10000. Unlike a sum it may be taken in any order: a NaN is never larger, and a zero of either
 * sign gives the same e^(x - mx). */
static float largest(const float *x, size_t count)
{
    enum { MANY = 4 }; /* independent comparisons */
    vector lanes[MANY];
    for (int j = 0; j < MANY; j++)
        lanes[j] = vector_of(least);
    size_t i = 0;
    for (; i + MANY * LANES <= count; i += MANY * LANES)
        for (int j = 0; j < MANY; j++)
            lanes[j] = larger(vector_load(x + i + (size_t)(j * LANES)), lanes[j]);
    for (; i + LANES <= count; i += LANES)
        lanes[0] = larger(vector_load(x + i), lanes[0]);
    if (i < count && count >= LANES) {
        lanes[1] = larger(vector_load(x + count - LANES), lanes[1]);
        i = count;
    }
    lanes[0] = larger(larger(lanes[0], lanes[1]), larger(lanes[2], lanes[3]));
    float mx[LANES];
    vector_store(mx, lanes[0]);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            mx[j] = mx[j + half] > mx[j] ? mx[j + half] : mx[j];
    for (; i < count; i++)
        mx[0] = x[i] > mx[0] ? x[i] : mx[0];
    return mx[0];
}

static inline float sum_after(float sum, const float *e, size_t count)
{
    float z = sum;
    for (size_t i = 0; i < count; i++)
        z += e[i];
    return z;
}

static float exponentials(float *e, const float *x, float mx, size_t count, const float *next)
{
    float z = 0.0f;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        if (next)
            __builtin_prefetch(next + i, 0, 2);
        vector_store(e + i, vector_expf(vector_load(x + i) - mx));
        z = sum_after(z, e + i, LANES);
    }
    if (i < count && count >= LANES) { /* the last vector overlaps the one before */
        vector_store(e + count - LANES, vector_expf(vector_load(x + count - LANES) - mx));
    } else if (i < count) {
        float few[LANES] = {0};
        memcpy(few, x, count * sizeof *few);
        vector_store(few, vector_expf(vector_load(few) - mx));
        memcpy(e, few, count * sizeof *few);
    }
    return sum_after(z, e + i, count - i);
}

float SIMD_NAME(softmax_exponentials)(float *e, const float *x, size_t count, const float *next)
{
    return exponentials(e, x, largest(x, count), count, next);
}

void SIMD_NAME(softmax_forward)(float *probs /* (N,Vp) */, const float *logits /* (N,Vp) */, size_t N, size_t V,
                                size_t Vp, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        float *p = probs + n * Vp;
        const float *row = logits + n * Vp;
        const float z = SIMD_NAME(softmax_exponentials)(p, row, V, n + 1 < rows.end ? row + Vp : NULL);
        for (size_t v = 0; v < V; v++)
            p[v] = p[v] / z;
        memset(p + V, 0, (Vp - V) * sizeof *p);
    }
}
