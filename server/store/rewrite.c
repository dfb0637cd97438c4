/* rewrite.c: the log again, without what is needed no longer.
 *
 * Per session: HEAD as of its snapshot; its names; what is kept from before it: earlier snapshots,
 * turns, answers; the turns since; and HEAD once more where it changed after the last of them.
 * Everything is read from the old log and verified; what cannot be verified makes the session
 * BROKEN in the new one too. Behind the sessions come the records that were appended to the old log
 * after their session had been copied (the tail), one by one: read from the start, the new log
 * makes of each session what the old one made of it, since what comes before a tail's record is the
 * session as that record found it. A session that is newer than the rewrite is all tail. At the end
 * stands a MARK as a batch of its own, so that damage to what is before it is never taken for a
 * torn end.
 *
 * The new file is whole and synced before it takes the old one's name, and nothing is written to it
 * before the name is synced: a crash at any point leaves one log or the other, and both say the
 * same. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/log.h"

enum { OUT_BYTES = 1 << 18 };

/* A session that is being copied. */
struct work {
    struct sl_rewrite *w;
    struct sl_ix_session *s;
    struct sl_owner owner;
};

static enum sl_code fail_new(struct sl_rewrite *w, const char *call, int e)
{
    return sl_io_fail(&w->err, call, (struct sl_where){w->lp.root, SL_LOG_NEW_NAME}, e);
}

static enum sl_code flush(struct sl_rewrite *w)
{
    int e = w->n_out ? sl_io_write(w->lp.io, w->fd, w->out.p, w->n_out, w->flushed) : 0;
    if (e)
        return fail_new(w, "write to", e);
    w->flushed += w->n_out;
    w->n_out = 0;
    return SL_OK;
}

static uint64_t end_of(const struct sl_rewrite *w)
{
    return w->flushed + w->n_out;
}

/* *ret_at: where it is. */
static enum sl_code put(struct sl_rewrite *w, const struct sl_record *r, const void *payload,
                        uint64_t *ret_at)
{
    size_t size = sl_record_size(r);
    if (w->n_out > 0 && size > OUT_BYTES - w->n_out) {
        enum sl_code c = flush(w);
        if (c)
            return c;
    }
    if (!sl_bytes_reserve(&w->out, w->n_out + size))
        return sl_fail(&w->err, SL_E_NO_MEMORY, "no memory for a record of %zu bytes", size);
    *ret_at = end_of(w);
    sl_record_write(w->out.p + w->n_out, r, payload, w->id, *ret_at);
    w->n_out += size;
    return w->n_out >= OUT_BYTES ? flush(w) : SL_OK;
}

static enum sl_code emit(struct work *k, const struct sl_record *r, const void *payload,
                         struct sl_place *place)
{
    uint64_t at;
    enum sl_code c = put(k->w, r, payload, &at);
    if (!c) {
        place->moved_to = at;
        place->moved_size = (uint32_t)sl_record_size(r);
    }
    return c;
}

static struct sl_record record_of(const struct work *k, enum sl_record_kind kind, uint64_t version,
                                  size_t payload_n)
{
    struct sl_record r = {.kind = kind,
                          .tenant = k->s->tenant->name,
                          .tenant_n = k->s->tenant->name_n,
                          .id = k->s->id,
                          .id_n = k->s->id_n,
                          .version = version,
                          .batch = SL_LOG_HEADER,
                          .payload_n = payload_n};
    memcpy(r.incarnation, k->s->incarnation, 16);
    return r;
}

static enum sl_code fetch(struct work *k, const struct sl_place *place, enum sl_record_kind kind,
                          struct sl_record *ret, unsigned char **ret_payload)
{
    enum sl_code c = sl_log_fetch(&k->w->lp, k->w->old, &k->owner, place, &k->w->in, ret,
                                  ret_payload, &k->w->err);
    if (c)
        return c;
    bool like_turn = ret->kind == SL_RECORD_ANSWER || ret->kind == SL_RECORD_KEPT_TURN;
    if (ret->kind == kind || (kind == SL_RECORD_TURN && like_turn))
        return SL_OK;
    return sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds another record",
                   k->w->lp.root, SL_LOG_NAME, (unsigned long long)place->at);
}

/* The head at `version`, with the metadata of the old record. */
static enum sl_code emit_head(struct work *k, uint64_t version)
{
    struct sl_record old;
    unsigned char *payload;
    struct sl_head_payload h;
    enum sl_code c = fetch(k, &k->s->head, SL_RECORD_HEAD, &old, &payload);
    if (c)
        return c;
    if (version == k->s->snap.version)
        sl_index_snap_head(k->s, &h);
    else
        sl_index_head(k->s, &h);
    if (old.payload_n != sl_head_payload_size(h.metadata_n))
        return sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds another head",
                       k->w->lp.root, SL_LOG_NAME, (unsigned long long)k->s->head.at);
    sl_head_payload_write(payload, &h);
    struct sl_record r = record_of(k, SL_RECORD_HEAD, version, old.payload_n);
    return emit(k, &r, payload, &k->s->head);
}

/* The answer of a turn that the snapshot holds. */
static enum sl_code emit_answer(struct work *k, struct sl_ix_entry *e, const struct sl_record *old,
                                const unsigned char *payload)
{
    size_t offset = 0;
    struct sl_turn_payload t;
    struct sl_answer_payload a;
    if (old->kind != SL_RECORD_ANSWER && sl_turn_payload_read(&t, payload, old->payload_n))
        offset = t.answer_offset;
    size_t n = old->payload_n - offset;
    if (!sl_answer_payload_read(&a, payload + offset, n))
        return sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds no answer",
                       k->w->lp.root, SL_LOG_NAME, (unsigned long long)e->place.at);
    struct sl_record r = record_of(k, SL_RECORD_ANSWER, e->version, n);
    return emit(k, &r, payload + offset, &e->place);
}

static enum sl_code emit_entry(struct work *k, struct sl_ix_entry *e, int64_t *ret_used_at)
{
    struct sl_record old;
    unsigned char *payload;
    struct sl_turn_payload t;
    bool whole = e->turn || e->kept;
    if (!whole && sl_answer_expired(e->answered_at, k->w->now))
        return SL_OK;
    enum sl_code c = fetch(k, &e->place, SL_RECORD_TURN, &old, &payload);
    if (c)
        return c;
    if (!whole)
        return emit_answer(k, e, &old, payload);
    if (old.version != e->version || !sl_turn_payload_read(&t, payload, old.payload_n))
        return sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds another turn",
                       k->w->lp.root, SL_LOG_NAME, (unsigned long long)e->place.at);
    if (e->turn)
        *ret_used_at = t.used_at;
    struct sl_record r =
        record_of(k, e->turn ? SL_RECORD_TURN : SL_RECORD_KEPT_TURN, e->version, old.payload_n);
    return emit(k, &r, payload, &e->place);
}

static enum sl_code emit_kept(struct work *k, struct sl_ix_snap *x)
{
    unsigned char payload[SL_KEPT_BYTES];
    const struct sl_kept_payload p = {x->file, x->tokens_seen, x->used_at};
    struct sl_record r = record_of(k, SL_RECORD_KEPT, x->file.version, sizeof payload);
    sl_kept_payload_write(payload, &p);
    return emit(k, &r, payload, &x->place);
}

static enum sl_code emit_name(struct work *k, struct sl_ix_name *x)
{
    unsigned char payload[SL_NAME_BYTES_MAX];
    size_t n = sl_name_payload_write(payload, x->name);
    struct sl_record r = record_of(k, SL_RECORD_NAME, x->version, n);
    return emit(k, &r, payload, &x->place);
}

static enum sl_code emit_whole(struct work *k)
{
    struct sl_ix_session *s = k->s;
    int64_t used_at = s->snap_used_at;
    enum sl_code c = emit_head(k, s->snap.version);
    for (struct sl_ix_name *x = s->names; !c && x; x = x->next)
        c = emit_name(k, x);
    for (struct sl_ix_snap *x = s->kept; !c && x; x = x->next)
        c = emit_kept(k, x);
    for (struct sl_ix_entry *e = s->entries; !c && e; e = e->next)
        c = emit_entry(k, e, &used_at);
    /* Touched after its last turn. */
    if (!c && used_at != s->used_at)
        c = emit_head(k, s->version);
    return c;
}

static enum sl_code emit_broken(struct work *k, const char *why)
{
    size_t n = strlen(why) + 1;
    struct sl_record r = record_of(k, SL_RECORD_BROKEN, k->s->version, n);
    return emit(k, &r, why, &k->s->damaged);
}

/* Of a session that was damaged before: its head, where there is one, and that it is damaged. */
static enum sl_code emit_damaged(struct work *k)
{
    struct sl_ix_session *s = k->s;
    struct sl_record old;
    unsigned char *payload;
    char why[128];
    enum sl_code c = s->head.size ? emit_head(k, s->snap.version) : SL_OK;
    if (c && c != SL_E_STORE_CORRUPT)
        return c;
    snprintf(why, sizeof why, "the record at offset %llu of an earlier log was damaged",
             (unsigned long long)s->damaged.at);
    c = fetch(k, &s->damaged, SL_RECORD_BROKEN, &old, &payload);
    if (c && c != SL_E_STORE_CORRUPT)
        return c;
    if (!c && old.payload_n && payload[old.payload_n - 1] == '\0' && old.payload_n <= sizeof why)
        memcpy(why, payload, old.payload_n);
    return emit_broken(k, why);
}

static void forget_moves(struct sl_ix_session *s)
{
    s->head.moved_to = s->snapat.moved_to = s->damaged.moved_to = 0;
    for (struct sl_ix_entry *e = s->entries; e; e = e->next)
        e->place.moved_to = 0;
    for (struct sl_ix_snap *x = s->kept; x; x = x->next)
        x->place.moved_to = 0;
    for (struct sl_ix_name *x = s->names; x; x = x->next)
        x->place.moved_to = 0;
}

static enum sl_code emit_session(struct sl_rewrite *w, struct sl_ix_session *s)
{
    struct work k = {.w = w, .s = s, .owner = {s->tenant->name, s->id, s->incarnation}};
    forget_moves(s);
    if (s->damaged.size)
        return emit_damaged(&k);
    enum sl_code c = emit_whole(&k);
    if (c != SL_E_STORE_CORRUPT)
        return c;
    w->n_damaged++;
    char why[sizeof w->err.message + 32];
    snprintf(why, sizeof why, "%.300s (found when it was rewritten)", w->err.message);
    return emit_broken(&k, why);
}

/* --- the owner's side ----------------------------------------------------------------------------
 */

void sl_rewrite_open(struct sl_rewrite *w, struct sl_index *ix)
{
    assert(!ix->walked);
    w->fd = -1;
    w->ix = ix;
    ix->walked = true;
}

static bool list_session(struct sl_rewrite *w, struct sl_ix_session *s)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct sl_ix_session **v =
            cap < UINT32_MAX ? sl_realloc((void *)w->v, cap, sizeof(struct sl_ix_session *)) : NULL;
        if (!v)
            return false;
        w->v = v;
        w->cap = cap;
    }
    w->v[w->n++] = s;
    s->in_rewrite = (uint32_t)w->n;
    return true;
}

enum sl_code sl_rewrite_list(struct sl_rewrite *w, size_t n_buckets)
{
    struct sl_index *ix = w->ix;
    for (; n_buckets && w->n_walked < ix->n_buckets; n_buckets--, w->n_walked++)
        for (struct sl_ix_session *s = ix->buckets[w->n_walked]; s; s = s->next)
            if (s->exists && !list_session(w, s))
                return sl_fail(&w->err, SL_E_NO_MEMORY, "no memory for a list of %zu sessions",
                               ix->n_sessions);
    if (w->n_walked < ix->n_buckets)
        return SL_OK;
    w->is_listed = true;
    ix->walked = false;
    return SL_OK;
}

enum sl_code sl_rewrite_begin(struct sl_rewrite *w, struct sl_index *ix)
{
    sl_rewrite_open(w, ix);
    return sl_rewrite_list(w, SIZE_MAX);
}

/* It is in no bucket that was listed already. */
static bool comes_later(const struct sl_rewrite *w, const struct sl_ix_session *s)
{
    return !w->is_listed && (s->seeded & (w->ix->n_buckets - 1)) >= w->n_walked;
}

bool sl_rewrite_note(struct sl_rewrite *w, struct sl_ix_session *s, const struct sl_record *r,
                     uint64_t at)
{
    if (comes_later(w, s))
        return true;
    size_t i = s->in_rewrite; /* 0: it is newer */
    if (i && i > w->next) {   /* it will be copied as it is then */
        if (r->kind == SL_RECORD_DELETE)
            w->v[i - 1] = NULL;
        return true;
    }
    if (w->n_tail == w->tail_cap) {
        size_t cap = w->tail_cap ? 2 * w->tail_cap : 64;
        struct sl_moved *v = sl_realloc(w->tail, cap, sizeof *v);
        if (!v)
            return false;
        w->tail = v;
        w->tail_cap = cap;
    }
    size_t size = sl_record_size(r);
    w->tail[w->n_tail++] = (struct sl_moved){.at = at, .size = (uint32_t)size};
    w->tail_left += size;
    w->tail_grown += size;
    return true;
}

static size_t slice_of(const struct sl_rewrite *w)
{
    return w->slice ? w->slice : SL_REWRITE_SLICE;
}

enum sl_rewrite_step sl_rewrite_next(const struct sl_rewrite *w)
{
    size_t little = slice_of(w) / 4;
    bool more = w->n_syncs < SL_REWRITE_SYNCS;
    if (w->next < w->n || (more && w->tail_left > little))
        return SL_REWRITE_COPY;
    return more && w->flushed - w->synced > little ? SL_REWRITE_SYNC : SL_REWRITE_FINISH;
}

void sl_rewrite_synced(struct sl_rewrite *w, int errnum)
{
    w->n_syncs++;
    w->synced = w->flushed;
    if (errnum)
        w->code = fail_new(w, "fsync of", errnum);
}

void sl_rewrite_done(struct sl_rewrite *w)
{
    if (w->ix && !w->is_listed)
        w->ix->walked = false;
    sl_free((void *)w->v);
    sl_free(w->tail);
    sl_free(w->in.p);
    sl_free(w->out.p);
    w->v = NULL;
    w->tail = NULL;
    w->in = w->out = (struct sl_bytes){0};
}

/* --- the steps -----------------------------------------------------------------------------------
 */

/* It becomes whose the old one is: root may be repairing the store of the server's user. A server
 * whose user may not give it away goes on with a log of its own. */
static enum sl_code make_like_old(struct sl_rewrite *w)
{
    struct stat old;
    if (!w->old)
        return SL_OK;
    if (w->lp.io->stat(w->old->fd, &old) < 0)
        return sl_io_fail(&w->err, "stat of", (struct sl_where){w->lp.root, SL_LOG_NAME}, errno);
    int e = sl_io_make_like(w->lp.io, w->fd, &old);
    return e && w->by_other ? fail_new(w, "giving owner, group and mode of the log to", e) : SL_OK;
}

static enum sl_code open_new(struct sl_rewrite *w)
{
    const struct sl_store_io *io = w->lp.io;
    enum sl_code c = sl_log_new_id(&w->id, &w->err);
    if (c)
        return c;
    if (io->unlink(w->lp.dir, SL_LOG_NEW_NAME) < 0 && errno != ENOENT)
        return fail_new(w, "unlink of", errno);
    if (!sl_bytes_reserve(&w->out, OUT_BYTES))
        return sl_fail(&w->err, SL_E_NO_MEMORY, "no memory to rewrite %s/%s", w->lp.root,
                       SL_LOG_NAME);
    w->fd = sl_io_open(io, w->lp.dir, SL_LOG_NEW_NAME, O_RDWR | O_CREAT | O_EXCL);
    if (w->fd < 0)
        return fail_new(w, "open of", errno);
    c = make_like_old(w);
    if (c)
        return c;
    sl_log_header_write(w->out.p, w->id);
    w->n_out = SL_LOG_HEADER;
    return SL_OK;
}

/* At most `max` bytes, but at least one session. */
static enum sl_code copy_sessions(struct sl_rewrite *w, size_t max)
{
    uint64_t begin = end_of(w);
    enum sl_code c = SL_OK;
    for (; !c && w->next < w->n; w->next++) {
        struct sl_ix_session *s = w->v[w->next];
        uint64_t used = end_of(w) - begin;
        if (used && s && used + s->live > max)
            break;
        if (s)
            c = emit_session(w, s);
    }
    return c;
}

/* A tail of which a batch brings more than a slice takes would never end. */
static uint64_t tail_slice(const struct sl_rewrite *w)
{
    uint64_t slice = slice_of(w);
    return 2 * w->tail_grown > slice ? 2 * w->tail_grown : slice;
}

static enum sl_code copy_record(struct sl_rewrite *w, struct sl_moved *m)
{
    const struct sl_place place = {.at = m->at, .size = m->size};
    struct sl_record r;
    unsigned char *payload;
    enum sl_code c = sl_log_fetch(&w->lp, w->old, NULL, &place, &w->in, &r, &payload, &w->err);
    if (c)
        return c;
    r.batch = SL_LOG_HEADER;
    return put(w, &r, payload, &m->to);
}

static enum sl_code copy_tail(struct sl_rewrite *w, uint64_t max)
{
    uint64_t begin = end_of(w);
    enum sl_code c = SL_OK;
    w->tail_grown = 0;
    while (!c && w->tail_next < w->n_tail) {
        struct sl_moved *m = &w->tail[w->tail_next];
        uint64_t used = end_of(w) - begin;
        if (used && used + m->size > max)
            break;
        c = copy_record(w, m);
        w->tail_next++;
        w->tail_left -= m->size;
    }
    return c;
}

void sl_rewrite_copy(struct sl_rewrite *w)
{
    if (w->fd < 0)
        w->code = open_new(w);
    if (!w->code)
        w->code = w->next < w->n ? copy_sessions(w, slice_of(w)) : copy_tail(w, tail_slice(w));
    if (!w->code)
        w->code = flush(w);
    if (w->code)
        sl_rewrite_drop(w);
}

int sl_rewrite_sync(const struct sl_rewrite *w)
{
    return sl_io_fsync(w->lp.io, w->fd);
}

static enum sl_code write_end(struct sl_rewrite *w)
{
    enum sl_code c = w->fd < 0 ? open_new(w) : SL_OK;
    if (!c)
        c = copy_tail(w, UINT64_MAX);
    if (!c && w->n_out > OUT_BYTES - SL_RECORD_HEADER)
        c = flush(w);
    if (c)
        return c;
    struct sl_record mark = {.kind = SL_RECORD_MARK, .batch = end_of(w)};
    uint64_t at;
    c = put(w, &mark, NULL, &at);
    if (!c)
        c = flush(w);
    if (c)
        return c;
    w->end = w->flushed;
    int e = sl_io_fsync(w->lp.io, w->fd);
    return e ? fail_new(w, "fsync of", e) : SL_OK;
}

static enum sl_code put_in_place(struct sl_rewrite *w)
{
    const struct sl_store_io *io = w->lp.io;
    if (io->rename(w->lp.dir, SL_LOG_NEW_NAME, SL_LOG_NAME) < 0)
        return fail_new(w, "rename of", errno);
    w->renamed = true;
    int e = sl_io_fsync(io, w->lp.dir);
    return e ? sl_io_fail(&w->err, "fsync of", (struct sl_where){w->lp.root, NULL}, e) : SL_OK;
}

void sl_rewrite_finish(struct sl_rewrite *w)
{
    w->code = write_end(w);
    if (!w->code)
        w->code = put_in_place(w);
    if (w->code)
        sl_rewrite_drop(w);
}

void sl_rewrite_drop(struct sl_rewrite *w)
{
    if (w->fd < 0)
        return;
    w->lp.io->close(w->fd);
    w->fd = -1;
    if (!w->renamed)
        w->lp.io->unlink(w->lp.dir, SL_LOG_NEW_NAME); /* if that fails, the next one does it */
}

void sl_rewrite_run(struct sl_rewrite *w)
{
    enum sl_rewrite_step step = SL_REWRITE_COPY;
    w->fd = -1;
    while (!w->code && step != SL_REWRITE_FINISH) {
        step = sl_rewrite_next(w);
        if (step == SL_REWRITE_COPY)
            sl_rewrite_copy(w);
        else if (step == SL_REWRITE_SYNC)
            sl_rewrite_synced(w, sl_rewrite_sync(w));
        else
            sl_rewrite_finish(w);
    }
    if (w->code)
        sl_rewrite_drop(w);
}
