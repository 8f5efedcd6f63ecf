/* A shared object with the functions of llm.c's CPU trainer and the layout of its model, made of the reference kernels:
 * what test_llmc.py needs to test the way from there to a parity result without llm.c. STAND_IN_* seed what must be
 * refused or found. That llm.c itself is laid out so and has these bits, only a run with it shows.
 *
 * Letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded vocabulary, N = B*T. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    ATTPROJW,
    ATTPROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    FCPROJW,
    FCPROJB,
    LNFW,
    LNFB,
    PARAMETERS
};

enum {
    ENCODED,
    LN1,
    LN1_MEAN,
    LN1_RSTD,
    QKV,
    ATTY,
    PREATT,
    ATT,
    ATTPROJ,
    RESIDUAL2,
    LN2,
    LN2_MEAN,
    LN2_RSTD,
    FCH,
    FCH_GELU,
    FCPROJ,
    RESIDUAL3,
    LNF,
    LNF_MEAN,
    LNF_RSTD,
    LOGITS,
    PROBS,
    LOSSES,
    ACTIVATIONS
};

struct model {
#ifdef STAND_IN_OTHER_CONFIG
    int vocab_size, max_seq_len;
#else
    int max_seq_len, vocab_size;
#endif
    int padded_vocab_size, num_layers, num_heads, channels;
    float *params[PARAMETERS];
    size_t param_sizes[PARAMETERS];
    float *params_memory;
    size_t num_parameters;
    float *grads[PARAMETERS], *grads_memory, *m, *v;
    float *acts[ACTIVATIONS];
    size_t act_sizes[ACTIVATIONS];
    float *acts_memory;
    size_t num_activations;
    float *dacts[ACTIVATIONS], *dacts_memory;
    int batch_size, seq_len;
    int *inputs, *targets;
    float mean_loss;
#ifdef STAND_IN_LONGER
    double longer;
#endif
};

static float *point(float **tensors, const size_t *sizes, int count, size_t total)
{
    float *memory = malloc(total * sizeof *memory), *next = memory;
    for (int i = 0; i < count; next += sizes[i++])
        tensors[i] = next;
    return memory;
}

static size_t sum(const size_t *sizes, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += sizes[i];
    return total;
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
    const size_t L = (size_t)header[4], C = (size_t)header[6];
    const size_t sizes[PARAMETERS] = {
        [WTE] = (size_t)header[7] * C,
        [WPE] = (size_t)header[2] * C,
        [LN1W] = L * C,
        [LN1B] = L * C,
        [QKVW] = L * 3 * C * C,
        [QKVB] = L * 3 * C,
        [ATTPROJW] = L * C * C,
        [ATTPROJB] = L * C,
        [LN2W] = L * C,
        [LN2B] = L * C,
        [FCW] = L * 4 * C * C,
        [FCB] = L * 4 * C,
        [FCPROJW] = L * 4 * C * C,
        [FCPROJB] = L * C,
        [LNFW] = C,
        [LNFB] = C,
    };
    memcpy(model->param_sizes, sizes, sizeof sizes);
    model->num_parameters = sum(sizes, PARAMETERS);
    model->params_memory = point(model->params, sizes, PARAMETERS, model->num_parameters);
    if (fread(model->params_memory, sizeof(float), model->num_parameters, file) != model->num_parameters)
        exit(EXIT_FAILURE);
    fclose(file);
    model->mean_loss = -1.0f;
#ifdef STAND_IN_LONGER
    model->longer = 1.0;
#endif
#ifdef STAND_IN_OTHER_VALUES
    model->params[LN2B][0] += 1.0f;
#endif
}

static void allocate_activations(struct model *model, size_t B, size_t T)
{
    const size_t L = (size_t)model->num_layers, C = (size_t)model->channels, N = B * T;
    const size_t V = (size_t)model->padded_vocab_size, attention = L * (size_t)model->num_heads * N * T;
    const size_t sizes[ACTIVATIONS] = {
        [ENCODED] = N * C,
        [LN1] = L * N * C,
        [LN1_MEAN] = L * N,
        [LN1_RSTD] = L * N,
        [QKV] = L * N * 3 * C,
        [ATTY] = L * N * C,
        [PREATT] = attention,
        [ATT] = attention,
        [ATTPROJ] = L * N * C,
        [RESIDUAL2] = L * N * C,
        [LN2] = L * N * C,
        [LN2_MEAN] = L * N,
        [LN2_RSTD] = L * N,
        [FCH] = L * N * 4 * C,
        [FCH_GELU] = L * N * 4 * C,
        [FCPROJ] = L * N * C,
        [RESIDUAL3] = L * N * C,
        [LNF] = N * C,
        [LNF_MEAN] = N,
        [LNF_RSTD] = N,
        [LOGITS] = N * V,
        [PROBS] = N * V,
        [LOSSES] = N,
    };
    memcpy(model->act_sizes, sizes, sizeof sizes);
    model->num_activations = sum(sizes, ACTIVATIONS);
    model->acts_memory = point(model->acts, sizes, ACTIVATIONS, model->num_activations);
    model->batch_size = (int)B;
    model->seq_len = (int)T;
    model->inputs = malloc(N * sizeof *model->inputs);
    model->targets = malloc(N * sizeof *model->targets);
}

/* What llm.c never writes there, and so may be anything. */
static void leave_rubbish_above_the_diagonal(float *preatt, size_t matrices, size_t T)
{
    for (size_t i = 0; i < matrices * T; i++)
        for (size_t t2 = i % T + 1; t2 < T; t2++)
            preatt[i * T + t2] = nanf("17");
}

/* A tensor of layer l. */
static float *of(float **tensors, const size_t *sizes, int tensor, int l, int L)
{
    return tensors[tensor] + sizes[tensor] / (size_t)L * (size_t)l;
}

#define P(tensor) of(model->params, model->param_sizes, tensor, l, L)
#define DP(tensor) of(model->grads, model->param_sizes, tensor, l, L)
#define A(tensor) of(model->acts, model->act_sizes, tensor, l, L)
#define DA(tensor) of(model->dacts, model->act_sizes, tensor, l, L)

void gpt2_forward(struct model *model, const int *inputs, const int *targets, size_t B, size_t T)
{
    const struct team one = team_of_one;
    const int L = model->num_layers;
    const size_t C = (size_t)model->channels, NH = (size_t)model->num_heads, N = B * T;
    const size_t V = (size_t)model->vocab_size, Vp = (size_t)model->padded_vocab_size;
    if (!model->acts_memory)
        allocate_activations(model, B, T);
    memcpy(model->inputs, inputs, N * sizeof *inputs);
    memcpy(model->targets, targets, N * sizeof *targets);
#ifdef STAND_IN_CRASHES
    raise(SIGSEGV);
#endif
    float **acts = model->acts, **params = model->params;
    encoder_forward_ref(acts[ENCODED], inputs, params[WTE], params[WPE], B, T, C, one);
    const float *residual = acts[ENCODED];
    for (int l = 0; l < L; l++) {
        layernorm_forward_ref(A(LN1), A(LN1_MEAN), A(LN1_RSTD), residual, P(LN1W), P(LN1B), N, C, one);
        matmul_forward_ref(A(QKV), A(LN1), P(QKVW), P(QKVB), N, C, 3 * C, one);
        attention_forward_ref(A(ATTY), A(PREATT), A(ATT), A(QKV), B, T, C, NH, one);
        leave_rubbish_above_the_diagonal(A(PREATT), B * NH, T);
        matmul_forward_ref(A(ATTPROJ), A(ATTY), P(ATTPROJW), P(ATTPROJB), N, C, C, one);
        residual_forward_ref(A(RESIDUAL2), residual, A(ATTPROJ), N * C, one);
        layernorm_forward_ref(A(LN2), A(LN2_MEAN), A(LN2_RSTD), A(RESIDUAL2), P(LN2W), P(LN2B), N, C, one);
        matmul_forward_ref(A(FCH), A(LN2), P(FCW), P(FCB), N, C, 4 * C, one);
        gelu_forward_ref(A(FCH_GELU), A(FCH), N * 4 * C, one);
        matmul_forward_ref(A(FCPROJ), A(FCH_GELU), P(FCPROJW), P(FCPROJB), N, 4 * C, C, one);
        residual_forward_ref(A(RESIDUAL3), A(RESIDUAL2), A(FCPROJ), N * C, one);
        residual = A(RESIDUAL3);
    }
    layernorm_forward_ref(acts[LNF], acts[LNF_MEAN], acts[LNF_RSTD], residual, params[LNFW], params[LNFB], N, C, one);
    matmul_forward_ref(acts[LOGITS], acts[LNF], params[WTE], NULL, N, C, Vp, one);
    softmax_forward_ref(acts[PROBS], acts[LOGITS], N, V, Vp, one);
    crossentropy_forward_ref(acts[LOSSES], acts[PROBS], targets, N, Vp, one);
    mean_loss_ref(&model->mean_loss, acts[LOSSES], N, (float)N, SUM_FROM_ZERO, one);
#ifdef STAND_IN_OTHER_LOSS
    model->mean_loss *= 2.0f;
#endif
}

void gpt2_zero_grad(struct model *model)
{
    (void)model; /* the first contributions below are sums from zero */
}

void gpt2_backward(struct model *model)
{
    const struct team one = team_of_one;
    const int L = model->num_layers;
    const size_t B = (size_t)model->batch_size, T = (size_t)model->seq_len, N = B * T, C = (size_t)model->channels;
    const size_t V = (size_t)model->vocab_size, Vp = (size_t)model->padded_vocab_size, NH = (size_t)model->num_heads;
#ifdef STAND_IN_EXITS
    printf("stand-in: no more\n");
    exit(STAND_IN_EXITS);
#endif
    if (!model->grads_memory) {
        model->grads_memory = point(model->grads, model->param_sizes, PARAMETERS, model->num_parameters);
        model->dacts_memory = point(model->dacts, model->act_sizes, ACTIVATIONS, model->num_activations);
        memset(model->dacts_memory, 0, model->num_activations * sizeof(float)); /* some get nothing added */
    }
    float **acts = model->acts, **dacts = model->dacts, **params = model->params, **grads = model->grads;
    for (size_t n = 0; n < N; n++)
        dacts[LOSSES][n] = 1.0f / (float)N;
    crossentropy_softmax_backward_ref(dacts[LOGITS], dacts[LOSSES], acts[PROBS], model->targets, N, V, Vp,
                                      SUM_FROM_ZERO, one);
    matmul_backward_input_ref(dacts[LNF], dacts[LOGITS], params[WTE], N, C, Vp, SUM_FROM_ZERO, one);
    matmul_backward_weight_ref(grads[WTE], NULL, dacts[LOGITS], acts[LNF], N, C, Vp, 0, Vp, SUM_FROM_ZERO, one);
    int l = L - 1;
    layernorm_backward_input_ref(DA(RESIDUAL3), dacts[LNF], A(RESIDUAL3), acts[LNF_MEAN], acts[LNF_RSTD], params[LNFW],
                                 N, C, SUM_FROM_ZERO, one);
    layernorm_backward_weight_ref(grads[LNFW], grads[LNFB], dacts[LNF], A(RESIDUAL3), acts[LNF_MEAN], acts[LNF_RSTD], N,
                                  C, SUM_FROM_ZERO, one);
    for (; l >= 0; l--) {
        const size_t of_layer = N * C;
        const float *residual = l ? A(RESIDUAL3) - of_layer : acts[ENCODED];
        float *dresidual = l ? DA(RESIDUAL3) - of_layer : dacts[ENCODED];
        residual_backward_ref(DA(RESIDUAL2), DA(FCPROJ), DA(RESIDUAL3), N * C, SUM_FROM_ZERO, one);
        matmul_backward_input_ref(DA(FCH_GELU), DA(FCPROJ), P(FCPROJW), N, 4 * C, C, SUM_FROM_ZERO, one);
        matmul_backward_weight_ref(DP(FCPROJW), DP(FCPROJB), DA(FCPROJ), A(FCH_GELU), N, 4 * C, C, 0, C, SUM_FROM_ZERO,
                                   one);
        gelu_backward_ref(DA(FCH), DA(FCH_GELU), A(FCH), N * 4 * C, SUM_FROM_ZERO, one);
        matmul_backward_input_ref(DA(LN2), DA(FCH), P(FCW), N, C, 4 * C, SUM_FROM_ZERO, one);
        matmul_backward_weight_ref(DP(FCW), DP(FCB), DA(FCH), A(LN2), N, C, 4 * C, 0, 4 * C, SUM_FROM_ZERO, one);
        layernorm_backward_input_ref(DA(RESIDUAL2), DA(LN2), A(RESIDUAL2), A(LN2_MEAN), A(LN2_RSTD), P(LN2W), N, C,
                                     SUM_CONTINUES, one);
        layernorm_backward_weight_ref(DP(LN2W), DP(LN2B), DA(LN2), A(RESIDUAL2), A(LN2_MEAN), A(LN2_RSTD), N, C,
                                      SUM_FROM_ZERO, one);
        residual_backward_ref(dresidual, DA(ATTPROJ), DA(RESIDUAL2), N * C, SUM_FROM_ZERO, one);
        matmul_backward_input_ref(DA(ATTY), DA(ATTPROJ), P(ATTPROJW), N, C, C, SUM_FROM_ZERO, one);
        matmul_backward_weight_ref(DP(ATTPROJW), DP(ATTPROJB), DA(ATTPROJ), A(ATTY), N, C, C, 0, C, SUM_FROM_ZERO, one);
        attention_backward_ref(DA(QKV), DA(PREATT), DA(ATT), DA(ATTY), A(QKV), A(ATT), B, T, C, NH, one);
        matmul_backward_input_ref(DA(LN1), DA(QKV), P(QKVW), N, C, 3 * C, SUM_FROM_ZERO, one);
        matmul_backward_weight_ref(DP(QKVW), DP(QKVB), DA(QKV), A(LN1), N, C, 3 * C, 0, 3 * C, SUM_FROM_ZERO, one);
        layernorm_backward_input_ref(dresidual, DA(LN1), residual, A(LN1_MEAN), A(LN1_RSTD), P(LN1W), N, C,
                                     SUM_CONTINUES, one);
        layernorm_backward_weight_ref(DP(LN1W), DP(LN1B), DA(LN1), residual, A(LN1_MEAN), A(LN1_RSTD), N, C,
                                      SUM_FROM_ZERO, one);
    }
    encoder_backward_ref(grads[WTE], grads[WPE], dacts[ENCODED], model->inputs, B, T, C, (size_t)model->max_seq_len, 0,
                         Vp, SUM_FROM_ZERO, one);
#ifdef STAND_IN_OTHER_BITS
    float *element = grads[FCPROJB] + model->param_sizes[FCPROJB] - 2;
    *element = nextafterf(nextafterf(*element, INFINITY), INFINITY);
#endif
}

#ifndef STAND_IN_WITHOUT_UPDATE
void gpt2_update(struct model *model, float learning_rate, float beta1, float beta2, float eps, float weight_decay,
                 int step)
{
    const struct adamw_options options = {learning_rate, beta1, beta2, eps, weight_decay};
    if (!model->m) {
        model->m = calloc(model->num_parameters, sizeof *model->m);
        model->v = calloc(model->num_parameters, sizeof *model->v);
    }
    adamw_update_ref(model->params_memory, model->m, model->v, model->grads_memory, model->num_parameters, &options,
                     step, team_of_one);
}
#endif
