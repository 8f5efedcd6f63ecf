/* Finds, checks and reads training states. */
#include "arguments.h"
#include "io/training_state_folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state_file {
    uint64_t fingerprint;
    int64_t bytes;
    struct state_entry *entries;
    int count;
};

struct training_state {
    char *path;
    char *passed_over;
    struct training_state_meta meta;
    struct state_file *files; /* (num_ranks) */
};

static status no_memory(const char *path)
{
    return fail(STARPULLM_OUT_OF_MEMORY, "%s: its table could not be allocated", path);
}

/* ---- One rank's file ---- */

static status check_words(const struct input_file *file, const char *what, const int32_t *found,
                          const int32_t *expected, int64_t count, int64_t position)
{
    for (int64_t i = 0; i < count; i++)
        if (found[i] != expected[i])
            return fail(STARPULLM_INVALID_FILE,
                        "%s: byte %" PRId64 ": the %s has 0x%08" PRIx32 ", expected 0x%08" PRIx32
                        ", which goes with the header: one of the two is damaged",
                        file->path, position + 4 * i, what, (uint32_t)found[i], (uint32_t)expected[i]);
    return STARPULLM_OK;
}

static status check_trailer(const struct input_file *file, const struct training_state_meta *meta, uint64_t fingerprint)
{
    int32_t found[STATE_BLOCK_WORDS], expected[STATE_BLOCK_WORDS];
    TRY(input_read(file, found, sizeof found[0], STATE_BLOCK_WORDS, file->size - STATE_BLOCK));
    state_encode_trailer(expected, meta, fingerprint, file->size);
    return check_words(file, "end", found, expected, STATE_BLOCK_WORDS, file->size - STATE_BLOCK);
}

static status decode_entry(const struct input_file *file, const model_config *config, const int32_t *words, int number,
                           struct state_entry *entry)
{
    const int64_t position = FILE_HEADER_BYTES + number * STATE_ENTRY_WORDS * (int64_t)sizeof words[0];
    const int32_t p = words[number * STATE_ENTRY_WORDS], layer = words[number * STATE_ENTRY_WORDS + 1];
    if (p < 0 || p >= NUM_PARAMETERS)
        return fail(STARPULLM_INVALID_FILE, "%s: byte %" PRId64 ": parameter is number %" PRId32 ", expected 0 to %d",
                    file->path, position, p, NUM_PARAMETERS - 1);
    if (layer < 0 || layer >= parameter_instances(config, (enum parameter)p))
        return fail(STARPULLM_INVALID_FILE, "%s: byte %" PRId64 ": layer of %s is %" PRId32 ", expected 0 to %d",
                    file->path, position + 4, parameter_name((enum parameter)p), layer,
                    parameter_instances(config, (enum parameter)p) - 1);
    *entry = (struct state_entry){.parameter = (enum parameter)p, .layer = layer};
    return STARPULLM_OK;
}

/* `words` is header and table; `expected` has room for as much. Which tensors there are is all that the table says:
 * everything else follows, and is in the file for readers that don't know the rule. */
static status decode_table(const struct input_file *file, const struct training_state_meta *meta, int32_t *words,
                           int32_t *expected, struct state_file *table)
{
    const int64_t bytes = state_header_bytes(table->count);
    TRY(input_read(file, words, sizeof words[0], bytes / (int64_t)sizeof words[0], 0));
    for (int i = 0; i < table->count; i++)
        TRY(decode_entry(file, &meta->config, words + FILE_HEADER_INTS, i, &table->entries[i]));
    if (state_lay_out(&meta->config, table->entries, table->count, &table->bytes, file->path) != STARPULLM_OK)
        return fail(STARPULLM_INVALID_FILE, "%s", last_error());
    char consequence_of[64];
    snprintf(consequence_of, sizeof consequence_of, "params, m and v of %d tensors", table->count);
    TRY(input_check_size(file, table->bytes, consequence_of));
    state_encode(expected, meta, table->entries, table->count);
    TRY(check_words(file, "header or table", words, expected, bytes / (int64_t)sizeof words[0], 0));
    table->fingerprint = state_fingerprint(words, bytes);
    return check_trailer(file, meta, table->fingerprint);
}

static status load_table(const struct input_file *file, const struct training_state_meta *meta,
                         struct state_file *table)
{
    const int64_t bytes = state_header_bytes(table->count);
    if (file->size < bytes + STATE_BLOCK)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: the file is %" PRId64 " bytes, expected at least %" PRId64
                    " (header, table of %d tensors and end): truncated",
                    file->path, file->size, bytes + STATE_BLOCK, table->count);
    table->entries = calloc((size_t)table->count + 1, sizeof *table->entries);
    int32_t *words = malloc(2 * (size_t)bytes);
    const status code = words && table->entries
                            ? decode_table(file, meta, words, words + bytes / (int64_t)sizeof words[0], table)
                            : no_memory(file->path);
    free(words);
    return code;
}

/* Rank 0's file sets what the other ranks' files must share. */
static status load_header(const struct input_file *file, struct training_state *state, int32_t rank,
                          struct training_state_meta *meta)
{
    int32_t header[FILE_HEADER_INTS];
    TRY(input_read_header(file, FORMAT_TRAINING_STATE, header));
    TRY(input_check_version(file, FORMAT_TRAINING_STATE, header));
    state_decode(meta, header);
    TRY(state_meta_check(meta, STARPULLM_INVALID_FILE, file->path));
    struct training_state_meta named = rank == 0 ? *meta : state->meta;
    named.num_ranks = state->meta.num_ranks;
    if (state->meta.step >= 0)
        named.step = state->meta.step;
    TRY(state_compare(file->path, meta, &named, false, rank == 0 ? "by its name" : "as in rank 0's file"));
    if (meta->rank != rank)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 32: rank is %" PRId32 ", expected %" PRId32 " (by its name)",
                    file->path, meta->rank, rank);
    struct state_file *table = &state->files[rank];
    table->count = header[STATE_WORD_TENSORS];
    if (table->count < 0)
        return fail(STARPULLM_INVALID_FILE, "%s: byte %d: the number of tensors is %d, expected at least 0", file->path,
                    4 * STATE_WORD_TENSORS, table->count);
    if (rank == 0)
        state->meta = *meta;
    return STARPULLM_OK;
}

static status check_file(const struct input_file *file, struct training_state *state, int32_t rank)
{
    struct training_state_meta meta;
    TRY(load_header(file, state, rank, &meta));
    return load_table(file, &meta, &state->files[rank]);
}

static status read_tensor(const struct input_file *file, const struct state_entry *entry, int part,
                          const struct tensor_destination *destination)
{
    const enum starpullm_group group = state_groups[part];
    float *values = NULL;
    TRY(destination->acquire(destination->context, group, entry->parameter, entry->layer, &values));
    status code = STARPULLM_OK;
    if (values)
        code = input_read(file, values, sizeof values[0], entry->elements, entry->positions[part]);
    destination->release(destination->context, group, entry->parameter, entry->layer);
    return code;
}

/* Checks the trailer again, because the file may have been replaced since it was first checked. */
static status read_tensors(const struct input_file *file, const struct training_state *state, int32_t rank,
                           const struct tensor_destination *destination)
{
    struct training_state_meta meta = state->meta;
    const struct state_file *table = &state->files[rank];
    meta.rank = rank;
    TRY(input_check_size(file, table->bytes, "when it was checked"));
    TRY(check_trailer(file, &meta, table->fingerprint));
    for (int i = 0; i < table->count; i++)
        for (int part = 0; part < STATE_PARTS; part++)
            TRY(read_tensor(file, &table->entries[i], part, destination));
    return STARPULLM_OK;
}

/* Opens the file of a rank; checks it, or reads its tensors if there is a destination. */
static status visit_file(struct training_state *state, int32_t rank, const struct tensor_destination *destination)
{
    char name[STATE_NAME_BYTES], *path;
    struct input_file file;
    state_file_name(name, rank, state->meta.num_ranks);
    if (asprintf(&path, "%s/%s", state->path, name) < 0)
        return no_memory(state->path);
    status code = input_open(&file, path);
    if (code == STARPULLM_OK) {
        code = destination ? read_tensors(&file, state, rank, destination) : check_file(&file, state, rank);
        input_close(&file);
    }
    free(path);
    return code;
}

/* ---- One state ---- */

static status check_all_tensors(const struct training_state *state)
{
    const model_config *config = &state->meta.config;
    const int64_t expected = state_instance(config, NUM_PARAMETERS, 0);
    int64_t found = 0;
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        found += state->files[rank].count;
    if (found != expected)
        return fail(STARPULLM_INVALID_FILE, "%s: its files have %" PRId64 " tensors, expected the model's %" PRId64,
                    state->path, found, expected);
    int32_t *owner = calloc((size_t)expected, sizeof *owner); /* rank + 1 */
    if (!owner)
        return no_memory(state->path);
    status code = STARPULLM_OK;
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        for (int i = 0; code == STARPULLM_OK && i < state->files[rank].count; i++) {
            const struct state_entry *entry = &state->files[rank].entries[i];
            int32_t *owned_by = &owner[state_instance(config, entry->parameter, entry->layer)];
            if (*owned_by != 0)
                code = fail(STARPULLM_INVALID_FILE,
                            "%s: %s[%d] is in the files of rank %" PRId32 " and of rank %" PRId32
                            ", expected each tensor once",
                            state->path, parameter_name(entry->parameter), entry->layer, *owned_by - 1, rank);
            *owned_by = rank + 1;
        }
    free(owner); /* as many tensors as the model has, none of them twice: none is missing */
    return code;
}

/* The step that the last component of a path names; -1 if there is none. */
static int64_t step_of_path(const char *path)
{
    char name[STATE_NAME_BYTES];
    int64_t step;
    size_t end = strlen(path), begin;
    while (end > 0 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--)
        ;
    if (end - begin >= sizeof name)
        return -1;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), path + begin);
    return state_folder_parse(name, &step) ? step : -1;
}

static status load_files(struct training_state *state)
{
    int num_files;
    int32_t num_ranks;
    TRY(complete_ranks(state->path, &num_ranks, &num_files));
    state->files = calloc((size_t)num_ranks, sizeof *state->files);
    if (!state->files)
        return no_memory(state->path);
    state->meta.num_ranks = num_ranks;
    state->meta.step = step_of_path(state->path);
    for (int32_t rank = 0; rank < num_ranks; rank++)
        TRY(visit_file(state, rank, NULL));
    return check_all_tensors(state);
}

status training_state_load(const char *folder, struct training_state **state)
{
    struct training_state *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return no_memory(folder);
    loaded->path = strdup(folder);
    const status code = loaded->path ? load_files(loaded) : no_memory(folder);
    if (code == STARPULLM_OK)
        *state = loaded;
    else
        training_state_close(loaded);
    return code;
}

bool is_incomplete_state(status code)
{
    return code == STARPULLM_INVALID_FILE || (code == STARPULLM_FILE_ERROR && last_error_number() == ENOENT);
}

/* ---- Opening ---- */

/* Tries the states from the newest on. *problem: what is wrong with the newest that isn't complete; NULL if there is
 * none. */
static status load_first_complete(const char *root, const int64_t *steps, int count, char **problem,
                                  struct training_state **state)
{
    for (int i = 0; i < count; i++) {
        char *path;
        TRY(state_folder_path(root, steps[i], &path));
        const status code = training_state_load(path, state);
        free(path);
        if (code == STARPULLM_OK || !is_incomplete_state(code))
            return code;
        if (!*problem && code == STARPULLM_INVALID_FILE)
            *problem = strdup(last_error());
    }
    if (*problem)
        return fail(STARPULLM_INVALID_FILE, "%s: no training state in it is complete (the newest: %s)", root, *problem);
    return fail(STARPULLM_INVALID_FILE,
                "%s: has no training state, expected a folder named like step-000000000000 with files named like "
                "rank-00000-of-00001.state",
                root);
}

static status load_newest(const char *root, const int64_t *steps, int count, struct training_state **state)
{
    char *problem = NULL;
    const status code = load_first_complete(root, steps, count, &problem, state);
    if (code == STARPULLM_OK)
        (*state)->passed_over = problem;
    else
        free(problem);
    return code;
}

status training_state_open(const char *path, struct training_state **state)
{
    *state = NULL;
    if (!path)
        return fail(STARPULLM_INVALID_ARGUMENT, "path is NULL, expected the path of a folder");
    int64_t *steps;
    int count, num_files;
    int32_t num_ranks;
    TRY(list_steps(path, &steps, &count));
    status code = complete_ranks(path, &num_ranks, &num_files);
    if (num_files > 0 || (step_of_path(path) >= 0 && count == 0))
        code = training_state_load(path, state);
    else if (code == STARPULLM_INVALID_FILE)
        code = load_newest(path, steps, count, state);
    free(steps);
    return code;
}

void training_state_close(struct training_state *state)
{
    if (!state)
        return;
    for (int32_t rank = 0; state->files && rank < state->meta.num_ranks; rank++)
        free(state->files[rank].entries);
    free(state->files);
    free(state->passed_over);
    free(state->path);
    free(state);
}

const struct training_state_meta *training_state_meta(const struct training_state *state)
{
    return &state->meta;
}

const char *training_state_path(const struct training_state *state)
{
    return state->path;
}

const char *training_state_passed_over(const struct training_state *state)
{
    return state->passed_over ? state->passed_over : "";
}

status training_state_read(struct training_state *state, const model_config *expected,
                           const struct tensor_destination *destination)
{
    const struct training_state_meta model = {.config = *expected};
    TRY(state_compare(state->path, &state->meta, &model, true, "this model's"));
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        TRY(visit_file(state, rank, destination));
    return STARPULLM_OK;
}

status starpullm_training_state_info(const char *path, struct starpullm_training_state_info *info)
{
    CHECK_POINTER(path);
    CHECK_STRUCT(info);
    struct training_state *state;
    TRY(training_state_open(path, &state));
    const struct training_state_meta *meta = &state->meta;
    *info = (struct starpullm_training_state_info){
        .size = sizeof *info,
        .config = meta->config,
        .step = meta->step,
        .batches = meta->batches,
        .batch_size = meta->batch_size,
        .seq_len = meta->seq_len,
        .seed = meta->seed,
        .data_id = meta->data_id,
        .ranks = meta->num_ranks,
        .learning_rate = meta->learning_rate,
        .beta1 = meta->beta1,
        .beta2 = meta->beta2,
        .eps = meta->eps,
        .weight_decay = meta->weight_decay,
        .blas = meta->blas,
    };
    const int length = snprintf(info->path, sizeof info->path, "%s", state->path);
    snprintf(info->passed_over, sizeof info->passed_over, "%s", training_state_passed_over(state));
    training_state_close(state);
    if (length >= (int)sizeof info->path)
        return fail(STARPULLM_INVALID_ARGUMENT, "path: found %d characters, expected at most %zu", length,
                    sizeof info->path - 1);
    return STARPULLM_OK;
}
