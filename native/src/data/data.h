/* One piece of data: a buffer and StarPU's handle for it, under which the graph, the trace and the files know it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { DATA_NAME_BYTES = 64 };

struct data {
    void *handle; /* starpu_data_handle_t; void so that graph/ and session/ need no StarPU header. NULL: on paper, and
                   * of the other end of a message */
    void *buffer; /* for data.c alone; NULL: StarPU has the memory, of evictable data, or of a copy for tasks here */
    size_t bytes;
    int32_t id;       /* index among the session's handles, the same on every rank */
    int64_t tag;      /* of its transfers; no other session has it */
    int owner;        /* the rank that keeps the value */
    bool copied;      /* other ranks have copies, which are sent to them before an iteration reads them */
    bool passed_on;   /* likewise the rank of another stage, before each pass that reads it */
    bool transient;   /* the next iteration doesn't need the value that this one leaves */
    bool evictable;   /* from memory to the disk (disk.h) */
    bool homeless;    /* has no buffer of its own in main memory: it is evictable, or tasks of devices use it alone */
    bool has_value;   /* of such: something submitted so far writes them */
    bool invalidated; /* likewise: they were no longer needed */
    char name[DATA_NAME_BYTES]; /* group/tensor[layer]#sub-batch */
    struct audit *audit;        /* NULL: accesses aren't audited */
};

enum { DATA_ELEMENT_BYTES = 4 }; /* of floats and tokens */

/* Gives the data, whose other members the caller has set, a handle, and if they are to be `on_this_rank`, and aren't
 * homeless, a buffer, at first +0. It has pages of its own, so that a memory fault belongs to one handle; the rest of
 * its last page can be read. */
status data_create(struct data *data, bool on_this_rank);

/* Waits for the tasks that use it. */
void data_destroy(struct data *data);

/* Waits for the tasks submitted so far that write the data (for _write also those that read it), and delays later ones
 * until data_release(). *memory is the buffer. The value must be on this rank. If accesses are audited,
 * no other task that uses audited data may be running. */
status data_acquire_read(struct data *data, const void **memory);
status data_acquire_write(struct data *data, void **memory);
void data_release(struct data *data);

/* Of data that are acquired or aren't evictable. */
void *data_memory(const struct data *data);

/* The same without waiting: ready(argument) is called when the buffer may be read, by any thread, and must neither wait
 * nor fail. data_release() follows, by any thread. Not for audited data. */
status data_when_readable(struct data *data, void (*ready)(void *argument), void *argument);

/* After the tasks submitted so far nobody needs the value any more, which is then never written to a disk. */
void data_invalidate(struct data *data);

/* ---- Evictable data ---- */

/* After the tasks submitted so far, they are written to the disk if there is time, as they won't be used for long:
 * their memory is free at once then. */
void data_write_early(struct data *data);
/* Frees their memory if it has been; from a task's callback, and not among the tasks that use them. */
void data_evict(const struct data *data);

/* ---- Bringing data to ranks that no task brings it to (exchange_mpi.c). The ranks that have the data make the same
 * calls in the same order among their tasks. ---- */

/* Tells StarPU-MPI the data's tag and owner. */
void exchange_register(struct data *data);
/* Comes before the handle is unregistered. Contributions that haven't been added up are lost. */
void exchange_unregister(struct data *data);

/* Copies the value to a rank, as for a task there that reads it. Both have registered the data. */
status exchange_to(struct data *data, int rank);
/* Frees the copies on ranks that aren't the owner. Nothing for data that this rank doesn't have, which may be NULL. */
void exchange_invalidate(struct data *data);

/* Copies values of the owner, which are no data, to all ranks; collective. All return the owner's failure, if `code` of
 * the owner is one. */
status exchange_values(status code, float *values, int64_t count, int owner);

/* Adds up the ranks' contributions to a reducible value in a binary tree; the sum is on the owner. */
status exchange_reduce(struct data *data);
