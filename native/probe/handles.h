/* What the probe knows of a handle, in the field that StarPU has in each for schedulers, and hooks for its beginning
 * and its end. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

/* It belongs to one handle, also if that has the address of another one that was unregistered. */
struct known {
    uint32_t number;                    /* in the log, plus one; 0: no task has used the handle */
    uint32_t stack;                     /* of the registration, by number; 0: not known */
    _Atomic(struct starpu_task *) next; /* of the last sum in it: see sums.h */
    unsigned poison;                    /* variants that its last writer has got, a bit each */
    bool has_started;                   /* a task with it */
    bool commutes;                      /* its last writer, with others */
    bool was_filled;                    /* with anything else than zeros, before it got poison */
};

/* What is known of a handle; NULL: nothing yet. The second function then gives it a place. */
struct known *known_of(starpu_data_handle_t handle);
struct known *make_known(starpu_data_handle_t handle);

typedef void handle_hook(starpu_data_handle_t handle);

/* From now on calls a function when a handle of StarPU's own interfaces is registered, and one before what is known of
 * a handle of a watched interface goes. Others than StarPU's own can be watched when there is a handle of them. */
void handles_start(handle_hook *registered, handle_hook *unregistered);
void handles_watch(struct starpu_data_interface_ops *interface);
