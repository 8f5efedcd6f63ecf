/* A SIMD level: one implementation of every kernel. */
#pragma once

#include "kernels/caches.h"
#include "kernels/kernels.h"
#include "kernels/libm.h"
#include "kernels/peak.h"

struct level {
    const char *name;
    struct kernels kernels;
    libm_map *vector_libm[NUM_LIBM_FUNCTIONS]; /* NULL: none */
    struct peak peak;
    void (*fit_caches)(const struct caches *caches); /* NULL: it has no blocks */
};
