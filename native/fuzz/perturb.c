/* Stops threads for drawn times before and after they lock and wait: a library to preload. STARPULLM_PERTURB is the
 * seed, which also decides how often they are stopped. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t seed(void)
{
    const char *text = getenv("STARPULLM_PERTURB");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* A thread's own stream of numbers. */
static uint64_t draw(void)
{
    static atomic_uint_least64_t threads;
    /* With another model the first access in a thread would allocate. */
    static _Thread_local uint64_t state __attribute__((tls_model("initial-exec")));
    if (!state)
        state = (seed() + 1) * 0x9e3779b97f4a7c15U + atomic_fetch_add(&threads, 1) + 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void perturb(void)
{
    static const unsigned choices[] = {64, 128, 256, 512, 1024, 1U << 20};
    static unsigned rarely; /* one of so many calls */
    if (!rarely)
        rarely = choices[seed() % (sizeof choices / sizeof *choices)];
    const uint64_t drawn = draw() >> 20;
    if (drawn % rarely == 0)
        usleep((useconds_t)(drawn >> 10) % 300);
    else if (drawn % 16 == 0)
        sched_yield();
}

#define WRAP(name, declared, called)                   \
    int name declared                                  \
    {                                                  \
        static __typeof__(name) *next;                 \
        if (!next)                                     \
            *(void **)&next = dlsym(RTLD_NEXT, #name); \
        perturb();                                     \
        const int result = next called;                \
        perturb();                                     \
        return result;                                 \
    }

WRAP(pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
WRAP(pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
WRAP(pthread_mutex_unlock, (pthread_mutex_t * mutex), (mutex))
WRAP(pthread_cond_wait, (pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex), (condition, mutex))
WRAP(pthread_cond_signal, (pthread_cond_t * condition), (condition))
WRAP(pthread_cond_broadcast, (pthread_cond_t * condition), (condition))
WRAP(pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
WRAP(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
WRAP(pthread_spin_lock, (pthread_spinlock_t * lock), (lock))
WRAP(pthread_spin_unlock, (pthread_spinlock_t * lock), (lock))
