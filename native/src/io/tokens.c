/* The token loader: which tokens of which shard belong to this rank's next step, in llm.c's order without shuffling.
 *
 * One shard is open at a time. Each is checked (header, exact size, at least one step) when the loader is opened and
 * again when the loader comes to it: then it must still hold as many tokens. Positions are 64-bit. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "io/file.h"

enum { HEADER_NUM_TOKENS = 2, TOKEN_BYTES = 2 };

struct shard {
    char *path;
    int64_t num_tokens;
};

struct starpullm_tokens {
    struct shard *shards;
    size_t num_shards;
    int64_t batch_size, seq_len;
    int32_t rank, num_ranks, vocab_size;
    int64_t rank_tokens;    /* B*T: what a rank moves on by within a step */
    int64_t step_tokens;    /* R*B*T */
    size_t shard;           /* the open one */
    int64_t step;           /* the next one in it */
    struct input_file file; /* its path is shards[shard].path */
    uint16_t *buffer;       /* (B*T + 1) */
};

static status copy_options(struct starpullm_tokens *tokens, const struct starpullm_tokens_options *options)
{
    tokens->batch_size = options->batch_size;
    tokens->seq_len = options->seq_len;
    tokens->rank = options->rank;
    tokens->num_ranks = options->num_ranks;
    tokens->vocab_size = options->vocab_size;
    if (options->batch_size < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "batch_size is %" PRId64 ", expected at least 1", options->batch_size);
    if (options->seq_len < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "seq_len is %" PRId64 ", expected at least 1", options->seq_len);
    if (options->num_ranks < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "num_ranks is %" PRId32 ", expected at least 1", options->num_ranks);
    if (options->rank < 0 || options->rank >= options->num_ranks)
        return fail(STARPULLM_INVALID_ARGUMENT, "rank is %" PRId32 ", expected 0 to %" PRId32 " (num_ranks - 1)",
                    options->rank, options->num_ranks - 1);
    if (options->vocab_size < 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "vocab_size is %" PRId32 ", expected at least 0", options->vocab_size);

    int64_t bytes;
    if (__builtin_mul_overflow(options->batch_size, options->seq_len, &tokens->rank_tokens) ||
        __builtin_mul_overflow(tokens->rank_tokens, options->num_ranks, &tokens->step_tokens) ||
        __builtin_mul_overflow(tokens->step_tokens, TOKEN_BYTES, &bytes) ||
        bytes > INT64_MAX - FILE_HEADER_BYTES - TOKEN_BYTES)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "a step with num_ranks %" PRId32 ", batch_size %" PRId64 ", seq_len %" PRId64
                    " is too large, expected at most %" PRId64 " bytes",
                    options->num_ranks, options->batch_size, options->seq_len, INT64_MAX);

    if (!options->paths || options->num_paths == 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "no token files, expected at least 1");
    tokens->shards = calloc(options->num_paths, sizeof tokens->shards[0]);
    if (!tokens->shards)
        return fail(STARPULLM_OUT_OF_MEMORY, "a list of %zu token files could not be allocated", options->num_paths);
    tokens->num_shards = options->num_paths;
    for (size_t i = 0; i < tokens->num_shards; i++) {
        if (!options->paths[i])
            return fail(STARPULLM_INVALID_ARGUMENT, "path %zu of %zu is NULL, expected the path of a token file", i,
                        tokens->num_shards);
        tokens->shards[i].path = strdup(options->paths[i]);
        if (!tokens->shards[i].path)
            return fail(STARPULLM_OUT_OF_MEMORY, "%s: its path could not be allocated", options->paths[i]);
    }
    return STARPULLM_OK;
}

static status check_shard(const struct starpullm_tokens *tokens, const struct input_file *file, int64_t *num_tokens)
{
    int32_t header[FILE_HEADER_INTS];
    TRY(input_read_header(file, FORMAT_TOKENS, header));
    TRY(input_check_version(file, FORMAT_TOKENS, header));
    *num_tokens = header[HEADER_NUM_TOKENS];
    if (*num_tokens < 1)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 8: number of tokens is %" PRId64 ", expected at least 1",
                    file->path, *num_tokens);
    char what[64];
    snprintf(what, sizeof what, "number of tokens %" PRId64, *num_tokens);
    TRY(input_check_size(file, FILE_HEADER_BYTES + TOKEN_BYTES * *num_tokens, what));
    if (*num_tokens < tokens->step_tokens + 1)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "%s: byte 8: number of tokens is %" PRId64 ", expected at least %" PRId64
                    " for one step (num_ranks %" PRId32 " * batch_size %" PRId64 " * seq_len %" PRId64 " + 1)",
                    file->path, *num_tokens, tokens->step_tokens + 1, tokens->num_ranks, tokens->batch_size,
                    tokens->seq_len);
    return STARPULLM_OK;
}

/* On success the file is open. */
static status open_shard(const struct starpullm_tokens *tokens, size_t shard, struct input_file *file,
                         int64_t *num_tokens)
{
    TRY(input_open(file, tokens->shards[shard].path));
    const status code = check_shard(tokens, file, num_tokens);
    if (code != STARPULLM_OK)
        input_close(file);
    return code;
}

/* From the last shard to the first, which stays open. */
static status open_all(struct starpullm_tokens *tokens)
{
    for (size_t i = tokens->num_shards; i-- > 0;) {
        input_close(&tokens->file);
        TRY(open_shard(tokens, i, &tokens->file, &tokens->shards[i].num_tokens));
    }
    tokens->buffer = malloc((size_t)(tokens->rank_tokens + 1) * sizeof tokens->buffer[0]);
    if (!tokens->buffer)
        return fail(STARPULLM_OUT_OF_MEMORY, "a buffer of %" PRId64 " tokens could not be allocated",
                    tokens->rank_tokens + 1);
    return STARPULLM_OK;
}

status starpullm_tokens_open(const struct starpullm_tokens_options *options, starpullm_tokens **tokens)
{
    CHECK_POINTER(tokens);
    *tokens = NULL;
    CHECK_STRUCT(options);
    struct starpullm_tokens *opened = calloc(1, sizeof *opened);
    if (!opened)
        return fail(STARPULLM_OUT_OF_MEMORY, "a token loader could not be allocated");
    opened->file.descriptor = -1;
    status code = copy_options(opened, options);
    if (code == STARPULLM_OK)
        code = open_all(opened);
    if (code == STARPULLM_OK)
        *tokens = opened;
    else
        starpullm_tokens_close(opened);
    return code;
}

/* Opens the shard that comes after this one. It may be this one. */
static status open_next_shard(struct starpullm_tokens *tokens, size_t next)
{
    if (next == tokens->shard)
        return STARPULLM_OK;
    struct input_file file;
    int64_t num_tokens;
    TRY(open_shard(tokens, next, &file, &num_tokens));
    if (num_tokens != tokens->shards[next].num_tokens) {
        input_close(&file);
        return fail(STARPULLM_INVALID_FILE,
                    "%s: byte 8: number of tokens is %" PRId64 ", expected %" PRId64 " (what it was at first)",
                    tokens->shards[next].path, num_tokens, tokens->shards[next].num_tokens);
    }
    input_close(&tokens->file);
    tokens->file = file;
    return STARPULLM_OK;
}

/* To the next shard, or the first after the last, if this one holds no further step. */
static status advance(struct starpullm_tokens *tokens)
{
    if (tokens->step < (tokens->shards[tokens->shard].num_tokens - 1) / tokens->step_tokens)
        return STARPULLM_OK;
    const size_t next = (tokens->shard + 1) % tokens->num_shards;
    TRY(open_next_shard(tokens, next));
    tokens->shard = next;
    tokens->step = 0;
    return STARPULLM_OK;
}

/* On failure neither the outputs nor the position have changed: the next call tries the same step. */
status starpullm_tokens_next(starpullm_tokens *tokens, int32_t *inputs /* (B,T) */, int32_t *targets /* (B,T) */)
{
    CHECK_POINTER(tokens);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    TRY(advance(tokens));
    const int64_t count = tokens->rank_tokens + 1;
    const int64_t position = tokens->step * tokens->step_tokens + tokens->rank * tokens->rank_tokens;
    const int64_t offset = FILE_HEADER_BYTES + TOKEN_BYTES * position;
    TRY(input_read(&tokens->file, tokens->buffer, TOKEN_BYTES, count, offset));
    for (int64_t i = 0; tokens->vocab_size > 0 && i < count; i++)
        if (tokens->buffer[i] >= tokens->vocab_size)
            return fail(STARPULLM_INVALID_TOKEN,
                        "%s: byte %" PRId64 ": token id is %d, expected less than %" PRId32 " (vocab_size)",
                        tokens->file.path, offset + TOKEN_BYTES * i, tokens->buffer[i], tokens->vocab_size);
    for (int64_t i = 0; i < count - 1; i++) {
        inputs[i] = tokens->buffer[i];
        targets[i] = tokens->buffer[i + 1];
    }
    tokens->step++;
    return STARPULLM_OK;
}

void starpullm_tokens_close(starpullm_tokens *tokens)
{
    if (!tokens)
        return;
    input_close(&tokens->file);
    for (size_t i = 0; i < tokens->num_shards; i++)
        free(tokens->shards[i].path);
    free(tokens->shards);
    free(tokens->buffer);
    free(tokens);
}
