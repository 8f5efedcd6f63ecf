/* Saving the training state while the training goes on: parameters, m and v are read between two updates, and written
 * by a thread of their own while the next step's forward and backward run. Called by session.c. */
#ifndef STARPULLM_SAVING_H
#define STARPULLM_SAVING_H

#include "graph/graph.h"
#include "io/training_state.h"

struct saving;

/* Of a session's handles, which must stay. Owner ranks save what they own. */
status saving_create(const struct graph_options *graph, struct saving **saving);

/* Waits for the save before, then submits this one, after the updates submitted so far; returns while it is under way.
 * The first failure since the last call is reported, whichever save it was of; after that of an earlier one nothing has
 * been submitted. Keeps the `keep` newest states. */
status saving_submit(struct saving *saving, const char *root, const struct training_state_meta *meta, int keep);

/* Waits until what was submitted is on the disk. */
status saving_wait(struct saving *saving);

/* Waits likewise; NULL is allowed. */
void saving_destroy(struct saving *saving);

#endif
