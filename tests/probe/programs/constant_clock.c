// Some of StarPU's examples fill their matrices with random numbers from a seed that is the time. With this in
// LD_PRELOAD it is always the same time, so that their input is the same in every run.
#include <stddef.h>
#include <time.h>

time_t time(time_t *result)
{
    if (result != NULL)
        *result = 1;
    return 1;
}
