/* Lists the folders and files of training states, and removes the states that newer ones replace. */
#include "io/training_state_format.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct file_name {
    int32_t rank, num_ranks;
};

/* ---- Listing: only names that are exactly as they are generated ---- */

int64_t state_step_of(const char *name)
{
    char same[STATE_NAME_BYTES];
    int64_t step;
    if (sscanf(name, "step-%" SCNd64, &step) != 1 || step < 0)
        return -1;
    snprintf(same, sizeof same, STATE_FOLDER, step);
    return strcmp(name, same) == 0 ? step : -1;
}

static struct file_name file_of(const struct dirent *entry)
{
    static const struct file_name none = {-1, -1};
    char same[STATE_NAME_BYTES];
    struct file_name file;
    if (sscanf(entry->d_name, "rank-%" SCNd32 "-of-%" SCNd32, &file.rank, &file.num_ranks) != 2 || file.rank < 0 ||
        file.rank >= file.num_ranks)
        return none;
    snprintf(same, sizeof same, STATE_FILE, file.rank, file.num_ranks);
    return strcmp(entry->d_name, same) == 0 ? file : none;
}

static int is_state(const struct dirent *entry)
{
    return state_step_of(entry->d_name) >= 0;
}

static int is_file(const struct dirent *entry)
{
    return file_of(entry).rank >= 0;
}

static int is_file_or_temporary(const struct dirent *entry)
{
    return is_file(entry) || fnmatch(".rank-[0-9]*-of-[0-9]*.tmp", entry->d_name, FNM_PERIOD) == 0;
}

static int newest_first(const struct dirent **left, const struct dirent **right)
{
    const int64_t a = state_step_of((*left)->d_name), b = state_step_of((*right)->d_name);
    return (a < b) - (a > b);
}

static int by_ranks(const struct dirent **left, const struct dirent **right)
{
    const struct file_name a = file_of(*left), b = file_of(*right);
    if (a.num_ranks != b.num_ranks)
        return (a.num_ranks > b.num_ranks) - (a.num_ranks < b.num_ranks);
    return (a.rank > b.rank) - (a.rank < b.rank);
}

void state_free_list(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

static status cannot_open(const char *folder)
{
    return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open the folder", folder);
}

status state_list(const char *root, struct dirent ***folders, int *count)
{
    *count = scandir(root, folders, is_state, newest_first);
    return *count < 0 ? cannot_open(root) : STARPULLM_OK;
}

static status find_complete(const char *folder, struct dirent **entries, int count, int32_t *num_ranks)
{
    char problem[2 * STATE_NAME_BYTES + 64] = "no file named like rank-00000-of-00001.state is there";
    *num_ranks = 0;
    for (int first = 0, next; first < count; first = next) {
        const int32_t ranks = file_of(entries[first]).num_ranks;
        int32_t missing = 0; /* the first rank whose file isn't there */
        for (next = first; next < count && file_of(entries[next]).num_ranks == ranks; next++)
            missing += file_of(entries[next]).rank == missing;
        if (missing < ranks)
            snprintf(problem, sizeof problem, STATE_FILE " is missing (%d of %" PRId32 " files are there)", missing,
                     ranks, next - first, ranks);
        else if (*num_ranks == 0)
            *num_ranks = ranks;
        else
            return fail(STARPULLM_INVALID_FILE,
                        "%s: the files of %" PRId32 " ranks are there and those of %" PRId32
                        ", expected those of one save",
                        folder, *num_ranks, ranks);
    }
    if (*num_ranks == 0)
        return fail(STARPULLM_INVALID_FILE, "%s: incomplete: %s", folder, problem);
    return STARPULLM_OK;
}

status state_complete_ranks(const char *folder, int32_t *num_ranks, int *num_files)
{
    struct dirent **entries;
    *num_files = scandir(folder, &entries, is_file, by_ranks);
    if (*num_files < 0)
        return cannot_open(folder);
    const status code = find_complete(folder, entries, *num_files, num_ranks);
    state_free_list(entries, *num_files);
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
    state_free_list(entries, count);
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

/* Keeps or removes the state in the folder `path`, older than *complete complete ones. The newest complete state is on
 * the disk, names included, before the first one that it replaces goes. */
static status prune_state(const char *root, const char *path, int keep, int *complete)
{
    if (*complete == keep)
        return remove_state(path);
    struct training_state *state;
    const status code = training_state_load(path, &state);
    if (code != STARPULLM_OK && !is_incomplete_state(code))
        return code;
    if (code != STARPULLM_OK)
        return *complete > 0 ? remove_state(path) : STARPULLM_OK;
    training_state_close(state);
    if ((*complete)++ > 0)
        return STARPULLM_OK;
    TRY(sync_path(path));
    return sync_path(root);
}

status training_state_prune(const char *root, int64_t step, int keep)
{
    struct dirent **folders;
    int count, complete = 0;
    TRY(state_list(root, &folders, &count));
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK; i++) {
        char *path;
        if (state_step_of(folders[i]->d_name) > step)
            continue;
        if (asprintf(&path, "%s/%s", root, folders[i]->d_name) < 0) {
            code = fail(STARPULLM_OUT_OF_MEMORY, "%s: the path of a training state could not be allocated", root);
            break;
        }
        code = prune_state(root, path, keep, &complete);
        free(path);
    }
    state_free_list(folders, count);
    return code;
}
