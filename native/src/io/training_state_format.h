/* The layout of a training state's file, which writing and reading share.
 *
 * A file is a header of 256 int32, a table with an entry for each of its tensors, their checksums, the tensors' values,
 * and an end. Header, values and end begin on multiples of STATE_BLOCK bytes. The structs here have the bytes of the
 * file. */
#pragma once

#include <inttypes.h>

#include "io/file.h"
#include "io/training_state.h"

enum { STATE_BLOCK = 4096 }; /* bytes; a multiple of every disk's sectors, as writes past the page cache need */

struct state_entry {
    int32_t parameter, layer;
    int64_t elements;
    int64_t positions[STATE_PARTS]; /* bytes */
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

/* (num_tensors, STATE_PARTS) */
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

/* Refuses a file whose header differs in anything that the ranks of one save share. `whose` says in the sentence where
 * the expected values are from. */
status state_compare(const char *path, const struct training_state_meta *found,
                     const struct training_state_meta *expected, const char *whose);

/* The step that a folder's name has; -1 if it isn't exactly such a name. */
int64_t state_step_of(const char *name);
