/* Times one level's kernels against another's at GPT-2's sizes and small ones; a measurement, not a test. Run by hand:
 *
 *   bench_kernels [--level LEVEL] [--arithmetic fused] [--against LEVEL | --blas LIBRARY] [--threads COUNT] [OPERATION]
 *
 * It measures the operations whose names begin with OPERATION, by default all; the best level against ref, with one
 * thread. With fused sums of products LEVEL is a level's name with _fused behind it, which --arithmetic fused adds to
 * --level's. A BLAS has only the matmuls, and its results need not have the contract's bits. LEVEL can be opencl, a
 * device's matmuls, or opencl_plain, those that it has of kernels/ref; one thread calls them.
 *
 * Both are called in each round, and for a matmul the level's bare micro-kernel, strict and fused, so that other load
 * on the machine affects all of them. A ratio is the median over the rounds; the quiet ratio is the median over the
 * quarter of the rounds in which the fused micro-kernel was fastest, because another program on the same core delays
 * strict arithmetic, which has more instructions, more than fused arithmetic. "of strict" and "of fused" are the parts
 * of the two micro-kernels' speeds that the kernel reaches; for a BLAS, whose kernels fuse, "of fused" says its part
 * too. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_device.h"
#include "bench_operations.h"
#include "kernels/level.h"
#include "kernels/team_board.h"
#include "starpullm.h"

/* ---- Threads: the main thread is number 0 of the team; the others wait for calls until the program ends. A wait spins
 *      for about as long as a kernel's last thread takes to end, then yields the core. ---- */

enum { MAX_THREADS = 256, SPINS = 2000 };

static struct {
    int threads;
    const struct operation *operation;
    const struct kernels *kernels;
    struct team_board board;
    atomic_size_t round;   /* increases when there is a call to make */
    atomic_int unfinished; /* threads of the present round */
} team = {.threads = 1};

static void spin(size_t *spins)
{
    if (++*spins > SPINS)
        sched_yield();
}

static void *thread_main(void *number)
{
    const struct team own = {(int)(intptr_t)number, team.threads, &team.board};
    for (size_t done = 0;; done++) {
        for (size_t spins = 0; atomic_load(&team.round) == done;)
            spin(&spins);
        team.operation->run(team.kernels, own);
        atomic_fetch_sub(&team.unfinished, 1);
    }
    return NULL;
}

static void start_threads(void)
{
    for (int i = 1; i < team.threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_main, (void *)(intptr_t)i) != 0 || pthread_detach(thread) != 0) {
            fprintf(stderr, "bench_kernels: cannot start thread %d\n", i);
            exit(1);
        }
    }
}

static void call(const struct operation *o, const struct kernels *k)
{
    if (team.threads == 1) {
        o->run(k, team_of_one);
        return;
    }
    team.operation = o;
    team.kernels = k;
    team.board = (struct team_board){0};
    atomic_store(&team.unfinished, team.threads - 1);
    atomic_fetch_add(&team.round, 1);
    o->run(k, (struct team){0, team.threads, &team.board});
    for (size_t spins = 0; atomic_load(&team.unfinished) > 0;)
        spin(&spins);
}

/* ---- Measuring ---- */

enum { MIN_ROUNDS = 4, MAX_ROUNDS = 101, QUARTER = 4 };
static const double sample_seconds = 5e-4, budget_seconds = 0.5;

/* Kernels that are measured: a level's, a BLAS's or a device's. */
struct implementation {
    const char *name;
    const char *level; /* NULL: a BLAS or a device */
    const struct kernels *kernels;
};

/* What was measured of one operation at one size: medians over the rounds, or over the quietest quarter of them. */
struct measurement {
    double ours, other; /* seconds a call */
    double ratio;       /* other over ours */
    /* Of a matmul at a level with a micro-kernel, else 0. */
    double quiet_ratio;
    double of_strict, of_fused; /* ours over the bare micro-kernel's operations per second */
    double other_of_fused;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare_doubles(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

/* Sorts x, which has at least one value. */
static double median(double *x, size_t count)
{
    qsort(x, count, sizeof *x, compare_doubles);
    return count % 2 ? x[count / 2] : (x[count / 2 - 1] + x[count / 2]) / 2;
}

/* A level's micro-kernel on operands that stay in the first-level cache: what its matmuls could reach at most. */
struct bare_microkernel {
    struct peak_loop strict;
    struct peak_loop fused; /* run is NULL if the level has no instruction for it */
};

/* {0} at a level without micro-kernels. */
static struct bare_microkernel bare_microkernel_of(const char *level)
{
    if (!level || strcmp(level, "ref") == 0)
        return (struct bare_microkernel){0};
    const struct peak *peak = kernels_peak(level);
    return (struct bare_microkernel){peak->strict[PEAK_MICROKERNEL], peak->fused[PEAK_MICROKERNEL]};
}

static double seconds(const struct operation *o, const struct kernels *k, size_t calls)
{
    const double start = now();
    for (size_t i = 0; i < calls; i++)
        call(o, k);
    return (now() - start) / (double)calls;
}

static volatile float sink; /* keeps the loops */

/* Seconds that a bare micro-kernel takes for as many operations as a call of a matmul. The median of several samples,
 * because an Intel processor runs vectors at a quarter of their speed for 0.3 to 0.7 ms after scalar code, such as the
 * bias's gradient beside a BLAS (Ice Lake, 2026-11-24). */
static double bare_seconds(struct peak_loop loop, double operations)
{
    enum { SAMPLES = 7 };
    const size_t rounds = (size_t)(1e7 / loop.operations) + 1; /* some 0.1 ms */
    double samples[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++) {
        const double start = now();
        sink = loop.run(rounds, 0.5F, 1.0F);
        samples[i] = now() - start;
    }
    return median(samples, SAMPLES) / (loop.operations * (double)rounds) * operations;
}

struct round {
    double ours, other, strict, fused; /* seconds */
};

static int compare_fused(const void *x, const void *y)
{
    return compare_doubles(&((const struct round *)x)->fused, &((const struct round *)y)->fused);
}

enum figure { OURS, OTHER, RATIO, OF_STRICT, OF_FUSED, OTHER_OF_FUSED };

static double median_of(const struct round *rounds, size_t count, enum figure figure)
{
    double values[MAX_ROUNDS];
    for (size_t i = 0; i < count; i++) {
        const struct round r = rounds[i];
        const double figures[] = {r.ours,           r.other,          r.other / r.ours, r.strict / r.ours,
                                  r.fused / r.ours, r.fused / r.other};
        values[i] = figures[figure];
    }
    return median(values, count);
}

static struct measurement measure(const struct operation *o, double operations, struct implementation ours,
                                  struct implementation other)
{
    const struct bare_microkernel bare = bare_microkernel_of(ours.level);
    const bool with_bare = o->is_matmul && bare.strict.run, with_fused = o->is_matmul && bare.fused.run;
    struct round rounds[MAX_ROUNDS] = {0};
    /* A sample has so many calls that it is long enough for the clock. These calls also bring the buffers into the
     * caches. */
    const double our_once = seconds(o, ours.kernels, 1), other_once = seconds(o, other.kernels, 1);
    const double once = our_once < other_once ? our_once : other_once;
    const size_t calls = once < sample_seconds ? (size_t)(sample_seconds / (once + 1e-9)) + 1 : 1;
    const double begin = now();
    size_t count = 0;
    for (; count < MIN_ROUNDS || (count < MAX_ROUNDS && now() - begin < budget_seconds); count++) {
        struct round *r = &rounds[count];
        r->other = seconds(o, other.kernels, calls);
        r->fused = with_fused ? bare_seconds(bare.fused, operations) : 0;
        r->ours = seconds(o, ours.kernels, calls);
        r->strict = with_bare ? bare_seconds(bare.strict, operations) : 0;
    }
    struct measurement m = {.ours = median_of(rounds, count, OURS),
                            .other = median_of(rounds, count, OTHER),
                            .ratio = median_of(rounds, count, RATIO),
                            .of_strict = median_of(rounds, count, OF_STRICT),
                            .of_fused = median_of(rounds, count, OF_FUSED),
                            .other_of_fused = median_of(rounds, count, OTHER_OF_FUSED)};
    if (with_fused) {
        qsort(rounds, count, sizeof *rounds, compare_fused);
        m.quiet_ratio = median_of(rounds, count / QUARTER, RATIO);
    }
    return m;
}

/* ---- Output ---- */

static void describe(char *text, size_t size, const struct sizes *s)
{
    const struct {
        const char *name;
        size_t value;
    } letters[] = {{"B", s->B}, {"T", s->T}, {"C", s->C}, {"OC", s->OC}, {"NH", s->NH}, {"V", s->V}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].value)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%zu", used ? " " : "", letters[i].name,
                                     letters[i].value);
}

static double operations_of(const struct sizes *s)
{
    return 2.0 * (double)(s->B * s->T) * (double)s->C * (double)s->OC;
}

static void print(const struct operation *o, const struct sizes *s, struct measurement m, struct implementation other)
{
    const double gflop = 1e-9 * operations_of(s);
    char text[128];
    describe(text, sizeof text, s);
    printf("%-30s %-24s %11.1f us %11.1f us %7.2f x", o->name, text, m.other * 1e6, m.ours * 1e6, m.ratio);
    if (o->is_matmul)
        printf("  %6.1f -> %6.1f GF/s", gflop / m.other, gflop / m.ours);
    if (m.quiet_ratio > 0)
        printf("  quiet %5.2f x  %4.2f of strict  %4.2f of fused", m.quiet_ratio, m.of_strict, m.of_fused);
    if (m.quiet_ratio > 0 && !other.level)
        printf(" (%s %4.2f)", other.name, m.other_of_fused);
    printf("\n");
    fflush(stdout);
}

static void measure_all(struct implementation ours, struct implementation other, const char *only)
{
    printf("%-30s %-24s %14s %14s %9s  (threads: %d)\n", "operation", "sizes", other.name, ours.name, "ratio",
           team.threads);
    for (size_t i = 0; i < num_operations; i++) {
        const struct operation *o = &operations[i];
        if (only && strncmp(only, o->name, strlen(only)) != 0)
            continue;
        for (size_t j = 0; j < o->num_sizes; j++) {
            operation_prepare(o, &o->sizes[j]);
            device_prepare();
            print(o, &o->sizes[j], measure(o, operations_of(&o->sizes[j]), ours, other), other);
        }
    }
}

/* ---- Options ---- */

static struct implementation level_named(const char *name)
{
    const struct kernels *k = device_kernels(name);
    if (k)
        return (struct implementation){strdup(name), NULL, k};
    k = kernels_of_level(name);
    if (!k) {
        fprintf(stderr, "bench_kernels: there is no level %s here\n", name);
        exit(2);
    }
    return (struct implementation){name, strndup(name, strcspn(name, "_")), k};
}

static struct implementation blas_of(const char *library)
{
    char sentence[512];
    if (!kernels_open_blas(sentence, sizeof sentence, library)) {
        fprintf(stderr, "bench_kernels: %s\n", sentence);
        exit(2);
    }
    return (struct implementation){"blas", NULL, kernels()};
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--level LEVEL] [--arithmetic fused] [--against LEVEL | --blas LIBRARY] [--threads COUNT] "
            "[OPERATION]\n",
            program);
    return 2;
}

int main(int argc, char **argv)
{
    const char *only = NULL, *level = "ref", *against = "ref", *library = NULL, *arithmetic = "strict";
    char name[32];
    for (size_t i = 0; starpullm_simd_level_name(i); i++)
        level = starpullm_simd_level_name(i);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            level = argv[++i];
        else if (strcmp(argv[i], "--arithmetic") == 0 && i + 1 < argc)
            arithmetic = argv[++i];
        else if (strcmp(argv[i], "--against") == 0 && i + 1 < argc)
            against = argv[++i];
        else if (strcmp(argv[i], "--blas") == 0 && i + 1 < argc)
            library = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            team.threads = atoi(argv[++i]);
        else if (*argv[i] != '-' && !only)
            only = argv[i];
        else
            return usage(argv[0]);
    }
    if (team.threads < 1 || team.threads > MAX_THREADS) {
        fprintf(stderr, "bench_kernels: found %d threads, expected 1 to %d\n", team.threads, MAX_THREADS);
        return 2;
    }
    snprintf(name, sizeof name, strcmp(arithmetic, "strict") == 0 ? "%s" : "%s_%s", level, arithmetic);
    const struct implementation ours = level_named(name);
    const struct implementation other = library ? blas_of(library) : level_named(against);
    if ((!other.level || !ours.level) && !only)
        only = "matmul";
    if (!operations_start()) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        return 1;
    }
    start_threads();
    measure_all(ours, other, only);
    operations_stop();
    return 0;
}
