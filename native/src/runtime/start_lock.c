/* The lock is on the folders themselves, so that no file is left in them. */
#include "runtime/start_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

struct start_lock start_lock(void)
{
    /* Which of them StarPU prefers depends on its version. */
    struct start_lock lock = {{open_folder("STARPU_HOME"), open_folder("XDG_CACHE_HOME")}};
    if (lock.folders[0] < 0 && lock.folders[1] < 0)
        lock.folders[0] = open_folder("HOME");
    order(lock.folders);
    for (int i = 0, attempts = 0; i < 2 && attempts < ATTEMPTS; i++) {
        if (lock.folders[i] < 0)
            continue;
        while (flock(lock.folders[i], LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
               attempts++ < ATTEMPTS)
            nanosleep(&pause_between, NULL);
    }
    return lock;
}

void start_unlock(struct start_lock lock)
{
    for (int i = 0; i < 2; i++)
        if (lock.folders[i] >= 0)
            close(lock.folders[i]);
}
