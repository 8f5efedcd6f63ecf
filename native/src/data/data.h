/* One data handle and its buffer. Created by data/handles.c, named in the accesses that codelets/ declare,
 * listed by the trace; graph/ only passes pointers to it. */
#ifndef STARPULLM_DATA_H
#define STARPULLM_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

struct data {
    void *handle; /* starpu_data_handle_t; void so that graph/ and trace/ need no StarPU header */
    void *buffer; /* NULL: no copy of its own on this rank; StarPU makes one while a task here reads the data */
    size_t count, element_size;
    size_t bytes;
    int32_t id;          /* index among the session's handles, the same on every rank */
    int owner;           /* rank whose copy is the data's home */
    bool transient;      /* no submission needs the value that the one before left */
    char name[64];       /* group/tensor[layer]#sub-batch */
    struct audit *audit; /* NULL: its accesses aren't audited */
};

/* Registers count elements with StarPU, and their owner with its transfers. present: with a buffer on this rank, +0 at
 * first, on pages of its own (they hold nothing else, so that an access can be attributed to one handle; untouched
 * pages take no memory; the last page's rest is readable). */
status data_create(struct data *data, int32_t id, int owner, bool present, size_t count, size_t element_size,
                   const char *format, ...) __attribute__((format(printf, 7, 8)));

/* Waits for the tasks that use it. */
void data_destroy(struct data *data);

/* The value is not needed any more: the next task that accesses it doesn't read it. Ordered as a task's access. */
void data_forget(struct data *data);

/* Waits for the tasks submitted so far that write (read, for _write) the buffer (for all tasks, if accesses are
 * audited), and holds off later ones until data_release(). Returns its memory. Over ranks the data must be here: see
 * exchange.h. */
status data_acquire_read(struct data *data, const void **memory);
status data_acquire_write(struct data *data, void **memory);
void data_release(struct data *data);

/* As data_acquire_read(), but not of audited data, and returns at once: ready(argument) is called, from whichever
 * thread, when the buffer may be read, and must neither wait nor fail; data_release() follows, from any thread. */
status data_when_readable(struct data *data, void (*ready)(void *argument), void *argument);

#endif
