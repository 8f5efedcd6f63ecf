/* The matmuls for a device: a work-group computes a tile of the outputs out of panels of the operands, which it brings
 * into local memory. A work-item has the sums of 8 x 8 outputs in registers; each adds its products in the order of
 * kernels/ref. */

enum { SIDE = 8, GROUP = SIDE * SIDE, TILE = 8 * SIDE, PANEL = 16 };

/* A row is longer than the tile, so that its elements for neighbouring k are in different banks. */
struct panels {
    float a[PANEL][TILE + 4], b[PANEL][TILE + 4];
};

/* Element (m, k) is at m * row + k * step. */
struct operand {
    __global const float *at;
    ulong row, step;
};

/* Elements first <= m < first + TILE, from <= k < from + PANEL; +0 beyond rows and terms, which no output gets. Work-items
 * beside each other read neighbours in memory. */
static void load(__local float panel[PANEL][TILE + 4], struct operand x, ulong first, ulong rows, ulong from,
                 ulong terms)
{
    for (uint i = get_local_id(0); i < PANEL * TILE; i += GROUP) {
        const uint m = x.step == 1 ? i / PANEL : i % TILE, k = x.step == 1 ? i % PANEL : i / TILE;
        const bool is_there = first + m < rows && from + k < terms;
        panel[k][m] = is_there ? x.at[(first + m) * x.row + (from + k) * x.step] : 0.0f;
    }
}

/* out[m,n] = start[m * start_row + n], or +0 if start is NULL, and then the sum of a[m,k] * b[n,k], k ascending. */
static void product(__global float *out, __global const float *start, ulong start_row, struct operand a,
                    struct operand b, ulong rows, ulong columns, ulong terms, __local struct panels *panels)
{
    const ulong across = (columns + TILE - 1) / TILE, tiles = (rows + TILE - 1) / TILE * across;
    const uint own_row = get_local_id(0) / SIDE * 8, own_column = get_local_id(0) % SIDE * 8;
    for (ulong tile = get_group_id(0); tile < tiles; tile += get_num_groups(0)) {
        const ulong first_row = tile / across * TILE, first_column = tile % across * TILE;
        const ulong row = first_row + own_row, column = first_column + own_column;
        float sums[8][8];
#pragma unroll
        for (uint i = 0; i < 8; i++)
#pragma unroll
            for (uint j = 0; j < 8; j++) {
                const bool is_there = start && row + i < rows && column + j < columns;
                sums[i][j] = is_there ? start[(row + i) * start_row + column + j] : 0.0f;
            }
        for (ulong from = 0; from < terms; from += PANEL) {
            barrier(CLK_LOCAL_MEM_FENCE);
            load(panels->a, a, first_row, rows, from, terms);
            load(panels->b, b, first_column, columns, from, terms);
            barrier(CLK_LOCAL_MEM_FENCE);
            const uint end = min((ulong)PANEL, terms - from);
            for (uint k = 0; k < end; k++)
#pragma unroll
                for (uint i = 0; i < 8; i++)
#pragma unroll
                    for (uint j = 0; j < 8; j++)
                        sums[i][j] = MULTIPLY_ADD(panels->a[k][own_row + i], panels->b[k][own_column + j], sums[i][j]);
        }
#pragma unroll
        for (uint i = 0; i < 8; i++)
#pragma unroll
            for (uint j = 0; j < 8; j++)
                if (row + i < rows && column + j < columns)
                    out[(row + i) * columns + column + j] = sums[i][j];
    }
}

static void matmul_forward_tiled(__global float *out, __global const float *inp, __global const float *weight,
                                 __global const float *bias, ulong N, ulong C, ulong OC, __local struct panels *panels)
{
    product(out, bias, 0, (struct operand){inp, C, 1}, (struct operand){weight, C, 1}, N, OC, C, panels);
}

static void matmul_backward_input_tiled(__global float *dinp, __global const float *dout, __global const float *weight,
                                        ulong N, ulong C, ulong OC, __local struct panels *panels)
{
    product(dinp, NULL, 0, (struct operand){dout, OC, 1}, (struct operand){weight, 1, C}, N, C, OC, panels);
}

static void matmul_backward_weight_tiled(__global float *dweight, __global float *dbias, __global const float *dout,
                                         __global const float *inp, ulong N, ulong C, ulong OC, ulong first, ulong rows,
                                         enum sum_start start, __local struct panels *panels)
{
    const struct operand a = {dout + first, 1, OC}, b = {inp, 1, C};
    product(dweight, start == SUM_FROM_ZERO ? NULL : dweight, C, a, b, rows, C, N, panels);
    for (ulong o = get_global_id(0); dbias && o < rows; o += get_global_size(0)) {
        float sum = present(start, &dbias[o]);
        for (ulong n = 0; n < N; n++)
            sum += a.at[n * OC + o];
        dbias[o] = sum;
    }
}
