/* The access audit: buffers whose pages are closed, and opened by the first access of a task, which is compared with
 * what the task declared. Called by instrument.c around each kernel and by data.c where the application has a buffer.
 *
 * A page stays open until its task has ended, so what is seen of it is the first access and, if that was a read, the
 * first write. One task at a time: an audited run has one worker of one thread. */
#ifndef STARPULLM_AUDIT_H
#define STARPULLM_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

struct audit;

/* A handle's buffer: on pages of its own. */
struct audit_buffer {
    int32_t handle;
    void *begin;
    size_t bytes;
};

/* Closes the pages of all buffers. One audit at a time in a process, on a processor whose faults can be told apart. */
status audit_create(const struct audit_buffer *buffers, size_t count, struct audit **audit);
/* Opens them for good. */
void audit_destroy(struct audit *audit);

enum { AUDIT_READ = 1, AUDIT_WRITE = 2 };

/* From here to audit_end() the calling thread runs a task; audit_declare() says what it may do. */
void audit_begin(struct audit *audit);
void audit_declare(struct audit *audit, int32_t handle, int access);

/* What was found of one handle: accesses of one kind, AUDIT_READ or AUDIT_WRITE, that were not declared, to so many
 * pages and first at this offset in bytes; or, with 0 pages, that it was declared and never happened. */
struct audit_finding {
    int32_t handle;
    int access;
    int64_t offset, pages;
};
typedef void audit_report(void *argument, const struct audit_finding *finding);

/* Reports what the task did, and closes the pages that it opened. */
void audit_end(struct audit *audit, audit_report *report, void *argument);

/* Reports accesses outside of tasks to closed pages since the last call. */
void audit_outside(struct audit *audit, audit_report *report, void *argument);

/* Opens and closes a handle's buffer for somebody who has a right to it: no task may be running. */
void audit_open(struct audit *audit, int32_t handle);
void audit_close(struct audit *audit, int32_t handle);

#endif
