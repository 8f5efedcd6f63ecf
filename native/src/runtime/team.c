/* The only file that uses OpenMP: all others see a team. */
#include "runtime/runtime.h"

#include <fenv.h>
#include <omp.h>

#include "kernels/team_board.h"

int team_run(int threads, void (*function)(void *argument, struct team team), void *argument)
{
    /* Threads inherit their creator's floating-point environment, which any library may have changed. */
    if (threads == 1) {
        fesetenv(FE_DFL_ENV);
        function(argument, team_of_one);
        return 1;
    }
    int found = 1;
    struct team_board board = {0};
#pragma omp parallel num_threads(threads) default(none) shared(found, function, argument, board)
    {
        fesetenv(FE_DFL_ENV);
        const struct team team = {omp_get_thread_num(), omp_get_num_threads(), &board};
        if (team.index == 0)
            found = team.count;
        function(argument, team);
    }
    return found;
}

int team_binds_threads(void)
{
    return omp_get_proc_bind() != omp_proc_bind_false;
}
