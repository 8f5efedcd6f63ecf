/* Memory filled with one signalling NaN, and what is left of it. Called by instrument.c. */
#ifndef STARPULLM_POISON_H
#define STARPULLM_POISON_H

#include <stddef.h>
#include <stdint.h>

/* bytes is a multiple of a binary32 number's. */
void poison_fill(void *memory, size_t bytes);

/* Elements that hold the pattern as it was filled in, or a quiet NaN with its payload, which is what every operation
 * makes of it; of both the first's offset in bytes. */
struct poison_found {
    int64_t left, first_left;
    int64_t spread, first_spread;
};
struct poison_found poison_find(const void *memory, size_t bytes);

#endif
