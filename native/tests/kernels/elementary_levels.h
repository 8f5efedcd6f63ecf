/* The vector functions of each level, by which test_elementary.c calls them. */
#pragma once

#include <stddef.h>

enum vector_function { VECTOR_EXPF, VECTOR_TANHF, VECTOR_COSHF, VECTOR_TANHF_BESIDE_COSHF };

typedef void vector_map(enum vector_function function, float *out, const float *in, size_t count);
