/* Calls kernels as standard input says, and writes what they leave in their arguments, for test_cross.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { GUARD = 64, MOST_ARGUMENTS = 16 };

struct call {
    char level[16];
    int64_t l2;
    int32_t kernel, arguments;
    int32_t thread, threads;
};

static void receive(void *data, size_t size)
{
    if (fread(data, size, 1, stdin) != 1)
        exit(2);
}

static void check_guard(const char *guard)
{
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0x5a) {
            fprintf(stderr, "a kernel writes out of bounds\n");
            exit(1);
        }
}

static void call_kernel(const struct call *call, void *const *argument)
{
    const struct kernels *kernels = kernels_of_level(call->level);
    const struct team team = {call->thread, call->threads, NULL};
    switch (call->kernel) {
#include "calls.def" /* of each kernel */
    default:
        exit(2);
    }
}

int main(void)
{
    for (struct call call; fread(&call, sizeof call, 1, stdin) == 1;) {
        void *argument[MOST_ARGUMENTS] = {NULL};
        int64_t size[MOST_ARGUMENTS];
        for (int i = 0; i < call.arguments; i++) {
            receive(&size[i], sizeof size[i]);
            if (size[i] < 0)
                continue;
            char *memory = malloc((size_t)size[i] + 2 * GUARD);
            memset(memory, 0x5a, (size_t)size[i] + 2 * GUARD);
            argument[i] = memory + GUARD;
            receive(argument[i], (size_t)size[i]);
        }
        kernels_fit_caches(&(struct caches){.l2 = (size_t)call.l2});
        call_kernel(&call, argument);
        for (int i = 0; i < call.arguments; i++) {
            if (size[i] < 0)
                continue;
            char *memory = (char *)argument[i] - GUARD;
            check_guard(memory);
            check_guard(memory + GUARD + size[i]);
            fwrite(argument[i], (size_t)size[i], 1, stdout);
            free(memory);
        }
        fflush(stdout);
    }
    return 0;
}
