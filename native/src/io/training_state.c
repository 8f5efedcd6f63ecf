/* Finds, checks and reads training states, and removes those that newer ones replace. saving.c, session.c and api.c
 * call it. */
#include "io/training_state_format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIST_ATTEMPTS = 100 }; /* while another process removes states as fast as they are listed */

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

/* ---- Folders ---- */

struct file_name {
    int32_t rank, num_ranks;
};

/* What a folder holds of training states. */
struct listing {
    int64_t *steps; /* descending */
    size_t num_steps;
    struct file_name *files; /* by number of ranks, then by rank */
    size_t num_files;
};

static void free_listing(struct listing *listing)
{
    free(listing->steps);
    free(listing->files);
    *listing = (struct listing){0};
}

static int newest_first(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

static int by_ranks(const void *left, const void *right)
{
    const struct file_name *a = left, *b = right;
    if (a->num_ranks != b->num_ranks)
        return (a->num_ranks > b->num_ranks) - (a->num_ranks < b->num_ranks);
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* The array, with room for one more element. NULL if there is no memory; the array is still there then. */
static void *with_room(void *array, size_t count, size_t size)
{
    if ((count & (count - 1)) != 0) /* there is room up to the next power of two */
        return array;
    return realloc(array, (count > 0 ? 2 * count : 1) * size);
}

static bool add_name(struct listing *listing, const char *name)
{
    int64_t step;
    struct file_name file;
    if (state_folder_parse(name, &step)) {
        void *grown = with_room(listing->steps, listing->num_steps, sizeof step);
        if (grown == NULL)
            return false;
        listing->steps = grown;
        listing->steps[listing->num_steps++] = step;
    } else if (state_file_parse(name, &file.rank, &file.num_ranks)) {
        void *grown = with_room(listing->files, listing->num_files, sizeof file);
        if (grown == NULL)
            return false;
        listing->files = grown;
        listing->files[listing->num_files++] = file;
    }
    return true;
}

static status list_folder(const char *path, struct listing *listing)
{
    *listing = (struct listing){0};
    DIR *folder = opendir(path);
    if (folder == NULL)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open the folder", path);
    status result = STARPULLM_OK;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL && errno != 0)
            result = fail_errno(STARPULLM_FILE_ERROR, errno, "%s: list the folder", path);
        if (entry == NULL)
            break;
        if (!add_name(listing, entry->d_name)) {
            result = fail(STARPULLM_OUT_OF_MEMORY, "%s: a list of its content could not be allocated", path);
            break;
        }
    }
    closedir(folder);
    if (result != STARPULLM_OK)
        free_listing(listing);
    if (listing->num_steps > 0)
        qsort(listing->steps, listing->num_steps, sizeof listing->steps[0], newest_first);
    if (listing->num_files > 0)
        qsort(listing->files, listing->num_files, sizeof listing->files[0], by_ranks);
    return result;
}

/* The number of ranks whose files are all there. */
static status complete_ranks(const char *path, const struct listing *listing, int32_t *num_ranks)
{
    *num_ranks = 0;
    const struct file_name *files = listing->files;
    char problem[2 * STATE_NAME_BYTES + 64] = "no file named like rank-00000-of-00001.state is there";
    for (size_t first = 0, end; first < listing->num_files; first = end) {
        const int32_t ranks = files[first].num_ranks;
        int32_t missing = -1;
        for (end = first; end < listing->num_files && files[end].num_ranks == ranks; end++)
            if (missing < 0 && files[end].rank != (int32_t)(end - first))
                missing = (int32_t)(end - first);
        if ((int64_t)(end - first) == ranks) {
            if (*num_ranks != 0)
                return fail(STARPULLM_INVALID_FILE,
                            "%s: the files of %" PRId32 " ranks are there and those of %" PRId32
                            ", expected those of one save",
                            path, *num_ranks, ranks);
            *num_ranks = ranks;
            continue;
        }
        char name[STATE_NAME_BYTES];
        state_file_name(name, missing < 0 ? (int32_t)(end - first) : missing, ranks);
        snprintf(problem, sizeof problem, "%s is missing (%zu of %" PRId32 " files are there)", name, end - first,
                 ranks);
    }
    if (*num_ranks == 0)
        return fail(STARPULLM_INVALID_FILE, "%s: incomplete: %s", path, problem);
    return STARPULLM_OK;
}

/* ---- One rank's file ---- */

static status no_memory(const char *path)
{
    return fail(STARPULLM_OUT_OF_MEMORY, "%s: its table could not be allocated", path);
}

/* `position` is the entry's in the file. */
static status decode_entry(const struct input_file *file, const model_config *config, const int32_t *words,
                           int64_t position, struct state_entry *entry)
{
    const int32_t p = words[0], layer = words[1];
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

/* Elements and positions follow from the tensors; the file has them for readers that don't know the rule. */
static status check_entry(const struct input_file *file, const int32_t *words, int64_t position,
                          const struct state_entry *entry)
{
    const char *name = parameter_name(entry->parameter);
    if (get_int64(words + 2) != entry->elements)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: byte %" PRId64 ": %s[%d] has %" PRId64 " elements, expected %" PRId64 " (this model's)",
                    file->path, position + 8, name, entry->layer, get_int64(words + 2), entry->elements);
    for (int part = 0; part < STATE_PARTS; part++)
        if (get_int64(words + 4 + 2 * part) != entry->positions[part])
            return fail(STARPULLM_INVALID_FILE,
                        "%s: byte %" PRId64 ": group %d of %s[%d] begins at byte %" PRId64 ", expected %" PRId64,
                        file->path, position + 16 + 8 * part, (int)state_groups[part], name, entry->layer,
                        get_int64(words + 4 + 2 * part), entry->positions[part]);
    return STARPULLM_OK;
}

/* words: header and table. */
static status decode_table(const struct input_file *file, const model_config *config, const int32_t *words,
                           struct state_file *table)
{
    table->entries = calloc((size_t)table->count + 1, sizeof *table->entries);
    if (table->entries == NULL)
        return no_memory(file->path);
    const int32_t *entries = words + FILE_HEADER_INTS;
    const int64_t entry_bytes = STATE_ENTRY_WORDS * (int64_t)sizeof words[0];
    for (int i = 0; i < table->count; i++)
        TRY(decode_entry(file, config, entries + i * STATE_ENTRY_WORDS, FILE_HEADER_BYTES + i * entry_bytes,
                         &table->entries[i]));
    if (state_lay_out(config, table->entries, table->count, &table->bytes, file->path) != STARPULLM_OK)
        return fail(STARPULLM_INVALID_FILE, "%s", last_error());
    for (int i = 0; i < table->count; i++)
        TRY(check_entry(file, entries + i * STATE_ENTRY_WORDS, FILE_HEADER_BYTES + i * entry_bytes,
                        &table->entries[i]));
    char consequence_of[64];
    snprintf(consequence_of, sizeof consequence_of, "params, m and v of %d tensors", table->count);
    return input_check_size(file, table->bytes, consequence_of);
}

static status check_trailer(const struct input_file *file, const struct training_state_meta *meta, uint64_t fingerprint)
{
    int32_t found[STATE_BLOCK_WORDS], expected[STATE_BLOCK_WORDS];
    TRY(input_read(file, found, sizeof found[0], STATE_BLOCK_WORDS, file->size - STATE_BLOCK));
    state_encode_trailer(expected, meta, fingerprint, file->size);
    for (int i = 0; i < STATE_BLOCK_WORDS; i++)
        if (found[i] != expected[i])
            return fail(STARPULLM_INVALID_FILE,
                        "%s: byte %" PRId64 ": the end has 0x%08" PRIx32 ", expected 0x%08" PRIx32
                        ", which goes with the header: one of the two is damaged",
                        file->path, file->size - STATE_BLOCK + 4 * i, (uint32_t)found[i], (uint32_t)expected[i]);
    return STARPULLM_OK;
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
    int32_t *words = malloc((size_t)bytes);
    if (words == NULL)
        return no_memory(file->path);
    status result = input_read(file, words, sizeof words[0], bytes / (int64_t)sizeof words[0], 0);
    if (result == STARPULLM_OK)
        result = decode_table(file, &meta->config, words, table);
    if (result == STARPULLM_OK) {
        table->fingerprint = state_fingerprint(words, bytes);
        result = check_trailer(file, meta, table->fingerprint);
    }
    free(words);
    return result;
}

/* rank 0 sets what the other ranks' files must share. */
static status load_header(const struct input_file *file, struct training_state *state, int32_t rank, int64_t step,
                          struct training_state_meta *meta, struct state_file *table)
{
    int32_t header[FILE_HEADER_INTS];
    TRY(input_read_header(file, FORMAT_TRAINING_STATE, header));
    TRY(input_check_version(file, FORMAT_TRAINING_STATE, header));
    state_decode(meta, header);
    TRY(state_meta_check(meta, STARPULLM_INVALID_FILE, file->path));
    struct training_state_meta named = rank == 0 ? *meta : state->meta;
    named.num_ranks = state->meta.num_ranks;
    if (step >= 0)
        named.step = step;
    TRY(state_compare(file->path, header, &named, false, rank == 0 ? "by its name" : "as in rank 0's file"));
    if (meta->rank != rank)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 32: rank is %" PRId32 ", expected %" PRId32 " (by its name)",
                    file->path, meta->rank, rank);
    table->count = header[STATE_WORD_TENSORS];
    if (table->count < 0)
        return fail(STARPULLM_INVALID_FILE, "%s: byte %d: the number of tensors is %d, expected at least 0", file->path,
                    4 * STATE_WORD_TENSORS, table->count);
    if (rank == 0)
        state->meta = *meta;
    return STARPULLM_OK;
}

static status open_file(const struct training_state *state, int32_t rank, char **path, struct input_file *file)
{
    char name[STATE_NAME_BYTES];
    state_file_name(name, rank, state->meta.num_ranks);
    if (asprintf(path, "%s/%s", state->path, name) < 0) {
        *path = NULL;
        return no_memory(state->path);
    }
    status result = input_open(file, *path);
    if (result != STARPULLM_OK)
        free(*path);
    return result;
}

static status load_file(struct training_state *state, int32_t rank, int64_t step)
{
    char *path;
    struct input_file file;
    struct training_state_meta meta;
    TRY(open_file(state, rank, &path, &file));
    status result = load_header(&file, state, rank, step, &meta, &state->files[rank]);
    if (result == STARPULLM_OK)
        result = load_table(&file, &meta, &state->files[rank]);
    input_close(&file);
    free(path);
    return result;
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
    if (owner == NULL)
        return no_memory(state->path);
    status result = STARPULLM_OK;
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        for (int i = 0; result == STARPULLM_OK && i < state->files[rank].count; i++) {
            const struct state_entry *entry = &state->files[rank].entries[i];
            int32_t *owned_by = &owner[state_instance(config, entry->parameter, entry->layer)];
            if (*owned_by != 0)
                result = fail(STARPULLM_INVALID_FILE,
                              "%s: %s[%d] is in the files of rank %" PRId32 " and of rank %" PRId32
                              ", expected each tensor once",
                              state->path, parameter_name(entry->parameter), entry->layer, *owned_by - 1, rank);
            *owned_by = rank + 1;
        }
    free(owner); /* as many tensors as the model has, none twice: none is missing */
    return result;
}

/* Takes over `path`. step: by the folder's name; -1 if it is named otherwise. */
static status load_state(char *path, int64_t step, const struct listing *listing, struct training_state **state)
{
    struct training_state *loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL) {
        free(path);
        return fail(STARPULLM_OUT_OF_MEMORY, "a training state could not be allocated");
    }
    loaded->path = path;
    int32_t num_ranks;
    status result = complete_ranks(path, listing, &num_ranks);
    if (result == STARPULLM_OK) {
        loaded->meta.num_ranks = num_ranks;
        loaded->files = calloc((size_t)num_ranks, sizeof *loaded->files);
        if (loaded->files == NULL) {
            loaded->meta.num_ranks = 0;
            result = no_memory(path);
        }
    }
    for (int32_t rank = 0; result == STARPULLM_OK && rank < num_ranks; rank++)
        result = load_file(loaded, rank, step);
    if (result == STARPULLM_OK)
        result = check_all_tensors(loaded);
    if (result == STARPULLM_OK)
        *state = loaded;
    else
        training_state_close(loaded);
    return result;
}

/* The state of one step under root. */
static status load_step(const char *root, int64_t step, struct training_state **state)
{
    char name[STATE_NAME_BYTES], *path;
    struct listing listing;
    state_folder_name(name, step);
    if (asprintf(&path, "%s/%s", root, name) < 0)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: the path of a training state could not be allocated", root);
    status result = list_folder(path, &listing);
    if (result != STARPULLM_OK) {
        free(path);
        return result;
    }
    result = load_state(path, step, &listing, state);
    free_listing(&listing);
    return result;
}

/* A state that isn't complete, or that has been removed since it was listed: an older one may do. */
static bool is_gone(status result)
{
    return result == STARPULLM_FILE_ERROR && last_error_number() == ENOENT;
}

static bool may_pass_over(status result)
{
    return result == STARPULLM_INVALID_FILE || is_gone(result);
}

/* ---- Opening ---- */

/* *gone: nothing is complete, but something was removed meanwhile. */
static status load_newest(const char *root, const struct listing *listing, struct training_state **state, bool *gone)
{
    char *newest = NULL; /* what is wrong with it */
    status result = STARPULLM_INVALID_FILE;
    *gone = false;
    for (size_t i = 0; i < listing->num_steps && result != STARPULLM_OK; i++) {
        result = load_step(root, listing->steps[i], state);
        if (result == STARPULLM_OK)
            break;
        *gone = *gone || is_gone(result);
        if (newest == NULL && !is_gone(result))
            newest = strdup(last_error());
        if (!may_pass_over(result)) {
            free(newest);
            return result;
        }
    }
    if (result == STARPULLM_OK) {
        *gone = false;
        (*state)->passed_over = newest;
        return STARPULLM_OK;
    }
    if (newest != NULL)
        result = fail(STARPULLM_INVALID_FILE, "%s: no training state in it is complete (the newest: %s)", root, newest);
    else
        result = fail(STARPULLM_INVALID_FILE,
                      "%s: has no training state, expected a folder named like step-000000000000 with files named "
                      "like rank-00000-of-00001.state",
                      root);
    free(newest);
    return result;
}

/* The step in the last component of a path; -1 if there is none. */
static int64_t step_of_path(const char *path)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    char name[STATE_NAME_BYTES];
    int64_t step;
    if (end - begin >= sizeof name)
        return -1;
    memcpy(name, path + begin, end - begin);
    name[end - begin] = '\0';
    return state_folder_parse(name, &step) ? step : -1;
}

static status open_listed(const char *path, const struct listing *listing, struct training_state **state, bool *gone)
{
    *gone = false;
    const int64_t step = step_of_path(path);
    if (listing->num_files == 0 && (step < 0 || listing->num_steps > 0))
        return load_newest(path, listing, state, gone);
    char *copy = strdup(path);
    if (copy == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: the path of a training state could not be allocated", path);
    return load_state(copy, step, listing, state);
}

status training_state_open(const char *path, struct training_state **state)
{
    *state = NULL;
    if (path == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "path is NULL, expected the path of a folder");
    status result = STARPULLM_OK;
    bool gone = true;
    for (int attempt = 0; gone && attempt < LIST_ATTEMPTS; attempt++) {
        struct listing listing;
        TRY(list_folder(path, &listing));
        result = open_listed(path, &listing, state, &gone);
        free_listing(&listing);
    }
    return result;
}

void training_state_close(struct training_state *state)
{
    if (state == NULL)
        return;
    for (int32_t rank = 0; state->files != NULL && rank < state->meta.num_ranks; rank++)
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
    return state->passed_over != NULL ? state->passed_over : "";
}

/* ---- Reading ---- */

static status read_tensor(const struct input_file *file, const struct state_entry *entry, int part,
                          const struct training_state_destination *destination)
{
    const enum starpullm_group group = state_groups[part];
    float *values = NULL;
    TRY(destination->acquire(destination->context, group, entry->parameter, entry->layer, &values));
    status result = STARPULLM_OK;
    if (values != NULL)
        result = input_read(file, values, sizeof values[0], entry->elements, entry->positions[part]);
    destination->release(destination->context, group, entry->parameter, entry->layer);
    return result;
}

/* The file may have been replaced since it was checked, so its end is looked at again. */
static status read_file(const struct training_state *state, int32_t rank,
                        const struct training_state_destination *destination)
{
    char *path;
    struct input_file file;
    struct training_state_meta meta = state->meta;
    const struct state_file *table = &state->files[rank];
    meta.rank = rank;
    TRY(open_file(state, rank, &path, &file));
    status result = input_check_size(&file, table->bytes, "when it was checked");
    if (result == STARPULLM_OK)
        result = check_trailer(&file, &meta, table->fingerprint);
    for (int i = 0; result == STARPULLM_OK && i < table->count; i++)
        for (int part = 0; result == STARPULLM_OK && part < STATE_PARTS; part++)
            result = read_tensor(&file, &table->entries[i], part, destination);
    input_close(&file);
    free(path);
    return result;
}

status training_state_read(const struct training_state *state, const model_config *expected,
                           const struct training_state_destination *destination)
{
    int32_t header[FILE_HEADER_INTS];
    struct training_state_meta model = {.config = *expected};
    state_encode_header(header, &state->meta, 0);
    TRY(state_compare(state->path, header, &model, true, "this model's"));
    for (int32_t rank = 0; rank < state->meta.num_ranks; rank++)
        TRY(read_file(state, rank, destination));
    return STARPULLM_OK;
}

/* ---- Removing ---- */

static status remove_failed(const char *root, const char *name, const char *what)
{
    return fail_errno(STARPULLM_FILE_ERROR, errno, "%s/%s: %s", root, name, what);
}

/* Whatever isn't a training state's stays, and with it the folder. What is gone already was removed by another. */
static status remove_state(const char *root, int root_descriptor, int64_t step)
{
    char name[STATE_NAME_BYTES];
    state_folder_name(name, step);
    const int descriptor = openat(root_descriptor, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0)
        return errno == ENOENT ? STARPULLM_OK : remove_failed(root, name, "open the folder");
    DIR *folder = fdopendir(descriptor);
    if (folder == NULL) {
        close(descriptor);
        return fail(STARPULLM_OUT_OF_MEMORY, "%s/%s: its list could not be allocated", root, name);
    }
    status result = STARPULLM_OK;
    for (const struct dirent *entry; result == STARPULLM_OK && (entry = readdir(folder)) != NULL;) {
        struct file_name file;
        if (!state_file_parse(entry->d_name, &file.rank, &file.num_ranks) && !state_temporary_parse(entry->d_name))
            continue;
        if (unlinkat(descriptor, entry->d_name, 0) != 0 && errno != ENOENT)
            result = remove_failed(root, name, "remove a file in it");
    }
    closedir(folder);
    if (result == STARPULLM_OK && unlinkat(root_descriptor, name, AT_REMOVEDIR) != 0 && errno != ENOENT &&
        errno != ENOTEMPTY && errno != EEXIST)
        result = remove_failed(root, name, "remove the folder");
    return result;
}

/* The newest complete state is on the disk, names included, before what it replaces goes. */
static status sync_state(const char *root, int root_descriptor, int64_t step)
{
    char name[STATE_NAME_BYTES];
    state_folder_name(name, step);
    const int descriptor = openat(root_descriptor, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return remove_failed(root, name, "open the folder");
    status result = STARPULLM_OK;
    if (sync_folder(descriptor) != 0 || sync_folder(root_descriptor) != 0)
        result = remove_failed(root, name, "fsync of the folder");
    close(descriptor);
    return result;
}

static status prune_listed(const char *root, int descriptor, const struct listing *listing, int64_t step, int keep)
{
    int complete = 0;
    for (size_t i = 0; i < listing->num_steps; i++) {
        struct training_state *state;
        if (listing->steps[i] > step)
            continue;
        bool kept = false;
        if (complete < keep) {
            status result = load_step(root, listing->steps[i], &state);
            if (result == STARPULLM_OK) {
                training_state_close(state);
                if (complete == 0)
                    TRY(sync_state(root, descriptor, listing->steps[i]));
                complete++;
                kept = true;
            } else if (!may_pass_over(result)) {
                return result;
            }
        }
        if (!kept && complete > 0)
            TRY(remove_state(root, descriptor, listing->steps[i]));
    }
    return STARPULLM_OK;
}

status training_state_prune(const char *root, int64_t step, int keep)
{
    struct listing listing;
    if (root == NULL || keep < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: keep is %d, expected at least 1 state",
                    root != NULL ? root : "root is NULL", keep);
    TRY(list_folder(root, &listing));
    status result;
    const int descriptor = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        result = fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open the folder", root);
    } else {
        result = prune_listed(root, descriptor, &listing, step, keep);
        close(descriptor);
    }
    free_listing(&listing);
    return result;
}
