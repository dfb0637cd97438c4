/* session_lease.c: sessions of a store that several servers share: what is looked at, leases, their
 * renewal, and what becomes of a session that another server has changed meanwhile.
 *
 * What is in the registry then is what was last heard of a session. It is right while the store's
 * lease is held, and a good guess otherwise: its state in memory counts when the store says that
 * the version is the same, by its number and its stamp. Whoever is told of another one drops the
 * state as soon as nobody reads it.
 *
 * A lease is renewed every third of its time. One that could not be renewed in its time is lost,
 * and its turn is told at once: another server may have the session by now, and where it has not,
 * the store still takes nothing without the right fence. */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/sessions_priv.h"

enum { RENEWALS = 3 /* in the time of a lease */, LOOKS = 15 /* at what is due, likewise */ };

/* --- what is known ---------------------------------------------------------------------------- */

enum sl_code sl_session_adopt(struct sl_session *s, const struct sl_store_head *h,
                              struct sl_error *err)
{
    char *metadata = NULL;
    if (h->metadata.n && !(metadata = sl_strndup(h->metadata.s, h->metadata.n)))
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for session '%s'", s->id);
    sl_free(s->metadata);
    s->metadata = metadata;
    s->n_metadata = h->metadata.n;
    memcpy(s->incarnation, h->key.incarnation, sizeof s->incarnation);
    s->version = h->version;
    s->stamp = h->stamp;
    s->tokens_seen = h->tokens_seen;
    s->created_at = h->created_at;
    s->used_at = h->used_at;
    s->ttl_s = h->ttl_s;
    s->saved_version = h->snapshot_version;
    s->kept_bytes = h->kept_bytes;
    s->n_names = h->n_names;
    s->replay_tokens = h->replay_tokens;
    s->in_store = true;
    s->stale = s->vanished = false;
    return SL_OK;
}

static bool is_same(const struct sl_session *s, const struct sl_store_head *h)
{
    return s->version == h->version && sl_stamps_are_same(&s->stamp, &h->stamp) &&
           memcmp(s->incarnation, h->key.incarnation, sizeof s->incarnation) == 0;
}

static void note_holder(struct sl_session *s, bool held, const char *key)
{
    sl_free(s->held_key);
    s->held_elsewhere = held;
    s->held_key = held && key[0] ? sl_strdup(key) : NULL; /* without memory: busy, with any key */
}

static void vanishes(struct sl_session *s)
{
    s->vanished = true;
    s->in_store = false;
    note_holder(s, false, "");
}

/* Its state is of another version than the store's. Nobody reads it. */
static void drop_state(struct sl_sessions *ss, struct sl_session *s)
{
    sl_session_forget_rest(ss, s);
    s->in_memory = s->is_unwritable = false;
    if (s->has_place)
        sl_residency_leave(ss, s);
}

static void trim_bucket(struct sl_sessions *ss, size_t i, bool many)
{
    for (struct sl_session *s = sl_session_table_at(&ss->table, i), *next; s; s = next) {
        next = s->next_same;
        bool idle = !s->leased && !s->waiters && !s->save_waiters && !s->free_waiters &&
                    !s->quiet_op && !s->n_forks && sl_session_is_quiet_now(s);
        if (idle && !sl_session_is_ephemeral(s) && (s->vanished || (many && !s->has_place)))
            sl_registry_remove(ss, s);
    }
}

/* What nobody needs here: the store has it. */
void sl_registry_trim(struct sl_sessions *ss)
{
    bool many = ss->table.n > ss->opt.n_places + SL_HEARD_OF;
    for (size_t i = 0; i < ss->table.n_buckets; i++)
        trim_bucket(ss, i, many);
}

/* --- looks ------------------------------------------------------------------------------------ */

struct look {
    struct sl_sessions *ss;
    sl_session_done *cb;
    void *arg;
    char *tenant;
    char id[SL_SESSION_ID_MAX + 1];
    struct sl_store_head head; /* of the time after it, with texts of its own */
};

static void look_ends(struct look *l, struct sl_session *s, const struct sl_error *err)
{
    sl_session_done *cb = l->cb;
    void *arg = l->arg;
    l->ss->n_busy--;
    sl_free((void *)(uintptr_t)l->head.metadata.s);
    sl_free(l->tenant);
    sl_free(l);
    cb(arg, s, err);
}

/* It was stale, was read, and is not any more. */
static void on_quiet_to_adopt(struct sl_op *op)
{
    struct look *l = op->arg;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    struct sl_error err;
    drop_state(ss, s);
    enum sl_code c = sl_session_adopt(s, &l->head, &err);
    sl_op_free(op);
    s->n_pins++; /* who waited for it may delete it */
    sl_sessions_give_back(ss, s);
    look_ends(l, c ? NULL : s, c ? &err : NULL);
    sl_session_unpin(ss, s);
}

/* Under the lease, so that nobody uses what is about to go. */
static enum sl_code adopt_later(struct look *l, struct sl_session *s, const struct sl_store_head *h,
                                struct sl_error *err)
{
    struct sl_op *op = sl_op_new(l->ss, NULL, l);
    l->head = *h;
    l->head.metadata.s = NULL;
    if (op && h->metadata.n)
        l->head.metadata.s = sl_strndup(h->metadata.s, h->metadata.n);
    if (!op || (h->metadata.n && !l->head.metadata.s)) {
        if (op)
            sl_op_free(op);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for session '%s'", s->id);
    }
    op->s = s;
    s->leased = true;
    sl_op_when_quiet(op, on_quiet_to_adopt);
    return SL_OK;
}

static void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct look *l = arg;
    struct sl_sessions *ss = l->ss;
    struct sl_error own;
    struct sl_session *s = sl_registry_lookup(ss, l->tenant, l->id);
    enum sl_code c = SL_OK;
    if (err) {
        if (err->code == SL_E_SESSION_NOT_FOUND && s && !s->leased)
            vanishes(s);
        look_ends(l, NULL, err);
        return;
    }
    if (!s) {
        c = sl_registry_insert(ss, l->tenant, l->id, v->head.key.incarnation, 0, &s, &own);
        if (!c)
            c = sl_session_adopt(s, &v->head, &own);
    } else if (s->leased) { /* who has it knows better, or will */
        c = sl_sessions_find(ss, l->tenant, l->id, &s, &own);
    } else if (!is_same(s, &v->head) && s->in_memory) {
        s->stale = true;
        if (!sl_session_is_quiet_now(s)) {
            if (!(c = adopt_later(l, s, &v->head, &own)))
                return;
        } else {
            drop_state(ss, s);
            c = sl_session_adopt(s, &v->head, &own);
        }
    } else {
        c = sl_session_adopt(s, &v->head, &own);
    }
    if (!c && !s->leased)
        note_holder(s, v->held, v->held_key);
    look_ends(l, c ? NULL : s, c ? &own : NULL);
    if (!c)
        sl_residency_balance(ss);
}

void sl_sessions_look(struct sl_sessions *ss, const char *tenant, const char *id,
                      sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_session *s = NULL;
    if (ss->shared)
        s = sl_registry_lookup(ss, tenant, id);
    if (!ss->shared || (s && ((s->fence && !s->lease_lost && !s->going) || s->unwritten))) {
        enum sl_code c = sl_sessions_find(ss, tenant, id, &s, &err);
        cb(arg, c ? NULL : s, c ? &err : NULL);
        return;
    }
    struct look *l = sl_calloc(1, sizeof *l);
    if (l)
        l->tenant = sl_strdup(tenant);
    if (!l || !l->tenant) {
        sl_free(l);
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to look for session '%.128s'", id);
        cb(arg, NULL, &err);
        return;
    }
    l->ss = ss;
    l->cb = cb;
    l->arg = arg;
    memcpy(l->id, id, strlen(id) + 1);
    ss->n_busy++;
    sl_store_look(ss->store, tenant, id, on_seen, l);
}

/* --- leases ----------------------------------------------------------------------------------- */

static void link_held(struct sl_sessions *ss, struct sl_session *s)
{
    s->prev_held = NULL;
    s->next_held = ss->held;
    if (ss->held)
        ss->held->prev_held = s;
    ss->held = s;
    sl_ear_listen(ss);
}

static void unlink_held(struct sl_sessions *ss, struct sl_session *s)
{
    *(s->prev_held ? &s->prev_held->next_held : &ss->held) = s->next_held;
    if (s->next_held)
        s->next_held->prev_held = s->prev_held;
    s->next_held = s->prev_held = NULL;
}

static void on_released(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    ss->n_busy--;
    /* Then the store does it when it can, or it ends by itself; until then only we can take it. */
    if (code)
        sl_log(SL_LOG_WARN, "a lease was not given back", SL_LS("why", err->message));
}

void sl_lease_ends(struct sl_sessions *ss, struct sl_session *s, bool told)
{
    struct sl_store_key key = sl_session_key(s);
    if (!s->fence)
        return;
    if (!s->lease_lost)
        unlink_held(ss, s);
    bool release = !told && !s->lease_lost && !s->vanished;
    s->fence = 0;
    s->lease_lost = false;
    if (!release)
        return;
    ss->n_busy++;
    sl_store_release(ss->store, &key, on_released, ss);
}

static void on_quiet_to_take(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_error err;
    struct sl_store_head *h = op->arg_head;
    drop_state(op->ss, s);
    enum sl_code c = sl_session_adopt(s, h, &err);
    sl_op_end(op, s, c ? &err : NULL);
}

static enum sl_code changed(const struct sl_session *s, struct sl_error *err)
{
    return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                         "session '%s' is busy: another server has changed it just now; try again",
                         s->id);
}

/* The store's lease is ours; what is known here may be of another version. */
static void taken(struct sl_op *op, const struct sl_store_view *v)
{
    const struct sl_store_head *h = &v->head;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    struct sl_error err;
    bool same = is_same(s, h);
    bool same_life = memcmp(s->incarnation, h->key.incarnation, sizeof s->incarnation) == 0;
    s->fence = h->key.fence;
    s->renewed_ms = v->asked_ms;
    s->lease_lost = false;
    s->renewing = false; /* what is still asked of an earlier lease is of another fence */
    link_held(ss, s);
    note_holder(s, false, "");
    if (!same_life || (op->strict && !same)) {
        s->stale = !same; /* so whoever comes next looks first */
        (void)changed(s, &err);
        sl_op_end(op, s, &err);
        return;
    }
    if (!same && s->in_memory && !sl_session_is_quiet_now(s)) {
        char *metadata = NULL;
        op->arg_head = sl_calloc(1, sizeof *op->arg_head);
        if (op->arg_head && h->metadata.n)
            metadata = op->metadata = sl_strndup(h->metadata.s, h->metadata.n);
        if (op->arg_head && (!h->metadata.n || metadata)) {
            *op->arg_head = *h;
            op->arg_head->metadata.s = metadata;
            s->stale = true;
            sl_op_when_quiet(op, on_quiet_to_take);
            return;
        }
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for session '%s'", s->id);
        sl_op_end(op, s, &err);
        return;
    }
    if (!same && s->in_memory)
        drop_state(ss, s);
    enum sl_code c = sl_session_adopt(s, h, &err);
    sl_op_end(op, s, c ? &err : NULL);
    sl_residency_balance(ss);
}

static void on_taken(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_error own;
    if (!err) {
        taken(op, v);
        return;
    }
    own = *err;
    if (err->code == SL_E_SESSION_NOT_FOUND)
        vanishes(s);
    if (err->code == SL_E_SESSION_BUSY && v) {
        note_holder(s, true, v->held_key);
        if (op->id && !strcmp(op->id, v->held_key))
            (void)sl_fail_param(&own, SL_E_IDEMPOTENCY_IN_FLIGHT, "Idempotency-Key",
                                "a request with this key is being answered; ask again later");
    }
    sl_op_end(op, s, &own);
}

void sl_sessions_take(struct sl_sessions *ss, struct sl_session *s, const char *key,
                      enum sl_take how, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    assert(s->leased);
    if (!ss->shared || !s->in_store || sl_session_is_ephemeral(s)) {
        cb(arg, s, NULL);
        return;
    }
    assert(!s->fence);
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (op && key)
        op->id = sl_strdup(key);
    if (!op || (key && !op->id)) {
        if (op)
            sl_op_free(op);
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the lease of session '%s'", s->id);
        cb(arg, s, &err);
        return;
    }
    op->s = s;
    op->strict = how != SL_TAKE_ANY;
    enum sl_store_taker taker = how == SL_TAKE_REMOVE ? SL_TAKER_REMOVE
                                : s->run              ? SL_TAKER_TURN
                                                      : SL_TAKER_CHANGE;
    sl_store_take(ss->store, s->tenant, s->id, key, taker, on_taken, op);
}

/* --- renewal ---------------------------------------------------------------------------------- */

static void lose(struct sl_sessions *ss, struct sl_session *s)
{
    unlink_held(ss, s);
    s->lease_lost = true;
    sl_log(SL_LOG_WARN, "a lease was lost", SL_LS("tenant", s->tenant), SL_LS("session", s->id));
    if (s->run && ss->on_run.lost)
        ss->on_run.lost(s->run);
}

struct renewal {
    struct sl_sessions *ss;
    struct sl_store_key key;
    char *tenant;
    char id[SL_SESSION_ID_MAX + 1];
    int64_t asked_ms;
};

/* The session, where it still has the lease that was to be renewed. */
static struct sl_session *holder(const struct renewal *n)
{
    struct sl_session *s = sl_registry_lookup(n->ss, n->tenant, n->id);
    return s && s->fence == n->key.fence && !s->lease_lost ? s : NULL;
}

static void on_renewed(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct renewal *n = arg;
    struct sl_session *s = holder(n);
    (void)err;
    if (s) {
        s->renewing = false;
        if (!code)
            s->renewed_ms = n->asked_ms;
        else if (code == SL_E_LEASE_LOST || code == SL_E_SESSION_NOT_FOUND)
            lose(n->ss, s);
    }
    n->ss->n_busy--;
    sl_free(n->tenant);
    sl_free(n);
}

static void renew(struct sl_sessions *ss, struct sl_session *s, int64_t now)
{
    struct renewal *n = sl_calloc(1, sizeof *n);
    if (n)
        n->tenant = sl_strdup(s->tenant);
    if (!n || !n->tenant) {
        sl_free(n);
        return; /* at the next look */
    }
    n->ss = ss;
    n->asked_ms = now;
    sl_session_copy_id(n->id, s);
    n->key = sl_session_key(s);
    n->key.tenant = n->tenant;
    n->key.id = n->id;
    n->key.stamp = NULL;
    s->renewing = true;
    ss->n_busy++;
    sl_store_renew(ss->store, &n->key, on_renewed, n);
}

static void on_renewal(uv_timer_t *t)
{
    struct sl_sessions *ss = t->data;
    int64_t now = (int64_t)uv_now(ss->opt.loop), lease = (int64_t)sl_store_lease_ms(ss->store);
    struct sl_session *s = ss->held;
    while (s) {
        if (now - s->renewed_ms >= lease) {
            lose(ss, s);
            s = ss->held; /* its turn may have ended, and with it others that waited */
            continue;
        }
        if (now - s->renewed_ms >= lease / RENEWALS && !s->renewing)
            renew(ss, s, now);
        s = s->next_held;
    }
}

enum sl_code sl_leases_open(struct sl_sessions *ss, struct sl_error *err)
{
    uint64_t ms = sl_store_lease_ms(ss->store) / LOOKS + 1;
    if (uv_timer_init(ss->opt.loop, &ss->renewal) != 0)
        return sl_fail(err, SL_E_INTERNAL, "no timer on the loop for leases");
    ss->has_renewal = true;
    ss->renewal.data = ss;
    uv_timer_start(&ss->renewal, on_renewal, ms, ms);
    uv_unref((uv_handle_t *)&ss->renewal);
    return SL_OK;
}

void sl_leases_close(struct sl_sessions *ss, uv_close_cb closed)
{
    uv_close((uv_handle_t *)&ss->renewal, closed);
}

/* --- lists ------------------------------------------------------------------------------------ */

/* What is shown of a session that is only looked at: is it in memory here? */
static void show(const struct sl_sessions *ss, const struct sl_store_view *v, size_t i,
                 const struct sl_sessions_lister *to)
{
    const struct sl_store_head *h = &v->head;
    const struct sl_session *here = sl_registry_lookup(ss, h->key.tenant, h->key.id);
    struct sl_session s = {.id = h->key.id,
                           .tenant = h->key.tenant,
                           .kept_bytes = h->kept_bytes,
                           .n_names = h->n_names,
                           .version = h->version,
                           .tokens_seen = h->tokens_seen,
                           .created_at = h->created_at,
                           .used_at = h->used_at,
                           .ttl_s = h->ttl_s,
                           .metadata = (char *)(uintptr_t)h->metadata.s,
                           .n_metadata = h->metadata.n,
                           .leased = v->held};
    memcpy(s.incarnation, h->key.incarnation, sizeof s.incarnation);
    s.in_memory = here && here->in_memory && is_same(here, h);
    to->item(&s, i, to->arg);
}

struct listing {
    struct sl_sessions *ss;
    struct sl_sessions_lister to;
};

static void on_listed(void *arg, const struct sl_store_view *v, size_t n, bool more,
                      const struct sl_error *err)
{
    struct listing *l = arg;
    struct sl_sessions *ss = l->ss;
    for (size_t i = 0; i < n; i++)
        show(ss, &v[i], i, &l->to);
    ss->n_busy--;
    l->to.done(more, err, l->to.arg);
    sl_free(l);
}

void sl_sessions_list_shared(struct sl_sessions *ss, const char *tenant,
                             const struct sl_list_query *q, const struct sl_sessions_lister *to)
{
    struct sl_error err;
    struct listing *l = sl_calloc(1, sizeof *l);
    if (!l) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a list of sessions");
        to->done(false, &err, to->arg);
        return;
    }
    *l = (struct listing){ss, *to};
    ss->n_busy++;
    sl_store_list(ss->store, tenant, q, on_listed, l);
}
