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

enum { PEAK_CHAINS_ALONE, PEAK_MICROKERNEL, NUM_PEAKS };

/* A level's loops, of which the faster one is the limit: which it is depends on the processor. Fused ones have no `run`
 * at a level that has no instruction for them. */
struct peak {
    struct peak_loop strict[NUM_PEAKS], fused[NUM_PEAKS];
};

struct level {
    const char *name;
    struct kernels kernels, fused;
    struct peak peak;
    void (*fit_caches)(const struct caches *caches); /* NULL: it has no blocks */
};

/* Replaces the kernels that have an elementary function by those with the platform's (kernels/platform.c). */
void kernels_override_platform(struct kernels *kernels);

/* The loops of a level that this machine has (kernels/select.c). */
const struct peak *kernels_peak(const char *level);

/* Runs one of the level's loops in this thread for so many seconds; returns operations per second, 0 if there is no
 * such loop. */
double peak_measure(bool fused, double seconds);
