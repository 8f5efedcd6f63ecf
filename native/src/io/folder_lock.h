/* A lock on a folder of training states, so that only one run at a time saves into it. The lock belongs to a run, not
 * to a process: all ranks of a run hold it together, also from several machines that share a file system.
 *
 * The file .lock in the folder names the run. Each rank holds a lock of the kernel's on that file, which ends with the
 * process, so a dead run never blocks a new one; the file itself stays, and means nothing without a process that holds
 * it. Where the file system has no locks, folders aren't protected. */
#pragma once

#include <stdint.h>

#include "io/training_state.h"

/* A list; NULL: empty. */
struct folder_lock;

/* Opens the folder `path`, which exists, and adds a lock on it to the list, unless the list has that folder already,
 * under whatever name. *root lives as long as the list. STARPULLM_FILE_ERROR with EBUSY, and with what is known of the
 * other run's process, if another run holds the lock. */
status folder_lock_take(struct folder_lock **locks, const char *path, uint64_t run, const struct state_root **root);

/* Leaves an empty list. */
void folder_lock_release_all(struct folder_lock **locks);
