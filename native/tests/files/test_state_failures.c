/* Saves that fail: failing system calls leave what was there. Full disks are in tests/native/test_saving.py, limits of
 * files in tests/native/limits. */

#include "states.h"

/* Whatever fails, what was there stays and nothing is added. */
static void failed_save(int line, const struct training_state_meta *meta, int error, const char *part)
{
    const int before = entries("root"), descriptors = open_descriptors();
    refused_at(__FILE__, line, write_file("root", meta, false), STARPULLM_FILE_ERROR, "root/step-000000000008", part,
               (const char *)NULL);
    check_at(__FILE__, line, starpullm_last_error_number() == error, "the errno value is the call's");
    no_faults();
    check_at(__FILE__, line, entries("root") == before && open_descriptors() == descriptors, "nothing is left behind");
    check_at(__FILE__, line, read_state("root") == 7, "the state before it is there, whole");
}

void test_failing_calls(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 8, 0, 1);
    write_state("root", &tiny, 7, 1);
    no_faults();
    WORKS(write_file("root", &meta, false));
    const int writes = faults[CALL_WRITE].calls, syncs = faults[CALL_SYNC].calls;
    WORKS(prune("root", 8, 1));
    CHECK(entries("root") == 1 && read_state("root") == 8);
    remove_all("root");
    write_state("root", &tiny, 7, 1);
    int expected = 2; /* header and end; of a tensor the whole blocks, and the rest of the last one */
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++) {
        const int64_t bytes = 4 * elements_of(&tiny, p);
        expected += GROUPS * parameter_instances(&tiny, p) * ((bytes >= STATE_BLOCK) + (bytes % STATE_BLOCK != 0));
    }
    CHECK(writes == expected && syncs == 3); /* root, file, folder */
    for (int at = 1; at <= writes; at += at < writes - 2 ? 7 : 1) {
        fail_call(CALL_WRITE, at, ENOSPC);
        failed_save(__LINE__, &meta, ENOSPC, "write to temporary file .rank-00000-of-00001.tmp: No space left");
        fail_call(CALL_WRITE, at, 0);
        failed_save(__LINE__, &meta, EIO, "write to temporary file");
    }
    fail_call(CALL_RESERVE, 1, ENOSPC);
    failed_save(__LINE__, &meta, ENOSPC, "reserve 364544 bytes for temporary file .rank-00000-of-00001.tmp: No space");
    fail_call(CALL_SYNC, 1, EIO);
    failed_save(__LINE__, &meta, EIO, ": fsync of the folder that it is in");
    fail_call(CALL_SYNC, 2, EIO);
    failed_save(__LINE__, &meta, EIO, "fsync of temporary file");
    fail_call(CALL_RENAME, 1, EACCES);
    failed_save(__LINE__, &meta, EACCES, "rename temporary file");
    fail_call(CALL_SYNC, 3, EIO);
    REFUSED(write_file("root", &meta, false), STARPULLM_FILE_ERROR, "the new file is in place, but a power failure");
    no_faults();
    CHECK(read_state("root") == 8);
    remove_all("root");
    rmdir("root");
    fail_call(CALL_SYNC, 1, EIO);
    REFUSED(write_file("root", &meta, false), STARPULLM_FILE_ERROR, "root: fsync of the folder that it is in");
    for (int at = 1; at <= 4; at++) { /* what doesn't know fsync of a folder, and interruptions */
        rmdir("root");
        fail_call(CALL_SYNC, at, at == 3 ? EINTR : EINVAL);
        WORKS(write_file("root", &meta, false));
        CHECK(read_state("root") == 8);
        remove_all("root");
    }
    no_faults();

    /* A tensor that couldn't be written may be tried again. */
    struct training_state_writer *writer;
    struct training_state_tensor tensors[MOST_TENSORS];
    tensors_of(&tiny, 0, 1, tensors);
    const struct state_root root = open_root("root");
    WORKS(open_writer(&root, &meta, &writer));
    fail_call(CALL_WRITE, 1, ENOSPC);
    REFUSED(write_tensor(writer, &meta, 0, tensors[0], 0, false), STARPULLM_FILE_ERROR, "byte 4096: write to");
    no_faults();
    WORKS(write_all(writer, &meta, false));
    WORKS(training_state_commit(writer));
    close_root(&root);
    CHECK(read_state("root") == 8);
    remove_all("root");
}
