/* The lock is on the home folder itself, so that no file of it is left. */
#include "runtime/start_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { ATTEMPTS = 1000 };
static const struct timespec pause_between = {.tv_nsec = 10000000};

int start_lock(void)
{
    const char *home = NULL, *const names[] = {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"}; /* as StarPU looks for it */
    for (size_t i = 0; !home && i < sizeof names / sizeof *names; i++)
        home = getenv(names[i]);
    const int folder = home ? open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    for (int i = 0; folder >= 0 && i < ATTEMPTS; i++) {
        if (flock(folder, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
            break;
        nanosleep(&pause_between, NULL);
    }
    return folder;
}

void start_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
