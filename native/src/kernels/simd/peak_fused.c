/* The fused loop of kernels/peak.h: the only file that may be compiled to instructions that multiply and add with one
 * rounding. No result of the contract comes from here. */
#include "kernels/simd/peak_loop.h"

float SIMD_NAME(peak_fused)(size_t rounds, float factor, float term)
{
    const vector factors = vector_of(factor), terms = vector_of(term);
    vector chains[PEAK_CHAINS];
    for (int i = 0; i < PEAK_CHAINS; i++)
        chains[i] = vector_of((float)i);
    for (size_t round = 0; round < rounds; round++) {
        UNROLLED
        for (int i = 0; i < PEAK_CHAINS; i++)
            chains[i] = chains[i] * factors + terms;
    }
    return peak_sum(chains);
}
