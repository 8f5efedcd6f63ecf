/* Accesses whose order is free (COMMUTE, REDUX) in the order of submission, so that sums have the same bits each time.
 */
#pragma once

#include <starpu.h>
#include <stdbool.h>

/* Whether the order of an access is free by its mode alone. */
bool is_sum(struct starpu_task *task, unsigned access);

/* Makes a task that is being submitted wait for the one before it with a sum in the same handle. */
void order_sums(struct starpu_task *task);
