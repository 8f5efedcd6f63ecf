/* The access audit: the pages of all buffers are closed, the first access of a task to a page opens it, and is compared
 * with what the task declared.
 *
 * A page stays open until its task has ended. So the audit sees the first access to each page and, if that was a read,
 * the first write. It needs one task at a time: one worker of one thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "status.h"

struct audit;

/* A handle's buffer, on pages of its own; an array of them has the handles' order. */
struct audit_buffer {
    void *begin;
    size_t bytes;
};

/* Closes the pages of all buffers. One audit at a time in a process; the processor must say whether a page fault was a
 * read or a write. */
status audit_create(const struct audit_buffer *buffers, size_t count, struct audit **audit);
/* Opens them again. */
void audit_destroy(struct audit *audit);

/* From audit_begin() to audit_end() the calling thread runs a task, whose accesses audit_declare() declares (mode: enum
 * starpullm_access_mode). */
void audit_begin(struct audit *audit);
void audit_declare(struct audit *audit, int32_t handle, int32_t mode);

typedef void audit_report(void *argument, struct starpullm_finding finding);

/* Reports what the task of this number did otherwise than declared, and closes the pages that it opened. Returns how
 * many there were: first reads of a page, and first writes. */
int64_t audit_end(struct audit *audit, int64_t task, audit_report *report, void *argument);

/* Reports accesses to closed pages outside of tasks, since the last call. */
void audit_outside(struct audit *audit, audit_report *report, void *argument);

/* Opens and closes a handle's buffer, for an access outside of tasks that is allowed. No task may be running.
 * NULL is allowed, and does nothing. */
void audit_open(struct audit *audit, int32_t handle);
void audit_close(struct audit *audit, int32_t handle);
