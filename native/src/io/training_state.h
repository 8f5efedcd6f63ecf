/* Training states: everything that a run resumes from. docs/formats.md has the format.
 *
 * The state after step k is the folder <root>/step-<k>. Each rank puts the tensors that it owns into a file of its own
 * there, under a temporary name until it is whole and on the disk. The state is complete when the files of all ranks
 * are there, so no rank waits for another. A save that is killed at any moment leaves the complete states that there
 * are. Only one run at a time may save into a root: see folder_lock.h. */
#pragma once

#include "io/file.h"

/* The same on all ranks, but for `rank` and `num_tensors`. The members lie as in a file's header, from byte 8 on. */
struct training_state_meta {
    model_config config;
    int32_t rank, num_ranks;
    int32_t num_tensors; /* in this rank's file, perhaps 0 */
    int32_t zero;
    int64_t step;                /* updates that led to it */
    uint64_t run;                /* a number that another run is unlikely to have: files of two runs make no state */
    int64_t batches;             /* data position: batches taken, each of ... */
    int64_t batch_size, seq_len; /* ... (B,T), all ranks together */
    int64_t seed;                /* of generated tokens, or whatever else the data follow from */
    uint64_t data_id;            /* the caller's fingerprint of the data; 0 if there is none */
    float learning_rate, beta1, beta2, eps, weight_decay;
    int32_t arithmetic; /* enum starpullm_arithmetic of its steps */
};

/* The folder of a run's states, opened, so that it stays the same one whatever becomes of its name. */
struct state_root {
    char *path; /* as the caller gave it, for sentences */
    int descriptor;
};

/* ---- Writing ---- */

/* What is kept of each tensor, in the file's order. */
enum { STATE_GROUPS = 3 };
extern const enum starpullm_group state_groups[STATE_GROUPS];

struct training_state_tensor {
    enum parameter parameter;
    int layer;
};

struct training_state_writer;

/* Makes the folder, whose parent must exist, unless it is there. STARPULLM_INVALID_ARGUMENT if it is the folder of a
 * state itself. */
status training_state_make_folder(const char *root);

/* Makes the step's folder in `root`, and in it the temporary file, with all its space reserved: a full disk is found
 * here. `tensors` (num_tensors) are those that this rank owns. Replaces the temporary file of a killed save. A complete
 * state of this step that is another run's, or of another number of ranks, is STARPULLM_INVALID_ARGUMENT: together with
 * this one it couldn't be read. What an incomplete one left is removed or replaced. Copies its arguments but `root`,
 * which lives longer. On failure *writer is NULL and nothing is left behind. */
status training_state_writer_open(const struct state_root *root, const struct training_state_meta *meta,
                                  const struct training_state_tensor *tensors, struct training_state_writer **writer);

/* Writes the index-th tensor of a group, an index of state_groups; returns when `values` may change again. Each is
 * written once, in any order, by one thread at a time. Values go to the disk from where they are, past the page cache
 * where the file system can and they begin on a multiple of 4096 bytes. Nothing past the last value is read. */
status training_state_write(struct training_state_writer *writer, int index, int group, const float *values);

/* Once everything has been written: as output_commit(); and frees the writer whatever it returns. */
status training_state_commit(struct training_state_writer *writer);

/* Removes the temporary file, and the step's folder if it is empty, and frees the writer. Leaves the last error alone.
 * NULL is allowed. */
void training_state_discard(struct training_state_writer *writer);

/* Refuses with STARPULLM_INVALID_ARGUMENT a root that has a complete state of a later step: who resumes from it would
 * get that one. */
status training_state_check_newest(const struct state_root *root, int64_t step);

/* Removes the states that the one after `step` makes unnecessary, once the files of all its ranks are there: of those
 * up to it, all but the newest `keep` (at least 1) complete ones, and the incomplete ones that are older than the
 * newest complete one. Later steps belong to another run and stay, and so does whatever in these folders isn't a
 * training state's, symbolic links to states included. Each rank calls it when it has written its file: the last one
 * finds the state complete. Each rank saves its steps in ascending order. */
status training_state_prune(const struct state_root *root, int64_t step, int keep);

/* ---- Reading ---- */

/* A complete state. */
struct training_state {
    char *path;                      /* its folder */
    int folder;                      /* the same, opened; -1: closed */
    char *passed_over;               /* what is wrong with the newest of the newer states; NULL if there is none */
    struct training_state_meta meta; /* rank 0's. Whether a run may go on with other settings is for the caller */
    struct state_file *files;        /* (num_ranks) */
};

/* `path` is a root, whose newest complete state is taken, or the folder of one state. Reads and checks everything but
 * the tensors' values: that the files of all ranks are there, belong to one save, have exactly their size and their
 * end, and together hold each tensor once. Nothing complete is STARPULLM_INVALID_FILE, with what is wrong with the
 * newest. On failure *state is NULL. */
status training_state_open(const char *path, struct training_state **state);

/* The same of the one state in `folder`, which stays the caller's. */
status training_state_load(int folder, const char *path, struct training_state **state);

/* Whether that failed because the state isn't complete, or is gone: then an older one may do. */
bool is_incomplete_state(status code);

/* NULL is allowed. */
void training_state_close(struct training_state *state);

/* Checks that it is `expected`'s model (what the caller's buffers were made for), then reads params, m and v of every
 * tensor, whichever rank wrote it, and checks the values' checksums. After a failure some buffers may have been filled.
 */
status training_state_read(struct training_state *state, const model_config *expected,
                           const struct tensor_buffers *buffers);
