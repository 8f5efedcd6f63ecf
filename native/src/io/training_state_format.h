/* The layout of a training state's file and the names of files and folders, which writing and reading share.
 *
 * A file is a header of 256 int32, a table with an entry for each of its tensors, the tensors' values, and a trailer,
 * each beginning on a multiple of STATE_BLOCK bytes but for the table, which follows the header at once. Integers are
 * handled as arrays of int32 words in the machine's byte order; a 64-bit one takes two, the low one first. */
#ifndef STARPULLM_TRAINING_STATE_FORMAT_H
#define STARPULLM_TRAINING_STATE_FORMAT_H

#include "io/file.h"
#include "io/training_state.h"

enum {
    STATE_BLOCK = 4096, /* bytes; a multiple of every disk's sectors, as writes past the page cache need */
    STATE_BLOCK_WORDS = STATE_BLOCK / 4,
    STATE_ENTRY_WORDS = 10, /* per tensor, in the table */
    STATE_NAME_BYTES = 48,  /* any of the names */
    STATE_WORD_TENSORS = 10 /* the header's number of tensors */
};

struct state_entry {
    enum parameter parameter;
    int layer;
    int64_t elements;
    int64_t positions[STATE_PARTS]; /* bytes */
    bool written[STATE_PARTS];      /* only of a file being written */
};

/* The smallest multiple of STATE_BLOCK that has room for them. */
int64_t state_blocks(int64_t bytes);

/* Where the header and its table end: a multiple of STATE_BLOCK. */
int64_t state_header_bytes(int count);

/* Sets elements and positions of entries that have parameter and layer, and the file's size. STARPULLM_INVALID_ARGUMENT
 * if that leaves 64 bits; `where` begins the sentence. */
status state_lay_out(const model_config *config, struct state_entry *entries, int count, int64_t *file_bytes,
                     const char *where);

/* Refuses, with `code`, numbers that no state can have. */
status state_meta_check(const struct training_state_meta *meta, status code, const char *where);

/* Header and table: state_header_bytes(count) bytes; and the header back. */
void state_encode(int32_t *words, const struct training_state_meta *meta, const struct state_entry *entries, int count);
void state_decode(struct training_state_meta *meta, const int32_t *words);

/* Refuses a file whose header differs in the model, or (unless only_model) in anything that the ranks of one save
 * share. `whose` says in the sentence where the expected values are from. */
status state_compare(const char *path, const struct training_state_meta *found,
                     const struct training_state_meta *expected, bool only_model, const char *whose);

/* The last block. It repeats which save and rank it belongs to, and has a fingerprint of header and table (64-bit
 * FNV-1a). */
uint64_t state_fingerprint(const int32_t *words, int64_t bytes);
void state_encode_trailer(int32_t words[STATE_BLOCK_WORDS], const struct training_state_meta *meta,
                          uint64_t fingerprint, int64_t file_bytes);

/* Names, and back: false if it isn't exactly such a name. */
void state_folder_name(char name[STATE_NAME_BYTES], int64_t step);
bool state_folder_parse(const char *name, int64_t *step);
void state_file_name(char name[STATE_NAME_BYTES], int32_t rank, int32_t num_ranks);
bool state_file_parse(const char *name, int32_t *rank, int32_t *num_ranks);
void state_temporary_name(char name[STATE_NAME_BYTES], int32_t rank, int32_t num_ranks);
bool state_temporary_parse(const char *name);

/* Position of a tensor among all of the model's, in the checkpoint's order; their number for NUM_PARAMETERS, 0. */
int64_t state_instance(const model_config *config, enum parameter p, int layer);

#endif
