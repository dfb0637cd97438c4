/* rewriting.c: the rewrite of the log while commits go on: which step comes when; see log.h for the
 * steps.
 *
 * A step that copies is the writer's job, as a batch is: the index does not change under it. The
 * sync of the new file, which can take long, is a job beside it. The last step shuts commits out;
 * little is left to be done by then.
 *
 * What fails before the rename drops the new file, and the next attempt waits until the log has
 * grown. A log that is broken takes no batches: then the steps follow each other, and where they
 * fail everything that waits is refused. A store that is being closed drops its rewrite. */
#include <assert.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/dir.h"

static bool is_due(const struct sl_dir *d)
{
    uint64_t needed = SL_LOG_HEADER + d->ix.live;
    uint64_t dead = d->log_end > needed ? d->log_end - needed : 0;
    return d->log_end >= d->rewrite_from && dead > d->rewrite_bytes && dead > d->log_end / 2;
}

/* What concerns every session is done so many buckets at a time, in one round of the loop after the
 * other, so that no commit waits for all of them. */
enum { BUCKETS_AT_ONCE = 1024 };

static void failed(struct sl_dir *d);

static void go_through(struct sl_dir *d)
{
    struct sl_rewrite *w = &d->rewrite;
    bool more = sl_index_settle_some(&d->ix, BUCKETS_AT_ONCE);
    if (d->rewriting && !w->is_listed) {
        w->code = w->code ? w->code : sl_rewrite_list(w, BUCKETS_AT_ONCE);
        more = !w->code && !w->is_listed;
        if (w->code)
            failed(d);
        more |= w->code != SL_OK; /* the pump is beyond its finished ones */
    }
    if (more)
        uv_async_send(&d->wake);
}

/* --- how it ends ---------------------------------------------------------------------------------
 */

/* Everything that waits to be written fails: the log cannot be mended. */
static void refuse_all(struct sl_dir *d, const struct sl_error *why)
{
    struct sl_op *op;
    while ((op = sl_queue_pop(&d->to_write))) {
        op->code =
            sl_fail(&op->err, why->code, "the store refuses writes: %.200s; rewriting its log: %s",
                    d->broken_by.message, why->message);
        d->stats.failures++;
        sl_dir_trash_written(op);
        sl_queue_push(&d->finished, op);
    }
}

static void ended(struct sl_dir *d)
{
    sl_rewrite_done(&d->rewrite);
    sl_free(d->rewritten);
    d->rewritten = NULL;
    d->rewriting = false;
}

static void failed(struct sl_dir *d)
{
    const struct sl_error *why = &d->rewrite.err;
    d->stats.failures++;
    d->rewrite_from = d->log_end + d->rewrite_bytes;
    if (d->rewrite.renamed && !d->broken)
        sl_dir_set_broken(d, why);
    else if (!d->broken)
        sl_log(SL_LOG_WARN, "the store's log could not be rewritten", SL_LS("why", why->message));
    if (d->broken)
        refuse_all(d, why);
    ended(d);
}

static void succeeded(struct sl_dir *d)
{
    struct sl_rewrite *w = &d->rewrite;
    uint64_t before = d->log_end;
    sl_dir_unref_log(d, d->log);
    *d->rewritten = (struct sl_log_file){.fd = w->fd, .id = w->id, .refs = 1};
    d->log = d->rewritten;
    d->rewritten = NULL;
    d->log_end = w->end;
    d->rewrite_from = 0;
    d->marked = true;
    d->broken = false;
    d->stats.rewrites++;
    sl_index_move(&d->ix, w->tail, w->n_tail);
    w->tail = NULL;
    sl_log(w->n_damaged ? SL_LOG_ERROR : SL_LOG_INFO, "the store's log was rewritten",
           SL_LI("bytes_before", before), SL_LI("bytes", w->end),
           SL_LI("records_beside", w->n_tail), SL_LI("sessions_damaged", w->n_damaged));
    ended(d);
    go_through(d);
}

/* --- the steps -----------------------------------------------------------------------------------
 */

static void step_job(uv_work_t *work)
{
    struct sl_dir *d = work->data;
    switch (d->step) {
    case SL_STEP_COPY:
        sl_rewrite_copy(&d->rewrite);
        return;
    case SL_STEP_FINISH:
        sl_rewrite_finish(&d->rewrite);
        return;
    default:
        sl_rewrite_drop(&d->rewrite);
    }
}

static void step_done(uv_work_t *work, int status)
{
    struct sl_dir *d = work->data;
    (void)status;
    d->writing = false;
    if (d->rewrite.code)
        failed(d);
    else if (d->step == SL_STEP_FINISH)
        succeeded(d);
    else if (d->step == SL_STEP_DROP)
        ended(d);
    sl_dir_pump(d);
}

static void start_step(struct sl_dir *d, enum sl_step step)
{
    d->step = step;
    d->writing = true;
    d->writer.data = d;
    uv_queue_work(d->loop, &d->writer, step_job, step_done);
}

static void sync_job(uv_work_t *work)
{
    struct sl_dir *d = work->data;
    d->sync_errno = sl_rewrite_sync(&d->rewrite);
}

static void sync_done(uv_work_t *work, int status)
{
    struct sl_dir *d = work->data;
    (void)status;
    d->syncing = false;
    sl_rewrite_synced(&d->rewrite, d->sync_errno);
    d->step_next = true;
    sl_dir_pump(d);
}

static void start_sync(struct sl_dir *d)
{
    d->syncing = true;
    d->syncer.data = d;
    uv_queue_work(d->loop, &d->syncer, sync_job, sync_done);
}

/* Nobody waits for it any more, or it has failed beside the writer. */
static bool is_lost(const struct sl_dir *d)
{
    return d->rewrite.code || (d->state != SL_DIR_OPEN && !d->to_write.head);
}

void sl_rewriting_step(struct sl_dir *d)
{
    assert(sl_rewriting_wants(d) && !d->writing);
    if (is_lost(d))
        start_step(d, SL_STEP_DROP);
    else if (sl_rewrite_next(&d->rewrite) == SL_REWRITE_COPY)
        start_step(d, SL_STEP_COPY);
    else
        start_step(d, SL_STEP_FINISH);
}

bool sl_rewriting_wants(const struct sl_dir *d)
{
    return d->rewriting && d->rewrite.is_listed && !d->syncing;
}

static void start(struct sl_dir *d)
{
    struct sl_rewrite *w = &d->rewrite;
    *w = (struct sl_rewrite){
        .lp = d->place, .old = d->log, .now = d->io->now(), .slice = d->rewrite_slice};
    sl_index_settle_some(&d->ix, SIZE_MAX); /* of the last one; a broken log cannot wait */
    sl_rewrite_open(w, &d->ix);
    d->rewriting = true;
    d->rewritten = sl_calloc(1, sizeof *d->rewritten);
    if (!d->rewritten)
        w->code = sl_fail(&w->err, SL_E_NO_MEMORY, "no memory to rewrite the log");
}

void sl_rewriting_consider(struct sl_dir *d)
{
    bool due = !d->ix.moving && is_due(d);
    if (!d->rewriting && (d->broken ? d->to_write.head != NULL : due) &&
        (d->broken || d->state == SL_DIR_OPEN))
        start(d);
    if (d->ix.walked)
        go_through(d);
    if (sl_rewriting_wants(d) && !is_lost(d) && sl_rewrite_next(&d->rewrite) == SL_REWRITE_SYNC)
        start_sync(d);
}

void sl_rewriting_note(struct sl_dir *d, struct sl_ix_session *s, const struct sl_record *r,
                       uint64_t at)
{
    struct sl_rewrite *w = &d->rewrite;
    if (d->rewriting && !w->code && !sl_rewrite_note(w, s, r, at))
        w->code = sl_fail(&w->err, SL_E_NO_MEMORY,
                          "no memory for a list of what was written "
                          "beside it");
}
