// A hash table from a name's hash to its record.
#include "names.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SLOTS = 1 << 16, MOST = SLOTS / 2 };

static struct {
    uint64_t hash;
    uint32_t index;
} slots[SLOTS];
static uint32_t num_names;

static uint32_t append(struct log *log, const char *name)
{
    struct probe_name record = {0};
    strncpy(record.text, name, sizeof record.text - 1);
    return (uint32_t)log_append(log, PROBE_NAMES, &record);
}

uint32_t name_index(struct log *log, const char *name)
{
    if (num_names == 0) {
        append(log, "");
        num_names = 1;
    }
    if (name == NULL || name[0] == '\0')
        return 0;
    uint64_t hash = XXH3_64bits(name, strlen(name));
    size_t slot = hash % SLOTS;
    while (slots[slot].index != 0) {
        if (slots[slot].hash == hash)
            return slots[slot].index;
        slot = (slot + 1) % SLOTS;
    }
    if (num_names >= MOST)
        return 0;
    slots[slot].hash = hash;
    slots[slot].index = append(log, name);
    num_names++;
    return slots[slot].index;
}

// Without one, a performance model has one, or the function: by the program, or by the dynamic linker,
// which knows exported functions alone, and of others where they lie in their file.
uint32_t codelet_name(struct log *log, struct starpu_task *task)
{
    const struct starpu_codelet *codelet = task->cl;
    const char *model = codelet == NULL ? NULL : starpu_task_get_model_name(task);
    char place[128];
    Dl_info found;
    if (codelet == NULL)
        return name_index(log, NULL);
    if (codelet->name != NULL || model != NULL)
        return name_index(log, codelet->name != NULL ? codelet->name : model);
    if (codelet->cpu_funcs_name[0] != NULL)
        return name_index(log, codelet->cpu_funcs_name[0]);
    if (codelet->cpu_funcs[0] == NULL || dladdr((void *)codelet->cpu_funcs[0], &found) == 0)
        return name_index(log, NULL);
    if (found.dli_saddr == (void *)codelet->cpu_funcs[0])
        return name_index(log, found.dli_sname);
    const char *file = strrchr(found.dli_fname, '/');
    snprintf(place, sizeof place, "%s+0x%tx", file == NULL ? found.dli_fname : file + 1,
             (char *)codelet->cpu_funcs[0] - (char *)found.dli_fbase);
    return name_index(log, place);
}
