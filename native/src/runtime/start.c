/* The environment is replaced by a longer copy of its array, so that other threads read either the one or the other.
 * The lock is on the folders themselves, so that no file is left in them. */
#include "runtime/start.h"

#include <errno.h>
#include <fcntl.h>
#include <starpu.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- The environment ---- */

static char **before, **extended; /* the copy is freed when the next one is made: a thread may be reading it */

static bool is_set(const char *setting)
{
    const size_t length = strcspn(setting, "=") + 1;
    for (char **variable = environ; variable && *variable; variable++)
        if (strncmp(*variable, setting, length) == 0)
            return true;
    return false;
}

static size_t length_of(char *const *list)
{
    size_t length = 0;
    while (list && list[length])
        length++;
    return length;
}

status environment_extend(const char *scheduler, char *const *implied, char *const *defaults)
{
    static char starpu_sched[128];
    const size_t known = length_of(environ), num_implied = length_of(implied), num_defaults = length_of(defaults);
    size_t length = 0;
    free(extended);
    extended = calloc(1 + num_implied + known + num_defaults + 1, sizeof *extended);
    if (!extended)
        return out_of_memory("a copy of the environment");
    if (!is_set("STARPU_SCHED_LIB=")) { /* the first of two variables of the same name counts */
        snprintf(starpu_sched, sizeof starpu_sched, "STARPU_SCHED=%s", scheduler);
        extended[length++] = starpu_sched;
    }
    for (size_t i = 0; i < num_implied; i++)
        extended[length++] = implied[i];
    if (known)
        memcpy(extended + length, environ, known * sizeof *extended);
    length += known;
    for (size_t i = 0; i < num_defaults; i++)
        if (!is_set(defaults[i]))
            extended[length++] = defaults[i];
    before = environ;
    environ = extended;
    return STARPULLM_OK;
}

void environment_restore(void)
{
    if (environ == extended) /* else another thread has replaced it */
        environ = before;
}

/* ---- One process after the other ---- */

enum { ATTEMPTS = 1000 };
static const struct timespec pause_between = {.tv_nsec = 10000000};

static int open_folder(const char *variable)
{
    const char *path = getenv(variable);
    return path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

/* In an order that is the same in all processes, so that no two wait for each other. A folder that both variables name
 * is locked once: a process that locked it twice would wait for itself. */
static void order(int folders[2])
{
    struct stat status[2];
    for (int i = 0; i < 2; i++)
        if (folders[i] < 0 || fstat(folders[i], &status[i]) != 0)
            return;
    const bool same_device = status[0].st_dev == status[1].st_dev;
    if (same_device && status[0].st_ino == status[1].st_ino) {
        close(folders[1]);
        folders[1] = -1;
    } else if (same_device ? status[0].st_ino > status[1].st_ino : status[0].st_dev > status[1].st_dev) {
        const int first = folders[0];
        folders[0] = folders[1];
        folders[1] = first;
    }
}

int start_in_turn(struct starpu_conf *conf)
{
    /* Which of them StarPU prefers depends on its version. */
    int folders[2] = {open_folder("STARPU_HOME"), open_folder("XDG_CACHE_HOME")};
    if (folders[0] < 0 && folders[1] < 0)
        folders[0] = open_folder("HOME");
    order(folders);
    for (int i = 0, attempts = 0; i < 2 && attempts < ATTEMPTS; i++) {
        if (folders[i] < 0)
            continue;
        while (flock(folders[i], LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
               attempts++ < ATTEMPTS)
            nanosleep(&pause_between, NULL);
    }
    const int error = starpu_init(conf);
    for (int i = 0; i < 2; i++)
        if (folders[i] >= 0)
            close(folders[i]);
    return error;
}
