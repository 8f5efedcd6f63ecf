/* Header, table and end of a training state's file, as docs/formats.md has them. */
#include "io/training_state_files.h"

#include <stdlib.h>
#include <string.h>

#include "io/checkpoint.h"

_Static_assert(offsetof(struct state_head, meta.step) == 48 && offsetof(struct state_head, meta.arithmetic) == 124 &&
                   sizeof(struct state_head) == FILE_HEADER_BYTES && sizeof(struct state_entry) == 40 &&
                   sizeof(struct state_end) == STATE_BLOCK,
               "these structs have the bytes of the file");

const enum starpullm_group state_groups[STATE_GROUPS] = {STARPULLM_PARAMS, STARPULLM_M, STARPULLM_V};

/* The smallest multiple of STATE_BLOCK that has room for them. */
static int64_t blocks(int64_t bytes)
{
    return (bytes + STATE_BLOCK - 1) / STATE_BLOCK * STATE_BLOCK;
}

int64_t state_head_bytes(int32_t num_tensors)
{
    const int64_t checksum_bytes = STATE_GROUPS * (int64_t)sizeof(uint32_t);
    return blocks(FILE_HEADER_BYTES + num_tensors * ((int64_t)sizeof(struct state_entry) + checksum_bytes));
}

uint32_t *state_checksums(struct state_head *head)
{
    return (uint32_t *)&head->entries[head->meta.num_tensors];
}

struct state_head *state_head_create(const struct training_state_meta *meta)
{
    const size_t bytes = (size_t)state_head_bytes(meta->num_tensors);
    struct state_head *head = aligned_alloc(STATE_BLOCK, bytes);
    if (!head)
        return NULL;
    memset(head, 0, bytes);
    stamp_header(FORMAT_TRAINING_STATE, (int32_t *)head);
    head->meta = *meta;
    head->meta.zero = 0;
    return head;
}

status state_lay_out(struct state_head *head, int64_t *file_bytes, status code, const char *where)
{
    int64_t end = state_head_bytes(head->meta.num_tensors);
    bool fits = true;
    for (int i = 0; i < head->meta.num_tensors; i++) {
        struct state_entry *entry = &head->entries[i];
        entry->elements = parameter_elements(&head->meta.config, (enum parameter)entry->parameter);
        const int64_t bytes = entry->elements * (int64_t)sizeof(float);
        for (int group = 0; group < STATE_GROUPS && fits; group++) {
            entry->positions[group] = end;
            fits = bytes <= INT64_MAX - STATE_BLOCK && !__builtin_add_overflow(end, blocks(bytes), &end);
        }
    }
    if (!fits || end > INT64_MAX - STATE_BLOCK)
        return fail(code, "%s: the params, m and v of %d tensors are too large, expected at most %" PRId64 " bytes",
                    where, head->meta.num_tensors, INT64_MAX);
    *file_bytes = end + STATE_BLOCK;
    return STARPULLM_OK;
}

static uint64_t fnv1a(const void *bytes, int64_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

struct state_end state_end_of(const struct state_head *head, int64_t file_bytes)
{
    return (struct state_end){
        .magic = head->magic,
        .version = head->version,
        .step = head->meta.step,
        .run = head->meta.run,
        .rank = head->meta.rank,
        .num_ranks = head->meta.num_ranks,
        .fingerprint = fnv1a(head, state_head_bytes(head->meta.num_tensors)),
        .file_bytes = file_bytes,
    };
}

status state_meta_check(const struct training_state_meta *meta, status code, const char *where)
{
    const struct {
        const char *name;
        int64_t value, least;
    } numbers[] = {
        {"step", meta->step, 0},
        {"number of batches", meta->batches, 0},
        {"batch size", meta->batch_size, 1},
        {"sequence length", meta->seq_len, 1},
        {"number of ranks", meta->num_ranks, 1},
        {"rank", meta->rank, 0},
        {"number of tensors", meta->num_tensors, 0},
    };
    if (model_config_check(&meta->config, where) != STARPULLM_OK)
        return fail(code, "%s", starpullm_last_error());
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value < numbers[i].least)
            return fail(code, "%s: %s is %" PRId64 ", expected at least %" PRId64, where, numbers[i].name,
                        numbers[i].value, numbers[i].least);
    if (meta->arithmetic < STARPULLM_STRICT || meta->arithmetic > STARPULLM_FUSED)
        return fail(code, "%s: arithmetic is %" PRId32 ", expected %d to %d", where, meta->arithmetic, STARPULLM_STRICT,
                    STARPULLM_FUSED);
    if (meta->rank >= meta->num_ranks)
        return fail(code, "%s: rank is %" PRId32 ", expected less than the number of ranks (%" PRId32 ")", where,
                    meta->rank, meta->num_ranks);
    return STARPULLM_OK;
}
