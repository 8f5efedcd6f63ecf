/* The sum of two contributions to a gradient. */
#include "kernels/ref/ref.h"

void gradient_add_ref(float *restrict sum, const float *restrict term, size_t count, struct team team)
{
    const struct share own = team_share(team, count, FLOATS_PER_LINE);
    for (size_t i = own.begin; i < own.end; i++)
        sum[i] += term[i];
}
