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
#include <sys/stat.h>
#include <unistd.h>

enum { OWNER_BYTES = 128 }; /* the file's size; less text is padded with zeros */

/* A folder whose .lock was removed, or that was removed and made again, isn't the one that was locked. */
struct identity {
    dev_t device;
    ino_t folder, file;
};

struct folder_lock {
    struct folder_lock *next;
    struct state_root root;
    int file; /* .lock, opened; -1: closed */
    struct identity identity;
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
    return error_number == ENOLCK || error_number == EINVAL || is_unavailable(error_number);
}

/* In one write, so that a reader sees the old owner or the new one. */
static status write_owner(const struct folder_lock *lock, uint64_t run)
{
    char owner[OWNER_BYTES] = {0}, host[65] = {0};
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    snprintf(owner, sizeof owner, "run %016" PRIx64 "\nprocess %ld on %s\n", run, (long)getpid(), host);
    const ssize_t put = TEMP_FAILURE_RETRY(pwrite(lock->file, owner, sizeof owner, 0));
    if (put != (ssize_t)sizeof owner)
        return file_error(put < 0 ? errno : ENOSPC, "%s: write its .lock", lock->root.path);
    return STARPULLM_OK;
}

static status check_owner(const struct folder_lock *lock, uint64_t run)
{
    char owner[OWNER_BYTES + 1] = {0};
    uint64_t found;
    if (TEMP_FAILURE_RETRY(pread(lock->file, owner, OWNER_BYTES, 0)) < 0)
        return file_error(errno, "%s: read its .lock", lock->root.path);
    char *process = strchr(owner, '\n');
    if (!process || sscanf(owner, "run %" SCNx64, &found) != 1)
        return file_error(EBUSY, "%s: another run is saving into this folder", lock->root.path);
    if (found == run)
        return STARPULLM_OK;
    process[strcspn(process + 1, "\n") + 1] = '\0';
    return file_error(EBUSY, "%s: another run is saving into this folder (%s)", lock->root.path, process + 1);
}

static status lock_for_run(const struct folder_lock *lock, uint64_t run)
{
    const bool first = lock_file(lock->file, F_OFD_SETLK, F_WRLCK) == 0;
    if (!first && has_no_locks(errno))
        return STARPULLM_OK;
    if (!first && !is_held_by_others(errno))
        return file_error(errno, "%s: lock its .lock", lock->root.path);
    if (first)
        TRY(write_owner(lock, run));
    /* Waits at most until the first process of the other run has written its number. */
    if (lock_file(lock->file, F_OFD_SETLKW, F_RDLCK) != 0)
        return file_error(errno, "%s: lock its .lock", lock->root.path);
    return first ? STARPULLM_OK : check_owner(lock, run);
}

static status open_folder(struct folder_lock *lock, const char *path)
{
    struct stat folder, file;
    lock->root.path = strdup(path);
    if (!lock->root.path)
        return out_of_memory("%s: its path could not be allocated", path);
    lock->root.descriptor = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock->root.descriptor < 0 || fstat(lock->root.descriptor, &folder) != 0)
        return file_error(errno, "%s: open the folder", path);
    lock->file = TEMP_FAILURE_RETRY(
        openat(lock->root.descriptor, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (lock->file < 0 || fstat(lock->file, &file) != 0)
        return file_error(errno, "%s: open its .lock", path);
    lock->identity = (struct identity){folder.st_dev, folder.st_ino, file.st_ino};
    return STARPULLM_OK;
}

/* A forked child may have the same open file, so closing it here isn't enough. */
static void release(struct folder_lock *lock)
{
    if (lock->file >= 0) {
        (void)lock_file(lock->file, F_OFD_SETLK, F_UNLCK);
        close(lock->file);
    }
    if (lock->root.descriptor >= 0)
        close(lock->root.descriptor);
    free(lock->root.path);
    free(lock);
}

static struct folder_lock *find(struct folder_lock *locks, const struct identity *identity)
{
    while (locks && memcmp(&locks->identity, identity, sizeof *identity) != 0)
        locks = locks->next;
    return locks;
}

status folder_lock_take(struct folder_lock **locks, const char *path, uint64_t run, const struct state_root **root)
{
    struct folder_lock *taken = calloc(1, sizeof *taken);
    if (!taken)
        return out_of_memory("%s: its lock could not be allocated", path);
    taken->root.descriptor = taken->file = -1;
    status code = open_folder(taken, path);
    struct folder_lock *ours = code == STARPULLM_OK ? find(*locks, &taken->identity) : NULL;
    if (code == STARPULLM_OK && !ours)
        code = lock_for_run(taken, run);
    if (code != STARPULLM_OK || ours) {
        release(taken);
    } else {
        taken->next = *locks;
        *locks = ours = taken;
    }
    if (code == STARPULLM_OK)
        *root = &ours->root;
    return code;
}

void folder_lock_release_all(struct folder_lock **locks)
{
    while (*locks) {
        struct folder_lock *lock = *locks;
        *locks = lock->next;
        release(lock);
    }
}
