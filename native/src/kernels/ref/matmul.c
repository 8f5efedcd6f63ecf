/* Matrix products with a weight: forward, and the gradients of its input, weight and bias.
 * kernels/select.c offers them to the matmul codelets. */
#include "product.h"
#include "ref.h"

void matmul_forward_ref(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                        const float *bias /* (OC) */, size_t N, size_t C, size_t OC) {
    struct panel panel; /* weight's rows as columns */
    for (size_t o = 0; o < OC; o += PANEL_COLUMNS) {
        const size_t columns = smaller(PANEL_COLUMNS, OC - o);
        for (size_t i = 0; i < C; i += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, C - i);
            panel_transpose(&panel, weight + o * C + i, C, depth, columns);
            const float *initial = i > 0 ? NULL : bias ? bias + o : panel_zeros;
            panel_product(out + o, OC, initial, inp + i, C, N, &panel);
        }
    }
}

void matmul_backward_input_ref(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                               const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, enum sum_start start) {
    struct panel panel;
    /* o is the outer loop so that the weight, which can be far larger than dinp, is read once. */
    for (size_t o = 0; o < OC; o += PANEL_DEPTH) {
        const size_t depth = smaller(PANEL_DEPTH, OC - o);
        const float *initial = o == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
        for (size_t i = 0; i < C; i += PANEL_COLUMNS) {
            const size_t columns = smaller(PANEL_COLUMNS, C - i);
            panel_copy(&panel, weight + o * C + i, C, depth, columns);
            panel_product(dinp + i, C, initial, dout + o, OC, N, &panel);
        }
    }
}

enum { BLOCK_ROWS = 32 }; /* rows of dweight at a time: their gradients of the output take as much room as a panel */

void matmul_backward_weight_ref(float *dweight /* (OC,C) */, float *dbias /* (OC) */, const float *dout /* (N,OC) */,
                                const float *inp /* (N,C) */, size_t N, size_t C, size_t OC, enum sum_start start) {
    struct panel panel;
    float doutT[BLOCK_ROWS][PANEL_DEPTH]; /* a block of dout, each column's steps of n side by side */
    for (size_t o = 0; o < OC; o += BLOCK_ROWS) {
        const size_t rows = smaller(BLOCK_ROWS, OC - o);
        for (size_t n = 0; n < N; n += PANEL_DEPTH) {
            const size_t depth = smaller(PANEL_DEPTH, N - n);
            const float *initial = n == 0 && start == SUM_FROM_ZERO ? panel_zeros : NULL;
            if (dbias) {
                for (size_t r = 0; initial && r < rows; r++) dbias[o + r] = 0.0f;
                for (size_t k = 0; k < depth; k++)
                    for (size_t r = 0; r < rows; r++) dbias[o + r] += dout[(n + k) * OC + o + r];
            }
            transpose(doutT[0], PANEL_DEPTH, dout + n * OC + o, OC, depth, rows);
            for (size_t i = 0; i < C; i += PANEL_COLUMNS) {
                const size_t columns = smaller(PANEL_COLUMNS, C - i);
                panel_copy(&panel, inp + n * C + i, C, depth, columns);
                panel_product(dweight + o * C + i, C, initial, doutT[0], PANEL_DEPTH, rows, &panel);
            }
        }
    }
}
