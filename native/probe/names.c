// A hash table from a name's hash to its record.
#include "names.h"

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
