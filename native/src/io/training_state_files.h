/* What writing, reading and pruning of training states share: the folders <root>/step-<k> with the files of the ranks,
 * and the layout of a file.
 *
 * A file is a header of 256 int32, a table with an entry for each of its tensors, their checksums, the tensors' values,
 * and an end. Header, values and end begin on multiples of STATE_BLOCK bytes. The structs here have the bytes of the
 * file. */
#pragma once

#include <dirent.h>
#include <inttypes.h>

#include "io/file.h"
#include "io/training_state.h"

/* ---- training_state_folder.c ---- */

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

/* ---- training_state_format.c ---- */

enum { STATE_BLOCK = 4096 }; /* bytes; a multiple of every disk's sectors, as writes past the page cache need */

struct state_entry {
    int32_t parameter, layer;
    int64_t elements;
    int64_t positions[STATE_GROUPS]; /* bytes */
};

/* Header, table and checksums. */
struct state_head {
    int32_t magic, version;
    struct training_state_meta meta;
    int32_t zeros[FILE_HEADER_INTS - 32];
    struct state_entry
        entries[]; /* (num_tensors), then the checksums, then zeros up to a multiple of STATE_BLOCK bytes */
};

/* The last block. It repeats which save and rank it belongs to, and has a fingerprint of the head (64-bit FNV-1a). */
struct state_end {
    int32_t magic, version;
    int64_t step;
    uint64_t run;
    int32_t rank, num_ranks;
    uint64_t fingerprint;
    int64_t file_bytes;
    char zeros[STATE_BLOCK - 48];
};

/* Of header, table and checksums: a multiple of STATE_BLOCK. */
int64_t state_head_bytes(int32_t num_tensors);

/* (num_tensors, STATE_GROUPS) */
uint32_t *state_checksums(struct state_head *head);

/* With magic number, version and meta. Belongs to the caller (free); begins on a multiple of STATE_BLOCK bytes. NULL if
 * there is no memory. */
struct state_head *state_head_create(const struct training_state_meta *meta);

/* Sets elements and positions of entries that have parameter and layer, and the file's size. Fails with `code` if that
 * leaves 64 bits; `where` begins the sentence. */
status state_lay_out(struct state_head *head, int64_t *file_bytes, status code, const char *where);

/* Of a head that is complete. */
struct state_end state_end_of(const struct state_head *head, int64_t file_bytes);

/* Refuses, with `code`, numbers that no state can have. */
status state_meta_check(const struct training_state_meta *meta, status code, const char *where);
