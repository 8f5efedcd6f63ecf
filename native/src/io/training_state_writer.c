/* Writes one rank's file of a training state, straight from the tensors' own memory to the disk. saving.c calls it,
 * mostly from the thread of io/writer.h. */
#include "io/training_state_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    COPY_BYTES = 1 << 20, /* copied at a time where values can't be written from where they are */
    OPEN_ATTEMPTS = 100,  /* another rank's failed save may remove the step's folder under our feet */
};

enum part { PART_MISSING, PART_BEING_WRITTEN, PART_WRITTEN };

struct training_state_writer {
    struct training_state_meta meta;
    char folder_name[STATE_NAME_BYTES], name[STATE_NAME_BYTES], temporary[STATE_NAME_BYTES];
    char *path; /* root/folder_name/name, for sentences */
    int root;   /* descriptors; -1: closed */
    int folder;
    int descriptor;
    atomic_bool direct; /* past the page cache */
    struct state_entry *entries;
    int count;
    int64_t header_bytes, file_bytes;
    uint64_t fingerprint;
    atomic_uchar *parts; /* enum part; (count, STATE_PARTS) */
};

/* ---- Bytes ---- */

/* Where the file system takes O_DIRECT but not these memory addresses or positions, the page cache does. */
static bool give_up_direct(struct training_state_writer *writer)
{
    atomic_store(&writer->direct, false);
    const int flags = fcntl(writer->descriptor, F_GETFL);
    return flags >= 0 && fcntl(writer->descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Changes `pieces`. */
static status write_pieces(struct training_state_writer *writer, struct iovec *pieces, int count, int64_t position)
{
    while (count > 0) {
        if (pieces->iov_len == 0) {
            pieces++;
            count--;
            continue;
        }
        const bool direct = atomic_load(&writer->direct);
        ssize_t put = pwritev(writer->descriptor, pieces, count, position);
        if (put < 0 && (errno == EINTR || (errno == EINVAL && direct && give_up_direct(writer))))
            continue;
        if (put <= 0)
            return fail_errno(STARPULLM_FILE_ERROR, put < 0 ? errno : EIO,
                              "%s: byte %" PRId64 ": write to temporary file %s", writer->path, position,
                              writer->temporary);
        position += put;
        for (int i = 0; i < count; i++) {
            size_t taken = (size_t)put < pieces[i].iov_len ? (size_t)put : pieces[i].iov_len;
            pieces[i].iov_base = (char *)pieces[i].iov_base + taken;
            pieces[i].iov_len -= taken;
            put -= (ssize_t)taken;
        }
    }
    return STARPULLM_OK;
}

/* Whole blocks from where they are; what is left of the last one is padded with zeros in a block of its own. */
static status write_in_place(struct training_state_writer *writer, const float *values, int64_t bytes, int64_t position)
{
    _Alignas(STATE_BLOCK) char last[STATE_BLOCK] = {0};
    const size_t rest = (size_t)(bytes % STATE_BLOCK);
    const size_t whole = (size_t)bytes - rest;
    memcpy(last, (const char *)values + whole, rest);
    struct iovec pieces[] = {{(void *)values, whole}, {last, rest > 0 ? STATE_BLOCK : 0}};
    return write_pieces(writer, pieces, 2, position);
}

/* Through a buffer: values that don't begin on a block, or aren't in the file's byte order. */
static status write_copied(struct training_state_writer *writer, const float *values, int64_t bytes, int64_t position)
{
    char *copy = aligned_alloc(STATE_BLOCK, COPY_BYTES);
    if (copy == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: a buffer could not be allocated", writer->path);
    status result = STARPULLM_OK;
    for (int64_t done = 0; result == STARPULLM_OK && done < bytes; done += COPY_BYTES) {
        const int64_t left = bytes - done;
        const size_t size = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        const size_t blocks = (size_t)state_blocks((int64_t)size);
        memcpy(copy, (const char *)values + done, size);
        memset(copy + size, 0, blocks - size);
        if (!machine_is_little_endian())
            reverse_bytes(copy, sizeof values[0], size / sizeof values[0]);
        struct iovec piece = {copy, blocks};
        result = write_pieces(writer, &piece, 1, position + done);
    }
    free(copy);
    return result;
}

/* Whole blocks of words, aligned to a block. Changes their byte order to the file's. */
static status write_words(struct training_state_writer *writer, int32_t *words, int64_t bytes, int64_t position)
{
    if (!machine_is_little_endian())
        reverse_bytes(words, sizeof words[0], (size_t)bytes / sizeof words[0]);
    struct iovec piece = {words, (size_t)bytes};
    return write_pieces(writer, &piece, 1, position);
}

static status write_header(struct training_state_writer *writer)
{
    int32_t *words = aligned_alloc(STATE_BLOCK, (size_t)writer->header_bytes);
    if (words == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: its header could not be allocated", writer->path);
    state_encode(words, &writer->meta, writer->entries, writer->count);
    writer->fingerprint = state_fingerprint(words, writer->header_bytes);
    status result = write_words(writer, words, writer->header_bytes, 0);
    free(words);
    return result;
}

/* ---- Folders and the temporary file ---- */

static int open_retrying(int folder, const char *path, int flags)
{
    int descriptor;
    do
        descriptor = openat(folder, path, flags | O_CLOEXEC, 0666);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

static status cannot(const struct training_state_writer *writer, const char *what)
{
    return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: %s", writer->path, what);
}

/* A folder is on the disk once the one that it is in is. */
static status open_root(struct training_state_writer *writer, const char *root)
{
    const bool made = mkdir(root, 0777) == 0;
    if (!made && errno != EEXIST)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: make the folder", root);
    writer->root = open_retrying(AT_FDCWD, root, O_RDONLY | O_DIRECTORY);
    if (writer->root < 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: open the folder", root);
    if (!made)
        return STARPULLM_OK;
    const int parent = open_retrying(writer->root, "..", O_RDONLY | O_DIRECTORY);
    const int error = parent < 0 || sync_folder(parent) != 0 ? errno : 0;
    if (parent >= 0)
        close(parent);
    /* A folder that we may search but not read can't be synced; the file system will in its own time. */
    if (error != 0 && error != EACCES)
        return fail_errno(STARPULLM_FILE_ERROR, error, "%s: fsync of the folder that it is in", root);
    return STARPULLM_OK;
}

/* The lock goes with the process that holds it, however that ends; file systems without locks do without. Takes over
 * what a killed process has left. *again: it was renamed or removed before it was locked. */
static status lock_temporary(struct training_state_writer *writer, bool *again)
{
    struct stat ours, named;
    if (flock(writer->descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: temporary file %s is being written by another process",
                          writer->path, writer->temporary);
    if (fstat(writer->descriptor, &ours) != 0)
        return cannot(writer, "fstat of its temporary file");
    *again = fstatat(writer->folder, writer->temporary, &named, AT_SYMLINK_NOFOLLOW) != 0 ||
             named.st_dev != ours.st_dev || named.st_ino != ours.st_ino;
    return STARPULLM_OK;
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

/* One attempt: the step's folder and in it the temporary file, locked. */
static status open_temporary(struct training_state_writer *writer, bool *again)
{
    *again = false;
    const bool made = mkdirat(writer->root, writer->folder_name, 0777) == 0;
    if (!made && errno != EEXIST)
        return cannot(writer, "make its folder");
    writer->folder = open_retrying(writer->root, writer->folder_name, O_RDONLY | O_DIRECTORY);
    if (writer->folder < 0) {
        *again = errno == ENOENT;
        return *again ? STARPULLM_OK : cannot(writer, "open its folder");
    }
    if (made && sync_folder(writer->root) != 0)
        return cannot(writer, "fsync of the folder that its folder is in");
    writer->descriptor =
        open_retrying(writer->folder, writer->temporary, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (writer->descriptor < 0) {
        *again = errno == ENOENT;
        return *again ? STARPULLM_OK : cannot(writer, "create its temporary file");
    }
    status result = lock_temporary(writer, again);
    if (result != STARPULLM_OK || *again)
        close_descriptor(&writer->descriptor); /* not ours to remove */
    return result;
}

static status open_folder(struct training_state_writer *writer)
{
    for (int attempt = 0; attempt < OPEN_ATTEMPTS; attempt++) {
        bool again;
        TRY(open_temporary(writer, &again));
        if (!again)
            return STARPULLM_OK;
        close_descriptor(&writer->folder);
    }
    return fail(STARPULLM_INVALID_STATE, "%s: its folder is being removed again and again", writer->path);
}

/* A full disk is found here rather than in the middle; where space can't be reserved, it is found later. */
static status reserve(struct training_state_writer *writer)
{
    int result;
    if (ftruncate(writer->descriptor, 0) != 0)
        return cannot(writer, "truncate its temporary file");
    do
        result = fallocate(writer->descriptor, 0, 0, writer->file_bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: reserve %" PRId64 " bytes for temporary file %s",
                          writer->path, writer->file_bytes, writer->temporary);
    const int flags = fcntl(writer->descriptor, F_GETFL);
    atomic_store(&writer->direct, flags >= 0 && fcntl(writer->descriptor, F_SETFL, flags | O_DIRECT) == 0);
    return STARPULLM_OK;
}

/* ---- Opening and closing ---- */

static void free_writer(struct training_state_writer *writer)
{
    close_descriptor(&writer->descriptor);
    close_descriptor(&writer->folder);
    close_descriptor(&writer->root);
    free(writer->path);
    free(writer->entries);
    free(writer->parts);
    free(writer);
}

static status copy_tensors(struct training_state_writer *writer, const struct training_state_tensor *tensors)
{
    const model_config *config = &writer->meta.config;
    status result = STARPULLM_OK;
    bool *taken = calloc((size_t)state_instance(config, NUM_PARAMETERS, 0), sizeof *taken);
    if (taken == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: its table could not be allocated", writer->path);
    for (int i = 0; result == STARPULLM_OK && i < writer->count; i++) {
        const enum parameter p = tensors[i].parameter;
        const int layer = tensors[i].layer;
        if ((unsigned)p >= NUM_PARAMETERS || layer < 0 || layer >= parameter_instances(config, p))
            result = fail(STARPULLM_INVALID_ARGUMENT,
                          "%s: tensor %d is parameter %d of layer %d, expected one of this model's", writer->path, i,
                          (int)p, layer);
        else if (taken[state_instance(config, p, layer)])
            result = fail(STARPULLM_INVALID_ARGUMENT, "%s: tensor %d is %s[%d] again, expected each tensor once",
                          writer->path, i, parameter_name(p), layer);
        else
            taken[state_instance(config, p, layer)] = true;
        writer->entries[i] = (struct state_entry){.parameter = p, .layer = layer};
    }
    free(taken);
    return result;
}

static status open_writer(struct training_state_writer *writer, const char *root,
                          const struct training_state_tensor *tensors)
{
    const struct training_state_meta *meta = &writer->meta;
    state_folder_name(writer->folder_name, meta->step);
    state_file_name(writer->name, meta->rank, meta->num_ranks);
    state_temporary_name(writer->temporary, meta->rank, meta->num_ranks);
    writer->entries = calloc((size_t)writer->count + 1, sizeof *writer->entries);
    writer->parts = calloc((size_t)writer->count + 1, STATE_PARTS * sizeof *writer->parts);
    if (asprintf(&writer->path, "%s/%s/%s", root, writer->folder_name, writer->name) < 0)
        writer->path = NULL;
    if (writer->path == NULL || writer->entries == NULL || writer->parts == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: a training state's table could not be allocated", root);
    TRY(copy_tensors(writer, tensors));
    TRY(state_lay_out(&meta->config, writer->entries, writer->count, &writer->file_bytes, writer->path));
    writer->header_bytes = state_header_bytes(writer->count);
    TRY(open_root(writer, root));
    TRY(open_folder(writer));
    TRY(reserve(writer));
    return write_header(writer);
}

status training_state_writer_open(const char *root, const struct training_state_meta *meta,
                                  const struct training_state_tensor *tensors, int count,
                                  struct training_state_writer **writer)
{
    *writer = NULL;
    if (root == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "root is NULL, expected the path of a folder");
    if (count < 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: the number of tensors is %d, expected at least 0", root, count);
    TRY(state_meta_check(meta, STARPULLM_INVALID_ARGUMENT, root));
    struct training_state_writer *created = calloc(1, sizeof *created);
    if (created == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: a training state's writer could not be allocated", root);
    created->meta = *meta;
    created->count = count;
    created->root = created->folder = created->descriptor = -1;
    status result = open_writer(created, root, tensors);
    if (result != STARPULLM_OK) {
        training_state_discard(created);
        return result;
    }
    *writer = created;
    return STARPULLM_OK;
}

void training_state_discard(struct training_state_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->descriptor >= 0)
        unlinkat(writer->folder, writer->temporary, 0);
    if (writer->folder >= 0)
        unlinkat(writer->root, writer->folder_name, AT_REMOVEDIR);
    free_writer(writer);
}

/* ---- Tensors ---- */

status training_state_write(struct training_state_writer *writer, int index, enum starpullm_group group,
                            const float *values)
{
    int part = 0;
    while (part < STATE_PARTS && state_groups[part] != group)
        part++;
    if (index < 0 || index >= writer->count || part == STATE_PARTS)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "%s: group %d of tensor %d, expected params, m or v of tensors 0 to %d (%d of them)", writer->path,
                    (int)group, index, writer->count - 1, writer->count);
    const struct state_entry *entry = &writer->entries[index];
    atomic_uchar *written = &writer->parts[index * STATE_PARTS + part];
    unsigned char expected = PART_MISSING;
    if (!atomic_compare_exchange_strong(written, &expected, PART_BEING_WRITTEN))
        return fail(STARPULLM_INVALID_STATE, "%s: group %d of %s[%d] is written again, expected once", writer->path,
                    (int)group, parameter_name(entry->parameter), entry->layer);
    const bool in_place = machine_is_little_endian() && (uintptr_t)values % STATE_BLOCK == 0;
    status result = (in_place ? write_in_place : write_copied)(writer, values, entry->elements * (int64_t)sizeof(float),
                                                               entry->positions[part]);
    atomic_store(written, result == STARPULLM_OK ? PART_WRITTEN : PART_MISSING);
    return result;
}

static status check_all_written(const struct training_state_writer *writer)
{
    for (int i = 0; i < writer->count; i++)
        for (int part = 0; part < STATE_PARTS; part++)
            if (atomic_load(&writer->parts[i * STATE_PARTS + part]) != PART_WRITTEN)
                return fail(STARPULLM_INVALID_STATE,
                            "%s: group %d of %s[%d] hasn't been written, expected params, m and v of all %d tensors",
                            writer->path, (int)state_groups[part], parameter_name(writer->entries[i].parameter),
                            writer->entries[i].layer, writer->count);
    return STARPULLM_OK;
}

static status write_trailer(struct training_state_writer *writer)
{
    _Alignas(STATE_BLOCK) int32_t words[STATE_BLOCK_WORDS];
    state_encode_trailer(words, &writer->meta, writer->fingerprint, writer->file_bytes);
    return write_words(writer, words, STATE_BLOCK, writer->file_bytes - STATE_BLOCK);
}

/* The file stays open, and so locked, until it has its name: what is locked nobody truncates. What closing it could
 * report, fsync has. */
static status finish(struct training_state_writer *writer)
{
    TRY(check_all_written(writer));
    TRY(write_trailer(writer));
    if (sync_file(writer->descriptor) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: fsync of temporary file %s", writer->path,
                          writer->temporary);
    if (renameat(writer->folder, writer->temporary, writer->folder, writer->name) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: rename temporary file %s to it", writer->path,
                          writer->temporary);
    return STARPULLM_OK;
}

status training_state_commit(struct training_state_writer *writer)
{
    status result = finish(writer);
    if (result != STARPULLM_OK) {
        training_state_discard(writer);
        return result;
    }
    if (sync_folder(writer->folder) != 0)
        result = cannot(writer, "the file is in place, but a power failure may undo that: fsync of its folder");
    free_writer(writer);
    return result;
}
