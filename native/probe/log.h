// Writes the log of a process: records are appended to files that are mapped a window at a time, so that memory is
// bounded and what was appended outlives the process, however it ends.
#pragma once

#include "log_format.h"

#include <stdbool.h>

struct log;

// Makes a folder probe-PID (-2, -3, … if there is one) in `directory` and opens a log there; NULL and errno if that
// fails.
struct log *log_open(const char *directory, const struct probe_header *first);

// Appends a record of the stream's type and returns its index. After a failed write nothing is recorded any more, and
// the header says so. The caller serialises calls.
uint64_t log_append(struct log *log, enum probe_stream stream, const void *record);

struct probe_header *log_header(struct log *log);

// Reserves room in the file `bytes`, and returns the offset there; the caller serialises calls, and writes to
// log_bytes_file when it likes.
uint64_t log_reserve(struct log *log, uint64_t bytes);
int log_bytes_file(struct log *log);

// Says in the header that a write has failed, so that nothing is recorded any more.
void log_fail(struct log *log, int error);

// The descriptor of the file `stack`, where a signal's handler writes.
int log_stack_file(struct log *log);

// That of the file `undeclared`, of accesses that tasks haven't declared, as text.
int log_undeclared_file(struct log *log);

// Cuts the files to what was written and closes them.
void log_close(struct log *log);
