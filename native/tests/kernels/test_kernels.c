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
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

/* ---- Random numbers ---- */

static uint64_t random_state;

static uint64_t random_bits(void)
{ /* splitmix64 */
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t random_below(size_t limit)
{
    return (size_t)((random_bits() >> 11) % limit);
}

static float with_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum flavour { ORDINARY, WIDE, TINY, SOME_ZEROS, ALL_ZEROS, SPECIAL, NUM_FLAVOURS };
static const char *const flavour_names[] = {"ordinary", "wide", "tiny", "some zeros", "all zeros", "special"};

static float random_value(enum flavour flavour)
{
    const uint64_t bits = random_bits();
    const uint32_t sign = (uint32_t)(bits >> 63) << 31, fraction = (uint32_t)bits & 0x7fffff;
    const uint32_t choice = (uint32_t)(bits >> 32) & 0xffff;
    switch (flavour) {
    case WIDE: /* magnitudes 2^-24 to 2^24 */
        return with_bits(sign | (127 - 24 + choice % 49) << 23 | fraction);
    case TINY: /* subnormal, or so small that a product of two is subnormal */
        return with_bits(sign | (choice % 2 ? 0 : 127 - 72 + choice / 2 % 12) << 23 | fraction);
    case ALL_ZEROS: /* of either sign: a sum's start shows */
        return with_bits(sign);
    case SOME_ZEROS:
        if (choice % 2)
            return with_bits(sign);
        break;
    default:
        break;
    }
    return with_bits(sign | (127 - 3 + choice % 4) << 23 | fraction);
}

static void fill(float *x, size_t count, enum flavour flavour)
{
    static const uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,  /* infinities, NaNs */
                                        0x7f7fffff, 0xff7fffff, 0x00000000, 0x80000000}; /* largest, zeros */
    for (size_t i = 0; i < count; i++)
        x[i] = random_value(flavour);
    if (flavour == SPECIAL) /* few: a result that is all NaN shows nothing */
        for (size_t k = random_below(4); k > 0; k--)
            x[random_below(count)] = with_bits(specials[random_below(sizeof specials / sizeof *specials)]);
}

/* Sizes at, above and below every tile of the kernels, and odd ones. */
static size_t random_size(void)
{
    static const size_t sizes[] = {1,   2,   3,   4,   5,   7,   8,   9,   11,  13,  15,  16,  17,  19,  20,  21,
                                   23,  24,  25,  31,  32,  33,  37,  40,  47,  48,  49,  51,  52,  53,  61,  63,
                                   64,  65,  71,  95,  96,  97,  127, 128, 129, 131, 159, 160, 161, 191, 192, 193,
                                   223, 255, 256, 257, 263, 288, 383, 384, 385, 511, 512, 513, 768};
    return sizes[random_below(sizeof sizes / sizeof *sizes)];
}

/* Above the blocks that kernels cut sums and outputs into. */
static size_t random_large_size(void)
{
    static const size_t sizes[] = {1023, 1024, 1025, 1100, 1537, 2047, 2048, 2049, 2304, 3072, 3073};
    return sizes[random_below(sizeof sizes / sizeof *sizes)];
}
/* ---- A case's buffers ---- */

enum { GUARD = 48, MAX_BUFFERS = 16 };
static const uint32_t guard_bits = 0xdeadbeef;
static const uint32_t garbage_bits = 0x7fbadbad; /* a NaN: reading it shows */

struct buffer {
    const char *name;
    size_t count, offset; /* in 4-byte elements; data starts at memory + offset */
    bool output;
    /* Memory: the kernel's, as it was at the start, what the team computed, what the reference kernel computed. */
    uint32_t *ours, *start, *computed, *expected;
};

struct pair {
    float *ours, *expected;
};

enum { MAX_THREADS = 40 };

static const char *only_level; /* NULL: all */
static size_t every = 1;       /* one case in so many is run */

static struct {
    const char *operation;
    const char *level; /* NULL before the first */
    size_t next;       /* level */
    const struct kernels *kernels;
    struct team team;
    size_t number;
    struct caches caches; /* that the blocks are for */
    enum flavour flavour;
    char shape[160];
    struct buffer buffers[MAX_BUFFERS];
    size_t num_buffers;
} the;

#define SHAPE(...) snprintf(the.shape, sizeof the.shape, __VA_ARGS__)

static void failed(const char *what)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s\n  case %zu (%s, %d threads, blocks for caches of %zu and %zu bytes%s, %s values): %s\n",
            the.operation, what, the.number, the.level ? the.level : "no level yet", the.team.count, the.caches.l1,
            the.caches.l2, the.caches.l3_is_slow ? ", prefetched" : "", flavour_names[the.flavour], the.shape);
    exit(1);
}

/* Draws sizes until their product is at most `limit`. In every eighth case one of them is large. */
static void random_sizes(size_t limit, size_t count, size_t *const sizes[])
{
    const size_t large = the.number % 8 == 7 ? random_below(count) : count;
    size_t product;
    do {
        product = 1;
        for (size_t i = 0; i < count; i++)
            product *= *sizes[i] = i == large ? random_large_size() : random_size();
    } while (product > limit);
}
#define RANDOM_SIZES(limit, ...) \
    random_sizes(limit, sizeof((size_t *[]){__VA_ARGS__}) / sizeof(size_t *), (size_t *[]){__VA_ARGS__})

/* Mostly up to 8, sometimes more than there is work for. */
static int random_threads(void)
{
    return 1 + (int)random_below(random_below(8) ? 8 : MAX_THREADS);
}

static struct buffer *new_buffer(const char *name, size_t count, bool output)
{
    struct buffer *b = &the.buffers[the.num_buffers++];
    *b = (struct buffer){.name = name, .count = count, .offset = GUARD + random_below(16), .output = output};
    const size_t total = b->offset + count + (output ? GUARD : 0);
    b->ours = malloc(total * 4);
    b->start = malloc(total * 4);
    b->computed = malloc(total * 4);
    b->expected = malloc(total * 4);
    if (the.num_buffers > MAX_BUFFERS || !b->ours || !b->start || !b->computed || !b->expected)
        failed("out of memory");
    for (size_t i = 0; i < total; i++)
        b->ours[i] = guard_bits;
    return b;
}

static size_t buffer_size(const struct buffer *b)
{
    return (b->offset + b->count + (b->output ? GUARD : 0)) * 4;
}

static void same_start(struct buffer *b)
{
    memcpy(b->start, b->ours, buffer_size(b));
    memcpy(b->expected, b->ours, buffer_size(b));
}

/* Mostly the case's flavour, so that flavours also meet each other. */
static enum flavour some_flavour(void)
{
    return random_below(4) ? the.flavour : (enum flavour)random_below(NUM_FLAVOURS);
}

static float *floats(uint32_t *memory)
{
    return (float *)(void *)memory;
}

static float *input(const char *name, size_t count)
{
    struct buffer *b = new_buffer(name, count, false);
    fill(floats(b->ours) + b->offset, count, some_flavour());
    same_start(b);
    return floats(b->ours) + b->offset;
}

/* After the last buffer was changed by hand. */
static void last_changed(void)
{
    same_start(&the.buffers[the.num_buffers - 1]);
}

static const int32_t *indices(const char *name, size_t count, size_t limit)
{
    struct buffer *b = new_buffer(name, count, false);
    int32_t *x = (int32_t *)(void *)b->ours + b->offset;
    for (size_t i = 0; i < count; i++)
        x[i] = (int32_t)random_below(limit);
    same_start(b);
    return x;
}

/* An output that is continued has a present value; any other holds garbage that must not be read. */
static struct pair output(const char *name, size_t count, enum sum_start start)
{
    struct buffer *b = new_buffer(name, count, true);
    if (start == SUM_CONTINUES)
        fill(floats(b->ours) + b->offset, count, some_flavour());
    else
        for (size_t i = 0; i < count; i++)
            b->ours[b->offset + i] = garbage_bits;
    same_start(b);
    return (struct pair){floats(b->ours) + b->offset, floats(b->expected) + b->offset};
}

static struct pair overwritten(const char *name, size_t count)
{
    return output(name, count, SUM_FROM_ZERO);
}

static enum sum_start random_start(void)
{
    return random_below(2) ? SUM_CONTINUES : SUM_FROM_ZERO;
}
static const char *start_name(enum sum_start start)
{
    return start == SUM_CONTINUES ? "continues" : "from zero";
}

static bool same(uint32_t a, uint32_t b)
{
    return a == b || (isnan(with_bits(a)) && isnan(with_bits(b)));
}

static void check_buffer(const struct buffer *b)
{
    char what[320];
    const size_t end = b->offset + b->count, total = end + (b->output ? GUARD : 0);
    for (size_t i = 0; i < total; i++) {
        const bool inside = i >= b->offset && i < end;
        if (!b->output && b->ours[i] != b->expected[i]) {
            snprintf(what, sizeof what, "input %s was changed at %td", b->name, (ptrdiff_t)(i - b->offset));
            failed(what);
        }
        if (!inside && b->ours[i] != guard_bits) {
            snprintf(what, sizeof what, "%s was written out of bounds, at %td of %zu", b->name,
                     (ptrdiff_t)i - (ptrdiff_t)b->offset, b->count);
            failed(what);
        }
    }
    size_t differ = 0, first = 0;
    for (size_t i = b->offset; i < end; i++)
        if (!same(b->computed[i], b->expected[i]) && differ++ == 0)
            first = i;
    if (differ) {
        const uint32_t ours = b->computed[first], expected = b->expected[first];
        snprintf(what, sizeof what,
                 "%s[%zu] is 0x%08x (%.9g), the reference kernel gives 0x%08x (%.9g); %zu of %zu elements differ",
                 b->name, first - b->offset, (unsigned)ours, (double)with_bits(ours), (unsigned)expected,
                 (double)with_bits(expected), differ, b->count);
        failed(what);
    }
}

static void free_buffers(void)
{
    for (size_t i = 0; i < the.num_buffers; i++) {
        free(the.buffers[i].ours);
        free(the.buffers[i].start);
        free(the.buffers[i].computed);
        free(the.buffers[i].expected);
    }
    the.num_buffers = 0;
}

/* Moves what a thread has computed to the others', and gets the buffer ready for the next one. */
static void collect_buffer(struct buffer *b)
{
    enum { BLOCK = 64 };
    const size_t end = b->offset + b->count;
    for (size_t begin = b->offset; begin < end; begin += BLOCK) {
        const size_t block = begin + BLOCK < end ? BLOCK : end - begin;
        if (memcmp(b->ours + begin, b->start + begin, block * 4) == 0)
            continue;
        for (size_t i = begin; i < begin + block; i++)
            if (b->ours[i] != b->start[i]) {
                if (b->computed[i] != b->start[i]) {
                    char what[160];
                    snprintf(what, sizeof what, "thread %d computes %s[%zu], which another thread has computed",
                             the.team.index, b->name, i - b->offset);
                    failed(what);
                }
                b->computed[i] = b->ours[i];
                b->ours[i] = b->start[i];
            }
    }
}

/* The team's next thread, after the last one's outputs are collected. */
static bool next_thread(void)
{
    for (size_t i = 0; the.team.index >= 0 && i < the.num_buffers; i++)
        if (the.buffers[i].output)
            collect_buffer(&the.buffers[i]);
    return ++the.team.index < the.team.count;
}

/* The next level, after what the last one's kernel computed is checked. */
static bool next_level(void)
{
    for (size_t i = 0; the.level && i < the.num_buffers; i++)
        check_buffer(&the.buffers[i]);
    do
        the.level = kernels_level_name(the.next++);
    while (the.level && only_level && strcmp(the.level, only_level) != 0);
    if (!the.level)
        return false;
    the.kernels = kernels_of_level(the.level);
    the.team.index = -1;
    for (size_t i = 0; i < the.num_buffers; i++)
        memcpy(the.buffers[i].computed, the.buffers[i].start, buffer_size(&the.buffers[i]));
    return true;
}

/* Calls a kernel of every level as each of the team's threads, and checks it; the reference kernel must have run. */
#define RUN_LEVELS(operation, ...) \
    while (next_level())           \
        while (next_thread())      \
    the.kernels->operation(__VA_ARGS__, the.team)

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
    encoder_forward_ref(out.expected, tokens, wte, wpe, B, T, C, team_of_one);
    RUN_LEVELS(encoder_forward, out.ours, tokens, wte, wpe, B, T, C);
}

CASES(encoder_backward, 300)
{
    size_t B, T, C;
    RANDOM_SIZES(100000, &B, &T, &C);
    const size_t V = 1 + random_below(B * T), maxT = T + random_below(3);
    const enum sum_start start = random_start();
    SHAPE("B=%zu T=%zu C=%zu V=%zu maxT=%zu, dwpe %s", B, T, C, V, maxT, start_name(start));
    const struct pair dwte = output("dwte", V * C, SUM_CONTINUES), dwpe = output("dwpe", maxT * C, start);
    const float *dout = input("dout", B * T * C);
    const int32_t *tokens = indices("tokens", B * T, V);
    encoder_backward_ref(dwte.expected, dwpe.expected, dout, tokens, B, T, C, maxT, start, team_of_one);
    RUN_LEVELS(encoder_backward, dwte.ours, dwpe.ours, dout, tokens, B, T, C, maxT, start);
}

CASES(layernorm_forward, 600)
{
    size_t N, C;
    RANDOM_SIZES(50000, &N, &C);
    SHAPE("N=%zu C=%zu", N, C);
    const struct pair out = overwritten("out", N * C), mean = overwritten("mean", N), rstd = overwritten("rstd", N);
    const float *inp = input("inp", N * C), *weight = input("weight", C), *bias = input("bias", C);
    layernorm_forward_ref(out.expected, mean.expected, rstd.expected, inp, weight, bias, N, C, team_of_one);
    RUN_LEVELS(layernorm_forward, out.ours, mean.ours, rstd.ours, inp, weight, bias, N, C);
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
    layernorm_backward_input_ref(dinp.expected, dout, inp, mean, rstd, weight, N, C, start, team_of_one);
    RUN_LEVELS(layernorm_backward_input, dinp.ours, dout, inp, mean, rstd, weight, N, C, start);
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
    layernorm_backward_weight_ref(dweight.expected, dbias.expected, dout, inp, mean, rstd, N, C, start, team_of_one);
    RUN_LEVELS(layernorm_backward_weight, dweight.ours, dbias.ours, dout, inp, mean, rstd, N, C, start);
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
    matmul_forward_ref(out.expected, inp, weight, biased ? bias : NULL, N, C, OC, team_of_one);
    RUN_LEVELS(matmul_forward, out.ours, inp, weight, biased ? bias : NULL, N, C, OC);
}

CASES(matmul_backward_input, 400)
{
    size_t N, C, OC;
    matmul_sizes(&N, &C, &OC);
    const enum sum_start start = random_start();
    SHAPE("N=%zu C=%zu OC=%zu, %s", N, C, OC, start_name(start));
    const struct pair dinp = output("dinp", N * C, start);
    const float *dout = input("dout", N * OC), *weight = input("weight", OC * C);
    matmul_backward_input_ref(dinp.expected, dout, weight, N, C, OC, start, team_of_one);
    RUN_LEVELS(matmul_backward_input, dinp.ours, dout, weight, N, C, OC, start);
}

CASES(matmul_backward_weight, 400)
{
    size_t N, C, OC;
    matmul_sizes(&N, &C, &OC);
    const bool biased = random_below(2);
    const enum sum_start start = random_start();
    SHAPE("N=%zu C=%zu OC=%zu, %s bias, %s", N, C, OC, biased ? "with" : "no", start_name(start));
    const struct pair dweight = output("dweight", OC * C, start), dbias = output("dbias", OC, start);
    const float *dout = input("dout", N * OC), *inp = input("inp", N * C);
    matmul_backward_weight_ref(dweight.expected, biased ? dbias.expected : NULL, dout, inp, N, C, OC, start,
                               team_of_one);
    RUN_LEVELS(matmul_backward_weight, dweight.ours, biased ? dbias.ours : NULL, dout, inp, N, C, OC, start);
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
    attention_forward_ref(out.expected, preatt.expected, att.expected, qkv, B, T, C, NH, team_of_one);
    RUN_LEVELS(attention_forward, out.ours, preatt.ours, att.ours, qkv, B, T, C, NH);
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
            att[row * T + t2] = with_bits(garbage_bits);
    last_changed();
    attention_backward_ref(dqkv.expected, dpreatt.expected, datt.expected, dout, qkv, att, B, T, C, NH, team_of_one);
    RUN_LEVELS(attention_backward, dqkv.ours, dpreatt.ours, datt.ours, dout, qkv, att, B, T, C, NH);
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
    gelu_forward_ref(out.expected, inp, count, team_of_one);
    RUN_LEVELS(gelu_forward, out.ours, inp, count);
}

CASES(gelu_backward, 500)
{
    const size_t count = random_count();
    const enum sum_start start = random_start();
    SHAPE("count=%zu, %s", count, start_name(start));
    const struct pair dinp = output("dinp", count, start);
    const float *dout = input("dout", count), *inp = input("inp", count);
    gelu_backward_ref(dinp.expected, dout, inp, count, start, team_of_one);
    RUN_LEVELS(gelu_backward, dinp.ours, dout, inp, count, start);
}

CASES(residual_forward, 300)
{
    const size_t count = random_count();
    SHAPE("count=%zu", count);
    const struct pair out = overwritten("out", count);
    const float *a = input("a", count), *b = input("b", count);
    residual_forward_ref(out.expected, a, b, count, team_of_one);
    RUN_LEVELS(residual_forward, out.ours, a, b, count);
}

CASES(residual_backward, 300)
{
    const size_t count = random_count();
    const enum sum_start start = random_start();
    SHAPE("count=%zu, %s", count, start_name(start));
    const struct pair da = output("da", count, start), db = output("db", count, start);
    const float *dout = input("dout", count);
    residual_backward_ref(da.expected, db.expected, dout, count, start, team_of_one);
    RUN_LEVELS(residual_backward, da.ours, db.ours, dout, count, start);
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
            logits[n * Vp + v] = with_bits(garbage_bits);
    last_changed();
    softmax_forward_ref(probs.expected, logits, N, V, Vp, team_of_one);
    RUN_LEVELS(softmax_forward, probs.ours, logits, N, V, Vp);
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
    crossentropy_forward_ref(losses.expected, probs, targets, N, Vp, team_of_one);
    RUN_LEVELS(crossentropy_forward, losses.ours, probs, targets, N, Vp);
}

CASES(mean_loss, 100)
{
    const size_t N = random_count();
    const enum sum_start start = random_start();
    const float divisor = random_below(2) ? 0.0f : (float)(1 + random_below(100000));
    SHAPE("N=%zu divisor=%g, %s", N, (double)divisor, start_name(start));
    const struct pair mean = output("mean", 1, start);
    const float *losses = input("losses", N);
    mean_loss_ref(mean.expected, losses, N, divisor, start, team_of_one);
    RUN_LEVELS(mean_loss, mean.ours, losses, N, divisor, start);
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
    crossentropy_softmax_backward_ref(dlogits.expected, dlosses, probs, targets, N, V, Vp, start, team_of_one);
    RUN_LEVELS(crossentropy_softmax_backward, dlogits.ours, dlosses, probs, targets, N, V, Vp, start);
}

CASES(gradient_add, 300)
{
    const size_t count = random_count();
    SHAPE("count=%zu", count);
    const struct pair sum = output("sum", count, SUM_CONTINUES);
    const float *term = input("term", count);
    gradient_add_ref(sum.expected, term, count, team_of_one);
    RUN_LEVELS(gradient_add, sum.ours, term, count);
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
    adamw_update_ref(params.expected, m.expected, v.expected, grads, count, &options, step, team_of_one);
    RUN_LEVELS(adamw_update, params.ours, m.ours, v.ours, grads, count, &options, step);
}

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
        random_state = (uint64_t)(index + 1) << 32 | the.number;
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
        if (!only_level || strcmp(only_level, kernels_level_name(i)) == 0)
            printf("%s%s", i == 0 || only_level ? "" : ", ", kernels_level_name(i));
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
            only_level = argv[++i];
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            every = (size_t)atoi(argv[++i]);
        else if (*argv[i] != '-' && !only_operation)
            only_operation = argv[i];
        else
            return usage(argv[0]);
    }
    if (only_level && !kernels_of_level(only_level)) {
        fprintf(stderr, "%s: there is no level %s here\n", argv[0], only_level);
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
