/* The library's elementary functions under libm's names, to be linked into llm.c before libm. */
#include "kernels/elementary/scalar.h"

float expf(float x)
{
    return cr_expf(x);
}

float tanhf(float x)
{
    return cr_tanhf(x);
}

float coshf(float x)
{
    return cr_coshf(x);
}

float logf(float x)
{
    return cr_logf(x);
}

float powf(float x, float y)
{
    return cr_powf(x, y);
}
