/* Two runs never save into one folder at a time, and a dead run blocks nobody. */
#include <signal.h>
#include <sys/wait.h>

#include "io/folder_lock.h"
#include "states.h"

enum { RUN = 0x1234, OTHER_RUN = 0x5678 };

/* A process that takes the lock, or begins a save, and then waits to be killed. */
static pid_t holder(status (*begin)(void))
{
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        byte = begin() == STARPULLM_OK;
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end_holder(pid_t child)
{
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
}

static status take(struct folder_lock **locks, const char *path, uint64_t run)
{
    const struct state_root *root;
    return folder_lock_take(locks, path, run, &root);
}

static status take_root(void)
{
    struct folder_lock *locks = NULL;
    return take(&locks, "root", RUN);
}

static status begin_save(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    struct training_state_writer *writer;
    static struct state_root root;
    root = open_root("root");
    return open_writer(&root, &meta, &writer);
}

/* Not even another process is needed: a lock belongs to what was opened. */
static void test_lock_in_one_process(void)
{
    struct folder_lock *ours = NULL, *rank = NULL, *others = NULL;
    WORKS(take(&ours, "root", RUN));
    WORKS(take(&ours, "root", RUN));
    WORKS(take(&ours, "./root", RUN)); /* the same folder under another name */
    WORKS(take(&rank, "root", RUN));
    REFUSED(take(&others, "root", OTHER_RUN), STARPULLM_FILE_ERROR,
            "root: another run is saving into this folder (process ", joined("process %ld on ", (long)getpid()));
    CHECK(others == NULL && starpullm_last_error_number() == EBUSY);
    folder_lock_release_all(&ours);
    REFUSED(take(&others, "root", OTHER_RUN), STARPULLM_FILE_ERROR, "another run is saving");
    folder_lock_release_all(&rank);
    WORKS(take(&others, "root", OTHER_RUN));
    mkdir("root/other", 0755);
    WORKS(take(&others, "root/other", OTHER_RUN));
    REFUSED(take(&ours, "missing", RUN), STARPULLM_FILE_ERROR, "missing: open the folder: No such file");
    folder_lock_release_all(&others);
}

static void test_killed_holders(void)
{
    struct folder_lock *locks = NULL;
    const pid_t first = holder(take_root);
    const pid_t second = holder(take_root); /* another rank of the same run */
    for (int holders = 2; holders > 0; holders--) {
        REFUSED(take(&locks, "root", OTHER_RUN), STARPULLM_FILE_ERROR,
                joined("root: another run is saving into this folder (process %ld on ", (long)first));
        end_holder(holders == 2 ? first : second);
    }
    WORKS(take(&locks, "root", OTHER_RUN));
    folder_lock_release_all(&locks);
}

/* What counts is the folder, not its name: one that was removed and made again has to be locked again, and so has one
 * whose .lock was removed. */
static void test_removed_folders(void)
{
    struct folder_lock *locks = NULL;
    const struct state_root *first, *again, *same;
    WORKS(folder_lock_take(&locks, "root", RUN, &first));
    for (int only_file = 0; only_file < 2; only_file++) {
        unlink("root/.lock");
        if (!only_file)
            CHECK(rename("root", "old") == 0 && mkdir("root", 0755) == 0);
        WORKS(folder_lock_take(&locks, "root", RUN, &again));
        CHECK(again != first);
        const pid_t child = fork();
        if (child == 0) {
            struct folder_lock *others = NULL;
            _exit(take(&others, "root", OTHER_RUN) == STARPULLM_OK);
        }
        int ended;
        CHECK(waitpid(child, &ended, 0) == child && ended == 0);
        WORKS(folder_lock_take(&locks, "root", RUN, &same));
        CHECK(same == again);
        first = again;
    }
    folder_lock_release_all(&locks);
    rmdir("old");
}

/* A forked child has the same open files, but it isn't the run. */
static void test_forked_child(void)
{
    struct folder_lock *locks = NULL;
    WORKS(take(&locks, "root", RUN));
    const pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    folder_lock_release_all(&locks);
    WORKS(take(&locks, "root", OTHER_RUN));
    folder_lock_release_all(&locks);
    end_holder(child);
}

/* Whatever the file has in it, nothing but a process holds the lock. */
static void test_damaged_lock_files(void)
{
    const char *const texts[] = {"", "run", "run zzz\nprocess 1\n", "run 0000000000001234\nprocess 1 on x\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct folder_lock *locks = NULL;
        struct bytes text = {(unsigned char *)texts[i], strlen(texts[i]), 0};
        save("root/.lock", &text);
        WORKS(take(&locks, "root", OTHER_RUN));
        folder_lock_release_all(&locks);
        const pid_t child = holder(take_root);
        CHECK(truncate("root/.lock", 0) == 0);
        REFUSED(take(&locks, "root", OTHER_RUN), STARPULLM_FILE_ERROR, "root: another run is saving into this folder");
        CHECK(locks == NULL);
        end_holder(child);
    }
}

void test_folder_lock(void)
{
    WORKS(training_state_make_folder("root"));
    test_lock_in_one_process();
    test_killed_holders();
    test_removed_folders();
    test_forked_child();
    test_damaged_lock_files();
    remove_all("root");

    /* The next save of a step replaces what a killed process left of it. */
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    WORKS(write_file("root", &meta, false));
    end_holder(holder(begin_save));
    CHECK(entries(FOLDER) == 2 && read_state("root") == 7);
    WORKS(write_file("root", &meta, false));
    CHECK(entries(FOLDER) == 1 && read_state("root") == 7);
    remove_all("root");
}
