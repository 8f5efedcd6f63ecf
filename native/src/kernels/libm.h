/* The platform's libm: which of its functions have the bits of the vector functions in kernels/simd/math.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The functions that have a vector version; starpullm_vector_libm_name() has their names. */
enum libm_function { LIBM_EXPF, LIBM_TANHF, LIBM_COSHF, NUM_LIBM_FUNCTIONS };

/* A function applied to every element of an array: out[i] = f(in[i]). */
typedef void libm_map(float *out /* (count) */, const float *in /* (count) */, size_t count);

/* A level's vector function; NULL if there is no such level here, or if it has none (kernels/select.c). */
libm_map *libm_of_level(const char *level, enum libm_function function);

/* Whether the vector function has this platform's bits for all 2^32 inputs. `starpullm doctor --prove-libm` compares
 * them all; here the platform's function is only recognised by its fingerprint, once per process. */
bool libm_is_proven(enum libm_function function);

/* The fingerprint: a hash of the platform's results for a sample of inputs, some of which tell the known
 * implementations apart. It isn't the fingerprint of docs/numerics.md. */
uint64_t libm_fingerprint(enum libm_function function);

/* Compares `vector` with the platform's function at the inputs whose bit patterns are begin <= i < end; NaNs are equal
 * whatever their payloads. Returns how many differ and sets *first (if any does) to the first one's bit pattern. */
uint64_t libm_count_differences(uint32_t *first, enum libm_function function, libm_map *vector, uint64_t begin,
                                uint64_t end);
