/* The plain literal reading of docs/numerics.md: one function per operation, the simplest loops that say it.
 * test_kernels.c and bench_kernels.c hold the library's kernels against it, for bits and for speed. */
#ifndef STARPULLM_TESTS_PLAIN_H
#define STARPULLM_TESTS_PLAIN_H

#include "kernels/kernels.h"

extern const struct kernels plain;

#endif
