/* The micro-kernel on operands that stay in the first-level cache: what the matmuls of a level could reach at most. */
#pragma once

#include "kernels/peak.h"

struct bare_microkernel {
    struct peak_loop strict; /* as in the library */
    struct peak_loop fused;  /* the same source with fused multiply-add; run is NULL if this processor has none */
};

/* That of a level; {0} at a level without micro-kernels. */
struct bare_microkernel bare_microkernel_of(const char *level);
