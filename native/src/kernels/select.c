/* The choice of this machine's kernels: starts from the portable ones and overrides by CPU; the only CPU test.
 * codelets/ calls kernels(), api.c and runtime.c the others. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/blas/blas.h"
#include "kernels/ref/ref.h"
#include "kernels/simd/simd.h"

enum { MAX_LEVELS = 4 };

struct level {
    const char *name;
    struct kernels kernels;
    libm_map *(*vector_libm)(enum libm_function function); /* NULL: none */
    struct peak peak;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct level levels[MAX_LEVELS]; /* from the portable one to the best */
static size_t num_levels;
static const struct level *chosen;
static const struct kernels *current; /* the chosen level's, or with_blas */
static struct kernels with_blas;
static char requested[32]; /* by STARPULLM_SIMD; "" if it isn't set */

static const struct kernels portable = {
    .encoder_forward = encoder_forward_ref,
    .encoder_backward = encoder_backward_ref,
    .layernorm_forward = layernorm_forward_ref,
    .layernorm_backward_input = layernorm_backward_input_ref,
    .layernorm_backward_weight = layernorm_backward_weight_ref,
    .matmul_forward = matmul_forward_ref,
    .matmul_backward_input = matmul_backward_input_ref,
    .matmul_backward_weight = matmul_backward_weight_ref,
    .attention_forward = attention_forward_ref,
    .attention_backward = attention_backward_ref,
    .gelu_forward = gelu_forward_ref,
    .gelu_backward = gelu_backward_ref,
    .residual_forward = residual_forward_ref,
    .residual_backward = residual_backward_ref,
    .softmax_forward = softmax_forward_ref,
    .crossentropy_forward = crossentropy_forward_ref,
    .mean_loss = mean_loss_ref,
    .crossentropy_softmax_backward = crossentropy_softmax_backward_ref,
    .gradient_add = gradient_add_ref,
    .adamw_update = adamw_update_ref,
};

static void add_level(const char *name, void (*override)(struct kernels *kernels),
                      libm_map *(*vector_libm)(enum libm_function function), const struct peak *peak)
{
    struct level *level = &levels[num_levels++];
    *level = (struct level){name, portable, vector_libm, *peak};
    if (override)
        override(&level->kernels);
}

static void choose_level(void)
{
    add_level("ref", NULL, NULL, &peak_ref);
#if STARPULLM_HAS_NEON
    add_level("neon", kernels_override_neon, vector_libm_neon, &peak_neon);
#endif
#if STARPULLM_HAS_AVX2
    if (__builtin_cpu_supports("avx2"))
        add_level("avx2", kernels_override_avx2, vector_libm_avx2, &peak_avx2);
#endif
#if STARPULLM_HAS_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        add_level("avx512", kernels_override_avx512, vector_libm_avx512, &peak_avx512);
#endif
#if STARPULLM_HAS_FMA
    if (!__builtin_cpu_supports("fma"))
        for (size_t i = 0; i < num_levels; i++)
            levels[i].peak.fused = NULL;
#endif
    chosen = &levels[num_levels - 1];
    const char *name = getenv("STARPULLM_SIMD");
    if (!name || !*name)
        return;
    snprintf(requested, sizeof requested, "%s", name);
    const struct level *found = NULL;
    for (size_t i = 0; i < num_levels; i++)
        if (strcmp(levels[i].name, requested) == 0)
            found = &levels[i];
    chosen = found ? found : &levels[0];
}

static void choose(void)
{
    choose_level();
    current = &chosen->kernels;
}

const char *kernels_missing_level(void)
{
    pthread_once(&once, choose);
    return *requested && strcmp(requested, chosen->name) != 0 ? requested : NULL;
}

const struct kernels *kernels(void)
{
    pthread_once(&once, choose);
    return current;
}

bool kernels_open_blas(char *sentence, size_t sentence_size, const char *library)
{
    pthread_once(&once, choose);
    if (!blas_open(sentence, sentence_size, library))
        return false;
    with_blas = chosen->kernels;
    kernels_override_blas(&with_blas);
    blas_make_sequential();
    current = &with_blas;
    return true;
}

void kernels_close_blas(void)
{
    pthread_once(&once, choose);
    if (current != &with_blas)
        return;
    blas_restore_threads();
    current = &chosen->kernels;
}

const char *kernels_blas(void)
{
    pthread_once(&once, choose);
    return current == &with_blas ? blas_description() : "";
}

const char *kernels_level(void)
{
    pthread_once(&once, choose);
    return chosen->name;
}

const char *kernels_level_name(size_t index)
{
    pthread_once(&once, choose);
    return index < num_levels ? levels[index].name : NULL;
}

static const struct level *find_level(const char *name)
{
    pthread_once(&once, choose);
    for (size_t i = 0; i < num_levels; i++)
        if (strcmp(levels[i].name, name) == 0)
            return &levels[i];
    return NULL;
}

const struct kernels *kernels_of_level(const char *name)
{
    const struct level *level = find_level(name);
    return level ? &level->kernels : NULL;
}

libm_map *libm_of_level(const char *name, enum libm_function function)
{
    const struct level *level = find_level(name);
    return level && level->vector_libm ? level->vector_libm(function) : NULL;
}

const struct peak *kernels_peak(void)
{
    pthread_once(&once, choose);
    return &chosen->peak;
}
