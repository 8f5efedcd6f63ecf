/* What a session's data do on a disk or a device: the smallest memory that its tasks can run in, and the plan of what
 * is written early, invalidated, or fetched ahead. Both follow from the accesses of one step, which is submitted on
 * paper.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "data/pages.h"
#include "session/session.h"

enum { MOST_TASKS_AHEAD = 64 };

struct walk {
    struct starpullm_trace trace;
    size_t *from_disk; /* of an access that reads its data from the disk: tasks since their last use; else 0 */
};

/* The session has a handle of each id, as it is on one rank. */
static struct data *data_of(const struct starpullm_session *session, const struct walk *walk, size_t access)
{
    return handles_at(session->handles, walk->trace.accesses[access % walk->trace.num_accesses].handle);
}

static int64_t evictable_bytes(const struct data *data)
{
    return data->evictable ? (int64_t)whole_pages(data->bytes) : 0;
}

static int64_t bytes_on_device(const struct data *data)
{
    return (int64_t)data->bytes;
}

static status walk_step(const struct starpullm_session *session, struct walk *walk)
{
    struct recorder *recorder;
    TRY(recorder_create(&recorder));
    status code = record_on_paper(&session->work, session->handles, 1, recorder);
    if (code == STARPULLM_OK)
        code = recorder_copy(recorder, &walk->trace);
    recorder_destroy(recorder);
    TRY(code);
    walk->from_disk = calloc(walk->trace.num_accesses, sizeof *walk->from_disk);
    return walk->from_disk ? STARPULLM_OK : out_of_memory("a table of %zu accesses", walk->trace.num_accesses);
}

/* ---- The limit ---- */

static int64_t largest_task(const struct starpullm_session *session, const struct walk *walk,
                            int64_t (*bytes_of)(const struct data *data))
{
    int64_t largest = 0;
    for (size_t t = 0; t < walk->trace.num_tasks; t++) {
        int64_t bytes = 0;
        for (int32_t i = 0; i < walk->trace.tasks[t].num_accesses; i++)
            bytes += bytes_of(data_of(session, walk, (size_t)walk->trace.tasks[t].first_access + (size_t)i));
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static status check_device_memory(const struct starpullm_session *session, const struct walk *walk)
{
    const int64_t found = runtime_layout()->device_memory, least = largest_task(session, walk, bytes_on_device);
    if (found >= least)
        return STARPULLM_OK;
    return out_of_memory("devices: found %" PRId64 " bytes of a device's memory, expected at least %" PRId64
                         " for the largest task",
                         found, least);
}

static int64_t largest_datum(const struct starpullm_session *session)
{
    int64_t largest = 0;
    for (int i = 0; i < handles_here(session->handles); i++) {
        const int64_t bytes = evictable_bytes(handles_at(session->handles, i));
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* StarPU lets a task wait for ever whose data don't fit. Every worker may hold those of the largest task of all
 * sessions at once, while the application reads or saves a tensor. */
static status check_limit(const struct disk_share *all)
{
    const struct runtime_layout *layout = runtime_layout();
    const int64_t least = all->staying + layout->workers * all->task + all->datum;
    if (layout->memory_limit >= least)
        return STARPULLM_OK;
    return out_of_memory("memory_limit: found %" PRId64 " bytes, expected at least %" PRId64 ": %" PRId64
                         " for the largest task on each of %d workers, %" PRId64 " for a tensor that is read, %" PRId64
                         " that stay in memory",
                         layout->memory_limit, least, all->task, layout->workers, all->datum, all->staying);
}

/* ---- The plan ---- */

/* Sums over the first positions (Fenwick, 1994). */
struct sums {
    int64_t *nodes; /* (size + 1) */
    size_t size;
};

static void add_at(struct sums *sums, size_t position, int64_t value)
{
    for (size_t i = position + 1; i <= sums->size; i += i & (~i + 1))
        sums->nodes[i] += value;
}

static int64_t sum_before(const struct sums *sums, size_t position)
{
    int64_t sum = 0;
    for (size_t i = position; i > 0; i -= i & (~i + 1))
        sum += sums->nodes[i];
    return sum;
}

/* The next access to the same datum. */
struct next {
    bool is_write, is_far; /* more than half of a step away */
    int64_t bytes_between; /* of other data that are used until then */
};

static enum after_access choose(const struct starpullm_session *session, const struct data *data,
                                const struct next *next, int64_t room)
{
    if (!data->evictable || next->bytes_between + evictable_bytes(data) <= room)
        return AFTER_NOTHING;
    if (next->is_write && data->transient && !session->work.keep_activations)
        return AFTER_INVALIDATE;
    return next->is_far ? AFTER_EVICT : AFTER_WRITE_EARLY;
}

/* Steps follow each other: from the end of two, each access meets the next one to the same datum. What would have to
 * leave the memory in between, if what was used longest ago leaves it first, is written early; or invalidated, if it is
 * overwritten next. What is used again last of all leaves the memory too: m and v would push out parameters, which
 * StarPU has used longer ago. */
static status make_plan(struct starpullm_session *session, const struct walk *walk, int64_t room)
{
    const size_t count = walk->trace.num_accesses, end = 2 * count;
    struct sums between = {calloc(end + 1, sizeof *between.nodes), end};
    size_t *next = calloc((size_t)handles_count(session->handles), sizeof *next); /* 1 + position; 0: none */
    const bool made = between.nodes && next;
    for (size_t position = end; made && position-- > 0;) {
        const struct data *data = data_of(session, walk, position);
        const size_t after = next[data->id];
        if (position < count) {
            const struct next found = {walk->trace.accesses[(after - 1) % count].mode == STARPULLM_WRITE,
                                       after - 1 - position > count / 2,
                                       sum_before(&between, after - 1) - sum_before(&between, position + 1)};
            session->plan.after[position] = (uint8_t)choose(session, data, &found, room);
        }
        if (after)
            add_at(&between, after - 1, -evictable_bytes(data));
        add_at(&between, position, evictable_bytes(data));
        next[data->id] = position + 1;
    }
    free(between.nodes);
    free(next);
    return made ? STARPULLM_OK : out_of_memory("a plan for %zu accesses", count);
}

/* ---- What it moves, and what is fetched ahead ---- */

/* The data that are in memory, in a ring: what follows its beginning was used longest ago. */
struct memory {
    struct entry {
        int prev, next;  /* itself: it isn't in memory */
        bool is_changed; /* since it was read or written */
        size_t task;     /* the last that used it; counted over steps */
    } *entries;          /* by id, and one more: the ring's beginning */
    int beginning;
    int64_t bytes, room, written, read;
};

static bool is_away(const struct memory *memory, const struct data *data)
{
    return memory->entries[data->id].next == data->id;
}

static void take_out(struct memory *memory, const struct data *data)
{
    struct entry *entry = &memory->entries[data->id];
    if (is_away(memory, data))
        return;
    memory->entries[entry->prev].next = entry->next;
    memory->entries[entry->next].prev = entry->prev;
    entry->prev = entry->next = data->id;
    memory->bytes -= evictable_bytes(data);
}

static void put_last(struct memory *memory, const struct data *data)
{
    struct entry *entry = &memory->entries[data->id], *beginning = &memory->entries[memory->beginning];
    entry->prev = beginning->prev;
    entry->next = memory->beginning;
    memory->entries[entry->prev].next = beginning->prev = data->id;
    memory->bytes += evictable_bytes(data);
}

static void write_changed(struct memory *memory, const struct data *data)
{
    memory->written += memory->entries[data->id].is_changed ? evictable_bytes(data) : 0;
    memory->entries[data->id].is_changed = false;
}

/* As StarPU does: first what was used longest ago of those that are as large. */
static const struct data *victim(const struct starpullm_session *session, const struct memory *memory,
                                 const struct data *wanted)
{
    const int oldest = memory->entries[memory->beginning].next;
    for (int id = oldest; id != wanted->id; id = memory->entries[id].next)
        if (evictable_bytes(handles_at(session->handles, id)) == evictable_bytes(wanted))
            return handles_at(session->handles, id);
    return handles_at(session->handles, oldest);
}

/* It is in memory then, as what is used last. */
static void use(const struct starpullm_session *session, struct memory *memory, const struct data *data, bool is_read)
{
    memory->read += is_read && is_away(memory, data) ? evictable_bytes(data) : 0;
    take_out(memory, data);
    put_last(memory, data);
    while (memory->bytes > memory->room) {
        const struct data *first = victim(session, memory, data);
        write_changed(memory, first);
        take_out(memory, first);
    }
}

static void follow_access(const struct starpullm_session *session, struct memory *memory, const struct data *data,
                          int32_t mode, enum after_access after)
{
    struct entry *entry = &memory->entries[data->id];
    use(session, memory, data, mode != STARPULLM_WRITE);
    entry->is_changed |= mode != STARPULLM_READ;
    if (after == AFTER_WRITE_EARLY || after == AFTER_EVICT)
        write_changed(memory, data);
    if (after == AFTER_EVICT || after == AFTER_INVALIDATE)
        take_out(memory, data);
    if (after == AFTER_INVALIDATE)
        entry->is_changed = false;
}

/* Task number `task`, counted over steps. */
static void follow_task(const struct starpullm_session *session, const struct walk *walk, struct memory *memory,
                        size_t task)
{
    const struct starpullm_trace_task *found = &walk->trace.tasks[task % walk->trace.num_tasks];
    const bool without_fetches = !session->plan.fetches.first;
    for (size_t i = (size_t)found->first_access; i < (size_t)(found->first_access + found->num_accesses); i++) {
        const struct data *data = data_of(session, walk, i);
        const bool is_read = walk->trace.accesses[i].mode != STARPULLM_WRITE;
        if (!data->evictable)
            continue;
        if (without_fetches)
            walk->from_disk[i] = is_read && is_away(memory, data) ? task - memory->entries[data->id].task : 0;
        follow_access(session, memory, data, walk->trace.accesses[i].mode, session->plan.after[i]);
        memory->entries[data->id].task = task;
    }
}

/* What task number `task` lets be fetched, which then is used last. */
static void follow_fetches(const struct starpullm_session *session, struct memory *memory, size_t task)
{
    const struct fetches *fetches = &session->plan.fetches;
    for (size_t i = fetches->first[task]; i < fetches->first[task + 1]; i++)
        use(session, memory, fetches->data[i], true);
}

/* The bytes of a step that follows another. */
static status count_traffic(struct starpullm_session *session, const struct walk *walk, int64_t room)
{
    const int count = handles_count(session->handles);
    struct memory memory = {
        .entries = calloc((size_t)count + 1, sizeof *memory.entries), .beginning = count, .room = room};
    if (!memory.entries)
        return out_of_memory("a table of %d data", count);
    for (int i = 0; i <= count; i++)
        memory.entries[i].prev = memory.entries[i].next = i;
    for (size_t task = 0; task < 2 * walk->trace.num_tasks; task++) {
        if (task == walk->trace.num_tasks)
            memory.written = memory.read = 0;
        follow_task(session, walk, &memory, task);
        if (session->plan.fetches.first)
            follow_fetches(session, &memory, task % walk->trace.num_tasks);
    }
    free(memory.entries);
    session->plan.written = memory.written;
    session->plan.read = memory.read;
    return STARPULLM_OK;
}

/* Each task lets be fetched what the one `ahead` tasks later reads from the disk, in the next step too; but nothing
 * that is used in between. */
static void plan_fetches(struct starpullm_session *session, const struct walk *walk, size_t ahead)
{
    struct fetches *fetches = &session->plan.fetches;
    size_t end = 0;
    for (size_t task = 0; task < walk->trace.num_tasks; task++) {
        const struct starpullm_trace_task *later = &walk->trace.tasks[(task + ahead) % walk->trace.num_tasks];
        fetches->first[task] = end;
        for (size_t i = (size_t)later->first_access; i < (size_t)(later->first_access + later->num_accesses); i++)
            if (ahead > 0 && walk->from_disk[i] > ahead)
                fetches->data[end++] = data_of(session, walk, i);
    }
    fetches->first[walk->trace.num_tasks] = end;
}

/* As far ahead as no byte more is moved for it. */
static status choose_fetches(struct starpullm_session *session, const struct walk *walk, int64_t room)
{
    struct fetches *fetches = &session->plan.fetches;
    const int64_t least = session->plan.written + session->plan.read;
    fetches->first = calloc(walk->trace.num_tasks + 1, sizeof *fetches->first);
    fetches->data = calloc(walk->trace.num_accesses, sizeof *fetches->data);
    if (!fetches->first || !fetches->data)
        return out_of_memory("a plan for %zu tasks", walk->trace.num_tasks);
    size_t ahead = MOST_TASKS_AHEAD;
    do {
        plan_fetches(session, walk, ahead);
        TRY(count_traffic(session, walk, room));
        ahead /= 2;
    } while (session->plan.written + session->plan.read > least);
    return STARPULLM_OK;
}

/* ---- Both ---- */

static status prepare(struct starpullm_session *session, struct walk *walk)
{
    const struct runtime_layout *layout = runtime_layout();
    TRY(walk_step(session, walk));
    if (layout->devices)
        return check_device_memory(session, walk);
    session->share = handles_share(session->handles);
    session->share.task = largest_task(session, walk, evictable_bytes);
    session->share.datum = largest_datum(session);
    struct disk_share all;
    TRY(disk_reserve(&session->share, check_limit, &all));
    const int64_t room = layout->memory_limit - all.staying;
    const bool ahead = layout->offload_plan == STARPULLM_OFFLOAD_AHEAD;
    session->plan.after = calloc(walk->trace.num_accesses, sizeof *session->plan.after);
    if (!session->plan.after)
        return out_of_memory("a plan for %zu accesses", walk->trace.num_accesses);
    if (ahead)
        TRY(make_plan(session, walk, room - all.task));
    TRY(count_traffic(session, walk, room));
    return ahead ? choose_fetches(session, walk, room) : STARPULLM_OK;
}

status session_prepare_memory(struct starpullm_session *session)
{
    struct walk walk = {0};
    const struct runtime_layout *layout = runtime_layout();
    if (layout->ranks > 1 || (!layout->memory_limit && !layout->devices))
        return STARPULLM_OK;
    const status code = prepare(session, &walk);
    free(walk.trace.tasks);
    free(walk.trace.accesses);
    free(walk.from_disk);
    return code;
}
