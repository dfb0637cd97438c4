/* rewrite.c: the log again, without what is needed no longer.
 *
 * Per session: HEAD as of its snapshot, the answers kept of turns before, the turns since; and HEAD
 * once more where it changed after the last of them. Everything is read from the old log and
 * verified; what cannot be verified makes the session BROKEN in the new one too. At the end stands
 * a MARK as a batch of its own, so that damage to what is before it is never taken for a torn end.
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

struct work {
    struct sl_rewrite *w;
    struct sl_ix_session *s; /* the one that is being written */
    struct sl_owner owner;
    struct sl_bytes out; /* n_out bytes that are not written yet; they begin at `flushed` */
    size_t n_out;
    uint64_t flushed;
    struct sl_bytes in;
};

static enum sl_code fail_new(struct sl_rewrite *w, const char *call, int e)
{
    return sl_io_fail(&w->err, call, (struct sl_where){w->lp.root, SL_LOG_NEW_NAME}, e);
}

static enum sl_code flush(struct work *k)
{
    int e = sl_io_write(k->w->lp.io, k->w->fd, k->out.p, k->n_out, k->flushed);
    if (e)
        return fail_new(k->w, "write to", e);
    k->flushed += k->n_out;
    k->n_out = 0;
    return SL_OK;
}

/* place NULL: nobody asks for it again. */
static enum sl_code emit(struct work *k, const struct sl_record *r, const void *payload,
                         struct sl_place *place)
{
    size_t size = sl_record_size(r);
    if (k->n_out > 0 && size > OUT_BYTES - k->n_out) {
        enum sl_code c = flush(k);
        if (c)
            return c;
    }
    if (!sl_bytes_reserve(&k->out, k->n_out + size))
        return sl_fail(&k->w->err, SL_E_NO_MEMORY, "no memory for a record of %zu bytes", size);
    uint64_t at = k->flushed + k->n_out;
    sl_record_write(k->out.p + k->n_out, r, payload, k->w->id, at);
    k->n_out += size;
    if (place) {
        place->moved_to = at;
        place->moved_size = (uint32_t)size;
    }
    return k->n_out >= OUT_BYTES ? flush(k) : SL_OK;
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
    enum sl_code c =
        sl_log_fetch(&k->w->lp, k->w->old, &k->owner, place, &k->in, ret, ret_payload, &k->w->err);
    if (!c && ret->kind != kind && !(kind == SL_RECORD_TURN && ret->kind == SL_RECORD_ANSWER))
        c = sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds another record",
                    k->w->lp.root, SL_LOG_NAME, (unsigned long long)place->at);
    return c;
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
    if (old->kind == SL_RECORD_TURN && sl_turn_payload_read(&t, payload, old->payload_n))
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
    if (!e->turn && sl_answer_expired(e->answered_at, k->w->now))
        return SL_OK;
    enum sl_code c = fetch(k, &e->place, SL_RECORD_TURN, &old, &payload);
    if (c)
        return c;
    if (!e->turn)
        return emit_answer(k, e, &old, payload);
    if (old.version != e->version || !sl_turn_payload_read(&t, payload, old.payload_n))
        return sl_fail(&k->w->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu holds another turn",
                       k->w->lp.root, SL_LOG_NAME, (unsigned long long)e->place.at);
    *ret_used_at = t.used_at;
    struct sl_record r = record_of(k, SL_RECORD_TURN, e->version, old.payload_n);
    return emit(k, &r, payload, &e->place);
}

static enum sl_code emit_whole(struct work *k)
{
    struct sl_ix_session *s = k->s;
    int64_t used_at = s->used_at;
    enum sl_code c = emit_head(k, s->snap.version);
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
}

static enum sl_code emit_session(struct work *k, struct sl_ix_session *s)
{
    k->s = s;
    k->owner = (struct sl_owner){s->tenant->name, s->id, s->incarnation};
    forget_moves(s);
    if (s->damaged.size)
        return emit_damaged(k);
    enum sl_code c = emit_whole(k);
    if (c != SL_E_STORE_CORRUPT)
        return c;
    k->w->n_damaged++;
    char why[sizeof k->w->err.message + 32];
    snprintf(why, sizeof why, "%.300s (found when it was rewritten)", k->w->err.message);
    return emit_broken(k, why);
}

static enum sl_code write_all(struct work *k)
{
    struct sl_rewrite *w = k->w;
    if (!sl_bytes_reserve(&k->out, OUT_BYTES))
        return sl_fail(&w->err, SL_E_NO_MEMORY, "no memory to rewrite %s/%s", w->lp.root,
                       SL_LOG_NAME);
    sl_log_header_write(k->out.p, w->id);
    k->n_out = SL_LOG_HEADER;
    enum sl_code c = SL_OK;
    for (size_t i = 0; !c && i < w->n; i++)
        c = emit_session(k, w->v[i]);
    if (!c && k->n_out > OUT_BYTES - SL_RECORD_HEADER)
        c = flush(k);
    if (c)
        return c;
    struct sl_record mark = {.kind = SL_RECORD_MARK, .batch = k->flushed + k->n_out};
    c = emit(k, &mark, NULL, NULL);
    if (!c && k->n_out)
        c = flush(k);
    if (c)
        return c;
    int e = sl_io_fsync(w->lp.io, w->fd);
    w->end = k->flushed;
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

static enum sl_code open_new(struct sl_rewrite *w)
{
    const struct sl_store_io *io = w->lp.io;
    if (io->unlink(w->lp.dir, SL_LOG_NEW_NAME) < 0 && errno != ENOENT)
        return fail_new(w, "unlink of", errno);
    w->fd = sl_io_open(io, w->lp.dir, SL_LOG_NEW_NAME, O_RDWR | O_CREAT | O_EXCL);
    return w->fd < 0 ? fail_new(w, "open of", errno) : SL_OK;
}

void sl_rewrite_run(struct sl_rewrite *w)
{
    struct work k = {.w = w};
    w->fd = -1;
    w->renamed = false;
    w->n_damaged = 0;
    w->code = sl_log_new_id(&w->id, &w->err);
    if (!w->code)
        w->code = open_new(w);
    if (!w->code)
        w->code = write_all(&k);
    if (!w->code)
        w->code = put_in_place(w);
    if (w->code && w->fd >= 0) {
        w->lp.io->close(w->fd);
        w->fd = -1;
        if (!w->renamed)
            w->lp.io->unlink(w->lp.dir, SL_LOG_NEW_NAME); /* if that fails, the next one does it */
    }
    sl_free(k.out.p);
    sl_free(k.in.p);
}
