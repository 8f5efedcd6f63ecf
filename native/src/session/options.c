/* Checks of a session's options, apart because the rules are many and depend on nothing but their arguments and the
 * running runtime. */
#include <math.h>

#include "runtime/runtime.h"
#include "session/session.h"

enum { MAX_DELAY_US = 1000000, MAX_STEPS_IN_FLIGHT = 1024 };

status session_check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %lld, expected %lld to %lld", name, (long long)value,
                (long long)least, (long long)most);
}

status session_check_number(const char *name, float value)
{
    if (isfinite(value) && value >= 0.0f)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %g, expected a finite number, at least 0", name, (double)value);
}

static status check_beta(const char *name, float value)
{
    if (value >= 0.0f && value < 1.0f)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %g, expected at least 0 and below 1", name, (double)value);
}

static status check_instruments(const struct starpullm_session_options *o)
{
    const int32_t all = STARPULLM_AUDIT | STARPULLM_POISON | STARPULLM_DELAY;
    if (o->instruments & ~all)
        return fail(STARPULLM_INVALID_ARGUMENT, "instruments: found %d, expected a sum of %d, %d and %d",
                    o->instruments, STARPULLM_AUDIT, STARPULLM_POISON, STARPULLM_DELAY);
    TRY(session_check_range("max_delay_us", o->max_delay_us, 0, MAX_DELAY_US));
    if (o->instruments && !o->trace)
        return fail(STARPULLM_INVALID_ARGUMENT, "instruments: found no trace, expected one: findings name its tasks");
    const struct runtime_layout *layout = runtime_layout();
    if ((o->instruments & STARPULLM_AUDIT) && (layout->workers > 1 || layout->threads_per_worker > 1))
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found the audit on partition %dx%d, expected 1x1: pages are open to all threads",
                    layout->workers, layout->threads_per_worker);
    if ((o->instruments & (STARPULLM_AUDIT | STARPULLM_POISON)) && layout->ranks > 1)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found audit or poison on %d ranks, expected one: transfers aren't tasks",
                    layout->ranks);
    if ((o->instruments & STARPULLM_AUDIT) && o->reduction == STARPULLM_REDUCTION_REDUX)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found the audit with the reduction redux, expected another: StarPU sums in buffers "
                    "of its own");
    if ((o->instruments & STARPULLM_AUDIT) && layout->memory_limit)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found the audit on a runtime with offload, expected one without: data move");
    return STARPULLM_OK;
}

/* StarPU counts a vector's elements in 32 bits. MPI counts a message's bytes in an int; parameters and gradients are
 * sent to other ranks, activations only if they are read (data/exchange_mpi.c). */
static status check_vectors(const model_config *config, int64_t sub_batch_size, int64_t seq_len, int64_t ranks)
{
    const int64_t most = ranks > 1 ? INT32_MAX / (int64_t)sizeof(float) : UINT32_MAX;
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int64_t elements = tensor_elements(parameter_shape(config, p));
        if (elements > most)
            return fail(STARPULLM_INVALID_ARGUMENT,
                        "params/%s: found %lld elements, expected at most %lld on %lld ranks: %s", parameter_name(p),
                        (long long)elements, (long long)most, (long long)ranks,
                        ranks > 1 ? "MPI has no larger messages" : "StarPU has no larger vectors");
    }
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        const int64_t elements = tensor_elements(activation_shape(config, a, sub_batch_size, seq_len));
        if (elements > UINT32_MAX)
            return fail(
                STARPULLM_INVALID_ARGUMENT,
                "activations/%s: found %lld elements in a sub-batch, expected at most %lld: StarPU has no larger "
                "vectors; more sub-batches make it smaller",
                activation_name(a), (long long)elements, (long long)UINT32_MAX);
    }
    return STARPULLM_OK;
}

static status check_sizes(const struct starpullm_session_options *o, const model_config *config)
{
    if (o->batch_size < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "batch_size: found %lld, expected at least 1",
                    (long long)o->batch_size);
    if (o->seq_len < 1 || o->seq_len > config->max_seq_len)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "seq_len: found %lld, expected 1 to %d, the longest sequence that %s has positions for",
                    (long long)o->seq_len, config->max_seq_len, o->checkpoint ? o->checkpoint : o->resume);
    if (o->sub_batches < 1 || o->sub_batches > INT32_MAX || o->batch_size % o->sub_batches != 0)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "sub_batches: found %lld, expected a divisor of the batch size %lld that 32 bits hold",
                    (long long)o->sub_batches, (long long)o->batch_size);
    if (o->activation_sets < 0 || o->activation_sets > o->sub_batches)
        return fail(STARPULLM_INVALID_ARGUMENT, "activation_sets: found %lld, expected 0 to %lld, the sub-batches",
                    (long long)o->activation_sets, (long long)o->sub_batches);
    const int64_t ranks = runtime_layout()->ranks;
    if (o->sub_batches > INT32_MAX / ranks || o->batch_size > INT64_MAX / ranks)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "batch_size, sub_batches: found %lld and %lld on each of %lld ranks, "
                    "expected at most as many sub-batches on all ranks together as 32 bits hold",
                    (long long)o->batch_size, (long long)o->sub_batches, (long long)ranks);
    TRY(activations_check(config, ranks * o->batch_size, o->seq_len));
    return check_vectors(config, o->batch_size / o->sub_batches, o->seq_len, ranks);
}

status session_check_sharing(int32_t recompute, int32_t reuse_weight_gradients, int32_t keep_activations,
                             int64_t sub_batches, int64_t ranks)
{
    TRY(session_check_range("recompute", recompute, STARPULLM_RECOMPUTE_NONE, STARPULLM_RECOMPUTE_BLOCK));
    if (recompute && keep_activations)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "recompute: found it with keep_activations, expected one of them: what is kept needn't be computed "
                    "again");
    if (reuse_weight_gradients && (sub_batches > 1 || ranks > 1))
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "weight_gradients: found reused ones with %lld sub-batches on each of %lld ranks, expected one on "
                    "one: the gradient of a block is a sum over all of them",
                    (long long)sub_batches, (long long)ranks);
    return STARPULLM_OK;
}

status session_check_pipeline(const struct starpullm_pipeline *pipeline, const model_config *config, int32_t reduction,
                              int64_t ranks)
{
    int stages;
    TRY(stages_check(pipeline, config, ranks, &stages));
    if (stages > 1 && reduction == STARPULLM_REDUCTION_REDUX)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "stages: found %d with the reduction redux, expected ordered or tree: it adds up over all ranks",
                    stages);
    return STARPULLM_OK;
}

status session_check_options(const struct starpullm_session_options *o, const model_config *config)
{
    TRY(check_sizes(o, config));
    if (o->reduction < STARPULLM_REDUCTION_ORDERED || o->reduction > STARPULLM_REDUCTION_REDUX)
        return fail(STARPULLM_INVALID_ARGUMENT, "reduction: found %d, expected %d (ordered), %d (tree) or %d (redux)",
                    o->reduction, STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE, STARPULLM_REDUCTION_REDUX);
    if (o->reduction == STARPULLM_REDUCTION_REDUX && runtime_layout()->memory_limit)
        return fail(STARPULLM_INVALID_ARGUMENT, "reduction: found redux on a runtime with offload, expected another: "
                                                "StarPU sums in buffers of its own");
    TRY(tiles_check(config, o->reduction, o->weight_gradient_tiles));
    TRY(session_check_sharing(o->recompute, o->reuse_weight_gradients, o->keep_activations, o->sub_batches,
                              runtime_layout()->ranks));
    TRY(session_check_pipeline(o->pipeline, config, o->reduction, runtime_layout()->ranks));
    TRY(session_check_range("memory_limit", o->memory_limit, 0, INT64_MAX));
    TRY(session_check_range("steps_in_flight", o->steps_in_flight, 1, MAX_STEPS_IN_FLIGHT));
    TRY(check_instruments(o));
    TRY(session_check_number("learning_rate", o->learning_rate));
    TRY(check_beta("beta1", o->beta1));
    TRY(check_beta("beta2", o->beta2));
    TRY(session_check_number("eps", o->eps));
    return session_check_number("weight_decay", o->weight_decay);
}
