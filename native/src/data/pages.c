/* Whole pages from the system. StarPU's own allocator keeps freed memory, so that a process holds more than its limit.
 */
#include "data/pages.h"

#include <errno.h>
#include <starpu.h>
#include <sys/mman.h>
#include <unistd.h>

void *pages_allocate(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    /* Fewer page faults and TLB misses. Small buffers take no more memory: they lie side by side in one huge page. The
     * system may refuse. */
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

void pages_free(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

size_t whole_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static int allocate_hook(unsigned node, void **memory, size_t bytes, int flags)
{
    (void)node, (void)flags;
    *memory = pages_allocate(bytes);
    return *memory ? 0 : -ENOMEM;
}

static int free_hook(unsigned node, void *memory, size_t bytes, int flags)
{
    (void)node, (void)flags;
    pages_free(memory, bytes);
    return 0;
}

void pages_serve_starpu(bool served)
{
    starpu_malloc_set_hooks(served ? allocate_hook : NULL, served ? free_hook : NULL);
}
