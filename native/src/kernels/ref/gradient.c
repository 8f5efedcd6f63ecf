/* The sum of two contributions to a gradient.
 * kernels/select.c offers it to the gradient codelets. */
#include "ref.h"

void gradient_add_ref(float *restrict sum /* (count) */, const float *restrict term /* (count) */, size_t count,
                      struct team team)
{
    const struct share share = team_share(team, count, FLOATS_PER_LINE);
    for (size_t i = share.begin; i < share.end; i++)
        sum[i] += term[i];
}
