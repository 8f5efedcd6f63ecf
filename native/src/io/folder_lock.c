/* The lock of folder_lock.h, made of an open file description lock (fcntl(2)) that the ranks of a run share. A process
 * that gets the lock for itself alone is the first of its run: it writes the run's number into the file, then shares
 * the lock. Any other process waits for that, shares the lock, and compares the number with its own. */
#include "io/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWNER_BYTES = 128 }; /* the file's size; less text is padded with zeros */

struct folder_lock {
    struct folder_lock *next;
    char *folder;
    int descriptor; /* -1: closed */
};

static int lock_file(int descriptor, int command, short type)
{
    struct flock whole_file = {.l_type = type, .l_whence = SEEK_SET};
    return TEMP_FAILURE_RETRY(fcntl(descriptor, command, &whole_file));
}

static bool is_held_by_others(int error_number)
{
    return error_number == EAGAIN || error_number == EACCES;
}

static bool has_no_locks(int error_number)
{
    return error_number == ENOLCK || error_number == EOPNOTSUPP || error_number == EINVAL || error_number == ENOSYS;
}

/* In one write, so that a reader sees the old owner or the new one. */
static status write_owner(const struct folder_lock *lock, uint64_t run)
{
    char owner[OWNER_BYTES] = {0}, host[65] = {0};
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    snprintf(owner, sizeof owner, "run %016" PRIx64 "\nprocess %ld on %s\n", run, (long)getpid(), host);
    const ssize_t put = TEMP_FAILURE_RETRY(pwrite(lock->descriptor, owner, sizeof owner, 0));
    if (put != (ssize_t)sizeof owner)
        return fail_errno(STARPULLM_FILE_ERROR, put < 0 ? errno : ENOSPC, "%s: write its .lock", lock->folder);
    return STARPULLM_OK;
}

static status check_owner(const struct folder_lock *lock, uint64_t run)
{
    char owner[OWNER_BYTES + 1] = {0};
    uint64_t found;
    if (TEMP_FAILURE_RETRY(pread(lock->descriptor, owner, OWNER_BYTES, 0)) < 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: read its .lock", lock->folder);
    char *process = strchr(owner, '\n');
    if (!process || sscanf(owner, "run %" SCNx64, &found) != 1)
        return fail_errno(STARPULLM_FILE_ERROR, EBUSY, "%s: another run is saving into this folder", lock->folder);
    if (found == run)
        return STARPULLM_OK;
    process[strcspn(process + 1, "\n") + 1] = '\0';
    return fail_errno(STARPULLM_FILE_ERROR, EBUSY, "%s: another run is saving into this folder (%s)", lock->folder,
                      process + 1);
}

static status lock_for_run(struct folder_lock *lock, uint64_t run)
{
    char *path;
    if (asprintf(&path, "%s/.lock", lock->folder) < 0)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: the path of its .lock could not be allocated", lock->folder);
    lock->descriptor = TEMP_FAILURE_RETRY(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    const int error = errno;
    free(path);
    if (lock->descriptor < 0)
        return fail_errno(STARPULLM_FILE_ERROR, error, "%s: open its .lock", lock->folder);
    const bool first = lock_file(lock->descriptor, F_OFD_SETLK, F_WRLCK) == 0;
    if (!first && has_no_locks(errno))
        return STARPULLM_OK;
    if (!first && !is_held_by_others(errno))
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: lock its .lock", lock->folder);
    if (first)
        TRY(write_owner(lock, run));
    /* Waits at most until the first process of the other run has written its number. */
    if (lock_file(lock->descriptor, F_OFD_SETLKW, F_RDLCK) != 0)
        return fail_errno(STARPULLM_FILE_ERROR, errno, "%s: lock its .lock", lock->folder);
    return first ? STARPULLM_OK : check_owner(lock, run);
}

status folder_lock_take(struct folder_lock **locks, const char *folder, uint64_t run)
{
    for (const struct folder_lock *lock = *locks; lock; lock = lock->next)
        if (strcmp(lock->folder, folder) == 0)
            return STARPULLM_OK;
    struct folder_lock *taken = calloc(1, sizeof *taken);
    char *copy = strdup(folder);
    if (!taken || !copy) {
        free(taken);
        free(copy);
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: its lock could not be allocated", folder);
    }
    *taken = (struct folder_lock){NULL, copy, -1};
    const status code = lock_for_run(taken, run);
    if (code != STARPULLM_OK) {
        folder_lock_release_all(&taken);
        return code;
    }
    taken->next = *locks;
    *locks = taken;
    return STARPULLM_OK;
}

/* Closing the file ends the lock. */
void folder_lock_release_all(struct folder_lock **locks)
{
    while (*locks) {
        struct folder_lock *lock = *locks;
        *locks = lock->next;
        if (lock->descriptor >= 0)
            close(lock->descriptor);
        free(lock->folder);
        free(lock);
    }
}
