/* What is written is read again, in whatever way it was written. tests/native/readers compare the format's bytes. */

#include "states.h"

void test_format(void)
{
    /* 100 ranks: most of them own nothing. */
    const int32_t ranks[] = {1, 2, 3, 100};
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        write_state("root", &tiny, 7, ranks[r]);
        CHECK(read_state("root") == 7);
        CHECK(read_state(FOLDER) == 7);
        CHECK(read_state("./root//step-000000000007//") == 7);
        CHECK(entries(FOLDER) == ranks[r]);
        remove_all("root");
    }
    for (int unaligned = 0; unaligned < 2; unaligned++) {
        const model_config *configs[] = {&tiny, &larger};
        for (int c = 0; c < 2; c++) {
            struct training_state_meta meta = meta_of(configs[c], 7, 0, 1);
            no_faults();
            WORKS(write_file("root", &meta, unaligned));
            CHECK(written_from_looked_for);
            CHECK(read_state("root") == 7);
            remove_all("root");
        }
    }
    struct training_state *state;
    struct training_state_meta meta = meta_of(&tiny, INT64_MAX, 0, 1);
    WORKS(write_file("root", &meta, false));
    WORKS(training_state_open("root", &state));
    CHECK(strcmp(state->path, "root/step-9223372036854775807") == 0);
    CHECK(state->passed_over == NULL);
    training_state_close(state);
    remove_all("root");
}

/* Past the page cache where the file system lets us, through it where it doesn't. */
void test_direct(void)
{
    struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    int probe = open("probe", O_RDWR | O_CREAT, 0644);
    const bool possible = probe >= 0 && fcntl(probe, F_SETFL, O_DIRECT) == 0;
    close(probe);
    unlink("probe");
    no_faults();
    WORKS(write_file("root", &meta, false));
    CHECK(direct_writes == (possible ? faults[CALL_WRITE].calls : 0));
    no_faults();
    refuse_direct = true;
    WORKS(write_file("root", &meta, false));
    CHECK(direct_writes == possible && read_state("root") == 7);
    no_faults();
    refuse_direct = true;
    most = 1000; /* not a multiple of anything that a disk likes */
    interrupt_every = 3;
    WORKS(write_file("root", &meta, true));
    CHECK(read_state("root") == 7);
    no_faults();
    most = STATE_BLOCK;
    interrupt_every = 2;
    WORKS(write_file("root", &meta, false));
    CHECK(read_state("root") == 7);
    fail_call(CALL_RESERVE, -1, EOPNOTSUPP);
    WORKS(write_file("root", &meta, false));
    CHECK(read_state("root") == 7);
    fail_call(CALL_RESERVE, 1, EINTR);
    WORKS(write_file("root", &meta, false));
    no_faults();
    remove_all("root");
}
