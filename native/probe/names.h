// The names of tasks and codelets, each recorded once.
#pragma once

#include "log.h"

#include <starpu.h>

// Returns the index of a name's record; NULL is the empty name. Of more names than there is room for, 0. Calls are
// serialised.
uint32_t name_index(struct log *log, const char *name);

// Returns that of what findings call a task's codelet, which needs no name.
uint32_t codelet_name(struct log *log, struct starpu_task *task);
