/* Tests of reading checkpoints: the format byte for byte, and failing calls. Numbers that no model has are in
 * tests/native/limits. */
#include "files.h"
#include "io/file.h"

/* Every parameter is its index in the body, wherever the format puts it. */
struct bytes make_checkpoint(const model_config *config)
{
    int32_t header[] = {20240326,
                        3,
                        config->max_seq_len,
                        config->vocab_size,
                        config->num_layers,
                        config->num_heads,
                        config->channels,
                        config->padded_vocab_size};
    int64_t Vp = config->padded_vocab_size, maxT = config->max_seq_len, L = config->num_layers, C = config->channels;
    int64_t attention = 3 * C * C + 3 * C + C * C + C, mlp = 4 * C * C + 4 * C + C * 4 * C + C;
    int64_t body = Vp * C + maxT * C + L * (C + C + attention + C + C + mlp) + C + C;
    struct bytes bytes = {0};
    put_header(&bytes, header, sizeof header / sizeof header[0]);
    for (int64_t i = 0; i < body; i++)
        put_float(&bytes, (float)i);
    return bytes;
}

static status acquire(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    struct parameters *parameters = context;
    if (parameters->interfere != NULL && parameters->acquired == parameters->interfere_at) {
        status result = parameters->interfere();
        if (result != STARPULLM_OK)
            return result;
    }
    parameters->wrong |= group != STARPULLM_PARAMS || parameters->values != NULL;
    parameters->wrong |= parameter_offset(parameters->config, p, layer) != parameters->position;
    parameters->acquired++;
    int64_t elements = tensor_elements(parameter_shape(parameters->config, p));
    *values = NULL;
    if (parameters->skip_odd && p % 2 == 1) {
        parameters->position += elements;
        return STARPULLM_OK;
    }
    *values = parameters->values = must(malloc((size_t)elements * sizeof(float)));
    for (int64_t i = 0; i < elements && parameters->fill; i++)
        parameters->values[i] = (float)(parameters->position + i);
    return STARPULLM_OK;
}

static void release(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    struct parameters *parameters = context;
    (void)group;
    (void)layer;
    int64_t elements = tensor_elements(parameter_shape(parameters->config, p));
    for (int64_t i = 0; i < elements; i++)
        parameters->wrong |= parameters->values[i] != (float)(parameters->position + i);
    parameters->position += elements;
    free(parameters->values);
    parameters->values = NULL;
}

status read_into(const char *path, const model_config *config, struct parameters *parameters)
{
    parameters->config = config;
    status result = checkpoint_read(path, config, &(struct tensor_buffers){parameters, acquire, release});
    CHECK(parameters->values == NULL);
    return result;
}

status read_checkpoint(const char *path, const model_config *config)
{
    struct parameters parameters = {0};
    return read_into(path, config, &parameters);
}

status write_from(const char *path, const model_config *config, struct parameters *parameters)
{
    parameters->config = config;
    parameters->fill = true;
    status result = checkpoint_write(path, config, &(struct tensor_buffers){parameters, acquire, release});
    CHECK(parameters->values == NULL && !parameters->wrong);
    return result;
}

status write_checkpoint(const char *path, const model_config *config)
{
    struct parameters parameters = {0};
    return write_from(path, config, &parameters);
}

void test_checkpoint_read(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    save("model.bin", &bytes);

    model_config config;
    WORKS(checkpoint_config("model.bin", &config));
    CHECK(memcmp(&config, &tiny, sizeof config) == 0);
    struct parameters parameters = {0};
    WORKS(read_into("model.bin", &tiny, &parameters));
    CHECK(!parameters.wrong && parameters.position == parameter_offset(&tiny, NUM_PARAMETERS, 0) &&
          parameters.acquired == 4 + 12 * 2);

    struct parameters half = {.skip_odd = 1};
    WORKS(read_into("model.bin", &tiny, &half));
    CHECK(!half.wrong && half.position == parameter_offset(&tiny, NUM_PARAMETERS, 0));
    free(bytes.data);
}

void test_checkpoint_header(void)
{
    /* What follows the sizes in the header means nothing. */
    struct bytes bytes = make_checkpoint(&tiny);
    set_int(&bytes, 8, -1);
    set_int(&bytes, 255, -1);
    save("model.bin", &bytes);
    free(bytes.data);
    WORKS(read_checkpoint("model.bin", &tiny));

    /* A model other than the caller's buffers were made for, of the same size (V) and of another (the rest). */
    static const char *const names[] = {"max_seq_len", "vocab_size", "num_layers",
                                        "num_heads",   "channels",   "padded_vocab_size"};
    for (int i = 0; i < 6; i++) {
        int32_t sizes[6];
        model_config other;
        memcpy(sizes, &tiny, sizeof sizes);
        sizes[i] = i == 1 || i == 3 ? 1 : 2 * sizes[i];
        memcpy(&other, sizes, sizeof other);
        struct bytes different = make_checkpoint(&other);
        save("other.bin", &different);
        free(different.data);
        char where[64], limit[32];
        snprintf(where, sizeof where, "other.bin: byte %d: %s is %d", 8 + 4 * i, names[i], sizes[i]);
        memcpy(sizes, &tiny, sizeof sizes);
        snprintf(limit, sizeof limit, "expected %d ", sizes[i]);
        REFUSED(read_checkpoint("other.bin", &tiny), STARPULLM_INVALID_FILE, where, limit);
    }
}

static status truncate_model(void)
{
    return truncate("model.bin", 1500) == 0 ? STARPULLM_OK : STARPULLM_FILE_ERROR;
}

status refuse(void)
{
    return fail(STARPULLM_RUNTIME_FAILURE, "no access to the data");
}

void test_checkpoint_reading_fails(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    for (size_t most = 1; most < 8; most++) {
        save("model.bin", &bytes);
        limit_transfers(most, 3);
        struct parameters parameters = {0};
        WORKS(read_into("model.bin", &tiny, &parameters));
        CHECK(!parameters.wrong);
        no_faults();
    }

    save("model.bin", &bytes);
    for (int call = 1; call <= 3; call++) { /* header, wte, wpe */
        fail_call(CALL_READ, call, EIO);
        const char *where = call == 1 ? "byte 0: read" : call == 2 ? "byte 1024: read" : "byte 1120: read";
        REFUSED(read_checkpoint("model.bin", &tiny), STARPULLM_FILE_ERROR, "model.bin: ", where, "Input/output error");
        CHECK(starpullm_last_error_number() == EIO);
        no_faults();
    }
    struct parameters shrinking = {.interfere = truncate_model, .interfere_at = 7};
    REFUSED(read_into("model.bin", &tiny, &shrinking), STARPULLM_INVALID_FILE, "model.bin: byte 1500",
            "expected 116 more bytes", "truncated");
    CHECK(shrinking.acquired == 8);

    save("model.bin", &bytes);
    struct parameters refusing = {.interfere = refuse, .interfere_at = 5};
    REFUSED(read_into("model.bin", &tiny, &refusing), STARPULLM_RUNTIME_FAILURE, "no access to the data");
    CHECK(refusing.acquired == 5);
    free(bytes.data);
}
