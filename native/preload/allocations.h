/* Counting what a process allocates and doesn't free, by the place of the call. libstarpullm_allocations.so has to be
 * preloaded (LD_PRELOAD): it stands between all modules of the process and the C library's allocator. It can also
 * refuse an allocation. It is a library of its own, so that libstarpullm carries nothing of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A place that allocates, and a thread: a call of malloc, calloc, realloc, aligned_alloc, memalign, posix_memalign,
 * strdup, asprintf, mmap or mremap. */
struct starpullm_allocation_site {
    const char *module;   /* path of the library or program; NULL: unknown. Valid while that is loaded */
    const char *function; /* the exported function before the place; NULL: none */
    uint64_t offset;      /* of the call in the module */
    uint64_t caller;      /* the address that the call returns to, for refuse() */
    uint64_t thread;      /* its number, from 1 in the order of the threads' first allocations */
    uint64_t made;        /* allocations between start and stop */
    uint64_t live;        /* those of them that haven't been freed since */
    uint64_t live_bytes;
};

/* Forgets what was counted, and counts allocations from now on. One thread calls start, stop and sites. */
void starpullm_allocations_start(void);
/* Counts no further allocations. It still counts when one is freed that was made before. */
void starpullm_allocations_stop(void);
/* Refuses one allocation of a place, the number-th from now on, as if there was no memory; all others are made. */
void starpullm_allocations_refuse(uint64_t caller, size_t number);
/* Refuses none from now on. Returns how many more allocations of the place would have led to the one that was chosen;
 * 0: it was refused. */
size_t starpullm_allocations_not_reached(void);
/* Returns the number of sites, and writes as many of them as there is room for. */
size_t starpullm_allocations_sites(struct starpullm_allocation_site *sites, size_t room);
