/* Preloaded by test_memory.py: lets one allocation of libstarpullm fail, which is not seen by what is preloaded after it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static atomic_long left; /* allocations of the library up to the one that fails; 0: none will */

/* The `number`-th of the next ones, from 1 on; 0: none. Returns how many of them were not reached. */
long fail_allocation(long number)
{
    return atomic_exchange(&left, number);
}

static int fails(const void *caller)
{
    Dl_info info;
    if (atomic_load(&left) <= 0 || !dladdr(caller, &info) || !info.dli_fname || !strstr(info.dli_fname, "/libstarpullm.so"))
        return 0;
    return atomic_fetch_sub(&left, 1) == 1;
}

/* The call of the next function is the last thing that each does, so the compiler makes it a jump, and the next function
 * sees the library as its caller. */
#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : NEXT(malloc)(bytes);
}

void *calloc(size_t number, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : NEXT(calloc)(number, bytes);
}

void *realloc(void *address, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : NEXT(realloc)(address, bytes);
}
