/* What the processor says about a memory fault. Called by audit.c's signal handler; the build links the file of its
 * processor. */
#ifndef STARPULLM_FAULT_H
#define STARPULLM_FAULT_H

#include <stdbool.h>

/* Whether it was a write that faulted, else a read; `context` as a signal handler gets it. False too where neither the
 * processor nor the kernel says so, which audit.c finds out. */
bool fault_is_write(const void *context);

#endif
