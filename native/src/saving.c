/* One save at a time: each tensor is held for reading from the moment the updates before are done until it is on the
 * disk, so that only the next update of that tensor waits for it. Called by session.c. */
#include "saving.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "io/writer.h"

enum { NUM_SAVED_GROUPS = 3 };
static const enum starpullm_group saved_groups[NUM_SAVED_GROUPS] = {STARPULLM_PARAMS, STARPULLM_M, STARPULLM_V};

/* One tensor of one group. */
struct piece {
    struct writer_job job; /* first: the writer hands it back */
    struct saving *saving;
    struct data *data;
    int index; /* of the tensor in the file */
    enum starpullm_group group;
};

struct saving {
    const struct graph_options *graph;
    struct writer *thread;
    struct training_state_tensor *tensors; /* those that this rank owns */
    int num_tensors;
    struct piece *pieces; /* [tensor][group] */
    /* The save that is under way. */
    struct training_state_writer *file;
    char *root;
    int64_t step;
    int keep;
    atomic_bool failed;
    struct writer_job finish;
    pthread_mutex_t mutex;
    pthread_cond_t handed_over;
    int pending; /* pieces that aren't written yet, and one for the submitter while it is submitting */
};

static status list_tensors(struct saving *saving)
{
    const struct graph_options *g = saving->graph;
    int total = 0;
    for (int p = 0; p < NUM_PARAMETERS; p++)
        total += parameter_instances(&g->config, p);
    saving->tensors = calloc((size_t)total, sizeof *saving->tensors);
    saving->pieces = calloc((size_t)total * NUM_SAVED_GROUPS, sizeof *saving->pieces);
    if (!saving->tensors || !saving->pieces)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d tensors", total);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&g->config, p); l++) {
            if (owner_of(g->placement, p, l) != g->placement->rank)
                continue;
            const int index = saving->num_tensors++;
            saving->tensors[index] = (struct training_state_tensor){p, l};
            for (int i = 0; i < NUM_SAVED_GROUPS; i++)
                saving->pieces[index * NUM_SAVED_GROUPS + i] =
                    (struct piece){.saving = saving,
                                   .data = handles_parameter(g->handles, saved_groups[i], p, l),
                                   .index = index,
                                   .group = saved_groups[i]};
        }
    return STARPULLM_OK;
}

status saving_create(const struct graph_options *graph, struct saving **created)
{
    struct saving *saving = calloc(1, sizeof *saving);
    if (!saving)
        return fail(STARPULLM_OUT_OF_MEMORY, "the saving of training states");
    saving->graph = graph;
    pthread_mutex_init(&saving->mutex, NULL);
    pthread_cond_init(&saving->handed_over, NULL);
    status code = list_tensors(saving);
    if (code == STARPULLM_OK)
        code = writer_create(&saving->thread);
    if (code != STARPULLM_OK) {
        saving_destroy(saving);
        return code;
    }
    *created = saving;
    return STARPULLM_OK;
}

/* The end of a save, in the writer's thread. */
static status finish(struct writer_job *job)
{
    struct saving *saving = (struct saving *)((char *)job - offsetof(struct saving, finish));
    struct training_state_writer *file = saving->file;
    saving->file = NULL;
    if (saving->failed) {
        training_state_discard(file);
        return STARPULLM_OK; /* the piece that failed has said so */
    }
    TRY(training_state_commit(file));
    return saving->graph->placement->rank == 0 ? training_state_prune(saving->root, saving->step, saving->keep)
                                               : STARPULLM_OK;
}

static void pieces_done(struct saving *saving, int count)
{
    pthread_mutex_lock(&saving->mutex);
    saving->pending -= count;
    if (saving->pending == 0) {
        writer_enqueue(saving->thread, &saving->finish);
        pthread_cond_broadcast(&saving->handed_over);
    }
    pthread_mutex_unlock(&saving->mutex);
}

/* In the writer's thread. */
static status write_piece(struct writer_job *job)
{
    struct piece *piece = (struct piece *)job;
    struct saving *saving = piece->saving;
    status code = STARPULLM_OK;
    if (!saving->failed)
        code = training_state_write(saving->file, piece->index, piece->group, piece->data->buffer);
    if (code != STARPULLM_OK)
        saving->failed = true;
    data_release(piece->data);
    pieces_done(saving, 1);
    return code;
}

/* In whichever thread finds the data ready: neither waits nor fails. */
static void piece_ready(void *argument)
{
    struct piece *piece = argument;
    writer_enqueue(piece->saving->thread, &piece->job);
}

status saving_submit(struct saving *saving, const char *root, const struct training_state_meta *meta, int keep)
{
    TRY(saving_wait(saving));
    char *copy = strdup(root);
    if (!copy)
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: a copy of the path", root);
    status code = training_state_writer_open(root, meta, saving->tensors, saving->num_tensors, &saving->file);
    if (code != STARPULLM_OK) {
        free(copy);
        return code;
    }
    free(saving->root);
    saving->root = copy;
    saving->step = meta->step;
    saving->keep = keep;
    saving->failed = false;
    saving->finish = (struct writer_job){.run = finish};
    const int count = saving->num_tensors * NUM_SAVED_GROUPS;
    saving->pending = count + 1; /* nobody else looks yet */
    int submitted = 0;
    for (; submitted < count && code == STARPULLM_OK; submitted++) {
        struct piece *piece = &saving->pieces[submitted];
        piece->job = (struct writer_job){.run = write_piece};
        code = data_when_readable(piece->data, piece_ready, piece);
    }
    if (code != STARPULLM_OK)
        saving->failed = true;
    pieces_done(saving, 1 + (code == STARPULLM_OK ? 0 : count - submitted + 1));
    return code;
}

/* The queue may be empty while pieces still wait for their data: those that have been submitted have to come first. */
static void wait_for_pieces(struct saving *saving)
{
    pthread_mutex_lock(&saving->mutex);
    while (saving->pending > 0)
        pthread_cond_wait(&saving->handed_over, &saving->mutex);
    pthread_mutex_unlock(&saving->mutex);
}

status saving_wait(struct saving *saving)
{
    wait_for_pieces(saving);
    return writer_wait(saving->thread);
}

void saving_destroy(struct saving *saving)
{
    if (!saving)
        return;
    if (saving->thread)
        wait_for_pieces(saving);
    writer_destroy(saving->thread);
    pthread_cond_destroy(&saving->handed_over);
    pthread_mutex_destroy(&saving->mutex);
    free(saving->tensors);
    free(saving->pieces);
    free(saving->root);
    free(saving);
}
