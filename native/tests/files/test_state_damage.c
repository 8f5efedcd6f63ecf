/* A tensor of two ranks, random damage, and files that change between check and reading. What else is refused is in
 * tests/native/limits. */

#include "states.h"

void test_tensor_of_two_ranks(void)
{
    struct training_state_writer *writer;
    struct training_state_tensor tensors[MOST_TENSORS];
    _Alignas(STATE_BLOCK) static float zeros[90 * 16];
    const struct state_root root = open_root("root");
    for (int32_t rank = 0; rank < 2; rank++) {
        struct training_state_meta meta = meta_of(&tiny, 7, rank, 2);
        meta.num_tensors = tensors_of(&tiny, rank, 2, tensors);
        if (rank == 1)
            tensors[0] = (struct training_state_tensor){PARAM_WTE, 0};
        WORKS(training_state_writer_open(&root, &meta, tensors, &writer));
        for (int i = 0; i < meta.num_tensors; i++)
            for (int group = 0; group < GROUPS; group++)
                WORKS(training_state_write(writer, i, group, zeros));
        WORKS(training_state_commit(writer));
    }
    close_root(&root);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, FOLDER ": wte[0] is in the files of rank 0 and of rank 1");
    remove_all("root");
}

void test_damage(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    write_state("root", &tiny, 7, 1);
    struct bytes good = load(RANK_0);
    const size_t end = good.size - STATE_BLOCK;
    /* Anything at all: refused for its content, or read as what it was. */
    int accepted = 0;
    enum { FILES = 2000 };
    save(RANK_0, &good);
    const int file = open(RANK_0, O_WRONLY);
    for (int i = 0; i < FILES; i++) {
        struct bytes bytes = {must(malloc(good.size + 64)), good.size, 0};
        memcpy(bytes.data, good.data, good.size);
        for (uint64_t change = 0, changes = 1 + next_random(3); change < changes; change++) {
            static const uint32_t integers[] = {0, 1, 2, 3, 27, 28, 255, 65536, INT32_MAX, UINT32_MAX, 1u << 31};
            const size_t limits[] = {128, 2200, good.size};
            const size_t limit = limits[next_random(3)];
            size_t position = next_random(limit / 4) * 4;
            if (limit == good.size && next_random(2) == 0)
                position = end + next_random(16) * 4;
            put(&bytes, position,
                next_random(2) == 0 ? next_random(256) : integers[next_random(sizeof integers / sizeof integers[0])],
                4);
        }
        CHECK(pwrite(file, bytes.data, bytes.size, 0) == (ssize_t)bytes.size);
        status result = try_open(FOLDER);
        const bool same = memcmp(bytes.data, good.data, STATE_BLOCK) == 0 &&
                          memcmp(bytes.data + end, good.data + end, STATE_BLOCK) == 0;
        CHECK(result == (same ? STARPULLM_OK : STARPULLM_INVALID_FILE));
        accepted += result == STARPULLM_OK;
        free(bytes.data);
    }
    close(file);
    CHECK(accepted > FILES / 50 && accepted < FILES / 2);
    free(good.data);
    check_at(__FILE__, __LINE__, write_file("root", &meta, false) == STARPULLM_OK && read_state("root") == 7,
             "a save replaces a damaged file");
    remove_all("root");
}

void test_reading_fails(void)
{
    struct training_state *state;
    struct reading reading = {.refuse = 5};
    write_state("root", &tiny, 7, 2);
    WORKS(training_state_open("root", &state));
    REFUSED(read_all(state, &reading), STARPULLM_RUNTIME_FAILURE, "refused");
    CHECK(reading.held == 0 && reading.tensors == 4 && reading.wrong == 0);
    reading = (struct reading){.skip = true};
    WORKS(read_all(state, &reading));
    CHECK(reading.held == 0 && reading.tensors == 84);
    REFUSED(training_state_read(state, &larger, &(struct tensor_buffers){&reading, acquire, release}),
            STARPULLM_INVALID_FILE, FOLDER ": byte 12: vocab_size is 85, expected 1100 (this model's)");
    CHECK(reading.tensors == 84);

    /* Changed between the check and the reading. */
    struct training_state_meta meta = meta_of(&tiny, 7, 1, 2);
    meta.run++;
    unlink(FOLDER "/rank-00001-of-00002.state");
    WORKS(write_file("root", &meta, false));
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, "rank-00001-of-00002.state: ", "the end has");
    unlink(FOLDER "/rank-00001-of-00002.state");
    REFUSED(read_all(state, &reading), STARPULLM_FILE_ERROR, "rank-00001-of-00002.state: open: No such file");
    CHECK(truncate(FOLDER "/rank-00000-of-00002.state", 5 * STATE_BLOCK) == 0);
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, "rank-00000-of-00002.state: ", "when it was checked");
    CHECK(reading.held == 0);
    training_state_close(state);
    remove_all("root");
}
