/* Memory for packed operands: one block per thread, kept until the thread ends. */
#pragma once

#include <stddef.h>

#include "kernels/team_board.h"

/* This thread's block, of at least `count` floats; it begins on a page. Its contents are undefined, and the block of an
 * earlier call may be freed. NULL: out of memory. */
float *kernels_scratch(size_t count);

/* Thread 0's block, for all threads of a team: its first `shared` floats are used by all of them, *own by this thread,
 * own_count floats. Without a board it is this thread's block. NULL: out of memory. */
float *team_scratch(struct team team, size_t shared, float **own, size_t own_count);
