/* Which contents are recorded: each once, by its hash, up to a limit. */
#include "keep.h"

enum { SLOTS = 1 << 20, MOST = SLOTS / 2 };
static const uint64_t most_bytes = UINT64_C(1) << 30;

static uint64_t hashes[SLOTS]; /* 0: free */
static uint64_t num_hashes, num_bytes;
static bool saw_free;

bool has_no_order(struct starpu_task *task, unsigned access)
{
    const unsigned char *by_handle = task->handles_sequential_consistency;
    return !task->sequential_consistency || (by_handle && !by_handle[access]) ||
           !starpu_data_get_sequential_consistency_flag(STARPU_TASK_GET_HANDLE(task, access));
}

static bool is_free(struct starpu_task *task)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++)
        if ((STARPU_TASK_GET_MODE(task, i) & (STARPU_REDUX | STARPU_COMMUTE)) != 0 || has_no_order(task, i))
            return true;
    return starpu_opencl_worker_get_count() > 0; /* a device may round otherwise */
}

bool keep_task(const struct settings *settings, struct starpu_task *task, uint64_t own)
{
    if (settings->keep == KEEP_ONE_TASK)
        return own == settings->kept_task;
    if (settings->keep == KEEP_FROM_FREE && !saw_free)
        saw_free = is_free(task);
    return saw_free;
}

bool keep_last(const struct settings *settings)
{
    return settings->keep == KEEP_FROM_FREE && saw_free;
}

bool keep_reserve(struct probe_contents *record)
{
    size_t slot = record->hash % SLOTS;
    while (hashes[slot] != 0 && hashes[slot] != record->hash)
        slot = (slot + 1) % SLOTS;
    if (record->hash == 0 || hashes[slot] != 0 || num_hashes == MOST || record->bytes > most_bytes - num_bytes)
        return false;
    hashes[slot] = record->hash;
    num_hashes++;
    record->offset = num_bytes;
    num_bytes += record->bytes;
    return true;
}
