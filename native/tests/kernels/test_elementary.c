/* The elementary functions against an oracle: long double, and MPFR where long double can't decide, or now and then.
 *
 *   test_elementary [EVERY]
 *
 * Of the 2^32 arguments of expf, tanhf, coshf and logf it tries one in EVERY; 1 proves them all. Vector functions are
 * compared with the scalar ones at each level that this machine has. powf is tried with AdamW's arguments, with pairs
 * that are drawn, and with special values. Without MPFR, what long double can't decide is counted alone. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_MPFR
#include <mpfr.h>
#endif

#include "elementary_levels.h"
#include "kernels/elementary/scalar.h"
#include "starpullm_checks.h"

#define LEVEL(level) vector_map elementary_##level;
#include "levels.def"
#undef LEVEL

static const struct {
    const char *name;
    vector_map *map;
} levels[] = {
#define LEVEL(level) {#level, elementary_##level},
#include "levels.def"
#undef LEVEL
};

enum { MAX_SHOWN = 5, BLOCK = 1 << 12, SECOND_OPINION = 65521 };

static atomic_ullong compared, wrong, undecided;

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 0x7fc00000 : bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void compare(const char *function, float found, float expected, float x, float y)
{
    atomic_fetch_add(&compared, 1);
    if (bits_of(found) != bits_of(expected) && atomic_fetch_add(&wrong, 1) < MAX_SHOWN)
        printf("%s of %a, %a: found %a, expected %a\n", function, (double)x, (double)y, (double)found,
               (double)expected);
}

/* ---- The oracle ---- */

#define UNARY(name)                                              \
    static float own_##name(float x, float y)                    \
    {                                                            \
        (void)y;                                                 \
        return cr_##name##f(x);                                  \
    }                                                            \
    static long double wide_##name(long double x, long double y) \
    {                                                            \
        (void)y;                                                 \
        return name##l(x);                                       \
    }
UNARY(exp)
UNARY(tanh)
UNARY(cosh)
UNARY(log)

enum { EXPF, TANHF, COSHF, LOGF, POWF };

static const struct {
    const char *name;
    float (*own)(float x, float y);
    long double (*wide)(long double x, long double y);
} functions[] = {[EXPF] = {"expf", own_exp, wide_exp},
                 [TANHF] = {"tanhf", own_tanh, wide_tanh},
                 [COSHF] = {"coshf", own_cosh, wide_cosh},
                 [LOGF] = {"logf", own_log, wide_log},
                 [POWF] = {"powf", cr_powf, powl}};

#ifdef HAVE_MPFR
static float exact(int function, float x, float y)
{
    mpfr_t a, b;
    mpfr_inits2(24, a, b, (mpfr_ptr)NULL);
    mpfr_set_emin(-148);
    mpfr_set_emax(128);
    mpfr_set_flt(a, x, MPFR_RNDN);
    mpfr_set_flt(b, y, MPFR_RNDN);
    int inexact = 0;
    switch (function) {
    case EXPF:
        inexact = mpfr_exp(a, a, MPFR_RNDN);
        break;
    case TANHF:
        inexact = mpfr_tanh(a, a, MPFR_RNDN);
        break;
    case COSHF:
        inexact = mpfr_cosh(a, a, MPFR_RNDN);
        break;
    case LOGF:
        inexact = mpfr_log(a, a, MPFR_RNDN);
        break;
    default:
        inexact = mpfr_pow(a, a, b, MPFR_RNDN);
    }
    mpfr_subnormalize(a, inexact, MPFR_RNDN);
    const float result = mpfr_get_flt(a, MPFR_RNDN);
    mpfr_clears(a, b, (mpfr_ptr)NULL);
    return result;
}
#endif

/* Of the calling thread. */
static void free_caches(void)
{
#ifdef HAVE_MPFR
    mpfr_free_cache();
#endif
}

static void try(int function, float x, float y)
{
    /* A long double's functions are right to 2^-60, whatever the platform. */
    const long double value = functions[function].wide((long double)x, (long double)y), error = value * 0x1p-60L;
    const float expected = (float)value, found = functions[function].own(x, y);
    const bool decided =
        isnan(value) || isinf(value) ||
        (bits_of((float)(value - error)) == bits_of(expected) && bits_of((float)(value + error)) == bits_of(expected));
    if (decided)
        compare(functions[function].name, found, expected, x, y);
    else
        atomic_fetch_add(&undecided, 1);
#ifdef HAVE_MPFR
    if (!decided || bits_of(x) % SECOND_OPINION == 0)
        compare(functions[function].name, found, exact(function, x, y), x, y);
#endif
}

/* ---- One argument ---- */

static bool has_level(const char *name)
{
    for (size_t i = 0; starpullm_simd_level_name(i); i++)
        if (strcmp(starpullm_simd_level_name(i), name) == 0)
            return true;
    return false;
}

static void try_levels(const float *x)
{
    static const struct {
        enum vector_function function;
        int scalar;
    } pairs[] = {{VECTOR_EXPF, EXPF}, {VECTOR_TANHF, TANHF}, {VECTOR_COSHF, COSHF}, {VECTOR_TANHF_BESIDE_COSHF, TANHF}};
    static _Thread_local float found[BLOCK];
    for (size_t level = 0; level < sizeof levels / sizeof *levels; level++)
        for (size_t p = 0; has_level(levels[level].name) && p < sizeof pairs / sizeof *pairs; p++) {
            levels[level].map(pairs[p].function, found, x, BLOCK);
            for (size_t i = 0; i < BLOCK; i++)
                compare(levels[level].name, found[i], functions[pairs[p].scalar].own(x[i], 0.0f), x[i], 0.0f);
        }
}

static uint64_t every = 4099;
static atomic_ullong next_part;

static void *try_parts(void *unused)
{
    (void)unused;
    static _Thread_local float x[BLOCK];
    uint64_t begin;
    while ((begin = atomic_fetch_add(&next_part, BLOCK) * every) < UINT64_C(1) << 32) {
        for (uint64_t i = 0; i < BLOCK; i++) /* the last block ends with arguments of the first */
            x[i] = float_of((uint32_t)(begin + i * every));
        for (int function = EXPF; function <= LOGF; function++)
            for (size_t i = 0; i < BLOCK; i++)
                try(function, x[i], 0.0f);
        try_levels(x);
    }
    free_caches();
    return NULL;
}

/* ---- powf ---- */

enum { MAX_STEP = 1000000 };

/* AdamW's: each beta of two decimals, of three from 0.9 on, and what comes nearer to 1, at each step up to 10^6. */
static void try_betas(uint64_t step_every)
{
    const float near_one[] = {0.9995f, 0.9999f, 0.99995f, 0.99999f, 0.999995f, 0.999999f, 0.95625f, 0.985625f};
    const size_t num_near = sizeof near_one / sizeof *near_one;
    for (size_t i = 0; i < 99 + 100 + num_near; i++) {
        const float beta =
            i < 99    ? strtof((char[]){'0', '.', (char)('0' + (i + 1) / 10), (char)('0' + (i + 1) % 10), 0}, NULL)
            : i < 199 ? (float)((double)(900 + (i - 99)) / 1000.0)
                      : near_one[i - 199];
        for (uint64_t step = 1; step <= MAX_STEP; step += step < 4096 && step_every > 1 ? 7 : step_every)
            try(POWF, beta, (float)step);
    }
}

static uint64_t drawn = 1;

static uint32_t draw(void)
{
    drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(drawn >> 32);
}

/* All arguments at which fast.h alone would be wrong; of those that are symmetric the positive one. */
static void try_hard(void)
{
    const float of_tanh[] = {0x1.78c0cap-10f, 0x1.86fbc4p-10f, 0x1.f93eaep-10f, 0x1.2d5c5cp-6f, 0x1.a83722p-6f};
    const float of_log[] = {0x1.bacb4ap+25f, 0x1.b121a6p+76f, 0x1.6351d8p+95f};
    for (size_t i = 0; i < sizeof of_tanh / sizeof *of_tanh; i++) {
        try(TANHF, of_tanh[i], 0.0f);
        try(TANHF, -of_tanh[i], 0.0f);
    }
    for (size_t i = 0; i < sizeof of_log / sizeof *of_log; i++)
        try(LOGF, of_log[i], 0.0f);
    try(COSHF, 0x1.c12a5p-5f, 0.0f);
    try(EXPF, -0x1.65cf3p+6f, 0.0f);
}

/* Whole powers that 64 bits hold, ties among them: what the conversion of an integer rounds. */
static void try_whole_powers(void)
{
    for (uint64_t x = 1; x < 8192; x++)
        for (uint64_t n = 1, power = x; n < 5; n++, power *= x)
            compare("powf", cr_powf((float)x, (float)n), (float)power, (float)x, (float)n);
}

/* Pairs whose power is neither 0 nor infinity for certain, and powers of small numbers, some of them ties. */
static void try_pairs(uint64_t count)
{
    const float exponents[] = {2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 0.5f, 1.5f, 2.5f, 0.25f, -1.0f, -2.0f, -0.5f};
    for (uint64_t i = 0; i < count; i++) {
        const float x = fabsf(float_of(draw())), range = 110.0f / logf(x);
        try(POWF, x, range * (float)((double)(int32_t)draw() * 0x1p-31));
        try(POWF, (float)(draw() % 8192), exponents[draw() % (sizeof exponents / sizeof *exponents)]);
    }
}

static void try_special_values(void)
{
    const float some[] = {0.0f,  1.0f,    0.5f,           2.0f,       3.0f,     1.5f,    INFINITY,
                          NAN,   FLT_MIN, FLT_MAX,        0x1p-149f,  0x1p-24f, 0x1p24f, 0x1.8p24f,
                          89.0f, 104.0f,  0x1.fffffep23f, 8388607.5f, 1e30f,    1e-30f};
    const size_t count = sizeof some / sizeof *some;
    for (size_t i = 0; i < 2 * count; i++) {
        const float x = i < count ? some[i] : -some[i - count];
        for (int function = EXPF; function <= LOGF; function++)
            try(function, x, 0.0f);
        for (size_t j = 0; j < 2 * count; j++)
            try(POWF, x, j < count ? some[j] : -some[j - count]);
    }
}

int main(int argc, char **argv)
{
    enum { MAX_THREADS = 256 };
    if (argc > 1)
        every = strtoull(argv[1], NULL, 10);
    if (!every) {
        fprintf(stderr, "EVERY: found \"%s\", expected a positive number\n", argv[1]);
        return 2;
    }
    starpullm_simd_level_name(0); /* chooses the levels, before threads ask */
    pthread_t threads[MAX_THREADS];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int num_threads = cores < 1 ? 1 : cores < MAX_THREADS ? (int)cores : MAX_THREADS;
    for (int i = 0; i < num_threads; i++)
        if (pthread_create(&threads[i], NULL, try_parts, NULL) != 0)
            return 2;
    for (int i = 0; i < num_threads; i++)
        pthread_join(threads[i], NULL);
    printf("expf, tanhf, coshf, logf, one argument in %" PRIu64 ": %llu compared\n", every, compared);
    try_betas(every);
    try_pairs(every > 1 ? 100000 : 50000000);
    try_hard();
    try_whole_powers();
    try_special_values();
    free_caches();
    printf("with powf: %llu compared, %llu wrong, %llu for MPFR\n", compared, wrong, undecided);
    return wrong != 0;
}
