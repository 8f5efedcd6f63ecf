/* Saves training states while the training goes on, one at a time.
 *
 * Parameters, m and v of a state are read between two updates: each tensor is held for reading from the moment when the
 * earlier updates of it are done until it is on the disk, so only the next update of that tensor waits. A thread writes
 * them while the next step's forward and backward run. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "io/folder_lock.h"
#include "runtime/ranks.h"
#include "session/session.h"

/* One tensor of a group, an index of state_groups. */
struct piece {
    struct saving *saving;
    struct data *data;
    int index; /* of the tensor in the file */
    int group;
    struct piece *next; /* in the queue */
};

struct saving {
    struct failure *of_tasks;              /* whose outputs are saved */
    struct folder_lock *locks;             /* of every folder that was claimed or saved into */
    struct training_state_tensor *tensors; /* that this rank owns */
    int num_tensors;
    struct piece *pieces; /* [tensor][group] */
    int num_pieces;
    /* The save that is under way, or the last one. */
    pthread_t thread;
    bool started; /* the thread hasn't been joined */
    struct training_state_writer *file;
    const struct state_root *root; /* of `locks` */
    struct training_state_meta meta;
    int keep;
    pthread_mutex_t mutex;  /* of the following */
    pthread_cond_t changed; /* the queue, or missing */
    struct piece *first;    /* the queue of pieces that can be written */
    struct piece **last;
    int missing;            /* pieces that will come into the queue */
    int written;            /* pieces that were released */
    struct failure failure; /* of the last save, until it is reported */
};

static status list_tensors(struct saving *saving, const struct starpullm_session *session)
{
    const struct workload *work = &session->work;
    const size_t total = (size_t)parameter_number(&work->config, NUM_PARAMETERS, 0);
    saving->tensors = calloc(total, sizeof *saving->tensors);
    saving->pieces = calloc(total * STATE_GROUPS, sizeof *saving->pieces);
    if (!saving->tensors || !saving->pieces)
        return out_of_memory("a table of %zu tensors could not be allocated", total);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&work->config, p); l++) {
            if (owner_of(&work->placement, p, l) != work->placement.rank)
                continue;
            for (int group = 0; group < STATE_GROUPS; group++)
                saving->pieces[saving->num_pieces++] =
                    (struct piece){.saving = saving,
                                   .data = handles_parameter(session->handles, state_groups[group], p, l),
                                   .index = saving->num_tensors,
                                   .group = group};
            saving->tensors[saving->num_tensors++] = (struct training_state_tensor){p, l};
        }
    return STARPULLM_OK;
}

status saving_create(struct starpullm_session *session)
{
    struct saving *saving = session->saving = calloc(1, sizeof *saving);
    if (!saving)
        return out_of_memory("the saving of training states could not be allocated");
    saving->of_tasks = &session->failure;
    saving->last = &saving->first;
    pthread_mutex_init(&saving->mutex, NULL);
    pthread_cond_init(&saving->changed, NULL);
    failure_init(&saving->failure);
    return list_tensors(saving, session);
}

/* ---- In the thread ---- */

/* NULL after the last piece. */
static struct piece *next_piece(struct saving *saving)
{
    pthread_mutex_lock(&saving->mutex);
    while (!saving->first && saving->missing > 0)
        pthread_cond_wait(&saving->changed, &saving->mutex);
    struct piece *piece = saving->first;
    if (piece)
        saving->first = piece->next;
    if (!saving->first)
        saving->last = &saving->first;
    pthread_mutex_unlock(&saving->mutex);
    return piece;
}

static status finish(const struct saving *saving)
{
    TRY(training_state_commit(saving->file));
    return training_state_prune(saving->root, saving->meta.step, saving->keep);
}

static void *save(void *argument)
{
    struct saving *saving = argument;
    status code = STARPULLM_OK;
    for (struct piece *piece; (piece = next_piece(saving));) {
        if (code == STARPULLM_OK)
            code = training_state_write(saving->file, piece->index, piece->group, data_memory(piece->data));
        data_release(piece->data);
        pthread_mutex_lock(&saving->mutex);
        saving->written++;
        pthread_cond_broadcast(&saving->changed);
        pthread_mutex_unlock(&saving->mutex);
    }
    if (code == STARPULLM_OK)
        code = check_tasks(saving->of_tasks);
    if (code == STARPULLM_OK && saving->written == saving->num_pieces)
        code = finish(saving);
    else
        training_state_discard(saving->file);
    failure_keep(&saving->failure, code);
    return NULL;
}

/* ---- In the caller's thread ---- */

/* In whichever thread finds the data ready: it may neither wait nor fail. */
static void piece_ready(void *argument)
{
    struct piece *piece = argument;
    struct saving *saving = piece->saving;
    pthread_mutex_lock(&saving->mutex);
    piece->next = NULL;
    *saving->last = piece;
    saving->last = &piece->next;
    saving->missing--;
    pthread_cond_broadcast(&saving->changed);
    pthread_mutex_unlock(&saving->mutex);
}

/* The thread takes over the caller's processors. It blocks all signals: a write in it isn't interrupted by one. */
static status start_thread(struct saving *saving)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&saving->thread, NULL, save, saving);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    saving->started = error == 0;
    if (error != 0)
        return out_of_memory("the thread that saves could not be started (error %d)", error);
    pthread_setname_np(saving->thread, "starpullm-save");
    return STARPULLM_OK;
}

static void wait_written(struct saving *saving, int pieces)
{
    pthread_mutex_lock(&saving->mutex);
    while (saving->written < pieces)
        pthread_cond_wait(&saving->changed, &saving->mutex);
    pthread_mutex_unlock(&saving->mutex);
}

/* All at once; one after the other if memory is limited, which those that wait to be written would fill. */
static status submit_pieces(struct saving *saving)
{
    for (int i = 0; i < saving->num_pieces; i++) {
        const status code = data_when_readable(saving->pieces[i].data, piece_ready, &saving->pieces[i]);
        if (code != STARPULLM_OK) {
            pthread_mutex_lock(&saving->mutex);
            saving->missing -= saving->num_pieces - i;
            pthread_cond_broadcast(&saving->changed);
            pthread_mutex_unlock(&saving->mutex);
            return code;
        }
        if (runtime_layout()->memory_limit)
            wait_written(saving, i + 1);
    }
    return STARPULLM_OK;
}

static status wait_saved(struct saving *saving)
{
    if (saving->started)
        pthread_join(saving->thread, NULL);
    saving->started = false;
    const status code = failure_check(&saving->failure);
    saving->failure.code = STARPULLM_OK;
    return code;
}

/* Newer states are looked for at every save: where the file system has no locks, another run may have saved them. */
static status claim(struct saving *saving, const char *directory, uint64_t run, int64_t step,
                    const struct state_root **root)
{
    TRY(training_state_make_folder(directory));
    TRY(folder_lock_take(&saving->locks, directory, run, root));
    return training_state_check_newest(*root, step);
}

static status start_saving(struct saving *saving, const struct starpullm_save_options *options,
                           const struct training_state_meta *meta)
{
    TRY(wait_saved(saving));
    TRY(claim(saving, options->directory, options->run, meta->step, &saving->root));
    saving->meta = *meta;
    saving->meta.num_tensors = saving->num_tensors;
    saving->keep = options->keep;
    saving->missing = saving->num_pieces;
    saving->written = 0;
    TRY(training_state_writer_open(saving->root, &saving->meta, saving->tensors, &saving->file));
    const status started = start_thread(saving);
    if (started != STARPULLM_OK) {
        training_state_discard(saving->file);
        return started;
    }
    return submit_pieces(saving);
}

status starpullm_session_claim_directory(starpullm_session *session, const char *directory, uint64_t run)
{
    const struct state_root *root;
    CHECK_POINTERS(session, directory);
    return ranks_agree(claim(session->saving, directory, run, session->updates, &root));
}

status starpullm_session_save_state(starpullm_session *session, const struct starpullm_save_options *options)
{
    CHECK_POINTERS(session);
    CHECK_STRUCT(options);
    CHECK_POINTERS(options->directory);
    TRY(check_not_held(session->hold));
    if (options->keep < 1)
        return invalid_argument("keep: found %d, expected at least 1", options->keep);
    TRY(session_check_usable(session));
    TRY(check_tasks(&session->failure));
    if (session->instrument && instrument_audit(session->instrument))
        return invalid_state("the session is audited, expected one that isn't: a state is written while tasks run, "
                             "from memory that the audit closes outside of tasks");
    const struct adamw_options *adamw = &session->adamw;
    const struct training_state_meta meta = {
        .config = session->work.config,
        .rank = session->work.placement.rank,
        .num_ranks = session->work.placement.ranks,
        .step = session->updates,
        .run = options->run,
        .batches = options->batches,
        .batch_size = pipelines(&session->work.placement) * session->batch_size,
        .seq_len = (int64_t)session->work.T,
        .seed = options->seed,
        .data_id = options->data_id,
        .learning_rate = session->learning_rate,
        .beta1 = adamw->beta1,
        .beta2 = adamw->beta2,
        .eps = adamw->eps,
        .weight_decay = adamw->weight_decay,
        .arithmetic = session->arithmetic,
    };
    return start_saving(session->saving, options, &meta);
}

status starpullm_session_wait_saved(starpullm_session *session)
{
    CHECK_POINTERS(session);
    return wait_saved(session->saving);
}

void saving_destroy(struct saving *saving)
{
    if (!saving)
        return;
    (void)wait_saved(saving);
    folder_lock_release_all(&saving->locks);
    failure_destroy(&saving->failure);
    pthread_cond_destroy(&saving->changed);
    pthread_mutex_destroy(&saving->mutex);
    free(saving->tensors);
    free(saving->pieces);
    free(saving);
}
