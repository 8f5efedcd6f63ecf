/* What measurements need: a clock, and the median of what it gave. */
#pragma once

#include <stddef.h>

/* Seconds since some moment. */
double now(void);

/* For qsort: ascending doubles. */
int compare_doubles(const void *x, const void *y);

/* Sorts x, which has at least one value. */
double median(double *x, size_t count);
