/* Data and the ranks: who owns it, and bringing it to ranks that no task brings it to. Called by data.c and session.c;
 * exchange_mpi.c is for builds with MPI, exchange_local.c for those without. */
#ifndef STARPULLM_EXCHANGE_H
#define STARPULLM_EXCHANGE_H

#include "data/data.h"

/* Tells StarPU's transfers the data's owner. */
void exchange_register(struct data *data);

/* Collective, as a task that reads the data on that rank (on every rank): brings the value there, in submission order.
 * exchange_drop() afterwards, on every rank, frees what was brought. */
status exchange_to(struct data *data, int rank);
status exchange_to_all(struct data *data);
void exchange_drop(struct data *data);

/* Collective: combines the ranks' contributions to a reducible value on its owner, in a binary tree. */
status exchange_reduce(struct data *data);

#endif
