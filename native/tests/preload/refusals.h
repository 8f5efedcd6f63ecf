/* StarPU refuses one of libstarpullm's calls, which it never does by itself with correct arguments.
 * libstarpullm_refusals.so has to be preloaded (LD_PRELOAD): it stands between libstarpullm and StarPU. It is a library
 * of its own, so that libstarpullm carries nothing of it. */
#pragma once

/* Refuses the `number`-th of the next tasks, messages, reads of a saved state and starts of transfers that libstarpullm
 * asks for, from 1; 0: none. Returns how many more of them would have led to the one that was chosen before. */
long starpullm_refusals_call(long number);
/* The same, but only messages are counted. */
long starpullm_refusals_message(long number);
