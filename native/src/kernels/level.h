/* A SIMD level: one implementation of every kernel. */
#pragma once

#include "kernels/kernels.h"

/* ---- What a core can do at most: multiplications and additions that wait for nothing and need no memory. It is the
 * limit that the matmuls are measured against. ---- */

/* Rounds of multiplications and additions which never leave their registers or the first-level cache; returns what the
 * compiler can't know without computing them. */
typedef float peak_function(size_t rounds, float factor, float term);

struct peak_loop {
    peak_function *run;
    double operations; /* of one round */
};

enum { PEAK_CHAINS_ALONE, PEAK_MICROKERNEL, NUM_STRICT_PEAKS };

/* A level's loops. fused.run is NULL at level ref, and on a processor without fused multiply-add. */
struct peak {
    /* The faster one is the limit: which it is depends on the processor. */
    struct peak_loop strict[NUM_STRICT_PEAKS];
    struct peak_loop fused;
};

struct level {
    const char *name;
    struct kernels kernels;
    struct peak peak;
    void (*fit_caches)(const struct caches *caches); /* NULL: it has no blocks */
};

/* Replaces the kernels that have an elementary function by those with the platform's (kernels/platform.c). */
void kernels_override_platform(struct kernels *kernels);

/* The loops of the level in use (kernels/select.c). */
const struct peak *kernels_peak(void);

/* Runs one of the level's loops in this thread for so many seconds; returns operations per second, 0 if there is no
 * such loop. */
double peak_measure(bool fused, double seconds);
