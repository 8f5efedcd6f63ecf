/* A micro-kernel with the micro-tile that this file is compiled for: the micro-panels of ROWS rows of a meet the same
 * micro-panel of b (KC,NR). All of it stays in the second-level cache, and b's in the first-level one. */
#include "bench_tiles.h"

#include "kernels/simd/microkernel.h"

enum { KC = 256, ROWS = 96 / MR * MR, LDA = 768 };
_Static_assert(ROWS *LDA + KC * NR + ROWS * NR <= TILE_ROOM, "a, b and c have room");

struct tile_work SIMD_NAME(tile)(bool packed, double operations, float *room)
{
    float *a = room, *b = a + ROWS * LDA, *c = b + KC * NR;
    struct product product = {.ldc = NR, .initial = SIMD_NAME(zeros), .b = b, .ldb = NR, .m = MR, .n = NR, .k = KC};
    product.rs_a = packed ? 1 : LDA;
    product.cs_a = packed ? MR : 1;
    const double of_one = 2.0 * MR * NR * KC;
    double done = 0;
    while (done < operations)
        for (size_t i = 0; i < ROWS; i += MR, done += of_one) {
            product.a = a + i * (packed ? KC : LDA);
            product.c = c + i * NR;
            SIMD_NAME(microkernel)(&product);
        }
    return (struct tile_work){done, done / (2.0 * MR * NR), NR};
}
