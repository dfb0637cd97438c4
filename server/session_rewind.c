/* session_rewind.c: a session back at an earlier version, or a new one that begins at an earlier
 * version of another. See sessions.h, and session_ops.c for what an op is; which versions there are
 * is session_points.c's.
 *
 * Without a store the registry keeps what earlier commits left: a slot of the slab each. With one,
 * the store keeps what leads there, an earlier snapshot and the turns since (store.h). That is
 * loaded, the turns' tokens are read again by the engine, beside whatever else runs, and what comes
 * out is to the bit what the session was. It is written as a restored snapshot is: with its head,
 * under the next version, so that a crash leaves the session before or after, never between.
 *
 * The session need not be in memory for that, nor be whole: a session whose last snapshot is
 * damaged can be rewound to one that is not. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "server/sessions_priv.h"

/* --- rewind ----------------------------------------------------------------------------------- */

/* It is over: the session as it was, or no new one. */
static void past_fails(struct sl_op *op, const struct sl_error *err)
{
    if (err != &op->err)
        op->err = *err;
    if (!op->from) {
        sl_op_give_back(op, &op->err);
        return;
    }
    sl_op_release_source(op);
    sl_op_undo_new(op, &op->err);
}

static void no_memory(struct sl_op *op)
{
    (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for an earlier version of session '%s'",
                  op->s->id);
    past_fails(op, &op->err);
}

/* Whose past it is. */
static struct sl_session *source_of(const struct sl_op *op)
{
    return op->from ? op->from : op->s;
}

/* The session is what it was then. */
static void take_past_end(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    if (ss->store) {
        s->in_store = true;
        s->head_dirty = false;
        s->saved_version = s->version;
        s->replay_tokens = s->reread_tokens = 0;
    }
    if (op->ret_past)
        *op->ret_past = (struct sl_past){op->target, op->n_replayed};
    if (op->from)
        sl_op_release_source(op);
    sl_session_recount(ss, s);
    sl_op_give_back(op, NULL);
}

/* What is in memory is replaced; what is not stays where it is. */
static void take_past(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    if (s->in_memory && s->has_place) {
        sl_session_keep_point(ss, s); /* first: the place has no slot more */
        op->state = sl_slab_take(ss->opt.slab);
        assert(op->state);
        memcpy(op->state, op->decoded, sl_model_info(ss->opt.model)->state_bytes);
        sl_op_apply(op);
    } else {
        s->version = op->version;
        s->stamp = op->stamp;
        s->tokens_seen = op->tokens_seen;
        s->in_memory = s->in_memory && !op->from;
    }
    take_past_end(op);
}

static void on_written(void *arg, enum sl_code code, const struct sl_error *err)
{
    if (code)
        past_fails(arg, err);
    else
        take_past(arg);
}

/* The pool's thread. */
static void encode_work(uv_work_t *work)
{
    struct sl_op *op = work->data;
    struct sl_decoded *d = &op->past;
    const struct sl_sessions_options *o = &op->ss->opt;
    char *text = NULL, *transcript = NULL;
    if (op->transcript.whole)
        transcript = sl_transcript_text(&op->transcript);
    if (op->n_pending && op->paused)
        text = sl_strndup(op->paused, op->n_paused);
    else if (op->n_pending)
        text = sl_continuation_text(op->pending, op->n_pending, op->ring);
    struct sl_snapshot_info info = {.session_id = op->s->id,
                                    .version = op->version,
                                    .tokens_seen = op->tokens_seen,
                                    .metadata = op->metadata,
                                    .continuation = text,
                                    .transcript = transcript,
                                    .created_ms = o->now() * 1000,
                                    .dtype = SL_DTYPE_F32};
    memcpy(info.incarnation, op->from ? op->s->incarnation : d->incarnation,
           sizeof info.incarnation);
    if ((op->n_pending && !text) || (op->transcript.whole && !transcript))
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY,
                           "no memory for an earlier version of session '%s'", d->id);
    else
        op->code = sl_snapshot_write(o->model, o->tokenizer, op->decoded, &info, &op->data,
                                     &op->n_data, &op->err);
    sl_free(text);
    sl_free(transcript);
}

static void on_encode_work(uv_work_t *work, int status)
{
    struct sl_op *op = work->data;
    struct sl_session *s = op->s;
    (void)status;
    if (op->code) {
        past_fails(op, &op->err);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    struct sl_store_head head = sl_session_head(s);
    head.version = op->version;
    head.stamp = op->stamp = sl_store_stamp(op->ss->store);
    head.tokens_seen = op->tokens_seen;
    head.used_at = sl_sessions_now(op->ss);
    unsigned char *data = op->data;
    op->data = NULL;
    sl_store_put_snapshot(op->ss->store, &key, op->version, &head, data, op->n_data, on_written,
                          op);
}

/* The state is there: it is written. */
static void encode_past(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_error err;
    if (!op->ss->store) {
        take_past(op);
        return;
    }
    if (s->metadata) {
        op->metadata = sl_strndup(s->metadata, s->n_metadata);
        op->n_metadata = s->n_metadata;
    }
    op->work.data = op;
    if (s->metadata && !op->metadata)
        no_memory(op);
    else if (uv_queue_work(op->ss->opt.loop, &op->work, encode_work, on_encode_work)) {
        (void)sl_fail(&err, SL_E_INTERNAL, "no work for the pool");
        past_fails(op, &err);
    }
}

static void on_replayed(void *arg, const void *state, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!state) {
        past_fails(op, err);
        return;
    }
    memcpy(op->decoded, state, sl_model_info(op->ss->opt.model)->state_bytes);
    encode_past(op);
}

static enum sl_code take_quotas(struct sl_op *op)
{
    return op->from ? sl_op_take_fork(op, op->tokens_seen, op->n_pending, &op->err)
                    : sl_op_take_pending(op, op->n_pending, &op->err);
}

/* What was loaded becomes the op's: of the pending tokens those that were pending then. The others
 * are read again, up to there. */
static void use_past(struct sl_op *op)
{
    struct sl_decoded *d = &op->past;
    struct sl_sessions *ss = op->ss;
    size_t n_read = d->n_pending - d->n_rest;
    assert(d->n_rest <= d->n_pending && (!n_read || d->n_rest));
    op->pending = sl_malloc((d->n_rest ? d->n_rest : 1) * sizeof *op->pending);
    if (!op->pending) {
        no_memory(op);
        return;
    }
    if (d->n_rest)
        memcpy(op->pending, d->pending + n_read, d->n_rest * sizeof *op->pending);
    op->n_pending = d->n_rest;
    op->ring = d->ring;
    op->paused = d->paused;
    op->n_paused = d->n_paused;
    d->ring = NULL;
    d->paused = NULL;
    if (ss->opt.keep_transcript) {
        op->transcript = d->transcript;
        d->transcript = (struct sl_transcript){0};
    }
    op->tokens_seen = d->tokens_seen;
    op->n_replayed = n_read;
    if (!d->rebuild && take_quotas(op)) {
        past_fails(op, &op->err);
        return;
    }
    if (!d->has_state && !n_read)
        sl_model_state_init(ss->opt.model, op->decoded);
    if (n_read)
        ss->replay(ss->replay_with, d->has_state ? op->decoded : NULL, d->pending, n_read + 1,
                   on_replayed, op);
    else
        encode_past(op);
}

static enum sl_code decode(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct sl_op *op = arg;
    enum sl_code c = sl_decode_record(&op->past, r);
    if (c)
        *err = op->past.err;
    return c;
}

/* A rebuild needs nothing of the snapshot but its metadata, which have a digest of their own: the
 * file may be damaged elsewhere. */
static void on_past(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (r || (err->code == SL_E_SNAPSHOT_CORRUPT && op->past.rebuild && op->past.made)) {
        use_past(op);
        return;
    }
    op->err = *err;
    if (sl_store_is_damage(err->code)) /* not the request is wrong, but what is stored */
        op->err.code = SL_E_STORE_CORRUPT;
    past_fails(op, &op->err);
}

/* The session itself, as a rebuild's record would be. */
static void rebuild_in_memory(struct sl_op *op)
{
    const struct sl_session *s = op->s;
    struct sl_decoded *d = &op->past;
    if (!s->transcript.whole) {
        (void)sl_fail(&op->err, SL_E_NO_TRANSCRIPT,
                      "the transcript of session '%s' was not kept from its beginning: there is no "
                      "--keep-transcript, it came from a snapshot or an initial state, or it has "
                      "more than %d tokens",
                      s->id, SL_TRANSCRIPT_MAX);
        sl_op_give_back(op, &op->err);
        return;
    }
    if (!sl_tokens_end_with(s->transcript.v, s->transcript.n, s->pending, s->n_pending)) {
        (void)sl_fail(&op->err, SL_E_STORE_CORRUPT,
                      "the transcript of session '%s' does not end with its pending tokens", s->id);
        sl_op_give_back(op, &op->err);
        return;
    }
    d->pending = sl_malloc((s->transcript.n + 1) * sizeof *d->pending);
    d->ring = sl_calloc(1, sizeof *d->ring);
    if (s->paused)
        d->paused = sl_strndup(s->paused, s->n_paused);
    if (!d->pending || !d->ring || (s->paused && !d->paused) ||
        !sl_transcript_copy(&d->transcript, &s->transcript) ||
        !sl_session_prepare_point(op->ss, op->s)) {
        (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to rebuild session '%s'", s->id);
        sl_op_give_back(op, &op->err);
        return;
    }
    if (s->transcript.n)
        memcpy(d->pending, s->transcript.v, s->transcript.n * sizeof *d->pending);
    if (s->ring)
        *d->ring = *s->ring;
    d->n_pending = s->transcript.n;
    d->n_rest = s->n_pending;
    d->n_paused = s->n_paused;
    d->tokens_seen = s->tokens_seen;
    use_past(op);
}

/* op->target is known. */
static void load_past(struct sl_op *op)
{
    struct sl_session *from = source_of(op);
    struct sl_sessions *ss = op->ss;
    op->decoded = sl_aligned_calloc(sl_model_info(ss->opt.model)->state_bytes);
    if (!op->decoded) {
        no_memory(op);
        return;
    }
    struct sl_store_key key = sl_session_key(from);
    op->past.state = op->decoded;
    sl_decoded_init(&op->past, ss, from);
    if (ss->store)
        sl_store_load_at(ss->store, &key, op->target, decode, on_past, op);
    else
        rebuild_in_memory(op);
}

static void rewind_in_memory(struct sl_op *op)
{
    bool copied = false;
    if (!op->from && !sl_session_prepare_point(op->ss, op->s)) {
        no_memory(op);
    } else if (sl_session_take_point(op, source_of(op), &copied)) {
        past_fails(op, &op->err);
    } else if (take_quotas(op)) {
        sl_slab_unref(op->ss->opt.slab, op->state);
        past_fails(op, &op->err);
    } else if (copied) {
        take_past(op);
    } else {
        sl_op_apply(op);
        take_past_end(op);
    }
}

/* The version, and what the session's will be. */
static void to_version(struct sl_op *op, uint64_t version)
{
    op->target = version;
    op->version = op->from ? version : op->s->version + 1;
    if (op->from && !version && op->ss->store) { /* nothing was read by then */
        sl_op_release_source(op);
        sl_op_keep_empty(op);
    } else if (op->ss->store || op->past.rebuild) {
        load_past(op);
    } else {
        rewind_in_memory(op);
    }
}

static void on_kept(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!k) {
        past_fails(op, err);
        return;
    }
    for (size_t i = 0; i < k->n_names; i++) {
        if (!strcmp(k->names[i].name, op->name)) {
            to_version(op, k->names[i].version);
            return;
        }
    }
    if (!op->name[0] && k->v[0].version == op->target) {
        to_version(op, op->target);
        return;
    }
    if (op->name[0])
        (void)sl_store_no_name(&op->err, source_of(op)->id, op->name);
    else
        (void)sl_store_no_point(&op->err, source_of(op)->id, op->target, k->v, k->n);
    past_fails(op, &op->err);
}

/* Nobody loads or saves it. A fork at version 0 loads nothing that would tell whether it is kept.
 */
static void rewind_quiet(struct sl_op *op)
{
    if (op->name[0] || (op->from && !op->target))
        sl_sessions_points(op->ss, source_of(op), on_kept, op);
    else
        to_version(op, op->target);
}

void sl_op_begin_past(struct sl_op *op)
{
    rewind_quiet(op);
}

static void on_saved_to_rewind(void *arg, struct sl_session *s, const struct sl_error *err)
{
    (void)s;
    if (err)
        past_fails(arg, err);
    else
        sl_op_when_quiet(arg, rewind_quiet);
}

/* With --durability drain the store does not have what it is at yet: that may be what is gone back
 * to, and is what a rebuild reads the transcript of. */
static void rewind_leased(struct sl_op *op)
{
    if (op->ss->store && !sl_session_writes_turns(op->ss, op->s) && op->s->in_memory)
        sl_sessions_save(op->ss, op->s, on_saved_to_rewind, op);
    else
        on_saved_to_rewind(op, op->s, NULL);
}

void sl_sessions_rewind(struct sl_sessions *ss, struct sl_session *s, const struct sl_moment *to,
                        struct sl_past *ret, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to rewind a session", cb, arg);
    if (!op)
        return;
    sl_op_aim(op, to);
    op->ret_past = ret;
    sl_op_lease(op, rewind_leased);
}

void sl_sessions_rebuild(struct sl_sessions *ss, struct sl_session *s, struct sl_past *ret,
                         sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to rebuild a session", cb, arg);
    if (!op)
        return;
    op->target = SL_STORE_LAST;
    op->past.rebuild = true;
    op->ret_past = ret;
    sl_op_lease(op, rewind_leased);
}

void sl_sessions_on_replay(struct sl_sessions *ss, sl_replay *replay, void *with)
{
    ss->replay = replay;
    ss->replay_with = with;
}
