/* Holds the vector versions of libm's functions bit for bit against the platform's, at random inputs and at those where
 * a branch or a range ends; and kernels() at the inputs where libms are known to differ. ctest runs it, once more with
 * libm's functions without FMA. Its argument is the number of random inputs.
 *
 * `starpullm doctor --prove-libm` compares all inputs. A function that isn't known to have this libm's bits is not
 * compared: then kernels have to call libm's, which is shown for the softmax. */
#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/libm.h"

static int failures;

#define CHECK(condition, ...)             \
    do {                                  \
        if (!(condition)) {               \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr);          \
            failures++;                   \
        }                                 \
    } while (0)

static float with_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static bool same(float x, float y)
{
    return bits_of(x) == bits_of(y) || (isnan(x) && isnan(y));
}

static uint64_t random_bits(void)
{ /* splitmix64 */
    static uint64_t state = 1;
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The two x at which glibc's expf depends on whether multiply and add are fused. */
static const uint32_t fma_matters[] = {0x4202422f, 0xc27c65d9};

/* ---- Vector versions against the platform's ---- */

enum { BLOCK = 1 << 12 };

static float in[BLOCK];

static float (*const platform[NUM_LIBM_FUNCTIONS])(float) = {
    [LIBM_EXPF] = expf, [LIBM_TANHF] = tanhf, [LIBM_COSHF] = coshf};

static void map_platform(float *out, enum libm_function function, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = platform[function](x[i]);
}

/* The first `count` inputs, at all levels. */
static void compare(enum libm_function function, size_t count)
{
    static float expected[BLOCK], found[BLOCK];
    map_platform(expected, function, in, count);
    const char *level;
    for (size_t l = 0; (level = kernels_level_name(l)); l++) {
        libm_map *vector = libm_of_level(level, function);
        if (!vector)
            continue;
        vector(found, in, count);
        for (size_t i = 0; i < count; i++)
            CHECK(same(found[i], expected[i]), "%s of %s at 0x%08x (%a): found %a, expected %a", libm_name(function),
                  level, bits_of(in[i]), (double)in[i], (double)found[i], (double)expected[i]);
    }
}

/* Over all bit patterns, and over those of ordinary values: half of all floats are below 2^-63 or above 2^65. */
static void compare_random(enum libm_function function, size_t count)
{
    for (size_t done = 0; done < count && failures == 0; done += BLOCK) {
        for (size_t i = 0; i < BLOCK; i++) {
            const uint64_t bits = random_bits();
            const uint32_t ordinary = (uint32_t)(127 - 12 + (bits >> 32) % 20) << 23;
            in[i] = with_bits(i % 2 ? (uint32_t)bits : ((uint32_t)bits & 0x807fffff) | ordinary);
        }
        compare(function, BLOCK);
    }
}

/* Both ends of every binade of both signs (so zeros, infinities and NaNs as well), and around where the functions or
 * their vector versions change their way. */
static void compare_boundaries(enum libm_function function)
{
    enum { AROUND = 64 };
    for (uint32_t top = 0; top < 512; top++) {
        for (uint32_t i = 0; i < 2 * AROUND; i++)
            in[i] = with_bits((top << 23) + i - AROUND);
        compare(function, 2 * AROUND);
    }
    for (uint32_t i = 0; i < 4; i++)
        in[i] = with_bits(fma_matters[i / 2] ^ i % 2 << 31);
    compare(function, 4);
    const double ln2 = 0.693147180559945309;
    const double ends[] = {0.5 * ln2, 0.75 * ln2, ln2,  1.25 * ln2, 1.5 * ln2, 1.75 * ln2, 9.0,     10.0,    20.0, 22.0,
                           27 * ln2,  56 * ln2,   88.0, 128 * ln2,  89.0,      129 * ln2,  103.278, 103.972, 104.0};
    for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            for (uint32_t i = 0; i < BLOCK; i++)
                in[i] = with_bits((sign << 31 | bits_of((float)ends[e])) + i - BLOCK / 2);
            compare(function, BLOCK);
        }
}

/* Fewer than a vector, and what is left after some. */
static void compare_lengths(enum libm_function function)
{
    for (size_t count = 0; count <= 70; count++) {
        for (size_t i = 0; i < count; i++)
            in[i] = (float)(int64_t)random_bits() * 0x1p-61f;
        compare(function, count);
    }
}

/* ---- The comparison itself ---- */

static void negate_nans(float *out, const float *x, size_t count)
{
    map_platform(out, LIBM_EXPF, x, count);
    for (size_t i = 0; i < count; i++)
        if (isnan(out[i]))
            out[i] = with_bits(bits_of(out[i]) ^ 0x80000001);
}

static void wrong_twice(float *out, const float *x, size_t count)
{
    map_platform(out, LIBM_EXPF, x, count);
    for (size_t i = 0; i < count; i++)
        if (bits_of(x[i]) == 0x3f800123 || bits_of(x[i]) == 0x3f812345)
            out[i] = with_bits(bits_of(out[i]) + 1);
}

static void right(float *out, const float *x, size_t count)
{
    map_platform(out, LIBM_COSHF, x, count);
}

static void check_comparison(void)
{
    const uint64_t begin = 0x3f800000, end = 0x3f820000;
    uint32_t first = 1;
    uint64_t differences = libm_count_differences(&first, LIBM_EXPF, negate_nans, 0x7f7ff000, 0x7f810000);
    CHECK(differences == 0 && first == 1, "NaNs of other payloads: found %d differences, expected 0", (int)differences);
    differences = libm_count_differences(&first, LIBM_EXPF, wrong_twice, begin, end);
    CHECK(differences == 2 && first == 0x3f800123, "found %d differences, first 0x%08x, expected 2, first 0x3f800123",
          (int)differences, first);
    differences = libm_count_differences(&first, LIBM_EXPF, wrong_twice, 0x3f800124, 0x3f812345);
    CHECK(differences == 0, "between the two: found %d differences, expected 0", (int)differences);
    differences = libm_count_differences(&first, LIBM_EXPF, wrong_twice, 0x3f812345, 0x3f812346);
    CHECK(differences == 1 && first == 0x3f812345, "the second alone: found %d differences, expected 1",
          (int)differences);
    fesetround(FE_UPWARD); /* what the calling thread has set doesn't matter, and stays */
    differences = libm_count_differences(&first, LIBM_COSHF, right, begin, end);
    CHECK(differences == 0 && fegetround() == FE_UPWARD, "upward: found %d differences, rounding %d", (int)differences,
          fegetround());
    fesetround(FE_TONEAREST);
}

/* ---- Kernels ---- */

/* Where the sum is 1 a softmax is this libm's own exponentials. */
static void check_softmax(void)
{
    enum { V = 37 };
    const float x = with_bits(fma_matters[1]);
    float logits[V], found[V];
    for (size_t v = 0; v < V; v++)
        logits[v] = v == 5 ? 0.0f : x;
    const char *level;
    for (size_t l = 0; (level = kernels_level_name(l)); l++) {
        kernels_of_level(level)->softmax_forward(found, logits, 1, V, V, team_of_one);
        for (size_t v = 0; v < V; v++)
            CHECK(same(found[v], expf(logits[v])), "softmax_forward of %s at %a: found %a, expected %a", level,
                  (double)logits[v], (double)found[v], (double)expf(logits[v]));
    }
}

int main(int argc, char **argv)
{
    const size_t inputs = argc > 1 ? (size_t)atol(argv[1]) : (size_t)1 << 24;
    check_comparison();
    check_softmax();
    for (size_t f = 0; f < NUM_LIBM_FUNCTIONS; f++) {
        const enum libm_function function = (enum libm_function)f;
        if (libm_is_proven(function)) {
            compare_lengths(function);
            compare_boundaries(function);
            compare_random(function, inputs);
        }
        printf("%s: fingerprint %016llx, %s\n", libm_name(f), (unsigned long long)libm_fingerprint(function),
               libm_is_proven(function) ? "compared" : "unknown: kernels call libm's");
    }
    CHECK(libm_name(NUM_LIBM_FUNCTIONS) == NULL, "a function past the last: expected none");
    CHECK(libm_of_level("ref", LIBM_EXPF) == NULL, "level ref: expected no vector version");
    CHECK(libm_of_level("nope", LIBM_EXPF) == NULL, "level nope: expected none");
    return failures != 0;
}
