/* What the suite's check of kernels doesn't see: that a team shares its outputs evenly, and a matmul on a processor
 * with a slow third-level cache. That check is run under the address sanitizer by tests/native/test_ctest.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "starpullm.h"

static void check_shares(int threads, size_t items, size_t grain)
{
    size_t covered = 0, least = SIZE_MAX, most = 0;
    for (int i = 0; i < threads; i++) {
        const struct share part = team_share((struct team){i, threads}, items, grain);
        const bool whole = part.end % grain == 0 || part.end == items;
        if (part.begin != covered || part.end < part.begin || !whole) {
            fprintf(stderr, "team_share: thread %d of %d, %zu items in grains of %zu: found %zu to %zu\n", i, threads,
                    items, grain, part.begin, part.end);
            exit(1);
        }
        const size_t grains = (part.end - part.begin + grain - 1) / grain;
        least = grains < least ? grains : least;
        most = grains > most ? grains : most;
        covered = part.end;
    }
    if (covered != items || most - least > 1) {
        fprintf(stderr,
                "team_share: %d threads, %zu items in grains of %zu: %zu covered by parts of %zu to %zu grains\n",
                threads, items, grain, covered, least, most);
        exit(1);
    }
}

static void fill(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i * 2654435761u % 2001) / 1000 - 1;
}

/* No bit depends on the prefetches. */
static void check_prefetches(size_t l2, const char *level)
{
    enum { N = 260, C = 300, OC = 290 };
    static float inp[N * C], weight[OC * C], bias[OC], expected[N * OC], out[N * OC];
    fill(inp, N * C);
    fill(weight, OC * C);
    fill(bias, OC);
    matmul_forward_ref(expected, inp, weight, bias, N, C, OC, team_of_one);
    kernels_fit_caches(&(struct caches){.l2 = l2, .l3_is_slow = true});
    memset(out, 0xff, sizeof out);
    for (int thread = 0; thread < 3; thread++)
        kernels_of_level(level)->matmul_forward(out, inp, weight, bias, N, C, OC, (struct team){thread, 3});
    if (memcmp(out, expected, sizeof out) != 0) {
        fprintf(stderr, "matmul_forward of level %s, blocks for a cache of %zu bytes: found other bits\n", level, l2);
        exit(1);
    }
}

int main(void)
{
    static const size_t grains[] = {1, 2, 3, 8, 16, 32, 100};
    for (int threads = 1; threads <= 40; threads++)
        for (size_t items = 0; items <= 300; items++)
            for (size_t i = 0; i < sizeof grains / sizeof *grains; i++)
                check_shares(threads, items, grains[i]);
    for (size_t l2 = 1; l2 < (size_t)1 << 22; l2 *= 8)
        for (size_t i = 0; starpullm_simd_level_name(i); i++)
            check_prefetches(l2, starpullm_simd_level_name(i));
    return 0;
}
