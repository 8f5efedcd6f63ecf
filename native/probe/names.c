/* A hash table from the hash of a name to its record, and from that of a stack to its line. */
#include "names.h"

#define XXH_INLINE_ALL
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { SLOTS = 1 << 16, MOST = SLOTS / 2, FRAMES = 16, LINE = 1 << 13 };

static struct {
    uint64_t hash;
    uint32_t index;
} slots[SLOTS];
static uint32_t num_names, num_stacks;

static uint32_t append(struct log *log, const char *name)
{
    struct probe_name record = {0};
    strncpy(record.text, name, sizeof record.text - 1);
    return (uint32_t)log_append(log, PROBE_NAMES, &record);
}

/* The index for a hash, which is 0 if it is new; NULL: there is no room for more. */
static uint32_t *find(uint64_t hash)
{
    size_t slot = hash % SLOTS;
    while (slots[slot].index != 0 && slots[slot].hash != hash)
        slot = (slot + 1) % SLOTS;
    if (slots[slot].index == 0 && num_names + num_stacks >= MOST)
        return NULL;
    slots[slot].hash = hash;
    return &slots[slot].index;
}

uint32_t name_index(struct log *log, const char *name)
{
    if (num_names == 0) {
        append(log, "");
        num_names = 1;
    }
    if (!name || name[0] == '\0')
        return 0;
    uint32_t *index = find(XXH3_64bits(name, strlen(name)));
    if (!index || *index != 0)
        return index ? *index : 0;
    num_names++;
    return *index = append(log, name);
}

/* Without one, a performance model has one, or the function: by the program, or by the dynamic linker,
 * which knows exported functions alone, and of others where they lie in their file. */
uint32_t codelet_name(struct log *log, struct starpu_task *task)
{
    const struct starpu_codelet *codelet = task->cl;
    const char *model = codelet ? starpu_task_get_model_name(task) : NULL;
    char place[128];
    Dl_info found;
    if (!codelet)
        return name_index(log, NULL);
    /* Of a task of StarPU's OpenMP runtime, the program's function lies behind the codelet. */
    void *function = task->omp_task ? ((void *const *)(codelet + 1))[2] : (void *)codelet->cpu_funcs[0];
    if (codelet->name || model)
        return name_index(log, codelet->name ? codelet->name : model);
    if (codelet->cpu_funcs_name[0])
        return name_index(log, codelet->cpu_funcs_name[0]);
    if (!codelet->cpu_funcs[0] || dladdr(function, &found) == 0)
        return name_index(log, NULL);
    if (found.dli_saddr == function)
        return name_index(log, found.dli_sname);
    const char *file = strrchr(found.dli_fname, '/');
    snprintf(place, sizeof place, "%s+0x%tx", file ? file + 1 : found.dli_fname,
             (char *)function - (char *)found.dli_fbase);
    return name_index(log, place);
}

void write_frames(int file, const char *text, void *const *frames, int count)
{
    char line[LINE];
    int used = snprintf(line, sizeof line, "%s", text);
    for (int i = 0; i < count; i++) {
        Dl_info info = {0};
        const bool is_known = dladdr(frames[i], &info) != 0;
        const int more =
            snprintf(line + used, sizeof line - (size_t)used, "\t%p\t%p\t%s\t%s", frames[i], info.dli_fbase,
                     is_known && info.dli_sname ? info.dli_sname : "", is_known ? info.dli_fname : "");
        if (more >= (int)sizeof line - used - 1)
            break; /* the frames before are enough */
        used += more;
    }
    line[used++] = '\n';
    const ssize_t written = write(file, line, (size_t)used);
    (void)written; /* nothing else could be said of it */
}

uint32_t stack_number(struct log *log)
{
    void *frames[FRAMES];
    char text[16];
    const int count = backtrace(frames, FRAMES);
    uint32_t *index = find(XXH3_64bits(frames, (size_t)count * sizeof *frames));
    if (!index || *index != 0)
        return index ? *index : 0;
    *index = ++num_stacks;
    snprintf(text, sizeof text, "%u", *index);
    write_frames(log->files[STACKS_FILE], text, frames, count);
    return *index;
}
