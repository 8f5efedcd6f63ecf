/* The matmuls by a BLAS, which computes the products in an order and rounding of its own; the sums of biases are the
 * contract's. */
#include <string.h>

#include "kernels/blas/blas.h"

/* The outputs that one thread of a team computes: the longer side of the matrix is cut. */
struct part {
    struct share rows, columns;
};

static struct part part_of_output(struct team team, size_t rows, size_t columns)
{
    struct part part = {{0, rows}, {0, columns}};
    if (rows > columns)
        part.rows = team_share(team, rows, FLOATS_PER_LINE);
    else
        part.columns = team_share(team, columns, FLOATS_PER_LINE);
    return part;
}

static size_t length(struct share share)
{
    return share.end - share.begin;
}

static void matmul_forward_blas(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                                const float *bias /* (OC) */, size_t N, size_t C, size_t OC, struct team team)
{
    const struct part part = part_of_output(team, N, OC);
    const size_t rows = length(part.rows), columns = length(part.columns);
    if (rows == 0 || columns == 0)
        return;
    float *own = out + part.rows.begin * OC + part.columns.begin;
    for (size_t n = 0; bias && n < rows; n++)
        memcpy(own + n * OC, bias + part.columns.begin, columns * sizeof(float));
    blas_product(own, OC, inp + part.rows.begin * C, C, false, weight + part.columns.begin * C, C, true, rows, columns,
                 C, bias != NULL);
}

static void matmul_backward_input_blas(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                                       const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC,
                                       struct team team)
{
    const struct part part = part_of_output(team, N, C);
    const size_t rows = length(part.rows), columns = length(part.columns);
    if (rows == 0 || columns == 0)
        return;
    blas_product(dinp + part.rows.begin * C + part.columns.begin, C, dout + part.rows.begin * OC, OC, false,
                 weight + part.columns.begin, C, false, rows, columns, OC, false);
}

static void matmul_backward_weight_blas(float *dweight /* (rows,C) */, float *dbias /* (rows) */,
                                        const float *dout /* (N,OC) */, const float *inp /* (N,C) */, size_t N,
                                        size_t C, size_t OC, size_t first, size_t rows, enum sum_start start,
                                        struct team team)
{
    const struct part part = part_of_output(team, rows, C);
    const size_t m = length(part.rows), n = length(part.columns);
    if (m > 0 && n > 0)
        blas_product(dweight + part.rows.begin * C + part.columns.begin, C, dout + first + part.rows.begin, OC, true,
                     inp + part.columns.begin, C, false, m, n, N, start == SUM_CONTINUES);
    if (!dbias)
        return;
    const struct share own = team_share(team, rows, FLOATS_PER_LINE);
    if (start == SUM_FROM_ZERO)
        for (size_t o = own.begin; o < own.end; o++)
            dbias[o] = 0.0f;
    for (size_t n = 0; n < N; n++)
        for (size_t o = own.begin; o < own.end; o++)
            dbias[o] += dout[n * OC + first + o];
}

void kernels_override_blas(struct kernels *kernels)
{
    kernels->matmul_forward = matmul_forward_blas;
    kernels->matmul_backward_input = matmul_backward_input_blas;
    kernels->matmul_backward_weight = matmul_backward_weight_blas;
}
