/* Finds, checks and reads training states. */
#include "io/checkpoint.h"
#include "io/training_state_files.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct state_file {
    struct state_head *head;
    int64_t bytes;
};

static status no_memory(const char *path)
{
    return out_of_memory("%s: its table could not be allocated", path);
}

/* ---- One rank's file ---- */

/* `whose` says where the expected words are from. */
static status check_words(const struct input_file *file, const char *what, const void *found, const void *expected,
                          int64_t bytes, int64_t position, const char *whose)
{
    for (int64_t i = 0; i < bytes; i += 4) {
        uint32_t f, e;
        memcpy(&f, (const char *)found + i, sizeof f);
        memcpy(&e, (const char *)expected + i, sizeof e);
        if (f != e)
            return invalid_file("%s: byte %" PRId64 ": the %s has 0x%08" PRIx32 ", expected 0x%08" PRIx32 " (%s)",
                                file->path, position + i, what, f, e, whose);
    }
    return STARPULLM_OK;
}

static const char by_header[] = "by the header: one of the two is damaged";

static status check_end(const struct input_file *file, const struct state_head *head)
{
    struct state_end found;
    const int64_t position = file->size - STATE_BLOCK;
    TRY(input_read(file, &found, sizeof found, position));
    const struct state_end expected = state_end_of(head, file->size);
    return check_words(file, "end", &found, &expected, sizeof found, position, by_header);
}

static status check_entry(const struct input_file *file, const struct state_head *head, int number)
{
    const int64_t position = (const char *)&head->entries[number] - (const char *)head;
    const int32_t p = head->entries[number].parameter, layer = head->entries[number].layer;
    if (p < 0 || p >= NUM_PARAMETERS)
        return invalid_file("%s: byte %" PRId64 ": parameter is number %" PRId32 ", expected 0 to %d", file->path,
                            position, p, NUM_PARAMETERS - 1);
    const int instances = parameter_instances(&head->meta.config, (enum parameter)p);
    if (layer < 0 || layer >= instances)
        return invalid_file("%s: byte %" PRId64 ": layer of %s is %" PRId32 ", expected 0 to %d", file->path,
                            position + 4, parameters[p].name, layer, instances - 1);
    return STARPULLM_OK;
}

/* Which tensors there are, and their checksums, is all that the table says: everything else follows, and is in the file
 * for readers that don't know the rule. `found` has room for the head. */
static status check_table(const struct input_file *file, struct state_head *found, struct state_file *table)
{
    struct state_head *head = table->head;
    const int64_t bytes = state_head_bytes(head->meta.num_tensors);
    TRY(input_read(file, found, bytes, 0));
    for (int i = 0; i < head->meta.num_tensors; i++) {
        TRY(check_entry(file, found, i));
        head->entries[i].parameter = found->entries[i].parameter;
        head->entries[i].layer = found->entries[i].layer;
    }
    memcpy(state_checksums(head), state_checksums(found),
           (size_t)head->meta.num_tensors * STATE_GROUPS * sizeof(uint32_t));
    TRY(state_lay_out(head, &table->bytes, STARPULLM_INVALID_FILE, file->path));
    char consequence_of[64];
    snprintf(consequence_of, sizeof consequence_of, "params, m and v of %d tensors", head->meta.num_tensors);
    TRY(input_check_size(file, table->bytes, consequence_of));
    TRY(check_words(file, "header or table", found, head, bytes, 0, by_header));
    return check_end(file, head);
}

static status load_table(const struct input_file *file, const struct training_state_meta *meta,
                         struct state_file *table)
{
    const int64_t bytes = state_head_bytes(meta->num_tensors);
    if (file->size < bytes + STATE_BLOCK)
        return invalid_file("%s: the file is %" PRId64 " bytes, expected at least %" PRId64
                            " (header, table of %d tensors and end): truncated",
                            file->path, file->size, bytes + STATE_BLOCK, meta->num_tensors);
    table->head = state_head_create(meta);
    struct state_head *found = malloc((size_t)bytes);
    const status code = found && table->head ? check_table(file, found, table) : no_memory(file->path);
    free(found);
    return code;
}

/* Rank 0's file sets what the other ranks' files must share: all of meta but the rank and its number of tensors. */
static status check_file(const struct input_file *file, struct training_state *state, int32_t rank)
{
    int32_t header[FILE_HEADER_INTS];
    struct training_state_meta meta;
    TRY(input_read_header(file, FORMAT_TRAINING_STATE, header));
    memcpy(&meta, (const char *)header + offsetof(struct state_head, meta), sizeof meta);
    TRY(state_meta_check(&meta, STARPULLM_INVALID_FILE, file->path));
    struct training_state_meta named = rank == 0 ? meta : state->meta;
    named.rank = meta.rank;
    named.num_tensors = meta.num_tensors;
    named.zero = meta.zero;
    named.num_ranks = state->meta.num_ranks;
    if (state->meta.step >= 0)
        named.step = state->meta.step;
    const char *whose = rank == 0 ? "by its name" : "as in rank 0's file";
    TRY(check_same_model(file->path, &meta.config, &named.config, whose));
    TRY(check_words(file, "header", &meta, &named, sizeof meta, offsetof(struct state_head, meta), whose));
    if (meta.rank != rank)
        return invalid_file("%s: byte 32: rank is %" PRId32 ", expected %" PRId32 " (by its name)", file->path,
                            meta.rank, rank);
    if (rank == 0)
        state->meta = meta;
    return load_table(file, &meta, &state->files[rank]);
}

/* Checks the end again, because the file may have been replaced since it was first checked. */
static status read_tensors(const struct input_file *file, const struct state_file *table,
                           const struct tensor_buffers *buffers)
{
    TRY(input_check_size(file, table->bytes, "when it was checked"));
    TRY(check_end(file, table->head));
    const uint32_t *checksum = state_checksums(table->head);
    for (int i = 0; i < table->head->meta.num_tensors; i++) {
        const struct state_entry *entry = &table->head->entries[i];
        for (int group = 0; group < STATE_GROUPS; group++) {
            const struct stored_tensor tensor = {state_groups[group], (enum parameter)entry->parameter, entry->layer,
                                                 entry->elements,     entry->positions[group],          checksum++};
            TRY(input_read_tensor(file, &tensor, buffers));
        }
    }
    return STARPULLM_OK;
}

/* Opens the file of a rank; checks it, or reads its tensors if there are buffers. */
static status visit_file(struct training_state *state, int32_t rank, const struct tensor_buffers *buffers)
{
    char name[STATE_NAME_BYTES], *path;
    struct input_file file;
    snprintf(name, sizeof name, STATE_FILE, rank, state->meta.num_ranks);
    if (asprintf(&path, "%s/%s", state->path, name) < 0)
        return no_memory(state->path);
    status code = input_open(&file, state->folder, name, path);
    if (code == STARPULLM_OK) {
        code = buffers ? read_tensors(&file, &state->files[rank], buffers) : check_file(&file, state, rank);
        input_close(&file);
    }
    free(path);
    return code;
}

/* ---- One state ---- */

static status check_each_once(const struct training_state *state, int32_t *owner /* rank + 1 of each tensor */)
{
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++) {
        const struct state_head *head = state->files[rank].head;
        for (int i = 0; i < head->meta.num_tensors; i++) {
            const enum parameter p = (enum parameter)head->entries[i].parameter;
            const int layer = head->entries[i].layer;
            int32_t *owned_by = &owner[parameter_number(&state->meta.config, p, layer)];
            if (*owned_by != 0)
                return invalid_file("%s: %s[%d] is in the files of rank %" PRId32 " and of rank %" PRId32
                                    ", expected each tensor once",
                                    state->path, parameters[p].name, layer, *owned_by - 1, rank);
            *owned_by = rank + 1;
        }
    }
    return STARPULLM_OK; /* as many tensors as the model has, none of them twice: none is missing */
}

static status check_all_tensors(const struct training_state *state)
{
    const int64_t expected = parameter_number(&state->meta.config, NUM_PARAMETERS, 0);
    int64_t found = 0;
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        found += state->files[rank].head->meta.num_tensors;
    if (found != expected)
        return invalid_file("%s: its files have %" PRId64 " tensors, expected the model's %" PRId64, state->path, found,
                            expected);
    int32_t *owner = calloc((size_t)expected, sizeof *owner);
    const status code = owner ? check_each_once(state, owner) : no_memory(state->path);
    free(owner);
    return code;
}

/* The step that the last component of a path names; -1 if there is none. */
static int64_t step_of_path(const char *path)
{
    char *copy = strdup(path);
    const int64_t step = copy ? state_step_of(basename(copy)) : -1;
    free(copy);
    return step;
}

static status load_files(struct training_state *state)
{
    int num_files;
    int32_t num_ranks;
    TRY(state_complete_ranks(state->folder, state->path, &num_ranks, &num_files));
    state->files = calloc((size_t)num_ranks, sizeof *state->files);
    if (!state->files)
        return no_memory(state->path);
    state->meta.num_ranks = num_ranks;
    state->meta.step = step_of_path(state->path);
    for (int32_t rank = 0; rank < num_ranks; rank++)
        TRY(visit_file(state, rank, NULL));
    return check_all_tensors(state);
}

status training_state_load(int folder, const char *path, struct training_state **state)
{
    struct training_state *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return no_memory(path);
    loaded->path = strdup(path);
    status code = state_open_folder(folder, ".", path, 0, &loaded->folder);
    if (!loaded->path)
        code = no_memory(path);
    if (code == STARPULLM_OK)
        code = load_files(loaded);
    if (code == STARPULLM_OK)
        *state = loaded;
    else
        training_state_close(loaded);
    return code;
}

bool is_incomplete_state(status code)
{
    const int error = starpullm_last_error_number();
    return code == STARPULLM_INVALID_FILE || (code == STARPULLM_FILE_ERROR && (error == ENOENT || error == ESTALE));
}

/* ---- Opening ---- */

static status load_in(const struct state_root *root, const char *name, struct training_state **state)
{
    struct step_folder step;
    status code = step_open(&step, root, name, 0);
    if (code == STARPULLM_OK)
        code = training_state_load(step.descriptor, step.path, state);
    step_close(&step);
    return code;
}

/* Tries the states from the newest on. */
static status load_newest(const struct state_root *root, struct dirent **folders, int count,
                          struct training_state **state)
{
    char problem[SENTENCE_BYTES] = ""; /* of the newest that isn't complete */
    for (int i = 0; i < count; i++) {
        const status code = load_in(root, folders[i]->d_name, state);
        if (code == STARPULLM_OK && problem[0])
            (*state)->passed_over = strdup(problem);
        if (code == STARPULLM_OK || !is_incomplete_state(code))
            return code;
        if (!problem[0] && code == STARPULLM_INVALID_FILE)
            strcpy(problem, starpullm_last_error());
    }
    if (problem[0])
        return invalid_file("%s: no training state in it is complete (the newest: %s)", root->path, problem);
    return invalid_file("%s: has no training state, expected a folder named like step-000000000000 with files named "
                        "like rank-00000-of-00001.state",
                        root->path);
}

/* `folder` is a root, or a state's own. */
static status open_state(const struct state_root *folder, struct training_state **state)
{
    struct dirent **folders;
    int count, num_files;
    int32_t num_ranks;
    TRY(state_list(folder, &folders, &count));
    status code = state_complete_ranks(folder->descriptor, folder->path, &num_ranks, &num_files);
    if (num_files > 0 || (step_of_path(folder->path) >= 0 && count == 0))
        code = training_state_load(folder->descriptor, folder->path, state);
    else if (code == STARPULLM_INVALID_FILE)
        code = load_newest(folder, folders, count, state);
    state_free_list(folders, count);
    return code;
}

status training_state_open(const char *path, struct training_state **state)
{
    struct state_root folder = {(char *)path, -1};
    *state = NULL;
    TRY(state_open_folder(AT_FDCWD, path, path, 0, &folder.descriptor));
    const status code = open_state(&folder, state);
    close(folder.descriptor);
    return code;
}

void training_state_close(struct training_state *state)
{
    if (!state)
        return;
    for (int32_t rank = 0; state->files && rank < state->meta.num_ranks; rank++)
        free(state->files[rank].head);
    free(state->files);
    if (state->folder >= 0)
        close(state->folder);
    free(state->passed_over);
    free(state->path);
    free(state);
}

status training_state_read(struct training_state *state, const model_config *expected,
                           const struct tensor_buffers *buffers)
{
    TRY(check_same_model(state->path, &state->meta.config, expected, "this model's"));
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        TRY(visit_file(state, rank, buffers));
    return STARPULLM_OK;
}

status starpullm_training_state_info(const char *path, struct starpullm_training_state_info *info)
{
    CHECK_POINTERS(path);
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
        .arithmetic = meta->arithmetic,
    };
    const int length = snprintf(info->path, sizeof info->path, "%s", state->path);
    snprintf(info->passed_over, sizeof info->passed_over, "%s", state->passed_over ? state->passed_over : "");
    training_state_close(state);
    if (length >= (int)sizeof info->path)
        return invalid_argument("path: found %d characters, expected at most %zu", length, sizeof info->path - 1);
    return STARPULLM_OK;
}
