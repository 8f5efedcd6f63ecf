/* What the parts of test_files share: files made byte by byte, and the tests. */
#pragma once

#include "harness.h"
#include "io/checkpoint.h"

void put(struct bytes *bytes, uint64_t value, size_t width);
void put_int(struct bytes *bytes, int64_t value);
void put_float(struct bytes *bytes, float value);
void set_int(struct bytes *bytes, size_t index, int32_t value);
void put_header(struct bytes *bytes, const int32_t *values, size_t count);
bool has_bytes(const char *path, const struct bytes *bytes);

extern const model_config tiny;

/* ---- test_checkpoint.c ---- */

struct bytes make_checkpoint(const model_config *config);

/* Gives a buffer of exactly the right size for each acquire, and can interfere before it does. */
struct parameters {
    const model_config *config;
    int acquired;
    bool fill;        /* with what a checkpoint has */
    int64_t position; /* of the next parameter in the body, if they come in order */
    bool wrong;       /* a value or the order was */
    int interfere_at; /* number of the acquire, from 0 */
    status (*interfere)(void);
    int skip_odd; /* parameters that aren't wanted */
    float *values;
};

status read_into(const char *path, const model_config *config, struct parameters *parameters);
status read_checkpoint(const char *path, const model_config *config);
status write_from(const char *path, const model_config *config, struct parameters *parameters);
status write_checkpoint(const char *path, const model_config *config);
status refuse(void); /* an interference */

void test_checkpoint_read(void);
void test_checkpoint_header(void);
void test_checkpoint_reading_fails(void);
void test_checkpoint_write(void);
void test_checkpoint_writing_fails(void);
void test_permissions(void);
void test_damaged_files(void);
