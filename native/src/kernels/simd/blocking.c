/* The block sizes of this level. They are values in a struct, so that a machine's cache sizes can fill it. */
#include "kernels/simd/blocking.h"

#include <stdint.h>

/* The largest block sizes. A product is cut into equal blocks of at most these (even_part). */
struct limits {
    size_t MC, KC, NC;
    size_t KP;       /* of backward_weight */
    size_t NG;       /* of backward_weight */
    size_t b_floats; /* of forward: NC * k */
};

/* What the sizes follow from, in numbers for AVX-512 (first-level cache 32 KB, second-level cache 1 MB):
 * KC: a micro-panel of B (98 KB at KC = 768) and the block of A (295 KB) stay in the second-level cache.
 * MC: 96 rows, so that 8 micro-tiles use a micro-panel of B each time it is read.
 * NG: the columns of B that meet a block of A (393 KB at KC = 384) stay in the second-level cache.
 * b_floats: 16 MB at most for B, which forward packs with all k.
 * Measured with N = 128, 256, 768 and (C, OC) = (768, 2304), (3072, 768) on a shared virtual AMD EPYC of 2 cores: a
 * third to three times of MC, KC, NC or NG changes the geometric mean by less than 3 %, and single shapes by up to 12
 * %, which is about the noise of that machine; only backward_input with NC = 64 had 1.05 times the speed. */
static const struct limits forward = {.MC = 8 * MR, .KC = 768, .NC = 768, .b_floats = 1 << 22};
static const struct limits backward_input = {.KC = 768, .NC = 128};
static const struct limits backward_weight = {.MC = 8 * MR, .KC = 384, .NC = 768, .KP = 1024, .NG = 256 / NR * NR};
enum { ATTENTION_KC = 768, SMALL_MATMUL = 512 };

/* The size of the first of the fewest equal parts of `items` that are at most `most`, a multiple of grain. */
static size_t even_part(size_t items, size_t most, size_t grain)
{
    const size_t parts = parts_of(items, most);
    return parts == 0 ? grain : rounded_up(parts_of(items, parts), grain);
}

struct blocking SIMD_NAME(blocking_forward)(size_t m, size_t n, size_t k)
{
    (void)m;
    const size_t fitting = forward.b_floats / k / NR * NR, most = smaller(fitting ? fitting : NR, forward.NC);
    const size_t NC = even_part(n, most, NR);
    return (struct blocking){.MC = forward.MC, .KC = even_part(k, forward.KC, LANES), .NC = NC, .KP = k, .NG = NC};
}

struct blocking SIMD_NAME(blocking_backward_input)(size_t m, size_t n, size_t k)
{
    const size_t KC = even_part(k, backward_input.KC, LANES), NC = even_part(n, backward_input.NC, NR);
    return (struct blocking){.MC = rounded_up(m, MR), .KC = KC, .NC = NC, .KP = KC, .NG = NC};
}

struct blocking SIMD_NAME(blocking_backward_weight)(size_t m, size_t n, size_t k)
{
    (void)m;
    const size_t KC = even_part(k, backward_weight.KC, LANES);
    return (struct blocking){.MC = backward_weight.MC,
                             .KC = KC,
                             .NC = even_part(n, backward_weight.NC, NR),
                             .KP = smaller(k, backward_weight.KP / KC * KC),
                             .NG = backward_weight.NG};
}

size_t SIMD_NAME(blocking_attention_KC)(void)
{
    return ATTENTION_KC;
}

bool SIMD_NAME(is_small_matmul)(size_t m, size_t n, size_t k)
{
    return m * n * k <= SMALL_MATMUL;
}

/* A grid of rectangles: the one that costs its largest part least. Packing one row's or one column's operand takes
 * about as long as sixteen outputs (measured). */
struct rectangle SIMD_NAME(team_rectangle)(struct team team, size_t m, size_t n)
{
    struct rectangle best = {{0, m}, {0, n}};
    if (team.count == 1) /* the divisions below take as long as a small product */
        return best;
    size_t best_cost = SIZE_MAX;
    for (int high = 1; high <= team.count; high++) {
        if (team.count % high != 0)
            continue;
        const int wide = team.count / high;
        const struct share most_rows = team_share((struct team){0, high}, m, MR);
        const struct share most_columns = team_share((struct team){0, wide}, n, NR);
        const size_t cost = (most_rows.end + 16) * (most_columns.end + 16);
        if (cost < best_cost) {
            best_cost = cost;
            best.rows = team_share((struct team){team.index / wide, high}, m, MR);
            best.columns = team_share((struct team){team.index % wide, wide}, n, NR);
        }
    }
    return best;
}
