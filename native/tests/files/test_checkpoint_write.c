/* Tests of writing checkpoints: whatever fails, the old file stays. Impossible paths and limits of files are in
 * tests/native/limits. */
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#include "files.h"

static mode_t mode_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_mode & 07777 : (mode_t)-1;
}

void test_checkpoint_write(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    mode_t mask = umask(027);
    unlink("new.bin");
    WORKS(write_checkpoint("new.bin", &tiny));
    CHECK(has_bytes("new.bin", &bytes) && mode_of("new.bin") == 0640);
    struct parameters parameters = {0};
    WORKS(read_into("new.bin", &tiny, &parameters));
    CHECK(!parameters.wrong);

    chmod("new.bin", 0604);
    WORKS(write_checkpoint("new.bin", &tiny));
    CHECK(has_bytes("new.bin", &bytes) && mode_of("new.bin") == 0604);
    umask(mask);

    /* A link stays a link; the file that it names is replaced, in its own folder. */
    CHECK(mkdir("folder", 0755) == 0);
    save_part("folder/target.bin", &bytes, 9);
    CHECK(symlink("folder/target.bin", "link.bin") == 0);
    WORKS(write_checkpoint("link.bin", &tiny));
    struct stat info;
    CHECK(lstat("link.bin", &info) == 0 && S_ISLNK(info.st_mode));
    CHECK(has_bytes("folder/target.bin", &bytes) && entries("folder") == 1);
    unlink("folder/target.bin");
    unlink("link.bin");

    char absolute[2048], *here = must(realpath(".", NULL));
    snprintf(absolute, sizeof absolute, "%s/folder/new.bin", here);
    free(here);
    WORKS(write_checkpoint(absolute, &tiny));
    CHECK(has_bytes("folder/new.bin", &bytes) && entries("folder") == 1);
    unlink("folder/new.bin");

    char longest[256]; /* the longest name leaves no room for a suffix */
    memset(longest, 'n', 255);
    longest[255] = '\0';
    WORKS(write_checkpoint(longest, &tiny));
    CHECK(has_bytes(longest, &bytes));
    unlink(longest);

    for (size_t most = 1; most < 8; most++) {
        limit_transfers(most, 3);
        WORKS(write_checkpoint("new.bin", &tiny));
        no_faults();
        CHECK(has_bytes("new.bin", &bytes));
    }

    /* An odd model in several layers. */
    model_config odd = {13, 97, 2, 5, 160, 101};
    struct bytes larger = make_checkpoint(&odd);
    WORKS(write_checkpoint("new.bin", &odd));
    CHECK(has_bytes("new.bin", &larger));
    free(larger.data);
    free(bytes.data);
}

static status replace_by_folder(void)
{
    return unlink("w/model.bin") == 0 && mkdir("w/model.bin", 0755) == 0 ? STARPULLM_OK : STARPULLM_FILE_ERROR;
}

static status remove_folder(void)
{
    remove_all("w");
    return rmdir("w") == 0 ? STARPULLM_OK : STARPULLM_FILE_ERROR;
}

/* That the write was refused, the old file is whole and nothing else is in its folder. */
static void old_file_survives(int line, const struct bytes *old)
{
    check_at(__FILE__, line, has_bytes("w/model.bin", old), "the old file is whole");
    check_at(__FILE__, line, entries("w") == 1, "no temporary file is left");
}

static status end_by_signal(void)
{
    raise(SIGKILL);
    return STARPULLM_OK;
}

/* Wherever the file system has files without a name, a killed process leaves none with one. */
static void test_killed_write(const struct bytes *old)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct parameters killing = {.interfere = end_by_signal, .interfere_at = 9};
        (void)write_from("w/model.bin", &tiny, &killing);
        _exit(0);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && WIFSIGNALED(ended));
    const int unnamed = open("w", O_TMPFILE | O_WRONLY, 0600);
    if (unnamed < 0) {
        printf("test_files: no files without a name here: what a killed save leaves was not tested\n");
        remove_all("w");
        save("w/model.bin", old);
    }
    close(unnamed);
    old_file_survives(__LINE__, old);
}

void test_checkpoint_writing_fails(void)
{
    struct bytes old = {0};
    put_header(&old, &(int32_t){77}, 1);
    mkdir("w", 0755);
    save("w/model.bin", &old);

    no_faults();
    for (int call = 1; call <= 29; call++) { /* the header and 28 parameters */
        fail_call(CALL_WRITE, call, ENOSPC);
        status result = write_checkpoint("w/model.bin", &tiny);
        no_faults();
        REFUSED(result, STARPULLM_FILE_ERROR, "w/model.bin: byte ", "write", "No space left on device");
        CHECK(starpullm_last_error_number() == ENOSPC);
        old_file_survives(__LINE__, &old);
    }
    fail_call(CALL_WRITE, 2, 0);
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "byte 1024: write", "Input/output error");
    no_faults();
    old_file_survives(__LINE__, &old);

    fail_call(CALL_SYNC, 1, EIO);
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "w/model.bin: fsync of temporary file",
            "Input/output error");
    no_faults();
    old_file_survives(__LINE__, &old);

    struct parameters refusing = {.interfere = refuse, .interfere_at = 9};
    REFUSED(write_from("w/model.bin", &tiny, &refusing), STARPULLM_RUNTIME_FAILURE, "no access to the data");
    old_file_survives(__LINE__, &old);

    test_killed_write(&old);

    /* The folder's fsync comes too late to keep the old file, and the sentence says so. */
    fail_call(CALL_SYNC, 2, EIO);
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "w/model.bin: the new file is in place",
            "Input/output error");
    no_faults();
    struct bytes bytes = make_checkpoint(&tiny);
    old_file_survives(__LINE__, &bytes);
    fail_call(CALL_SYNC, 2, EINVAL); /* a file system that doesn't know it */
    WORKS(write_checkpoint("w/model.bin", &tiny));
    fail_call(CALL_SYNC, 1, EINTR);
    WORKS(write_checkpoint("w/model.bin", &tiny));
    no_faults();

    struct parameters changing = {.interfere = replace_by_folder, .interfere_at = 3};
    REFUSED(write_from("w/model.bin", &tiny, &changing), STARPULLM_FILE_ERROR, "w/model.bin: rename temporary file",
            "Is a directory");
    CHECK(entries("w") == 1);
    struct parameters vanishing = {.interfere = remove_folder, .interfere_at = 3};
    rmdir("w/model.bin");
    REFUSED(write_from("w/model.bin", &tiny, &vanishing), STARPULLM_FILE_ERROR, "w/model.bin: ", "name temporary file",
            "No such file or directory");
    mkdir("w", 0755);

    CHECK(entries("w") == 0);
    free(bytes.data);
    free(old.data);
}

/* As another user if this one may do everything. */
void test_permissions(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    uid_t user = geteuid();
    if (mkdir("closed", 0755) != 0)
        abort();
    save("closed/model.bin", &bytes);
    save("closed/secret.bin", &bytes);
    chmod("closed/secret.bin", 0);
    chmod("closed", 0555);
    const uid_t nobody = 65534;
    if (user == 0 && seteuid(nobody) != 0) {
        printf("test_files: permissions not tested: root can't become another user\n");
    } else {
        REFUSED(write_checkpoint("closed/new.bin", &tiny), STARPULLM_FILE_ERROR,
                "closed/new.bin: ", "Permission denied");
        CHECK(starpullm_last_error_number() == EACCES);
        REFUSED(write_checkpoint("closed/model.bin", &tiny), STARPULLM_FILE_ERROR,
                "closed/model.bin: ", "Permission denied");
        REFUSED(read_checkpoint("closed/secret.bin", &tiny), STARPULLM_FILE_ERROR, "closed/secret.bin: open",
                "Permission denied");
        if (seteuid(user) != 0)
            abort();
        chmod("closed", 0777);
        if (user == 0 && seteuid(nobody) != 0)
            abort();
        REFUSED(write_checkpoint("closed/secret.bin", &tiny), STARPULLM_FILE_ERROR, "closed/secret.bin: ",
                "Permission denied"); /* write-protected: renaming over it would have been possible */
        if (seteuid(user) != 0)
            abort();
    }
    CHECK(entries("closed") == 2 && has_bytes("closed/model.bin", &bytes));
    chmod("closed", 0755);
    free(bytes.data);
}
