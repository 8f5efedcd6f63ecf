/* What the processor says about a memory fault. The build links the file for its processor. */
#pragma once

#include <stdbool.h>

/* Whether the fault was a write; `context` is the signal handler's. Always false on a processor that doesn't say:
 * audit_create() finds this out. */
bool fault_is_write(const void *context);
