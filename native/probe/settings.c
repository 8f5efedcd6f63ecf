/* Environment variables to settings. */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

static uint64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

struct settings read_settings(void)
{
    const char *held = getenv("STARPULLM_PROBE_HELD");
    const char *keep = getenv("STARPULLM_PROBE_CONTENTS");
    const bool keeps = keep && keep[0] != '\0', from_free = keeps && strcmp(keep, "free") == 0;
    return (struct settings){
        .directory = getenv("STARPULLM_PROBE_DIRECTORY"),
        .seed = number("STARPULLM_PROBE_SEED"),
        .max_workers = (unsigned)number("STARPULLM_PROBE_MAX_WORKERS"),
        .in_turn = number("STARPULLM_PROBE_IN_TURN") != 0,
        .delay_us = (unsigned)number("STARPULLM_PROBE_DELAY_US"),
        .settle_ms = (unsigned)number("STARPULLM_PROBE_SETTLE_MS"),
        .prompt_ms = (unsigned)number("STARPULLM_PROBE_PROMPT_MS"),
        .held = !held || held[0] == '\0' ? NULL : held,
        .until = number("STARPULLM_PROBE_UNTIL"),
        .ordered = number("STARPULLM_PROBE_ORDERED") != 0,
        .hash = number("STARPULLM_PROBE_HASH") != 0,
        .stacks = number("STARPULLM_PROBE_STACKS") != 0,
        .watch = number("STARPULLM_PROBE_WATCH") != 0,
        .poison = (enum poison_mode)(number("STARPULLM_PROBE_POISON") % (POISON_LARGE + 1)),
        .other_poison = (unsigned)number("STARPULLM_PROBE_OTHER_POISON"),
        .keep = !keeps      ? KEEP_NOTHING
                : from_free ? KEEP_FROM_FREE
                            : KEEP_ONE_TASK,
        .kept_task = number("STARPULLM_PROBE_CONTENTS"),
    };
}

/* Open MPI's mpirun, MPICH's mpiexec and launchers derived from it, Slurm's srun: as
 * starpullm/processes/rank_wrapper.py. */
void read_rank(struct probe_header *header)
{
    static const char *const variables[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                               {"PMI_RANK", "PMI_SIZE"},
                                               {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                                               {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    header->rank = -1;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *rank = getenv(variables[i][0]), *size = getenv(variables[i][1]);
        if (rank && size) {
            header->rank = atoi(rank);
            header->num_ranks = (uint32_t)atoi(size);
            return;
        }
    }
}
