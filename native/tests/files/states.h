/* What the parts of test_training_state share: states of known content, and the tests. */
#pragma once

#include "harness.h"
#include "io/training_state.h"

/* ---- Folders and files ---- */

bool there(const char *path);
/* One of four static texts in turn. */
const char *joined(const char *format, ...);
/* Followed by 64 bytes of room. */
struct bytes load(const char *path);
void put(struct bytes *bytes, size_t position, uint64_t value, size_t width);

/* ---- States of known content ---- */

#define FOLDER "root/step-000000000007"
#define RANK_0 FOLDER "/rank-00000-of-00001.state"

extern const model_config tiny, least, larger;
extern const enum starpullm_group groups[];
enum { GROUPS = 3, MOST_TENSORS = 64, STATE_BLOCK = 4096 };

struct training_state_meta meta_of(const model_config *config, int64_t step, int32_t rank, int32_t num_ranks);
uint32_t value_bits(const struct training_state_meta *meta, int group, enum parameter p, int layer, int64_t i);
int tensors_of(const model_config *config, int32_t rank, int32_t num_ranks,
               struct training_state_tensor tensors[MOST_TENSORS]);
int64_t elements_of(const model_config *config, enum parameter p);
status write_tensor(struct training_state_writer *writer, const struct training_state_meta *meta, int index,
                    struct training_state_tensor tensor, int group, bool unaligned);
status write_all(struct training_state_writer *writer, const struct training_state_meta *meta, bool unaligned);
/* Makes the folder and opens it; close_root() closes it. */
struct state_root open_root(const char *path);
void close_root(const struct state_root *root);
status open_writer(const struct state_root *root, const struct training_state_meta *meta,
                   struct training_state_writer **writer);
/* These make the root as well. */
status write_file(const char *root, const struct training_state_meta *meta, bool unaligned);
void write_state(const char *root, const model_config *config, int64_t step, int32_t num_ranks);
status prune(const char *root, int64_t step, int keep);

struct reading {
    const struct training_state_meta *meta;
    float *values;
    int held;
    int tensors; /* acquired */
    int wrong;   /* tensors with other bits */
    int refuse;  /* the n-th acquire fails; 0: none */
    bool skip;   /* nothing is wanted */
};
status acquire(void *context, enum starpullm_group group, enum parameter p, int layer, float **values);
void release(void *context, enum starpullm_group group, enum parameter p, int layer);
status read_all(struct training_state *state, struct reading *reading);
/* Checks that the path has a state, whole, and returns its step; -1 if it has none. */
int64_t read_state(const char *path);
status try_open(const char *path);

/* ---- Tests ---- */

void test_format(void);
void test_direct(void);
void test_tensor_of_two_ranks(void);
void test_damage(void);
void test_reading_fails(void);
void test_failing_calls(void);
void test_other_runs(void);
void test_prune(void);
void test_prune_at_once(void);
void test_folder_lock(void);
/* Kills a run of so many ranks again and again while it saves. */
void killed(int32_t num_ranks, int kills);
