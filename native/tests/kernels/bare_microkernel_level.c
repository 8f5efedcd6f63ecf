/* One level's micro-kernel on operands in the first-level cache. Compiled once per level as its kernels are, and once
 * more with fused multiply-add. */
#include "kernels/simd/microkernel.h"

/* As many steps as let both micro-panels take 16 KB; the smallest first-level caches have 32 KB. */
enum { KC = 4096 / (MR + NR) };

void SIMD_NAME(bare_microkernel)(size_t calls);
double SIMD_NAME(bare_operations)(void);

void SIMD_NAME(bare_microkernel)(size_t calls)
{
    static float a[KC * MR] __attribute__((aligned(64))), b[KC * NR] __attribute__((aligned(64)));
    static float c[MR * NR] __attribute__((aligned(64)));
    const struct product product = {
        .c = c, .ldc = NR, .a = a, .rs_a = 1, .cs_a = MR, .b = b, .ldb = NR, .m = MR, .n = NR, .k = KC};
    for (size_t i = 0; i < calls; i++)
        SIMD_NAME(microkernel)(&product);
}

double SIMD_NAME(bare_operations)(void)
{
    return 2.0 * MR * NR * KC;
}
