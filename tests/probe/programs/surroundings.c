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

static const char *const names[] = {
    "plain",     "reads",     "sets_scheduler", "sets_library",    "asks_for_one_worker",
    "takes_two", "continues", "ends_with_file", "starts_with_file"};

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

int main(int argc, char **argv)
{
    struct program programs[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        programs[i] = (struct program){names[i], smooths};
    const struct program *program = find_program(argc, argv, programs, sizeof names / sizeof *names);
    const char *name = program == NULL ? "" : program->name;
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
    } else if (strcmp(name, "asks_for_one_worker") == 0) {
        setenv("STARPU_NCPU", "1", 1);
    } else if (strcmp(name, "takes_two") == 0) {
        conf.precedence_over_environment_variables = 1;
        conf.ncpus = 2;
    } else if (strcmp(name, "continues") == 0) {
        continue_from("state");
    } else if (strcmp(name, "starts_with_file") == 0 && make("out")) {
        return 1;
    }
    const int status = run_program(program, &conf);
    return strcmp(name, "ends_with_file") == 0 ? make("out") : status;
}
