/* Lists the folders and files of training states, and removes the states that newer ones replace. */
#include "io/training_state_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct file_name {
    int32_t rank, num_ranks;
};

/* ---- Listing ---- */

static int64_t step_of(const struct dirent *entry)
{
    int64_t step;
    return state_folder_parse(entry->d_name, &step) ? step : -1;
}

static struct file_name file_of(const struct dirent *entry)
{
    struct file_name file;
    return state_file_parse(entry->d_name, &file.rank, &file.num_ranks) ? file : (struct file_name){-1, -1};
}

static int is_step(const struct dirent *entry)
{
    return step_of(entry) >= 0;
}

static int is_file(const struct dirent *entry)
{
    return file_of(entry).rank >= 0;
}

static int is_file_or_temporary(const struct dirent *entry)
{
    return is_file(entry) || state_temporary_parse(entry->d_name);
}

static int newest_first(const struct dirent **left, const struct dirent **right)
{
    const int64_t a = step_of(*left), b = step_of(*right);
    return (a < b) - (a > b);
}

static int by_ranks(const struct dirent **left, const struct dirent **right)
{
    const struct file_name a = file_of(*left), b = file_of(*right);
    if (a.num_ranks != b.num_ranks)
        return (a.num_ranks > b.num_ranks) - (a.num_ranks < b.num_ranks);
    return (a.rank > b.rank) - (a.rank < b.rank);
}

static void free_entries(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

static status cannot_open(const char *folder)
{
    return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open the folder", folder);
}

status state_folder_path(const char *root, int64_t step, char **path)
{
    char name[STATE_NAME_BYTES];
    state_folder_name(name, step);
    if (asprintf(path, "%s/%s", root, name) >= 0)
        return STARPULLM_OK;
    *path = NULL;
    return fail(STARPULLM_OUT_OF_MEMORY, "%s: the path of a training state could not be allocated", root);
}

status list_steps(const char *root, int64_t **steps, int *count)
{
    struct dirent **entries;
    *count = scandir(root, &entries, is_step, newest_first);
    if (*count < 0)
        return cannot_open(root);
    *steps = calloc((size_t)*count + 1, sizeof **steps);
    for (int i = 0; *steps && i < *count; i++)
        (*steps)[i] = step_of(entries[i]);
    free_entries(entries, *count);
    return *steps ? STARPULLM_OK : fail(STARPULLM_OUT_OF_MEMORY, "%s: a list of it could not be allocated", root);
}

/* The files from `first` on that are named after one number of ranks, sorted by rank: how many there are, and the first
 * rank whose file is missing. */
static int group_size(struct dirent **entries, int count, int first, int32_t *missing)
{
    const int32_t num_ranks = file_of(entries[first]).num_ranks;
    int size = 0;
    *missing = 0;
    for (; first + size < count && file_of(entries[first + size]).num_ranks == num_ranks; size++)
        *missing += file_of(entries[first + size]).rank == *missing;
    return size;
}

static status find_complete(const char *folder, struct dirent **entries, int count, int32_t *num_ranks)
{
    char problem[2 * STATE_NAME_BYTES + 64] = "no file named like rank-00000-of-00001.state is there";
    *num_ranks = 0;
    for (int first = 0, size; first < count; first += size) {
        const int32_t ranks = file_of(entries[first]).num_ranks;
        int32_t missing;
        char name[STATE_NAME_BYTES];
        size = group_size(entries, count, first, &missing);
        if (missing == ranks && *num_ranks != 0)
            return fail(STARPULLM_INVALID_FILE,
                        "%s: the files of %" PRId32 " ranks are there and those of %" PRId32
                        ", expected those of one save",
                        folder, *num_ranks, ranks);
        if (missing == ranks) {
            *num_ranks = ranks;
            continue;
        }
        state_file_name(name, missing, ranks);
        snprintf(problem, sizeof problem, "%s is missing (%d of %" PRId32 " files are there)", name, size, ranks);
    }
    if (*num_ranks == 0)
        return fail(STARPULLM_INVALID_FILE, "%s: incomplete: %s", folder, problem);
    return STARPULLM_OK;
}

status complete_ranks(const char *folder, int32_t *num_ranks, int *num_files)
{
    struct dirent **entries;
    *num_files = scandir(folder, &entries, is_file, by_ranks);
    if (*num_files < 0)
        return cannot_open(folder);
    const status code = find_complete(folder, entries, *num_files, num_ranks);
    free_entries(entries, *num_files);
    return code;
}

/* ---- Removing ---- */

static status remove_files(const char *path, int folder)
{
    struct dirent **entries;
    const int count = scandirat(folder, ".", &entries, is_file_or_temporary, NULL);
    if (count < 0)
        return cannot_open(path);
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK; i++)
        if (unlinkat(folder, entries[i]->d_name, 0) != 0 && errno != ENOENT)
            code = fail_errno(STARPULLM_FILE_ERROR, errno, "%s: remove %s", path, entries[i]->d_name);
    free_entries(entries, count);
    return code;
}

/* Whatever isn't a training state's stays, and the folder with it. A symbolic link isn't followed. */
static status remove_state(const char *path)
{
    const int folder = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder < 0)
        return errno == ENOENT ? STARPULLM_OK : cannot_open(path);
    const status code = remove_files(path, folder);
    close(folder);
    TRY(code);
    if (rmdir(path) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: remove the folder", path);
    return STARPULLM_OK;
}

static status sync_path(const char *path)
{
    const int folder = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder < 0)
        return cannot_open(path);
    const status code =
        sync_folder(folder) == 0 ? STARPULLM_OK : fail_errno(STARPULLM_FILE_ERROR, errno, "%s: fsync", path);
    close(folder);
    return code;
}

static status check_complete(const char *path)
{
    struct training_state *state;
    TRY(training_state_load(path, &state));
    training_state_close(state);
    return STARPULLM_OK;
}

/* Keeps or removes the state in the folder `path`, older than *complete complete ones. The newest complete state is on
 * the disk, names included, before the first one that it replaces goes. */
static status prune_state(const char *root, const char *path, int keep, int *complete)
{
    if (*complete == keep)
        return remove_state(path);
    const status code = check_complete(path);
    if (code == STARPULLM_OK) {
        if (*complete == 0) {
            TRY(sync_path(path));
            TRY(sync_path(root));
        }
        ++*complete;
        return STARPULLM_OK;
    }
    if (!is_incomplete_state(code))
        return code;
    return *complete > 0 ? remove_state(path) : STARPULLM_OK;
}

status training_state_prune(const char *root, int64_t step, int keep)
{
    if (!root || keep < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: keep is %d, expected at least 1 state",
                    root ? root : "root is NULL", keep);
    int64_t *steps;
    int count, complete = 0;
    TRY(list_steps(root, &steps, &count));
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK; i++) {
        char *path;
        if (steps[i] > step)
            continue;
        code = state_folder_path(root, steps[i], &path);
        if (code != STARPULLM_OK)
            break;
        code = prune_state(root, path, keep, &complete);
        free(path);
    }
    free(steps);
    return code;
}
