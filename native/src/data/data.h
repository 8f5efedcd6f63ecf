/* One data handle and its buffer. Created by data/handles.c, named in the accesses that codelets/ declare,
 * listed by the trace; graph/ only passes pointers to it. */
#ifndef STARPULLM_DATA_H
#define STARPULLM_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

struct data {
    void *handle; /* starpu_data_handle_t; void so that graph/ and trace/ need no StarPU header */
    void *buffer;
    size_t bytes;
    int32_t id;    /* index among the session's handles */
    char name[64]; /* group/tensor[layer]#sub-batch */
};

/* A buffer of count elements, +0 at first, on pages of its own (its pages hold nothing else, so that an access can be
 * attributed to one handle; untouched pages take no memory), registered with StarPU. */
status data_create(struct data *data, int32_t id, size_t count, size_t element_size, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Waits for the tasks that use it. */
void data_destroy(struct data *data);

/* Waits for the tasks submitted so far that write (read, for _write) the buffer, and holds off later ones until
 * data_release(). Returns its memory. */
status data_acquire_read(struct data *data, const void **memory);
status data_acquire_write(struct data *data, void **memory);
void data_release(struct data *data);

#endif
