/* session_points.c: which earlier versions of a session are kept, and their names. See sessions.h,
 * and session_ops.c for what an op is; session_rewind.c goes back to them.
 *
 * With a store it is the store that keeps them (store.h). Without one they are here: what the last
 * commits left, a slot of the slab each, and those with a name, whose states are copies outside of
 * the slab: it has slots for what --keep-turns keeps, and no more. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

/* --- points in memory ------------------------------------------------------------------------- */

struct sl_session_point {
    struct sl_session_point *next; /* of those with a name */
    char name[SL_SESSION_ID_MAX + 1];
    uint64_t version, tokens_seen;
    int64_t at;
    void *state; /* a reference; NULL: the initial state, or: */
    void *copy;  /* of a state */
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
    sl_free(p->copy);
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

static void free_named(struct sl_sessions *ss, struct sl_session_point *p)
{
    if (!p)
        return;
    free_point(ss, p);
    sl_free(p);
}

void sl_session_forget_points(struct sl_sessions *ss, struct sl_session *s)
{
    for (size_t i = 0; i < s->n_points; i++)
        free_point(ss, &s->points[i]);
    sl_free(s->points);
    s->points = NULL;
    s->n_points = 0;
    for (struct sl_session_point *p = s->named, *next; p; p = next) {
        next = p->next;
        free_named(ss, p);
    }
    s->named = NULL;
}

/* Each with a state is counted as one, whether or not it shares it with others. */
uint64_t sl_session_point_bytes(const struct sl_sessions *ss, const struct sl_session *s)
{
    uint64_t n = s->n_points, tokens = 0;
    for (size_t i = 0; i < s->n_points; i++)
        tokens += s->points[i].transcript.n;
    for (const struct sl_session_point *p = s->named; p; p = p->next, n++)
        tokens += p->transcript.n;
    return n * sl_model_info(ss->opt.model)->state_bytes + tokens * sizeof(uint32_t);
}

static const struct sl_session_point *find_point(const struct sl_session *s, uint64_t version)
{
    for (size_t i = 0; i < s->n_points; i++)
        if (s->points[i].version == version)
            return &s->points[i];
    const struct sl_session_point *p = s->named;
    while (p && p->version != version)
        p = p->next;
    return p;
}

/* --- what there is ---------------------------------------------------------------------------- */

static void add_point(struct sl_store_point *v, size_t *n, const struct sl_session_point *p)
{
    if (*n == 0 || v[*n - 1].version < p->version)
        v[(*n)++] = (struct sl_store_point){p->version, p->tokens_seen, p->at};
}

/* Both in the order of their versions. */
static void fill_kept(const struct sl_session *s, struct sl_store_point *v, size_t *ret_n,
                      struct sl_store_name *names)
{
    const struct sl_session_point *p = s->named, now = point_of(s);
    size_t n = 0;
    for (size_t i = 0; i <= s->n_points; i++) {
        const struct sl_session_point *q = i < s->n_points ? &s->points[i] : &now;
        for (; p && p->version <= q->version; p = p->next, names++) {
            add_point(v, &n, p);
            names->version = p->version;
            memcpy(names->name, p->name, sizeof names->name);
        }
        add_point(v, &n, q);
    }
    *ret_n = n;
}

static void tell_points(const struct sl_session *s, sl_store_pointed *cb, void *arg)
{
    struct sl_error err;
    size_t n_names = (size_t)s->n_names;
    struct sl_store_kept k = {.n_names = n_names};
    struct sl_store_point *v = sl_calloc(s->n_points + n_names + 1, sizeof *v);
    struct sl_store_name *names = sl_calloc(n_names + 1, sizeof *names);
    if (!v || !names) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the versions of session '%s'", s->id);
        cb(arg, NULL, &err);
    } else {
        fill_kept(s, v, &k.n, names);
        k.v = v;
        k.names = names;
        cb(arg, &k, NULL);
    }
    sl_free(v);
    sl_free(names);
}

/* With --durability drain the store does not have the last version yet. */
struct unsaved {
    struct sl_store_point now;
    sl_store_pointed *cb;
    void *arg;
};

static void on_stored(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct unsaved *u = arg;
    struct sl_error own;
    struct sl_store_kept all = k ? *k : (struct sl_store_kept){.n = 0};
    struct sl_store_point *v = k ? sl_calloc(k->n + 1, sizeof *v) : NULL;
    if (k && !v) {
        (void)sl_fail(&own, SL_E_NO_MEMORY, "no memory for the versions of a session");
        err = &own;
    }
    if (v) {
        memcpy(v, k->v, k->n * sizeof *v);
        if (!k->n || v[k->n - 1].version < u->now.version)
            v[all.n++] = u->now;
        all.v = v;
    }
    u->cb(u->arg, v ? &all : NULL, v ? NULL : err);
    sl_free(v);
    sl_free(u);
}

static void tell_stored(struct sl_sessions *ss, const struct sl_session *s, sl_store_pointed *cb,
                        void *arg)
{
    struct sl_error err;
    struct sl_store_key key = sl_session_key(s);
    struct unsaved *u = sl_calloc(1, sizeof *u);
    if (!u) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the versions of session '%s'", s->id);
        cb(arg, NULL, &err);
        return;
    }
    *u = (struct unsaved){{s->version, s->tokens_seen, s->used_at}, cb, arg};
    sl_store_points(ss->store, &key, on_stored, u);
}

void sl_sessions_points(struct sl_sessions *ss, struct sl_session *s, sl_store_pointed *cb,
                        void *arg)
{
    struct sl_store_key key = sl_session_key(s);
    if (ss->store && s->in_store && !sl_session_writes_turns(ss, s))
        tell_stored(ss, s, cb, arg);
    else if (ss->store && s->in_store)
        sl_store_points(ss->store, &key, cb, arg);
    else
        tell_points(s, cb, arg);
}

/* --- one of them ------------------------------------------------------------------------------ */

void sl_op_aim(struct sl_op *op, const struct sl_moment *to)
{
    op->target = to->given ? to->version : SL_STORE_LAST;
    memcpy(op->name, to->name, sizeof op->name);
}

/* Copies of what the point holds besides its state. */
static bool copy_rest(struct sl_op *op, const struct sl_session_point *p)
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

/* A state outside of the slab. False: no memory. */
static bool copy_state(const struct sl_sessions *ss, const struct sl_session_point *p, void **ret)
{
    const void *from = p->copy ? p->copy : p->state;
    size_t n = sl_model_info(ss->opt.model)->state_bytes;
    *ret = from ? sl_aligned_calloc(n) : NULL;
    if (*ret)
        memcpy(*ret, from, n);
    return *ret || !from;
}

static void no_point(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct sl_op *op = arg;
    const struct sl_session *s = op->from ? op->from : op->s;
    if (err)
        op->err = *err;
    else
        (void)sl_store_no_point(&op->err, s->id, op->target, k->v, k->n);
}

enum sl_code sl_session_take_point(struct sl_op *op, const struct sl_session *from,
                                   bool *ret_copied)
{
    const struct sl_session_point now = point_of(from);
    const struct sl_session_point *p =
        op->target == from->version ? &now : find_point(from, op->target);
    if (!p) {
        tell_points(from, no_point, op);
        return op->err.code;
    }
    if (!copy_rest(op, p) || (p->copy && !copy_state(op->ss, p, &op->decoded)))
        return sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for an earlier version of session '%s'",
                       from->id);
    if (p->state)
        sl_slab_ref(op->ss->opt.slab, p->state);
    op->state = p->state;
    *ret_copied = op->decoded != NULL;
    return SL_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

/* As the store knows the session. */
static uint64_t stored_version(const struct sl_sessions *ss, const struct sl_session *s)
{
    return sl_session_writes_turns(ss, s) ? s->version : s->saved_version;
}

static void name_ends(struct sl_op *op, const struct sl_error *err)
{
    sl_session_recount(op->ss, op->s); /* what was taken for it goes, too, where it failed */
    sl_op_give_back(op, err);
}

static void on_name_stored(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!code)
        op->s->n_names += op->drops ? (uint64_t)-1 : 1; /* what is told of a shared one */
    name_ends(op, code ? err : NULL);
}

static struct sl_session_point *named_point(struct sl_op *op)
{
    const struct sl_session *s = op->s;
    const struct sl_session_point now = point_of(s);
    const struct sl_session_point *from =
        op->target == s->version ? &now : find_point(s, op->target);
    struct sl_session_point *p = sl_calloc(1, sizeof *p);
    assert(from); /* it was listed */
    if (!p)
        return NULL;
    *p = (struct sl_session_point){
        .version = from->version, .tokens_seen = from->tokens_seen, .at = from->at};
    memcpy(p->name, op->name, sizeof p->name);
    bool ok = copy_rest(op, from) && copy_state(op->ss, from, &p->copy);
    p->pending = op->pending;
    p->n_pending = op->n_pending;
    p->ring = op->ring;
    p->paused = op->paused;
    p->n_paused = op->n_paused;
    p->transcript = op->transcript;
    op->pending = NULL;
    op->ring = NULL;
    op->paused = NULL;
    op->transcript = (struct sl_transcript){0};
    if (ok)
        return p;
    free_named(op->ss, p);
    return NULL;
}

static void name_in_memory(struct sl_op *op)
{
    struct sl_session_point *p = named_point(op), **at = &op->s->named;
    if (!p) {
        (void)sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a checkpoint of session '%s'",
                      op->s->id);
        name_ends(op, &op->err);
        return;
    }
    while (*at && (*at)->version <= p->version)
        at = &(*at)->next;
    p->next = *at;
    *at = p;
    on_name_stored(op, SL_OK, NULL);
}

static const struct sl_store_name *find_name(const struct sl_store_kept *k, const char *name)
{
    for (size_t i = 0; i < k->n_names; i++)
        if (!strcmp(k->names[i].name, name))
            return &k->names[i];
    return NULL;
}

/* May it have that name? *ret_has: it has it. *ret_seen: tokens of what is named. */
static enum sl_code check_name(struct sl_op *op, const struct sl_store_kept *k, bool *ret_has,
                               uint64_t *ret_seen)
{
    const struct sl_session *s = op->s;
    const struct sl_store_name *had = find_name(k, op->name);
    const struct sl_sessions_options *o = &op->ss->opt;
    size_t i = 0;
    if (op->target == SL_STORE_LAST && k->n)
        op->target = k->v[k->n - 1].version;
    while (i < k->n && k->v[i].version != op->target)
        i++;
    if (i == k->n)
        return sl_store_no_point(&op->err, s->id, op->target, k->v, k->n);
    if (op->ret_point)
        *op->ret_point = k->v[i];
    *ret_seen = k->v[i].tokens_seen;
    *ret_has = had && had->version == op->target;
    if (had && !*ret_has)
        return sl_store_name_taken(&op->err, s->id, op->name, had->version);
    if (!had && k->n_names >= o->max_names)
        return sl_store_names_full(&op->err, s->id, k->n_names);
    return SL_OK;
}

static void on_kept_to_name(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    bool has = false;
    uint64_t seen = 0;
    if (!k) {
        name_ends(op, err);
        return;
    }
    enum sl_code c = check_name(op, k, &has, &seen);
    if (!c && !has)
        c = sl_session_grow(ss, s, sl_session_charge_named(ss, s, seen), &op->err);
    struct sl_store_key key = sl_session_key(s);
    if (c || has)
        name_ends(op, c ? &op->err : NULL);
    else if (ss->store)
        sl_store_put_name(ss->store, &key, stored_version(ss, s), op->name, op->target,
                          on_name_stored, op);
    else
        name_in_memory(op);
}

/* What is not in the store yet, with --durability drain, is put there first. */
static void on_saved_to_name(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (err)
        name_ends(op, err);
    else
        sl_sessions_points(op->ss, s, on_kept_to_name, op);
}

static void name_leased(struct sl_op *op)
{
    if (op->ss->store && !sl_session_writes_turns(op->ss, op->s))
        sl_sessions_save(op->ss, op->s, on_saved_to_name, op);
    else
        on_saved_to_name(op, op->s, NULL);
}

void sl_sessions_put_name(struct sl_sessions *ss, struct sl_session *s, const struct sl_moment *as,
                          struct sl_store_point *ret, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "for a checkpoint", cb, arg);
    if (!op)
        return;
    sl_op_aim(op, as);
    op->ret_point = ret;
    sl_op_lease(op, name_leased);
}

static void unname_leased(struct sl_op *op)
{
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    struct sl_store_key key = sl_session_key(s);
    struct sl_session_point **at = &s->named, *p;
    if (ss->store && s->in_store) {
        sl_store_drop_name(ss->store, &key, stored_version(ss, s), op->name, on_name_stored, op);
        return;
    }
    while ((p = *at) && strcmp(p->name, op->name) != 0)
        at = &p->next;
    if (!p) {
        (void)sl_store_no_name(&op->err, s->id, op->name);
        name_ends(op, &op->err);
        return;
    }
    *at = p->next;
    free_named(ss, p);
    on_name_stored(op, SL_OK, NULL);
}

void sl_sessions_drop_name(struct sl_sessions *ss, struct sl_session *s, const char *name,
                           sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_op_begin(ss, s, "to delete a checkpoint", cb, arg);
    if (!op)
        return;
    memcpy(op->name, name, strlen(name) + 1);
    op->drops = true;
    sl_op_lease(op, unname_leased);
}
