/* Files as llm.c's formats and ours need them: checked opening, complete reads, and replacement in one step. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) >= 8, "files are larger than 2 GB: build with _FILE_OFFSET_BITS=64");

enum {
    TRANSFER_BYTES = 1 << 30,     /* one read or write; some systems refuse 2 GB and more at once */
    CONVERSION_BYTES = 64 * 1024, /* converted at a time where the machine's byte order isn't the file's */
};

static const struct {
    int32_t magic, version;
    const char *name;
} formats[NUM_FORMATS] = {
    [FORMAT_CHECKPOINT] = {20240326, 3, "a model checkpoint"},   [FORMAT_DEBUG_STATE] = {20240327, 2, "a debug state"},
    [FORMAT_TOKENIZER] = {20240328, 2, "a tokenizer"},           [FORMAT_TOKENS] = {20240520, 1, "a token file"},
    [FORMAT_TRAINING_STATE] = {20261121, 1, "a training state"},
};

void reverse_bytes(void *values, size_t width, size_t count)
{
    unsigned char *value = values;
    for (size_t i = 0; i < count; i++, value += width)
        for (size_t low = 0, high = width - 1; low < high; low++, high--) {
            unsigned char byte = value[low];
            value[low] = value[high];
            value[high] = byte;
        }
}

bool machine_is_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "something else";
}

static status not_regular(const char *path, mode_t mode)
{
    return fail(STARPULLM_INVALID_FILE, "%s: is %s, expected a regular file", path, kind_of(mode));
}

/* ---- Reading ---- */

status input_open(struct input_file *file, const char *path)
{
    *file = (struct input_file){.path = path, .descriptor = -1};
    if (!path)
        return fail(STARPULLM_INVALID_ARGUMENT, "path is NULL, expected the path of a file");

    /* Checked before open(), which has effects on some devices, and again on the opened file, which can't change. */
    struct stat info;
    if (stat(path, &info) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open", path);
    if (!S_ISREG(info.st_mode))
        return not_regular(path, info.st_mode);

    file->descriptor = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (file->descriptor < 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open", path);

    status code = STARPULLM_OK;
    if (fstat(file->descriptor, &info) != 0)
        code = fail_errno(STARPULLM_FILE_ERROR, errno, "%s: fstat", path);
    else if (!S_ISREG(info.st_mode))
        code = not_regular(path, info.st_mode);
    if (code != STARPULLM_OK)
        input_close(file);
    file->size = info.st_size;
    return code;
}

void input_close(struct input_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
}

status input_read(const struct input_file *file, void *values, size_t width, int64_t count, int64_t offset)
{
    char *to = values;
    int64_t end = offset + count * (int64_t)width;
    for (int64_t position = offset; position < end;) {
        size_t size = end - position < TRANSFER_BYTES ? (size_t)(end - position) : TRANSFER_BYTES;
        ssize_t got = TEMP_FAILURE_RETRY(pread(file->descriptor, to, size, position));
        if (got < 0)
            return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: byte %" PRId64 ": read", file->path, position);
        if (got == 0)
            return fail(STARPULLM_INVALID_FILE,
                        "%s: byte %" PRId64 ": the file ends here, expected %" PRId64
                        " more bytes: truncated (it was %" PRId64 " bytes when it was opened)",
                        file->path, position, end - position, file->size);
        to += got;
        position += got;
    }
    if (!machine_is_little_endian())
        reverse_bytes(values, width, (size_t)count);
    return STARPULLM_OK;
}

/* " (a debug state)" if it is the magic number of one of the formats, else "". */
static const char *format_of_magic(int32_t magic, char *text, size_t room)
{
    text[0] = '\0';
    for (int f = 0; f < NUM_FORMATS; f++)
        if (formats[f].magic == magic)
            snprintf(text, room, " (%s)", formats[f].name);
    return text;
}

status input_read_header(const struct input_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS])
{
    if (file->size < FILE_HEADER_BYTES)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: the file is %" PRId64
                    " bytes, expected at least %d (the header of %s): truncated, at least %" PRId64
                    " bytes are missing",
                    file->path, file->size, FILE_HEADER_BYTES, formats[format].name, FILE_HEADER_BYTES - file->size);
    TRY(input_read(file, header, sizeof header[0], FILE_HEADER_INTS, 0));
    char found[32];
    if (header[HEADER_MAGIC] != formats[format].magic)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 0: magic number is %" PRId32 "%s, expected %" PRId32 " (%s)",
                    file->path, header[HEADER_MAGIC], format_of_magic(header[HEADER_MAGIC], found, sizeof found),
                    formats[format].magic, formats[format].name);
    return STARPULLM_OK;
}

status input_check_version(const struct input_file *file, enum file_format format,
                           const int32_t header[FILE_HEADER_INTS])
{
    if (header[HEADER_VERSION] != formats[format].version)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 4: version is %" PRId32 ", expected %" PRId32 " (%s)", file->path,
                    header[HEADER_VERSION], formats[format].version, formats[format].name);
    return STARPULLM_OK;
}

status input_check_size(const struct input_file *file, int64_t expected, const char *consequence_of)
{
    if (file->size == expected)
        return STARPULLM_OK;
    const bool truncated = file->size < expected;
    return fail(STARPULLM_INVALID_FILE,
                "%s: the file is %" PRId64 " bytes, expected %" PRId64 " (%s): %s%" PRId64 " bytes%s", file->path,
                file->size, expected, consequence_of, truncated ? "truncated, " : "too long by ",
                truncated ? expected - file->size : file->size - expected, truncated ? " are missing" : "");
}

/* ---- Writing ---- */

/* The path with symbolic links followed, so that a link to a checkpoint stays a link. A file that isn't there yet keeps
 * the path as it is, unless that is a link to nowhere. */
static status resolve(const char *path, char **resolved)
{
    struct stat info;
    *resolved = realpath(path, NULL);
    if (!*resolved && errno == ENOENT) {
        if (lstat(path, &info) == 0)
            return fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s: follow the symbolic link", path);
        *resolved = strdup(path);
    }
    if (*resolved)
        return STARPULLM_OK;
    if (errno == ENOMEM)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: its path could not be allocated", path);
    return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: resolve", path);
}

/* The folder stays open until the end: every later call is relative to it, and it is fsynced after the rename. */
static status open_folder(struct output_file *file)
{
    const char *folder = ".";
    char *slash = strrchr(file->resolved, '/');
    file->name = file->resolved;
    if (slash) {
        *slash = '\0';
        folder = slash == file->resolved ? "/" : file->resolved;
        file->name = slash + 1;
    }
    if (file->name[0] == '\0')
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: names no file, expected the path of a file", file->path);
    file->folder = TEMP_FAILURE_RETRY(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (file->folder < 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open folder %s", file->path, folder);
    return STARPULLM_OK;
}

/* The name is unique among threads, processes and, but for one case in 10^9, machines that share the folder, where
 * O_EXCL refuses it. It is short whatever the final name is. */
static status create_temporary(struct output_file *file, mode_t mode)
{
    static atomic_uint created;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(file->temporary, sizeof file->temporary, ".starpullm-%ld-%u-%09ld.tmp", (long)getpid(),
             atomic_fetch_add(&created, 1), now.tv_nsec);
    file->descriptor =
        TEMP_FAILURE_RETRY(openat(file->folder, file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file->descriptor >= 0)
        return STARPULLM_OK;
    const status code = fail_errno(STARPULLM_FILE_ERROR, errno, "%s: create temporary file %s in its folder",
                                   file->path, file->temporary);
    file->temporary[0] = '\0'; /* not ours to remove */
    return code;
}

/* The permission bits are there from the start: what is being written is never readable by more than the result. */
static status create(struct output_file *file)
{
    TRY(open_folder(file));
    struct stat old;
    if (fstatat(file->folder, file->name, &old, 0) != 0) {
        if (errno != ENOENT)
            return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: stat", file->path);
        return create_temporary(file, 0666);
    }
    if (!S_ISREG(old.st_mode))
        return not_regular(file->path, old.st_mode);
    if (faccessat(file->folder, file->name, W_OK, AT_EACCESS) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: replace", file->path);
    TRY(create_temporary(file, 0600));
    if (fchmod(file->descriptor, old.st_mode & 0777) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: chmod temporary file %s", file->path, file->temporary);
    return STARPULLM_OK;
}

status output_open(struct output_file *file, const char *path)
{
    *file = (struct output_file){.path = path, .folder = -1, .descriptor = -1};
    if (!path)
        return fail(STARPULLM_INVALID_ARGUMENT, "path is NULL, expected the path of a file");
    status code = resolve(path, &file->resolved);
    if (code == STARPULLM_OK)
        code = create(file);
    if (code != STARPULLM_OK)
        output_discard(file);
    return code;
}

static status write_bytes(struct output_file *file, const void *bytes, int64_t count)
{
    const char *from = bytes;
    while (count > 0) {
        size_t size = count < TRANSFER_BYTES ? (size_t)count : TRANSFER_BYTES;
        ssize_t put = TEMP_FAILURE_RETRY(write(file->descriptor, from, size));
        if (put <= 0)
            return fail_errno(STARPULLM_FILE_ERROR, put < 0 ? errno : EIO,
                              "%s: byte %" PRId64 ": write to temporary file %s", file->path, file->written,
                              file->temporary);
        from += put;
        count -= put;
        file->written += put;
    }
    return STARPULLM_OK;
}

status output_write(struct output_file *file, const void *values, size_t width, int64_t count)
{
    if (machine_is_little_endian())
        return write_bytes(file, values, count * (int64_t)width);
    const char *from = values;
    char converted[CONVERSION_BYTES];
    for (int64_t left = count * (int64_t)width; left > 0;) {
        int64_t size = left < CONVERSION_BYTES ? left : CONVERSION_BYTES;
        memcpy(converted, from, (size_t)size);
        reverse_bytes(converted, width, (size_t)size / width);
        TRY(write_bytes(file, converted, size));
        from += size;
        left -= size;
    }
    return STARPULLM_OK;
}

void stamp_header(enum file_format format, int32_t header[FILE_HEADER_INTS])
{
    header[HEADER_MAGIC] = formats[format].magic;
    header[HEADER_VERSION] = formats[format].version;
}

status output_write_header(struct output_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS])
{
    stamp_header(format, header);
    return output_write(file, header, sizeof header[0], FILE_HEADER_INTS);
}

int sync_file(int descriptor)
{
    return TEMP_FAILURE_RETRY(fsync(descriptor));
}

int sync_folder(int descriptor)
{
    return sync_file(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP ? -1 : 0;
}

/* Closing can report a write that failed late (NFS). After EINTR the descriptor is gone all the same. */
static status replace(struct output_file *file)
{
    if (sync_file(file->descriptor) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: fsync of temporary file %s", file->path, file->temporary);
    const int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed != 0 && errno != EINTR)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: close temporary file %s", file->path, file->temporary);
    if (renameat(file->folder, file->temporary, file->folder, file->name) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: rename temporary file %s to it", file->path,
                          file->temporary);
    file->temporary[0] = '\0';
    if (sync_folder(file->folder) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno,
                          "%s: the new file is in place, but a power failure may undo that: fsync of its folder",
                          file->path);
    return STARPULLM_OK;
}

status output_commit(struct output_file *file)
{
    const status code = replace(file);
    output_discard(file);
    return code;
}

void output_discard(struct output_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    if (file->temporary[0] != '\0')
        unlinkat(file->folder, file->temporary, 0);
    if (file->folder >= 0)
        close(file->folder);
    free(file->resolved);
    *file = (struct output_file){.folder = -1, .descriptor = -1};
}
