/* session_ops.c: what changes sessions: create, patch, delete, evict (commit and restore:
 * session_commit.c; forks: session_fork.c). Each is an op: it takes the lease (or makes a session
 * that nobody else can lease yet), does what takes time, and ends in one place, where either
 * everything was changed or nothing. See sessions.h. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

void sl_op_free(struct sl_op *op)
{
    op->ss->n_busy--;
    if (op->restoring)
        op->restoring->op = NULL;
    sl_free(op->tenant);
    sl_free(op->id);
    sl_free(op->metadata);
    sl_free(op->pending);
    sl_free(op->ring);
    sl_free(op->paused);
    sl_free(op->answer.key);
    sl_free(op->answer.body);
    sl_free(op->data);
    sl_decoded_done(&op->past);
    sl_transcript_done(&op->transcript);
    sl_free(op->tokens);
    sl_free(op->decoded);
    sl_free(op->info.text);
    sl_free(op->arg_head);
    sl_free(op);
}

struct sl_op *sl_op_new(struct sl_sessions *ss, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_calloc(1, sizeof *op);
    if (op) {
        op->ss = ss;
        op->past.cont.pool = (struct sl_pool)SL_POOL_INIT;
        op->cb = cb;
        op->arg = arg;
        ss->n_busy++;
    }
    return op;
}

/* A shared store has refused it: here that is counted. */
static void count_refusal(const struct sl_op *op, const struct sl_session *s,
                          const struct sl_error *err)
{
    struct sl_tenant *t = s ? s->owner : NULL;
    if (!t && op->tenant)
        t = sl_tenants_find(op->ss->opt.tenants, op->tenant);
    if (t)
        t->n_refused[strcmp(err->param, sl_quota_names[SL_QUOTA_BYTES]) ? SL_QUOTA_SESSIONS
                                                                        : SL_QUOTA_BYTES]++;
}

/* The op is over; s is what the caller gets. */
void sl_op_end(struct sl_op *op, struct sl_session *s, const struct sl_error *err)
{
    if (err && err->code == SL_E_QUOTA_EXCEEDED && op->ss->shared)
        count_refusal(op, s, err);
    sl_session_done *cb = op->cb;
    void *arg = op->arg;
    struct sl_error copy;
    if (err)
        copy = *err;
    sl_op_free(op);
    cb(arg, s, err ? &copy : NULL);
}

struct sl_op *sl_op_begin(struct sl_sessions *ss, struct sl_session *s, const char *what,
                          sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (op) {
        op->s = s;
        return op;
    }
    (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory %s", what);
    cb(arg, NULL, &err);
    return NULL;
}

enum sl_code sl_op_take_pending(struct sl_op *op, size_t n_pending, struct sl_error *err)
{
    uint64_t n = sl_unread(n_pending);
    enum sl_code c =
        n ? sl_tenant_take_tokens(op->s->owner, n, uv_now(op->ss->opt.loop), err) : SL_OK;
    if (!c)
        op->taken = n;
    return c;
}

enum sl_code sl_op_take_fork(struct sl_op *op, uint64_t tokens_seen, size_t n_pending,
                             struct sl_error *err)
{
    struct sl_session *s = op->s;
    uint64_t bytes = sl_session_charge_seen(op->ss, s, s->n_metadata, tokens_seen);
    enum sl_code c = sl_session_grow(op->ss, s, bytes, err);
    return c ? c : sl_op_take_pending(op, n_pending, err);
}

static void return_tokens(struct sl_op *op)
{
    sl_tenant_return_tokens(op->s->owner, op->taken, uv_now(op->ss->opt.loop));
    op->taken = 0;
}

bool sl_session_is_quiet_now(const struct sl_session *s)
{
    return !s->readying && !s->saving && !s->evicting && !s->n_pins && !(s->going && s->n_forks);
}

void sl_session_is_quiet(struct sl_sessions *ss, struct sl_session *s)
{
    struct sl_op *op = s->quiet_op;
    if (!sl_session_is_quiet_now(s))
        return;
    if (s->forgotten) {
        sl_registry_remove(ss, s);
        sl_residency_balance(ss);
        return;
    }
    if (!op)
        return;
    s->quiet_op = NULL;
    op->when_quiet(op);
}

void sl_session_unpin(struct sl_sessions *ss, struct sl_session *s)
{
    assert(s->n_pins > 0);
    s->n_pins--;
    sl_session_is_quiet(ss, s);
}

/* The op has the lease. */
void sl_op_when_quiet(struct sl_op *op, void (*then)(struct sl_op *op))
{
    assert(op->s->leased && !op->s->quiet_op);
    op->when_quiet = then;
    op->s->quiet_op = op;
    sl_session_is_quiet(op->ss, op->s);
}

void sl_op_end_free(struct sl_op *op, const struct sl_error *err)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    s->n_pins++;
    sl_sessions_give_back(ss, s);
    sl_op_end(op, s, err);
    sl_session_unpin(ss, s);
    sl_residency_balance(ss); /* its place may be what another one waits for */
}

static void on_given_back(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)code;
    (void)err; /* then the lease ends by itself */
    sl_op_end_free(op, op->err.code ? &op->err : NULL);
}

void sl_op_give_back(struct sl_op *op, const struct sl_error *err)
{
    struct sl_session *s = op->s;
    struct sl_store_key key = sl_session_key(s);
    bool release = s->fence && !s->lease_lost && !s->vanished;
    s->making = false;
    if (err != &op->err)
        op->err = err ? *err : (struct sl_error){0};
    if (err)
        return_tokens(op);
    if (!release) {
        on_given_back(op, SL_OK, NULL);
        return;
    }
    sl_lease_ends(op->ss, s, true);
    sl_store_release(op->ss->store, &key, on_given_back, op);
}

static void on_leased(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (!err) {
        op->leased(op);
        return;
    }
    op->err = *err;
    sl_op_give_back(op, &op->err);
}

void sl_op_lease(struct sl_op *op, void (*leased)(struct sl_op *op))
{
    struct sl_error err;
    op->leased = leased;
    if (sl_session_lease(op->s, NULL, &err))
        sl_op_end(op, op->s, &err);
    else
        sl_sessions_take(op->ss, op->s, NULL, op->removes ? SL_TAKE_REMOVE : SL_TAKE_STRICT,
                         on_leased, op);
}

/* Its place may be what another one waits for. */
static void undo_quiet(struct sl_op *op)
{
    struct sl_sessions *ss = op->ss;
    op->s->leased = false;
    sl_registry_remove(ss, op->s);
    sl_op_end(op, NULL, &op->err);
    sl_residency_balance(ss);
}

/* A new session did not come to be. Somebody may be reading it already. */
void sl_op_undo_new(struct sl_op *op, const struct sl_error *err)
{
    if (err != &op->err)
        op->err = *err;
    return_tokens(op);
    op->s->going = true;
    sl_op_when_quiet(op, undo_quiet);
}

void sl_op_keep_new(struct sl_op *op)
{
    sl_session_recount(op->ss, op->s);
    sl_op_give_back(op, NULL);
}

/* --- create ---------------------------------------------------------------------------------- */

static void on_new_head(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (code) {
        sl_op_undo_new(op, err);
        return;
    }
    op->s->in_store = true;
    sl_op_keep_new(op);
}

/* Without a store there is a place for every session that may exist; only memory may be short. */
static void on_first_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    assert(err || s->has_place);
    (void)s;
    if (err)
        sl_op_undo_new(op, err);
    else
        sl_op_keep_new(op);
}

static enum sl_code insert_new(struct sl_op *op, struct sl_error *err)
{
    struct sl_session *s;
    uint64_t bytes = sl_session_charge(op->ss, op->n_metadata, 0, 0);
    enum sl_code c = sl_registry_insert(op->ss, op->tenant, op->id, NULL, bytes, &s, err);
    if (c)
        return c;
    s->in_memory = true;
    sl_session_set_ttl(op->ss, s, op->ttl_s);
    s->transcript.whole = op->ss->opt.keep_transcript && !sl_session_is_ephemeral(s);
    s->metadata = op->metadata;
    s->n_metadata = op->n_metadata;
    op->metadata = NULL;
    s->leased = s->making = true;
    s->is_bare = op->for_turn;
    s->unwritten = op->for_turn && sl_session_writes_turns(op->ss, s);
    op->s = s;
    return SL_OK;
}

static void on_name_free(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_error own;
    (void)s;
    (void)err; /* whatever became of the old one: if it is still there, it is in the way */
    if (insert_new(op, &own))
        op->refused(op, &own);
    else
        op->made(op);
}

/* An old one of that name, whose time to live is over, goes first. */
static void make_named(struct sl_op *op)
{
    struct sl_session *old = op->id ? sl_registry_expire(op->ss, op->tenant, op->id) : NULL;
    if (old)
        sl_sessions_when_free(op->ss, old, on_name_free, op);
    else
        on_name_free(op, NULL, NULL);
}

static void on_looked(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (err && err->code != SL_E_SESSION_NOT_FOUND) {
        op->err = *err;
        op->refused(op, &op->err);
        return;
    }
    make_named(op);
}

static void refuse(struct sl_op *op, const struct sl_error *err)
{
    sl_op_end(op, NULL, err);
}

void sl_op_make(struct sl_op *op, const char *tenant, const char *id, struct sl_text metadata,
                void (*made)(struct sl_op *op))
{
    struct sl_error err;
    op->made = made;
    if (!op->refused)
        op->refused = refuse;
    op->tenant = sl_strdup(tenant);
    op->id = id ? sl_strdup(id) : NULL;
    if (metadata.s) {
        op->metadata = sl_strndup(metadata.s, metadata.n);
        op->n_metadata = metadata.n;
    }
    if (!op->tenant || (id && !op->id) || (metadata.s && !op->metadata)) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a session");
        op->refused(op, &err);
        return;
    }
    if (id && op->ss->shared)
        sl_sessions_look(op->ss, tenant, id, on_looked, op);
    else
        make_named(op);
}

void sl_op_keep_empty(struct sl_op *op)
{
    struct sl_sessions *ss = op->ss;
    if (!ss->store) {
        sl_sessions_ready(ss, op->s, on_first_place, op);
        return;
    }
    if (!sl_session_writes_turns(ss, op->s)) {
        sl_op_keep_new(op);
        return;
    }
    struct sl_store_head head = sl_session_head(op->s);
    sl_store_put_head(ss->store, &head, on_new_head, op);
}

void sl_sessions_create(struct sl_sessions *ss, const char *tenant, const char *id, int64_t ttl_s,
                        struct sl_text metadata, bool for_turn, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, NULL, "for a session", cb, arg);
    if (!op)
        return;
    op->ttl_s = ttl_s;
    op->for_turn = for_turn;
    sl_op_make(op, tenant, id, metadata, sl_op_keep_empty);
}

/* --- patch ----------------------------------------------------------------------------------- */

static void apply_patch(struct sl_op *op)
{
    struct sl_session *s = op->s;
    if (op->metadata) {
        sl_free(s->metadata);
        s->metadata = op->metadata;
        s->n_metadata = op->n_metadata;
        s->is_unwritable = false; /* less of them may fit */
        op->metadata = NULL;
        sl_session_recount(op->ss, s); /* a save that ended meanwhile has counted the old one */
    }
    if (op->has_ttl)
        sl_session_set_ttl(op->ss, s, op->ttl_s);
    sl_op_give_back(op, NULL);
}

static void on_patched(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!code) {
        apply_patch(op);
        return;
    }
    sl_session_shrink(op->ss, op->s, op->had_bytes);
    sl_op_give_back(op, err);
}

static void patch_leased(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    uint64_t bytes =
        sl_session_charge(ss, op->n_metadata, s->answers_bytes, sl_session_kept(ss, s));
    op->had_bytes = s->bytes;
    if (op->metadata && sl_session_grow(ss, s, bytes, &op->err)) {
        sl_op_give_back(op, &op->err);
        return;
    }
    if (!sl_session_writes_turns(ss, s)) {
        s->head_dirty = true;
        apply_patch(op);
        return;
    }
    struct sl_store_head head = sl_session_head(s);
    head.used_at = sl_sessions_now(ss);
    if (op->has_ttl)
        head.ttl_s = op->ttl_s;
    if (op->metadata)
        head.metadata = (struct sl_text){op->metadata, op->n_metadata};
    sl_store_put_head(ss->store, &head, on_patched, op);
}

void sl_sessions_patch(struct sl_sessions *ss, struct sl_session *s, bool has_ttl, int64_t ttl_s,
                       struct sl_text metadata, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_begin(ss, s, "for metadata", cb, arg);
    if (!op)
        return;
    if (metadata.s && !(op->metadata = sl_strndup(metadata.s, metadata.n))) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for metadata");
        sl_op_end(op, NULL, &err);
        return;
    }
    op->n_metadata = metadata.n;
    op->has_ttl = has_ttl;
    op->ttl_s = ttl_s;
    sl_op_lease(op, patch_leased);
}

/* --- delete ---------------------------------------------------------------------------------- */

static void on_removed(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    s->going = false;
    if (code) {
        sl_op_give_back(op, err);
        return;
    }
    sl_lease_ends(ss, s, true); /* with the session */
    s->leased = false;
    sl_registry_remove(ss, s);
    sl_op_end(op, NULL, NULL);
    sl_residency_balance(ss);
}

static void delete_quiet(struct sl_op *op)
{
    struct sl_session *s = op->s;
    if (!s->in_store) {
        on_removed(op, SL_OK, NULL);
        return;
    }
    struct sl_store_key key = sl_session_key(s);
    sl_store_remove(op->ss->store, &key, on_removed, op);
}

static void delete_leased(struct sl_op *op)
{
    op->s->going = true;
    sl_op_when_quiet(op, delete_quiet);
}

void sl_sessions_delete(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                        void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to delete a session", cb, arg);
    if (!op)
        return;
    op->removes = true;
    sl_op_lease(op, delete_leased);
}

void sl_sessions_discard(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                         void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    assert(s->leased && !s->run);
    if (!op) {
        sl_sessions_give_back(ss, s);
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to delete a session");
        cb(arg, NULL, &err);
        return;
    }
    op->s = s;
    op->removes = true;
    op->leased = delete_leased;
    if (s->fence && !s->lease_lost) {
        delete_leased(op);
        return;
    }
    sl_lease_ends(ss, s, true); /* a lost one */
    sl_sessions_take(ss, s, NULL, SL_TAKE_REMOVE, on_leased, op);
}

void sl_sessions_forget(struct sl_sessions *ss, struct sl_session *s)
{
    assert(sl_session_is_ephemeral(s) && !s->leased && !s->in_store);
    s->forgotten = true;
    sl_session_is_quiet(ss, s);
}

/* --- evict ----------------------------------------------------------------------------------- */

static void evict_quiet(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    if (s->in_memory) {
        assert(sl_session_is_saved(ss, s)); /* nobody has changed it: we have the lease */
        sl_session_forget_rest(ss, s);
        s->in_memory = false;
        if (s->has_place)
            sl_residency_leave(ss, s);
    }
    sl_op_give_back(op, NULL);
}

/* It may still be read, then it goes after that. */
static void on_saved_to_evict(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (!err) {
        sl_op_when_quiet(op, evict_quiet);
        return;
    }
    sl_op_give_back(op, err);
}

static void evict_leased(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    struct sl_error err;
    if (s->unwritten) { /* the turn that it was made for has failed: it goes */
        (void)sl_fail_param(&err, SL_E_SESSION_NOT_FOUND, "session",
                            "there is no session '%s': what made it has failed", s->id);
        sl_op_give_back(op, &err);
    } else if (ss->store) {
        sl_sessions_save(ss, s, on_saved_to_evict, op);
    } else {
        sl_op_give_back(op, NULL);
    }
}

void sl_sessions_evict(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to store a session", cb, arg);
    if (!op)
        return;
    sl_op_lease(op, evict_leased);
}
