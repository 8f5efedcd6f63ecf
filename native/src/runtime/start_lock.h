/* Processes start StarPU one after the other: StarPU 1.4 keeps a file of the machine's bus speeds in STARPU_HOME or
 * HOME, which the first process writes, and aborts a process that reads it before it is complete. */
#ifndef STARPULLM_START_LOCK_H
#define STARPULLM_START_LOCK_H

/* Waits for other processes of this machine that start StarPU with the same home folder. After ten seconds, or if the
 * folder can't be locked, the process starts StarPU all the same. */
int start_lock(void);
void start_unlock(int lock);

#endif
