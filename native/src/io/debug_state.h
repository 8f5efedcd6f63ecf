/* llm.c's debug state: a batch with the logits, loss and parameter gradients that PyTorch computed for it. api.c
 * exports these functions under starpullm_ names.
 *
 * Its header has B and T only, so the model's sizes come from its checkpoint; a file that doesn't have exactly the size
 * that follows from both is refused, as is T > maxT. */
#ifndef STARPULLM_DEBUG_STATE_H
#define STARPULLM_DEBUG_STATE_H

#include "model/tensors.h"

/* Sets batch_size and seq_len only on success. */
status debug_state_size(const char *path, const model_config *config, int64_t *batch_size, int64_t *seq_len);

/* NULL for what isn't wanted. Token ids that are read are checked against V. After a failure some outputs may have been
 * filled. */
status debug_state_read(const char *path, const model_config *config, int32_t *inputs /* (B,T) */,
                        int32_t *targets /* (B,T) */, float *logits /* (B,T,V) */, float *loss /* (1) */,
                        float *grads /* all parameters, in the checkpoint's order */);

#endif
