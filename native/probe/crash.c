/* A signal's handler may only call what is safe there. */
#include "crash.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

enum { FRAMES = 32 };
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { NUM_SIGNALS = sizeof signals / sizeof *signals };

static struct sigaction before[NUM_SIGNALS];
static struct probe_header *volatile watched;
static int stack_file;
static _Thread_local uint64_t current_task = UINT64_MAX;
static _Thread_local sigjmp_buf *volatile escape; /* where abort leads; NULL: to the end */

void crash_task(uint64_t number)
{
    current_task = number;
}

static void handle(int number)
{
    struct probe_header *header = watched;
    void *frames[FRAMES];
    if (number == SIGABRT && escape)
        siglongjmp(*escape, 1);
    for (int i = 0; i < NUM_SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    if (header) {
        watched = NULL;
        header->ended = 2;
        header->signal = number;
        header->signal_task = (uint32_t)(current_task + 1);
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), stack_file);
    }
    /* A signal of an instruction comes again when the handler returns; one that was sent doesn't. */
    raise(number);
}

bool crash_survive(bool (*function)(void *), void *state)
{
    sigjmp_buf here;
    bool result = false;
    if (sigsetjmp(here, 1) == 0) {
        escape = &here;
        result = function(state);
    }
    escape = NULL;
    return result;
}

void crash_watch(struct probe_header *header, int file)
{
    void *frame;
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    stack_file = file;
    watched = header;
    backtrace(&frame, 1); /* loads what it needs, which isn't safe in the handler */
    for (int i = 0; i < NUM_SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

void crash_unwatch(void)
{
    watched = NULL;
}
