/* session_rewind.c: a session back at an earlier version. See sessions.h, and session_ops.c for
 * what an op is.
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

/* --- points in memory ------------------------------------------------------------------------- */

struct sl_session_point {
    uint64_t version, tokens_seen;
    int64_t at;
    void *state; /* a reference; NULL: the initial state */
    uint32_t *pending;
    size_t n_pending;
    struct sl_penalty_ring *ring;
    char *paused;
    size_t n_paused;
    struct sl_transcript transcript;
};

static bool keeps_points(const struct sl_sessions *ss, const struct sl_session *s)
{
    return !ss->store && ss->opt.keep_turns && !sl_session_is_ephemeral(s);
}

static void free_point(struct sl_sessions *ss, struct sl_session_point *p)
{
    sl_slab_unref(ss->opt.slab, p->state);
    sl_free(p->pending);
    sl_free(p->ring);
    sl_free(p->paused);
    sl_transcript_done(&p->transcript);
}

bool sl_session_prepare_point(const struct sl_sessions *ss, struct sl_session *s)
{
    if (keeps_points(ss, s) && !s->points)
        s->points = sl_calloc((size_t)ss->opt.keep_turns, sizeof *s->points);
    return !keeps_points(ss, s) || s->points;
}

/* What the session holds now; it is still the session's. */
static struct sl_session_point point_of(const struct sl_session *s)
{
    return (struct sl_session_point){.version = s->version,
                                     .tokens_seen = s->tokens_seen,
                                     .at = s->used_at,
                                     .state = s->state,
                                     .pending = s->pending,
                                     .n_pending = s->n_pending,
                                     .ring = s->ring,
                                     .paused = s->paused,
                                     .n_paused = s->n_paused,
                                     .transcript = s->transcript};
}

void sl_session_keep_point(struct sl_sessions *ss, struct sl_session *s)
{
    struct sl_session_point p = point_of(s);
    sl_session_hand_over(s);
    /* It may be asked for twice: a restore needs the slot before the rest. */
    if (!s->points || (s->n_points && s->points[s->n_points - 1].version == p.version)) {
        free_point(ss, &p);
        return;
    }
    if (s->n_points == ss->opt.keep_turns) {
        free_point(ss, &s->points[0]);
        s->n_points--;
        memmove(s->points, s->points + 1, s->n_points * sizeof *s->points);
    }
    s->points[s->n_points++] = p;
}

void sl_session_forget_points(struct sl_sessions *ss, struct sl_session *s)
{
    for (size_t i = 0; i < s->n_points; i++)
        free_point(ss, &s->points[i]);
    sl_free(s->points);
    s->points = NULL;
    s->n_points = 0;
}

static const struct sl_session_point *find_point(const struct sl_session *s, uint64_t version)
{
    for (size_t i = 0; i < s->n_points; i++)
        if (s->points[i].version == version)
            return &s->points[i];
    return NULL;
}

static void tell_points(const struct sl_session *s, sl_store_pointed *cb, void *arg)
{
    struct sl_error err;
    struct sl_store_point *v = sl_calloc(s->n_points + 1, sizeof *v);
    if (!v) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the versions of session '%s'", s->id);
        cb(arg, NULL, 0, &err);
        return;
    }
    for (size_t i = 0; i < s->n_points; i++)
        v[i] = (struct sl_store_point){s->points[i].version, s->points[i].tokens_seen,
                                       s->points[i].at};
    v[s->n_points] = (struct sl_store_point){s->version, s->tokens_seen, s->used_at};
    cb(arg, v, s->n_points + 1, NULL);
    sl_free(v);
}

void sl_sessions_points(struct sl_sessions *ss, struct sl_session *s, sl_store_pointed *cb,
                        void *arg)
{
    struct sl_store_key key = sl_session_key(s);
    if (ss->store && !sl_session_is_ephemeral(s))
        sl_store_points(ss->store, &key, cb, arg);
    else
        tell_points(s, cb, arg);
}

/* --- rewind ----------------------------------------------------------------------------------- */

static void no_point(void *arg, const struct sl_store_point *v, size_t n,
                     const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (err)
        op->err = *err;
    else
        (void)sl_store_no_point(&op->err, op->s->id, op->target, v, n);
}

/* Copies of what the point holds; the state is one more reference. */
static bool copy_point(struct sl_op *op, const struct sl_session_point *p)
{
    op->pending = sl_malloc(p->n_pending * sizeof *op->pending);
    op->ring = sl_calloc(1, sizeof *op->ring);
    if (p->paused)
        op->paused = sl_strndup(p->paused, p->n_paused);
    if (!op->pending || !op->ring || (p->paused && !op->paused) ||
        !sl_transcript_copy(&op->transcript, &p->transcript))
        return false;
    if (p->n_pending)
        memcpy(op->pending, p->pending, p->n_pending * sizeof *op->pending);
    if (p->ring)
        *op->ring = *p->ring;
    op->n_pending = p->n_pending;
    op->n_paused = p->n_paused;
    op->tokens_seen = p->tokens_seen;
    return true;
}

static void rewind_in_memory(struct sl_op *op)
{
    struct sl_session *s = op->s;
    const struct sl_session_point now = point_of(s);
    const struct sl_session_point *p = op->target == s->version ? &now : find_point(s, op->target);
    if (!p) {
        tell_points(s, no_point, op);
    } else if (!copy_point(op, p) || !sl_session_prepare_point(op->ss, s)) {
        (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to rewind session '%s'", s->id);
    } else {
        if (p->state)
            sl_slab_ref(op->ss->opt.slab, p->state);
        op->state = p->state;
        sl_op_apply(op);
    }
    sl_op_give_back(op, op->err.code ? &op->err : NULL);
}

/* What is in memory is replaced; what is not stays where it is. */
static void take_past(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    if (s->in_memory && s->has_place) {
        sl_session_keep_point(ss, s); /* first: the place has one slot */
        op->state = sl_slab_take(ss->opt.slab);
        assert(op->state);
        memcpy(op->state, op->decoded, sl_model_info(ss->opt.model)->state_bytes);
        sl_op_apply(op);
    } else {
        s->version = op->version;
        s->tokens_seen = op->tokens_seen;
    }
    if (ss->store) {
        s->in_store = true;
        s->head_dirty = false;
        s->saved_version = s->version;
        s->replay_tokens = 0;
    }
    if (op->ret_replayed)
        *op->ret_replayed = op->n_replayed;
    sl_op_give_back(op, NULL);
}

static void on_written(void *arg, enum sl_code code, const struct sl_error *err)
{
    if (code)
        sl_op_give_back(arg, err);
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
    memcpy(info.incarnation, d->incarnation, sizeof info.incarnation);
    if ((op->n_pending && !text) || (op->transcript.whole && !transcript))
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to rewind session '%s'", d->id);
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
        sl_op_give_back(op, &op->err);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    struct sl_store_head head = sl_session_head(s);
    head.version = op->version;
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
    if (s->metadata && !op->metadata)
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to rewind session '%s'", s->id);
    op->work.data = op;
    if (s->metadata && !op->metadata)
        sl_op_give_back(op, &err);
    else if (uv_queue_work(op->ss->opt.loop, &op->work, encode_work, on_encode_work)) {
        (void)sl_fail(&err, SL_E_INTERNAL, "no work for the pool");
        sl_op_give_back(op, &err);
    }
}

static void on_replayed(void *arg, const void *state, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!state) {
        sl_op_give_back(op, err);
        return;
    }
    memcpy(op->decoded, state, sl_model_info(op->ss->opt.model)->state_bytes);
    encode_past(op);
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
        (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to rewind session '%s'", d->id);
        sl_op_give_back(op, &op->err);
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

/* Not the request is wrong, but what is stored. */
static bool is_damage(enum sl_code c)
{
    return c == SL_E_SNAPSHOT_CORRUPT || c == SL_E_SNAPSHOT_VERSION_UNSUPPORTED ||
           c == SL_E_SNAPSHOT_TOO_LARGE;
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
    if (is_damage(err->code))
        op->err.code = SL_E_STORE_CORRUPT;
    sl_op_give_back(op, &op->err);
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

/* Nobody loads or saves it. */
static void rewind_quiet(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    op->version = s->version + 1;
    if (!ss->store && !op->past.rebuild) {
        rewind_in_memory(op);
        return;
    }
    op->decoded = sl_aligned_calloc(sl_model_info(ss->opt.model)->state_bytes);
    if (!op->decoded) {
        (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to rewind session '%s'", s->id);
        sl_op_give_back(op, &op->err);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    op->past.state = op->decoded;
    sl_decoded_init(&op->past, ss, s);
    if (ss->store)
        sl_store_load_at(ss->store, &key, op->target, decode, on_past, op);
    else
        rebuild_in_memory(op);
}

static void rewind_leased(struct sl_op *op)
{
    sl_op_when_quiet(op, rewind_quiet);
}

void sl_sessions_rewind(struct sl_sessions *ss, struct sl_session *s, uint64_t version,
                        uint64_t *ret_replayed, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to rewind a session", cb, arg);
    if (!op)
        return;
    op->target = version;
    op->ret_replayed = ret_replayed;
    sl_op_lease(op, rewind_leased);
}

void sl_sessions_rebuild(struct sl_sessions *ss, struct sl_session *s, uint64_t *ret_replayed,
                         sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to rebuild a session", cb, arg);
    if (!op)
        return;
    op->target = SL_STORE_LAST;
    op->past.rebuild = true;
    op->ret_replayed = ret_replayed;
    sl_op_lease(op, rewind_leased);
}

void sl_sessions_on_replay(struct sl_sessions *ss, sl_replay *replay, void *with)
{
    ss->replay = replay;
    ss->replay_with = with;
}
