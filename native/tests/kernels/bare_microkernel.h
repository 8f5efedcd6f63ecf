/* The micro-kernel on operands that stay in the first-level cache: what the matmuls of a level could reach at most. */
#ifndef STARPULLM_BARE_MICROKERNEL_H
#define STARPULLM_BARE_MICROKERNEL_H

#include <stddef.h>

struct bare_microkernel {
    void (*strict)(size_t calls); /* multiplies so many times, in this thread */
    void (*fused)(size_t calls);  /* the same source with fused multiply-add; NULL: this processor has none */
    double operations;            /* multiplications and additions of a call */
};

/* That of a level; {0} at a level without micro-kernels. */
struct bare_microkernel bare_microkernel_of(const char *level);

#endif
