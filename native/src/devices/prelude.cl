/* What the plain kernels take from C's library and have under other names in OpenCL C. */
#pragma OPENCL FP_CONTRACT OFF

typedef int int32_t;
typedef long int64_t;
typedef uint uint32_t;
typedef ulong uint64_t;

#define UINT64_C(x) x##UL
#define UINT64_MAX ULONG_MAX
#ifdef FUSED
#define MULTIPLY_ADD(a, b, sum) fma(a, b, sum)
#else
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#endif
#define copysignf copysign
#define fabsf fabs
#define sqrtf sqrt
