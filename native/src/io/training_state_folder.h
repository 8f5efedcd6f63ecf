/* What a folder holds of training states, for reading and pruning. */
#ifndef STARPULLM_TRAINING_STATE_FOLDER_H
#define STARPULLM_TRAINING_STATE_FOLDER_H

#include "io/training_state_format.h"

/* The path of a step's folder; it belongs to the caller (free). */
status state_folder_path(const char *root, int64_t step, char **path);

/* The steps that have a folder in `root`, newest first. The array belongs to the caller (free). */
status list_steps(const char *root, int64_t **steps, int *count);

/* The number of ranks whose files are all in the folder of a state, and the number of files of any ranks there.
 * STARPULLM_INVALID_FILE, with what is missing, if no number of ranks is complete, or if several are. */
status complete_ranks(const char *folder, int32_t *num_ranks, int *num_files);

/* As training_state_open(), but of the one state whose folder it is. */
status training_state_load(const char *folder, struct training_state **state);

/* Whether that failed because the state isn't complete, or is gone: then an older one may do. */
bool is_incomplete_state(status code);

#endif
