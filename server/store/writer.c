/* writer.c: the one writer of the log: batches of records, and rewrites.
 *
 * While a batch is being written and synced, the records that arrive wait, and go together in the
 * next one: one fdatasync serves all of them (group commit). Either the whole batch counts or
 * nothing of it. Records are applied to the memory afterwards, on the loop.
 *
 * A log that is broken (log.h) is rewritten at the next attempt to write; while that fails, every
 * write is refused with the cause, and reads go on. */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/dir.h"

enum { KEEP_BYTES = 1 << 20 /* of a batch's memory, for the next one */ };

void sl_dir_unref_log(struct sl_dir *d, struct sl_log_file *f)
{
    if (!f || --f->refs > 0)
        return;
    d->io->close(f->fd);
    sl_free(f);
}

void sl_dir_make_record(struct sl_op *op)
{
    const struct sl_ix_session *s = op->s;
    static const enum sl_record_kind kinds[] = {[SL_OP_HEAD] = SL_RECORD_HEAD,
                                                [SL_OP_TURN] = SL_RECORD_TURN,
                                                [SL_OP_SNAP] = SL_RECORD_SNAP,
                                                [SL_OP_REMOVE] = SL_RECORD_DELETE};
    op->record = (struct sl_record){.kind = op->with_head ? SL_RECORD_HEAD : kinds[op->kind],
                                    .tenant = op->tenant->name,
                                    .tenant_n = op->tenant->name_n,
                                    .id = op->id,
                                    .id_n = strlen(op->id),
                                    .version = op->version,
                                    .payload_n = op->payload_n};
    memcpy(op->record.incarnation, op->incarnation, 16);
    if (op->kind == SL_OP_REMOVE) {
        op->record.version = s->version;
    } else if (op->kind == SL_OP_HEAD) {
        struct sl_head_payload h = op->head;
        if (s->exists) { /* a patch: what it does not speak of stays */
            sl_index_head(s, &h);
            h.used_at = op->head.used_at;
            h.ttl_s = op->head.ttl_s;
            h.metadata_n = op->head.metadata_n;
        }
        sl_head_payload_write(op->payload, &h);
    } else if (op->kind == SL_OP_SNAP && op->with_head) {
        op->head.snap = op->snap;
        sl_head_payload_write(op->payload, &op->head);
    } else if (op->kind == SL_OP_SNAP) {
        sl_snap_payload_write(op->payload, &op->snap);
    }
}

/* --- batches -------------------------------------------------------------------------------------
 */

/* Lays the records out behind each other as they will lie in the log. */
static bool build(struct sl_batch *b)
{
    size_t n = b->mark ? SL_RECORD_HEADER : 0;
    for (struct sl_op *op = b->ops.head; op; op = op->next)
        n += sl_record_size(&op->record);
    if (!sl_bytes_reserve(&b->out, n)) {
        b->code = sl_fail(&b->err, SL_E_NO_MEMORY, "no memory for a write of %zu bytes", n);
        return false;
    }
    b->n_out = n;
    uint64_t at = b->at;
    if (b->mark) {
        struct sl_record mark = {.kind = SL_RECORD_MARK, .batch = at};
        sl_record_write(b->out.p, &mark, NULL, b->log_id, at);
    }
    for (struct sl_op *op = b->ops.head; op; op = op->next) {
        op->record.batch = b->at;
        op->at = at;
        sl_record_write(b->out.p + (at - b->at), &op->record, op->payload, b->log_id, at);
        at += sl_record_size(&op->record);
    }
    return true;
}

static void write_batch(struct sl_dir *d)
{
    struct sl_batch *b = &d->batch;
    b->code = SL_OK;
    b->broken = false;
    if (build(b) &&
        !sl_log_append(&d->place, b->fd, b->at, b->out.p, b->n_out, &b->broken, &b->err))
        b->code = b->err.code;
    if (b->out.cap > KEEP_BYTES) {
        sl_free(b->out.p);
        b->out = (struct sl_bytes){0};
    }
}

static void fill_batch(struct sl_dir *d, bool mark)
{
    struct sl_batch *b = &d->batch;
    b->mark = mark;
    b->fd = d->log->fd;
    b->log_id = d->log->id;
    b->at = d->log_end;
    sl_queue_init(&b->ops);
    size_t n = 0;
    while (!mark && d->to_write.head && (n == 0 || n < SL_STORE_BATCH_BYTES)) {
        struct sl_op *op = sl_queue_pop(&d->to_write);
        n += sl_record_size(&op->record);
        sl_queue_push(&b->ops, op);
    }
}

static void set_broken(struct sl_dir *d, const struct sl_error *why)
{
    d->broken = true;
    d->broken_by = *why;
    sl_log(SL_LOG_ERROR, "the store refuses writes until its log is rewritten",
           SL_LS("why", why->message));
}

/* It is on the disk: now it is in memory, too. */
static void take_in(struct sl_dir *d, struct sl_op *op)
{
    bool ok =
        sl_index_apply(&d->ix, op->s, &op->record, op->payload, op->at, op->entry, &op->trash);
    assert(ok); /* it was checked against the same state */
    op->entry = NULL;
    d->stats.commits++;
}

static void take_batch(struct sl_dir *d)
{
    struct sl_batch *b = &d->batch;
    struct sl_op *op;
    if (b->broken)
        set_broken(d, &b->err);
    if (!b->code) {
        d->stats.syncs++;
        d->log_end += b->n_out;
        d->marked = b->mark;
    }
    while ((op = sl_queue_pop(&b->ops))) {
        if (!b->code) {
            take_in(d, op);
        } else {
            op->code = b->code;
            op->err = b->err;
            d->stats.failures++;
            if (op->written)
                op->trash = op->snap;
        }
        sl_queue_push(&d->finished, op);
    }
}

static void batch_job(uv_work_t *w)
{
    write_batch(w->data);
}

static void batch_done(uv_work_t *w, int status)
{
    struct sl_dir *d = w->data;
    (void)status;
    d->writing = false;
    take_batch(d);
    sl_dir_pump(d);
}

static void start_batch(struct sl_dir *d, bool mark)
{
    fill_batch(d, mark);
    d->writing = true;
    d->writer.data = d;
    uv_queue_work(d->loop, &d->writer, batch_job, batch_done);
}

void sl_dir_mark(struct sl_dir *d)
{
    fill_batch(d, true);
    write_batch(d);
    take_batch(d);
}

void sl_dir_mark_async(struct sl_dir *d)
{
    start_batch(d, true);
}

/* --- rewrites ------------------------------------------------------------------------------------
 */

static uint64_t dead_bytes(const struct sl_dir *d)
{
    uint64_t needed = SL_LOG_HEADER + d->ix.live;
    return d->log_end > needed ? d->log_end - needed : 0;
}

static bool rewrite_is_due(const struct sl_dir *d)
{
    uint64_t dead = dead_bytes(d);
    return d->log_end >= d->rewrite_from && dead > d->rewrite_bytes && dead > d->log_end / 2;
}

/* Everything that waits to be written fails: the log cannot be mended. */
static void refuse_all(struct sl_dir *d, const struct sl_error *why)
{
    struct sl_op *op;
    while ((op = sl_queue_pop(&d->to_write))) {
        op->code =
            sl_fail(&op->err, why->code, "the store refuses writes: %.200s; rewriting its log: %s",
                    d->broken_by.message, why->message);
        d->stats.failures++;
        if (op->written)
            op->trash = op->snap;
        sl_queue_push(&d->finished, op);
    }
}

static void rewrite_failed(struct sl_dir *d, const struct sl_error *why, bool renamed)
{
    d->stats.failures++;
    d->rewrite_from = d->log_end + d->rewrite_bytes;
    if (renamed && !d->broken)
        set_broken(d, why);
    else if (!d->broken)
        sl_log(SL_LOG_WARN, "the store's log could not be rewritten", SL_LS("why", why->message));
    if (d->broken)
        refuse_all(d, why);
}

static void rewrite_succeeded(struct sl_dir *d)
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
    sl_index_moved(&d->ix);
    sl_log(w->n_damaged ? SL_LOG_ERROR : SL_LOG_INFO, "the store's log was rewritten",
           SL_LI("bytes_before", before), SL_LI("bytes", w->end),
           SL_LI("sessions_damaged", w->n_damaged));
}

static void rewrite_job(uv_work_t *work)
{
    struct sl_dir *d = work->data;
    sl_rewrite_run(&d->rewrite);
}

static void rewrite_done(uv_work_t *work, int status)
{
    struct sl_dir *d = work->data;
    (void)status;
    d->writing = false;
    sl_free((void *)d->rewrite.v);
    d->rewrite.v = NULL;
    if (d->rewrite.code)
        rewrite_failed(d, &d->rewrite.err, d->rewrite.renamed);
    else
        rewrite_succeeded(d);
    sl_free(d->rewritten);
    d->rewritten = NULL;
    sl_dir_pump(d);
}

static bool list_session(void *arg, struct sl_ix_session *s)
{
    struct sl_rewrite *w = arg;
    w->v[w->n++] = s;
    return true;
}

static void start_rewrite(struct sl_dir *d)
{
    struct sl_rewrite *w = &d->rewrite;
    *w = (struct sl_rewrite){.lp = d->place, .old = d->log, .now = d->io->now()};
    w->v = sl_calloc(d->ix.n_sessions, sizeof(struct sl_ix_session *));
    d->rewritten = sl_calloc(1, sizeof *d->rewritten);
    if (!w->v || !d->rewritten) {
        struct sl_error err;
        sl_fail(&err, SL_E_NO_MEMORY, "no memory for a list of %zu sessions", d->ix.n_sessions);
        sl_free((void *)w->v);
        sl_free(d->rewritten);
        w->v = NULL;
        d->rewritten = NULL;
        rewrite_failed(d, &err, false);
        uv_async_send(&d->wake); /* the pump is beyond its finished ones */
        return;
    }
    sl_index_each(&d->ix, list_session, w);
    d->writing = true;
    d->writer.data = d;
    uv_queue_work(d->loop, &d->writer, rewrite_job, rewrite_done);
}

void sl_dir_write(struct sl_dir *d)
{
    if (d->writing || d->state == SL_DIR_MARKING)
        return;
    if (d->broken ? d->to_write.head != NULL : rewrite_is_due(d))
        start_rewrite(d);
    if (!d->writing && !d->broken && d->to_write.head)
        start_batch(d, false);
}
