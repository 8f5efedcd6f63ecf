/* The fused loop of kernels/level.h: the only file that may be compiled to instructions that multiply and add with one
 * rounding. No result of the contract comes from here. */
#include "kernels/simd/peak_loop.h"

float SIMD_NAME(peak_fused)(size_t rounds, float factor, float term)
{
    return peak_chains_of(rounds, factor, term, true);
}
