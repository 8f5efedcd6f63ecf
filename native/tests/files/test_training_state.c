/* Tests of io/training_state*.c and io/folder_lock.c: runs all parts. ctest passes the folder to work under, and
 * how often a run is killed. */
#include "states.h"

static int kills = 50;

static void run(void)
{
    test_format();
    test_direct();
    test_tensor_of_two_ranks();
    test_damage();
    test_reading_fails();
    test_failing_calls();
    test_folder_lock();
    test_other_runs();
    test_prune();
    test_prune_at_once();
    killed(1, kills);
    killed(3, kills);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        kills = atoi(argv[2]);
    return run_tests(argc, argv, "test_training_state", run);
}
