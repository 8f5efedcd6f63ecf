/* Times one level's kernels against another's at GPT-2's sizes and small ones; a measurement, not a test. Run by hand:
 * bench_kernels [--level LEVEL] [--against LEVEL | --blas LIBRARY] [--threads COUNT] [--json] [OPERATION]; by default
 * the best level against ref, one thread, every operation whose name begins so. A BLAS, which only has the matmuls, is
 * not held to the contract.
 *
 * The two run in turn, so that whatever else the machine does meets both; the ratio is the median of the pairs'. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

/* ---- Buffers: every operation takes what it needs from one pool, filled with values as they occur in training ---- */

enum { HUGE_PAGE = 2 << 20 }; /* bytes */

static float *pool;
static size_t pool_used, pool_size;

static float *take(size_t count)
{
    if (pool_used + count > pool_size) {
        fprintf(stderr, "bench_kernels: the pool is too small\n");
        exit(1);
    }
    float *x = pool + pool_used;
    pool_used += (count + 15) / 16 * 16;
    return x;
}

static float *values(size_t count)
{
    static uint32_t state = 1;
    float *x = take(count);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    return x;
}

static float *zeros(size_t count)
{
    float *x = take(count);
    memset(x, 0, count * sizeof *x);
    return x;
}

static int32_t *indices(size_t count, size_t limit)
{
    int32_t *x = (int32_t *)(void *)take(count);
    for (size_t i = 0; i < count; i++)
        x[i] = (int32_t)(i * 7919 % limit);
    return x;
}

/* ---- Operations ---- */

struct sizes {
    size_t B, T, C, OC, NH, V;
};

static struct sizes s;
static float *a, *b, *c, *d, *e, *f;
static int32_t *ids;

static size_t N(void)
{
    return s.B * s.T;
}

static void encoder_setup(void)
{
    a = zeros(N() * s.C), b = values(s.V * s.C), c = values(s.T * s.C), ids = indices(N(), s.V);
}
static void encoder_forward(const struct kernels *k, struct team team)
{
    k->encoder_forward(a, ids, b, c, s.B, s.T, s.C, team);
}
static void encoder_backward(const struct kernels *k, struct team team)
{
    k->encoder_backward(b, c, a, ids, s.B, s.T, s.C, s.T, SUM_FROM_ZERO, team);
}

static void layernorm_setup(void)
{
    a = values(N() * s.C), b = values(N() * s.C), c = values(N() * s.C);
    d = values(N()), e = values(N()), f = values(2 * s.C);
}
static void layernorm_forward(const struct kernels *k, struct team team)
{
    k->layernorm_forward(a, d, e, b, f, f + s.C, N(), s.C, team);
}
static void layernorm_backward_input(const struct kernels *k, struct team team)
{
    k->layernorm_backward_input(a, b, c, d, e, f, N(), s.C, SUM_CONTINUES, team);
}
static void layernorm_backward_weight(const struct kernels *k, struct team team)
{
    k->layernorm_backward_weight(f, f + s.C, b, c, d, e, N(), s.C, SUM_CONTINUES, team);
}

static void matmul_setup(void)
{
    a = values(N() * s.OC), b = values(N() * s.C), c = values(s.OC * s.C), d = values(s.OC);
}
static void matmul_forward(const struct kernels *k, struct team team)
{
    k->matmul_forward(a, b, c, d, N(), s.C, s.OC, team);
}
static void matmul_backward_input(const struct kernels *k, struct team team)
{
    k->matmul_backward_input(b, a, c, N(), s.C, s.OC, SUM_FROM_ZERO, team);
}
static void matmul_backward_weight(const struct kernels *k, struct team team)
{
    k->matmul_backward_weight(c, d, a, b, N(), s.C, s.OC, SUM_FROM_ZERO, team);
}

static void attention_setup(void)
{
    a = values(N() * 3 * s.C), b = values(N() * s.C), c = zeros(N() * 3 * s.C);
    d = zeros(s.B * s.NH * s.T * s.T), e = zeros(s.B * s.NH * s.T * s.T), f = zeros(s.B * s.NH * s.T * s.T);
    attention_forward_ref(c, e, f, a, s.B, s.T, s.C, s.NH, team_of_one);
}
static void attention_forward(const struct kernels *k, struct team team)
{
    k->attention_forward(b, d, f, a, s.B, s.T, s.C, s.NH, team);
}
static void attention_backward(const struct kernels *k, struct team team)
{
    k->attention_backward(c, d, e, b, a, f, s.B, s.T, s.C, s.NH, team);
}

static void elements_setup(void)
{
    a = values(N() * s.C), b = values(N() * s.C), c = values(N() * s.C);
}
static void gelu_forward(const struct kernels *k, struct team team)
{
    k->gelu_forward(a, b, N() * s.C, team);
}
static void gelu_backward(const struct kernels *k, struct team team)
{
    k->gelu_backward(a, b, c, N() * s.C, SUM_FROM_ZERO, team);
}
static void residual_forward(const struct kernels *k, struct team team)
{
    k->residual_forward(a, b, c, N() * s.C, team);
}
static void residual_backward(const struct kernels *k, struct team team)
{
    k->residual_backward(a, b, c, N() * s.C, SUM_CONTINUES, team);
}

static size_t Vp(void)
{
    return (s.V + 127) / 128 * 128;
}
static void loss_setup(void)
{
    a = zeros(N() * Vp()), b = values(N() * Vp()), c = values(N()), ids = indices(N(), s.V), d = zeros(1);
}
static void softmax_forward(const struct kernels *k, struct team team)
{
    k->softmax_forward(a, b, N(), s.V, Vp(), team);
}
static void crossentropy_forward(const struct kernels *k, struct team team)
{
    k->crossentropy_forward(c, b, ids, N(), Vp(), team);
}
static void mean_loss(const struct kernels *k, struct team team)
{
    k->mean_loss(d, c, N(), (float)N(), SUM_FROM_ZERO, team);
}
static void crossentropy_softmax_backward(const struct kernels *k, struct team team)
{
    k->crossentropy_softmax_backward(a, c, b, ids, N(), s.V, Vp(), SUM_FROM_ZERO, team);
}

static void gradient_setup(void)
{
    a = values(s.OC * s.C), b = values(s.OC * s.C);
}
static void gradient_add(const struct kernels *k, struct team team)
{
    k->gradient_add(a, b, s.OC * s.C, team);
}

static void adamw_setup(void)
{
    const size_t count = s.OC * s.C;
    a = values(count), b = zeros(count), c = zeros(count), d = values(count);
}
static void adamw_update(const struct kernels *k, struct team team)
{
    const struct adamw_options options = {1e-4f, 0.9f, 0.999f, 1e-8f, 0.1f};
    k->adamw_update(a, b, c, d, s.OC * s.C, &options, 10, team);
}

#define OPERATION(name, setup, sizes, flops) {#name, setup##_setup, name, sizes, sizeof sizes / sizeof *sizes, flops}

static const struct sizes rows[] = {
    {.B = 1, .T = 64, .C = 16, .V = 512},    {.B = 2, .T = 32, .C = 48, .V = 512},
    {.B = 1, .T = 7, .C = 768, .V = 50257},  {.B = 1, .T = 64, .C = 768, .V = 50257},
    {.B = 4, .T = 64, .C = 768, .V = 50257},
};
static const struct sizes elements[] = {
    {.B = 1, .T = 64, .C = 16}, {.B = 2, .T = 32, .C = 48}, {.B = 1, .T = 64, .C = 3072}, {.B = 4, .T = 64, .C = 3072}};
static const struct sizes matmuls[] = {
    {.B = 1, .T = 1, .C = 768, .OC = 768},     {.B = 1, .T = 5, .C = 16, .OC = 16},
    {.B = 1, .T = 64, .C = 16, .OC = 16},      {.B = 1, .T = 64, .C = 16, .OC = 48},
    {.B = 1, .T = 64, .C = 48, .OC = 192},     {.B = 2, .T = 32, .C = 64, .OC = 64},
    {.B = 1, .T = 64, .C = 64, .OC = 509},     {.B = 1, .T = 64, .C = 768, .OC = 768},
    {.B = 1, .T = 64, .C = 768, .OC = 2304},   {.B = 1, .T = 64, .C = 768, .OC = 3072},
    {.B = 4, .T = 64, .C = 768, .OC = 768},    {.B = 4, .T = 64, .C = 768, .OC = 2304},
    {.B = 4, .T = 64, .C = 768, .OC = 3072},   {.B = 4, .T = 64, .C = 3072, .OC = 768},
    {.B = 12, .T = 64, .C = 768, .OC = 768},   {.B = 12, .T = 64, .C = 768, .OC = 2304},
    {.B = 12, .T = 64, .C = 768, .OC = 3072},  {.B = 12, .T = 64, .C = 3072, .OC = 768},
    {.B = 1, .T = 64, .C = 768, .OC = 50304},  {.B = 4, .T = 64, .C = 768, .OC = 50304},
    {.B = 12, .T = 64, .C = 768, .OC = 50304},
};
static const struct sizes heads[] = {
    {.B = 4, .T = 16, .C = 16, .NH = 4},     {.B = 4, .T = 64, .C = 16, .NH = 2},
    {.B = 4, .T = 64, .C = 48, .NH = 3},     {.B = 4, .T = 64, .C = 64, .NH = 2},
    {.B = 1, .T = 64, .C = 768, .NH = 12},   {.B = 1, .T = 256, .C = 768, .NH = 12},
    {.B = 1, .T = 1024, .C = 768, .NH = 12},
};
static const struct sizes vocabularies[] = {
    {.B = 1, .T = 64, .V = 61}, {.B = 1, .T = 64, .V = 509}, {.B = 1, .T = 64, .V = 50257}};
static const struct sizes parameters[] = {{.C = 16, .OC = 48}, {.C = 768, .OC = 768}, {.C = 768, .OC = 3072}};

static const struct operation {
    const char *name;
    void (*setup)(void);
    void (*run)(const struct kernels *k, struct team team);
    const struct sizes *sizes;
    size_t num_sizes;
    bool flops; /* 2*N*C*OC of them */
} operations[] = {
    OPERATION(encoder_forward, encoder, rows, false),
    OPERATION(encoder_backward, encoder, rows, false),
    OPERATION(layernorm_forward, layernorm, rows, false),
    OPERATION(layernorm_backward_input, layernorm, rows, false),
    OPERATION(layernorm_backward_weight, layernorm, rows, false),
    OPERATION(matmul_forward, matmul, matmuls, true),
    OPERATION(matmul_backward_input, matmul, matmuls, true),
    OPERATION(matmul_backward_weight, matmul, matmuls, true),
    OPERATION(attention_forward, attention, heads, false),
    OPERATION(attention_backward, attention, heads, false),
    OPERATION(gelu_forward, elements, elements, false),
    OPERATION(gelu_backward, elements, elements, false),
    OPERATION(residual_forward, elements, elements, false),
    OPERATION(residual_backward, elements, elements, false),
    OPERATION(softmax_forward, loss, vocabularies, false),
    OPERATION(crossentropy_forward, loss, vocabularies, false),
    OPERATION(mean_loss, loss, vocabularies, false),
    OPERATION(crossentropy_softmax_backward, loss, vocabularies, false),
    OPERATION(gradient_add, gradient, parameters, false),
    OPERATION(adamw_update, adamw, parameters, false),
};
enum { NUM_OPERATIONS = sizeof operations / sizeof *operations };

/* ---- Measuring ---- */

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The team: the main thread is number 0, the others wait for work until the program ends. A wait spins for as long as
 * a kernel's last thread may take to end, then gives up its core. */
enum { MAX_THREADS = 256, SPINS = 2000 };

static struct {
    int threads;
    const struct operation *operation;
    const struct kernels *kernels;
    atomic_size_t round;   /* increases when there is a call to make */
    atomic_int unfinished; /* threads of the present round */
} crew = {.threads = 1};

static void wait_a_little(size_t *spins)
{
    if (++*spins > SPINS)
        sched_yield();
}

static void *member(void *number)
{
    const struct team team = {(int)(intptr_t)number, crew.threads};
    for (size_t done = 0;; done++) {
        for (size_t spins = 0; atomic_load(&crew.round) == done;)
            wait_a_little(&spins);
        crew.operation->run(crew.kernels, team);
        atomic_fetch_sub(&crew.unfinished, 1);
    }
    return NULL;
}

static void start_crew(void)
{
    for (int i = 1; i < crew.threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, member, (void *)(intptr_t)i) != 0 || pthread_detach(thread) != 0) {
            fprintf(stderr, "bench_kernels: no thread %d\n", i);
            exit(1);
        }
    }
}

static void call(const struct operation *o, const struct kernels *k)
{
    if (crew.threads == 1) {
        o->run(k, team_of_one);
        return;
    }
    crew.operation = o;
    crew.kernels = k;
    atomic_store(&crew.unfinished, crew.threads - 1);
    atomic_fetch_add(&crew.round, 1);
    o->run(k, (struct team){0, crew.threads});
    for (size_t spins = 0; atomic_load(&crew.unfinished) > 0;)
        wait_a_little(&spins);
}

static double seconds(const struct operation *o, const struct kernels *k, size_t calls)
{
    const double start = now();
    for (size_t i = 0; i < calls; i++)
        call(o, k);
    return (now() - start) / (double)calls;
}

static int compare(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

static double median(double *x, size_t count)
{
    qsort(x, count, sizeof *x, compare);
    return count % 2 ? x[count / 2] : (x[count / 2 - 1] + x[count / 2]) / 2;
}

static void shape(char *text, size_t size)
{
    const struct {
        const char *name;
        size_t value;
    } letters[] = {{"B", s.B}, {"T", s.T}, {"C", s.C}, {"OC", s.OC}, {"NH", s.NH}, {"V", s.V}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].value)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%zu", used ? " " : "", letters[i].name,
                                     letters[i].value);
}

enum { MIN_PAIRS = 3, MAX_PAIRS = 101 };

/* A level, or a BLAS. */
struct contestant {
    const char *name;
    const struct kernels *kernels;
};

static struct contestant contestant(const char *name)
{
    const struct kernels *k = kernels_of_level(name);
    if (!k) {
        fprintf(stderr, "bench_kernels: there is no level %s here\n", name);
        exit(2);
    }
    return (struct contestant){name, k};
}

static void measure(const struct operation *o, struct contestant ours, struct contestant other, bool json, bool first)
{
    const double sample = 5e-4, budget = 0.5; /* seconds */
    double our_times[MAX_PAIRS], other_times[MAX_PAIRS], ratios[MAX_PAIRS];
    char text[128];
    pool_used = 0;
    o->setup();
    /* A sample is long enough for the clock; the first one also brings the buffers into the caches. */
    const double our_once = seconds(o, ours.kernels, 1), other_once = seconds(o, other.kernels, 1);
    const double once = our_once < other_once ? our_once : other_once;
    const size_t calls = once < sample ? (size_t)(sample / (once + 1e-9)) + 1 : 1;
    const double begin = now();
    size_t pairs = 0;
    while (pairs < MIN_PAIRS || (pairs < MAX_PAIRS && now() - begin < budget)) {
        other_times[pairs] = seconds(o, other.kernels, calls);
        our_times[pairs] = seconds(o, ours.kernels, calls);
        ratios[pairs] = other_times[pairs] / our_times[pairs];
        pairs++;
    }
    const double other_time = median(other_times, pairs), our_time = median(our_times, pairs);
    const double ratio = median(ratios, pairs);
    const double flops = o->flops ? 2.0 * (double)N() * (double)s.C * (double)s.OC : 0.0;
    shape(text, sizeof text);
    if (json) {
        printf("%s\n  {\"operation\": \"%s\", \"sizes\": \"%s\"", first ? "" : ",", o->name, text);
        printf(", \"against_seconds\": %.9g, \"seconds\": %.9g, \"ratio\": %.4g", other_time, our_time, ratio);
        if (o->flops)
            printf(", \"against_gflops\": %.4g, \"gflops\": %.4g", flops / other_time * 1e-9, flops / our_time * 1e-9);
        printf("}");
    } else {
        printf("%-30s %-24s %11.1f us %11.1f us %7.2f x", o->name, text, other_time * 1e6, our_time * 1e6, ratio);
        if (o->flops)
            printf("  %6.1f -> %6.1f GF/s", flops / other_time * 1e-9, flops / our_time * 1e-9);
        printf("\n");
    }
    fflush(stdout);
}

static struct contestant blas(const char *library)
{
    char sentence[512];
    if (!kernels_open_blas(sentence, sizeof sentence, library)) {
        fprintf(stderr, "bench_kernels: %s\n", sentence);
        exit(2);
    }
    return (struct contestant){"blas", kernels()};
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--level LEVEL] [--against LEVEL | --blas LIBRARY] [--threads COUNT] [--json] [OPERATION]\n",
            program);
    return 2;
}

int main(int argc, char **argv)
{
    bool json = false, first = true;
    const char *only = NULL, *level = "ref", *against = "ref", *library = NULL;
    for (size_t i = 0; kernels_level_name(i); i++)
        level = kernels_level_name(i);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            level = argv[++i];
        else if (strcmp(argv[i], "--against") == 0 && i + 1 < argc)
            against = argv[++i];
        else if (strcmp(argv[i], "--blas") == 0 && i + 1 < argc)
            library = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            crew.threads = atoi(argv[++i]);
        else if (*argv[i] != '-' && !only)
            only = argv[i];
        else
            return usage(argv[0]);
    }
    if (crew.threads < 1 || crew.threads > MAX_THREADS) {
        fprintf(stderr, "bench_kernels: found %d threads, expected 1 to %d\n", crew.threads, MAX_THREADS);
        return 2;
    }
    const struct contestant ours = contestant(level), other = library ? blas(library) : contestant(against);
    if (library && !only)
        only = "matmul";
    pool_size = (size_t)80 << 20; /* the largest: the logits' matmul */
    pool = aligned_alloc(HUGE_PAGE, pool_size * sizeof *pool);
    if (!pool) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        return 1;
    }
    (void)madvise(pool, pool_size * sizeof *pool, MADV_HUGEPAGE); /* as the library's large buffers */
    start_crew();
    if (json)
        printf("{\"level\": \"%s\", \"against\": \"%s\", \"threads\": %d, \"measurements\": [", level, other.name,
               crew.threads);
    else
        printf("%-30s %-24s %14s %14s %9s  (threads: %d)\n", "operation", "sizes", other.name, level, "ratio",
               crew.threads);
    for (size_t i = 0; i < NUM_OPERATIONS; i++) {
        if (only && strncmp(only, operations[i].name, strlen(only)) != 0)
            continue;
        for (size_t j = 0; j < operations[i].num_sizes; j++) {
            s = operations[i].sizes[j];
            measure(&operations[i], ours, other, json, first);
            first = false;
        }
    }
    if (json)
        printf("\n]}\n");
    free(pool);
    return 0;
}
