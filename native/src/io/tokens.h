/* Token files (shards), read in llm.c's order without shuffling; the semantics are in starpullm.h. api.c exports these
 * functions under starpullm_ names.
 *
 * One shard is open at a time; each is checked (header, exact size, at least one step) by tokens_open() and again when
 * its turn comes, when it must still hold as many tokens. Positions are 64-bit. */
#ifndef STARPULLM_TOKENS_H
#define STARPULLM_TOKENS_H

#include "status.h"

/* Copies the options. On failure *tokens is NULL. */
status tokens_open(const struct starpullm_tokens_options *options, struct starpullm_tokens **tokens);

/* On failure neither the outputs nor the position have changed: the next call tries the same step. */
status tokens_next(struct starpullm_tokens *tokens, int32_t *inputs /* (B,T) */, int32_t *targets /* (B,T) */);

/* NULL is allowed. */
void tokens_close(struct starpullm_tokens *tokens);

#endif
