/* The false declarations of lies.h: which defect changes which access of which operation, and how. Called by
 * insert_*.c. */
#include "codelets/lies.h"

#include <string.h>

/* ALIAS: StarPU is given another handle of the same memory, the others the true one. UNDECLARED: the others are given
 * another access of the task instead. */
enum lie { MODE, ALIAS, UNDECLARED };

static const struct {
    enum defect defect;
    const char *operation;
    size_t access; /* which, in the order of submit_<operation>() */
    enum lie lie;
    enum starpu_data_access_mode truth, mode; /* MODE: only where the truth is this */
} lies[] = {
    {DEFECT_write_as_read_matmul_forward, "matmul_forward", 0, MODE, STARPU_W, STARPU_R},
    {DEFECT_write_as_read_attention_forward, "attention_forward", 2, MODE, STARPU_W, STARPU_R},
    {DEFECT_write_as_read_encoder_forward, "encoder_forward", 0, MODE, STARPU_W, STARPU_R},
    {DEFECT_write_as_read_residual_backward, "residual_backward", 1, MODE, STARPU_W, STARPU_R},
    {DEFECT_update_as_read_gradient_add, "gradient_add", 0, MODE, STARPU_RW, STARPU_R},
    {DEFECT_update_as_read_matmul_backward_weight, "matmul_backward_weight", 0, MODE, STARPU_RW, STARPU_R},
    {DEFECT_update_as_read_adamw, "adamw_update", 0, MODE, STARPU_RW, STARPU_R},
    {DEFECT_update_as_write_adamw, "adamw_update", 1, MODE, STARPU_RW, STARPU_W},
    {DEFECT_update_as_write_layernorm_backward, "layernorm_backward_input", 0, MODE, STARPU_RW, STARPU_W},
    {DEFECT_update_as_write_mean_loss, "mean_loss", 0, MODE, STARPU_RW, STARPU_W},
    {DEFECT_read_as_write_softmax_forward, "softmax_forward", 1, MODE, STARPU_R, STARPU_W},
    {DEFECT_read_as_update_attention_backward, "attention_backward", 4, MODE, STARPU_R, STARPU_RW},
    {DEFECT_undeclared_gelu_backward, "gelu_backward", 2, UNDECLARED, 0, 0},
    {DEFECT_undeclared_crossentropy_backward, "crossentropy_softmax_backward", 2, UNDECLARED, 0, 0},
    {DEFECT_undeclared_layernorm_backward_weight, "layernorm_backward_weight", 0, UNDECLARED, 0, 0},
    {DEFECT_undeclared_encoder_forward, "encoder_forward", 2, UNDECLARED, 0, 0},
    {DEFECT_alias_activation, "gelu_forward", 1, ALIAS, 0, 0},
    {DEFECT_alias_gradient, "matmul_backward_weight", 0, ALIAS, 0, 0},
    {DEFECT_alias_parameters, "adamw_update", 0, ALIAS, 0, 0},
};

/* What is looked at until the task has run, long before so many others were inserted. */
enum { MAX_ALIASES = 1 << 16 };
static struct data aliases[MAX_ALIASES];
static size_t num_aliases;

/* The one before is given up; StarPU keeps it until its task has run. */
static struct data *alias_of(const struct data *truth, const struct data *told)
{
    if (num_aliases > 0)
        starpu_data_unregister_submit(aliases[(num_aliases - 1) % MAX_ALIASES].handle);
    struct data *alias = &aliases[num_aliases++ % MAX_ALIASES];
    starpu_data_handle_t handle;
    *alias = *told;
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)truth->buffer, truth->count, truth->element_size);
    alias->handle = handle;
    return alias;
}

const struct access *lie_about(struct access *lied, const struct operation *operation, const struct access *accesses,
                               size_t num_accesses)
{
    memcpy(lied, accesses, num_accesses * sizeof *accesses);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (chosen_defect != lies[i].defect || strcmp(operation->codelet.name, lies[i].operation) != 0)
            continue;
        struct access *access = &lied[lies[i].access];
        if (lies[i].lie != MODE)
            access->data =
                alias_of(access->data, lies[i].lie == ALIAS ? access->data : accesses[lies[i].access ? 0 : 1].data);
        else if (access->mode == lies[i].truth)
            access->mode = lies[i].mode;
    }
    return lied;
}
