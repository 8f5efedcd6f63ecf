/* Bringing data to ranks that no task brings it to. The ranks that have the data make the same calls in the same order
 * among their tasks. */
#pragma once

#include <stdint.h>

#include "status.h"

struct data;

/* Tells StarPU-MPI the data's tag and owner. */
void exchange_register(struct data *data);
/* Comes before the handle is unregistered. Contributions that haven't been added up are lost. */
void exchange_unregister(struct data *data);

/* Copies the value to a rank, as for a task there that reads it. Both have registered the data. */
status exchange_to(struct data *data, int rank);
/* Frees the copies on ranks that aren't the owner. Nothing for data that this rank doesn't have, which may be NULL. */
void exchange_drop(struct data *data);

/* Copies values of the owner, which are no data, to all ranks; collective. */
void exchange_values(float *values, int64_t count, int owner);

/* Adds up the ranks' contributions to a reducible value in a binary tree; the sum is on the owner. */
status exchange_reduce(struct data *data);
