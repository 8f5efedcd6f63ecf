/* Transposing a matrix: blocks of LANES x LANES in registers, what remains at the edges value by value. */
#include "kernels/simd/kernels_simd.h"

/* Which lanes a shuffle of vectors a and b takes (b's are numbered from LANES on). Within each quad of four lanes,
 * which processors permute fastest: values 0 and 1 of a and b alternating, or values 2 and 3; the pair of values 0 and
 * 1 of a, then of b, or the pair 2 and 3. And whole quads: the even ones of a, then of b, or the odd ones. Compilers
 * want these numbers as constants. */
#if SIMD_BYTES == 64
#define VALUES_01 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define VALUES_23 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define PAIRS_01 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define PAIRS_23 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif SIMD_BYTES == 32
#define VALUES_01 0, 8, 1, 9, 4, 12, 5, 13
#define VALUES_23 2, 10, 3, 11, 6, 14, 7, 15
#define PAIRS_01 0, 1, 8, 9, 4, 5, 12, 13
#define PAIRS_23 2, 3, 10, 11, 6, 7, 14, 15
#define EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11
#define ODD_QUADS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define VALUES_01 0, 4, 1, 5
#define VALUES_23 2, 6, 3, 7
#define PAIRS_01 0, 1, 4, 5
#define PAIRS_23 2, 3, 6, 7
#endif

/* A block of LANES x LANES: whole vectors are read and written, wherever the rows lie. */
static inline void transpose_block(float *restrict out, size_t ldout, const float *restrict in, size_t ldin)
{
    vector row[LANES], half[4], quad[LANES];
    UNROLLED
    for (int i = 0; i < LANES; i++)
        row[i] = vector_load(in + (size_t)i * ldin);
    /* quad[i + c] holds column c of every quad of columns, for rows i to i + 3. */
    UNROLLED
    for (int i = 0; i < LANES; i += 4) {
        half[0] = __builtin_shufflevector(row[i], row[i + 1], VALUES_01);
        half[1] = __builtin_shufflevector(row[i], row[i + 1], VALUES_23);
        half[2] = __builtin_shufflevector(row[i + 2], row[i + 3], VALUES_01);
        half[3] = __builtin_shufflevector(row[i + 2], row[i + 3], VALUES_23);
        quad[i] = __builtin_shufflevector(half[0], half[2], PAIRS_01);
        quad[i + 1] = __builtin_shufflevector(half[0], half[2], PAIRS_23);
        quad[i + 2] = __builtin_shufflevector(half[1], half[3], PAIRS_01);
        quad[i + 3] = __builtin_shufflevector(half[1], half[3], PAIRS_23);
    }
    UNROLLED
    for (int c = 0; c < 4; c++) {
#if SIMD_BYTES == 16
        vector_store(out + (size_t)c * ldout, quad[c]);
#else
        const vector even = __builtin_shufflevector(quad[c], quad[c + 4], EVEN_QUADS);
        const vector odd = __builtin_shufflevector(quad[c], quad[c + 4], ODD_QUADS);
#if SIMD_BYTES == 32
        vector_store(out + (size_t)c * ldout, even);
        vector_store(out + (size_t)(c + 4) * ldout, odd);
#else
        const vector more_even = __builtin_shufflevector(quad[c + 8], quad[c + 12], EVEN_QUADS);
        const vector more_odd = __builtin_shufflevector(quad[c + 8], quad[c + 12], ODD_QUADS);
        vector_store(out + (size_t)c * ldout, __builtin_shufflevector(even, more_even, EVEN_QUADS));
        vector_store(out + (size_t)(c + 4) * ldout, __builtin_shufflevector(odd, more_odd, EVEN_QUADS));
        vector_store(out + (size_t)(c + 8) * ldout, __builtin_shufflevector(even, more_even, ODD_QUADS));
        vector_store(out + (size_t)(c + 12) * ldout, __builtin_shufflevector(odd, more_odd, ODD_QUADS));
#endif
#endif
    }
}

void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns)
{
    const size_t whole_rows = rows - rows % LANES, whole_columns = columns - columns % LANES;
    for (size_t i = 0; i < whole_rows; i += LANES)
        for (size_t j = 0; j < whole_columns; j += LANES)
            transpose_block(out + j * ldout + i, ldout, in + i * ldin + j, ldin);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            out[j * ldout + i] = in[i * ldin + j];
}
