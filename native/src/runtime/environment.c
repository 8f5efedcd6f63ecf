/* The environment is replaced by a longer copy of its array, so that other threads read either the one or the other. */
#include "runtime/environment.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **before, **extended; /* the copy is freed when the next one is made: a thread may be reading it */

static bool is_set(const char *setting)
{
    const size_t length = strcspn(setting, "=") + 1;
    for (char **variable = environ; variable && *variable; variable++)
        if (strncmp(*variable, setting, length) == 0)
            return true;
    return false;
}

status environment_extend(const char *scheduler, char *const *settings, size_t count)
{
    static char starpu_sched[128];
    size_t known = 0, length = 0;
    while (environ && environ[known])
        known++;
    free(extended);
    extended = calloc(1 + known + count + 1, sizeof *extended);
    if (!extended)
        return fail(STARPULLM_OUT_OF_MEMORY, "a copy of the environment");
    if (!is_set("STARPU_SCHED_LIB=")) { /* the first of two variables of the same name counts */
        snprintf(starpu_sched, sizeof starpu_sched, "STARPU_SCHED=%s", scheduler);
        extended[length++] = starpu_sched;
    }
    if (known)
        memcpy(extended + length, environ, known * sizeof *extended);
    length += known;
    for (size_t i = 0; i < count; i++)
        if (!is_set(settings[i]))
            extended[length++] = settings[i];
    before = environ;
    environ = extended;
    return STARPULLM_OK;
}

void environment_restore(void)
{
    if (environ == extended) /* else another thread has replaced it */
        environ = before;
}
