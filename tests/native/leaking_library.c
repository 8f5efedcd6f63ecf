/* Functions that leak, and others that only look like it, for test_memory.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *volatile kept; /* so that no allocation is optimised away */
static char *parts[3];
static unsigned calls;

void frees(void)
{
    kept = malloc(16);
    free(kept);
    kept = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(kept, 8192);
    kept = strdup("text");
    free(kept);
    if (posix_memalign((void **)&kept, 64, 128) == 0)
        free(kept);
}

void frees_two_calls_later(void)
{
    free(parts[calls % 3]);
    parts[calls++ % 3] = malloc(16);
}

/* Like a thread's scratch memory: the old block is freed when a larger one is needed. */
void grows_once(void)
{
    static char *block;
    if (calls++ == 40) {
        char *larger = malloc(1 << 20);
        free(block);
        block = larger;
    }
    kept = malloc(1);
    free(kept);
}

static void *free_kept(void *argument)
{
    (void)argument;
    free(kept);
    return NULL;
}

void frees_in_another_thread(void)
{
    pthread_t thread;
    kept = malloc(16);
    if (pthread_create(&thread, NULL, free_kept, NULL) == 0)
        pthread_join(thread, NULL);
}

void leaks_malloc(void)
{
    kept = malloc(16);
}

void leaks_calloc(void)
{
    kept = calloc(2, 8);
}

/* What realloc returns is not freed. */
void leaks_realloc(void)
{
    char *volatile small = malloc(4);
    kept = realloc(small, 16);
}

void leaks_aligned(void)
{
    kept = aligned_alloc(64, 64);
}

void leaks_mapping(void)
{
    kept = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void leaks_in_libc(void)
{
    kept = malloc(1);
    free(kept);
    kept = strndup("fifteen letters", 15);
}

void leaks_every_tenth_time(void)
{
    void *volatile block = malloc(16);
    if (calls++ % 10 != 0)
        free(block);
}

void leaks_descriptor(void)
{
    frees();
    (void)!open("/dev/null", O_RDONLY);
}

void leaks_thread(void)
{
    static pthread_mutex_t locked = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    frees();
    pthread_mutex_trylock(&locked);
    pthread_create(&thread, NULL, (void *(*)(void *))pthread_mutex_lock, &locked);
}

void allocates_nothing(void)
{
}

/* ---- Two allocations, either of which may fail; 0 is returned then ---- */

int leaks_if_refused(void)
{
    void *volatile first = malloc(16);
    if (!first)
        return 0;
    void *volatile second = malloc(32);
    if (!second)
        return 0;
    free(second);
    free(first);
    return 1;
}

int tells_otherwise(void)
{
    void *volatile first = malloc(16), *volatile second = malloc(32);
    const int done = first && second;
    free(first);
    free(second);
    return done;
}
