/* A shared object with the functions of llm.c's CPU trainer and the layout of its model, made of the plain model: what
 * test_llmc.py needs to test the way from there to a parity result without llm.c. STAND_IN_* seed what must be refused
 * or found. That llm.c itself is laid out so and has these bits, only a run with it shows.
 *
 * Letters: B batch, T sequence length, C channels, L layers, Vp padded vocabulary, N = B*T. */
#include "kernels/elementary/scalar.h"
#ifdef STAND_IN_PLATFORM
#define cr_coshf coshf
#define cr_expf expf
#define cr_logf logf
#define cr_powf powf
#define cr_tanhf tanhf
#endif
#ifdef STAND_IN_OTHER_EXPF
#define cr_expf(x) nextafterf(expf(x), 2.0f)
#endif
#ifdef STAND_IN_PLATFORM_EXPF
#define cr_expf expf
#endif
#include "plain/gpt2.c"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARAMETERS = sizeof(struct parameters) / sizeof(float *),
    ACTIVATIONS = sizeof(struct activations) / sizeof(float *)
};

struct model {
#ifdef STAND_IN_OTHER_CONFIG
    int vocab_size, max_seq_len;
#else
    int max_seq_len, vocab_size;
#endif
    int padded_vocab_size, num_layers, num_heads, channels;
    struct parameters params;
    size_t param_sizes[PARAMETERS];
    float *params_memory;
    size_t num_parameters;
    struct parameters grads;
    float *grads_memory, *m, *v;
    struct activations acts;
    size_t act_sizes[ACTIVATIONS];
    float *acts_memory;
    size_t num_activations;
    struct activations dacts;
    float *dacts_memory;
    int batch_size, seq_len;
    int *inputs, *targets;
    float mean_loss;
#ifdef STAND_IN_LONGER
    double longer;
#endif
};

/* Zeros for tensors of these sizes, one behind the other; their addresses are in the order of the struct. */
static float *allocate(void *tensors, const size_t *sizes, int count, size_t *total)
{
    *total = 0;
    for (int i = 0; i < count; i++)
        *total += sizes[i];
    float *memory = calloc(*total, sizeof *memory), *next = memory;
    for (int i = 0; i < count; next += sizes[i++])
        ((float **)tensors)[i] = next;
    return memory;
}

void gpt2_build_from_checkpoint(struct model *model, const char *path)
{
    FILE *file = fopen(path, "rb");
    int32_t header[256];
    if (!file || fread(header, sizeof header, 1, file) != 1)
        exit(EXIT_FAILURE);
    memset(model, 0, sizeof *model);
    model->max_seq_len = header[2];
    model->vocab_size = header[3];
    model->num_layers = header[4];
    model->num_heads = header[5];
    model->channels = header[6];
    model->padded_vocab_size = header[7];
    const size_t C = (size_t)header[6], LC = (size_t)header[4] * C;
    const size_t sizes[PARAMETERS] = {(size_t)header[7] * C,
                                      (size_t)header[2] * C,
                                      LC,
                                      LC,
                                      LC * 3 * C,
                                      LC * 3,
                                      LC * C,
                                      LC,
                                      LC,
                                      LC,
                                      LC * 4 * C,
                                      LC * 4,
                                      LC * 4 * C,
                                      LC,
                                      C,
                                      C};
    memcpy(model->param_sizes, sizes, sizeof sizes);
#ifdef STAND_IN_OTHER_SIZES
    model->param_sizes[1]++;
#endif
    model->params_memory = allocate(&model->params, sizes, PARAMETERS, &model->num_parameters);
    if (fread(model->params_memory, sizeof(float), model->num_parameters, file) != model->num_parameters)
        exit(EXIT_FAILURE);
    fclose(file);
    model->mean_loss = -1.0f;
#ifdef STAND_IN_LONGER
    model->longer = 1.0;
#endif
#ifdef STAND_IN_OTHER_VALUES
    model->params.ln2b[0] += 1.0f;
#endif
}

static void allocate_activations(struct model *model, size_t B, size_t T)
{
    const size_t L = (size_t)model->num_layers, C = (size_t)model->channels, N = B * T, LN = L * N;
    const size_t V = N * (size_t)model->padded_vocab_size, attention = LN * (size_t)model->num_heads * T;
    const size_t sizes[ACTIVATIONS] = {N * C,  LN * C, LN,     LN, LN * 3 * C, LN * C,     attention,  attention,
                                       LN * C, LN * C, LN * C, LN, LN,         LN * 4 * C, LN * 4 * C, LN * C,
                                       LN * C, N * C,  N,      N,  V,          V,          N};
    memcpy(model->act_sizes, sizes, sizeof sizes);
    model->acts_memory = allocate(&model->acts, sizes, ACTIVATIONS, &model->num_activations);
    model->batch_size = (int)B;
    model->seq_len = (int)T;
    model->inputs = malloc(N * sizeof *model->inputs);
    model->targets = malloc(N * sizeof *model->targets);
}

static struct plain_model plain(const struct model *model)
{
    return (struct plain_model){
        .B = (size_t)model->batch_size,
        .T = (size_t)model->seq_len,
        .C = (size_t)model->channels,
        .NH = (size_t)model->num_heads,
        .L = (size_t)model->num_layers,
        .V = (size_t)model->vocab_size,
        .Vp = (size_t)model->padded_vocab_size,
        .params = model->params,
        .grads = model->grads,
        .acts = model->acts,
        .dacts = model->dacts,
    };
}

/* What llm.c never writes there, and so may be anything. */
static void leave_rubbish_above_the_diagonal(float *preatt, size_t rows, size_t T)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t t2 = i % T + 1; t2 < T; t2++)
            preatt[i * T + t2] = nanf("17");
}

void gpt2_forward(struct model *model, const int *inputs, const int *targets, size_t B, size_t T)
{
    if (!model->acts_memory)
        allocate_activations(model, B, T);
    memcpy(model->inputs, inputs, B * T * sizeof *inputs);
    memcpy(model->targets, targets, B * T * sizeof *targets);
#ifdef STAND_IN_CRASHES
    raise(SIGSEGV);
#endif
    const struct plain_model of = plain(model);
    plain_forward(&of, inputs);
    model->mean_loss = plain_loss(&of, targets);
    leave_rubbish_above_the_diagonal(model->acts.preatt, of.L * of.B * of.NH * of.T, of.T);
#ifdef STAND_IN_OTHER_LOSS
    model->mean_loss *= 2.0f;
#endif
}

void gpt2_zero_grad(struct model *model)
{
    if (model->grads_memory) {
        memset(model->grads_memory, 0, model->num_parameters * sizeof(float));
        memset(model->dacts_memory, 0, model->num_activations * sizeof(float));
    }
}

void gpt2_backward(struct model *model)
{
#ifdef STAND_IN_EXITS
    printf("stand-in: no more\n");
    exit(STAND_IN_EXITS);
#endif
    if (!model->grads_memory) {
        model->grads_memory = allocate(&model->grads, model->param_sizes, PARAMETERS, &model->num_parameters);
        model->dacts_memory = allocate(&model->dacts, model->act_sizes, ACTIVATIONS, &model->num_activations);
    }
    const struct plain_model of = plain(model);
    for (size_t n = 0; n < of.B * of.T; n++)
        of.dacts.losses[n] = 1.0f / (float)(of.B * of.T);
    plain_backward(&of, model->inputs, model->targets, 0, of.B);
#ifdef STAND_IN_OTHER_BITS
    float *element = of.grads.fcprojb + of.L * of.C - 2;
    *element = nextafterf(nextafterf(*element, INFINITY), INFINITY);
#endif
}

#ifndef STAND_IN_WITHOUT_UPDATE
void gpt2_update(struct model *model, float learning_rate, float beta1, float beta2, float eps, float weight_decay,
                 int step)
{
    if (!model->m) {
        model->m = calloc(model->num_parameters, sizeof *model->m);
        model->v = calloc(model->num_parameters, sizeof *model->v);
    }
    plain_update(model->params_memory, model->m, model->v, model->grads_memory, model->num_parameters, learning_rate,
                 beta1, beta2, eps, weight_decay, step);
}
#endif
