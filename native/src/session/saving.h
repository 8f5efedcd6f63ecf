/* Saving the training state while the training goes on: parameters, m and v are read between two updates, and a thread
 * of its own writes them while the next step's forward and backward run. */
#ifndef STARPULLM_SAVING_H
#define STARPULLM_SAVING_H

#include "graph/graph.h"
#include "io/training_state.h"

struct saving;

/* Saves the tensors that this rank owns. `graph` and its handles must outlive the saving. */
status saving_create(const struct graph_options *graph, struct saving **saving);

/* Locks the folder `root` for this run until saving_destroy(), waits for the previous save, then submits this one,
 * which contains the updates submitted so far, and returns before it is written. Reports the first failure since the
 * last call, of whichever save; after a failure of an earlier save, nothing has been submitted. Keeps the `keep`
 * newest states. */
status saving_submit(struct saving *saving, const char *root, const struct training_state_meta *meta, int keep);

/* Waits until the last save is on the disk. */
status saving_wait(struct saving *saving);

/* Waits likewise; NULL is allowed. */
void saving_destroy(struct saving *saving);

#endif
