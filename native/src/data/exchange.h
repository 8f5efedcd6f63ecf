/* Bringing data to ranks that no task brings it to, in builds with MPI. Every rank makes the same calls in the same
 * order among its tasks. */
#ifndef STARPULLM_EXCHANGE_H
#define STARPULLM_EXCHANGE_H

#include "status.h"

struct data;

/* Tells StarPU-MPI the data's tag and owner. */
void exchange_register(struct data *data);
/* Comes before the handle is unregistered. Contributions that haven't been added up are lost. */
void exchange_unregister(struct data *data);

/* Copies the value to a rank, or to all, as for a task there that reads it. */
status exchange_to(struct data *data, int rank);
status exchange_to_all(struct data *data);
/* Frees the copies on ranks that aren't the owner. */
void exchange_drop(struct data *data);

/* Adds up the ranks' contributions to a reducible value in a binary tree; the sum is on the owner. */
status exchange_reduce(struct data *data);

#endif
