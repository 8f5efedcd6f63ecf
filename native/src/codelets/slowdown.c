/* The slowdown that STARPULLM_SLOW names, made by waiting busily. In builds with STARPULLM_DEFECTS only; task.c calls
 * it. */
#include "codelets/slowdown.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "defects.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *slow_operation; /* NULL: none */
static double slow_fraction;
static int is_wrong;

static void read_environment(void)
{
    const char *text = DEFECT(slow_matmul) ? "matmul_forward:0.2" : getenv("STARPULLM_SLOW");
    if (!text)
        return;
    const char *colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : 0;
    char *end = NULL;
    slow_fraction = colon ? strtod(colon + 1, &end) : -1;
    is_wrong = !colon || end == colon + 1 || *end || !(slow_fraction >= 0 && slow_fraction <= 100);
    for (int i = 0; !is_wrong && !slow_operation && operation_name(i); i++)
        if (strlen(operation_name(i)) == length && strncmp(text, operation_name(i), length) == 0)
            slow_operation = operation_name(i);
    is_wrong = is_wrong || !slow_operation;
}

int64_t slowdown_begin(void)
{
    pthread_once(&once, read_environment);
    return slow_operation ? recorder_now() : 0;
}

void slowdown_end(const struct task *task, int64_t begin_ns)
{
    if (is_wrong)
        failure_set(task->submission->failure, STARPULLM_INVALID_ARGUMENT,
                    "STARPULLM_SLOW: found %s, expected an operation's name, a colon and a fraction from 0 to 100",
                    getenv("STARPULLM_SLOW"));
    if (!slow_operation || strcmp(task->operation->codelet.name, slow_operation) != 0)
        return;
    const int64_t now = recorder_now();
    const int64_t end = now + (int64_t)(slow_fraction * (double)(now - begin_ns));
    while (recorder_now() < end)
        ;
}
