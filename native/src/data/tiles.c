/* The tiles of gradients: how many, and which rows each has. */
#include "data/tiles.h"

/* A chain may take the 1/CHAINS_PER_STEP of a step in which no worker waits. A step of S sub-batches takes S*D/W on W
 * workers, D being the multiplications of one sub-batch, of which a chain of S tiles has S*d/tiles. What the step loses
 * by it for 2 to 64 workers: docs/performance.md. */
enum { CHAINS_PER_STEP = 20 };

/* The parameter by whose rows p is cut: the weight of a matmul. NUM_PARAMETERS: it isn't cut. */
static enum parameter weight_of(enum parameter p)
{
    for (enum matmul m = 0; m < NUM_MATMULS; m++)
        if (matmuls[m].weight == p || matmuls[m].bias == p)
            return matmuls[m].weight;
    return NUM_PARAMETERS;
}

/* The multiplications for one token: forward, and backward of input and weight. */
static int64_t products_of_model(const model_config *config)
{
    int64_t products = 0;
    for (enum matmul m = 0; m < NUM_MATMULS; m++)
        products += 3 * parameter_instances(config, matmuls[m].weight) * parameter_elements(config, matmuls[m].weight);
    return products;
}

status tiles_check(const model_config *config, int32_t reduction, int32_t requested)
{
    int64_t most = 1;
    for (enum matmul m = 0; m < NUM_MATMULS; m++) {
        const int64_t rows = parameter_shape(config, matmuls[m].weight).dims[0];
        most = rows > most ? rows : most;
    }
    if (requested < 0 || requested > most)
        return invalid_argument("weight_gradient_tiles: found %d, expected 0 to %lld, the rows of the longest weight",
                                requested, (long long)most);
    if (requested > 1 && reduction != STARPULLM_REDUCTION_ORDERED)
        return invalid_argument(
            "weight_gradient_tiles: found %d, expected 0 or 1 without the reduction ordered: no other has running sums",
            requested);
    return STARPULLM_OK;
}

/* A chain of S links keeps at most S tiles busy: more would not help. */
static int64_t enough_tiles(const model_config *config, enum parameter weight, int sub_batches, int64_t workers,
                            int stages)
{
    if (workers == stages) /* each has all links of its stage's chains, and never waits for another */
        return 1;
    const double tiles = CHAINS_PER_STEP * (double)workers * (double)parameter_elements(config, weight) /
                         (double)products_of_model(config);
    return tiles < 1 ? 1 : tiles < sub_batches ? (int64_t)tiles : sub_batches;
}

struct tiles tiles_choose(const model_config *config, enum starpullm_reduction reduction, int sub_batches,
                          int64_t workers, int stages, int requested)
{
    struct tiles tiles;
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const enum parameter weight = weight_of(p);
        tiles.rows[p] = parameter_shape(config, p).dims[0];
        tiles.row_elements[p] = parameter_elements(config, p) / tiles.rows[p];
        tiles.counts[p] = 1;
        if (weight == NUM_PARAMETERS || reduction != STARPULLM_REDUCTION_ORDERED)
            continue;
        const int64_t wanted = requested > 0 ? requested : enough_tiles(config, weight, sub_batches, workers, stages);
        tiles.counts[p] = (int)(wanted < tiles.rows[p] ? wanted : tiles.rows[p]);
    }
    return tiles;
}

struct tile tile_of(const struct tiles *tiles, enum parameter p, int tile)
{
    const int64_t rows = tiles->rows[p], count = tiles->counts[p];
    const int64_t first = rows * tile / count, end = rows * (tile + 1) / count;
    return (struct tile){.first = (size_t)first, .rows = (size_t)(end - first)};
}

size_t tile_elements(const struct tiles *tiles, enum parameter p, int tile)
{
    return tile_of(tiles, p, tile).rows * (size_t)tiles->row_elements[p];
}
