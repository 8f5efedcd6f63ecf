/* Checks of a session's options, apart because the rules are many and depend on nothing but their arguments and the
 * running runtime. */
#include <math.h>

#include "session/session.h"

enum { MAX_DELAY_US = 1000000, MAX_STEPS_IN_FLIGHT = 1024 };

status session_check_number(const char *name, float value)
{
    if (isfinite(value) && value >= 0.0f)
        return STARPULLM_OK;
    return invalid_argument("%s: found %g, expected a finite number, at least 0", name, (double)value);
}

static status check_beta(const char *name, float value)
{
    if (value >= 0.0f && value < 1.0f)
        return STARPULLM_OK;
    return invalid_argument("%s: found %g, expected at least 0 and below 1", name, (double)value);
}

static status check_instruments(const struct starpullm_session_options *o)
{
    const int32_t all = STARPULLM_AUDIT | STARPULLM_POISON | STARPULLM_DELAY | STARPULLM_DRAW_DEVICE;
    if (o->instruments & ~all)
        return invalid_argument("instruments: found %d, expected a sum of %d, %d, %d and %d", o->instruments,
                                STARPULLM_AUDIT, STARPULLM_POISON, STARPULLM_DELAY, STARPULLM_DRAW_DEVICE);
    TRY(session_check_range("max_delay_us", o->max_delay_us, 0, MAX_DELAY_US));
    TRY(session_check_range("device_percent", o->device_percent, 0, 100));
    if (o->instruments && !o->trace)
        return invalid_argument("instruments: found no trace, expected one: findings name its tasks");
    const struct runtime_layout *layout = runtime_layout();
    if ((o->instruments & STARPULLM_AUDIT) && (layout->workers > 1 || layout->threads_per_worker > 1))
        return invalid_argument(
            "instruments: found the audit on partition %dx%d, expected 1x1: pages are open to all threads",
            layout->workers, layout->threads_per_worker);
    if ((o->instruments & (STARPULLM_AUDIT | STARPULLM_POISON)) && layout->devices)
        return invalid_argument("instruments: found audit or poison beside devices, expected none: data move");
    if ((o->instruments & STARPULLM_DRAW_DEVICE) && !layout->devices)
        return invalid_argument("instruments: found tasks for devices on a runtime without any, expected devices");
    if ((o->instruments & (STARPULLM_AUDIT | STARPULLM_POISON)) && layout->ranks > 1)
        return invalid_argument("instruments: found audit or poison on %d ranks, expected one: transfers aren't tasks",
                                layout->ranks);
    if ((o->instruments & STARPULLM_AUDIT) && o->reduction == STARPULLM_REDUCTION_REDUX)
        return invalid_argument("instruments: found the audit with the reduction redux, expected another: StarPU sums "
                                "in buffers of its own");
    if ((o->instruments & STARPULLM_AUDIT) && layout->memory_limit)
        return invalid_argument(
            "instruments: found the audit on a runtime with offload, expected one without: data move");
    return STARPULLM_OK;
}

/* StarPU counts a vector's elements in 32 bits. MPI counts a message's bytes in an int; parameters and gradients are
 * sent to other ranks, activations only if they are read (data/exchange_mpi.c). */
static status check_vectors(const model_config *config, int64_t sub_batch_size, int64_t seq_len, int64_t ranks)
{
    const int64_t most = ranks > 1 ? INT32_MAX / (int64_t)sizeof(float) : UINT32_MAX;
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int64_t elements = parameter_elements(config, p);
        if (elements > most)
            return invalid_argument("params/%s: found %lld elements, expected at most %lld on %lld ranks: %s",
                                    parameters[p].name, (long long)elements, (long long)most, (long long)ranks,
                                    ranks > 1 ? "MPI has no larger messages" : "StarPU has no larger vectors");
    }
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        const int64_t elements = tensor_elements(tensor_shape(&activations[a], config, sub_batch_size, seq_len));
        if (elements > UINT32_MAX)
            return invalid_argument("activations/%s: found %lld elements in a sub-batch, expected at most %lld: StarPU "
                                    "has no larger vectors; more sub-batches make it smaller",
                                    activations[a].name, (long long)elements, (long long)UINT32_MAX);
    }
    return STARPULLM_OK;
}

status session_check_options(const struct starpullm_session_options *o, const model_config *config)
{
    TRY(workload_check(o, config, runtime_layout()->ranks));
    TRY(check_vectors(config, o->batch_size / o->sub_batches, o->seq_len, runtime_layout()->ranks));
    if (o->reduction < STARPULLM_REDUCTION_ORDERED || o->reduction > STARPULLM_REDUCTION_REDUX)
        return invalid_argument("reduction: found %d, expected %d (ordered), %d (tree) or %d (redux)", o->reduction,
                                STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE, STARPULLM_REDUCTION_REDUX);
    if (o->reduction == STARPULLM_REDUCTION_REDUX && runtime_layout()->memory_limit)
        return invalid_argument(
            "reduction: found redux on a runtime with offload, expected another: StarPU sums in buffers of its own");
    TRY(session_check_range("memory_limit", o->memory_limit, 0, INT64_MAX));
    TRY(session_check_range("steps_in_flight", o->steps_in_flight, 1, MAX_STEPS_IN_FLIGHT));
    TRY(check_instruments(o));
    TRY(session_check_number("learning_rate", o->learning_rate));
    TRY(check_beta("beta1", o->beta1));
    TRY(check_beta("beta2", o->beta2));
    TRY(session_check_number("eps", o->eps));
    return session_check_number("weight_decay", o->weight_decay);
}
