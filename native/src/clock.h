/* The clock of traces, logs and measurements. */
#pragma once

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, nanoseconds. */
static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
