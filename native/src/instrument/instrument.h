/* Instruments that watch a session's run, or disturb it, for checks: the access audit, poisoned memory, random delays.
 */
#pragma once

#include <stdbool.h>

#include "instrument/audit.h"
#include "trace/record.h"

struct instrument_options {
    int32_t instruments; /* sum of enum starpullm_instrument */
    int64_t max_delay_us;
    uint64_t delay_seed;
    int32_t device_percent;
    uint64_t device_seed;
};

struct instrument;

/* buffers: of all handles, in the order of their ids; copied. Without the audit only their bytes are read. */
status instrument_create(const struct instrument_options *options, const struct audit_buffer *buffers, size_t count,
                         struct instrument **instrument);
void instrument_destroy(struct instrument *instrument);

/* NULL if accesses aren't audited. */
struct audit *instrument_audit(const struct instrument *instrument);
bool instrument_poisons(const struct instrument *instrument);

/* Called in the worker's thread before and after the kernel of a task; buffers in the order of its accesses. */
void instrument_before(struct instrument *instrument, struct record record, void *const buffers[]);
void instrument_after(struct instrument *instrument, struct record record, void *const buffers[]);

/* STARPULLM_DRAW_DEVICE: whether a device runs a task that a worker can run too. */
bool instrument_draws(const struct instrument *instrument);
bool instrument_draw_device(const struct instrument *instrument, const struct starpullm_trace_task *task);

/* Fills a buffer between iterations. */
void instrument_poison_between(struct instrument *instrument, void *memory, size_t bytes);

/* What has been looked at since the last instrument_clear(). No task may be running. */
struct starpullm_instrument_counts instrument_counts(const struct instrument *instrument);

/* No task may be running. Fails if there wasn't enough memory for all findings. */
status instrument_findings(struct instrument *instrument, size_t *count);
void instrument_copy(const struct instrument *instrument, struct starpullm_finding *findings);
void instrument_clear(struct instrument *instrument);
