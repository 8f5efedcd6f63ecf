/* Transposing a matrix in registers. */
#pragma once

#include <stddef.h>

#include "kernels/simd/vector.h"

/* out[j,i] = in[i,j] of in (rows,columns), whose rows are ldin apart; out's are ldout apart. */
void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns);
