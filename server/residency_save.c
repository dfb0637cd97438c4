/* residency_save.c: sessions -> snapshots: encoding in libuv's pool, saving, evicting, the flush at
 * the drain. See residency.h.
 *
 * An encoding pins its slot by a reference, so that a turn may commit meanwhile; that slot is one
 * more than the session's place. At most SL_SAVES_MAX are under way, for which the slab has room
 * (sl_sessions_slots()); the others wait in line, without a pin. */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/forward.h"
#include "server/sessions_priv.h"

enum { CONTINUATION_BYTES_MAX = 64 << 20 };

/* --- encoding -------------------------------------------------------------------------------- */

struct sl_encode {
    struct sl_encode *next; /* in line */
    struct sl_sessions *ss;
    struct sl_session *s;
    enum sl_dtype dtype;
    sl_session_encoded *cb;
    void *arg;

    uv_work_t work;
    void *slot;  /* pinned */
    void *empty; /* an initial state of its own, where the session has none */
    char *metadata, *continuation;
    struct sl_transcript transcript;
    char id[SL_SESSION_ID_MAX + 1];
    struct sl_snapshot_info info;
    struct sl_encoded result;
    enum sl_code code;
    struct sl_error err;
};

static void start_encodings(struct sl_sessions *ss);

/* It fails for what the session is, and would again: nobody makes room by it until it changes. */
static bool is_own_failure(const struct sl_encode *e)
{
    return e->dtype == SL_DTYPE_F32 &&
           (e->code == SL_E_MODEL_NOT_FINITE || e->code == SL_E_SNAPSHOT_TOO_LARGE);
}

static void encode_ends(struct sl_encode *e)
{
    struct sl_sessions *ss = e->ss;
    struct sl_session *s = e->s;
    bool own = is_own_failure(e), again = !e->code || own;
    if (own) {
        s->is_unwritable = true;
        s->unwritable_version = e->result.version;
    }
    sl_slab_unref(ss->opt.slab, e->slot);
    sl_free(e->empty);
    sl_free(e->metadata);
    sl_free(e->continuation);
    sl_transcript_done(&e->transcript);
    ss->n_encoding--;
    e->cb(e->arg, s, e->code ? NULL : &e->result, e->code ? &e->err : NULL);
    sl_free(e);
    ss->n_busy--;
    sl_session_unpin(ss, s);
    start_encodings(ss);
    if (again || ss->line) /* else room would be made by it at once, and for ever */
        sl_residency_balance(ss);
}

static void encode(uv_work_t *work)
{
    struct sl_encode *e = work->data;
    const struct sl_sessions_options *o = &e->ss->opt;
    char *text = e->transcript.whole ? sl_transcript_text(&e->transcript) : NULL;
    e->info.transcript = text;
    if (e->transcript.whole && !text)
        e->code = sl_fail(&e->err, SL_E_NO_MEMORY, "no memory for a transcript");
    else
        e->code = sl_snapshot_write(o->model, o->tokenizer, e->slot ? e->slot : e->empty, &e->info,
                                    &e->result.data, &e->result.n, &e->err);
    sl_free(text);
}

static void on_encoded(uv_work_t *work, int status)
{
    (void)status;
    encode_ends(work->data);
}

char *sl_continuation_json(const struct sl_continuation *c)
{
    size_t n;
    struct sl_buf b;
    sl_buf_init(&b, CONTINUATION_BYTES_MAX);
    sl_continuation_write(&b, c);
    sl_buf_putc(&b, '\0');
    char *text = sl_buf_code(&b, NULL) ? NULL : sl_buf_take(&b, &n);
    sl_buf_done(&b);
    return text;
}

char *sl_continuation_text(const uint32_t *pending, size_t n_pending,
                           const struct sl_penalty_ring *ring)
{
    struct sl_continuation c = {.pending = pending, .n_pending = n_pending};
    if (ring)
        c.ring = *ring;
    return sl_continuation_json(&c);
}

static char *continuation_text(const struct sl_session *s)
{
    return s->paused ? sl_strndup(s->paused, s->n_paused)
                     : sl_continuation_text(s->pending, s->n_pending, s->ring);
}

/* What the session is at this moment. */
static enum sl_code take_picture(struct sl_encode *e)
{
    const struct sl_sessions_options *o = &e->ss->opt;
    const struct sl_session *s = e->s;
    bool ok = true;
    if (s->state) {
        e->slot = s->state;
        sl_slab_ref(o->slab, e->slot);
    } else {
        e->empty = sl_aligned_calloc(sl_model_info(o->model)->state_bytes);
        ok = e->empty != NULL;
        if (ok)
            sl_model_state_init(o->model, e->empty);
    }
    if (s->metadata)
        ok = (e->metadata = sl_strndup(s->metadata, s->n_metadata)) && ok;
    if (s->n_pending)
        ok = (e->continuation = continuation_text(s)) && ok;
    ok = sl_transcript_copy(&e->transcript, &s->transcript) && ok;
    if (!ok)
        return sl_fail(&e->err, SL_E_NO_MEMORY, "no memory for a snapshot of session '%s'", s->id);
    sl_session_copy_id(e->id, s);
    e->info = (struct sl_snapshot_info){.session_id = e->id,
                                        .version = s->version,
                                        .tokens_seen = s->tokens_seen,
                                        .metadata = e->metadata,
                                        .continuation = e->continuation,
                                        .created_ms = o->now() * 1000,
                                        .dtype = e->dtype};
    memcpy(e->info.incarnation, s->incarnation, sizeof e->info.incarnation);
    e->result.version = s->version;
    e->result.stamp = s->stamp;
    e->result.tokens_seen = s->tokens_seen;
    e->result.replay_tokens = s->replay_tokens;
    return SL_OK;
}

static void start_encodings(struct sl_sessions *ss)
{
    while (ss->encode_line && ss->n_encoding < SL_SAVES_MAX) {
        struct sl_encode *e = ss->encode_line;
        ss->encode_line = e->next;
        if (!ss->encode_line)
            ss->encode_line_end = &ss->encode_line;
        ss->n_encoding++;
        e->code = take_picture(e);
        e->work.data = e;
        if (!e->code && uv_queue_work(ss->opt.loop, &e->work, encode, on_encoded) == 0)
            continue;
        if (!e->code)
            e->code = sl_fail(&e->err, SL_E_INTERNAL, "no work for the pool");
        encode_ends(e);
    }
}

void sl_sessions_encode(struct sl_sessions *ss, struct sl_session *s, enum sl_dtype dtype,
                        sl_session_encoded *cb, void *arg)
{
    assert(s->in_memory);
    struct sl_encode *e = sl_calloc(1, sizeof *e);
    if (!e) {
        struct sl_error err;
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a snapshot of session '%s'", s->id);
        cb(arg, s, NULL, &err);
        return;
    }
    e->ss = ss;
    e->s = s;
    e->dtype = dtype;
    e->cb = cb;
    e->arg = arg;
    s->n_pins++;
    ss->n_busy++;
    *ss->encode_line_end = e;
    ss->encode_line_end = &e->next;
    start_encodings(ss);
}

/* --- saving ---------------------------------------------------------------------------------- */

struct save {
    struct sl_sessions *ss;
    struct sl_session *s;
    uint64_t version, replay_tokens;
    struct sl_stamp stamp; /* with_head: that the version gets */
    bool with_head, only_head;
    uint64_t answer; /* the version of that which is being put; 0: none yet */
};

static void start_save(struct sl_sessions *ss, struct sl_session *s);

/* The head as it is now goes to the store. What changes from here on is new, and needs another
 * save. */
static struct sl_store_head take_head(struct sl_session *s)
{
    s->head_dirty = false;
    return sl_session_head(s);
}

/* Those whose version is there are told, once the head is as well; a failure is told to all, and so
 * is that there is nothing to save any more. */
static void save_ends(struct sl_sessions *ss, struct sl_session *s, uint64_t version,
                      const struct sl_error *err)
{
    struct sl_waiter **p = &s->save_waiters, *told = NULL, **end = &told;
    s->n_pins++;
    while (*p) {
        struct sl_waiter *w = *p;
        if (err || s->vanished || (w->version <= version && !s->head_dirty)) {
            *p = w->next;
            w->next = NULL;
            *end = w;
            end = &w->next;
        } else {
            p = &w->next;
        }
    }
    s->saving = s->save_waiters != NULL;
    if (s->saving)
        start_save(ss, s);
    ss->stats.saves += !err;
    ss->stats.failures += err != NULL;
    while (told) {
        struct sl_waiter *next = told->next;
        told->cb(told->arg, s, err);
        sl_free(told);
        told = next;
    }
    sl_session_unpin(ss, s);
    if (!err) /* else it would be tried again at once, for ever */
        sl_residency_balance(ss);
}

/* In a shared store who makes a session writes its head; another one that is not there has gone. */
static bool is_made(const struct sl_session *s)
{
    return s->making || s->unwritten;
}

/* How the save ended: its answers, too, where the snapshot or head got there. */
static void put_ends(struct save *v, enum sl_code code, const struct sl_error *err)
{
    struct sl_session *s = v->s;
    struct sl_sessions *ss = v->ss;
    uint64_t version = v->version;
    sl_free(v);
    ss->n_busy--;
    save_ends(ss, s, version, code ? err : NULL);
}

static void put_answers(struct save *v);

static void on_answer_put(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct save *v = arg;
    if (code) {
        put_ends(v, code, err);
        return;
    }
    if (v->answer > v->s->answers_saved)
        v->s->answers_saved = v->answer;
    put_answers(v);
}

/* Answers of turns that were not written one by one go behind the snapshot that holds those, each
 * when the one before it is there: the store has all up to the last that it has. */
static void put_answers(struct save *v)
{
    const struct sl_session *s = v->s;
    const struct sl_store_key key = sl_session_key(s);
    size_t n = sl_session_has_unsaved_answer(v->ss, s) ? s->n_answers : 0;
    for (size_t i = 0; i < n; i++) {
        const struct sl_answer *a = &s->answers[i];
        if (a->version <= s->answers_saved || a->version > v->version)
            continue;
        struct sl_store_answer put = {.idempotency_key = a->key,
                                      .at = a->at,
                                      .version = a->version,
                                      .body = {a->body, a->n_body}};
        memcpy(put.request_hash, a->request_hash, sizeof put.request_hash);
        v->answer = a->version;
        sl_store_put_answer(v->ss->store, &key, &put, on_answer_put, v);
        return;
    }
    put_ends(v, SL_OK, NULL);
}

static void on_put(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct save *v = arg;
    struct sl_session *s = v->s;
    struct sl_sessions *ss = v->ss;
    if (!code) {
        s->in_store = true;
        if (!v->only_head) {
            s->saved_version = v->version;
            s->reread_tokens = 0;
            /* A restore may have come between. */
            s->replay_tokens -=
                v->replay_tokens < s->replay_tokens ? v->replay_tokens : s->replay_tokens;
        }
        if (v->with_head && !v->only_head)
            s->stamp = v->stamp;
        sl_session_recount(ss, s);
        put_answers(v);
        return;
    }
    if (ss->shared && !is_made(s) &&
        (code == SL_E_VERSION_MISMATCH || code == SL_E_SESSION_NOT_FOUND)) {
        /* Another server has gone on with it, or deleted it, or the store came back older: nothing
         * is to be saved here. */
        s->stale = s->stale || s->version == v->version;
        code = SL_OK;
    } else if (v->with_head) {
        s->head_dirty = true;
    }
    put_ends(v, code, err);
}

static void on_encoded_to_save(void *arg, struct sl_session *s, const struct sl_encoded *e,
                               const struct sl_error *err)
{
    struct save *v = arg;
    struct sl_sessions *ss = v->ss;
    if (!e) {
        sl_free(v);
        ss->n_busy--;
        save_ends(ss, s, 0, err);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    v->with_head = ss->shared ? is_made(s) : !s->in_store || !sl_session_writes_turns(ss, s);
    struct sl_store_head head = v->with_head ? take_head(s) : sl_session_head(s);
    v->version = head.version = e->version;
    head.tokens_seen = e->tokens_seen;
    v->replay_tokens = e->replay_tokens;
    head.stamp = v->stamp = sl_store_stamp(ss->store);
    key.stamp = &e->stamp;
    sl_store_put_snapshot(ss->store, &key, v->version, v->with_head ? &head : NULL, e->data, e->n,
                          on_put, v);
}

static void start_save(struct sl_sessions *ss, struct sl_session *s)
{
    if (s->vanished) {
        save_ends(ss, s, s->version, NULL);
        return;
    }
    struct save *v = sl_calloc(1, sizeof *v);
    if (!v) {
        struct sl_error err;
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to save session '%s'", s->id);
        save_ends(ss, s, 0, &err);
        return;
    }
    *v = (struct save){.ss = ss, .s = s};
    ss->n_busy++;
    if (!s->in_memory || s->version == s->saved_version) { /* its head alone, or answers */
        struct sl_store_head head = take_head(s);
        v->version = s->version;
        v->with_head = v->only_head = true;
        sl_store_put_head(ss->store, &head, on_put, v);
        return;
    }
    sl_sessions_encode(ss, s, SL_DTYPE_F32, on_encoded_to_save, v);
}

void sl_sessions_save(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb, void *arg)
{
    if (sl_session_is_saved(ss, s)) {
        cb(arg, s, NULL);
        return;
    }
    struct sl_waiter *w = sl_calloc(1, sizeof *w);
    if (!w) {
        struct sl_error err;
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to save session '%s'", s->id);
        cb(arg, s, &err);
        return;
    }
    *w = (struct sl_waiter){.next = s->save_waiters, .version = s->version, .cb = cb, .arg = arg};
    s->save_waiters = w;
    if (!s->saving) {
        s->saving = true;
        start_save(ss, s);
    }
}

/* --- flush ----------------------------------------------------------------------------------- */

static void flush_more(struct sl_sessions *ss);

/* Whose turns are stored as they are made is in the store without this snapshot, too: they are read
 * again when it is loaded. */
static void on_flushed(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    if (err && sl_session_writes_turns(ss, s))
        sl_log(SL_LOG_WARN, "a session's last turns are stored without a snapshot",
               SL_LS("session", s->id), SL_LS("why", err->message));
    else if (err && ss->n_flush_failed++ == 0)
        ss->flush_error = *err;
    ss->n_flushing--;
    flush_more(ss);
}

static void flush_bucket(struct sl_sessions *ss, size_t i)
{
    for (struct sl_session *s = sl_session_table_at(&ss->table, i); s; s = s->next_same) {
        if (s->unwritten || sl_session_is_saved(ss, s))
            continue;
        ss->n_flushing++;
        sl_sessions_save(ss, s, on_flushed, ss);
    }
}

/* A few at a time: each is in memory twice until it is written. */
static void flush_more(struct sl_sessions *ss)
{
    while (ss->flush_at < ss->table.n_buckets && ss->n_flushing < SL_SAVES_MAX)
        flush_bucket(ss, ss->flush_at++);
    if (ss->n_flushing || !ss->flushed)
        return;
    sl_sessions_flushed *flushed = ss->flushed;
    ss->flushed = NULL;
    flushed(ss->flushed_arg, ss->n_flush_failed, &ss->flush_error);
}

void sl_sessions_flush(struct sl_sessions *ss, sl_sessions_flushed *flushed, void *arg)
{
    ss->flushed = flushed;
    ss->flushed_arg = arg;
    ss->n_flush_failed = 0;
    /* A shared store has every turn, and another server goes on. */
    ss->flush_at = ss->shared ? ss->table.n_buckets : 0;
    flush_more(ss);
}
