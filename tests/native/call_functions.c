/* Prints a checksum of an elementary function's results, for test_cross.py: call_functions FUNCTION BITS. Its 2^BITS
 * arguments have absolute values from 2^-27 to 805, beyond which results are mostly constant; BITS 32 is every float.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementary/scalar.h"

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* One y for each x, in a range in which x^y is often finite. */
static float power(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return cr_powf(x, (float)(int32_t)(bits * UINT32_C(0x9e3779b1)) * 0x1p-26f);
}

static const struct {
    const char *name;
    float (*call)(float);
} functions[] = {{"expf", cr_expf}, {"tanhf", cr_tanhf}, {"coshf", cr_coshf}, {"logf", cr_logf}, {"powf", power}};

int main(int argc, char **argv)
{
    const int bits = argc == 3 ? atoi(argv[2]) : 0;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        if (argc != 3 || strcmp(argv[1], functions[f].name) != 0)
            continue;
        uint64_t checksum = 0;
        for (uint64_t i = 0; i < UINT64_C(1) << bits; i++) {
            const uint32_t any = (uint32_t)i * UINT32_C(0x9e3779b1), sign = any & UINT32_C(0x80000000);
            const uint32_t of_argument = bits == 32 ? any : sign | (UINT32_C(0x32000000) + (any ^ sign) / 7);
            const float result = functions[f].call(float_of(of_argument));
            uint32_t of_result = UINT32_C(0x7fc00000); /* of any NaN */
            if (!isnan(result))
                memcpy(&of_result, &result, sizeof result);
            checksum = (checksum ^ of_result) * UINT64_C(0x100000001b3);
        }
        return printf("%016llx\n", (unsigned long long)checksum) < 0;
    }
    return 2;
}
