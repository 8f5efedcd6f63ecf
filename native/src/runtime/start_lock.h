/* Processes start StarPU one after the other: StarPU 1.4 keeps a file of the machine's bus speeds in STARPU_HOME,
 * XDG_CACHE_HOME or HOME, which the first process writes, and aborts a process that reads it before it is complete. */
#pragma once

/* Descriptors of the folders that are locked; -1: none. */
struct start_lock {
    int folders[2];
};

/* Waits for other processes of this machine that start StarPU with the same home folder. After ten seconds, or if the
 * folder can't be locked, the process starts StarPU all the same. */
struct start_lock start_lock(void);
void start_unlock(struct start_lock lock);
