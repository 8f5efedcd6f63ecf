/* Distributing sub-batches, blocks and parameters over ranks. */
#include "data/placement.h"

#include <stdlib.h>

static int *owner_at(const struct placement *placement, enum parameter p, int layer)
{
    return &placement->owners[(size_t)p * (size_t)placement->layers + (size_t)(layer > 0 ? layer : 0)];
}

/* Among those with the stage. */
static int rank_with_least(const struct placement *placement, const int64_t *load, int stage)
{
    int least = stage;
    for (int rank = stage; rank < placement->ranks; rank += placement->stages)
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
            if (!done[p] && parameter_elements(config, p) > elements) {
                largest = p;
                elements = parameter_elements(config, p);
            }
        done[largest] = true;
        for (int l = 0; l < parameter_instances(config, largest); l++) {
            const int owner = rank_with_least(placement, load, stage_of(placement, parameter_place(largest, l)));
            load[owner] += elements;
            *owner_at(placement, largest, l) = owner;
        }
    }
}

/* ---- The stages ---- */

/* The blocks of the last stage: those before it share the others. A block takes 12*C*C multiplications of a token, the
 * head Vp*C. */
static int blocks_of_last(const model_config *config, int stages)
{
    const int64_t block = 12 * (int64_t)config->channels, head = config->padded_vocab_size;
    const int64_t before = stages - 1;
    int best = 0;
    int64_t least = INT64_MAX;
    for (int last = 0; last <= config->num_layers - before; last++) {
        const int64_t most = (config->num_layers - last + before - 1) / before * block, own = last * block + head;
        if ((most > own ? most : own) < least) {
            least = most > own ? most : own;
            best = last;
        }
    }
    return best;
}

static void cut_stages(struct placement *placement, const model_config *config, const int32_t *stage_blocks)
{
    const int stages = placement->stages;
    const int last = stages == 1 || stage_blocks ? 0 : blocks_of_last(config, stages);
    for (int p = 0; p + 1 < stages; p++) {
        const int left = config->num_layers - last - placement->first_blocks[p], share = stages - 1 - p;
        placement->first_blocks[p + 1] =
            placement->first_blocks[p] + (stage_blocks ? stage_blocks[p] : left / share + (left % share != 0));
    }
    placement->first_blocks[stages] = config->num_layers;
}

static status check_blocks(const model_config *config, int32_t stages, const int32_t *stage_blocks)
{
    int64_t sum = 0;
    for (int p = 0; p < stages; p++) {
        const int least = p + 1 < stages ? 1 : 0;
        if (stage_blocks[p] < least)
            return invalid_argument("stages: found %d blocks in stage %d, expected at least %d", stage_blocks[p], p,
                                    least);
        sum += stage_blocks[p];
    }
    if (sum != config->num_layers)
        return invalid_argument("stages: found %lld blocks in all, expected the model's %d", (long long)sum,
                                config->num_layers);
    return STARPULLM_OK;
}

status stages_check(const struct starpullm_pipeline *pipeline, const model_config *config, int64_t ranks, int *count)
{
    const int32_t stages = *count = pipeline ? pipeline->stages : 1;
    if (stages < 1 || stages - 1 > config->num_layers)
        return invalid_argument("stages: found %d, expected 1 to %lld: only the last, with the head, may have no block",
                                stages, config->num_layers + 1LL);
    if (ranks % stages != 0)
        return invalid_argument(
            "stages: found %d on %lld ranks, expected a divisor: a pipeline has a rank for each stage", stages,
            (long long)ranks);
    return pipeline && pipeline->blocks ? check_blocks(config, stages, pipeline->blocks) : STARPULLM_OK;
}

status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches,
                        const struct starpullm_pipeline *pipeline)
{
    const int stages = pipeline ? pipeline->stages : 1;
    *placement = (struct placement){.rank = rank, .ranks = ranks, .stages = stages, .sub_batches = sub_batches};
    placement->layers = config->num_layers;
    placement->owners = calloc((size_t)placement->layers * NUM_PARAMETERS, sizeof *placement->owners);
    placement->first_blocks = calloc((size_t)stages + 1, sizeof *placement->first_blocks);
    int64_t *load = calloc((size_t)ranks, sizeof *load);
    const bool made = placement->owners && placement->first_blocks && load;
    if (made) {
        cut_stages(placement, config, pipeline ? pipeline->blocks : NULL);
        assign_owners(placement, config, load);
    }
    free(load);
    return made ? STARPULLM_OK : out_of_memory("a table of the owners of %d layers", placement->layers);
}

void placement_destroy(struct placement *placement)
{
    free(placement->owners);
    free(placement->first_blocks);
}

/* ---- What is where ---- */

int parameter_place(enum parameter p, int layer)
{
    return parameters[p].place == BLOCK ? layer : (int)parameters[p].place;
}

int activation_place(const model_config *config, enum starpullm_group group, enum activation a, int layer)
{
    if (activations[a].place != BLOCK)
        return activations[a].place;
    if (group == STARPULLM_ACTIVATION_GRADS && activations[a].lifetime == NEXT_BLOCK)
        return layer + 1 == config->num_layers ? HEAD : layer + 1;
    return layer;
}

int stage_of(const struct placement *placement, int place)
{
    int stage = place == HEAD ? placement->stages - 1 : 0;
    while (place >= 0 && place >= placement->first_blocks[stage + 1])
        stage++;
    return stage;
}

int pipelines(const struct placement *placement)
{
    return placement->ranks / placement->stages;
}

int sub_batches_of_pipeline(const struct placement *placement)
{
    return placement->sub_batches / pipelines(placement);
}

int rank_of_stage(const struct placement *placement, int pipeline, int stage)
{
    return pipeline * placement->stages + stage;
}

int rank_of_pass(const struct placement *placement, int sub_batch, int stage)
{
    return rank_of_stage(placement, sub_batch / sub_batches_of_pipeline(placement), stage);
}

int home_of(const struct placement *placement, int sub_batch, int place)
{
    return rank_of_pass(placement, sub_batch, stage_of(placement, place));
}

int first_of_rank(const struct placement *placement)
{
    return placement->rank / placement->stages * sub_batches_of_pipeline(placement);
}

int owner_of(const struct placement *placement, enum parameter p, int layer)
{
    return *owner_at(placement, p, layer);
}

bool rank_reads(const struct placement *placement, enum parameter p, int layer, int rank)
{
    const int stage = rank % placement->stages;
    return stage == stage_of(placement, parameter_place(p, layer)) ||
           (p == PARAM_WTE && stage == placement->stages - 1);
}
