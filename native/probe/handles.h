// What the probe keeps in the field that StarPU has in each handle for schedulers, and calls when handles come and go.
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

// A handle's number in the log, from its first use by a task. It has none before, also at the address of another handle
// that was unregistered.
bool handle_has_number(starpu_data_handle_t handle);
uint32_t handle_number(starpu_data_handle_t handle);
void handle_set_number(starpu_data_handle_t handle, uint32_t number);

// The stack of its registration, by number; 0: not known.
uint32_t handle_stack(starpu_data_handle_t handle);
void handle_set_stack(starpu_data_handle_t handle, uint32_t stack);

// Whether this is the first call for a handle with a number.
bool handle_is_fresh(starpu_data_handle_t handle);

typedef void handle_hook(starpu_data_handle_t handle);

// From now on calls a function when a handle of StarPU's own interfaces is registered, and one when a handle of these
// or of a watched interface is unregistered. An interface of the program's own can be watched when a handle is known.
void handles_start(handle_hook *registered, handle_hook *unregistered);
void handles_watch(struct starpu_data_interface_ops *interface);
