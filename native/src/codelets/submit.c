/* What is made from operations.def: each operation's kernel call, the table of operations, and each one's submission
 * with the accesses that it declares. */
#include "codelets/task.h"

/* ---- The call. An operand's buffer is found by its handle. ---- */

static enum sum_start start_of(struct sum sum)
{
    return sum.accumulation == ACCUMULATION_STARTS ? SUM_FROM_ZERO : SUM_CONTINUES;
}

#define W(x) task_buffer(task, a->x, buffers),
#define R(x) task_buffer(task, a->x, buffers),
#define RW(x) task_buffer(task, a->x, buffers),
#define RW_FROM(first, x) (float *)task_buffer(task, a->x, buffers) + a->first,
#define S(x) task_buffer(task, a->x.data, buffers),
#define R_OR_NULL(x) R(x)
#define S_OR_NULL(x) S(x)
#define SIZE(x) a->x,
#define OFFSET(x)
#define VALUE(type, x) a->x,
#define ADDRESS(type, x) &a->x,
#define START(x) start_of(a->x),
#define OPERATION(name, operands, values)                                                    \
    static void run_##name(const struct task *task, void *const buffers[], struct team team) \
    {                                                                                        \
        const struct name *a = &task->arguments.name;                                        \
        kernels()->name(operands values team);                                               \
    }
#define OPERATION_WITHOUT_KERNEL(name, operands, values)                                     \
    static void run_##name(const struct task *task, void *const buffers[], struct team team) \
    {                                                                                        \
        const struct name *a = &task->arguments.name;                                        \
        name(operands values team);                                                          \
    }
#include "codelets/operations.def"

/* ---- The table ---- */

static struct operation operations[] = {
#define OPERATION(name_, operands, values) {.number = OPERATION_##name_, .name = #name_, .run = run_##name_},
#define MESSAGE(name_) {.number = OPERATION_##name_, .name = #name_},
#include "codelets/operations.def"
};

const char *starpullm_operation_name(int32_t index)
{
    return index >= 0 && index < NUM_OPERATIONS ? operations[index].name : NULL;
}

/* ---- The submission ---- */

static enum starpu_data_access_mode mode_of(struct sum sum)
{
    return sum.accumulation == ACCUMULATION_STARTS      ? STARPU_W
           : sum.accumulation == ACCUMULATION_CONTINUES ? STARPU_RW
                                                        : STARPU_REDUX;
}

#define W(x) {a->x, STARPU_W, false},
#define R(x) {a->x, STARPU_R, false},
#define RW(x) {a->x, STARPU_RW, false},
#define RW_FROM(first, x) RW(x)
#define S(x) {a->x.data, mode_of(a->x), false},
#define R_OR_NULL(x) {a->x, STARPU_R, true},
#define S_OR_NULL(x) {a->x.data, mode_of(a->x), true},
#define OPERATION(name, operands, values)                                                                      \
    status submit_##name(struct task_place place, const struct name *a)                                        \
    {                                                                                                          \
        struct access accesses[] = {operands};                                                                 \
        _Static_assert(sizeof accesses / sizeof *accesses <= TASK_MAX_ACCESSES, "too many operands");          \
        return insert_task(&operations[OPERATION_##name], place, accesses, sizeof accesses / sizeof *accesses, \
                           &(const union arguments){.name = *a});                                              \
    }
#include "codelets/operations.def"
