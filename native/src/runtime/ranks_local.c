/* Ranks in a build without MPI: a communicator is refused. */
#include "runtime/ranks.h"

int ranks_supported(void)
{
    return 0;
}

status ranks_open(int32_t communicator, struct ranks *ranks)
{
    (void)communicator;
    (void)ranks;
    return fail(STARPULLM_INVALID_ARGUMENT,
                "communicator: this build of starpullm has no MPI, expected none, or a build with STARPULLM_MPI=ON");
}

void ranks_close(void)
{
}

status ranks_start(void)
{
    return STARPULLM_OK;
}

void ranks_stop(void)
{
}
