/* The sizes of this machine's caches, from which simd/blocking.c derives its blocks. No bit depends on them. */
#ifndef STARPULLM_CACHES_H
#define STARPULLM_CACHES_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes for data. */
struct caches {
    size_t l1;
    size_t l2; /* one hardware thread's share */
};

/* STARPULLM_CACHES in the environment: two numbers, as in "32K,1M", of bytes, KiB or MiB. Otherwise what Linux tells of
 * the first processor; 32 KiB and 256 KiB where it doesn't. false: the variable isn't so; then the sizes are as without
 * it. */
bool caches_read(struct caches *caches);

#endif
