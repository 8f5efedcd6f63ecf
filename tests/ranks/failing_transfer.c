/* Preloaded by test_training.py: when the task that reports the loss and the transfers after it have been submitted, the
 * library is told that these transfers failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <stdarg.h>

/* The arguments are those of native/src/codelets/transfer_mpi.c. Only the task that reports the loss has one access. */
int starpu_mpi_task_post_build(MPI_Comm communicator, void *codelet, ...)
{
    int (*next)(MPI_Comm, void *, ...);
    *(void **)&next = dlsym(RTLD_NEXT, "starpu_mpi_task_post_build");
    va_list arguments;
    va_start(arguments, codelet);
    const int array = va_arg(arguments, int);
    void *descriptors = va_arg(arguments, void *);
    const int number = va_arg(arguments, int), on = va_arg(arguments, int), rank = va_arg(arguments, int);
    const int with = va_arg(arguments, int), priority = va_arg(arguments, int);
    va_end(arguments);
    const int error = next(communicator, codelet, array, descriptors, number, on, rank, with, priority, 0);
    return number == 1 ? -ENODEV : error;
}
