/* The order of a step's passes: made for a number of activation sets, or given and then checked. A list in which each
 * pass comes after those that it reads from can't deadlock, as tasks wait only for earlier ones; a wrong one would read
 * old values. */
#include "graph/graph.h"

#include <stdlib.h>

static void add(struct workload *work, int32_t kind, int s, int stage)
{
    work->passes[work->num_passes++] = (struct starpullm_pass){kind, s, stage};
}

/* The forward passes of these sub-batches are so many ahead of their backward passes. */
static void add_ahead(struct workload *work, int first, int count, int ahead)
{
    const int stages = work->placement.stages;
    for (int n = -ahead; n < count; n++) {
        for (int stage = stages - 1; stage >= 0 && n >= 0; stage--)
            add(work, STARPULLM_BACKWARD, first + n, stage);
        for (int stage = 0; stage < stages && n + ahead < count; stage++)
            add(work, STARPULLM_FORWARD, first + n + ahead, stage);
    }
}

/* The sums of losses and gradients pass through all sub-batches of a pipeline before those of the next one. */
static void add_passes(struct workload *work)
{
    const int all = work->placement.sub_batches, of_pipeline = sub_batches_of_pipeline(&work->placement);
    const int sets = work->activation_sets[0], group = sets < of_pipeline ? of_pipeline : all;
    for (int first = 0; first < all; first += group)
        add_ahead(work, first, group, sets < of_pipeline ? sets : all);
}

/* Without stages, as they come. A stage goes on with what other stages wait for, backward passes, then with what its
 * next backward pass waits for: the gradients of weights, unless they have passes of their own, which fill the gaps.
 * Of a kind, sub-batches come one after the other, or the next stage would get all of them late. */
int pass_priority(const struct workload *work, enum starpullm_pass_kind kind, int s)
{
    const int turn = kind == STARPULLM_BACKWARD ? 0 : work->weight_passes == (kind == STARPULLM_WEIGHTS) ? 2 : 1;
    return work->placement.stages == 1 ? PRIORITY_DEFAULT : PRIORITY_LATER - turn * work->placement.sub_batches - s;
}

/* ---- A list that is given ---- */

enum { NUM_KINDS = STARPULLM_WEIGHTS + 1 };

static status refuse(int64_t index, struct starpullm_pass pass, const char *expected)
{
    static const char *const names[NUM_KINDS] = {"forward", "backward", "weights"};
    return invalid_argument("passes: number %lld, %s of sub-batch %d in stage %d: expected %s", (long long)index,
                            names[pass.kind], pass.sub_batch, pass.stage, expected);
}

/* That of the pass after which the sub-batch's activations aren't read any more. */
static int last_kind(const struct workload *work)
{
    return work->weight_passes ? STARPULLM_WEIGHTS : STARPULLM_BACKWARD;
}

/* done[kind] has the number of passes of each stage so far. */
static status check_pass(const struct workload *work, int *const done[NUM_KINDS], int64_t index,
                         struct starpullm_pass pass, int64_t sets)
{
    const int last = work->placement.stages - 1, stage = pass.stage, s = pass.sub_batch;
    if (pass.kind < 0 || pass.kind >= NUM_KINDS)
        return invalid_argument("passes: number %lld: found kind %d, expected %d to %d", (long long)index, pass.kind,
                                STARPULLM_FORWARD, STARPULLM_WEIGHTS);
    if (stage < 0 || stage > last || s < 0 || s >= sub_batches_of_pipeline(&work->placement))
        return refuse(index, pass, "a stage and a sub-batch that there are");
    const int next = done[pass.kind][stage];
    if (s < next)
        return refuse(index, pass, "each pass once");
    if (s > next)
        return refuse(index, pass, "the sub-batch before it first: losses and gradients are summed in this order");
    if (pass.kind == STARPULLM_FORWARD && stage > 0 && done[STARPULLM_FORWARD][stage - 1] <= s)
        return refuse(index, pass, "the forward pass of the stage before first");
    if (pass.kind == STARPULLM_BACKWARD && stage < last && done[STARPULLM_BACKWARD][stage + 1] <= s)
        return refuse(index, pass, "the backward pass of the stage behind first");
    if (pass.kind == STARPULLM_BACKWARD && stage == last && done[STARPULLM_FORWARD][stage] <= s)
        return refuse(index, pass, "its forward pass first");
    if (pass.kind == STARPULLM_WEIGHTS && done[STARPULLM_BACKWARD][stage] <= s)
        return refuse(index, pass, "its backward pass first");
    if (pass.kind == STARPULLM_FORWARD && sets > 0 && s - done[last_kind(work)][stage] >= sets)
        return refuse(index, pass, "a free activation set: the sub-batch that has it needs its backward pass first");
    return STARPULLM_OK;
}

static status check_weight_passes(const struct workload *work)
{
    const char *found = !work->gradients_of_blocks                    ? "shared gradient_buffers"
                        : work->recompute != STARPULLM_RECOMPUTE_NONE ? "recompute"
                        : work->reuse_weight_gradients                ? "reused weight_gradients"
                                                                      : NULL;
    if (!work->weight_passes || !found)
        return STARPULLM_OK;
    return invalid_argument("passes: found some of weights with %s, expected each block to keep what they read", found);
}

static status take_passes(struct workload *work, int *const done[NUM_KINDS], const struct starpullm_pipeline *pipeline,
                          int64_t sets)
{
    for (int64_t i = 0; i < pipeline->num_passes; i++)
        if (pipeline->passes[i].kind == STARPULLM_WEIGHTS)
            work->weight_passes = true;
    TRY(check_weight_passes(work));
    for (int64_t i = 0; i < pipeline->num_passes; i++) {
        const struct starpullm_pass pass = pipeline->passes[i];
        TRY(check_pass(work, done, i, pass, sets));
        add(work, pass.kind, pass.sub_batch, pass.stage);
        done[pass.kind][pass.stage]++;
        const int used = done[STARPULLM_FORWARD][pass.stage] - done[last_kind(work)][pass.stage];
        if (used > work->activation_sets[pass.stage])
            work->activation_sets[pass.stage] = used;
    }
    const int64_t of_stage = (last_kind(work) + 1) * (int64_t)sub_batches_of_pipeline(&work->placement);
    const int64_t expected = work->placement.stages * of_stage;
    if (pipeline->num_passes != expected)
        return invalid_argument("passes: found %lld, expected %lld: each once", (long long)pipeline->num_passes,
                                (long long)expected);
    return STARPULLM_OK;
}

/* Every pipeline has the same list, for sub-batches of its own. */
static void repeat_for_pipelines(struct workload *work)
{
    const int of_pipeline = sub_batches_of_pipeline(&work->placement), count = work->num_passes;
    for (int first = of_pipeline; first < work->placement.sub_batches; first += of_pipeline)
        for (int i = 0; i < count; i++)
            add(work, work->passes[i].kind, first + work->passes[i].sub_batch, work->passes[i].stage);
}

status schedule_create(struct workload *work, const struct starpullm_pipeline *pipeline, int64_t activation_sets)
{
    const int stages = work->placement.stages, of_pipeline = sub_batches_of_pipeline(&work->placement);
    const bool given = pipeline && pipeline->passes;
    work->activation_sets = calloc((size_t)stages, sizeof *work->activation_sets);
    if (!work->activation_sets)
        return out_of_memory("a table of %d stages", stages);
    for (int stage = 0; stage < stages && !given; stage++)
        work->activation_sets[stage] = activation_sets ? (int)activation_sets : of_pipeline;
    if (!given)
        return STARPULLM_OK;
    const size_t count = pipeline->num_passes > 0 ? (size_t)pipeline->num_passes : 1;
    work->passes = calloc(count, (size_t)pipelines(&work->placement) * sizeof *work->passes);
    int *done = calloc(NUM_KINDS * (size_t)stages, sizeof *done);
    const status code = work->passes && done ? take_passes(work, (int *[]){done, done + stages, done + 2 * stages},
                                                           pipeline, activation_sets)
                                             : out_of_memory("a list of %lld passes", (long long)pipeline->num_passes);
    free(done);
    if (code == STARPULLM_OK)
        repeat_for_pipelines(work);
    return code;
}

status schedule_fill(struct workload *work)
{
    if (work->passes)
        return STARPULLM_OK;
    work->passes =
        calloc(2 * (size_t)work->placement.stages * (size_t)work->placement.sub_batches, sizeof *work->passes);
    if (!work->passes)
        return out_of_memory("a list of the passes of %d sub-batches", work->placement.sub_batches);
    add_passes(work);
    return STARPULLM_OK;
}

void schedule_destroy(struct workload *work)
{
    free(work->passes);
    free(work->activation_sets);
}
