/* Preloaded by tests: StarPU refuses one of libstarpullm's calls, which it never does by itself with correct arguments.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static atomic_long left; /* calls of the library up to the one that is refused; 0: none will be */
static atomic_int messages_alone;

/* The `number`-th of the next ones, from 1 on; 0: none. Returns how many of them were not reached. */
long refuse_call(long number)
{
    atomic_store(&messages_alone, 0);
    return atomic_exchange(&left, number);
}

/* The same, but tasks aren't counted. */
void refuse_message(long number)
{
    atomic_store(&messages_alone, 1);
    atomic_store(&left, number);
}

static int refused(const void *caller, int is_message)
{
    Dl_info info;
    if (atomic_load(&messages_alone) > is_message)
        return 0;
    if (atomic_load(&left) <= 0 || !dladdr(caller, &info) || !info.dli_fname ||
        !strstr(info.dli_fname, "/libstarpullm.so"))
        return 0;
    return atomic_fetch_sub(&left, 1) == 1;
}

struct search {
    const char *library, *name;
    void *function;
};

static int look_in(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    if (!strstr(info->dlpi_name, search->library))
        return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    search->function = library ? dlsym(library, search->name) : NULL;
    return 1;
}

/* RTLD_NEXT doesn't find libraries that were opened later. */
static void *find(const char *library, const char *name)
{
    struct search search = {library, name, NULL};
    dl_iterate_phdr(look_in, &search);
    if (!search.function)
        abort();
    return search.function;
}

int starpu_task_submit(void *task)
{
    return refused(__builtin_return_address(0), 0) ? -ENODEV
                                                   : ((int (*)(void *))find("/libstarpu-", "starpu_task_submit"))(task);
}

typedef int message(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *), void *argument);

int starpu_mpi_isend_detached(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *),
                              void *argument)
{
    if (refused(__builtin_return_address(0), 1))
        return -EINVAL;
    return ((message *)find("/libstarpumpi-", "starpu_mpi_isend_detached"))(data, rank, tag, communicator, done,
                                                                            argument);
}

int starpu_mpi_irecv_detached(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *),
                              void *argument)
{
    if (refused(__builtin_return_address(0), 1))
        return -EINVAL;
    return ((message *)find("/libstarpumpi-", "starpu_mpi_irecv_detached"))(data, rank, tag, communicator, done,
                                                                            argument);
}
