/* Matrix products with a weight: forward, and the gradients of its input, weight and bias.
 * kernels/select.c offers them to the matmul codelets. */
#include "product.h"
#include "ref.h"

enum {
    FEW_ROWS = 4,  /* up to here making panels takes longer than it saves */
    BLOCK_N = 256, /* rows at a time: what a panel reads and writes of them stays in the second-level cache */
    BLOCK_OC = 64  /* rows of dweight at a time: their part of dout takes two panels' room */
};

/* A thread's part of a matrix: panels of columns, and where there are more threads than panels, also only some rows. */
struct part {
    struct share rows, columns;
};

static struct part part_of_output(struct team team, size_t rows, size_t columns)
{
    const size_t panels = (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    const int parts = (int)smaller(panels, (size_t)team.count);
    const int part = team.index % parts;
    const struct team same_columns = {team.index / parts, team.count / parts + (part < team.count % parts)};
    return (struct part){.rows = team_share(same_columns, rows, 1),
                         .columns = team_share((struct team){part, parts}, columns, PANEL_COLUMNS)};
}

static void forward_few_rows(float *restrict out, const float *restrict inp, const float *restrict weight,
                             const float *restrict bias, size_t C, size_t OC, struct part part)
{
    for (size_t n = part.rows.begin; n < part.rows.end; n++)
        for (size_t o = part.columns.begin; o < part.columns.end; o++) {
            float sum = bias ? bias[o] : 0.0f;
            for (size_t i = 0; i < C; i++)
                sum += inp[n * C + i] * weight[o * C + i];
            out[n * OC + o] = sum;
        }
}

void matmul_forward_ref(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                        const float *bias /* (OC) */, size_t N, size_t C, size_t OC, struct team team)
{
    const struct part part = part_of_output(team, N, OC);
    if (part.rows.end - part.rows.begin <= FEW_ROWS) {
        forward_few_rows(out, inp, weight, bias, C, OC, part);
        return;
    }
    struct panel panel; /* weight's rows o as columns, i its steps */
    for (size_t n = part.rows.begin; n < part.rows.end; n += BLOCK_N) {
        const size_t rows = smaller(BLOCK_N, part.rows.end - n);
        for (size_t o = part.columns.begin; o < part.columns.end; o += PANEL_COLUMNS) {
            const size_t columns = smaller(PANEL_COLUMNS, part.columns.end - o);
            for (size_t i = 0; i < C; i += PANEL_DEPTH) {
                const float *initial = i > 0 ? NULL : bias ? bias + o : panel_zeros;
                panel_transpose(&panel, weight + o * C + i, C, smaller(PANEL_DEPTH, C - i), columns);
                panel_product(out + n * OC + o, OC, initial, inp + n * C + i, C, rows, &panel);
            }
        }
    }
}

static void backward_input_few_rows(float *restrict dinp, const float *restrict dout, const float *restrict weight,
                                    size_t C, size_t OC, enum sum_start start, struct part part)
{
    for (size_t n = part.rows.begin; n < part.rows.end; n++) {
        float *row = dinp + n * C;
        for (size_t i = part.columns.begin; start == SUM_FROM_ZERO && i < part.columns.end; i++)
            row[i] = 0.0f;
        for (size_t o = 0; o < OC; o++)
            for (size_t i = part.columns.begin; i < part.columns.end; i++)
                row[i] += weight[o * C + i] * dout[n * OC + o];
    }
}

void matmul_backward_input_ref(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                               const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, enum sum_start start,
                               struct team team)
{
    const struct part part = part_of_output(team, N, C);
    if (part.rows.end - part.rows.begin <= FEW_ROWS) {
        backward_input_few_rows(dinp, dout, weight, C, OC, start, part);
        return;
    }
    struct panel panel; /* weight's columns i, o its steps */
    for (size_t n = part.rows.begin; n < part.rows.end; n += BLOCK_N) {
        const size_t rows = smaller(BLOCK_N, part.rows.end - n);
        /* o outside i: the weight, which can be far larger than dinp, is read in its own order. */
        for (size_t o = 0; o < OC; o += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, OC - o);
            const float *initial = o == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
            for (size_t i = part.columns.begin; i < part.columns.end; i += PANEL_COLUMNS) {
                panel_copy(&panel, weight + o * C + i, C, depth, smaller(PANEL_COLUMNS, part.columns.end - i));
                panel_product(dinp + n * C + i, C, initial, dout + n * OC + o, OC, rows, &panel);
            }
        }
    }
}

/* The rows o of dweight are the thread's. */
static void backward_weight_few_rows(float *restrict dweight, const float *restrict dout, const float *restrict inp,
                                     size_t N, size_t C, size_t OC, enum sum_start start, struct share part)
{
    for (size_t o = part.begin; o < part.end; o++) {
        float *row = dweight + o * C;
        for (size_t i = 0; start == SUM_FROM_ZERO && i < C; i++)
            row[i] = 0.0f;
        for (size_t n = 0; n < N; n++)
            for (size_t i = 0; i < C; i++)
                row[i] += inp[n * C + i] * dout[n * OC + o];
    }
}

static void backward_weight_many_rows(float *dweight, const float *dout, const float *inp, size_t N, size_t C,
                                      size_t OC, enum sum_start start, struct share part)
{
    struct panel panel;                 /* inp's columns i, n its steps */
    float doutT[BLOCK_OC][PANEL_DEPTH]; /* dout's columns o as rows */
    for (size_t o = part.begin; o < part.end; o += BLOCK_OC) {
        const size_t rows = smaller(BLOCK_OC, part.end - o);
        for (size_t n = 0; n < N; n += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, N - n);
            const float *initial = n == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
            transpose(doutT[0], PANEL_DEPTH, dout + n * OC + o, OC, depth, rows);
            for (size_t i = 0; i < C; i += PANEL_COLUMNS) {
                panel_copy(&panel, inp + n * C + i, C, depth, smaller(PANEL_COLUMNS, C - i));
                panel_product(dweight + o * C + i, C, initial, doutT[0], PANEL_DEPTH, rows, &panel);
            }
        }
    }
}

void matmul_backward_weight_ref(float *dweight /* (OC,C) */, float *dbias /* (OC) */, const float *dout /* (N,OC) */,
                                const float *inp /* (N,C) */, size_t N, size_t C, size_t OC, enum sum_start start,
                                struct team team)
{
    const struct share part = team_share(team, OC, FLOATS_PER_LINE);
    if (N <= FEW_ROWS)
        backward_weight_few_rows(dweight, dout, inp, N, C, OC, start, part);
    else
        backward_weight_many_rows(dweight, dout, inp, N, C, OC, start, part);
    if (!dbias)
        return;
    if (start == SUM_FROM_ZERO)
        for (size_t o = part.begin; o < part.end; o++)
            dbias[o] = 0.0f;
    for (size_t n = 0; n < N; n++)
        for (size_t o = part.begin; o < part.end; o++)
            dbias[o] += dout[n * OC + o];
}
