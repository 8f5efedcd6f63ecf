/* Tests of instrument/: a task that does something else than it declares is found, with page and offset; others aren't.
 * The kernels are loops over memory that is really closed. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../files/harness.h"
#include "instrument/instrument.h"
#include "instrument/poison.h"

enum { NUM_BUFFERS = 3, PAGES = 4 };

static size_t page;
static size_t bytes; /* of a buffer; it ends before its last page does */
static struct audit_buffer buffers[NUM_BUFFERS];

static float *floats(int buffer)
{
    return buffers[buffer].begin;
}

static size_t count(void)
{
    return bytes / sizeof(float);
}

static void make_buffers(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = PAGES * page - 64;
    for (int i = 0; i < NUM_BUFFERS; i++) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            exit(EXIT_FAILURE);
        buffers[i] = (struct audit_buffer){memory, bytes};
    }
}

static struct instrument *create(int instruments)
{
    const struct instrument_options options = {.instruments = instruments};
    struct instrument *instrument = NULL;
    WORKS(instrument_create(&options, buffers, NUM_BUFFERS, &instrument));
    if (!instrument)
        exit(EXIT_FAILURE);
    return instrument;
}

/* ---- Kernels ---- */

typedef void kernel(void);

static volatile float sink;

static void read_all(int buffer)
{
    for (size_t i = 0; i < count(); i++)
        sink = floats(buffer)[i];
}

static void write_all(int buffer)
{
    for (size_t i = 0; i < count(); i++)
        floats(buffer)[i] = (float)i;
}

static void add_one(int buffer)
{
    for (size_t i = 0; i < count(); i++)
        floats(buffer)[i] += 1.0f;
}

static void copy_0_to_1(void)
{
    read_all(0);
    write_all(1);
}

static void copy_0_to_1_and_read_2(void)
{
    copy_0_to_1();
    sink = floats(2)[page / sizeof(float) + 5];
    sink = floats(2)[2 * page / sizeof(float)];
}

static void copy_0_to_1_and_write_2(void)
{
    copy_0_to_1();
    floats(2)[count() - 1] = 1.0f;
}

static void write_both(void)
{
    write_all(0);
    write_all(1);
}

static void write_1(void)
{
    write_all(1);
}

static void read_0(void)
{
    read_all(0);
}

static void add_to_1(void)
{
    read_all(0);
    add_one(1);
}

static void write_1_but_3(void)
{
    read_all(0);
    const size_t from = page / sizeof(float) + 7;
    for (size_t i = 0; i < count(); i++)
        if (i < from || i >= from + 3)
            floats(1)[i] = 1.0f;
}

static void copy_and_negate_one(void)
{
    write_all(1);
    floats(1)[9] = -floats(0)[9];
}

static void beyond_the_end_of_0(void)
{
    copy_0_to_1();
    sink = floats(0)[count()]; /* vectors may read beyond the end, within the last page */
}

/* ---- One task ---- */

/* Runs a kernel as task number 7, which declares the buffers with these modes (0: not declared); gives its findings. */
static size_t run_task(struct instrument *instrument, kernel *kernel, const int *modes,
                       struct starpullm_finding found[8])
{
    struct starpullm_trace_task task = {.id = 7};
    struct starpullm_trace_access accesses[NUM_BUFFERS];
    const struct record record = {&task, accesses};
    void *declared[NUM_BUFFERS];
    for (int i = 0; i < NUM_BUFFERS; i++)
        if (modes[i]) {
            declared[task.num_accesses] = buffers[i].begin;
            accesses[task.num_accesses++] = (struct starpullm_trace_access){i, modes[i]};
        }
    instrument_clear(instrument);
    instrument_before(instrument, record, declared);
    kernel();
    instrument_after(instrument, record, declared);
    size_t number = 0;
    WORKS(instrument_findings(instrument, &number));
    CHECK(number <= 8);
    instrument_copy(instrument, found);
    return number;
}

enum { R = STARPULLM_READ, W = STARPULLM_WRITE, RW = STARPULLM_READ_WRITE, REDUX = STARPULLM_REDUX };

/* A kernel, what it declares, and the one finding that it causes. */
struct example {
    const char *name;
    kernel *kernel;
    int modes[NUM_BUFFERS];
    int32_t kind, handle; /* kind 0: no finding */
    size_t offset, count;
};

static void check_examples(int instruments, const struct example *examples, size_t number)
{
    struct instrument *instrument = create(instruments);
    for (size_t i = 0; i < number; i++) {
        const struct example *example = &examples[i];
        struct starpullm_finding found[8] = {0};
        const size_t findings = run_task(instrument, example->kernel, example->modes, found);
        const bool right = example->kind ? findings == 1 && found[0].task == 7 && found[0].kind == example->kind &&
                                               found[0].handle == example->handle &&
                                               found[0].offset == (int64_t)example->offset &&
                                               found[0].count == (int64_t)example->count
                                         : findings == 0;
        if (!right)
            printf("%s: %zu findings, the first: kind %d of %d at %lld, %lld times\n", example->name, findings,
                   found[0].kind, found[0].handle, (long long)found[0].offset, (long long)found[0].count);
        CHECK(right);
    }
    instrument_destroy(instrument);
    copy_0_to_1(); /* all buffers are open again */
}

static void test_audit(void)
{
    const struct example examples[] = {
        {"as declared", copy_0_to_1, {R, W, 0}, 0, 0, 0, 0},
        {"as declared", add_to_1, {R, RW, 0}, 0, 0, 0, 0},
        {"as declared", add_to_1, {R, REDUX, 0}, 0, 0, 0, 0},
        {"as declared, and beyond the end", beyond_the_end_of_0, {R, W, 0}, 0, 0, 0, 0},
        {"reads what it doesn't declare",
         copy_0_to_1_and_read_2,
         {R, W, 0},
         STARPULLM_UNDECLARED_READ,
         2,
         page + 20,
         2},
        {"writes what it doesn't declare",
         copy_0_to_1_and_write_2,
         {R, W, 0},
         STARPULLM_UNDECLARED_WRITE,
         2,
         bytes - sizeof(float),
         1},
        {"reads what it declares to write", add_to_1, {R, W, 0}, STARPULLM_UNDECLARED_READ, 1, 0, PAGES},
        {"writes what it declares to read", add_to_1, {R, R, 0}, STARPULLM_UNDECLARED_WRITE, 1, 0, PAGES},
        {"a read that never happens", write_1, {R, W, 0}, STARPULLM_READ_NEVER_HAPPENED, 0, 0, 0},
        {"a write that never happens", read_0, {R, W, 0}, STARPULLM_WRITE_NEVER_HAPPENED, 1, 0, 0},
        {"an update that only writes", copy_0_to_1, {R, RW, 0}, STARPULLM_READ_NEVER_HAPPENED, 1, 0, 0},
        {"an update that only reads", read_0, {RW, 0, 0}, STARPULLM_WRITE_NEVER_HAPPENED, 0, 0, 0},
        {"after all that, as declared", copy_0_to_1, {R, W, 0}, 0, 0, 0, 0},
    };
    check_examples(STARPULLM_AUDIT, examples, sizeof examples / sizeof *examples);
}

static void test_two_findings_of_one_handle(void)
{
    struct instrument *instrument = create(STARPULLM_AUDIT);
    struct starpullm_finding found[8] = {0};
    CHECK(run_task(instrument, write_both, (const int[]){R, W, 0}, found) == 2);
    CHECK(found[0].kind == STARPULLM_READ_NEVER_HAPPENED && found[0].handle == 0);
    CHECK(found[1].kind == STARPULLM_UNDECLARED_WRITE && found[1].handle == 0 && found[1].count == PAGES);
    instrument_destroy(instrument);
}

static const struct example poison_examples[] = {
    {"writes all", copy_0_to_1, {R, W, 0}, 0, 0, 0, 0},
    {"adds", add_to_1, {R, RW, 0}, 0, 0, 0, 0},
};

static void test_poison(int instruments)
{
    check_examples(instruments, poison_examples, sizeof poison_examples / sizeof *poison_examples);
    const struct example examples[] = {
        {"three elements are left", write_1_but_3, {R, W, 0}, STARPULLM_NOT_WRITTEN, 1, page + 7 * sizeof(float), 3}};
    check_examples(instruments, examples, 1);
}

static void test_poison_spreads(void)
{
    const size_t all = count();
    const struct example examples[] = {
        {"adds to what it declares to write", add_to_1, {R, W, 0}, STARPULLM_POISON_SPREAD, 1, 0, all}};
    check_examples(STARPULLM_POISON, examples, 1);

    /* One element is copied with another sign, and then computed with. */
    poison_fill(buffers[0].begin, bytes);
    copy_and_negate_one();
    struct poison_found found = poison_find(buffers[1].begin, bytes);
    CHECK(found.left == 1 && found.first_left == 9 * sizeof(float) && found.spread == 0);
    add_one(1);
    found = poison_find(buffers[1].begin, bytes);
    CHECK(found.left == 0 && found.spread == 1 && found.first_spread == 9 * sizeof(float));
    /* Other NaNs are results. */
    write_all(1);
    floats(1)[3] = strtof("nan", NULL);
    found = poison_find(buffers[1].begin, bytes);
    CHECK(found.left == 0 && found.spread == 0);
}

static void test_counts(void)
{
    struct instrument *instrument = create(STARPULLM_AUDIT | STARPULLM_POISON);
    struct starpullm_finding found[8] = {0};
    CHECK(run_task(instrument, copy_0_to_1, (const int[]){R, W, 0}, found) == 0);
    const int64_t all = (int64_t)count();
    struct starpullm_instrument_counts counts = instrument_counts(instrument);
    CHECK(counts.pages == PAGES + PAGES && counts.poisoned == all && counts.searched == all);
    CHECK(counts.poisoned_between == 0);
    audit_open(instrument_audit(instrument), 2);
    instrument_poison_between(instrument, buffers[2].begin, bytes);
    audit_close(instrument_audit(instrument), 2);
    counts = instrument_counts(instrument);
    CHECK(counts.poisoned_between == all && counts.poisoned == all);
    instrument_clear(instrument);
    counts = instrument_counts(instrument);
    CHECK(counts.pages == 0 && counts.poisoned == 0 && counts.poisoned_between == 0 && counts.searched == 0);
    instrument_destroy(instrument);
}

static void test_access_outside_of_tasks(void)
{
    struct instrument *instrument = create(STARPULLM_AUDIT);
    struct audit *audit = instrument_audit(instrument);
    audit_open(audit, 0);
    write_all(0); /* allowed */
    audit_close(audit, 0);
    floats(1)[2] = 1.0f;
    sink = floats(1)[page / sizeof(float)];
    struct starpullm_finding found[2] = {0};
    size_t number = 0;
    WORKS(instrument_findings(instrument, &number));
    CHECK(number == 2);
    instrument_copy(instrument, found);
    CHECK(found[0].task == -1 && found[0].handle == 1 && found[0].kind == STARPULLM_UNDECLARED_READ);
    CHECK(found[0].offset == (int64_t)page);
    CHECK(found[1].task == -1 && found[1].handle == 1 && found[1].kind == STARPULLM_UNDECLARED_WRITE);
    CHECK(found[1].offset == 8);
    /* Pages that such an access opened are closed again for the next task. */
    const struct example example = {"after it", copy_0_to_1, {R, 0, 0}, STARPULLM_UNDECLARED_WRITE, 1, 0, PAGES};
    struct starpullm_finding in_task[8] = {0};
    CHECK(run_task(instrument, example.kernel, example.modes, in_task) == 1);
    CHECK(in_task[0].kind == example.kind && in_task[0].count == PAGES);
    instrument_destroy(instrument);
}

static void *touch_2(void *argument)
{
    (void)argument;
    sink = floats(2)[0];
    return NULL;
}

static void copy_while_another_thread_reads(void)
{
    pthread_t thread;
    read_all(0);
    if (pthread_create(&thread, NULL, touch_2, NULL) == 0)
        pthread_join(thread, NULL);
    write_all(1);
}

/* An access of another thread isn't the task's. */
static void test_another_thread(void)
{
    struct instrument *instrument = create(STARPULLM_AUDIT);
    struct starpullm_finding found[8] = {0};
    CHECK(run_task(instrument, copy_while_another_thread_reads, (const int[]){R, W, 0}, found) == 1);
    CHECK(found[0].task == -1 && found[0].handle == 2 && found[0].kind == STARPULLM_UNDECLARED_READ);
    instrument_destroy(instrument);
}

static void leave_17(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    _exit(17);
}

/* How a child process ends that accesses a closed page outside of the audited buffers. */
static int foreign_fault(bool handled)
{
    const pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_flags = handled ? SA_SIGINFO : 0};
        if (handled)
            action.sa_sigaction = leave_17;
        else
            action.sa_handler = SIG_DFL;
        sigaction(SIGSEGV, &action, NULL);
        struct instrument *instrument = create(STARPULLM_AUDIT);
        volatile float *not_audited = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sink = not_audited[0];
        instrument_destroy(instrument);
        _exit(0);
    }
    int ending = 0;
    waitpid(child, &ending, 0);
    return ending;
}

static void test_foreign_faults_are_passed_on(void)
{
    const int handled = foreign_fault(true), not_handled = foreign_fault(false);
    CHECK(WIFEXITED(handled) && WEXITSTATUS(handled) == 17);
    CHECK(WIFSIGNALED(not_handled) && WTERMSIG(not_handled) == SIGSEGV);
}

int main(void)
{
    make_buffers();
    test_audit();
    test_two_findings_of_one_handle();
    test_poison(STARPULLM_POISON);
    test_poison(STARPULLM_AUDIT | STARPULLM_POISON);
    test_poison_spreads();
    test_counts();
    test_access_outside_of_tasks();
    test_another_thread();
    test_foreign_faults_are_passed_on();
    printf("test_instrument: %d failures\n", failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
