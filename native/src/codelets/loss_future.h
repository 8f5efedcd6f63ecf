/* The mean loss of an iteration as a future: its caller gets it at once, the task report_loss sets the value. */
#pragma once

#include "codelets/iteration.h"
#include "kernels/team.h"

/* With one reference, the creator's; NULL if there is no memory. starpullm_loss_destroy() frees it with its last one.
 */
struct starpullm_loss *loss_future_create(void);
void loss_future_retain(struct starpullm_loss *loss);

/* The operation report_loss: makes `loss` ready, with the value or with a failure of a task if there was one so far,
 * and releases it. */
void report_loss(const float *mean, struct starpullm_loss *loss, struct failure *failure, struct team team);
