/* Faster kernels with the same bits, once per level. kernels/select.c starts from the portable ones and lets a level
 * override those it has. */
#ifndef STARPULLM_SIMD_H
#define STARPULLM_SIMD_H

#include "kernels/kernels.h"
#include "kernels/libm.h"
#include "kernels/peak.h"

void kernels_override_avx2(struct kernels *kernels);
void kernels_override_avx512(struct kernels *kernels);
void kernels_override_neon(struct kernels *kernels);

libm_map *vector_libm_avx2(enum libm_function function);
libm_map *vector_libm_avx512(enum libm_function function);
libm_map *vector_libm_neon(enum libm_function function);

extern const struct peak peak_avx2;
extern const struct peak peak_avx512;
extern const struct peak peak_neon;

#endif
