/* The block sizes of this level, which follow from the caches. */
#include "kernels/simd/blocking.h"

#include <stdint.h>

/* The largest block sizes. A product is cut into equal blocks of at most these (even_part). */
struct limits {
    size_t MC, KC, NC;
};

static struct limits forward, backward_input, backward_weight;
static size_t group_room; /* floats: what the group of columns and the block of A of backward_weight take at most */
static size_t attention_KC;
static size_t kept; /* floats: what the second-level cache keeps from one block to the next at most */
static bool l3_is_slow;

enum {
    SMALL_MATMUL = 512,
    /* Columns of backward_weight. With k = 256, avx512 has 0.98 of the speed with half of it, avx2 with twice as many
     * (bench_kernels, Zen 4, 2026-11-23). */
    LARGEST_GROUP = 256,
    /* Floats: forward packs B with all k, and so NR columns at least. Where k is 3072 and n 768, avx2 has 98 GF/s with
     * 4 MB and 88 with 16 (bench_kernels, Zen 4, 2026-11-22). */
    LARGEST_B = 1 << 20
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The largest multiple of grain that is at most `most`, and grain at least. */
static size_t multiple_below(size_t most, size_t grain)
{
    return most < grain ? grain : most / grain * grain;
}

/* MC: 8 micro-tiles use a micro-panel of B each time it is read.
 * forward: a micro-panel of B (NR*KC), the block of A (MC*KC) and the sums (MC*NC), NC = KC, take two thirds of the
 * second-level cache.
 * backward_input: the packed block of B (KC*NC) takes three eighths of the second-level cache.
 * backward_weight: the block of A (MC*KC) and the columns of B that meet it (KC*NG) take nine sixteenths of the
 * second-level cache. Few columns and a large KC are better than the opposite, because C, whose rows may lie in memory,
 * is stored and reloaded less often.
 * What is read for each block is kept if it takes three quarters of the second-level cache at most. */
void SIMD_NAME(fit_caches)(const struct caches *caches)
{
    const size_t l2 = caches->l2 / sizeof(float), MC = 8 * MR, widest = 768;
    size_t KC = multiple_below(smaller(l2 * 2 / 3 / (NR + 2 * MC), widest), LANES);
    forward = (struct limits){.MC = MC, .KC = KC, .NC = rounded_up(KC, NR)};
    backward_input = (struct limits){.KC = KC, .NC = multiple_below(l2 * 3 / 8 / KC, NR)};
    attention_KC = KC;
    group_room = l2 * 9 / 16;
    KC = multiple_below(smaller(group_room / (MC + 2 * NR), widest), LANES);
    backward_weight = (struct limits){.MC = MC, .KC = KC, .NC = rounded_up(widest, NR)};
    kept = l2 * 3 / 4;
    l3_is_slow = caches->l3_is_slow;
}

/* The fewest equal parts of `items`, of which there are some, that are at most `most`: the first one's size, a multiple
 * of grain. */
static size_t even_part(size_t items, size_t most, size_t grain)
{
    return rounded_up(parts_of(items, parts_of(items, most)), grain);
}

/* Cuts an output (m,n) into a team's units, at most as large as the blocks. The cost is the time of a thread's units
 * and half of another one, for which it waits at the end. Reading one row's or one column's operand takes about as long
 * as sixteen outputs (measured). */
static void cut_into_units(struct blocking *blocking, struct team team, size_t m, size_t n)
{
    const size_t most_rows = smaller(blocking->MC, 8 * MR), most_columns = blocking->NG;
    size_t least = SIZE_MAX;
    for (size_t rows = most_rows; rows >= MR; rows /= 2)
        for (size_t columns = most_columns; columns >= NR; columns /= 2) {
            const struct blocking cut = {.MC = even_part(m, multiple_below(rows, MR), MR),
                                         .NG = even_part(n, multiple_below(columns, NR), NR)};
            const size_t rounds = parts_of(units_of(&cut, m, n), (size_t)team.count);
            const size_t cost = (2 * rounds + 1) * (cut.MC + 16) * (cut.NG + 16);
            if (cost < least) {
                least = cost;
                blocking->MC = cut.MC;
                blocking->NG = cut.NG;
            }
        }
}

struct blocking SIMD_NAME(blocking_forward)(struct team team, size_t m, size_t n, size_t k)
{
    const size_t fitting = LARGEST_B / k / NR * NR, most = smaller(fitting ? fitting : NR, forward.NC);
    struct blocking blocking = {.MC = forward.MC, .KC = even_part(k, forward.KC, LANES)};
    blocking.NC =
        even_part(n, team.count > 1 ? larger(most, multiple_below((size_t)team.count * kept / 2 / k, NR)) : most, NR);
    blocking.NG = smaller(blocking.NC, most);
    if (team.count > 1)
        cut_into_units(&blocking, team, m, blocking.NC);
    blocking.together = larger(most / blocking.NG, 1);
    return blocking;
}

struct blocking SIMD_NAME(blocking_backward_input)(struct team team, size_t m, size_t n, size_t k)
{
    const size_t KC = even_part(k, backward_input.KC, LANES), NC = even_part(n, backward_input.NC, NR);
    struct blocking blocking = {.MC = rounded_up(m, MR), .KC = KC, .NC = NC, .NG = NC};
    if (team.count > 1) {
        blocking.NC = even_part(n, larger(NC, multiple_below((size_t)team.count * kept / 2 / KC, NR)), NR);
        cut_into_units(&blocking, team, m, blocking.NC);
    }
    return blocking;
}

struct blocking SIMD_NAME(blocking_backward_weight)(struct team team, size_t m, size_t n, size_t k)
{
    const size_t MC = backward_weight.MC, KC = even_part(k, backward_weight.KC, LANES), columns = group_room / KC;
    const size_t fitting = columns > MC ? columns - MC : 0;
    struct blocking blocking = {.MC = MC,
                                .KC = KC,
                                .MP = MC,
                                .NC = even_part(n, backward_weight.NC, NR),
                                .NG = multiple_below(smaller(fitting, LARGEST_GROUP), NR)};
    if (team.count > 1) {
        const size_t room = (size_t)team.count * kept / 2 / KC;
        blocking.NC = even_part(n, larger(blocking.NC, multiple_below(room / 2, NR)), NR);
        blocking.MP = even_part(m, larger(MC, multiple_below(room / 2, MC)), MC);
        cut_into_units(&blocking, team, blocking.MP, blocking.NC);
    }
    return blocking;
}

size_t SIMD_NAME(blocking_attention_KC)(void)
{
    return attention_KC;
}

bool SIMD_NAME(prefetch_pays)(size_t count)
{
    return l3_is_slow && count > kept;
}

bool SIMD_NAME(is_small_matmul)(size_t m, size_t n, size_t k)
{
    return m * n * k <= SMALL_MATMUL;
}
