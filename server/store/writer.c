/* writer.c: the one writer of the log: batches of records, and between them a rewrite's steps
 * (rewriting.c).
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

/* It has another's name by now: closing it frees its blocks, which can take a tenth of a second. So
 * that is the trasher's. */
void sl_dir_unref_log(struct sl_dir *d, struct sl_log_file *f)
{
    if (!f || --f->refs > 0)
        return;
    f->next = d->to_close;
    d->to_close = f;
}

void sl_dir_make_record(struct sl_op *op)
{
    const struct sl_ix_session *s = op->s;
    static const enum sl_record_kind kinds[] = {
        [SL_OP_HEAD] = SL_RECORD_HEAD,    [SL_OP_TURN] = SL_RECORD_TURN,
        [SL_OP_SNAP] = SL_RECORD_SNAP,    [SL_OP_ANSWER] = SL_RECORD_ANSWER,
        [SL_OP_NAME] = SL_RECORD_NAME,    [SL_OP_UNNAME] = SL_RECORD_UNNAME,
        [SL_OP_REMOVE] = SL_RECORD_DELETE};
    assert(op->kind <= SL_OP_REMOVE);
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
    } else if (op->kind == SL_OP_UNNAME) {
        op->record.version = sl_index_find_name(s, op->name->name)->version; /* it was checked */
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

void sl_dir_set_broken(struct sl_dir *d, const struct sl_error *why)
{
    d->broken = true;
    d->broken_by = *why;
    sl_log(SL_LOG_ERROR, "the store refuses writes until its log is rewritten",
           SL_LS("why", why->message));
}

/* It is on the disk: now it is in memory, too. */
static void take_in(struct sl_dir *d, struct sl_op *op)
{
    sl_rewriting_note(d, op->s, &op->record, op->at);
    struct sl_ix_room room = {.entry = op->entry, .snap = op->place};
    if (op->kind == SL_OP_NAME) {
        room.name = op->name;
        op->name = NULL;
    }
    bool ok = sl_index_apply(&d->ix, op->s, &op->record, op->payload, op->at, &room, &op->trash);
    assert(ok); /* it was checked against the same state */
    op->entry = NULL;
    op->place = NULL;
    d->stats.commits++;
}

void sl_dir_trash_written(struct sl_op *op)
{
    if (!op->written)
        return;
    *op->place = (struct sl_ix_snap){.file = op->snap};
    op->trash = op->place;
    op->place = NULL;
}

static void take_batch(struct sl_dir *d)
{
    struct sl_batch *b = &d->batch;
    struct sl_op *op;
    if (b->broken)
        sl_dir_set_broken(d, &b->err);
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
            sl_dir_trash_written(op);
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

/* What is next: a batch, or a step of the rewrite that is under way. They take turns, so that a
 * commit waits for one slice at most, and the rewrite goes on under load, too. */
void sl_dir_write(struct sl_dir *d)
{
    if (d->writing || d->state == SL_DIR_MARKING)
        return;
    sl_rewriting_consider(d);
    bool batch = d->to_write.head && !d->broken;
    if (sl_rewriting_wants(d) && (!batch || d->step_next)) {
        d->step_next = false;
        sl_rewriting_step(d);
    } else if (batch) {
        d->step_next = true;
        start_batch(d, false);
    }
}
