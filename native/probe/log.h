/* Writes the log of a process: records are appended to files that are mapped a window at a time, so that memory is
 * bounded and what was appended outlives the process, however it ends. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "log_format.h"

struct log_stream {
    int file;
    char *window;
    size_t window_bytes; /* 0: there is none */
    size_t used;         /* of the window */
    uint64_t start;      /* of the window in the file */
    uint64_t count;
};

/* Files that are open for others to write: `stack` for a signal's handler, `undeclared` for accesses that tasks haven't
 * declared, as text, `stacks` for those of submissions, as text, `bytes` for contents, `maps` for what was mapped. */
enum log_file { HEADER_FILE, STACK_FILE, UNDECLARED_FILE, STACKS_FILE, BYTES_FILE, MAPS_FILE, LOG_FILES };

struct log {
    struct probe_header *header;
    struct log_stream streams[PROBE_STREAMS];
    int files[LOG_FILES];
    bool failed;
};

/* Makes a folder probe-PID-… in `directory` and opens a log there; NULL and errno if that fails. */
struct log *log_open(const char *directory, const struct probe_header *first);

/* Appends a record of the stream's type and returns its index. After a failed write nothing is recorded any more, and
 * the header says so. The caller serialises calls. */
uint64_t log_append(struct log *log, enum probe_stream stream, const void *record);

/* Says in the header that a write has failed, so that nothing is recorded any more. */
void log_fail(struct log *log, int error);

/* Cuts the files to what was written and closes them. */
void log_close(struct log *log);
