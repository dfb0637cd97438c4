/* pump.c: what is done next, on the loop: ops are checked when their turn has come, go to the queue
 * of what they need, and call back when they are finished.
 *
 * Callbacks and calls only put something into a queue; sl_dir_pump() alone decides. */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/dir.h"

void sl_queue_init(struct sl_queue *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

void sl_queue_push(struct sl_queue *q, struct sl_op *op)
{
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
}

struct sl_op *sl_queue_pop(struct sl_queue *q)
{
    struct sl_op *op = q->head;
    if (op) {
        q->head = op->next;
        if (!q->head)
            q->tail = &q->head;
        op->next = NULL;
    }
    return op;
}

/* --- checks --------------------------------------------------------------------------------------
 */

static enum sl_code mismatch(struct sl_op *op, uint64_t version)
{
    return sl_fail(&op->err, SL_E_VERSION_MISMATCH,
                   "session '%s' is at version %llu in the store; this speaks of version %llu",
                   op->id, (unsigned long long)op->s->version, (unsigned long long)version);
}

/* Of the right incarnation, and whole. */
static enum sl_code check_session(struct sl_op *op, bool creates)
{
    const struct sl_ix_session *s = op->s;
    if (!s->exists)
        return sl_fail(&op->err, SL_E_SESSION_NOT_FOUND, "there is no session '%s' in the store",
                       op->id);
    if (memcmp(s->incarnation, op->incarnation, 16) != 0)
        return creates ? sl_fail(&op->err, SL_E_SESSION_EXISTS, "there is a session '%s' already",
                                 op->id)
                       : sl_fail(&op->err, SL_E_VERSION_MISMATCH,
                                 "session '%s' was deleted and made anew", op->id);
    if (s->damaged.size && op->kind != SL_OP_REMOVE && op->kind != SL_OP_LOAD)
        return sl_fail(&op->err, SL_E_STORE_CORRUPT,
                       "session '%s' is damaged (%s/%s, offset %llu); it can only be deleted",
                       op->id, op->d->path, SL_LOG_NAME, (unsigned long long)s->damaged.at);
    return SL_OK;
}

/* The versions that are within reach. */
static enum sl_code list_points(struct sl_op *op)
{
    op->points = sl_calloc(sl_index_count_points(op->s), sizeof *op->points);
    if (!op->points)
        return sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for the versions of session '%s'",
                       op->id);
    op->n_points = sl_index_points(op->s, op->points);
    return SL_OK;
}

static enum sl_code list_names(struct sl_op *op)
{
    op->names = sl_calloc(op->s->n_names + 1, sizeof *op->names);
    if (!op->names)
        return sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for the checkpoints of session '%s'",
                       op->id);
    sl_index_names(op->s, op->names);
    op->n_names = op->s->n_names;
    return SL_OK;
}

static enum sl_code check_reach(struct sl_op *op)
{
    struct sl_snapfile base;
    if (op->version == SL_STORE_LAST || op->s->damaged.size ||
        sl_index_reach(op->s, op->version, &base))
        return SL_OK;
    enum sl_code c = list_points(op);
    return c ? c : sl_store_no_point(&op->err, op->id, op->version, op->points, op->n_points);
}

static bool has_name(const struct sl_op *op)
{
    const struct sl_ix_name *x = sl_index_find_name(op->s, op->name->name);
    return x && x->version == op->version;
}

static enum sl_code check_name(struct sl_op *op)
{
    const struct sl_ix_session *s = op->s;
    const struct sl_ix_name *x = sl_index_find_name(s, op->name->name);
    if (op->now != s->version)
        return mismatch(op, op->now);
    if (op->kind == SL_OP_UNNAME)
        return x ? SL_OK : sl_store_no_name(&op->err, op->id, op->name->name);
    if (has_name(op))
        return SL_OK;
    if (x)
        return sl_store_name_taken(&op->err, op->id, x->name, x->version);
    if (s->n_names >= op->d->max_names)
        return sl_store_names_full(&op->err, op->id, s->n_names);
    return check_reach(op);
}

/* It is there, or was, and others have taken its place since. */
static bool has_answer(const struct sl_op *op)
{
    const struct sl_ix_entry *last = op->s->last_entry;
    return last && last->version >= op->version;
}

static bool needs_nothing(const struct sl_op *op)
{
    return (op->kind == SL_OP_NAME && has_name(op)) || (op->kind == SL_OP_ANSWER && has_answer(op));
}

static enum sl_code check(struct sl_op *op)
{
    const struct sl_ix_session *s = op->s;
    bool creates = op->kind == SL_OP_HEAD || (op->kind == SL_OP_SNAP && op->with_head);
    if (op->code)
        return op->code; /* no memory, too large */
    if (op->kind == SL_OP_SNAP && op->version == 0)
        return sl_fail(&op->err, SL_E_INVALID_VALUE,
                       "session '%s': there is no state at version 0 to be stored", op->id);
    if (creates && !s->exists && (op->kind == SL_OP_SNAP || op->version == 0))
        return SL_OK;
    enum sl_code c = check_session(op, creates);
    if (c)
        return c;
    switch (op->kind) {
    case SL_OP_HEAD:
        return op->version == s->version ? SL_OK : mismatch(op, op->version);
    case SL_OP_TURN:
        return op->version && op->version - 1 == s->version ? SL_OK : mismatch(op, op->version);
    case SL_OP_SNAP: /* with a head it speaks for what is above it, too */
        return op->version >= s->snap.version &&
                       (op->with_head ? op->version >= s->version : op->version <= s->version)
                   ? SL_OK
                   : mismatch(op, op->version);
    case SL_OP_ANSWER:
        return has_answer(op) || op->version <= s->snap.version ? SL_OK : mismatch(op, op->version);
    case SL_OP_NAME:
    case SL_OP_UNNAME:
        return check_name(op);
    case SL_OP_LOAD:
        return check_reach(op);
    default:
        return SL_OK;
    }
}

/* --- snapshots' files ----------------------------------------------------------------------------
 */

static struct sl_file_of file_of(const struct sl_op *op, uint64_t hash)
{
    struct sl_file_of of = {.tenant = op->tenant->name, .id = op->id, .hash = hash};
    memcpy(of.incarnation, op->incarnation, 16);
    return of;
}

static void file_job(uv_work_t *w)
{
    struct sl_op *op = w->data;
    struct sl_file_of of = file_of(op, op->s->hash);
    op->code =
        sl_file_write(&op->d->files, &of, &op->folders, op->data, op->n_data, &op->snap, &op->err);
}

static void file_done(uv_work_t *w, int status)
{
    struct sl_op *op = w->data;
    struct sl_dir *d = op->d;
    (void)status; /* nothing is ever cancelled */
    d->n_filing--;
    sl_free(op->data);
    op->data = NULL;
    if (op->code) {
        d->stats.failures++;
        sl_queue_push(&d->finished, op);
    } else {
        op->written = true;
        sl_folders_set(op->tenant, op->s->hash, &op->folders);
        sl_dir_make_record(op);
        sl_queue_push(&d->to_write, op);
    }
    sl_dir_pump(d);
}

static void start_files(struct sl_dir *d)
{
    struct sl_op *op;
    while (d->n_filing < SL_STORE_FILES_MAX && (op = sl_queue_pop(&d->to_file))) {
        d->n_filing++;
        op->snap = (struct sl_snapfile){.version = op->version, .number = ++d->last_number};
        sl_folders_get(op->tenant, op->s->hash, &op->folders);
        op->work.data = op;
        uv_queue_work(d->loop, &op->work, file_job, file_done);
    }
}

/* --- what nobody needs any more ------------------------------------------------------------------
 */

static void trash_job(uv_work_t *w)
{
    struct sl_dir *d = w->data;
    for (struct sl_op *op = d->trash.head; op; op = op->next) {
        struct sl_file_of of = file_of(op, op->at);
        struct sl_error err;
        op->code = SL_OK;
        for (const struct sl_ix_snap *x = op->trash; x; x = x->next) {
            if (!x->file.number || !sl_file_remove(&d->files, &of, &x->file, &err))
                continue;
            op->code = err.code;
            op->err = err;
        }
    }
    for (struct sl_log_file *f = d->closing; f; f = f->next)
        d->io->close(f->fd);
}

static void free_op(struct sl_op *op)
{
    sl_free(op->payload);
    sl_free(op->data);
    sl_free(op->entry);
    sl_free(op->place);
    sl_free(op->name);
    sl_free(op->points);
    sl_free(op->names);
    sl_index_free_snaps(op->trash);
    sl_free(op);
}

static void trash_done(uv_work_t *w, int status)
{
    struct sl_dir *d = w->data;
    struct sl_op *op;
    (void)status;
    while ((op = sl_queue_pop(&d->trash))) {
        if (op->code)
            sl_log(SL_LOG_WARN, "an old snapshot was not removed", SL_LS("why", op->err.message));
        free_op(op);
    }
    for (struct sl_log_file *f = d->closing, *next; f; f = next) {
        next = f->next;
        sl_free(f);
    }
    d->closing = NULL;
    d->trashing = false;
    sl_dir_pump(d);
}

static void start_trash(struct sl_dir *d)
{
    struct sl_op *op;
    if (d->trashing || (!d->to_trash.head && !d->to_close))
        return;
    d->closing = d->to_close;
    d->to_close = NULL;
    while ((op = sl_queue_pop(&d->to_trash)))
        sl_queue_push(&d->trash, op);
    d->trashing = true;
    d->trasher.data = d;
    uv_queue_work(d->loop, &d->trasher, trash_job, trash_done);
}

/* --- the pump ------------------------------------------------------------------------------------
 */

static void start(struct sl_op *op)
{
    struct sl_dir *d = op->d;
    op->code = check(op);
    if (!op->code && op->kind == SL_OP_POINTS)
        op->code = list_points(op);
    if (!op->code && op->kind == SL_OP_POINTS)
        op->code = list_names(op);
    if (op->code || op->kind == SL_OP_POINTS || needs_nothing(op)) {
        sl_queue_push(&d->finished, op);
    } else if (op->kind == SL_OP_LOAD) {
        sl_queue_push(&d->to_load, op);
    } else if (op->kind == SL_OP_SNAP) {
        sl_queue_push(&d->to_file, op);
    } else {
        sl_dir_make_record(op);
        sl_queue_push(&d->to_write, op);
    }
}

void sl_dir_load_now(struct sl_op *op)
{
    struct sl_dir *d = op->d;
    bool can = d->n_loading < SL_STORE_LOADS_MAX && !d->to_load.head;
    start(op);
    if (can && d->to_load.head)
        sl_load_start(sl_queue_pop(&d->to_load));
    else
        uv_async_send(&d->wake);
}

/* Its session's next one can come; it calls back and is gone, or becomes trash. */
static void finish(struct sl_op *op)
{
    struct sl_dir *d = op->d;
    struct sl_ix_session *s = op->s;
    if (s) {
        assert(s->ops == op);
        s->ops = op->after;
        if (s->ops)
            sl_queue_push(&d->arrivals, s->ops);
        else
            s->last_op = NULL;
        op->at = s->hash; /* its place in the log is not asked for any more */
        sl_index_release(&d->ix, s);
        op->s = NULL;
    }
    d->n_ops--;
    if (op->kind == SL_OP_LOAD) {
        sl_load_tell(op);
        sl_load_free(op);
    } else if (op->kind == SL_OP_POINTS) {
        const struct sl_store_kept kept = {op->points, op->n_points, op->names, op->n_names};
        op->pointed(op->arg, op->code ? NULL : &kept, op->code ? &op->err : NULL);
    } else {
        op->done(op->arg, op->code, op->code ? &op->err : NULL);
    }
    if (op->trash)
        sl_queue_push(&d->to_trash, op);
    else
        free_op(op);
}

void sl_dir_starve(struct sl_dir *d, const struct sl_starved *v)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a call of the store");
    d->n_ops--;
    if (v->loaded)
        v->loaded(v->arg, NULL, &err);
    else if (v->pointed)
        v->pointed(v->arg, NULL, &err);
    else
        v->done(v->arg, SL_E_NO_MEMORY, &err);
}

static void tell_starved(struct sl_dir *d)
{
    size_t n = d->n_starved;
    for (size_t i = 0; i < n; i++) {
        struct sl_starved v = d->starved[i]; /* the callback may add some */
        sl_dir_starve(d, &v);
    }
    d->n_starved -= n;
    memmove(d->starved, d->starved + n, d->n_starved * sizeof *d->starved);
}

static void on_closed(uv_handle_t *h)
{
    struct sl_dir *d = h->data;
    void (*closed)(void *arg) = d->closed;
    void *arg = d->closed_arg;
    sl_dir_free(d);
    if (closed)
        closed(arg);
}

static bool is_idle(const struct sl_dir *d)
{
    return d->n_ops == 0 && !d->writing && !d->rewriting && !d->trashing && !d->to_trash.head &&
           !d->to_close;
}

static void advance_close(struct sl_dir *d)
{
    if (d->state == SL_DIR_CLOSING && is_idle(d)) {
        d->state = SL_DIR_MARKING;
        if (!d->marked && !d->broken)
            sl_dir_mark_async(d);
    }
    if (d->state == SL_DIR_MARKING && is_idle(d)) {
        d->state = SL_DIR_CLOSED;
        uv_close((uv_handle_t *)&d->wake, on_closed);
    }
}

void sl_dir_pump(struct sl_dir *d)
{
    struct sl_op *op;
    if (d->state == SL_DIR_CLOSED)
        return;
    tell_starved(d);
    while (d->finished.head || d->arrivals.head) {
        while ((op = sl_queue_pop(&d->finished)))
            finish(op);
        while ((op = sl_queue_pop(&d->arrivals)))
            start(op);
    }
    start_files(d);
    while (d->n_loading < SL_STORE_LOADS_MAX && (op = sl_queue_pop(&d->to_load)))
        sl_load_start(op);
    sl_dir_write(d);
    start_trash(d);
    if (d->state != SL_DIR_OPEN)
        advance_close(d);
}

void sl_dir_wake(uv_async_t *a)
{
    sl_dir_pump(a->data);
}
