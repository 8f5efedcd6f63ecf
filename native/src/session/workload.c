/* What a session and a plan on paper compute: checked and made from the options that both have. */
#include "session/session.h"

/* Of all ranks: a list has up to three passes of each in each stage, and an int counts them. */
enum { MOST_SUB_BATCHES = INT32_MAX / 3 };

status session_check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most)
        return STARPULLM_OK;
    return invalid_argument("%s: found %lld, expected %lld to %lld", name, (long long)value, (long long)least,
                            (long long)most);
}

static status check_sizes(const struct starpullm_session_options *o, const model_config *config, int64_t ranks)
{
    if (o->batch_size < 1)
        return invalid_argument("batch_size: found %lld, expected at least 1", (long long)o->batch_size);
    if (o->seq_len < 1 || o->seq_len > config->max_seq_len)
        return invalid_argument("seq_len: found %lld, expected 1 to %d, the longest sequence that %s has positions for",
                                (long long)o->seq_len, config->max_seq_len,
                                o->checkpoint ? o->checkpoint
                                : o->resume   ? o->resume
                                              : "the model");
    if (o->sub_batches < 1 || o->sub_batches > INT32_MAX || o->batch_size % o->sub_batches != 0)
        return invalid_argument("sub_batches: found %lld, expected a divisor of the batch size %lld that 32 bits hold",
                                (long long)o->sub_batches, (long long)o->batch_size);
    if (o->activation_sets < 0 || o->activation_sets > o->sub_batches)
        return invalid_argument("activation_sets: found %lld, expected 0 to %lld, the sub-batches",
                                (long long)o->activation_sets, (long long)o->sub_batches);
    if (o->sub_batches > MOST_SUB_BATCHES / ranks || o->batch_size > INT64_MAX / ranks)
        return invalid_argument("batch_size, sub_batches: found %lld and %lld on each of %lld ranks, expected at most "
                                "%d sub-batches on all ranks together",
                                (long long)o->batch_size, (long long)o->sub_batches, (long long)ranks,
                                MOST_SUB_BATCHES);
    return activations_check(config, ranks * o->batch_size, o->seq_len);
}

/* Recomputed activations, and reused gradients. */
static status check_sharing(const struct starpullm_session_options *o, int64_t ranks)
{
    TRY(session_check_range("recompute", o->recompute, STARPULLM_RECOMPUTE_NONE, STARPULLM_RECOMPUTE_BLOCK));
    if (o->recompute && o->keep_activations)
        return invalid_argument(
            "recompute: found it with keep_activations, expected one of them: what is kept needn't be computed again");
    if (o->reuse_weight_gradients && (o->sub_batches > 1 || ranks > 1))
        return invalid_argument("weight_gradients: found reused ones with %lld sub-batches on each of %lld ranks, "
                                "expected one on one: the gradient of a block is a sum over all of them",
                                (long long)o->sub_batches, (long long)ranks);
    return STARPULLM_OK;
}

status workload_check(const struct starpullm_session_options *o, const model_config *config, int64_t ranks)
{
    int stages;
    TRY(check_sizes(o, config, ranks));
    TRY(tiles_check(config, o->reduction, o->weight_gradient_tiles));
    TRY(check_sharing(o, ranks));
    TRY(stages_check(o->pipeline, config, ranks, &stages));
    if (stages > 1 && o->reduction == STARPULLM_REDUCTION_REDUX)
        return invalid_argument(
            "stages: found %d with the reduction redux, expected ordered or tree: it adds up over all ranks", stages);
    return STARPULLM_OK;
}

status workload_create(struct workload *work, const struct starpullm_session_options *o, const model_config *config,
                       const struct runtime_layout *layout)
{
    const int stages = o->pipeline ? o->pipeline->stages : 1;
    const int sub_batches = (int)o->sub_batches * (layout->ranks / stages);
    *work = (struct workload){.config = *config,
                              .B = (size_t)(o->batch_size / o->sub_batches),
                              .T = (size_t)o->seq_len,
                              .reduction = (enum starpullm_reduction)o->reduction,
                              .recompute = (enum starpullm_recompute)o->recompute,
                              .reuse_weight_gradients = o->reuse_weight_gradients != 0,
                              .keep_activations = o->keep_activations != 0,
                              .gradients_of_blocks =
                                  o->keep_activations || (o->pipeline && o->pipeline->gradients_of_blocks)};
    work->tiles =
        tiles_choose(config, work->reduction, sub_batches, layout->all_workers, stages, o->weight_gradient_tiles);
    TRY(placement_create(&work->placement, config, layout->rank, layout->ranks, sub_batches, o->pipeline));
    TRY(schedule_create(work, o->pipeline, o->activation_sets));
    /* The plan of offloading takes the order of submission for that in which tasks run, and updates run at once. */
    work->update_after_block = work->reuse_weight_gradients || (layout->memory_limit && !work->weight_passes);
    return STARPULLM_OK;
}

void workload_destroy(struct workload *work)
{
    schedule_destroy(work);
    placement_destroy(&work->placement);
}
