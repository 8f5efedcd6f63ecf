/* Compares the kernels of every level bit for bit with the reference kernels in one thread, over random shapes, values
 * and teams; so level ref is compared with itself in several threads. Other tests show that the reference kernels have
 * the bits of docs/numerics.md: tests/unit/test_reference_kernels.py, tests/native/test_parity.py. The
 * suite's check of kernels makes the same comparison with the installed library; this one also runs under the address
 * sanitizer and under an emulator. ctest runs a part of the cases (CMakeLists.txt); by hand: test_kernels --list,
 * test_kernels [--level LEVEL] [--every N] [OPERATION].
 *
 * Every case is made from a seed of its own, so a failing case is the same alone as in the whole run, and at every
 * level. A team's threads run one after the other, each on buffers as they were at the start, and what they compute is
 * put together. So a thread that needs what another one computes doesn't find it, and an output that two threads
 * compute is an error. NaNs are equal whatever their payloads. Buffers start at any multiple of 4 bytes; outputs have
 * guards on both sides; inputs end where their allocation ends, so that an address sanitizer sees reads past them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "kernels/ref/ref.h"

/* ---- One random case of each operation ---- */

/* What runs a case, and how many there are. Every kernel of kernels.def has to have them. */
#define CASES(name, count)         \
    enum { name##_cases = count }; \
    static void name(void)

CASES(encoder_forward, 300)
{
    size_t B, T, C;
    RANDOM_SIZES(100000, &B, &T, &C);
    const size_t V = random_size(), maxT = T + random_below(3);
    SHAPE("B=%zu T=%zu C=%zu V=%zu", B, T, C, V);
    const struct pair out = overwritten("out", B * T * C);
    const int32_t *tokens = indices("tokens", B * T, V);
    const float *wte = input("wte", V * C), *wpe = input("wpe", maxT * C);
    RUN(encoder_forward, at(out), tokens, wte, wpe, B, T, C);
}

CASES(encoder_backward, 300)
{
    size_t B, T, C;
    RANDOM_SIZES(100000, &B, &T, &C);
    const size_t V = 1 + random_below(B * T), maxT = T + random_below(3);
    const enum sum_start start = random_start();
    const size_t first = random_below(2) ? random_below(V) : 0, rows = 1 + random_below(V - first);
    const bool positions = random_below(4);
    SHAPE("B=%zu T=%zu C=%zu maxT=%zu, %zu rows from %zu of %zu, %s dwpe, %s", B, T, C, maxT, rows, first, V,
          positions ? "with" : "no", start_name(start));
    const struct pair dwte = output("dwte", rows * C, SUM_CONTINUES), dwpe = output("dwpe", maxT * C, start);
    const float *dout = input("dout", B * T * C);
    const int32_t *tokens = indices("tokens", B * T, V);
    RUN(encoder_backward, at(dwte), positions ? at(dwpe) : NULL, dout, tokens, B, T, C, maxT, first, rows, start);
}

CASES(layernorm_forward, 600)
{
    size_t N, C;
    RANDOM_SIZES(50000, &N, &C);
    SHAPE("N=%zu C=%zu", N, C);
    const struct pair out = overwritten("out", N * C), mean = overwritten("mean", N), rstd = overwritten("rstd", N);
    const float *inp = input("inp", N * C), *weight = input("weight", C), *bias = input("bias", C);
    RUN(layernorm_forward, at(out), at(mean), at(rstd), inp, weight, bias, N, C);
}

CASES(layernorm_backward_input, 600)
{
    size_t N, C;
    RANDOM_SIZES(50000, &N, &C);
    const enum sum_start start = random_start();
    SHAPE("N=%zu C=%zu, %s", N, C, start_name(start));
    const struct pair dinp = output("dinp", N * C, start);
    const float *dout = input("dout", N * C), *inp = input("inp", N * C), *mean = input("mean", N);
    const float *rstd = input("rstd", N), *weight = input("weight", C);
    RUN(layernorm_backward_input, at(dinp), dout, inp, mean, rstd, weight, N, C, start);
}

CASES(layernorm_backward_weight, 600)
{
    size_t N, C;
    RANDOM_SIZES(50000, &N, &C);
    const enum sum_start start = random_start();
    SHAPE("N=%zu C=%zu, %s", N, C, start_name(start));
    const struct pair dweight = output("dweight", C, start), dbias = output("dbias", C, start);
    const float *dout = input("dout", N * C), *inp = input("inp", N * C);
    const float *mean = input("mean", N), *rstd = input("rstd", N);
    RUN(layernorm_backward_weight, at(dweight), at(dbias), dout, inp, mean, rstd, N, C, start);
}

/* Every 128th case is above every block in all three sizes. Two cases have so many columns C that matmul_forward packs
 * fewer of B's columns at a time: less than a block of them, and a single micro-panel. */
static void matmul_sizes(size_t *N, size_t *C, size_t *OC)
{
    if (the.number == 64 || the.number == 65) {
        *N = (the.number == 64 ? 800 : 40) + random_below(20);
        *C = (the.number == 64 ? 5600 : 140000) + random_below(20);
        *OC = (the.number == 64 ? 10 : 1) + random_below(5);
        return;
    }
    if (the.number % 128 == 127) {
        size_t *const sizes[] = {N, C, OC};
        for (size_t i = 0; i < 3; i++)
            *sizes[i] = 257 + random_below(100);
        *sizes[random_below(3)] = random_large_size();
        return;
    }
    RANDOM_SIZES(1000000, N, C, OC);
}

CASES(matmul_forward, 400)
{
    size_t N, C, OC;
    matmul_sizes(&N, &C, &OC);
    const bool biased = random_below(2);
    SHAPE("N=%zu C=%zu OC=%zu, %s bias", N, C, OC, biased ? "with" : "no");
    const struct pair out = overwritten("out", N * OC);
    const float *inp = input("inp", N * C), *weight = input("weight", OC * C), *bias = input("bias", OC);
    RUN(matmul_forward, at(out), inp, weight, biased ? bias : NULL, N, C, OC);
}

CASES(matmul_backward_input, 400)
{
    size_t N, C, OC;
    matmul_sizes(&N, &C, &OC);
    const enum sum_start start = random_start();
    SHAPE("N=%zu C=%zu OC=%zu, %s", N, C, OC, start_name(start));
    const struct pair dinp = output("dinp", N * C, start);
    const float *dout = input("dout", N * OC), *weight = input("weight", OC * C);
    RUN(matmul_backward_input, at(dinp), dout, weight, N, C, OC, start);
}

CASES(matmul_backward_weight, 400)
{
    size_t N, C, OC;
    matmul_sizes(&N, &C, &OC);
    const bool biased = random_below(2);
    const enum sum_start start = random_start();
    const size_t first = random_below(2) ? random_below(OC) : 0;
    const size_t rows = first ? 1 + random_below(OC - first) : OC;
    SHAPE("N=%zu C=%zu OC=%zu, %zu rows from %zu, %s bias, %s", N, C, OC, rows, first, biased ? "with" : "no",
          start_name(start));
    const struct pair dweight = output("dweight", rows * C, start), dbias = output("dbias", rows, start);
    const float *dout = input("dout", N * OC), *inp = input("inp", N * C);
    RUN(matmul_backward_weight, at(dweight), biased ? at(dbias) : NULL, dout, inp, N, C, OC, first, rows, start);
}

/* Every eighth case is long (T above two panels), every 64th longer, the others are within the limit. In one case T,
 * in another one the head size is above the longest block of a sum. */
static void attention_sizes(size_t *B, size_t *T, size_t *NH, size_t *hs)
{
    if (the.number == 64 || the.number == 65) {
        const size_t above_block = 769 + random_below(30), few = 1 + random_below(20);
        *B = 1;
        *NH = 1 + random_below(2);
        *T = the.number == 64 ? above_block : few;
        *hs = the.number == 64 ? few : above_block;
        return;
    }
    if (the.number % 8 == 7) {
        *B = 1;
        *NH = the.number % 16 == 7 ? 2 : 1;
        *T = (the.number % 64 == 63 ? 500 : 250) + random_below(20);
        *hs = 1 + random_below(70);
        return;
    }
    do {
        RANDOM_SIZES(100000, B, T, NH, hs);
    } while (*T * *T * (*T / 3 + 3 * *hs) > 2000000 / (*B * *NH));
}

CASES(attention_forward, 300)
{
    size_t B, T, NH, hs;
    attention_sizes(&B, &T, &NH, &hs);
    const size_t C = NH * hs;
    SHAPE("B=%zu T=%zu C=%zu NH=%zu (head size %zu)", B, T, C, NH, hs);
    const struct pair out = overwritten("out", B * T * C);
    const struct pair preatt = overwritten("preatt", B * NH * T * T), att = overwritten("att", B * NH * T * T);
    float *qkv = input("qkv", B * T * 3 * C);
    if (random_below(8) == 0) { /* scores that overflow: all exponentials of a row may be 0 or NaN */
        for (size_t i = 0; i < B * T * 3 * C; i++)
            qkv[i] *= 1e18f;
        last_changed();
    }
    RUN(attention_forward, at(out), at(preatt), at(att), qkv, B, T, C, NH);
}

CASES(attention_backward, 300)
{
    size_t B, T, NH, hs;
    attention_sizes(&B, &T, &NH, &hs);
    const size_t C = NH * hs;
    SHAPE("B=%zu T=%zu C=%zu NH=%zu (head size %zu)", B, T, C, NH, hs);
    const struct pair dqkv = overwritten("dqkv", B * T * 3 * C);
    const struct pair dpreatt = overwritten("dpreatt", B * NH * T * T), datt = overwritten("datt", B * NH * T * T);
    const float *dout = input("dout", B * T * C), *qkv = input("qkv", B * T * 3 * C);
    float *att = input("att", B * NH * T * T);
    /* The forward kernel leaves +0 past the causal edge; garbage shows whether the sums keep off it. */
    for (size_t row = 0; row < B * NH * T; row++)
        for (size_t t2 = row % T + 1; t2 < T; t2++)
            att[row * T + t2] = garbage();
    last_changed();
    RUN(attention_backward, at(dqkv), at(dpreatt), at(datt), dout, qkv, att, B, T, C, NH);
}

static size_t random_count(void)
{
    return random_below(2) ? random_size() : 1 + random_below(20000);
}

CASES(gelu_forward, 500)
{
    const size_t count = random_count();
    SHAPE("count=%zu", count);
    const struct pair out = overwritten("out", count);
    const float *inp = input("inp", count);
    RUN(gelu_forward, at(out), inp, count);
}

CASES(gelu_backward, 500)
{
    const size_t count = random_count();
    const enum sum_start start = random_start();
    SHAPE("count=%zu, %s", count, start_name(start));
    const struct pair dinp = output("dinp", count, start);
    const float *dout = input("dout", count), *inp = input("inp", count);
    RUN(gelu_backward, at(dinp), dout, inp, count, start);
}

CASES(residual_forward, 300)
{
    const size_t count = random_count();
    SHAPE("count=%zu", count);
    const struct pair out = overwritten("out", count);
    const float *a = input("a", count), *b = input("b", count);
    RUN(residual_forward, at(out), a, b, count);
}

CASES(residual_backward, 300)
{
    const size_t count = random_count();
    const enum sum_start start = random_start();
    SHAPE("count=%zu, %s", count, start_name(start));
    const struct pair da = output("da", count, start), db = output("db", count, start);
    const float *dout = input("dout", count);
    RUN(residual_backward, at(da), at(db), dout, count, start);
}

static size_t padded(size_t V)
{
    return random_below(2) ? V + random_below(130) : V;
}

CASES(softmax_forward, 600)
{
    size_t N, V;
    RANDOM_SIZES(30000, &N, &V);
    const size_t Vp = padded(V);
    SHAPE("N=%zu V=%zu Vp=%zu", N, V, Vp);
    const struct pair probs = overwritten("probs", N * Vp);
    float *logits = input("logits", N * Vp);
    if (random_below(8) == 0) { /* below the largest's starting value */
        for (size_t i = 0; i < N * Vp; i++)
            logits[i] = -10000.0f - 100.0f * fabsf(logits[i]);
    }
    for (size_t n = 0; n < N; n++)
        for (size_t v = V; v < Vp; v++)
            logits[n * Vp + v] = garbage();
    last_changed();
    RUN(softmax_forward, at(probs), logits, N, V, Vp);
}

CASES(crossentropy_forward, 300)
{
    size_t N, V;
    RANDOM_SIZES(30000, &N, &V);
    const size_t Vp = padded(V);
    SHAPE("N=%zu V=%zu Vp=%zu", N, V, Vp);
    const struct pair losses = overwritten("losses", N);
    const float *probs = input("probs", N * Vp);
    const int32_t *targets = indices("targets", N, V);
    RUN(crossentropy_forward, at(losses), probs, targets, N, Vp);
}

CASES(mean_loss, 100)
{
    const size_t N = random_count();
    const enum sum_start start = random_start();
    const float divisor = random_below(2) ? 0.0f : (float)(1 + random_below(100000));
    SHAPE("N=%zu divisor=%g, %s", N, (double)divisor, start_name(start));
    const struct pair mean = output("mean", 1, start);
    const float *losses = input("losses", N);
    RUN(mean_loss, at(mean), losses, N, divisor, start);
}

CASES(crossentropy_softmax_backward, 500)
{
    size_t N, V;
    RANDOM_SIZES(30000, &N, &V);
    const size_t Vp = padded(V);
    const enum sum_start start = random_start();
    SHAPE("N=%zu V=%zu Vp=%zu, %s", N, V, Vp, start_name(start));
    const struct pair dlogits = output("dlogits", N * Vp, start);
    const float *dlosses = input("dlosses", N), *probs = input("probs", N * Vp);
    const int32_t *targets = indices("targets", N, V);
    RUN(crossentropy_softmax_backward, at(dlogits), dlosses, probs, targets, N, V, Vp, start);
}

CASES(gradient_add, 300)
{
    const size_t count = random_count();
    SHAPE("count=%zu", count);
    const struct pair sum = output("sum", count, SUM_CONTINUES);
    const float *term = input("term", count);
    RUN(gradient_add, at(sum), term, count);
}

CASES(adamw_update, 500)
{
    static const float betas[] = {0.9f, 0.999f, 0.95f, 0.5f, 0.0f};
    const size_t count = random_count();
    const struct adamw_options options = {.learning_rate = 1e-4f * (float)(1 + random_below(50)),
                                          .beta1 = betas[random_below(5)],
                                          .beta2 = betas[random_below(5)],
                                          .eps = random_below(2) ? 1e-8f : 1e-5f,
                                          .weight_decay = random_below(2) ? 0.1f : 0.0f};
    const int64_t step = random_below(2) ? 1 + (int64_t)random_below(20) : 1 + (int64_t)random_below(20000000);
    SHAPE("count=%zu step=%lld lr=%g beta1=%g beta2=%g eps=%g decay=%g", count, (long long)step,
          (double)options.learning_rate, (double)options.beta1, (double)options.beta2, (double)options.eps,
          (double)options.weight_decay);
    const struct pair params = output("params", count, SUM_CONTINUES), m = output("m", count, SUM_CONTINUES);
    const struct pair v = output("v", count, SUM_CONTINUES);
    for (size_t i = 0; i < count; i++)
        v.ours[i] = fabsf(v.ours[i]);
    last_changed();
    const float *grads = input("grads", count);
    RUN(adamw_update, at(params), at(m), at(v), grads, count, &options, step);
}

static size_t every = 1; /* one case in so many is run */

static const struct {
    const char *name;
    void (*run_case)(void);
    size_t cases;
} operations[] = {
#define KERNEL(name, parameters) {#name, name, name##_cases},
#include "kernels/kernels.def"
};
enum { NUM_OPERATIONS = sizeof operations / sizeof *operations };

/* Caches from almost none to more than any block needs, so that blocks have odd sizes; at first this machine's. Their
 * number is prime, so that each meets each kind of case. */
static void choose_caches(size_t number)
{
    static const size_t l2_sizes[] = {0, 1, 900, 5000, 23000, 60000, 150000, 400000, 700000, 1100000, 5000000};
    static struct caches own;
    if (own.l2 == 0)
        own = *kernels_caches();
    const size_t l2 = l2_sizes[number % (sizeof l2_sizes / sizeof *l2_sizes)];
    the.caches = l2 == 0 ? own : (struct caches){.l1 = 1 + l2 / 16, .l2 = l2, .l3_is_slow = random_below(2)};
    kernels_fit_caches(&the.caches);
}

static void run(size_t index)
{
    the.operation = operations[index].name;
    for (the.number = 0; the.number < operations[index].cases; the.number += every) {
        seed_random((uint64_t)(index + 1) << 32 | the.number);
        the.flavour = (enum flavour)(the.number % 2 ? random_below(NUM_FLAVOURS) : ORDINARY);
        the.team.count = random_threads();
        choose_caches(the.number);
        the.level = NULL;
        the.next = 0;
        operations[index].run_case();
        free_buffers();
    }
    printf("%-32s %zu cases, the same bits (", the.operation, the.number / every);
    for (size_t i = 0; kernels_level_name(i); i++)
        if (!the.only_level || strcmp(the.only_level, kernels_level_name(i)) == 0)
            printf("%s%s", i == 0 || the.only_level ? "" : ", ", kernels_level_name(i));
    printf(")\n");
    fflush(stdout);
}

/* ---- What the threads of a team share ---- */

static void check_shares(int threads, size_t items, size_t grain)
{
    size_t covered = 0, least = SIZE_MAX, most = 0;
    for (int i = 0; i < threads; i++) {
        const struct share part = team_share((struct team){i, threads}, items, grain);
        if (part.begin != covered || part.end < part.begin) {
            fprintf(stderr,
                    "team_share: thread %d of %d, %zu items in grains of %zu: found %zu to %zu, expected it to "
                    "begin at %zu\n",
                    i, threads, items, grain, part.begin, part.end, covered);
            exit(1);
        }
        const size_t grains = (part.end - part.begin + grain - 1) / grain;
        least = grains < least ? grains : least;
        most = grains > most ? grains : most;
        covered = part.end;
        if (covered % grain != 0 && covered != items) {
            fprintf(stderr, "team_share: thread %d of %d, %zu items: its part ends at %zu, within a grain of %zu\n", i,
                    threads, items, covered, grain);
            exit(1);
        }
    }
    if (covered != items || most - least > 1) {
        fprintf(stderr,
                "team_share: %d threads, %zu items in grains of %zu: found %zu items covered, parts of %zu to "
                "%zu grains, expected all items, parts that differ by at most one grain\n",
                threads, items, grain, covered, least, most);
        exit(1);
    }
}

static void run_shares(void)
{
    static const size_t grains[] = {1, 2, 3, 8, 16, 32, 100};
    size_t count = 0;
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        for (size_t items = 0; items <= 300; items++)
            for (size_t i = 0; i < sizeof grains / sizeof *grains; i++, count++)
                check_shares(threads, items, grains[i]);
    printf("%-32s %zu cases, everything shared once\n", "team_share", count);
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s [--list | [--level LEVEL] [--every N] [OPERATION]]\n", program);
    return 2;
}

int main(int argc, char **argv)
{
    const char *only_operation = NULL;
    bool list = false, found = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            the.only_level = argv[++i];
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            every = (size_t)atoi(argv[++i]);
        else if (*argv[i] != '-' && !only_operation)
            only_operation = argv[i];
        else
            return usage(argv[0]);
    }
    if (the.only_level && !kernels_of_level(the.only_level)) {
        fprintf(stderr, "%s: there is no level %s here\n", argv[0], the.only_level);
        return 2;
    }
    if (list)
        puts("team_share");
    else if (!only_operation || strcmp(only_operation, "team_share") == 0) {
        run_shares();
        found = true;
    }
    for (size_t i = 0; i < NUM_OPERATIONS; i++) {
        if (list)
            puts(operations[i].name);
        else if (!only_operation || strcmp(only_operation, operations[i].name) == 0) {
            run(i);
            found = true;
        }
    }
    if (!list && !found)
        fprintf(stderr, "%s: no operation %s; --list gives their names\n", argv[0], only_operation);
    return list || found ? 0 : 2;
}
