/* The functions of StarPU and StarPU-MPI that submit, or start transfers, in place of theirs, which they call. */
#include "refusals.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

static atomic_long left; /* calls of the library up to the one that is refused; 0: none will be */
static atomic_bool messages_alone;

EXPORTED long starpullm_refusals_call(long number)
{
    atomic_store(&messages_alone, false);
    return atomic_exchange(&left, number);
}

EXPORTED long starpullm_refusals_message(long number)
{
    atomic_store(&messages_alone, true);
    return atomic_exchange(&left, number);
}

/* StarPU calls these functions too: those calls aren't counted. */
static bool refused(const void *caller, bool is_message)
{
    Dl_info info;
    if ((atomic_load(&messages_alone) && !is_message) || atomic_load(&left) <= 0)
        return false;
    if (!dladdr(caller, &info) || !info.dli_fname || !strstr(info.dli_fname, "/libstarpullm.so"))
        return false;
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

typedef int submission(void *task);

EXPORTED int starpu_task_submit(void *task)
{
    if (refused(CALLER, false))
        return -ENODEV;
    return ((submission *)find("/libstarpu-", "starpu_task_submit"))(task);
}

typedef int access(void *data, int node, int mode, void (*ready)(void *), void *argument);

EXPORTED int starpu_data_acquire_on_node_cb(void *data, int node, int mode, void (*ready)(void *), void *argument)
{
    if (refused(CALLER, false))
        return -EDEADLK;
    return ((access *)find("/libstarpu-", "starpu_data_acquire_on_node_cb"))(data, node, mode, ready, argument);
}

typedef int start(int *argc, char ***argv, int initialize_mpi, void *communicator);

EXPORTED int starpu_mpi_init_comm(int *argc, char ***argv, int initialize_mpi, void *communicator)
{
    if (refused(CALLER, false))
        return -EIO;
    return ((start *)find("/libstarpumpi-", "starpu_mpi_init_comm"))(argc, argv, initialize_mpi, communicator);
}

typedef int message(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *), void *argument);

EXPORTED int starpu_mpi_isend_detached(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *),
                                       void *argument)
{
    if (refused(CALLER, true))
        return -EINVAL;
    return ((message *)find("/libstarpumpi-", "starpu_mpi_isend_detached"))(data, rank, tag, communicator, done,
                                                                            argument);
}

EXPORTED int starpu_mpi_irecv_detached(void *data, int rank, int64_t tag, void *communicator, void (*done)(void *),
                                       void *argument)
{
    if (refused(CALLER, true))
        return -EINVAL;
    return ((message *)find("/libstarpumpi-", "starpu_mpi_irecv_detached"))(data, rank, tag, communicator, done,
                                                                            argument);
}
