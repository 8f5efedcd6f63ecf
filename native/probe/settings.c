// Environment variables to settings.
#include "settings.h"

#include <stdlib.h>

static uint64_t number(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

struct settings read_settings(void)
{
    return (struct settings){
        .directory = getenv("STARPULLM_PROBE_DIRECTORY"),
        .seed = number("STARPULLM_PROBE_SEED"),
        .max_workers = (unsigned)number("STARPULLM_PROBE_MAX_WORKERS"),
        .delay_us = (unsigned)number("STARPULLM_PROBE_DELAY_US"),
        .settle_us = (unsigned)number("STARPULLM_PROBE_SETTLE_US"),
        .settle_ms = (unsigned)number("STARPULLM_PROBE_SETTLE_MS"),
        .hash = number("STARPULLM_PROBE_HASH") != 0,
        .poison = number("STARPULLM_PROBE_POISON") != 0,
    };
}
