/* The counter of perf_event_open(2). */
#include "instructions.h"

#include <stdint.h>

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

static int counter = -1;

bool instructions_start(void)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_HARDWARE,
                                         .size = sizeof attributes,
                                         .config = PERF_COUNT_HW_INSTRUCTIONS,
                                         .exclude_kernel = 1,
                                         .exclude_hv = 1};
    if (counter < 0)
        counter = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
    return counter >= 0;
}

double instructions_read(void)
{
    uint64_t count = 0;
    return read(counter, &count, sizeof count) == (ssize_t)sizeof count ? (double)count : 0;
}
#else
bool instructions_start(void)
{
    return false;
}

double instructions_read(void)
{
    return 0;
}
#endif
