/* simd/math.h's functions over arrays, for each level. */
#include "elementary_levels.h"
#include "kernels/simd/math.h"

/* out[i] = function(in[i]), for a multiple of any level's number of lanes. */
void SIMD_NAME(elementary)(enum vector_function function, float *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const vector x = vector_load(in + i);
        vector tanh = x, result = x;
        switch (function) {
        case VECTOR_EXPF:
            result = vector_expf(x);
            break;
        case VECTOR_TANHF:
            result = vector_tanhf(x);
            break;
        case VECTOR_COSHF:
            result = vector_coshf_tanhf(&tanh, x);
            break;
        case VECTOR_TANHF_BESIDE_COSHF:
            vector_coshf_tanhf(&result, x);
            break;
        }
        vector_store(out + i, result);
    }
}
