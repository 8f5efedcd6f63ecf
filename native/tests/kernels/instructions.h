/* Instructions that this thread has retired, by the processor's own counter, where the kernel gives access to it. */
#pragma once

#include <stdbool.h>

/* false: there is no counter here. */
bool instructions_start(void);

/* Instructions since the start; not after a failed one. */
double instructions_read(void);
