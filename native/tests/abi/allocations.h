/* Allocations of the library, seen through a C library's functions that the program replaces: they are counted, one of
 * them can be made to fail, and those that live are known. Files, memory maps and threads count as well. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Let the n-th allocation of the library from now on fail, once; 0: none. */
void allocations_fail(long n);

/* The n of the last call of allocations_fail(). */
long allocations_failing(void);

bool allocations_have_failed(void);

/* The function that made the allocation which has failed, or the place in the library. */
const char *allocations_failed_in(void);

/* How many allocations of the library have not been freed, by whomever. */
size_t allocations_live(void);
