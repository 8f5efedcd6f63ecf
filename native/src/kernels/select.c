/* The choice of this machine's kernels; the only CPU test. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/blas/blas.h"
#include "kernels/level.h"
#include "kernels/ref/ref.h"
#include "starpullm_checks.h"

enum { MAX_LEVELS = 4 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct level levels[MAX_LEVELS]; /* ref first, then from narrow to wide vectors */
static size_t num_levels;
static const struct level *chosen;
static const struct kernels *current; /* the chosen level's, or adapted */
static struct kernels adapted;        /* those with some of a BLAS or of kernels/platform.c */
static bool has_blas;
static struct kernels with_platform; /* ref with those of kernels/platform.c */
static struct caches caches;
static char refusal[512]; /* of what the environment asks for */

/* kernels/ref/fused.c's. */
#define KERNEL(name, parameters)
#define PRODUCT_KERNEL(name, parameters) void name##_ref_fused parameters;
#include "kernels/kernels.def"

static const struct level level_ref = {
    .name = "ref",
    .kernels =
        {
#define KERNEL(name, parameters) .name = name##_ref,
#include "kernels/kernels.def"
        },
    .fused =
        {
#define KERNEL(name, parameters) .name = name##_ref,
#define PRODUCT_KERNEL(name, parameters) .name = name##_ref_fused,
#include "kernels/kernels.def"
        },
};

/* Those that native/CMakeLists.txt builds. STARPULLM_BASELINE: the 16-byte level of every CPU of this architecture. */
#define LEVEL_(name) level_##name
#define LEVEL(name) LEVEL_(name)
extern const struct level LEVEL(STARPULLM_BASELINE), level_avx2, level_avx512;

/* What every CPU of this architecture has. */
#ifdef FP_FAST_FMAF
enum { BASELINE_HAS_FMA = true };
#else
enum { BASELINE_HAS_FMA = false };
#endif

static void add_level(const struct level *level, bool has_fma)
{
    struct level *added = &levels[num_levels++];
    *added = *level;
    if (!has_fma)
        memset(added->peak.fused, 0, sizeof added->peak.fused);
}

static void add_levels(void)
{
    add_level(&level_ref, false);
    add_level(&LEVEL(STARPULLM_BASELINE), BASELINE_HAS_FMA);
#if STARPULLM_HAS_AVX2
    const bool has_fma = __builtin_cpu_supports("fma");
    if (__builtin_cpu_supports("avx2")) {
        add_level(&level_avx2, has_fma);
        if (!has_fma)
            levels[2].fused = levels[1].fused;
    }
#endif
#if STARPULLM_HAS_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        add_level(&level_avx512, true);
#endif
    /* What ref is measured against: every CPU has the baseline's vectors. */
    levels[0].peak = levels[1].peak;
}

static void fit_caches(void)
{
    for (size_t i = 0; i < num_levels; i++)
        if (levels[i].fit_caches)
            levels[i].fit_caches(&caches);
}

static const struct level *find_level(const char *name)
{
    for (size_t i = 0; i < num_levels; i++)
        if (strcmp(levels[i].name, name) == 0)
            return &levels[i];
    return NULL;
}

static void refuse_level(const char *name)
{
    char names[64] = "";
    for (size_t i = 0, used = 0; i < num_levels; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", levels[i].name);
    snprintf(refusal, sizeof refusal, "STARPULLM_SIMD: found \"%.31s\", expected one of %s on this machine", name,
             names);
}

static void choose(void)
{
    add_levels();
    chosen = &levels[num_levels - 1];
    const char *name = getenv("STARPULLM_SIMD");
    if (!caches_read(&caches))
        snprintf(refusal, sizeof refusal,
                 "STARPULLM_L2_CACHE: found \"%s\", expected the size of the second-level cache, such as 1M",
                 getenv("STARPULLM_L2_CACHE"));
    if (name && *name)
        chosen = find_level(name);
    if (!chosen) {
        chosen = &levels[0];
        refuse_level(name);
    }
    current = &chosen->kernels;
    with_platform = level_ref.kernels;
    kernels_override_platform(&with_platform);
    fit_caches();
}

const struct caches *kernels_caches(void)
{
    pthread_once(&once, choose);
    return &caches;
}

void kernels_fit_caches(const struct caches *other)
{
    pthread_once(&once, choose);
    caches = *other;
    fit_caches();
}

const char *starpullm_kernels_refusal(void)
{
    pthread_once(&once, choose);
    return refusal;
}

const struct kernels *kernels(void)
{
    pthread_once(&once, choose);
    return current;
}

static struct kernels *adapt(void)
{
    if (current != &adapted)
        adapted = chosen->kernels;
    current = &adapted;
    return &adapted;
}

bool kernels_open_blas(char *sentence, size_t sentence_size, const char *library)
{
    pthread_once(&once, choose);
    if (!blas_open(sentence, sentence_size, library))
        return false;
    kernels_override_blas(adapt());
    has_blas = true;
    return true;
}

void kernels_use_fused(void)
{
    pthread_once(&once, choose);
    current = &chosen->fused;
}

void kernels_use_platform(void)
{
    pthread_once(&once, choose);
    kernels_override_platform(adapt());
}

void kernels_restore(void)
{
    pthread_once(&once, choose);
    if (has_blas)
        blas_close();
    has_blas = false;
    current = &chosen->kernels;
}

const char *starpullm_blas(void)
{
    pthread_once(&once, choose);
    return has_blas ? blas_description() : "";
}

const char *kernels_level(void)
{
    pthread_once(&once, choose);
    return chosen->name;
}

const char *starpullm_simd_level_name(size_t index)
{
    pthread_once(&once, choose);
    return index < num_levels ? levels[index].name : NULL;
}

const struct kernels *kernels_of_level(const char *name)
{
    pthread_once(&once, choose);
    if (strcmp(name, "platform") == 0)
        return &with_platform;
    char plain[32];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(name, "_"), name);
    const struct level *level = find_level(plain);
    if (!level || (strcmp(name, plain) != 0 && strcmp(name + strlen(plain), "_fused") != 0))
        return NULL;
    return strcmp(name, plain) == 0 ? &level->kernels : &level->fused;
}

const struct peak *kernels_peak(const char *level)
{
    pthread_once(&once, choose);
    return &find_level(level)->peak;
}
