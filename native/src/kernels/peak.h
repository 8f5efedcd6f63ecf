/* What a core can do at most: multiplications and additions that wait for nothing and need no memory. It is the limit
 * that the matmuls are measured against. */
#ifndef STARPULLM_PEAK_H
#define STARPULLM_PEAK_H

#include <stdbool.h>
#include <stddef.h>

/* Rounds of x = x * factor + term for many independent x, which never leave their registers; returns their sum. */
typedef float peak_loop(size_t rounds, float factor, float term);

/* A level's loops. fused is NULL at level ref, and on a processor without fused multiply-add. */
struct peak {
    peak_loop *strict, *fused;
    double operations; /* of one round: multiplications and additions */
};

/* The loops of the level in use (kernels/select.c). */
const struct peak *kernels_peak(void);

/* Runs one of the level's loops in this thread for so many seconds; returns operations per second, 0 if there is no
 * such loop. */
double peak_measure(bool fused, double seconds);

#endif
