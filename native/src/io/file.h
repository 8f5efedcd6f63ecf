/* What llm.c's file formats and ours share: opening, headers, exact sizes, and writing that keeps the old file. It
 * knows no format's body.
 *
 * Sentences begin with the path as the caller gave it. What the system refuses is STARPULLM_FILE_ERROR with its errno;
 * a content that isn't what the format says, a path that is no regular file included, is STARPULLM_INVALID_FILE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/tensors.h"

enum { FILE_HEADER_INTS = 256, FILE_HEADER_BYTES = 4 * FILE_HEADER_INTS };

/* The formats that are read here. */
enum file_format { FORMAT_CHECKPOINT, FORMAT_TRAINING_STATE, NUM_FORMATS };

/* Positions of the header's integers that every format has. */
enum { HEADER_MAGIC = 0, HEADER_VERSION = 1 };

/* A regular file being read. */
struct input_file {
    const char *path; /* the caller's, not copied */
    int descriptor;   /* -1: closed */
    int64_t size;     /* bytes, when it was opened */
};

/* By its name in an opened folder, or AT_FDCWD; `path` is for sentences. Never waits. On failure the file is closed. */
status input_open(struct input_file *file, int folder, const char *name, const char *path);
void input_close(struct input_file *file);

status input_read(const struct input_file *file, void *values, int64_t bytes, int64_t position);

/* Reads the header and checks magic number and version. */
status input_read_header(const struct input_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS]);

/* Refuses any other size; the sentence says with `consequence_of` what the expected size follows from. */
status input_check_size(const struct input_file *file, int64_t expected, const char *consequence_of);

/* Where a file's tensors are read to or written from: buffers of the caller's, without a copy in between. A tensor has
 * one buffer per layer, in the shape of parameter_shape(); one buffer is held at a time, in the file's order. */
struct tensor_buffers {
    void *context;
    status (*acquire)(void *context, enum starpullm_group group, enum parameter p, int layer,
                      float **values); /* NULL: not wanted, skipped and not released */
    void (*release)(void *context, enum starpullm_group group, enum parameter p, int layer); /* also after a failure */
};

/* One layer's tensor in a file. */
struct stored_tensor {
    enum starpullm_group group;
    enum parameter parameter;
    int layer;
    int64_t elements, position;
    const uint32_t *checksum; /* NULL: the file has none */
};

/* Reads it into its buffer, and refuses values that don't have the checksum. */
status input_read_tensor(const struct input_file *file, const struct stored_tensor *tensor,
                         const struct tensor_buffers *buffers);

/* The CRC-32 of zlib and gzip. */
uint32_t checksum_of(const float *values, int64_t elements);

/* A file being written, in the folder of its final name. Until it is complete it has no name, so that nothing is left
 * of it if the process is killed; where the file system has no such files, it has a temporary name. */
struct output_file {
    const char *path;   /* the caller's, not copied */
    char *resolved;     /* folder and name in one allocation */
    const char *name;   /* in the folder */
    int folder;         /* -1: closed */
    int descriptor;     /* -1: closed */
    char temporary[64]; /* its name in the folder, before the final one */
    bool named;         /* it has that name now */
};

/* Follows symbolic links. An existing file must be a regular, writable one; the new file gets its permission bits (or
 * 0666 & ~umask if there was none). On failure nothing is left behind. */
status output_open(struct output_file *file, const char *path);

/* The same for a folder of our own, without these rules: a file of the given temporary name is overwritten. `folder`
 * becomes the file's, `name` isn't copied, and `path` is for sentences. */
status output_open_temporary(struct output_file *file, int folder, const char *name, const char *path,
                             const char *temporary);

/* Past the page cache, if the descriptor has O_DIRECT and the file system can. */
status output_write(const struct output_file *file, const void *values, int64_t bytes, int64_t position);

/* fsync, rename, fsync of the folder. Closes the file whatever it returns; on failure the temporary is gone and the old
 * file is there, whole. (The one exception: if only the folder's fsync fails, the new file is in place and the sentence
 * says so.) */
status output_commit(struct output_file *file);

/* Closes and removes the temporary; leaves the last error alone. */
void output_discard(struct output_file *file);

/* Writes magic number and version into a header. */
void stamp_header(enum file_format format, int32_t header[FILE_HEADER_INTS]);

/* fsync of a folder; 0 also where the file system doesn't know that, -1 with errno on failure. */
int sync_folder(int descriptor);
