/* What the suite's check of kernels doesn't see: that a team shares its outputs evenly, matmuls of threads that share a
 * board, and a matmul on a processor with a slow third-level cache. That check is run under the address sanitizer by
 * tests/native/test_ctest.py. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "kernels/team_board.h"
#include "starpullm.h"

static void check_shares(int threads, size_t items, size_t grain)
{
    size_t covered = 0, least = SIZE_MAX, most = 0;
    for (int i = 0; i < threads; i++) {
        const struct share part = team_share((struct team){i, threads, NULL}, items, grain);
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
        kernels_of_level(level)->matmul_forward(out, inp, weight, bias, N, C, OC, (struct team){thread, 3, NULL});
    if (memcmp(out, expected, sizeof out) != 0) {
        fprintf(stderr, "matmul_forward of level %s, blocks for a cache of %zu bytes: found other bits\n", level, l2);
        exit(1);
    }
}

/* ---- Phases: each unit is done once, and a wait is for all of them, also for those of a slow thread ---- */

enum { THREADS = 3, PHASES = 4, UNITS = 50 };

static struct {
    struct team_board board;
    atomic_int done[PHASES][UNITS];
} phases;

static void slow_work(void *done, struct share units)
{
    nanosleep(&(struct timespec){.tv_nsec = units.begin == 0 ? 20000000 : 100000}, NULL);
    for (size_t i = units.begin; i < units.end; i++)
        atomic_fetch_add(&((atomic_int *)done)[i], 1);
}

static void *phase_thread(void *number)
{
    const struct team team = {(int)(intptr_t)number, THREADS, &phases.board};
    size_t before = 0;
    for (int phase = 0; phase < PHASES; phase++) {
        team_phase(team, &before, UNITS, slow_work, phases.done[phase]);
        team_wait(team, before);
        for (int i = 0; i < UNITS; i++)
            if (phases.done[phase][i] != 1) {
                fprintf(stderr, "phase %d, unit %d: done %d times after the wait, expected once\n", phase, i,
                        phases.done[phase][i]);
                exit(1);
            }
    }
    return NULL;
}

static void check_phases(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, phase_thread, (void *)(intptr_t)i) != 0)
            exit(1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- Matmuls by threads that run at the same time, with blocks for small and large caches ---- */

enum { MAX_N = 150, MAX_C = 520, MAX_OC = 530, MAX_THREADS = 16 };

static struct {
    const struct kernels *kernels;
    size_t N, C, OC;
    int threads;
    struct team_board board;
    pthread_barrier_t all; /* begin together, and end together: thread 0's memory is the team's */
    float out[MAX_N * MAX_OC], dinp[MAX_N * MAX_C], dweight[MAX_OC * MAX_C], dbias[MAX_OC];
} call;

static float inp[MAX_N * MAX_C], weight[MAX_OC * MAX_C], bias[MAX_OC], dout[MAX_N * MAX_OC];

static int operation;

static void matmuls(struct team team)
{
    const size_t N = call.N, C = call.C, OC = call.OC;
    if (operation == 0)
        call.kernels->matmul_forward(call.out, inp, weight, bias, N, C, OC, team);
    else if (operation == 1)
        call.kernels->matmul_backward_input(call.dinp, dout, weight, N, C, OC, team);
    else
        call.kernels->matmul_backward_weight(call.dweight, call.dbias, dout, inp, N, C, OC, 0, OC, SUM_CONTINUES, team);
}

static void *team_thread(void *number)
{
    pthread_barrier_wait(&call.all);
    matmuls((struct team){(int)(intptr_t)number, call.threads, &call.board});
    pthread_barrier_wait(&call.all);
    return NULL;
}

static void run_team(void)
{
    pthread_t threads[MAX_THREADS];
    memset(&call.board, 0, sizeof call.board);
    pthread_barrier_init(&call.all, NULL, (unsigned)call.threads);
    for (int i = 0; i < call.threads; i++)
        if (pthread_create(&threads[i], NULL, team_thread, (void *)(intptr_t)i) != 0)
            exit(1);
    for (int i = 0; i < call.threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&call.all);
}

/* What each level must compute, and the sums that the weights' gradients continue. */
static struct {
    float out[MAX_N * MAX_OC], dinp[MAX_N * MAX_C], dweight[MAX_OC * MAX_C], dbias[MAX_OC];
    float dweight_before[MAX_OC * MAX_C], dbias_before[MAX_OC];
} expected;

static void compute_expected(void)
{
    const size_t N = call.N, C = call.C, OC = call.OC;
    fill(expected.dweight_before, OC * C);
    fill(expected.dbias_before, OC);
    memcpy(expected.dweight, expected.dweight_before, OC * C * sizeof(float));
    memcpy(expected.dbias, expected.dbias_before, OC * sizeof(float));
    matmul_forward_ref(expected.out, inp, weight, bias, N, C, OC, team_of_one);
    matmul_backward_input_ref(expected.dinp, dout, weight, N, C, OC, team_of_one);
    matmul_backward_weight_ref(expected.dweight, expected.dbias, dout, inp, N, C, OC, 0, OC, SUM_CONTINUES,
                               team_of_one);
}

static void check_team(const char *level, size_t l2)
{
    const size_t N = call.N, C = call.C, OC = call.OC;
    memset(call.out, 0xff, sizeof call.out);
    memset(call.dinp, 0xff, sizeof call.dinp);
    memcpy(call.dweight, expected.dweight_before, OC * C * sizeof(float));
    memcpy(call.dbias, expected.dbias_before, OC * sizeof(float));
    kernels_fit_caches(&(struct caches){.l2 = l2, .l3_is_slow = true});
    call.kernels = kernels_of_level(level);
    for (operation = 0; operation < 3; operation++)
        run_team();
    if (memcmp(call.out, expected.out, N * OC * sizeof(float)) != 0 ||
        memcmp(call.dinp, expected.dinp, N * C * sizeof(float)) != 0 ||
        memcmp(call.dweight, expected.dweight, OC * C * sizeof(float)) != 0 ||
        memcmp(call.dbias, expected.dbias, OC * sizeof(float)) != 0) {
        fprintf(stderr, "level %s, N = %zu, C = %zu, OC = %zu, %d threads, cache of %zu bytes: found other bits\n",
                level, N, C, OC, call.threads, l2);
        exit(1);
    }
}

static void check_teams(void)
{
    static const int threads[] = {1, 2, 3, 5, 7, 16};
    static const size_t sizes[][3] = {{1, 37, 41},     {2, 3, 5},      {61, 67, 131}, {64, 96, 48},
                                      {150, 512, 100}, {33, 250, 512}, {70, 520, 530}};
    fill(inp, MAX_N * MAX_C);
    fill(weight, MAX_OC * MAX_C);
    fill(bias, MAX_OC);
    fill(dout, MAX_N * MAX_OC);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        call.N = sizes[i][0];
        call.C = sizes[i][1];
        call.OC = sizes[i][2];
        compute_expected();
        for (size_t j = 0; j < sizeof threads / sizeof *threads; j++) {
            call.threads = threads[j];
            for (size_t l2 = 1; l2 < (size_t)1 << 22; l2 = l2 * 1024 + 1)
                for (size_t level = 0; starpullm_simd_level_name(level); level++)
                    check_team(starpullm_simd_level_name(level), l2);
        }
    }
}

int main(void)
{
    static const size_t grains[] = {1, 2, 3, 8, 16, 32, 100};
    for (int threads = 1; threads <= 40; threads++)
        for (size_t items = 0; items <= 300; items++)
            for (size_t i = 0; i < sizeof grains / sizeof *grains; i++)
                check_shares(threads, items, grains[i]);
    check_phases();
    for (size_t l2 = 1; l2 < (size_t)1 << 22; l2 *= 8)
        for (size_t i = 0; starpullm_simd_level_name(i); i++)
            check_prefetches(l2, starpullm_simd_level_name(i));
    check_teams();
    return 0;
}
