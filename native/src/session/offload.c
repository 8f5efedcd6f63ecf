/* What a session's data do on a disk: the smallest limit that its tasks can run in, and the plan of what is written
 * early or dropped. Both follow from the accesses of one step, which is submitted on paper. */
#include <inttypes.h>
#include <stdlib.h>

#include "data/pages.h"
#include "session/session.h"

struct walk {
    struct starpullm_trace_task *tasks;
    struct starpullm_trace_access *accesses;
    size_t num_tasks, num_accesses;
};

/* The session has a handle of each id, as it is on one rank. */
static struct data *data_of(const struct starpullm_session *session, const struct walk *walk, size_t access)
{
    return handles_at(session->handles, walk->accesses[access % walk->num_accesses].handle);
}

static int64_t bytes_that_move(const struct data *data)
{
    return data->moves ? (int64_t)whole_pages(data->bytes) : 0;
}

static status copy_walk(const struct recorder *recorder, struct walk *walk)
{
    recorder_size(recorder, &walk->num_tasks, &walk->num_accesses);
    walk->tasks = calloc(walk->num_tasks, sizeof *walk->tasks);
    walk->accesses = calloc(walk->num_accesses, sizeof *walk->accesses);
    if (!walk->tasks || !walk->accesses)
        return out_of_memory("a table of %zu accesses", walk->num_accesses);
    return recorder_copy(recorder, walk->tasks, walk->num_tasks, walk->accesses, walk->num_accesses);
}

static status walk_step(const struct starpullm_session *session, struct walk *walk)
{
    struct recorder *recorder;
    TRY(recorder_create(&recorder));
    status code = record_on_paper(&session->work, session->handles, 1, recorder);
    if (code == STARPULLM_OK)
        code = copy_walk(recorder, walk);
    recorder_destroy(recorder);
    return code;
}

/* ---- The limit ---- */

static int64_t largest_task(const struct starpullm_session *session, const struct walk *walk)
{
    int64_t largest = 0;
    for (size_t t = 0; t < walk->num_tasks; t++) {
        int64_t bytes = 0;
        for (int32_t i = 0; i < walk->tasks[t].num_accesses; i++)
            bytes += bytes_that_move(data_of(session, walk, (size_t)walk->tasks[t].first_access + (size_t)i));
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static int64_t largest_datum(const struct starpullm_session *session)
{
    int64_t largest = 0;
    for (int i = 0; i < handles_here(session->handles); i++) {
        const int64_t bytes = bytes_that_move(handles_at(session->handles, i));
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
    if (!data->moves || next->bytes_between + bytes_that_move(data) <= room)
        return AFTER_NOTHING;
    if (next->is_write && data->transient && !session->work.keep_activations)
        return AFTER_DROP;
    return next->is_far ? AFTER_LEAVE : AFTER_WRITE_EARLY;
}

/* Steps follow each other: from the end of two, each access meets the next one to the same datum. What would have to
 * leave the memory in between, if what was used longest ago leaves it first, is written early; or dropped, if it is
 * overwritten next. What is used again last of all leaves the memory too: m and v would push out parameters, which
 * StarPU has used longer ago. */
static status make_plan(struct starpullm_session *session, const struct walk *walk, int64_t room)
{
    const size_t count = walk->num_accesses, end = 2 * count;
    struct sums between = {calloc(end + 1, sizeof *between.nodes), end};
    size_t *next = calloc((size_t)handles_count(session->handles), sizeof *next); /* 1 + position; 0: none */
    uint8_t *choices = session->plan.after = calloc(count, sizeof *choices);
    const bool made = between.nodes && next && choices;
    for (size_t position = end; made && position-- > 0;) {
        const struct data *data = data_of(session, walk, position);
        const size_t after = next[data->id];
        if (position < count) {
            const struct next found = {walk->accesses[(after - 1) % count].mode == STARPULLM_WRITE,
                                       after - 1 - position > count / 2,
                                       sum_before(&between, after - 1) - sum_before(&between, position + 1)};
            choices[position] = (uint8_t)choose(session, data, &found, room);
        }
        if (after)
            add_at(&between, after - 1, -bytes_that_move(data));
        add_at(&between, position, bytes_that_move(data));
        next[data->id] = position + 1;
    }
    free(between.nodes);
    free(next);
    return made ? STARPULLM_OK : out_of_memory("a plan for %zu accesses", count);
}

/* ---- What it moves ---- */

/* The data that are in memory, in a ring: behind its beginning the one that was used longest ago. */
struct memory {
    struct place {
        int before, behind; /* itself: it isn't in memory */
        bool is_changed;    /* since it was read or written */
    } *places;              /* by id, and one more: the ring's beginning */
    int beginning;
    int64_t bytes, written, read;
};

static void take_out(struct memory *memory, const struct data *data)
{
    struct place *place = &memory->places[data->id];
    if (place->behind == data->id)
        return;
    memory->places[place->before].behind = place->behind;
    memory->places[place->behind].before = place->before;
    place->before = place->behind = data->id;
    memory->bytes -= bytes_that_move(data);
}

static void put_last(struct memory *memory, const struct data *data)
{
    struct place *place = &memory->places[data->id], *beginning = &memory->places[memory->beginning];
    place->before = beginning->before;
    place->behind = memory->beginning;
    memory->places[place->before].behind = beginning->before = data->id;
    memory->bytes += bytes_that_move(data);
}

static void write_changed(struct memory *memory, const struct data *data)
{
    memory->written += memory->places[data->id].is_changed ? bytes_that_move(data) : 0;
    memory->places[data->id].is_changed = false;
}

static void follow_access(const struct starpullm_session *session, struct memory *memory, struct data *data,
                          int32_t mode, enum after_access after, int64_t room)
{
    struct place *place = &memory->places[data->id];
    if (!data->moves)
        return;
    if (place->behind == data->id && mode != STARPULLM_WRITE)
        memory->read += bytes_that_move(data);
    take_out(memory, data);
    put_last(memory, data);
    place->is_changed |= mode != STARPULLM_READ;
    if (after == AFTER_WRITE_EARLY || after == AFTER_LEAVE)
        write_changed(memory, data);
    if (after == AFTER_LEAVE || after == AFTER_DROP)
        take_out(memory, data);
    if (after == AFTER_DROP)
        place->is_changed = false;
    while (memory->bytes > room) {
        const struct data *first = handles_at(session->handles, memory->places[memory->beginning].behind);
        write_changed(memory, first);
        take_out(memory, first);
    }
}

/* In a step that follows another. */
static status count_traffic(struct starpullm_session *session, const struct walk *walk, int64_t room)
{
    const int count = handles_count(session->handles);
    struct memory memory = {calloc((size_t)count + 1, sizeof *memory.places), count, 0, 0, 0};
    if (!memory.places)
        return out_of_memory("places of %d data", count);
    for (int i = 0; i <= count; i++)
        memory.places[i].before = memory.places[i].behind = i;
    for (int step = 0; step < 2; step++) {
        memory.written = memory.read = 0;
        for (size_t i = 0; i < walk->num_accesses; i++)
            follow_access(session, &memory, data_of(session, walk, i), walk->accesses[i].mode, session->plan.after[i],
                          room);
    }
    free(memory.places);
    session->plan.written = memory.written;
    session->plan.read = memory.read;
    return STARPULLM_OK;
}

/* ---- Both ---- */

static status prepare(struct starpullm_session *session, struct walk *walk)
{
    const struct runtime_layout *layout = runtime_layout();
    struct disk_share share = handles_share(session->handles);
    TRY(walk_step(session, walk));
    share.task = largest_task(session, walk);
    share.datum = largest_datum(session);
    const struct disk_share all = disk_shared_with(&share);
    TRY(check_limit(&all));
    TRY(disk_reserve(&share));
    session->on_disk = true;
    const int64_t room = layout->memory_limit - all.staying;
    if (layout->offload_plan != STARPULLM_OFFLOAD_AHEAD)
        return STARPULLM_OK;
    TRY(make_plan(session, walk, room - all.task));
    return count_traffic(session, walk, room);
}

status session_prepare_offload(struct starpullm_session *session)
{
    struct walk walk = {0};
    if (!runtime_layout()->memory_limit)
        return STARPULLM_OK;
    const status code = prepare(session, &walk);
    free(walk.tasks);
    free(walk.accesses);
    return code;
}
