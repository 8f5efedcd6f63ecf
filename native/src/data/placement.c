/* Distributing sub-batches and parameters over ranks. */
#include "data/placement.h"

#include <stdlib.h>

static int *owner_at(const struct placement *placement, enum parameter p, int layer)
{
    return &placement->owners[(size_t)p * (size_t)placement->layers + (size_t)layer];
}

static int rank_with_least(const int64_t *load, int ranks)
{
    int least = 0;
    for (int rank = 1; rank < ranks; rank++)
        if (load[rank] < load[least])
            least = rank;
    return least;
}

/* The largest tensors first; the checkpoint's order among equals, so that the order is the same on every rank. */
static void assign_owners(struct placement *placement, const model_config *config, int64_t *load)
{
    bool done[NUM_PARAMETERS] = {false};
    for (int n = 0; n < NUM_PARAMETERS; n++) {
        int largest = -1;
        int64_t elements = 0;
        for (int p = 0; p < NUM_PARAMETERS; p++)
            if (!done[p] && tensor_elements(parameter_shape(config, p)) > elements) {
                largest = p;
                elements = tensor_elements(parameter_shape(config, p));
            }
        done[largest] = true;
        for (int l = 0; l < parameter_instances(config, largest); l++) {
            const int owner = rank_with_least(load, placement->ranks);
            load[owner] += elements;
            *owner_at(placement, largest, l) = owner;
        }
    }
}

status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches)
{
    *placement = (struct placement){.rank = rank, .ranks = ranks, .sub_batches = sub_batches};
    placement->layers = config->num_layers;
    placement->owners = calloc((size_t)placement->layers * NUM_PARAMETERS, sizeof *placement->owners);
    int64_t *load = calloc((size_t)ranks, sizeof *load);
    const bool made = placement->owners && load;
    if (made)
        assign_owners(placement, config, load);
    free(load);
    return made ? STARPULLM_OK : fail(STARPULLM_OUT_OF_MEMORY, "a table of the owners of %d layers", placement->layers);
}

void placement_destroy(struct placement *placement)
{
    free(placement->owners);
    placement->owners = NULL;
}

int sub_batches_of_rank(const struct placement *placement)
{
    return placement->sub_batches / placement->ranks;
}

int home_of(const struct placement *placement, int sub_batch)
{
    return sub_batch / sub_batches_of_rank(placement);
}

int first_of_rank(const struct placement *placement)
{
    return placement->rank * sub_batches_of_rank(placement);
}

int owner_of(const struct placement *placement, enum parameter p, int layer)
{
    return *owner_at(placement, p, layer);
}
