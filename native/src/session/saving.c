/* One save at a time. Each tensor is held for reading from the moment when the earlier updates of it are done until it
 * is on the disk, so that only the next update of that tensor waits. */
#include "session/saving.h"

#include <stdlib.h>
#include <string.h>

#include "io/folder_lock.h"
#include "io/writer.h"

/* Params, m or v of one tensor. */
struct piece {
    struct writer_job job; /* first: the writer passes it back */
    struct saving *saving;
    struct data *data;
    int index; /* of the tensor in the file */
    enum starpullm_group group;
};

struct saving {
    const struct graph_options *graph;
    struct folder_lock *locks; /* of every folder that was saved into */
    struct writer *thread;
    struct training_state_tensor *tensors; /* that this rank owns */
    int num_tensors;
    struct piece *pieces; /* [tensor][part] */
    int num_pieces;
    /* The save that is under way; only the writer's thread touches it until it is finished. */
    struct training_state_writer *file;
    char *root;
    int64_t step;
    int keep;
    struct writer_job submission; /* done after the last piece is submitted */
    int unsubmitted;              /* pieces that failed to be submitted */
    int pending;                  /* pieces that aren't written yet, and the submission */
    bool failed;
};

static status list_tensors(struct saving *saving)
{
    const struct graph_options *g = saving->graph;
    int total = 0;
    for (int p = 0; p < NUM_PARAMETERS; p++)
        total += parameter_instances(&g->config, p);
    saving->tensors = calloc((size_t)total, sizeof *saving->tensors);
    saving->pieces = calloc((size_t)total * STATE_PARTS, sizeof *saving->pieces);
    if (!saving->tensors || !saving->pieces)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d tensors could not be allocated", total);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&g->config, p); l++) {
            if (owner_of(g->placement, p, l) != g->placement->rank)
                continue;
            for (int part = 0; part < STATE_PARTS; part++)
                saving->pieces[saving->num_pieces++] =
                    (struct piece){.saving = saving,
                                   .data = handles_parameter(g->handles, state_groups[part], p, l),
                                   .index = saving->num_tensors,
                                   .group = state_groups[part]};
            saving->tensors[saving->num_tensors++] = (struct training_state_tensor){p, l};
        }
    return STARPULLM_OK;
}

status saving_create(const struct graph_options *graph, struct saving **created)
{
    struct saving *saving = calloc(1, sizeof *saving);
    if (!saving)
        return fail(STARPULLM_OUT_OF_MEMORY, "the saving of training states could not be allocated");
    saving->graph = graph;
    status code = list_tensors(saving);
    if (code == STARPULLM_OK)
        code = writer_create(&saving->thread);
    if (code == STARPULLM_OK)
        *created = saving;
    else
        saving_destroy(saving);
    return code;
}

/* ---- In the writer's thread ---- */

/* Counts pieces, or the submission, as done; the last one finishes the save. */
static status count_done(struct saving *saving, int done)
{
    saving->pending -= done;
    if (saving->pending > 0)
        return STARPULLM_OK;
    if (saving->failed) {
        training_state_discard(saving->file);
        return STARPULLM_OK; /* the failure has been reported where it happened */
    }
    TRY(training_state_commit(saving->file));
    if (saving->graph->placement->rank != 0)
        return STARPULLM_OK;
    return training_state_prune(saving->root, saving->step, saving->keep);
}

static status write_piece(struct writer_job *job)
{
    struct piece *piece = (struct piece *)job;
    struct saving *saving = piece->saving;
    status code = STARPULLM_OK;
    if (!saving->failed)
        code = training_state_write(saving->file, piece->index, piece->group, piece->data->buffer);
    data_release(piece->data);
    saving->failed = saving->failed || code != STARPULLM_OK;
    const status finished = count_done(saving, 1);
    return code != STARPULLM_OK ? code : finished;
}

static status end_submission(struct writer_job *job)
{
    struct saving *saving = (struct saving *)((char *)job - offsetof(struct saving, submission));
    saving->failed = saving->failed || saving->unsubmitted > 0;
    return count_done(saving, 1 + saving->unsubmitted);
}

/* ---- In the caller's thread ---- */

/* In whichever thread finds the data ready: it may neither wait nor fail. */
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
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: a copy of the path could not be allocated", root);
    free(saving->root);
    saving->root = copy;
    TRY(training_state_make_root(root));
    TRY(folder_lock_take(&saving->locks, root, meta->run));
    TRY(training_state_writer_open(root, meta, saving->tensors, saving->num_tensors, &saving->file));
    saving->step = meta->step;
    saving->keep = keep;
    saving->failed = false;
    saving->unsubmitted = 0;
    saving->pending = saving->num_pieces + 1;
    writer_expect(saving->thread, saving->num_pieces + 1);
    status code = STARPULLM_OK;
    for (int i = 0; i < saving->num_pieces; i++) {
        struct piece *piece = &saving->pieces[i];
        piece->job = (struct writer_job){.run = write_piece};
        if (code == STARPULLM_OK)
            code = data_when_readable(piece->data, piece_ready, piece);
        saving->unsubmitted += code != STARPULLM_OK;
    }
    writer_expect(saving->thread, -saving->unsubmitted);
    saving->submission = (struct writer_job){.run = end_submission};
    writer_enqueue(saving->thread, &saving->submission);
    return code;
}

status saving_wait(struct saving *saving)
{
    return writer_wait(saving->thread);
}

void saving_destroy(struct saving *saving)
{
    if (!saving)
        return;
    writer_destroy(saving->thread);
    folder_lock_release_all(&saving->locks);
    free(saving->tensors);
    free(saving->pieces);
    free(saving->root);
    free(saving);
}
