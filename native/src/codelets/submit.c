/* submit_<operation>() of each operation of operations.def: its task, with the accesses that it declares. */
#include "codelets/task.h"

static enum starpu_data_access_mode mode_of(struct sum sum)
{
    return sum.accumulation == ACCUMULATION_STARTS      ? STARPU_W
           : sum.accumulation == ACCUMULATION_CONTINUES ? STARPU_RW
                                                        : STARPU_REDUX;
}

static void add_access(struct task *task, struct data *data, enum starpu_data_access_mode mode)
{
    task->accesses[task->num_accesses++] = (struct access){data, mode};
}

static void add_if_present(struct task *task, struct data *data, enum starpu_data_access_mode mode)
{
    if (data)
        add_access(task, data, mode);
}

#define W(x) add_access(&task, a->x, STARPU_W);
#define R(x) add_access(&task, a->x, STARPU_R);
#define RW(x) add_access(&task, a->x, STARPU_RW);
#define RW_FROM(first, x) RW(x)
#define S(x) add_access(&task, a->x.data, mode_of(a->x));
#define R_OR_NULL(x) add_if_present(&task, a->x, STARPU_R);
#define S_OR_NULL(x) add_if_present(&task, a->x.data, mode_of(a->x));
#define OPERATION(name, operands, values)                                                                \
    status submit_##name(struct task_attributes attributes, const struct name *a)                        \
    {                                                                                                    \
        struct task task = {                                                                             \
            .operation = &operations[OPERATION_##name], .attributes = attributes, .arguments.name = *a}; \
        operands return insert_task(&task);                                                              \
    }
#include "codelets/operations.def"

#define W(x) +1
#define R(x) +1
#define RW(x) +1
#define RW_FROM(first, x) +1
#define S(x) +1
#define R_OR_NULL(x) +1
#define S_OR_NULL(x) +1
#define OPERATION(name, operands, values) \
    _Static_assert((operands) <= TASK_MAX_ACCESSES, #name " has too many operands for a task");
#include "codelets/operations.def"
