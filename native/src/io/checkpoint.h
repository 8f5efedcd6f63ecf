/* Model checkpoints: header, parameters into the caller's buffers, and back, one tensor of one layer at a time. */
#ifndef STARPULLM_CHECKPOINT_H
#define STARPULLM_CHECKPOINT_H

#include "io/tensor_destination.h"

/* Where parameters are written from: as struct tensor_destination, the other way. */
struct checkpoint_source {
    void *context;
    status (*acquire)(void *context, enum parameter p, int layer, const float **values);
    void (*release)(void *context, enum parameter p, int layer);
};

/* Reads the header and checks it, and that the file has exactly the size that goes with it. Version 5 (bfloat16) is
 * refused, as is every version but 3. Sets config only on success. */
status checkpoint_config(const char *path, model_config *config);

/* Checks the file as above and that it is `expected`'s model (what the caller's buffers were made for); then reads the
 * parameters. After a failure some buffers may have been filled. */
status checkpoint_read(const char *path, const model_config *expected, const struct tensor_destination *destination);

/* Replaces the file in one step; on failure the one that was there is still there, whole (see output_commit). */
status checkpoint_write(const char *path, const model_config *config, const struct checkpoint_source *source);

#endif
