/* Matmuls by a BLAS that the user names: fast, and not the contract's arithmetic. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

/* Opens a shared library by its path, or by the name that the dynamic linker knows it by. Each of its calls then runs
 * in the caller's thread alone: kernels share out their outputs. false: it can't serve, and `sentence` says why. */
bool blas_open(char *sentence, size_t sentence_size, const char *library);

/* Gives the BLAS its threads back. */
void blas_close(void);

/* What it is, for people: file, name and version as it gives them, integers. */
const char *blas_description(void);

/* c (rows,columns) = op(a) (rows,depth) op(b) (depth,columns) + (add ? c : 0), where op(x) is the transpose of x if
 * that is said. Rows of a, b and c as they lie in memory are lda, ldb and ldc apart. */
void blas_product(float *c, size_t ldc, const float *a, size_t lda, bool transpose_a, const float *b, size_t ldb,
                  bool transpose_b, size_t rows, size_t columns, size_t depth, bool add);

void kernels_override_blas(struct kernels *kernels);
