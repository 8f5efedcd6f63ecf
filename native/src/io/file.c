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
#include <zlib.h>

_Static_assert(sizeof(off_t) >= 8, "files are larger than 2 GB: build with _FILE_OFFSET_BITS=64");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the formats are little-endian, as llm.c writes them");

enum {
    TRANSFER_BYTES = 1 << 30, /* one read or write; some systems refuse 2 GB and more at once */
    CHECKPOINT_BFLOAT16 = 5,  /* a version that is refused by name */
};

static const struct {
    int32_t magic, version;
    const char *name;
} formats[NUM_FORMATS] = {
    [FORMAT_CHECKPOINT] = {20240326, 3, "a model checkpoint"},
    [FORMAT_TRAINING_STATE] = {20261121, 2, "a training state"},
};

static size_t transfer(int64_t bytes)
{
    return bytes < TRANSFER_BYTES ? (size_t)bytes : TRANSFER_BYTES;
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
    return invalid_file("%s: is %s, expected a regular file", path, kind_of(mode));
}

/* ---- Reading ---- */

/* The kind is looked at before open(), which has effects on some devices. */
status input_open(struct input_file *file, int folder, const char *name, const char *path)
{
    struct stat info;
    *file = (struct input_file){.path = path, .descriptor = -1};
    if (fstatat(folder, name, &info, 0) != 0)
        return file_error(errno, "%s: open", path);
    if (!S_ISREG(info.st_mode))
        return not_regular(path, info.st_mode);
    file->descriptor = TEMP_FAILURE_RETRY(openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (file->descriptor >= 0 && fstat(file->descriptor, &info) == 0) {
        file->size = info.st_size;
        return STARPULLM_OK;
    }
    const status code = file_error(errno, "%s: open", path);
    input_close(file);
    return code;
}

void input_close(struct input_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
}

status input_read(const struct input_file *file, void *values, int64_t bytes, int64_t position)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t got =
            TEMP_FAILURE_RETRY(pread(file->descriptor, (char *)values + done, transfer(bytes - done), position + done));
        if (got < 0)
            return file_error(errno, "%s: byte %" PRId64 ": read", file->path, position + done);
        if (got == 0)
            return invalid_file("%s: byte %" PRId64 ": the file ends here, expected %" PRId64
                                " more bytes: truncated (it was %" PRId64 " bytes when it was opened)",
                                file->path, position + done, bytes - done, file->size);
        done += got;
    }
    return STARPULLM_OK;
}

uint32_t checksum_of(const float *values, int64_t elements)
{
    return (uint32_t)crc32_z(0, (const unsigned char *)values, (size_t)elements * sizeof values[0]);
}

static status check_values(const struct input_file *file, const struct stored_tensor *tensor, const float *values)
{
    const uint32_t found = checksum_of(values, tensor->elements);
    if (!tensor->checksum || found == *tensor->checksum)
        return STARPULLM_OK;
    return invalid_file("%s: byte %" PRId64 ": %s of %s[%d] have the checksum 0x%08" PRIx32 ", expected 0x%08" PRIx32
                        ": values or checksum are damaged",
                        file->path, tensor->position, group_names[tensor->group], parameters[tensor->parameter].name,
                        tensor->layer, found, *tensor->checksum);
}

status input_read_tensor(const struct input_file *file, const struct stored_tensor *tensor,
                         const struct tensor_buffers *buffers)
{
    float *values = NULL;
    TRY(buffers->acquire(buffers->context, tensor->group, tensor->parameter, tensor->layer, &values));
    if (!values)
        return STARPULLM_OK;
    status code = input_read(file, values, tensor->elements * (int64_t)sizeof values[0], tensor->position);
    if (code == STARPULLM_OK)
        code = check_values(file, tensor, values);
    buffers->release(buffers->context, tensor->group, tensor->parameter, tensor->layer);
    return code;
}

status input_read_header(const struct input_file *file, enum file_format format, int32_t header[FILE_HEADER_INTS])
{
    if (file->size < FILE_HEADER_BYTES)
        return invalid_file(
            "%s: the file is %" PRId64 " bytes, expected at least %d (the header of %s): truncated, at least %" PRId64
            " bytes are missing",
            file->path, file->size, FILE_HEADER_BYTES, formats[format].name, FILE_HEADER_BYTES - file->size);
    TRY(input_read(file, header, FILE_HEADER_BYTES, 0));
    const int32_t magic = header[HEADER_MAGIC], version = header[HEADER_VERSION];
    if (magic != formats[format].magic)
        return invalid_file("%s: byte 0: magic number is %" PRId32 ", expected %" PRId32 " (%s)", file->path, magic,
                            formats[format].magic, formats[format].name);
    if (format == FORMAT_CHECKPOINT && version == CHECKPOINT_BFLOAT16)
        return invalid_file(
            "%s: byte 4: version is %d (bfloat16), expected 3 (float32): bfloat16 checkpoints can't be read",
            file->path, CHECKPOINT_BFLOAT16);
    if (version != formats[format].version)
        return invalid_file("%s: byte 4: version is %" PRId32 ", expected %" PRId32 " (%s)", file->path, version,
                            formats[format].version, formats[format].name);
    return STARPULLM_OK;
}

status input_check_size(const struct input_file *file, int64_t expected, const char *consequence_of)
{
    if (file->size == expected)
        return STARPULLM_OK;
    const bool truncated = file->size < expected;
    return invalid_file("%s: the file is %" PRId64 " bytes, expected %" PRId64 " (%s): %s%" PRId64 " bytes%s",
                        file->path, file->size, expected, consequence_of, truncated ? "truncated, " : "too long by ",
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
            return file_error(ENOENT, "%s: follow the symbolic link", path);
        *resolved = strdup(path);
    }
    if (*resolved)
        return STARPULLM_OK;
    if (errno == ENOMEM)
        return out_of_memory("%s: its path could not be allocated", path);
    return file_error(errno, "%s: resolve", path);
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
        return invalid_argument("%s: names no file, expected the path of a file", file->path);
    file->folder = TEMP_FAILURE_RETRY(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (file->folder < 0)
        return file_error(errno, "%s: open folder %s", file->path, folder);
    return STARPULLM_OK;
}

static status create(struct output_file *file, int flags, mode_t mode)
{
    flags |= O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    file->descriptor = TEMP_FAILURE_RETRY(openat(file->folder, file->temporary, flags, mode));
    if (file->descriptor < 0)
        return file_error(errno, "%s: create temporary file %s in its folder", file->path, file->temporary);
    file->named = true;
    return STARPULLM_OK;
}

/* A file without a name gets one through /proc. */
static bool create_unnamed(struct output_file *file, mode_t mode)
{
    if (access("/proc/self/fd", X_OK) != 0)
        return false;
    file->descriptor = TEMP_FAILURE_RETRY(openat(file->folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
    return file->descriptor >= 0;
}

static status give_name(struct output_file *file)
{
    char unnamed[32];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file->descriptor);
    if (linkat(AT_FDCWD, unnamed, file->folder, file->temporary, AT_SYMLINK_FOLLOW) != 0)
        return file_error(errno, "%s: name temporary file %s", file->path, file->temporary);
    file->named = true;
    return STARPULLM_OK;
}

/* The name is unique among threads, processes and, but for one case in 10^9, machines that share the folder, where
 * O_EXCL refuses it. It is short whatever the final name is. */
static status create_unique(struct output_file *file, mode_t mode)
{
    static atomic_uint created;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(file->temporary, sizeof file->temporary, ".starpullm-%ld-%u-%09ld.tmp", (long)getpid(),
             atomic_fetch_add(&created, 1), now.tv_nsec);
    return create_unnamed(file, mode) ? STARPULLM_OK : create(file, O_EXCL, mode);
}

/* The permission bits are there from the start: what is being written is never readable by more than the result. */
static status create_beside(struct output_file *file)
{
    TRY(open_folder(file));
    struct stat old;
    if (fstatat(file->folder, file->name, &old, 0) != 0) {
        if (errno != ENOENT)
            return file_error(errno, "%s: stat", file->path);
        return create_unique(file, 0666);
    }
    if (!S_ISREG(old.st_mode))
        return not_regular(file->path, old.st_mode);
    /* Some containers refuse the system call of faccessat(). */
    const int writable = TEMP_FAILURE_RETRY(openat(file->folder, file->name, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (writable < 0)
        return file_error(errno, "%s: replace", file->path);
    close(writable);
    TRY(create_unique(file, 0600));
    if (fchmod(file->descriptor, old.st_mode & 0777) != 0)
        return file_error(errno, "%s: chmod temporary file %s", file->path, file->temporary);
    return STARPULLM_OK;
}

status output_open(struct output_file *file, const char *path)
{
    *file = (struct output_file){.path = path, .folder = -1, .descriptor = -1};
    status code = resolve(path, &file->resolved);
    if (code == STARPULLM_OK)
        code = create_beside(file);
    if (code != STARPULLM_OK)
        output_discard(file);
    return code;
}

status output_open_temporary(struct output_file *file, int folder, const char *name, const char *path,
                             const char *temporary)
{
    *file = (struct output_file){.path = path, .name = name, .folder = folder, .descriptor = -1};
    snprintf(file->temporary, sizeof file->temporary, "%s", temporary);
    const status code = create(file, O_TRUNC, 0666);
    if (code != STARPULLM_OK)
        output_discard(file);
    return code;
}

/* Some file systems accept O_DIRECT but refuse these memory addresses or positions: then the page cache is used. */
static bool give_up_direct(const struct output_file *file)
{
    const int flags = fcntl(file->descriptor, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) && fcntl(file->descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

status output_write(const struct output_file *file, const void *values, int64_t bytes, int64_t position)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t put = TEMP_FAILURE_RETRY(
            pwrite(file->descriptor, (const char *)values + done, transfer(bytes - done), position + done));
        if (put < 0 && errno == EINVAL && give_up_direct(file))
            continue;
        if (put <= 0)
            return file_error(put < 0 ? errno : EIO, "%s: byte %" PRId64 ": write to temporary file %s", file->path,
                              position + done, file->temporary);
        done += put;
    }
    return STARPULLM_OK;
}

void stamp_header(enum file_format format, int32_t header[FILE_HEADER_INTS])
{
    header[HEADER_MAGIC] = formats[format].magic;
    header[HEADER_VERSION] = formats[format].version;
}

int sync_folder(int descriptor)
{
    return TEMP_FAILURE_RETRY(fsync(descriptor)) != 0 && errno != EINVAL && errno != ENOTSUP ? -1 : 0;
}

/* Closing can report a write that failed late (NFS). After EINTR the descriptor is gone all the same. */
static status replace(struct output_file *file)
{
    if (TEMP_FAILURE_RETRY(fsync(file->descriptor)) != 0)
        return file_error(errno, "%s: fsync of temporary file %s", file->path, file->temporary);
    if (!file->named)
        TRY(give_name(file));
    const int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed != 0 && errno != EINTR)
        return file_error(errno, "%s: close temporary file %s", file->path, file->temporary);
    if (renameat(file->folder, file->temporary, file->folder, file->name) != 0)
        return file_error(errno, "%s: rename temporary file %s to it", file->path, file->temporary);
    file->named = false;
    if (sync_folder(file->folder) != 0)
        return file_error(errno, "%s: the new file is in place, but a power failure may undo that: fsync of its folder",
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
    if (file->named)
        unlinkat(file->folder, file->temporary, 0);
    if (file->folder >= 0)
        close(file->folder);
    free(file->resolved);
    *file = (struct output_file){.folder = -1, .descriptor = -1};
}
