/* Apart from the rest of this folder because it is compiled once, not once per level: all levels share a thread's
 * block. */
#include "kernels/simd/scratch.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    PAGE = 4096, /* bytes */
    HUGE_PAGE = 2 << 20
};

struct block {
    float *values;
    size_t bytes;
};

static _Thread_local struct block block;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor frees the block when the thread ends */
static int no_key;

static void make_key(void)
{
    no_key = pthread_key_create(&key, free);
}

float *kernels_scratch(size_t count)
{
    const size_t wanted = count * sizeof(float), page = wanted < HUGE_PAGE ? PAGE : HUGE_PAGE;
    const size_t bytes = (wanted + page - 1) / page * page;
    if (bytes <= block.bytes)
        return block.values;
    pthread_once(&once, make_key);
    float *values = no_key ? NULL : aligned_alloc(page, bytes);
    if (!values || pthread_setspecific(key, values)) {
        free(values);
        return NULL;
    }
    if (page == HUGE_PAGE)
        (void)madvise(values, bytes, MADV_HUGEPAGE); /* fewer TLB misses; no harm if refused */
    free(block.values);
    block = (struct block){values, bytes};
    return values;
}

float *team_scratch(struct team team, size_t shared, float **own, size_t own_count)
{
    static float none;
    const struct team users = team_together(team);
    const size_t each = (own_count + FLOATS_PER_LINE - 1) / FLOATS_PER_LINE * FLOATS_PER_LINE;
    float *values = users.index > 0 ? NULL : kernels_scratch(shared + each * (size_t)users.count);
    if (team.board && team.index == 0)
        atomic_store(&team.board->memory, values ? values : &none);
    while (team.board && !(values = atomic_load(&team.board->memory)))
        sched_yield();
    if (!values || values == &none)
        return NULL;
    *own = values + shared + each * (size_t)users.index;
    return values;
}
