/* Which folders are those of training states, and which of the files there are those of ranks. */
#include "io/training_state_files.h"

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

/* ---- Opening ---- */

static status cannot_open(const char *path)
{
    return file_error(errno, "%s: open the folder", path);
}

status state_open_folder(int in, const char *name, const char *path, int flags, int *folder)
{
    *folder = TEMP_FAILURE_RETRY(openat(in, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
    return *folder < 0 ? cannot_open(path) : STARPULLM_OK;
}

status step_name(struct step_folder *step, const struct state_root *root, const char *name)
{
    *step = (struct step_folder){.root = root, .descriptor = -1};
    snprintf(step->name, sizeof step->name, "%s", name);
    if (asprintf(&step->path, "%s/%s", root->path, name) < 0) {
        step->path = NULL;
        return out_of_memory("%s: the path of a training state could not be allocated", root->path);
    }
    return STARPULLM_OK;
}

status step_open(struct step_folder *step, const struct state_root *root, const char *name, int flags)
{
    TRY(step_name(step, root, name));
    return state_open_folder(root->descriptor, name, step->path, flags, &step->descriptor);
}

void step_close(struct step_folder *step)
{
    if (step->descriptor >= 0)
        close(step->descriptor);
    free(step->path);
}

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

static status list(int folder, const char *path, int (*is_listed)(const struct dirent *),
                   int (*order)(const struct dirent **, const struct dirent **), struct dirent ***entries, int *count)
{
    *count = scandirat(folder, ".", entries, is_listed, order);
    return *count < 0 ? cannot_open(path) : STARPULLM_OK;
}

status state_list(const struct state_root *root, struct dirent ***folders, int *count)
{
    return list(root->descriptor, root->path, is_state, newest_first, folders, count);
}

static status find_complete(const char *path, struct dirent **entries, int count, int32_t *num_ranks)
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
            return invalid_file("%s: the files of %" PRId32 " ranks are there and those of %" PRId32
                                ", expected those of one save",
                                path, *num_ranks, ranks);
    }
    if (*num_ranks == 0)
        return invalid_file("%s: incomplete: %s", path, problem);
    return STARPULLM_OK;
}

status state_complete_ranks(int folder, const char *path, int32_t *num_ranks, int *num_files)
{
    struct dirent **entries;
    TRY(list(folder, path, is_file, by_ranks, &entries, num_files));
    const status code = find_complete(path, entries, *num_files, num_ranks);
    state_free_list(entries, *num_files);
    return code;
}

/* Of a file or a temporary one. */
static int32_t ranks_of(const struct dirent *entry)
{
    int32_t ranks = -1;
    (void)sscanf(entry->d_name + (entry->d_name[0] == '.'), "rank-%*d-of-%" SCNd32, &ranks);
    return ranks;
}

status state_remove_files(int folder, const char *path, int32_t kept_ranks)
{
    struct dirent **entries;
    int count;
    TRY(list(folder, path, is_file_or_temporary, NULL, &entries, &count));
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK; i++)
        if (ranks_of(entries[i]) != kept_ranks && unlinkat(folder, entries[i]->d_name, 0) != 0 && errno != ENOENT)
            code = file_error(errno, "%s: remove %s", path, entries[i]->d_name);
    state_free_list(entries, count);
    return code;
}
