/* What a run does to the states that are there already: it refuses newer ones, and removes those that its own replace.
 */
#include "io/training_state_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "io/file.h"

/* Leaves it closed if it is gone, or no folder but a symbolic link or a file, which isn't ours. */
static status open_own_step(struct step_folder *step, const struct state_root *root, const char *name)
{
    const status code = step_open(step, root, name, O_NOFOLLOW);
    const int error = starpullm_last_error_number();
    const bool is_not_ours = error == ENOENT || error == ENOTDIR || error == ELOOP;
    return code == STARPULLM_FILE_ERROR && is_not_ours ? STARPULLM_OK : code;
}

static status load(const struct step_folder *step, bool *complete)
{
    struct training_state *state;
    const status code = training_state_load(step->descriptor, step->path, &state);
    *complete = code == STARPULLM_OK;
    if (*complete)
        training_state_close(state);
    return *complete || is_incomplete_state(code) ? STARPULLM_OK : code;
}

/* ---- Newer states ---- */

static status check_older(const struct state_root *root, const char *name, int64_t step)
{
    struct step_folder newer;
    bool complete = false;
    status code = open_own_step(&newer, root, name);
    if (code == STARPULLM_OK && newer.descriptor >= 0)
        code = load(&newer, &complete);
    if (complete)
        code = invalid_argument("%s: holds the state after step %" PRId64 ", newer than step %" PRId64
                                " of this run, expected a folder without newer states",
                                root->path, state_step_of(name), step);
    step_close(&newer);
    return code;
}

status training_state_check_newest(const struct state_root *root, int64_t step)
{
    struct dirent **folders;
    int count;
    TRY(state_list(root, &folders, &count));
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK && state_step_of(folders[i]->d_name) > step; i++)
        code = check_older(root, folders[i]->d_name, step);
    state_free_list(folders, count);
    return code;
}

/* ---- Removing ---- */

/* Whatever isn't a training state's stays, and the folder with it. */
static status remove_state(const struct step_folder *step)
{
    TRY(state_remove_files(step->descriptor, step->path, 0));
    if (unlinkat(step->root->descriptor, step->name, AT_REMOVEDIR) != 0 && errno != ENOENT && errno != ENOTEMPTY &&
        errno != EEXIST)
        return file_error(errno, "%s: remove the folder", step->path);
    return STARPULLM_OK;
}

static status sync_names(int folder, const char *path)
{
    return sync_folder(folder) == 0 ? STARPULLM_OK : file_error(errno, "%s: fsync", path);
}

/* Keeps or removes a state that is older than *num_complete complete ones. The newest complete state is on the disk,
 * names included, before the first one that it replaces goes. */
static status prune_step(const struct step_folder *step, int keep, int *num_complete)
{
    bool complete;
    if (*num_complete == keep)
        return remove_state(step);
    TRY(load(step, &complete));
    if (!complete)
        return *num_complete > 0 ? remove_state(step) : STARPULLM_OK;
    if ((*num_complete)++ > 0)
        return STARPULLM_OK;
    TRY(sync_names(step->descriptor, step->path));
    return sync_names(step->root->descriptor, step->root->path);
}

/* By the names of its files alone: ranks that find their state incomplete have read no file. */
static status has_all_files(const struct step_folder *step, bool *complete)
{
    int32_t num_ranks;
    int num_files;
    const status code = state_complete_ranks(step->descriptor, step->path, &num_ranks, &num_files);
    *complete = code == STARPULLM_OK;
    return code == STARPULLM_INVALID_FILE ? STARPULLM_OK : code;
}

static status prune_folder(const struct state_root *root, const char *name, int64_t saved, int keep, int *num_complete,
                           bool *has_saved)
{
    struct step_folder step;
    status code = open_own_step(&step, root, name);
    if (code == STARPULLM_OK && step.descriptor >= 0 && state_step_of(name) == saved)
        code = has_all_files(&step, has_saved);
    if (code == STARPULLM_OK && step.descriptor >= 0 && *has_saved)
        code = prune_step(&step, keep, num_complete);
    step_close(&step);
    return code;
}

status training_state_prune(const struct state_root *root, int64_t step, int keep)
{
    struct dirent **folders;
    int count, num_complete = 0;
    bool has_saved = false;
    TRY(state_list(root, &folders, &count));
    status code = STARPULLM_OK;
    for (int i = 0; i < count && code == STARPULLM_OK; i++)
        if (state_step_of(folders[i]->d_name) <= step)
            code = prune_folder(root, folders[i]->d_name, step, keep, &num_complete, &has_saved);
    state_free_list(folders, count);
    return code;
}
