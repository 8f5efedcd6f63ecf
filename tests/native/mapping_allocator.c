/* An allocator that is preloaded: as others do, it maps memory while it holds its lock. It frees nothing. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 16, CHUNK = 1 << 22 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *position, *end;

/* The size is in front of the memory. */
static void *allocate(size_t alignment, size_t bytes)
{
    if (alignment < ALIGNMENT)
        alignment = ALIGNMENT;
    const size_t needed = alignment + ALIGNMENT + bytes;
    pthread_mutex_lock(&mutex);
    if ((size_t)(end - position) < needed) {
        const size_t mapped = needed > CHUNK ? needed : CHUNK;
        position = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = position + mapped;
    }
    char *memory = (char *)(((uintptr_t)position + ALIGNMENT + alignment - 1) / alignment * alignment);
    position = memory + bytes;
    pthread_mutex_unlock(&mutex);
    memcpy(memory - sizeof bytes, &bytes, sizeof bytes);
    return memory;
}

void *memalign(size_t alignment, size_t bytes)
{
    return allocate(alignment, bytes);
}

void *malloc(size_t bytes)
{
    return allocate(ALIGNMENT, bytes);
}

void *calloc(size_t number, size_t bytes)
{
    return allocate(ALIGNMENT, number * bytes);
}

void *realloc(void *memory, size_t bytes)
{
    size_t before = 0;
    if (memory)
        memcpy(&before, (char *)memory - sizeof before, sizeof before);
    void *moved = allocate(ALIGNMENT, bytes);
    return before ? memcpy(moved, memory, before < bytes ? before : bytes) : moved;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return allocate(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    *memory = allocate(alignment, bytes);
    return 0;
}

void free(void *memory)
{
    (void)memory;
}
