#include "kernels/team_board.h"

#include <sched.h>

void team_phase(struct team team, size_t *before, size_t units, team_work *work, void *argument)
{
    const size_t begin = *before, end = begin + units;
    *before = end;
    if (!team.board) {
        const struct share own = team_share(team, units, 1);
        if (own.begin < own.end)
            work(argument, own);
        return;
    }
    for (size_t taken = atomic_load(&team.board->taken); taken < end;) {
        const size_t part = (end - taken) / (2 * (size_t)team.count), count = part > 0 ? part : 1;
        if (!atomic_compare_exchange_weak(&team.board->taken, &taken, taken + count))
            continue;
        work(argument, (struct share){taken - begin, taken - begin + count});
        atomic_fetch_add(&team.board->done, count);
        taken = atomic_load(&team.board->taken);
    }
}

void team_wait(struct team team, size_t before)
{
    while (team.board && atomic_load(&team.board->done) < before)
        sched_yield(); /* another thread of the team may need this core */
}
