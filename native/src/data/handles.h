/* The handles of a session: which tensors have one, and which share one. They are created once and used by every
 * iteration. A handle has the same id and the same tag on every rank, but a rank has only those that it owns and those
 * that its tasks use; the functions that look for another one return NULL. */
#pragma once

#include <stdbool.h>

#include "data/data.h"
#include "data/disk.h"
#include "data/workload.h"

struct handles;

/* On failure, too, handles_destroy() follows. */
status handles_create(const struct handles_options *options, struct handles **handles);
void handles_destroy(struct handles *handles);

/* group is one of STARPULLM_PARAMS, _M, _V; any layer for a tensor without layers. Parameters have a buffer on every
 * rank whose tasks read them; m and v have one on their owner only. */
struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer);

/* A tile of a parameter's gradient in a stage: with the reduction `ordered` there is one for each pipeline, with `tree`
 * for each sub-batch, with `redux` one. */
struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int stage, int slice,
                              int tile);
/* The same as an end of a message, also if another rank has it. */
struct data handles_end(const struct handles *handles, enum parameter p, int layer, int stage, int slice, int tile);

/* Of STARPULLM_ACTIVATIONS: (B/S, T, …) of one sub-batch, on its home rank; with fewer sets than sub-batches, several
 * of them share it. Of STARPULLM_ACTIVATION_GRADS: its gradient, of the same shape; NULL for the tensors without one
 * (means, rstds, probs). The gradient of losses is the constant 1/(B*T), with one handle for all sub-batches of a rank.
 */
struct data *handles_activation(const struct handles *handles, enum starpullm_group group, enum activation a, int layer,
                                int sub_batch);

/* int32 (B/S, T) of one sub-batch, for the iteration in this slot. */
struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch);
struct data *handles_targets(const struct handles *handles, int slot, int sub_batch);

/* float (1), on the first rank with the head: the sum of losses, and after the last sub-batch their mean. */
struct data *handles_mean_loss(const struct handles *handles, int slot);

/* All ranks' handles, by id. */
int handles_count(const struct handles *handles);

/* What the data here take on the disk and in memory; nothing on the disk without offload. */
struct disk_share handles_share(const struct handles *handles);

/* Those that this rank has, by index. */
int handles_here(const struct handles *handles);
struct data *handles_at(const struct handles *handles, int index);
void handles_describe(const struct handles *handles, int index, struct starpullm_handle_info *info);
