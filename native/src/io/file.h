/* What llm.c's file formats and ours share: opening, headers, exact sizes, byte order, and writing that keeps the old
 * file. It knows no format's body.
 *
 * Sentences begin with the path as the caller gave it. What the system refuses is STARPULLM_FILE_ERROR with its errno;
 * a content that isn't what the format says, a path that is no regular file included, is STARPULLM_INVALID_FILE. */
#ifndef STARPULLM_FILE_H
#define STARPULLM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { FILE_HEADER_INTS = 256, FILE_HEADER_BYTES = 4 * FILE_HEADER_INTS };

enum file_format {
    FORMAT_CHECKPOINT,
    FORMAT_DEBUG_STATE,
    FORMAT_TOKENIZER,
    FORMAT_TOKENS,
    FORMAT_TRAINING_STATE,
    NUM_FORMATS
};

/* Positions of the header's integers that every format has. */
enum { HEADER_MAGIC = 0, HEADER_VERSION = 1 };

/* A regular file being read. */
struct input_file {
    const char *path; /* the caller's, not copied */
    int descriptor;   /* -1: closed */
    int64_t size;     /* bytes, when it was opened */
};

/* Never waits, whatever the path is. On failure the file is closed. */
status input_open(struct input_file *file, const char *path);
void input_close(struct input_file *file);

/* Reads `count` values of `width` bytes (2 or 4) from byte `offset` on, into the machine's byte order. */
status input_read(const struct input_file *file, void *values, size_t width, int64_t count, int64_t offset);

/* Reads the header and checks the magic number. */
status input_read_header(const struct input_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS]);
/* Checks the version, for formats of which one version is read. */
status input_check_version(const struct input_file *file, enum file_format format,
                           const int32_t header[FILE_HEADER_INTS]);

/* Refuses any other size; the sentence says with `consequence_of` what the expected size follows from. */
status input_check_size(const struct input_file *file, int64_t expected, const char *consequence_of);

/* A file being written under a temporary name in the folder of its final one. */
struct output_file {
    const char *path;   /* the caller's, not copied */
    char *resolved;     /* where the file is once symbolic links are followed */
    const char *name;   /* last component of resolved */
    int folder;         /* -1: closed */
    int descriptor;     /* -1: closed */
    int64_t written;    /* bytes */
    char temporary[64]; /* its name in the folder; "" if there is none */
};

/* Follows symbolic links; an existing file must be a regular, writable one, and hands its permission bits on (a new one
 * has 0666 & ~umask). On failure nothing is left behind. */
status output_open(struct output_file *file, const char *path);

/* Appends `count` values of `width` bytes (2 or 4), from the machine's byte order. */
status output_write(struct output_file *file, const void *values, size_t width, int64_t count);
status output_write_header(struct output_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS]);

/* fsync, rename, fsync of the folder. Closes the file whatever it returns; on failure the temporary is gone and the old
 * file is there, whole. (The one exception: if only the folder's fsync fails, the new file is in place and the sentence
 * says so.) */
status output_commit(struct output_file *file);

/* Closes and removes the temporary; leaves the last error alone. */
void output_discard(struct output_file *file);

/* Writes magic number and version into a header. */
void stamp_header(enum file_format format, int32_t header[FILE_HEADER_INTS]);

/* fsync, again when it is interrupted; of a folder, 0 also where the file system doesn't know that. Return 0, or -1
 * with errno. */
int sync_file(int descriptor);
int sync_folder(int descriptor);

bool machine_is_little_endian(void);

/* Reverses the bytes of each of `count` values: the formats are little-endian, and some machines are not. */
void reverse_bytes(void *values, size_t width, size_t count);

#endif
