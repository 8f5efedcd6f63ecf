/* Matrix products with a weight: forward, and the gradients of its input, weight and bias.
 * override.c offers them.
 *
 * A thread computes a rectangle of the outputs. A tile's operands are read where they lie, if they lie well, or else
 * packed. Blocks are as large as the caches allow, and the memory is asked for each before its turn. */
#include <stdbool.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/tile.h"

enum {
    BLOCK_ROWS = 8 * TILE_ROWS,                        /* rows of weight whose sums are turned over together, */
    FORWARD_COLUMNS = 768,                             /* rows of inp packed at a time, */
    PANELS = 1 << 22,                                  /* but so many floats of it */
    INPUT_COLUMNS = 128,                               /* columns of weight that dout meets at a time */
    WEIGHT_DEPTH = 384,                                /* rows of inp between two stores of dweight's running sums */
    WEIGHT_COLUMNS = 768,                              /* columns of inp packed at a time, */
    GROUP_COLUMNS = 256 / TILE_COLUMNS * TILE_COLUMNS, /* of which so many meet a block of rows one after the other */
    PANELS_DEPTH = 1024,                               /* and rows of it */
    BIAS_COLUMNS = BLOCK_ROWS,
    CROWDED = 512, /* floats between rows that fall into few of the first-level cache's sets */
    SPREAD_ROW = TILE_DEPTH + FLOATS_PER_LINE,
    FEW_PRODUCTS = 512 /* up to here packing takes longer than it saves; measured */
};

struct rectangle {
    struct share rows, columns;
};

/* This thread's part of outputs (rows,columns): a grid of rectangles, the one that costs least. Packing a row's or a
 * column's operand takes about as long as sixteen outputs (measured). */
static struct rectangle team_rectangle(struct team team, size_t rows, size_t row_grain, size_t columns,
                                       size_t column_grain)
{
    struct rectangle best = {{0, 0}, {0, 0}};
    size_t best_cost = SIZE_MAX;
    for (int high = 1; high <= team.count; high++) {
        if (team.count % high != 0)
            continue;
        const int wide = team.count / high;
        const struct share most_rows = team_share((struct team){0, high}, rows, row_grain);
        const struct share most_columns = team_share((struct team){0, wide}, columns, column_grain);
        const size_t cost = (most_rows.end + 16) * (most_columns.end + 16);
        if (cost < best_cost) {
            best_cost = cost;
            best.rows = team_share((struct team){team.index / wide, high}, rows, row_grain);
            best.columns = team_share((struct team){team.index % wide, wide}, columns, column_grain);
        }
    }
    return best;
}

/* A row of sums without packing: out[j] = ordered sum over k of a[k] * b[k,j], any two neighbours a stride apart,
 * starting from *initial, or from out's present value if initial is NULL. For few products, and where there is no
 * memory to pack. */
static void ordered_row(float *out, size_t out_column, const float *initial, const float *a, size_t a_step,
                        const float *b, size_t b_step, size_t b_column, size_t columns, size_t depth)
{
    for (size_t j = 0; j < columns; j++) {
        float sum = initial ? *initial : out[j * out_column];
        for (size_t k = 0; k < depth; k++)
            sum += a[k * a_step] * b[k * b_step + j * b_column];
        out[j * out_column] = sum;
    }
}

/* to (depth,panel_width(columns)), its rows ldto apart, = b (depth,columns), unused columns 0. Row by row, and each
 * asks for the next: narrower panels one after the other would come back to every row, pages apart, when the processor
 * has forgotten it. */
static void copy_rows(float *to, size_t ldto, const float *b, size_t ldb, size_t depth, size_t columns)
{
    const size_t width = panel_width(columns);
    for (size_t k = 0; k < depth; k++, to += ldto, b += ldb) {
        for (size_t j = 0; k + 1 < depth && j < columns; j += FLOATS_PER_LINE)
            __builtin_prefetch(b + ldb + j, 0, 2);
        memcpy(to, b, columns * sizeof(float));
        for (size_t j = columns; j < width; j++)
            to[j] = 0.0f;
    }
}

/* How many floats spread_rows() needs. */
static size_t spread_room(size_t lda, size_t rows)
{
    return lda % CROWDED == 0 ? rows * SPREAD_ROW : 0;
}

/* Rows that are crowded are copied to `room`, and *lda becomes their distance there; others are used where they are.
 * asked: the memory has been asked for them. */
static const float *spread_rows(float *room, size_t *lda, const float *from, size_t rows, size_t depth, bool asked)
{
    if (*lda % CROWDED != 0)
        return from;
    if (asked)
        for (size_t r = 0; r < rows; r++)
            memcpy(room + r * SPREAD_ROW, from + r * *lda, depth * sizeof(float));
    else
        copy_rows(room, SPREAD_ROW, from, *lda, rows, depth);
    *lda = SPREAD_ROW;
    return room;
}

static inline bool lies_well(size_t ldb, size_t columns)
{
    return ldb % CROWDED != 0 && columns % LANES == 0;
}

static inline size_t lines_per_row(size_t length)
{
    return (length + FLOATS_PER_LINE - 1) / FLOATS_PER_LINE;
}

static inline struct lines lines_of(const float *first, size_t rows, size_t length, size_t lda)
{
    return (struct lines){
        .first = first, .row_end = first + length, .count = rows * lines_per_row(length), .length = length, .lda = lda};
}

static inline size_t tiles_of(size_t rows, size_t columns)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS * ((columns + TILE_COLUMNS - 1) / TILE_COLUMNS);
}

/* Rows that are needed when so many tiles have been computed. Some of those tiles each ask for as many lines as they
 * have steps, the others for nothing, so that the branches of their loops are foreseen. */
struct block {
    struct lines rows; /* all of them */
    size_t tiles, depth, asking /* tiles */, due, asked /* lines */;
};

static struct block block_of(struct lines rows, size_t tiles, size_t depth)
{
    return (struct block){.rows = rows, .tiles = tiles, .depth = depth, .asking = (rows.count + depth - 1) / depth};
}

/* What the next tile asks for. */
static inline struct lines next_lines(struct block *block)
{
    block->due += block->asking;
    if (block->due < block->tiles)
        return (struct lines){0};
    block->due -= block->tiles;
    struct lines lines = block->rows;
    const size_t per_row = lines_per_row(lines.length), row = block->asked / per_row;
    lines.first += row * lines.lda + block->asked % per_row * FLOATS_PER_LINE;
    lines.row_end += row * lines.lda;
    lines.count = smaller(block->depth, lines.count - block->asked);
    block->asked += lines.count;
    return lines;
}

/* sums (rows,columns), rows ld apart, from rows of weight over the steps i to i + depth of panels that have C. Where
 * these steps are the last, the sums are turned over into out; else it is NULL. */
static void forward_block(float *sums, size_t ld, const float *bias, const float *a, size_t lda, const float *panels,
                          size_t C, size_t i, size_t rows, size_t columns, size_t depth, float *out, size_t OC,
                          struct block *next)
{
    for (size_t j = 0; j < columns; j += TILE_COLUMNS) {
        const size_t tile_columns = smaller(TILE_COLUMNS, columns - j), width = panel_width(tile_columns);
        const size_t share = (tile_columns * TILE_ROWS + rows - 1) / rows; /* of out's rows */
        size_t turned = 0;
        for (size_t r = 0; r < rows; r += TILE_ROWS) {
            /* Rows whose sums are long complete, a few before each tile: at the end of all tiles the last ones' sums
             * would be waited for, and so many lines be written at one time. */
            const size_t ready = r / LANES * LANES;
            if (out && ready > turned)
                SIMD_NAME(transpose)(out + j * OC + turned, OC, sums + turned * ld + j, ld, ready - turned,
                                     tile_columns);
            turned = ready;
            const float *initial = i > 0 ? NULL : bias ? bias + r : SIMD_NAME(tile_zeros);
            struct lines ahead = next_lines(next);
            const size_t written = r / TILE_ROWS * share;
            if (out && ahead.count == 0 && written < tile_columns)
                ahead = lines_of(out + (j + written) * OC, smaller(share, tile_columns - written), rows, OC);
            SIMD_NAME(tile_product)(sums + r * ld + j, ld, initial, a + r * lda, lda, 1, panels + j * C + i * width,
                                    width, smaller(TILE_ROWS, rows - r), width, depth, &ahead);
        }
        if (out)
            SIMD_NAME(transpose)(out + j * OC + turned, OC, sums + turned * ld + j, ld, rows - turned, tile_columns);
    }
}

/* The sums of `columns` rows of inp and `rows` rows of weight: sums[o,n], so that a value of weight meets a vector of
 * inp, which is packed whole; then they are turned over into out. */
static bool forward_rectangle(float *out, const float *inp, const float *weight, const float *bias, size_t rows,
                              size_t columns, size_t C, size_t OC)
{
    const size_t most = smaller(PANELS / C / TILE_COLUMNS * TILE_COLUMNS, FORWARD_COLUMNS);
    const size_t part = even_part(columns, most ? most : TILE_COLUMNS, TILE_COLUMNS);
    /* Not a power of two, so that a column's values fall into different cache sets. */
    const size_t ld = part + FLOATS_PER_LINE;
    float *panels = kernels_scratch(part * C + BLOCK_ROWS * ld + spread_room(C, BLOCK_ROWS));
    if (!panels)
        return false;
    float *sums = panels + part * C, *room = sums + BLOCK_ROWS * ld;
    const size_t depth_part = even_part(C, TILE_DEPTH, LANES);
    for (size_t n = 0; n < columns; n += part) {
        const size_t block_columns = smaller(part, columns - n);
        for (size_t j = 0; j < block_columns; j += TILE_COLUMNS)
            SIMD_NAME(panel_transpose)(panels + j * C, inp + (n + j) * C, C, C,
                                       smaller(TILE_COLUMNS, block_columns - j));
        for (size_t o = 0; o < rows; o += BLOCK_ROWS) {
            const size_t block_rows = smaller(BLOCK_ROWS, rows - o);
            for (size_t i = 0; i < C; i += depth_part) {
                const size_t depth = smaller(depth_part, C - i);
                const bool last = i + depth == C;
                size_t lda = C;
                const float *a = spread_rows(room, &lda, weight + o * C + i, block_rows, depth, true);
                struct block next = block_of(
                    last ? lines_of(weight + (o + block_rows) * C, smaller(BLOCK_ROWS, rows - o - block_rows),
                                    depth_part, C)
                         : lines_of(weight + o * C + i + depth, block_rows, smaller(depth_part, C - i - depth), C),
                    tiles_of(block_rows, block_columns), depth);
                forward_block(sums, ld, bias ? bias + o : NULL, a, lda, panels, C, i, block_rows, block_columns, depth,
                              last ? out + n * OC + o : NULL, OC, &next);
            }
        }
    }
    return true;
}

void SIMD_NAME(matmul_forward)(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                               const float *bias /* (OC) */, size_t N, size_t C, size_t OC, struct team team)
{
    const struct rectangle own = team_rectangle(team, OC, TILE_ROWS, N, TILE_COLUMNS);
    const size_t rows = own.rows.end - own.rows.begin, columns = own.columns.end - own.columns.begin;
    out += own.columns.begin * OC + own.rows.begin;
    inp += own.columns.begin * C;
    weight += own.rows.begin * C;
    bias = bias ? bias + own.rows.begin : NULL;
    if (rows == 0 || columns == 0)
        return;
    if (N * C * OC <= FEW_PRODUCTS || !forward_rectangle(out, inp, weight, bias, rows, columns, C, OC))
        for (size_t o = 0; o < rows; o++)
            ordered_row(out + o, OC, bias ? bias + o : SIMD_NAME(tile_zeros), weight + o * C, 1, inp, 1, C, columns, C);
}

/* `rows` rows of dinp and `columns` columns. All rows of dout meet a block of the weight, which is copied only where it
 * doesn't lie well. */
static bool backward_input_rectangle(float *dinp, const float *dout, const float *weight, size_t rows, size_t columns,
                                     size_t C, size_t OC, enum sum_start start)
{
    const size_t depth_part = even_part(OC, TILE_DEPTH, LANES), part = even_part(columns, INPUT_COLUMNS, TILE_COLUMNS);
    float *copy = kernels_scratch(depth_part * part + spread_room(OC, rows));
    if (!copy)
        return false;
    for (size_t o = 0; o < OC; o += depth_part) {
        const size_t depth = smaller(depth_part, OC - o);
        const float *initial = o == 0 && start == SUM_FROM_ZERO ? SIMD_NAME(tile_zeros) : NULL;
        size_t lda = OC;
        const float *a = spread_rows(copy + depth_part * part, &lda, dout + o, rows, depth, false);
        for (size_t i = 0; i < columns; i += part) {
            const size_t block_columns = smaller(part, columns - i);
            const bool copied = !lies_well(C, block_columns);
            if (copied)
                copy_rows(copy, part, weight + o * C + i, C, depth, block_columns);
            const float *b = copied ? copy : weight + o * C + i;
            const size_t ldb = copied ? part : C;
            const bool last = i + part >= columns;
            struct block next =
                block_of(last ? lines_of(weight + (o + depth) * C, smaller(depth_part, OC - o - depth), part, C)
                              : lines_of(weight + o * C + i + part, depth, smaller(part, columns - i - part), C),
                         tiles_of(rows, block_columns), depth);
            for (size_t r = 0; r < rows; r += TILE_ROWS)
                for (size_t j = 0; j < block_columns; j += TILE_COLUMNS) {
                    const size_t width = smaller(TILE_COLUMNS, block_columns - j);
                    const struct lines ahead = next_lines(&next);
                    SIMD_NAME(tile_product)(dinp + r * C + i + j, C, initial, a + r * lda, lda, 1, b + j, ldb,
                                            smaller(TILE_ROWS, rows - r), width, depth, &ahead);
                }
        }
    }
    return true;
}

void SIMD_NAME(matmul_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                                      const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC,
                                      enum sum_start start, struct team team)
{
    if (N == 1) { /* one sum per weight column: nothing to keep in registers meanwhile */
        matmul_backward_input_ref(dinp, dout, weight, N, C, OC, start, team);
        return;
    }
    const struct rectangle own = team_rectangle(team, N, TILE_ROWS, C, TILE_COLUMNS);
    const size_t rows = own.rows.end - own.rows.begin, columns = own.columns.end - own.columns.begin;
    dinp += own.rows.begin * C + own.columns.begin;
    dout += own.rows.begin * OC;
    weight += own.columns.begin;
    if (rows == 0 || columns == 0)
        return;
    if (N * C * OC <= FEW_PRODUCTS || !backward_input_rectangle(dinp, dout, weight, rows, columns, C, OC, start))
        for (size_t n = 0; n < rows; n++)
            ordered_row(dinp + n * C, 1, start == SUM_FROM_ZERO ? SIMD_NAME(tile_zeros) : NULL, dout + n * OC, 1,
                        weight, C, 1, columns, OC);
}

/* c (rows,columns), rows C apart, from the tiles of a and from steps n to n + depth of panels that have all_depth. */
static void weight_block(float *c, size_t C, const float *initial, const float *a, const float *panels,
                         size_t all_depth, size_t n, size_t rows, size_t columns, size_t depth, struct block *next)
{
    /* Neighbouring columns one after the other: rows of dweight often lie whole pages apart, and the processor takes a
     * read for one of what it has just written at the same place of a page. But only as many columns as the
     * second-level cache holds. */
    for (size_t group = 0; group < columns; group += GROUP_COLUMNS) {
        const size_t end = smaller(group + GROUP_COLUMNS, columns);
        for (size_t r = 0; r < rows; r += TILE_ROWS)
            for (size_t j = group; j < end; j += TILE_COLUMNS) {
                const size_t width = smaller(TILE_COLUMNS, end - j);
                const bool row_ends = j + width == end;
                const size_t next_r = row_ends ? r + TILE_ROWS : r, next_j = row_ends ? group : j + width;
                struct lines ahead = next_lines(next);
                if (ahead.count == 0 && !initial && next_r < rows)
                    ahead = lines_of(c + next_r * C + next_j, smaller(TILE_ROWS, rows - next_r),
                                     smaller(TILE_COLUMNS, end - next_j), C);
                SIMD_NAME(tile_product)(c + r * C + j, C, initial, a + r * TILE_DEPTH, 1, TILE_ROWS,
                                        panels + j * all_depth + n * panel_width(width), panel_width(width),
                                        smaller(TILE_ROWS, rows - r), width, depth, &ahead);
            }
    }
}

/* dbias[o] accumulates, over n ascending, dout[n,o]. */
static void backward_bias(float *dbias, const float *dout, size_t rows, size_t N, size_t OC, enum sum_start start)
{
    float sum[BIAS_COLUMNS];
    for (size_t o = 0; o < rows; o += BIAS_COLUMNS) {
        const size_t columns = smaller(BIAS_COLUMNS, rows - o);
        for (size_t j = 0; j < columns; j++)
            sum[j] = start == SUM_FROM_ZERO ? 0.0f : dbias[o + j];
        if (columns == BIAS_COLUMNS)
            for (size_t n = 0; n < N; n++)
                for (size_t j = 0; j < BIAS_COLUMNS; j++)
                    sum[j] += dout[n * OC + o + j];
        else
            for (size_t n = 0; n < N; n++)
                for (size_t j = 0; j < columns; j++)
                    sum[j] += dout[n * OC + o + j];
        memcpy(dbias + o, sum, columns * sizeof(float));
    }
}

/* `rows` rows of dweight and `columns` columns, and dbias unless it is NULL. The part of inp is packed whole, dout a
 * block of rows at a time. */
static bool backward_weight_rectangle(float *dweight, float *dbias, const float *dout, const float *inp, size_t rows,
                                      size_t columns, size_t N, size_t C, size_t OC, enum sum_start start)
{
    const size_t depth_part = even_part(N, WEIGHT_DEPTH, LANES);
    const size_t panels_depth = smaller(N, PANELS_DEPTH / depth_part * depth_part);
    const size_t part = even_part(columns, WEIGHT_COLUMNS, TILE_COLUMNS);
    float *panels = kernels_scratch(part * panels_depth + BLOCK_ROWS * TILE_DEPTH);
    if (!panels)
        return false;
    float *a = panels + part * panels_depth;
    for (size_t i = 0; i < columns; i += part) {
        const size_t block_columns = smaller(part, columns - i);
        for (size_t begin = 0; begin < N; begin += panels_depth) {
            const size_t all_depth = smaller(panels_depth, N - begin);
            SIMD_NAME(panels_copy)(panels, inp + begin * C + i, C, all_depth, block_columns);
            for (size_t o = 0; o < rows; o += BLOCK_ROWS) {
                const size_t block_rows = smaller(BLOCK_ROWS, rows - o);
                for (size_t n = 0; n < all_depth; n += depth_part) {
                    const size_t depth = smaller(depth_part, all_depth - n);
                    const float *initial = begin + n == 0 && start == SUM_FROM_ZERO ? SIMD_NAME(tile_zeros) : NULL;
                    SIMD_NAME(pack_steps)(a, dout + (begin + n) * OC + o, OC, block_rows, depth);
                    if (dbias && i == 0) /* while this part of dout is in a cache */
                        backward_bias(dbias + o, dout + (begin + n) * OC + o, block_rows, depth, OC,
                                      initial ? SUM_FROM_ZERO : SUM_CONTINUES);
                    struct block next = block_of(lines_of(dout + (begin + n) * OC + o + block_rows, depth,
                                                          smaller(BLOCK_ROWS, rows - o - block_rows), OC),
                                                 tiles_of(block_rows, block_columns), depth);
                    weight_block(dweight + o * C + i, C, initial, a, panels, all_depth, n, block_rows, block_columns,
                                 depth, &next);
                }
            }
        }
    }
    return true;
}

void SIMD_NAME(matmul_backward_weight)(float *dweight /* (OC,C) */, float *dbias /* (OC) */,
                                       const float *dout /* (N,OC) */, const float *inp /* (N,C) */, size_t N, size_t C,
                                       size_t OC, enum sum_start start, struct team team)
{
    const struct rectangle own = team_rectangle(team, OC, TILE_ROWS, C, TILE_COLUMNS);
    const size_t rows = own.rows.end - own.rows.begin, columns = own.columns.end - own.columns.begin;
    dweight += own.rows.begin * C + own.columns.begin;
    dout += own.rows.begin;
    inp += own.columns.begin;
    if (rows == 0 || columns == 0)
        return;
    dbias = dbias && own.columns.begin == 0 ? dbias + own.rows.begin : NULL;
    if (N * C * OC > FEW_PRODUCTS &&
        backward_weight_rectangle(dweight, dbias, dout, inp, rows, columns, N, C, OC, start))
        return;
    for (size_t o = 0; o < rows; o++)
        ordered_row(dweight + o * C, 1, start == SUM_FROM_ZERO ? SIMD_NAME(tile_zeros) : NULL, dout + o, OC, inp, C, 1,
                    columns, N);
    if (dbias)
        backward_bias(dbias, dout, rows, N, OC, start);
}
