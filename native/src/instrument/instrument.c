/* What the instruments do before and after a kernel, and what they have found. */
#include "instrument/instrument.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "instrument/poison.h"

struct instrument {
    struct instrument_options options;
    size_t *bytes;       /* of each handle */
    struct audit *audit; /* NULL: not audited */
    pthread_mutex_t mutex;
    struct starpullm_finding *findings;
    size_t count;
    bool lost; /* there wasn't enough memory for all findings */
    struct starpullm_instrument_counts counts;
};

status instrument_create(const struct instrument_options *options, const struct audit_buffer *buffers, size_t count,
                         struct instrument **created)
{
    struct instrument *instrument = calloc(1, sizeof *instrument);
    if (!instrument)
        return out_of_memory("the session's instruments");
    instrument->options = *options;
    pthread_mutex_init(&instrument->mutex, NULL);
    instrument->bytes = calloc(count + 1, sizeof *instrument->bytes);
    status code = instrument->bytes ? STARPULLM_OK : out_of_memory("a table of %zu sizes", count);
    for (size_t i = 0; i < count && code == STARPULLM_OK; i++)
        instrument->bytes[i] = buffers[i].bytes;
    if (code == STARPULLM_OK && options->instruments & STARPULLM_AUDIT)
        code = audit_create(buffers, count, &instrument->audit);
    if (code == STARPULLM_OK)
        *created = instrument;
    else
        instrument_destroy(instrument);
    return code;
}

void instrument_destroy(struct instrument *instrument)
{
    if (!instrument)
        return;
    audit_destroy(instrument->audit);
    pthread_mutex_destroy(&instrument->mutex);
    free(instrument->findings);
    free(instrument->bytes);
    free(instrument);
}

struct audit *instrument_audit(const struct instrument *instrument)
{
    return instrument->audit;
}

bool instrument_poisons(const struct instrument *instrument)
{
    return instrument->options.instruments & STARPULLM_POISON;
}

/* ---- Findings ---- */

static void append(void *argument, struct starpullm_finding finding)
{
    struct instrument *instrument = argument;
    pthread_mutex_lock(&instrument->mutex);
    struct starpullm_finding *findings =
        realloc(instrument->findings, (instrument->count + 1) * sizeof *instrument->findings);
    if (findings) {
        instrument->findings = findings;
        findings[instrument->count++] = finding;
    } else
        instrument->lost = true;
    pthread_mutex_unlock(&instrument->mutex);
}

status instrument_findings(struct instrument *instrument, size_t *count)
{
    if (instrument->audit)
        audit_outside(instrument->audit, append, instrument);
    if (instrument->lost)
        return out_of_memory("the findings after the first %zu", instrument->count);
    *count = instrument->count;
    return STARPULLM_OK;
}

void instrument_copy(const struct instrument *instrument, struct starpullm_finding *findings)
{
    if (instrument->count)
        memcpy(findings, instrument->findings, instrument->count * sizeof *findings);
}

struct starpullm_instrument_counts instrument_counts(const struct instrument *instrument)
{
    struct starpullm_instrument_counts counts = instrument->counts;
    counts.size = sizeof counts;
    return counts;
}

void instrument_clear(struct instrument *instrument)
{
    instrument->counts = (struct starpullm_instrument_counts){0};
    instrument->count = 0;
    instrument->lost = false;
}

/* ---- Around a kernel ---- */

/* splitmix64: one step of a generator whose state is its argument. */
static uint64_t mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static void delay(const struct instrument *instrument, int64_t task)
{
    const struct instrument_options *o = &instrument->options;
    const uint64_t us = mix(mix(o->delay_seed) ^ (uint64_t)task) % ((uint64_t)o->max_delay_us + 1);
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left))
        ;
}

bool instrument_draws(const struct instrument *instrument)
{
    return instrument->options.instruments & STARPULLM_DRAW_DEVICE;
}

bool instrument_draw_device(const struct instrument *instrument, const struct starpullm_trace_task *task)
{
    const struct instrument_options *o = &instrument->options;
    return mix(mix(mix(o->device_seed) ^ (uint64_t)task->step) ^ (uint64_t)task->id) % 100 <
           (uint64_t)o->device_percent;
}

static void add(struct instrument *instrument, int64_t *count, int64_t more)
{
    pthread_mutex_lock(&instrument->mutex);
    *count += more;
    pthread_mutex_unlock(&instrument->mutex);
}

/* What is counted is found there, so a poison that doesn't work, or that isn't found, shows. */
static int64_t fill(void *memory, size_t bytes)
{
    poison_fill(memory, bytes);
    return poison_find(memory, bytes).left;
}

void instrument_poison_between(struct instrument *instrument, void *memory, size_t bytes)
{
    add(instrument, &instrument->counts.poisoned_between, fill(memory, bytes));
}

static void poison_output(struct instrument *instrument, int32_t handle, void *buffer)
{
    audit_open(instrument->audit, handle);
    add(instrument, &instrument->counts.poisoned, fill(buffer, instrument->bytes[handle]));
    audit_close(instrument->audit, handle);
}

void instrument_before(struct instrument *instrument, struct record record, void *const buffers[])
{
    struct audit *audit = instrument->audit;
    if (instrument_poisons(instrument))
        for (int i = 0; i < record.task->num_accesses; i++)
            if (record.accesses[i].mode == STARPULLM_WRITE)
                poison_output(instrument, record.accesses[i].handle, buffers[i]);
    if (instrument->options.instruments & STARPULLM_DELAY)
        delay(instrument, record.task->id);
    if (!audit)
        return;
    audit_begin(audit);
    for (int i = 0; i < record.task->num_accesses; i++)
        audit_declare(audit, record.accesses[i].handle, record.accesses[i].mode);
}

static void find_poison(struct instrument *instrument, int64_t task, const struct starpullm_trace_access *access,
                        const void *buffer)
{
    audit_open(instrument->audit, access->handle);
    const struct poison_found found = poison_find(buffer, instrument->bytes[access->handle]);
    audit_close(instrument->audit, access->handle);
    add(instrument, &instrument->counts.searched, found.searched);
    if (found.left && access->mode == STARPULLM_WRITE)
        append(instrument,
               (struct starpullm_finding){task, access->handle, STARPULLM_NOT_WRITTEN, found.first_left, found.left});
    if (found.spread)
        append(instrument, (struct starpullm_finding){task, access->handle, STARPULLM_POISON_SPREAD, found.first_spread,
                                                      found.spread});
}

void instrument_after(struct instrument *instrument, struct record record, void *const buffers[])
{
    const int64_t task = record.task->id;
    if (instrument->audit)
        add(instrument, &instrument->counts.pages, audit_end(instrument->audit, task, append, instrument));
    if (instrument_poisons(instrument))
        for (int i = 0; i < record.task->num_accesses; i++)
            if (record.accesses[i].mode != STARPULLM_READ)
                find_poison(instrument, task, &record.accesses[i], buffers[i]);
}
