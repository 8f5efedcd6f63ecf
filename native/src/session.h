/* A session: one model's handles and the submissions in flight on them. Called by api.c, which checks nothing but
 * pointers; every rule about arguments is here. */
#ifndef STARPULLM_SESSION_H
#define STARPULLM_SESSION_H

#include "status.h"

status session_create(struct starpullm_runtime *runtime, const struct starpullm_session_options *options,
                      struct starpullm_session **session);
void session_destroy(struct starpullm_session *session);

const struct starpullm_model_config *session_config(const struct starpullm_session *session);

status session_submit_step(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                           struct starpullm_loss **loss);
status session_submit_evaluation(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                 struct starpullm_loss **loss);
status session_submit_forward(struct starpullm_session *session, const int32_t *inputs);
/* See the exported functions of these names; _copy_edges is starpullm_session_runtime_edges(). */
status session_hold(struct starpullm_session *session);
status session_release(struct starpullm_session *session, size_t *num_edges);
status session_copy_edges(const struct starpullm_session *session, int64_t *edges, size_t num_edges);
/* Waits for everything that was submitted; the first failure of a task, if there was one. */
status session_wait(struct starpullm_session *session);

/* 0 if there is no such group. */
int32_t session_tensor_count(int32_t group);
status session_tensor_info(const struct starpullm_session *session, int32_t group, int32_t index,
                           struct starpullm_tensor_info *info);
status session_gather(struct starpullm_session *session);
status session_read_tensor(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                           int64_t offset, int64_t count, float *values);
status session_save_checkpoint(struct starpullm_session *session, const char *path);

status session_save_state(struct starpullm_session *session, const struct starpullm_save_options *options);
status session_wait_saved(struct starpullm_session *session);

struct recorder;
/* Waits for everything that was submitted. STARPULLM_INVALID_STATE if the session isn't traced. */
status session_recorder(struct starpullm_session *session, struct recorder **recorder);
struct instrument;
/* Likewise. STARPULLM_INVALID_STATE if the session has no instruments. */
status session_instrument(struct starpullm_session *session, struct instrument **instrument);
/* Tasks and findings. */
status session_clear_trace(struct starpullm_session *session);
int32_t session_handle_count(const struct starpullm_session *session);
status session_handle_info(const struct starpullm_session *session, int32_t index, struct starpullm_handle_info *info);

#endif
