/* One level's micro-kernel on operands in the first-level cache. Compiled once per level as its kernels are, and once
 * more with fused multiply-add. */
#include "kernels/simd/microkernel.h"

/* As many steps as a matmul's largest blocks have, so that beginning and end of a micro-tile weigh as little. */
enum { KC = 768 };

void SIMD_NAME(bare_microkernel)(size_t calls);
double SIMD_NAME(bare_operations)(void);

void SIMD_NAME(bare_microkernel)(size_t calls)
{
    static float a[KC], b[NR], c[MR * NR];
    /* All rows of a are the same row, and all of b: every load is from the first-level cache. */
    const struct product product = {
        .c = c, .ldc = NR, .a = a, .rs_a = 0, .cs_a = 1, .b = b, .ldb = 0, .m = MR, .n = NR, .k = KC};
    for (size_t i = 0; i < calls; i++)
        SIMD_NAME(microkernel)(&product);
}

double SIMD_NAME(bare_operations)(void)
{
    return 2.0 * MR * NR * KC;
}
