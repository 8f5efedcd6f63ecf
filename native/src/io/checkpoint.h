/* Model checkpoints: header, parameters into the caller's buffers, and back, one tensor of one layer at a time. */
#pragma once

#include "io/file.h"

/* Reads the header and checks it, and that the file has exactly the size that goes with it. Version 5 (bfloat16) is
 * refused, as is every version but 3. Sets config only on success. */
status checkpoint_config(const char *path, model_config *config);

/* Checks the file as above and that it is `expected`'s model (what the caller's buffers were made for); then reads the
 * parameters. After a failure some buffers may have been filled. */
status checkpoint_read(const char *path, const model_config *expected, const struct tensor_buffers *buffers);

/* Replaces the file in one step; on failure the one that was there is still there, whole (see output_commit). */
status checkpoint_write(const char *path, const model_config *config, const struct tensor_buffers *buffers);

/* Refuses a file with another model; headers have its sizes from byte 8 on. `whose` says where `expected` is from. */
status check_same_model(const char *path, const model_config *found, const model_config *expected, const char *whose);
