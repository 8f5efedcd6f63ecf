/* Old states are removed, and a run that is killed at any moment leaves the last complete state. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "states.h"

static bool has_step(int64_t step)
{
    return there(joined("root/step-%012" PRId64, step));
}

void test_prune(void)
{
    for (int64_t step = 10; step <= 60; step += 10)
        write_state("root", &least, step, 2);
    unlink("root/step-000000000020/rank-00001-of-00002.state");
    unlink("root/step-000000000050/rank-00000-of-00002.state");
    mkdir("root/step-000000000045", 0755);
    mkdir("root/other", 0755);
    close(creat("root/step-000000000010/notes.txt", 0644));
    close(creat("root/step-000000000030/.rank-00001-of-00002.tmp", 0644));
    WORKS(prune("root", 60, 3)); /* 60, 40, 30 */
    CHECK(has_step(60) && !has_step(50) && !has_step(45) && has_step(40) && has_step(30) && !has_step(20));
    CHECK(entries("root/step-000000000010") == 1 && there("root/other")); /* not ours */
    CHECK(read_state("root") == 60);

    /* The step that was saved isn't complete yet, because other ranks are still at it: the last of them prunes. */
    struct bytes other = load("root/step-000000000060/rank-00001-of-00002.state");
    unlink("root/step-000000000060/rank-00001-of-00002.state");
    WORKS(prune("root", 60, 1));
    CHECK(has_step(60) && has_step(40) && has_step(30) && read_state("root") == 40);
    save("root/step-000000000060/rank-00001-of-00002.state", &other);
    free(other.data);
    WORKS(prune("root", 60, 1));
    CHECK(has_step(60) && !has_step(40) && !has_step(30) && read_state("root") == 60);

    /* Later steps are another run's. */
    for (int64_t step = 11; step <= 13; step++)
        write_state("root", &least, step, 1);
    WORKS(prune("root", 13, 2));
    CHECK(has_step(60) && has_step(13) && has_step(12) && !has_step(11));
    WORKS(prune("root", 5, 1));
    CHECK(has_step(60) && has_step(13) && has_step(12));

    /* Nothing is complete: nothing goes. */
    remove_all("root");
    write_state("root", &least, 7, 2);
    unlink(FOLDER "/rank-00000-of-00002.state");
    WORKS(prune("root", INT64_MAX, 1));
    CHECK(entries(FOLDER) == 1);
    remove_all("root");

    /* Symbolic links and files aren't ours, whatever they lead to. */
    write_state("root", &least, 5, 1);
    write_state("root", &least, 4, 1);
    write_state("root", &least, 8, 1);
    mkdir("elsewhere", 0755);
    CHECK(rename("root/step-000000000005", "elsewhere/five") == 0);
    CHECK(symlink("../elsewhere/five", "root/step-000000000005") == 0);
    CHECK(symlink("step-000000000007", "root/step-000000000007") == 0);
    close(creat("root/step-000000000006", 0644));
    WORKS(prune("root", 8, 1));
    CHECK(has_step(8) && has_step(7) && has_step(6) && has_step(5) && !has_step(4));
    CHECK(read_state("root/step-000000000005") == 5 && entries("elsewhere/five") == 1);
    remove_all("root/step-000000000008");
    rmdir("root/step-000000000008");
    REFUSED(try_open("root"), STARPULLM_FILE_ERROR, FOLDER); /* what can't be looked at isn't judged */
    remove_all("root");
    remove_all("elsewhere");
    rmdir("elsewhere");
}

/* A state of this step from another run stays; what an incomplete one left doesn't matter. */
void test_other_runs(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 2);
    struct training_state_meta other = meta_of(&tiny, 7, 0, 1);
    const char *const sentence = FOLDER ": holds the state of another run (run 0x";
    other.run = 1;
    WORKS(write_file("root", &other, false));
    REFUSED(write_file("root", &meta, false), STARPULLM_INVALID_ARGUMENT, sentence, "1 of 1 ranks), expected",
            "0xfedcba9876543210 of 2 ranks)");
    other.run = meta.run;
    REFUSED(write_file("root", &other, false), STARPULLM_INVALID_ARGUMENT, sentence, "of this run (run 0xfed");
    CHECK(entries(FOLDER) == 1 && read_state("root") == 7);
    const struct state_root root = open_root("root");
    WORKS(training_state_check_newest(&root, 7));
    REFUSED(training_state_check_newest(&root, 6), STARPULLM_INVALID_ARGUMENT,
            "root: holds the state after step 7, newer than step 6 of this run, expected a folder without newer");
    CHECK(truncate(RANK_0, 5 * STATE_BLOCK) == 0); /* nobody can read it any more */
    WORKS(training_state_check_newest(&root, 6));
    close_root(&root);

    /* What is saved into a state's own folder would be found by no later run. */
    REFUSED(training_state_make_folder(FOLDER), STARPULLM_INVALID_ARGUMENT,
            FOLDER ": is a training state, expected the folder that holds states");
    CHECK(entries(FOLDER) == 1);
    close(creat(FOLDER "/.rank-00002-of-00003.tmp", 0644));
    write_state("root", &tiny, 7, 2);
    CHECK(entries(FOLDER) == 2 && read_state("root") == 7);

    /* Of as many ranks, each rank replaces its own file. */
    other = meta_of(&tiny, 7, 0, 3);
    remove_all("root");
    other.run = 1;
    WORKS(write_file("root", &other, false));
    other.rank = 1;
    WORKS(write_file("root", &other, false));
    write_state("root", &tiny, 7, 3);
    CHECK(entries(FOLDER) == 3 && read_state("root") == 7);
    remove_all("root");
}

void test_prune_at_once(void)
{
    for (int64_t step = 1; step <= 40; step++)
        write_state("root", &least, step, 1);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool good = true;
            for (int keep = 8; keep >= 1; keep--)
                good = good && prune("root", 40, keep) == STARPULLM_OK;
            if (!good)
                printf("pruning at once: %s\n", starpullm_last_error());
            fflush(stdout);
            _exit(!good);
        }
    }
    while (has_step(39)) /* a reader in between always finds a state */
        CHECK(read_state("root") == 40);
    for (int i = 0; i < 4; i++) {
        int ended;
        CHECK(waitpid(children[i], &ended, 0) == children[i] && ended == 0);
    }
    CHECK(entries("root") == 1 && read_state("root") == 40);
    remove_all("root");
}

enum { KEPT = 2 };

/* What a run does, without the training: one rank of it. Ends only if something fails. */
static void save_on_and_on(int64_t step, uint64_t run, int32_t rank, int32_t num_ranks)
{
    for (;; step++) {
        struct training_state_meta meta = meta_of(&least, step, rank, num_ranks);
        meta.run = run;
        if (write_file("root", &meta, step % 2 == 0) != STARPULLM_OK)
            break;
        if (prune("root", step, KEPT) != STARPULLM_OK)
            break;
    }
    printf("saving on and on, rank %d: %s\n", rank, starpullm_last_error());
    fflush(stdout);
    _exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Until the state of a step is complete, and then for a random part of the time that a save takes. */
static void live(int64_t step, double save)
{
    const struct timespec moment = {0, 1000000};
    const double end = now() + 20;
    int64_t newest;
    for (;;) {
        struct training_state *state;
        newest = -1;
        if (training_state_open("root", &state) == STARPULLM_OK)
            newest = state->meta.step;
        training_state_close(state);
        if (newest >= step || now() > end)
            break;
        nanosleep(&moment, NULL);
    }
    CHECK(newest >= step);
    const struct timespec rest = {0, (long)next_random((uint64_t)(1e9 * (save < 0.5 ? save : 0.5)) + 1)};
    nanosleep(&rest, NULL);
}

void killed(int32_t num_ranks, int kills)
{
    int64_t newest = 0;
    int in_the_middle = 0;
    const int failures_before = failures;
    const double begin = now();
    write_state("root", &least, 0, num_ranks);
    const double save = now() - begin;
    for (int kill_number = 0; kill_number < kills; kill_number++) {
        pid_t children[3];
        fflush(stdout);
        for (int32_t rank = 0; rank < num_ranks; rank++) {
            children[rank] = fork();
            if (children[rank] == 0)
                save_on_and_on(newest + 1, (uint64_t)kill_number + 1, rank, num_ranks);
        }
        live(newest + (int64_t)next_random(3), save);
        for (int32_t rank = 0; rank < num_ranks; rank++) {
            int ended;
            kill(children[rank], SIGKILL);
            CHECK(waitpid(children[rank], &ended, 0) == children[rank]);
            CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
        }
        const int64_t found = read_state("root");
        CHECK(found >= newest);
        newest = found;
        in_the_middle += has_step(found + 1);
        if (failures > failures_before)
            break;
    }
    CHECK(newest >= kills / 2); /* it does get on */
    CHECK(in_the_middle > 0);   /* and was killed in the middle of a save */
    printf("test_training_state: %d ranks, %d kills: %" PRId64 " states, %d killed in the middle of a save\n",
           num_ranks, kills, newest, in_the_middle);
    write_state("root", &least, newest + 100, num_ranks);
    WORKS(prune("root", newest + 100, 1));
    CHECK(entries("root") == 1 && entries(joined("root/step-%012" PRId64, newest + 100)) == num_ranks);
    remove_all("root");
}
