/* Faster kernels with the same bits, once per level. kernels/select.c starts from the portable ones and lets a level
 * override those it has. */
#ifndef STARPULLM_SIMD_H
#define STARPULLM_SIMD_H

#include "kernels/kernels.h"

void kernels_override_avx2(struct kernels *kernels);
void kernels_override_avx512(struct kernels *kernels);
void kernels_override_neon(struct kernels *kernels);

#endif
