/* Finds accesses to handles that the running task hasn't declared, directly: the pages of all other handles are
 * protected while it runs, so that an access to them ends in a signal's handler, which opens the page. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

#include "content.h"
#include "log_format.h"

/* From now on memory of StarPU's own for handles has pages for itself. `file` is where accesses are written, one a
 * line: task, handle, element, r or w, and whether the task has declared to read there, parted by tabs, then the frames
 * of the stack. */
void undeclared_start(struct probe_header *header, int file);

/* All memory can be accessed, from now on or until the next task. */
void undeclared_stop(void);

/* In a forked child: all memory can be accessed, and nothing is said any more. */
void undeclared_forked(void);

/* A task with a function was submitted. */
void undeclared_submitted(void);

/* A handle, by its number, that lies so in memory; NULL: it isn't plain memory, and can't be watched. */
void undeclared_add(uint32_t handle, const struct layout *layout);
void undeclared_remove(uint32_t handle);

/* What a task declares of one handle. */
struct declared {
    struct layout layout;
    uint32_t handle;
    bool is_plain;  /* `layout` says where it lies; else it can't be told which memory the task may access */
    bool is_shared; /* with other tasks: neither scratch memory nor a contribution to a reduction */
    bool writes;
};

/* Around a task's function, on its worker. The list is allocated, and taken over. */
void undeclared_begin(const struct starpu_task *task, uint64_t number, struct declared *list, unsigned count);
void undeclared_end(void);
