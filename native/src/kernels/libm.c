/* The platform's libm, called and recognised; and the comparison that proves that a vector function has its bits. */
#include "kernels/libm.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "kernels/arithmetic.h"
#include "starpullm_checks.h"

#define MAP(function)                                                     \
    static void map_##function(float *out, const float *in, size_t count) \
    {                                                                     \
        for (size_t i = 0; i < count; i++)                                \
            out[i] = function(in[i]);                                     \
    }
MAP(expf)
MAP(tanhf)
MAP(coshf)

static const struct {
    const char *name;
    libm_map *platform;
} functions[NUM_LIBM_FUNCTIONS] = {
    [LIBM_EXPF] = {"expf", map_expf}, [LIBM_TANHF] = {"tanhf", map_tanhf}, [LIBM_COSHF] = {"coshf", map_coshf}};

/* The implementations that `starpullm doctor --prove-libm` found to have the vector functions' bits for all 2^32
 * inputs, at the levels sse2, avx2 and avx512. */
static const struct {
    enum libm_function function;
    uint64_t fingerprint;
} proven[] = {
    /* glibc 2.36 on an x86-64 with FMA */
    {LIBM_EXPF, UINT64_C(0xff5baa630ca1d45d)},
    {LIBM_TANHF, UINT64_C(0x3a7d0b92e8701cae)},
    {LIBM_COSHF, UINT64_C(0x541d94b2d931b12c)},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t fingerprints[NUM_LIBM_FUNCTIONS];
static bool is_proven[NUM_LIBM_FUNCTIONS];

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 0x7fc00000 : bits;
}

enum { SAMPLE = 65536, STRIDE = 65521, BLOCK = 1024 };

/* Where implementations of the same formula differ: the two x at which glibc's expf depends on whether multiply and add
 * are fused, and 14 whose e^x isn't the float nearest to the exact value. */
static const uint32_t telling[16] = {0x4202422f, 0xc27c65d9, 0xbbf9e490, 0xc16f473e, 0x41da72c2, 0xc1daa060,
                                     0xbcd94636, 0xc252f39e, 0x4095ffd6, 0xbf2da354, 0x3f179824, 0xc2a552da,
                                     0xbecb0462, 0xbecfa340, 0xbb8fa1b8, 0x409694e4};

/* FNV-1a, 32 bits at a time. */
static uint64_t hash(uint64_t state, libm_map *function, const float *in, size_t count)
{
    float out[BLOCK];
    function(out, in, count);
    for (size_t i = 0; i < count; i++)
        state = (state ^ bits_of(out[i])) * UINT64_C(0x100000001b3);
    return state;
}

static void take_fingerprints(void)
{
    /* The thread that calls first may have another floating-point environment than the contract's. */
    const fenv_t callers = arithmetic_enter();
    float in[BLOCK];
    for (size_t f = 0; f < NUM_LIBM_FUNCTIONS; f++) {
        uint64_t state = UINT64_C(0xcbf29ce484222325);
        for (uint32_t i = 0; i < SAMPLE; i += BLOCK) {
            for (uint32_t j = 0; j < BLOCK; j++) {
                const uint32_t bits = (i + j) * STRIDE;
                memcpy(&in[j], &bits, sizeof bits);
            }
            state = hash(state, functions[f].platform, in, BLOCK);
        }
        memcpy(in, telling, sizeof telling);
        fingerprints[f] = hash(state, functions[f].platform, in, sizeof telling / sizeof *telling);
    }
    fesetenv(&callers);
    for (size_t i = 0; i < sizeof proven / sizeof *proven; i++)
        if (proven[i].fingerprint == fingerprints[proven[i].function])
            is_proven[proven[i].function] = true;
}

uint64_t libm_fingerprint(enum libm_function function)
{
    pthread_once(&once, take_fingerprints);
    return fingerprints[function];
}

bool libm_is_proven(enum libm_function function)
{
    pthread_once(&once, take_fingerprints);
    return is_proven[function];
}

uint64_t libm_count_differences(uint32_t *first, enum libm_function function, libm_map *vector, uint64_t begin,
                                uint64_t end)
{
    const fenv_t callers = arithmetic_enter();
    uint64_t differences = 0;
    float in[BLOCK], expected[BLOCK], found[BLOCK];
    for (uint64_t i = begin; i < end; i += BLOCK) {
        const size_t block = end - i < BLOCK ? (size_t)(end - i) : BLOCK;
        for (size_t j = 0; j < block; j++) {
            const uint32_t bits = (uint32_t)(i + j);
            memcpy(&in[j], &bits, sizeof bits);
        }
        functions[function].platform(expected, in, block);
        vector(found, in, block);
        for (size_t j = 0; j < block; j++)
            if (bits_of(found[j]) != bits_of(expected[j]) && differences++ == 0)
                *first = (uint32_t)(i + j);
    }
    fesetenv(&callers);
    return differences;
}
