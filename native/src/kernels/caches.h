/* This machine's caches, from which simd/blocking.c derives its blocks. No bit depends on them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct caches {
    size_t l1;       /* bytes for data */
    size_t l2;       /* bytes of one hardware thread's share */
    bool l3_is_slow; /* a prefetch instruction costs less than the wait for a line that has left the second level */
};

/* STARPULLM_CACHES in the environment: two numbers, as in "32K,1M", of bytes, KiB or MiB. Otherwise what Linux tells of
 * the first processor; 32 KiB and 256 KiB where it doesn't. false: the variable isn't so; then the sizes are as without
 * it. l3_is_slow follows from the processor's maker, as measured (docs/performance.md, "Prefetching"); it is false for
 * an unknown processor. */
bool caches_read(struct caches *caches);
