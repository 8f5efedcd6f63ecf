/* A case's sizes and values follow from its seed. Its buffers have guards; what a team computes is put together. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Random numbers ---- */

static uint64_t random_state;

void seed_random(uint64_t seed)
{
    random_state = seed;
}

static uint64_t random_bits(void)
{ /* splitmix64 */
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

size_t random_below(size_t limit)
{
    return (size_t)((random_bits() >> 11) % limit);
}

float with_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

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
size_t random_size(void)
{
    static const size_t sizes[] = {1,   2,   3,   4,   5,   7,   8,   9,   11,  13,  15,  16,  17,  19,  20,  21,
                                   23,  24,  25,  31,  32,  33,  37,  40,  47,  48,  49,  51,  52,  53,  61,  63,
                                   64,  65,  71,  95,  96,  97,  127, 128, 129, 131, 159, 160, 161, 191, 192, 193,
                                   223, 255, 256, 257, 263, 288, 383, 384, 385, 511, 512, 513, 768};
    return sizes[random_below(sizeof sizes / sizeof *sizes)];
}

/* Above the blocks that kernels cut sums and outputs into. */
size_t random_large_size(void)
{
    static const size_t sizes[] = {1023, 1024, 1025, 1100, 1537, 2047, 2048, 2049, 2304, 3072, 3073};
    return sizes[random_below(sizeof sizes / sizeof *sizes)];
}
/* ---- A case's buffers ---- */

static const uint32_t guard_bits = 0xdeadbeef;
static const uint32_t garbage_bits = 0x7fbadbad; /* a NaN: reading it shows */

struct the_case the;

static void failed(const char *what)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s\n  case %zu (%s, %d threads, blocks for caches of %zu and %zu bytes%s, %s values): %s\n",
            the.operation, what, the.number, the.level ? the.level : "no level yet", the.team.count, the.caches.l1,
            the.caches.l2, the.caches.l3_is_slow ? ", prefetched" : "", flavour_names[the.flavour], the.shape);
    exit(1);
}

void random_sizes(size_t limit, size_t count, size_t *const sizes[])
{
    const size_t large = the.number % 8 == 7 ? random_below(count) : count;
    size_t product;
    do {
        product = 1;
        for (size_t i = 0; i < count; i++)
            product *= *sizes[i] = i == large ? random_large_size() : random_size();
    } while (product > limit);
}
/* Mostly up to 8, sometimes more than there is work for. */
int random_threads(void)
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

float *input(const char *name, size_t count)
{
    struct buffer *b = new_buffer(name, count, false);
    fill(floats(b->ours) + b->offset, count, some_flavour());
    same_start(b);
    return floats(b->ours) + b->offset;
}

void last_changed(void)
{
    same_start(&the.buffers[the.num_buffers - 1]);
}

const int32_t *indices(const char *name, size_t count, size_t limit)
{
    struct buffer *b = new_buffer(name, count, false);
    int32_t *x = (int32_t *)(void *)b->ours + b->offset;
    for (size_t i = 0; i < count; i++)
        x[i] = (int32_t)random_below(limit);
    same_start(b);
    return x;
}

struct pair output(const char *name, size_t count, enum sum_start start)
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

struct pair overwritten(const char *name, size_t count)
{
    return output(name, count, SUM_FROM_ZERO);
}

enum sum_start random_start(void)
{
    return random_below(2) ? SUM_CONTINUES : SUM_FROM_ZERO;
}
const char *start_name(enum sum_start start)
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

void free_buffers(void)
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

bool next_thread(void)
{
    for (size_t i = 0; the.team.index >= 0 && i < the.num_buffers; i++)
        if (the.buffers[i].output)
            collect_buffer(&the.buffers[i]);
    return ++the.team.index < the.team.count;
}

bool next_level(void)
{
    for (size_t i = 0; the.level && i < the.num_buffers; i++)
        check_buffer(&the.buffers[i]);
    do
        the.level = kernels_level_name(the.next++);
    while (the.level && the.only_level && strcmp(the.level, the.only_level) != 0);
    if (!the.level)
        return false;
    the.kernels = kernels_of_level(the.level);
    the.team.index = -1;
    for (size_t i = 0; i < the.num_buffers; i++)
        memcpy(the.buffers[i].computed, the.buffers[i].start, buffer_size(&the.buffers[i]));
    return true;
}

float garbage(void)
{
    return with_bits(garbage_bits);
}

float *at(struct pair output)
{
    return the.level ? output.ours : output.expected;
}
