/* Distributing sub-batches and parameters over ranks. */
#include "data/placement.h"

#include <stdlib.h>

struct piece {
    enum parameter p;
    int layer;
    int64_t elements;
};

/* The largest first; the checkpoint's order among equals, so that the order is the same on every rank. */
static int compare_pieces(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    if (a->elements != b->elements)
        return a->elements > b->elements ? -1 : 1;
    if (a->p != b->p)
        return a->p < b->p ? -1 : 1;
    return (a->layer > b->layer) - (a->layer < b->layer);
}

static void assign_owners(struct placement *placement, struct piece *pieces, int count, int64_t *load)
{
    qsort(pieces, (size_t)count, sizeof *pieces, compare_pieces);
    for (int i = 0; i < count; i++) {
        int least = 0;
        for (int rank = 1; rank < placement->ranks; rank++)
            if (load[rank] < load[least])
                least = rank;
        load[least] += pieces[i].elements;
        placement->owners[pieces[i].p][pieces[i].layer] = least;
    }
}

status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches)
{
    *placement = (struct placement){.rank = rank, .ranks = ranks, .sub_batches = sub_batches};
    int count = 0;
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int instances = parameter_instances(config, p);
        placement->owners[p] = calloc((size_t)instances, sizeof *placement->owners[p]);
        if (!placement->owners[p])
            return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d owners", instances);
        count += instances;
    }
    struct piece *pieces = malloc((size_t)count * sizeof *pieces);
    int64_t *load = calloc((size_t)ranks, sizeof *load);
    if (pieces && load) {
        int n = 0;
        for (int p = 0; p < NUM_PARAMETERS; p++)
            for (int l = 0; l < parameter_instances(config, p); l++)
                pieces[n++] = (struct piece){p, l, tensor_elements(parameter_shape(config, p))};
        assign_owners(placement, pieces, count, load);
    }
    const bool made = pieces && load;
    free(pieces);
    free(load);
    return made ? STARPULLM_OK : fail(STARPULLM_OUT_OF_MEMORY, "the placement of %d tensors", count);
}

void placement_destroy(struct placement *placement)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        free(placement->owners[p]);
    *placement = (struct placement){0};
}

int home_of(const struct placement *placement, int sub_batch)
{
    return sub_batch / (placement->sub_batches / placement->ranks);
}

int owner_of(const struct placement *placement, enum parameter p, int layer)
{
    return placement->owners[p][layer];
}
