/* Files of records, mapped a window at a time. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096 };
static const size_t first_window = 1 << 16, largest_window = 1 << 22;

static const struct {
    const char *name;
    size_t bytes; /* a power of two, so that a window holds whole records */
} streams[PROBE_STREAMS] = {
    {"names", sizeof(struct probe_name)},        {"handles", sizeof(struct probe_handle)},
    {"tasks", sizeof(struct probe_task)},        {"accesses", sizeof(struct probe_access)},
    {"events", sizeof(struct probe_event)},      {"hashes", sizeof(struct probe_hash)},
    {"contents", sizeof(struct probe_contents)},
};

static const char *const files[LOG_FILES] = {"header", "stack", "undeclared", "stacks", "bytes", "maps"};

_Static_assert(sizeof(struct probe_header) <= HEADER_BYTES, "the header fits into its page");
_Static_assert(sizeof(struct probe_name) == 128 && sizeof(struct probe_handle) == 128, "record sizes of the format");
_Static_assert(sizeof(struct probe_task) == 64 && sizeof(struct probe_access) == 16, "record sizes of the format");
_Static_assert(sizeof(struct probe_event) == 32 && sizeof(struct probe_hash) == 32, "record sizes of the format");
_Static_assert(sizeof(struct probe_contents) == 32, "record sizes of the format");

static int open_file(int folder, const char *name)
{
    return openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* Maps `bytes` of a file from `start`, with room for them on the disk: a full disk is an error here, not a signal
 * later. */
static char *map_window(int file, uint64_t start, size_t bytes)
{
    int error = posix_fallocate(file, (off_t)start, (off_t)bytes);
    if (error == ENOSYS || error == EPERM) /* a container's rules */
        error = ftruncate(file, (off_t)(start + bytes)) == 0 ? 0 : errno;
    if (error != 0) {
        errno = error;
        return NULL;
    }
    char *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)start);
    return window == MAP_FAILED ? NULL : window;
}

static bool next_window(struct log_stream *stream)
{
    size_t bytes = first_window;
    if (stream->window_bytes > 0) {
        bytes = stream->window_bytes < largest_window ? 2 * stream->window_bytes : largest_window;
        munmap(stream->window, stream->window_bytes);
        stream->start += stream->window_bytes;
        stream->window_bytes = 0;
    }
    stream->window = map_window(stream->file, stream->start, bytes);
    if (!stream->window)
        return false;
    stream->window_bytes = bytes;
    stream->used = 0;
    return true;
}

/* Opens a new folder. Processes of other PID namespaces may have the same PID and directory. */
static int make_folder(const char *directory, unsigned pid)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/probe-%u-XXXXXX", directory, pid) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

struct log *log_open(const char *directory, const struct probe_header *first)
{
    struct log *log = calloc(1, sizeof *log);
    const int folder = log ? make_folder(directory, first->pid) : -1;
    if (folder < 0)
        goto failed;
    for (int i = 0; i < LOG_FILES; i++) {
        log->files[i] = open_file(folder, files[i]);
        if (log->files[i] < 0)
            goto failed;
    }
    for (int i = 0; i < PROBE_STREAMS; i++) {
        log->streams[i].file = open_file(folder, streams[i].name);
        if (log->streams[i].file < 0)
            goto failed;
    }
    log->header = (struct probe_header *)map_window(log->files[HEADER_FILE], 0, HEADER_BYTES);
    if (!log->header)
        goto failed;
    *log->header = *first;
    close(folder);
    return log;
failed:
    /* What was opened stays open: it is a handful of files, once, and the process records nothing. */
    if (folder >= 0)
        close(folder);
    free(log);
    return NULL;
}

uint64_t log_append(struct log *log, enum probe_stream number, const void *record)
{
    struct log_stream *stream = &log->streams[number];
    const size_t bytes = streams[number].bytes;
    if (log->failed)
        return stream->count;
    if (stream->used == stream->window_bytes && !next_window(stream)) {
        log_fail(log, errno);
        return stream->count;
    }
    memcpy(stream->window + stream->used, record, bytes);
    stream->used += bytes;
    /* The count is raised when the record is complete, whatever happens to this process in between. */
    atomic_signal_fence(memory_order_release);
    log->header->counts[number] = stream->count + 1;
    return stream->count++;
}

void log_fail(struct log *log, int error)
{
    log->failed = true;
    log->header->write_error = error;
}

void log_close(struct log *log)
{
    for (int i = 0; i < PROBE_STREAMS; i++) {
        struct log_stream *stream = &log->streams[i];
        if (stream->window_bytes > 0)
            munmap(stream->window, stream->window_bytes);
        /* Readers go by the header's counts, so a file that can't be cut is only longer. */
        if (ftruncate(stream->file, (off_t)(stream->count * streams[i].bytes)) != 0)
            log->failed = true;
        close(stream->file);
    }
    munmap(log->header, HEADER_BYTES);
    for (int i = 0; i < LOG_FILES; i++)
        close(log->files[i]);
    free(log);
}
