/* States that aren't whole, are mixed or damaged are refused, each with its sentence. */
#include <sys/stat.h>

#include "states.h"

void test_incomplete(void)
{
    remove_all("root");
    REFUSED(try_open("missing"), STARPULLM_FILE_ERROR, "missing: open the folder: No such file or directory");
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: has no training state", "expected a folder named like");
    mkdir("root/step-7", 0755); /* not one of our names */
    mkdir("root/step-0000000000007", 0755);
    mkdir("root/step-00000000000x", 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: has no training state");
    mkdir(FOLDER, 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state in it is complete (the newest: " FOLDER,
            "incomplete: no file named like");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, FOLDER ": incomplete: no file named like");
    remove_all("root");

    write_state("root", &tiny, 5, 2);
    write_state("root", &tiny, 7, 3);
    CHECK(read_state("root") == 7);
    unlink(FOLDER "/rank-00001-of-00003.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE,
            FOLDER ": incomplete: rank-00001-of-00003.state is missing (2 of 3 files are there)");
    struct training_state *state;
    WORKS(training_state_open("root", &state));
    CHECK(state->meta.step == 5);
    CHECK(strstr(state->passed_over, FOLDER ": incomplete: rank-00001-of-00003.state") != NULL);
    training_state_close(state);
    unlink("root/step-000000000005/rank-00001-of-00002.state");
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state in it is complete",
            "(the newest: " FOLDER, "rank-00001-of-00003.state");

    /* What another number of ranks left doesn't matter, unless it is as complete. */
    write_state("other", &tiny, 7, 1);
    CHECK(rename("other/step-000000000007/rank-00000-of-00001.state", RANK_0) == 0 && read_state("root") == 7);
    remove_all("other");
    write_state("other", &tiny, 7, 3);
    CHECK(rename("other/step-000000000007/rank-00001-of-00003.state", FOLDER "/rank-00001-of-00003.state") == 0);
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, FOLDER ": the files of 1 ranks are there and those of 3");
    remove_all("other");
    remove_all("root");

    /* Files of two runs, of two steps, of two ranks, under each other's names. */
    struct training_state_meta meta = meta_of(&tiny, 7, 1, 2);
    write_state("root", &tiny, 7, 2);
    meta.run = 1;
    unlink(FOLDER "/rank-00001-of-00002.state");
    WORKS(write_file("root", &meta, false));
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "rank-00001-of-00002.state: byte 56: run is 0x1, expected 0xfed",
            "as in rank 0's file");
    meta.run = meta_of(&tiny, 7, 1, 2).run;
    meta.beta2 = 0.5f;
    WORKS(write_file("root", &meta, false));
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 112: beta2 is 0.5, expected 0.999");
    write_state("root", &tiny, 7, 2);
    CHECK(read_state("root") == 7);
    write_state("root", &tiny, 9, 2);
    rename("root/step-000000000009/rank-00001-of-00002.state", FOLDER "/rank-00001-of-00002.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, "byte 48: step is 9, expected 7 (as in rank 0's file)");
    rename("root/step-000000000009/rank-00000-of-00002.state", FOLDER "/rank-00000-of-00002.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, "byte 48: step is 9, expected 7 (by its name)");
    remove_all("root");
    write_state("root", &tiny, 7, 2);
    rename(FOLDER "/rank-00001-of-00002.state", FOLDER "/rank-00000-of-00002.state");
    struct bytes bytes = load(FOLDER "/rank-00000-of-00002.state");
    save(FOLDER "/rank-00001-of-00002.state", &bytes);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 32: rank is 1, expected 0 (by its name)");
    free(bytes.data);
    unlink(FOLDER "/rank-00001-of-00002.state");
    rename(FOLDER "/rank-00000-of-00002.state", RANK_0);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 36: number of ranks is 2, expected 1 (by its name)");

    /* Each tensor once. */
    remove_all("root");
    struct training_state_writer *writer;
    struct training_state_tensor tensors[MOST_TENSORS];
    _Alignas(BLOCK) static float zeros[90 * 16];
    for (int fault = 0; fault < 2; fault++) {
        for (int32_t rank = 0; rank < 2; rank++) {
            meta = meta_of(&tiny, 7, rank, 2);
            int count = tensors_of(&tiny, rank, 2, tensors);
            if (rank == 1 && fault == 0)
                count--;
            if (rank == 1 && fault == 1)
                tensors[0] = (struct training_state_tensor){PARAM_WTE, 0};
            meta.num_tensors = count;
            const struct state_root root = open_root("root");
            WORKS(training_state_writer_open(&root, &meta, tensors, &writer));
            for (int i = 0; i < count; i++)
                for (int group = 0; group < GROUPS; group++)
                    WORKS(training_state_write(writer, i, group, zeros));
            WORKS(training_state_commit(writer));
            close_root(&root);
        }
        if (fault == 0)
            REFUSED(try_open("root"), STARPULLM_INVALID_FILE,
                    FOLDER ": its files have 27 tensors, expected the model's 28");
        else
            REFUSED(try_open("root"), STARPULLM_INVALID_FILE,
                    FOLDER ": wte[0] is in the files of rank 0 and of rank 1");
    }

    /* A folder that may have any name, as copied elsewhere. */
    remove_all("root");
    write_state("root", &tiny, 7, 2);
    CHECK(rename(FOLDER, "root/best") == 0);
    CHECK(read_state("root/best") == 7);
    remove_all("root");
}

void test_damage(void)
{
    struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    write_state("root", &tiny, 7, 1);
    struct bytes good = load(RANK_0);
    const size_t end = good.size - BLOCK;
    const struct {
        size_t position;
        uint64_t value;
        const char *parts[2];
    } damages[] = {
        {0, 0, {"byte 0: magic number is 0", "expected 20261121 (a training state)"}},
        {0, 20240326, {"byte 0: magic number is 20240326 (a model checkpoint)", "20261121"}},
        {4, 0, {"byte 4: version is 0", "expected 2"}},
        {4, 1, {"byte 4: version is 1", "expected 2"}},
        {4, 3, {"byte 4: version is 3", "expected 2"}},
        {8, 0, {"max_seq_len is 0", "expected at least 1"}},
        {8, 5, {"byte 1072: the header or table has 0x00000040", "expected 0x00000050"}},
        {16, 3, {"the end has", "one of the two is damaged"}},
        {16, 1, {"layer of ln1w is 1", "expected 0 to 0"}},
        {20, 3, {"channels is 16", "multiple of num_heads (3)"}},
        {32, 1, {"rank is 1", "less than the number of ranks (1)"}},
        {36, 2, {"byte 36: number of ranks is 2", "expected 1 (by its name)"}},
        {40, 0, {"too long", "params, m and v of 0 tensors"}},
        {40, (uint32_t)-1, {"number of tensors is -1", "expected at least 0"}},
        {40, INT32_MAX, {"truncated", "2147483647 tensors"}},
        {40, 27, {"too long by 12288", "params, m and v of 27 tensors"}},
        {44, 1, {"byte 44: the header or table has 0x00000001", "one of the two is damaged"}},
        {48, 8, {"byte 48: step is 8", "expected 7 (by its name)"}},
        {52, UINT32_MAX, {"step is -4294967289", "expected at least 0"}},
        {56, 1, {"the end has", "one of the two is damaged"}},
        {64, 9, {"the end has", "one of the two is damaged"}},
        {104, 0, {"the end has", "one of the two is damaged"}},
        {1020, 1, {"byte 1020: the header or table has 0x00000001", "one of the two is damaged"}},
        {1024, 16, {"byte 1024: parameter is number 16", "expected 0 to 15"}},
        {1024, UINT32_MAX, {"byte 1024: parameter is number -1", "expected 0 to 15"}},
        {1028, 1, {"byte 1028: layer of wte is 1", "expected 0 to 0"}},
        {1032, 5, {"byte 1032: the header or table has 0x00000005", "expected 0x000005a0"}},
        {1048, 0, {"byte 1048: the header or table has 0x00000000", "expected 0x00003000"}},
        {end, 0, {"the end has 0x00000000", "expected 0x01352901"}},
        {end + 8, 0, {"the end has", "expected 0x00000007"}},
        {end + 4092, 1, {"the end has 0x00000001", "expected 0x00000000"}},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        struct bytes bytes = load(RANK_0);
        memcpy(bytes.data, good.data, good.size);
        put(&bytes, damages[i].position, damages[i].value, 4);
        save(RANK_0, &bytes);
        REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, RANK_0 ": ", damages[i].parts[0], damages[i].parts[1]);
        REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state", damages[i].parts[0]);
        free(bytes.data);
    }
    const size_t sizes[] = {0,     1,   1023,    1024,          1025,          BLOCK - 1,
                            BLOCK, end, end - 1, good.size - 1, good.size + 1, good.size + 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        save_part(RANK_0, &good, sizes[i]);
        REFUSED(try_open("root"), STARPULLM_INVALID_FILE, RANK_0 ": the file is ",
                sizes[i] < good.size ? "truncated" : "too long by");
    }
    unlink(RANK_0);
    mkdir(RANK_0, 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, RANK_0 ": is a directory");
    rmdir(RANK_0);

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
        const bool same =
            memcmp(bytes.data, good.data, BLOCK) == 0 && memcmp(bytes.data + end, good.data + end, BLOCK) == 0;
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

/* One bit of a tensor's values, the last one of wte's m, or of a checksum. */
void test_damaged_values(void)
{
    enum { WTE_BYTES = 4 * 90 * 16, M_OF_WTE = BLOCK + 2 * BLOCK, CHECKSUM_OF_M = 1024 + 40 * 28 + 4 };
    struct training_state *state;
    struct reading reading = {0};
    write_state("root", &tiny, 6, 1);
    write_state("root", &tiny, 7, 1);
    struct bytes bytes = load(RANK_0);
    bytes.data[M_OF_WTE + WTE_BYTES - 1] ^= 0x80;
    save(RANK_0, &bytes);
    WORKS(training_state_open("root", &state));
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, RANK_0 ": byte 12288: m of wte[0] have the checksum 0x",
            ", expected 0x", "damaged");
    CHECK(reading.held == 0 && state->meta.step == 7);
    reading = (struct reading){.skip = true};
    WORKS(read_all(state, &reading)); /* another rank's tensors */
    training_state_close(state);
    bytes.data[M_OF_WTE + WTE_BYTES - 1] ^= 0x80;
    bytes.data[CHECKSUM_OF_M] ^= 1;
    save(RANK_0, &bytes);
    REFUSED(try_open("root/step-000000000007"), STARPULLM_INVALID_FILE, RANK_0 ": ", "the end has");
    free(bytes.data);
    remove_all("root");
}

/* Version 1 has no checksums. */
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
    CHECK(truncate(FOLDER "/rank-00000-of-00002.state", 5 * BLOCK) == 0);
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, "rank-00000-of-00002.state: ", "when it was checked");
    CHECK(reading.held == 0);
    training_state_close(state);
    remove_all("root");
}
