/* session_commit.c: what gives a session another state: the commit of a turn, and a restore from a
 * snapshot's bytes. See sessions.h, and session_ops.c for what an op is. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "server/sessions_priv.h"

/* --- commit ---------------------------------------------------------------------------------- */

static void no_more_than_noted(void *arg, struct sl_session *s, const struct sl_error *err)
{
    (void)arg;
    (void)s;
    (void)err; /* the turns are in the store anyway; the next commit tries again */
}

void sl_op_apply(struct sl_op *op)
{
    struct sl_session *s = op->s;
    sl_session_keep_point(op->ss, s);
    s->state = op->state;
    s->pending = op->pending;
    s->n_pending = op->n_pending;
    s->ring = op->ring;
    s->paused = op->paused;
    s->n_paused = op->n_paused;
    op->pending = NULL;
    op->ring = NULL;
    op->paused = NULL;
    s->transcript = op->transcript;
    op->transcript = (struct sl_transcript){0};
    s->version = op->version;
    s->stamp = op->stamp;
    s->tokens_seen = op->tokens_seen;
}

/* The session's transcript with this turn becomes the op's, which has a copy where the one before
 * is kept as a point's. Room was made. */
static void continue_transcript(struct sl_op *op)
{
    struct sl_session *s = op->s;
    if (!op->transcript.whole) {
        op->transcript = s->transcript;
        s->transcript = (struct sl_transcript){0};
    }
    if (op->transcript.whole)
        sl_transcript_add(&op->transcript, op->n_drop, op->tokens, op->n_tokens);
}

/* A snapshot bounds what the next load reads again. Where a load has just read again for longer
 * than writing one takes, it is due, too: else, of a session whose turns land on changing servers,
 * each would read all that the others have read. replay_limit is taken for a quarter of a second,
 * and IN_QUARTER for what is written in one; FIXED: what any snapshot costs besides. (Measured
 * through Redis; of half as much the same comes out.) */
static bool wants_snapshot(const struct sl_sessions *ss, const struct sl_session *s)
{
    enum { FIXED = 128 << 10, IN_QUARTER = 64 << 20 }; /* bytes of a snapshot */
    double cost = (double)(sl_model_info(ss->opt.model)->state_bytes + FIXED) / IN_QUARTER;
    size_t unread = sl_unread(s->n_pending); /* of a turn that ended before it came to them */
    if (!sl_session_writes_turns(ss, s))
        return false;
    return s->replay_tokens > ss->opt.replay_limit ||
           (ss->shared && s->reread_tokens > unread &&
            (double)(s->reread_tokens - unread) > (double)ss->opt.replay_limit * cost);
}

static void commit_ends(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    s->is_bare = false;
    sl_lease_ends(ss, s, true); /* the store ended it with the turn */
    if (wants_snapshot(ss, s) && !s->saving)
        sl_sessions_save(ss, s, no_more_than_noted, NULL);
    sl_op_end_free(op, NULL);
}

static void on_first_saved(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!err) {
        s->unwritten = false;
        commit_ends(op);
        return;
    }
    s->state = NULL; /* it is the caller's again, who deletes the session */
    sl_op_end(op, s, err);
}

static void on_appended(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    if (code) {
        sl_session_shrink(ss, s, op->had_bytes);
        sl_op_end(op, s, err);
        return;
    }
    continue_transcript(op);
    sl_op_apply(op);
    s->answers_bytes = op->answers_bytes;
    sl_session_recount(ss, s);
    if (op->answer.key)
        sl_session_push_answer(s, &op->answer);
    s->replay_tokens += op->n_tokens;
    if (!s->unwritten) {
        commit_ends(op);
        return;
    }
    s->used_at = sl_sessions_now(ss);
    sl_sessions_save(ss, s, on_first_saved, op);
}

/* The continuation as JSON; a finished turn's ring follows from its tokens. */
static enum sl_code write_continuation(const struct sl_sessions *ss, const struct sl_commit *c,
                                       struct sl_buf *b, struct sl_error *err)
{
    struct sl_continuation k = {
        .pending = c->pending, .n_pending = c->n_pending, .paused = c->paused};
    if (c->paused)
        k.ring = *c->ring;
    memcpy(k.model, sl_model_info(ss->opt.model)->fingerprint, sizeof k.model);
    sl_continuation_write(b, &k);
    return sl_buf_code(b, err);
}

static enum sl_code prepare(struct sl_op *op, const struct sl_commit *c, const struct sl_buf *text,
                            struct sl_error *err)
{
    bool ok = true;
    op->pending = sl_malloc(c->n_pending * sizeof *op->pending);
    op->ring = sl_malloc(sizeof *op->ring);
    if (c->paused)
        ok = (op->paused = sl_strndup(text->data, text->len)) != NULL;
    if (c->answer) {
        op->answer = *c->answer;
        op->answer.at = sl_sessions_now(op->ss);
        op->answer.version = op->s->version + 1;
        op->answer.key = sl_strdup(c->answer->key);
        op->answer.body = sl_strndup(c->answer->body, c->answer->n_body);
        ok = ok && op->answer.key && op->answer.body && sl_session_make_answers(op->s);
    }
    ok = sl_session_prepare_point(op->ss, op->s) && ok;
    if (op->s->transcript.whole) {
        op->tokens = sl_malloc((c->n_tokens + 1) * sizeof *op->tokens);
        if (op->s->points)
            ok = ok && sl_transcript_copy(&op->transcript, &op->s->transcript);
        struct sl_transcript *t = op->s->points ? &op->transcript : &op->s->transcript;
        ok = ok && op->tokens && sl_transcript_reserve(t, c->n_tokens);
        if (ok && c->n_tokens)
            memcpy(op->tokens, c->tokens, c->n_tokens * sizeof *op->tokens);
    }
    if (!ok || !op->pending || !op->ring)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for what the session remembers of a turn");
    memcpy(op->pending, c->pending, c->n_pending * sizeof *op->pending);
    *op->ring = *c->ring;
    op->n_pending = c->n_pending;
    op->n_paused = c->paused ? text->len : 0;
    op->state = c->state;
    op->version = op->s->version + 1;
    op->tokens_seen = c->tokens_seen;
    op->n_tokens = c->n_tokens;
    op->n_drop = c->n_drop;
    return SL_OK;
}

/* What the answer adds to what the session counts with; the oldest one may go for it. */
static enum sl_code charge(struct sl_op *op, const struct sl_commit *c, struct sl_error *err)
{
    const struct sl_session *s = op->s;
    op->had_bytes = s->bytes;
    op->answers_bytes = s->answers_bytes;
    if (!c->answer)
        return SL_OK;
    op->answers_bytes = sl_answer_charge(strlen(c->answer->key), c->answer->n_body);
    for (size_t i = s->n_answers == SL_STORE_ANSWERS_MAX; i < s->n_answers; i++)
        op->answers_bytes += sl_answer_charge(strlen(s->answers[i].key), s->answers[i].n_body);
    return sl_session_grow(
        op->ss, op->s,
        sl_session_charge(op->ss, s->n_metadata, op->answers_bytes, sl_session_kept(op->ss, s)),
        err);
}

static void append(struct sl_op *op, const struct sl_commit *c, const struct sl_buf *text)
{
    struct sl_store_answer answer = {0};
    op->stamp = sl_store_stamp(op->ss->store);
    struct sl_store_turn t = {.version = op->version,
                              .stamp = op->stamp,
                              .tokens_seen = c->tokens_seen,
                              .used_at = sl_sessions_now(op->ss),
                              .n_drop = c->n_drop,
                              .tokens = c->tokens,
                              .n_tokens = c->n_tokens,
                              .n_generated = c->n_generated,
                              .continuation = {.s = text->data, .n = text->len}};
    if (c->answer) {
        answer = (struct sl_store_answer){.idempotency_key = c->answer->key,
                                          .at = op->answer.at,
                                          .version = op->version,
                                          .body = {c->answer->body, c->answer->n_body}};
        memcpy(answer.request_hash, c->answer->request_hash, sizeof answer.request_hash);
        t.answer = &answer;
    }
    struct sl_store_key key = sl_session_key(op->s);
    sl_store_append_turn(op->ss->store, &key, &t, on_appended, op);
}

void sl_sessions_commit(struct sl_sessions *ss, struct sl_session *s, const struct sl_commit *c,
                        sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_buf text;
    assert(s->leased && s->has_place && c->n_pending > 0);
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (!op) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a commit");
        cb(arg, s, &err);
        return;
    }
    op->s = s;
    sl_buf_init(&text, 64u << 20);
    enum sl_code code = SL_OK;
    if (ss->shared && !sl_session_is_ephemeral(s) && !s->unwritten && (!s->fence || s->lease_lost))
        code = sl_fail(&err, SL_E_LEASE_LOST,
                       "the lease of session '%s' was lost while the turn ran; nothing of it was "
                       "kept",
                       s->id);
    if (!code)
        code = write_continuation(ss, c, &text, &err);
    if (!code)
        code = prepare(op, c, &text, &err);
    if (!code)
        code = charge(op, c, &err);
    if (code)
        sl_op_end(op, s, &err);
    else if (sl_session_writes_turns(ss, s))
        append(op, c, &text);
    else
        on_appended(op, SL_OK, NULL);
    sl_buf_done(&text);
}

/* --- restore
 * -----------------------------------------------------------------------------------------------
 */

static void restore_fails(struct sl_op *op, const struct sl_error *err)
{
    sl_session_recount(op->ss, op->s); /* what was taken for it goes, too */
    if (op->is_new)
        sl_op_undo_new(op, err);
    else
        sl_op_give_back(op, err);
}

static void restore_done(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    sl_session_keep_point(ss, s); /* first: the place has one slot */
    op->state = sl_slab_take(ss->opt.slab);
    assert(op->state);
    memcpy(op->state, op->decoded, sl_model_info(ss->opt.model)->state_bytes);
    sl_op_apply(op);
    s->replay_tokens = s->reread_tokens = 0;
    if (sl_session_writes_turns(ss, s)) {
        s->in_store = true;
        s->saved_version = s->version;
    }
    sl_op_keep_new(op);
}

static void on_restored(void *arg, enum sl_code code, const struct sl_error *err)
{
    if (code)
        restore_fails(arg, err);
    else
        restore_done(arg);
}

static enum sl_code read_initial_state(struct sl_op *op)
{
    sl_model_state_init(op->ss->opt.model, op->decoded); /* also after an error */
    op->ring = sl_calloc(1, sizeof *op->ring);
    if (!op->ring)
        return sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to restore a session");
    if (op->kind == SL_RESTORE_STATE) {
        assert(op->n_source == sl_model_info(op->ss->opt.model)->state_bytes);
        memcpy(op->decoded, op->source, op->n_source);
        return SL_OK;
    }
    enum sl_code c = sl_initial_state_read(op->ss->opt.model, op->source, op->n_source, "from",
                                           op->decoded, &op->err);
    if (c && c != SL_E_NO_MEMORY)
        op->err.code = c = SL_E_SNAPSHOT_CORRUPT; /* it is the client's file */
    return c;
}

/* Where transcripts are kept, the snapshot's; else none. */
static enum sl_code take_transcript(struct sl_op *op, const struct sl_continuation *c)
{
    const struct sl_sessions_options *o = &op->ss->opt;
    struct sl_transcript *t = &op->transcript;
    if (!op->info.transcript || !o->keep_transcript)
        return SL_OK;
    enum sl_code code =
        sl_transcript_read(t, op->info.transcript, sl_model_info(o->model)->vocab_size, &op->err);
    if (!code && !sl_tokens_end_with(t->v, t->n, c->pending, c->n_pending))
        code = sl_fail(&op->err, SL_E_SNAPSHOT_CORRUPT,
                       "the snapshot's \"transcript\" (%zu token ids) does not end with what its "
                       "\"continuation\" has pending (%zu)",
                       t->n, c->n_pending);
    return code;
}

/* The pool's thread: checks, decodes, and encodes again under the session's own name. */
static enum sl_code decode_and_encode(struct sl_op *op)
{
    const struct sl_sessions_options *o = &op->ss->opt;
    struct sl_continuation c = {.pool = SL_POOL_INIT};
    if (op->kind != SL_RESTORE_SNAPSHOT)
        return read_initial_state(op);
    enum sl_code code = sl_snapshot_read(o->model, o->tokenizer, op->source, op->n_source,
                                         op->decoded, &op->info, &op->err);
    const char *text = op->info.continuation, *metadata = op->info.metadata;
    if (!code && op->is_new && !op->s->metadata && metadata &&
        strlen(metadata) > SL_METADATA_BYTES_MAX)
        code = sl_fail(&op->err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot's \"session.metadata\" has %zu bytes; those of a session have "
                       "up to %d",
                       strlen(metadata), SL_METADATA_BYTES_MAX);
    if (!code && text)
        code = sl_continuation_read(&c, text, strlen(text), sl_model_info(o->model)->vocab_size,
                                    &op->err);
    if (!code)
        code = take_transcript(op, &c);
    if (code) {
        sl_continuation_done(&c);
        return code;
    }
    op->pending = sl_malloc(c.n_pending * sizeof *op->pending);
    op->ring = sl_malloc(sizeof *op->ring);
    if (c.paused)
        op->paused = sl_strdup(text);
    if (!op->pending || !op->ring || (c.paused && !op->paused)) {
        code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to restore a session");
    } else {
        if (c.n_pending)
            memcpy(op->pending, c.pending, c.n_pending * sizeof *op->pending);
        *op->ring = c.ring;
        op->n_pending = c.n_pending;
        op->n_paused = c.paused ? strlen(text) : 0;
    }
    sl_continuation_done(&c);
    return code;
}

static enum sl_code encode_own(struct sl_op *op)
{
    const struct sl_sessions_options *o = &op->ss->opt;
    struct sl_snapshot_info own = op->info;
    unsigned char *data;
    size_t n;
    own.session_id = op->s->id;
    memcpy(own.incarnation, op->s->incarnation, sizeof own.incarnation);
    own.version = op->version;
    own.tokens_seen = op->tokens_seen;
    own.metadata = op->s->metadata || !op->is_new ? op->s->metadata : op->info.metadata;
    own.continuation = op->n_pending ? op->info.continuation : NULL;
    own.dtype = SL_DTYPE_F32;
    if (!op->transcript.whole)
        own.transcript = NULL;
    enum sl_code code =
        sl_snapshot_write(o->model, o->tokenizer, op->decoded, &own, &data, &n, &op->err);
    if (code)
        return code;
    op->data = data;
    op->n_data = n;
    return SL_OK;
}

static void restore_work(uv_work_t *work)
{
    struct sl_op *op = work->data;
    op->code = decode_and_encode(op);
    op->tokens_seen = op->transcript.whole ? op->transcript.n : op->info.tokens_seen;
    if (!op->code && op->is_new && op->info.version > op->version)
        op->version = op->info.version;
    if (!op->code && sl_session_writes_turns(op->ss, op->s))
        op->code = encode_own(op);
}

/* A new session that was given no metadata has those of the snapshot. They count, and so does the
 * transcript. */
static enum sl_code take_texts(struct sl_op *op)
{
    struct sl_session *s = op->s;
    const char *text = op->is_new && !s->metadata ? op->info.metadata : NULL;
    size_t n = text ? strlen(text) : s->n_metadata;
    uint64_t bytes = sl_session_charge_seen(op->ss, s, n, op->tokens_seen);
    enum sl_code c = sl_session_grow(op->ss, s, bytes, &op->err);
    if (c || !text)
        return c;
    s->metadata = sl_strndup(text, n);
    if (!s->metadata)
        return sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for %zu bytes of metadata", n);
    s->n_metadata = n;
    return SL_OK;
}

static void on_restore_work(uv_work_t *work, int status)
{
    struct sl_op *op = work->data;
    struct sl_sessions *ss = op->ss;
    struct sl_session *s = op->s;
    (void)status;
    if (!op->code)
        op->code = sl_op_take_pending(op, op->n_pending, &op->err);
    if (!op->code)
        op->code = take_texts(op);
    if (op->code) {
        restore_fails(op, &op->err);
        return;
    }
    if (op->restoring) {
        struct sl_snapshot_info *ret = &op->restoring->info;
        *ret = op->info;
        ret->text = NULL;
        ret->session_id = ret->metadata = ret->continuation = ret->transcript = NULL;
    }
    if (!sl_session_writes_turns(ss, s)) {
        restore_done(op);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    struct sl_store_head head = sl_session_head(s);
    head.version = op->version;
    head.stamp = op->stamp = sl_store_stamp(ss->store);
    head.tokens_seen = op->tokens_seen;
    unsigned char *data = op->data;
    op->data = NULL;
    sl_store_put_snapshot(ss->store, &key, op->version, &head, data, op->n_data, on_restored, op);
}

/* Who waits for a place holds nothing but what it came with. */
static enum sl_code start_restore(struct sl_op *op, struct sl_error *err)
{
    op->decoded = sl_aligned_calloc(sl_model_info(op->ss->opt.model)->state_bytes);
    if (!op->decoded)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to restore a session");
    op->work.data = op;
    if (uv_queue_work(op->ss->opt.loop, &op->work, restore_work, on_restore_work))
        return sl_fail(err, SL_E_INTERNAL, "no work for the pool");
    return SL_OK;
}

static void on_restore_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_error own;
    (void)s;
    if (err)
        restore_fails(op, err);
    else if (start_restore(op, &own))
        restore_fails(op, &own);
}

static void restore_made(struct sl_op *op)
{
    sl_sessions_ready(op->ss, op->s, on_restore_place, op);
}

void sl_sessions_give_up(struct sl_restoring *r)
{
    struct sl_op *op = r->op;
    if (op && op->s)
        sl_residency_unready(op->ss, op->s, on_restore_place, op);
}

static enum sl_code check_source(const struct sl_op *op, struct sl_error *err)
{
    size_t max = sl_snapshot_bytes_max(op->ss->opt.model);
    if (op->kind == SL_RESTORE_SNAPSHOT && op->n_source > max)
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot has %zu bytes; one of this model has at most %zu",
                       op->n_source, max);
    if (op->s && !sl_session_prepare_point(op->ss, op->s))
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to restore a session");
    return SL_OK;
}

void sl_sessions_restore(struct sl_sessions *ss, const char *tenant, struct sl_session *over,
                         const char *id, int64_t ttl_s, struct sl_text metadata,
                         enum sl_restore_kind kind, const void *data, size_t n, bool for_turn,
                         struct sl_restoring *ret, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_begin(ss, over, "to restore a session", cb, arg);
    if (!op)
        return;
    op->kind = kind;
    op->source = data;
    op->n_source = n;
    op->restoring = ret;
    if (ret)
        ret->op = op;
    op->is_new = !over;
    op->for_turn = for_turn;
    op->ttl_s = ttl_s;
    op->version = over ? over->version + 1 : 1;
    enum sl_code c = check_source(op, &err);
    if (c)
        sl_op_end(op, over, &err);
    else if (over)
        sl_op_lease(op, restore_made);
    else
        sl_op_make(op, tenant, id, metadata, restore_made);
}
