/* Preloaded while coverage is measured: a process that ends by _exit() writes gcov's counters first, as it would by
 * exit(). Forks of a process end so, and ranks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void _exit(int status)
{
    const char *path = getenv("STARPULLM_COUNTED_LIB");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void (*dump)(void) = NULL;
    if (library)
        *(void **)&dump = dlsym(library, "__gcov_dump");
    if (dump)
        dump();
    syscall(SYS_exit_group, status);
    abort();
}
