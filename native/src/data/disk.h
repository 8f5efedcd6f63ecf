/* The disk that StarPU moves data to when memory is limited: one file without a name, which ends with the process. It
 * belongs to the runtime. A request that fails becomes a failure of all sessions (disk_check), as StarPU ignores what
 * its own functions return. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* Makes the file; refuses a folder that can't have one, or is memory itself. Before StarPU starts. */
status disk_open(const char *folder);
/* Adds it to the running StarPU, whose limit is rounded up to whole MiB and becomes this one. */
status disk_register(int64_t memory_limit);
/* After StarPU has stopped. */
void disk_close(void);

/* Whether it has the present value of a handle (starpu_data_handle_t). */
bool disk_has(void *handle);

/* The first request that failed, on any thread. */
status disk_check(void);

/* What a session's data take, in bytes. */
struct disk_share {
    int64_t evictable; /* all that StarPU may evict: reserved on the disk, so that a full one is told at once */
    int64_t staying;   /* all that stay in memory, within StarPU's limit */
    int64_t task;      /* evictable, of the task that has most of them */
    int64_t datum;     /* the largest evictable one */
    int64_t number; /* of the data. Their entries take their memory now: StarPU may wait for ever for one that fails */
    struct disk_share *next; /* of another session */
};
/* Keeps the pointer until the share is given back. *all: what this session and those that have a share now take
 * together, unless `check` refuses it; sessions may be created in several threads. */
status disk_reserve(struct disk_share *share, status (*check)(const struct disk_share *all), struct disk_share *all);
/* After the session's data have ended; nothing if the share isn't reserved. */
void disk_give_back(struct disk_share *share);

/* Bytes of whole pages so far. */
void disk_traffic(int64_t *written, int64_t *read);
