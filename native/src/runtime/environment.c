/* The environment is replaced by a longer copy of its array, so that other threads read either the one or the other. */
#include "runtime/environment.h"

#include <stdbool.h>
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

status environment_extend(char *const *settings, size_t count)
{
    size_t length = 0;
    while (environ && environ[length])
        length++;
    free(extended);
    extended = calloc(length + count + 1, sizeof *extended);
    if (!extended)
        return fail(STARPULLM_OUT_OF_MEMORY, "a copy of the environment");
    if (length)
        memcpy(extended, environ, length * sizeof *extended);
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
