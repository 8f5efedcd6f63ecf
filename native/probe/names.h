/* The names of tasks and codelets, and the stacks of submissions, each recorded once. */
#pragma once

#include <starpu.h>

#include "log.h"

/* Returns the index of a name's record; NULL is the empty name. Of more names than there is room for, 0. Calls are
 * serialised. */
uint32_t name_index(struct log *log, const char *name);

/* Returns that of what findings call a task's codelet, which needs no name. */
uint32_t codelet_name(struct log *log, struct starpu_task *task);

/* Returns the number of the calling thread's stack, from 1, which is also its line in the file; of more than there is
 * room for, 0. Calls are serialised with those for names. */
uint32_t stack_number(struct log *log);

/* Writes a line: a text, then for each frame of a stack, the innermost first, address, where its module begins,
 * function and the module's path, with a tab before each. */
void write_frames(int file, const char *text, void *const *frames, int count);
