// Programs that take something from their surroundings, or change it: input, files, variables and workers of StarPU.
#include "blocks.h"

#include <fcntl.h>
#include <unistd.h>

CODELET(smooth);

static int num_tasks = 12;

static void smooths(void)
{
    for (int i = 0; i < num_tasks; i++)
        SUBMIT(&smooth_codelet, STARPU_RW, handles[i % BLOCKS], STARPU_R, handles[(i + 1) % BLOCKS]);
}

// Makes a file that must not be there.
static int make(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file < 0)
        perror(path);
    else
        close(file);
    return file < 0;
}

static void continue_from(const char *path)
{
    FILE *file = fopen(path, "a+");
    fprintf(file, "state\n");
    rewind(file);
    for (int letter; (letter = getc(file)) != EOF;)
        blocks[0][0] += letter;
    fclose(file);
}

// The name of what it does, and of a file.
int main(int argc, char **argv)
{
    const struct program program = {"", smooths};
    const char *name = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "out";
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    if (strcmp(name, "reads") == 0) {
        if (scanf("%d", &num_tasks) != 1)
            num_tasks = 1;
        printf("%d\n", num_tasks);
    } else if (strcmp(name, "sets_scheduler") == 0) {
        setenv("STARPU_SCHED", "dmda", 1);
    } else if (strcmp(name, "sets_library") == 0) {
        setenv("STARPU_SCHED_LIB", "", 1);
    } else if (strcmp(name, "wants_no_scheduler") == 0 && getenv("STARPU_SCHED") != NULL) {
        return 77;
    } else if (strcmp(name, "asks_for_one_worker") == 0) {
        setenv("STARPU_NCPU", "1", 1);
    } else if (strcmp(name, "takes_two") == 0) {
        conf.precedence_over_environment_variables = 1;
        conf.ncpus = 2;
    } else if (strcmp(name, "keeps_an_address") == 0) {
        blocks[0][0] = (double)(uintptr_t)&conf;
    } else if (strcmp(name, "continues") == 0) {
        continue_from(path);
    } else if (strcmp(name, "starts_with_file") == 0 && make(path)) {
        return 1;
    }
    const int status = run_program(&program, &conf);
    return strcmp(name, "ends_with_file") == 0 ? make(path) : status;
}
