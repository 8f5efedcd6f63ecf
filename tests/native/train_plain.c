/* Trains the plain model as standard input says, and writes its losses and tensors, for test_cross.py. */
#include "plain/gpt2.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARAMS = sizeof(struct parameters) / sizeof(float *),
    TENSORS = (sizeof(struct plain_model) - offsetof(struct plain_model, params)) / sizeof(float *),
};

static void *receive(size_t size)
{
    void *data = malloc(size);
    if (!data || fread(data, size, 1, stdin) != 1)
        exit(2);
    return data;
}

/* Receives the model's sizes, the number of steps, that of each tensor's floats, the parameters, and then the inputs
 * and targets of each step. The moments m and v are two more tensors for each of the parameters. */
int main(void)
{
    const size_t *sizes = receive(7 * sizeof *sizes), *steps = receive(sizeof *steps);
    const size_t *count = receive((TENSORS + 2 * PARAMS) * sizeof *count);
    struct plain_model model;
    memcpy(&model, sizes, 7 * sizeof *sizes);
    float *tensor[TENSORS + 2 * PARAMS];
    for (int i = 0; i < TENSORS + 2 * PARAMS; i++)
        tensor[i] = i < PARAMS ? receive(count[i] * sizeof(float)) : calloc(count[i], sizeof(float));
    memcpy(&model.params, tensor, TENSORS * sizeof *tensor);
    for (size_t step = 1; step <= *steps; step++) {
        const int32_t *inputs = receive(model.B * model.T * sizeof *inputs);
        const int32_t *targets = receive(model.B * model.T * sizeof *targets);
        for (int i = PARAMS; i < TENSORS; i++)
            memset(tensor[i], 0, count[i] * sizeof(float));
        plain_forward(&model, inputs);
        const float loss = plain_loss(&model, targets);
        fwrite(&loss, sizeof loss, 1, stdout);
        plain_backward(&model, inputs, targets, 0, model.B);
        for (int i = 0; i < PARAMS; i++)
            plain_update(tensor[i], tensor[TENSORS + i], tensor[TENSORS + PARAMS + i], tensor[PARAMS + i], count[i],
                         3e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, (int64_t)step);
    }
    for (int i = 0; i < TENSORS + 2 * PARAMS; i++)
        fwrite(tensor[i], sizeof(float), count[i], stdout);
    return 0;
}
