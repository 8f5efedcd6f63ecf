/* The folders of training states: <root>/step-<k> with the files of the ranks, which writing, reading and pruning
 * share.
 */
#pragma once

#include <dirent.h>
#include <inttypes.h>

#include "io/training_state.h"

enum { STATE_NAME_BYTES = 48 }; /* any of the names */

/* The names of folders and files, with their numbers: step; rank and number of ranks. */
#define STATE_FOLDER "step-%012" PRId64
#define STATE_FILE "rank-%05" PRId32 "-of-%05" PRId32 ".state"
#define STATE_TEMPORARY ".rank-%05" PRId32 "-of-%05" PRId32 ".tmp"

/* The step that a folder's name has; -1 if it isn't exactly such a name. */
int64_t state_step_of(const char *name);

/* ---- In what follows, `path` is a folder's name in sentences ---- */

/* Opens a folder in another one; `flags` are for open(). */
status state_open_folder(int in, const char *name, const char *path, int flags, int *folder);

/* The folder of a state, in an opened root. */
struct step_folder {
    const struct state_root *root;
    char name[STATE_NAME_BYTES];
    char *path;
    int descriptor; /* -1: closed */
};

/* Names it, and opens it. On failure, too, step_close() follows. */
status step_name(struct step_folder *step, const struct state_root *root, const char *name);
status step_open(struct step_folder *step, const struct state_root *root, const char *name, int flags);
void step_close(struct step_folder *step);

/* The folders of states in a root, newest first. */
status state_list(const struct state_root *root, struct dirent ***folders, int *count);
void state_free_list(struct dirent **entries, int count);

/* The number of ranks whose files are all in the folder of a state, and the number of files of any ranks there.
 * STARPULLM_INVALID_FILE, with what is missing, if no number of ranks is complete, or if several are. */
status state_complete_ranks(int folder, const char *path, int32_t *num_ranks, int *num_files);

/* Removes the files and temporary files of states, but those of `kept_ranks` ranks; 0: all. Whatever else is there
 * stays. */
status state_remove_files(int folder, const char *path, int32_t kept_ranks);
