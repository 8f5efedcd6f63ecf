/* Instruments that look into a session's run: the access audit, poisoning, random delays. Created by session.c; called
 * by codelets/task.c around each kernel and by data.c, both with nothing but a null pointer where there are none. */
#ifndef STARPULLM_INSTRUMENT_H
#define STARPULLM_INSTRUMENT_H

#include <stdbool.h>

#include "instrument/audit.h"

struct instrument_options {
    int32_t instruments; /* enum starpullm_instrument, added up */
    int64_t max_delay_us;
    uint64_t delay_seed;
};

struct instrument;

/* buffers: of all handles; kept by nobody. */
status instrument_create(const struct instrument_options *options, const struct audit_buffer *buffers, size_t count,
                         struct instrument **instrument);
void instrument_destroy(struct instrument *instrument);

/* NULL where accesses aren't audited. */
struct audit *instrument_audit(const struct instrument *instrument);
bool instrument_poisons(const struct instrument *instrument);

/* What a task declared; a part of its argument block. */
struct watched_access {
    int32_t handle;
    int32_t mode; /* enum starpullm_access_mode */
    size_t bytes;
};
struct watch {
    struct instrument *instrument;
    int64_t task; /* its number in the trace */
    int num_accesses;
    struct watched_access accesses[];
};

/* Before and after the kernel, in the worker's thread; buffers in the order of the accesses. */
void instrument_before(const struct watch *watch, void *const buffers[]);
void instrument_after(const struct watch *watch, void *const buffers[]);

/* No task may be running. Failure: findings were lost for want of memory. */
status instrument_findings(struct instrument *instrument, size_t *count);
void instrument_copy(const struct instrument *instrument, struct starpullm_finding *findings);
void instrument_clear(struct instrument *instrument);

#endif
