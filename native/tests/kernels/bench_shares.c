/* What the threads of a team do in a matmul, measured on one core: one thread plays all of them, each with a clock of
 * its own. Run by hand:
 *
 *   bench_shares [--level LEVEL] [--rows N] [--once one|team] THREADS
 *
 * N is 1024 by default. "sum" is the time of all threads' work over one thread's; "largest" what the thread that ends
 * last takes over the mean, with its waits. One core's second-level cache serves all threads here. --once calls each
 * matmul once, by one thread or by the team: for a tool that counts instructions (valgrind --tool=callgrind
 * --toggle-collect=run_operation). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_operations.h"
#include "kernels/level.h"
#include "kernels/team_board.h"
#include "starpullm.h"

enum { MAX_THREADS = 256, ROUNDS = 9 };

static struct {
    int threads, index; /* threads 0: nothing is measured */
    bool taking;        /* any thread may take the units, not only `index` */
    double clock[MAX_THREADS], busy;
    team_work *work;
} team;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double latest(void)
{
    double most = 0;
    for (int i = 0; i < team.threads; i++)
        most = team.clock[i] > most ? team.clock[i] : most;
    return most;
}

/* Of a team that takes units, the thread that is free first has these. */
static void timed_work(void *argument, struct share units)
{
    int first = team.taking ? 0 : team.index;
    for (int i = 1; team.taking && i < team.threads; i++)
        first = team.clock[i] < team.clock[first] ? i : first;
    const double start = now();
    team.work(argument, units);
    const double seconds = now() - start;
    team.clock[first] += seconds;
    team.busy += seconds;
}

/* The linker puts these in the place of team_phase() and team_wait() (--wrap). */
void __real_team_phase(struct team own, size_t *before, size_t units, team_work *work, void *argument);
void __wrap_team_phase(struct team own, size_t *before, size_t units, team_work *work, void *argument);
void __wrap_team_phase(struct team own, size_t *before, size_t units, team_work *work, void *argument)
{
    team.work = work;
    team.taking = own.board;
    __real_team_phase(own, before, units, team.threads > 0 ? timed_work : work, argument);
}

void __wrap_team_wait(struct team own, size_t before);
void __wrap_team_wait(struct team own, size_t before)
{
    (void)before;
    const double end = latest();
    for (int i = 0; own.board && i < team.threads; i++)
        team.clock[i] = end;
}

__attribute__((noinline)) void run_operation(const struct operation *o, const struct kernels *k, int threads);
void run_operation(const struct operation *o, const struct kernels *k, int threads)
{
    struct team_board board = {0};
    for (team.index = 0; team.index < threads; team.index++)
        o->run(k, threads > 1 ? (struct team){team.index, threads, &board} : team_of_one);
}

static int compare(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

static void measure(const struct operation *o, const struct sizes *s, const struct kernels *k, int threads)
{
    double one[ROUNDS], busy[ROUNDS], last[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        team.threads = 0;
        const double start = now();
        run_operation(o, k, 1);
        one[i] = now() - start;
        memset(&team, 0, sizeof team);
        team.threads = threads;
        run_operation(o, k, threads);
        busy[i] = team.busy;
        last[i] = latest() * threads / team.busy;
    }
    qsort(one, ROUNDS, sizeof *one, compare);
    qsort(busy, ROUNDS, sizeof *busy, compare);
    qsort(last, ROUNDS, sizeof *last, compare);
    printf("%-24s C=%-5zu OC=%-6zu %10.1f us  sum %5.3f  largest %5.3f\n", o->name, s->C, s->OC, one[0] * 1e6,
           busy[0] / one[0], last[ROUNDS / 4]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t shapes[][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50304}};
    const char *level = "ref", *once = NULL;
    size_t rows = 1024;
    int threads = 0;
    for (size_t i = 0; starpullm_simd_level_name(i); i++)
        level = starpullm_simd_level_name(i);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            level = argv[++i];
        else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc)
            rows = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--once") == 0 && i + 1 < argc)
            once = argv[++i];
        else
            threads = atoi(argv[i]);
    }
    const struct kernels *k = kernels_of_level(level);
    if (threads < 1 || threads > MAX_THREADS || rows == 0 || !k || !operations_start()) {
        fprintf(stderr, "usage: %s [--level LEVEL] [--rows N] [--once one|team] THREADS\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < num_operations; i++)
        for (size_t j = 0; operations[i].is_matmul && j < sizeof shapes / sizeof *shapes; j++) {
            const struct sizes s = {.B = 1, .T = rows, .C = shapes[j][0], .OC = shapes[j][1]};
            if (rows > 64 && s.OC == 50304) /* the pool */
                continue;
            operation_prepare(&operations[i], &s);
            if (once)
                run_operation(&operations[i], k, strcmp(once, "one") == 0 ? 1 : threads);
            else
                measure(&operations[i], &s, k, threads);
        }
    operations_stop();
    return 0;
}
