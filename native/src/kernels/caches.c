/* What Linux tells of the caches: Documentation/ABI/testing/sysfs-devices-system-cpu of its sources. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_SIZE = 256 };

/* The first line of a file of the first processor's cache; false if there is none. */
static bool read_line(char line[TEXT_SIZE], int index, const char *name)
{
    char path[TEXT_SIZE];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    const bool done = fgets(line, TEXT_SIZE, file);
    fclose(file);
    return done;
}

/* A size such as "32768", "32K" or "1M", and where its text ends; 0 if there is none. */
static size_t read_size(const char *text, char **end)
{
    if (*text < '0' || *text > '9') { /* strtoull also takes signs and spaces */
        *end = (char *)text;
        return 0;
    }
    const size_t number = strtoull(text, end, 10);
    const size_t unit = **end == 'K' ? (size_t)1 << 10 : **end == 'M' ? (size_t)1 << 20 : 1;
    *end += unit > 1;
    return number <= ((size_t)1 << 40) / unit ? number * unit : 0;
}

/* How many processors are in a list such as "0-3,8-11". */
static size_t processors_in(const char *list)
{
    size_t count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        const unsigned long first = strtoul(list, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        count += last - first + 1;
        list = end + (*end == ',');
    }
    return count > 0 ? count : 1;
}

static bool l3_is_slow(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

static void read_first_processor(struct caches *caches)
{
    *caches = (struct caches){.l2 = (size_t)256 << 10, .l3_is_slow = l3_is_slow()};
    char line[TEXT_SIZE], *end;
    for (int index = 0; read_line(line, index, "level"); index++) {
        if (line[0] != '2' || !read_line(line, index, "size"))
            continue;
        const size_t size = read_size(line, &end);
        const size_t sharing = read_line(line, index, "shared_cpu_list") ? processors_in(line) : 1;
        if (size > 0)
            caches->l2 = size / sharing;
    }
}

bool caches_read(struct caches *caches)
{
    read_first_processor(caches);
    const char *text = getenv("STARPULLM_L2_CACHE");
    if (!text || !*text)
        return true;
    char *end;
    const size_t l2 = read_size(text, &end);
    if (l2 == 0 || *end != '\0')
        return false;
    caches->l2 = l2;
    return true;
}
