/* The per-thread memory of simd/scratch.h.
 * Linked once, whatever the levels. */
#include "kernels/simd/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    GRAIN = 4096, /* bytes; a page, so that blocks of whole cache lines begin on one */
    HUGE_GRAIN = 2 << 20
};

struct block {
    float *values;
    size_t bytes;
};

static _Thread_local struct block block;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* only for its destructor */
static int no_key;

static void make_key(void)
{
    no_key = pthread_key_create(&key, free);
}

float *kernels_scratch(size_t count)
{
    const size_t wanted = count * sizeof(float), grain = wanted < HUGE_GRAIN ? GRAIN : HUGE_GRAIN;
    const size_t bytes = (wanted + grain - 1) / grain * grain;
    if (bytes <= block.bytes)
        return block.values;
    pthread_once(&once, make_key);
    float *values = no_key ? NULL : aligned_alloc(grain, bytes);
    if (!values || pthread_setspecific(key, values)) {
        free(values);
        return NULL;
    }
    if (grain == HUGE_GRAIN)
        (void)madvise(values, bytes, MADV_HUGEPAGE); /* fewer TLB misses; no harm if refused */
    free(block.values);
    block = (struct block){values, bytes};
    return values;
}
