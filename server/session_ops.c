/* session_ops.c: what changes sessions: create, fork, patch, delete, evict (commit and restore:
 * session_commit.c). Each is an op: it takes the lease (or makes a session that nobody else can
 * lease yet), does what takes time, and ends in one place, where either everything was changed or
 * nothing. See sessions.h. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

void sl_op_free(struct sl_op *op)
{
    sl_free(op->metadata);
    sl_free(op->pending);
    sl_free(op->ring);
    sl_free(op->paused);
    sl_free(op->own_answer.key);
    sl_free(op->own_answer.body);
    sl_free(op->data);
    sl_free(op->decoded);
    sl_free(op->info.text);
    sl_free(op);
}

struct sl_op *sl_op_new(struct sl_sessions *ss, sl_session_done *cb, void *arg)
{
    struct sl_op *op = sl_calloc(1, sizeof *op);
    if (op) {
        op->ss = ss;
        op->cb = cb;
        op->arg = arg;
    }
    return op;
}

/* The op is over; s is what the caller gets. */
void sl_op_end(struct sl_op *op, struct sl_session *s, const struct sl_error *err)
{
    sl_session_done *cb = op->cb;
    void *arg = op->arg;
    struct sl_error copy;
    if (err)
        copy = *err;
    sl_op_free(op);
    cb(arg, s, err ? &copy : NULL);
}

void sl_op_refuse(sl_session_done *cb, void *arg, const char *what)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory %s", what);
    cb(arg, NULL, &err);
}

/* A new session did not come to be. */
void sl_op_undo_new(struct sl_op *op, const struct sl_error *err)
{
    struct sl_session *s = op->s;
    s->leased = false;
    sl_registry_remove(op->ss, s);
    sl_op_end(op, NULL, err);
    /* its place may be what another one waits for */
}

void sl_op_keep_new(struct sl_op *op)
{
    struct sl_session *s = op->s;
    sl_sessions_give_back(op->ss, s);
    sl_op_end(op, s, NULL);
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

/* Without a store there is a place for every session that may exist. */
static void on_first_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    (void)arg;
    assert(s->has_place && !err);
    (void)s;
    (void)err;
}

enum sl_code sl_op_insert_new(struct sl_op *op, const char *tenant, const char *id,
                              struct sl_text metadata, struct sl_error *err)
{
    struct sl_session *s;
    enum sl_code c = sl_registry_insert(op->ss, tenant, id, &s, err);
    if (c)
        return c;
    s->in_memory = true;
    s->ttl_s = op->ttl_s;
    c = sl_session_set_metadata(s, metadata, err);
    if (c) {
        sl_registry_remove(op->ss, s);
        return c;
    }
    s->leased = true;
    op->s = s;
    return SL_OK;
}

void sl_sessions_create(struct sl_sessions *ss, const char *tenant, const char *id, int64_t ttl_s,
                        struct sl_text metadata, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (!op) {
        sl_op_refuse(cb, arg, "for a session");
        return;
    }
    op->ttl_s = ttl_s;
    if (sl_op_insert_new(op, tenant, id, metadata, &err)) {
        sl_op_end(op, NULL, &err);
        return;
    }
    if (!ss->store)
        sl_sessions_ready(ss, op->s, on_first_place, NULL);
    if (!sl_session_writes_turns(ss, op->s)) {
        sl_op_keep_new(op);
        return;
    }
    struct sl_store_head head = sl_session_head(op->s);
    sl_store_put_head(ss->store, &head, on_new_head, op);
}

/* --- fork ------------------------------------------------------------------------------------ */

static void on_fork_saved(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (err)
        sl_op_undo_new(op, err);
    else
        sl_op_keep_new(op);
}

static bool copy_rest(struct sl_session *s, const struct sl_session *from)
{
    if (from->n_pending) {
        s->pending = sl_malloc(from->n_pending * sizeof *s->pending);
        if (!s->pending)
            return false;
        memcpy(s->pending, from->pending, from->n_pending * sizeof *s->pending);
        s->n_pending = from->n_pending;
    }
    if (from->ring) {
        s->ring = sl_malloc(sizeof *s->ring);
        if (!s->ring)
            return false;
        *s->ring = *from->ring;
    }
    if (from->paused) {
        s->paused = sl_strndup(from->paused, from->n_paused);
        if (!s->paused)
            return false;
        s->n_paused = from->n_paused;
    }
    return true;
}

static void release_source(struct sl_op *op)
{
    op->from->n_encoding--;
    sl_session_is_quiet(op->ss, op->from);
}

static void on_source_ready(void *arg, struct sl_session *from, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_error no_memory;
    if (!err && !copy_rest(s, from)) {
        (void)sl_fail(&no_memory, SL_E_NO_MEMORY, "no memory for a session");
        err = &no_memory;
    }
    if (!err) {
        if (from->state)
            sl_slab_ref(op->ss->opt.slab, from->state);
        s->state = from->state;
        s->version = from->version;
        s->tokens_seen = from->tokens_seen;
    }
    release_source(op);
    if (err) {
        sl_op_undo_new(op, err);
        return;
    }
    if (sl_session_writes_turns(op->ss, s))
        sl_sessions_save(op->ss, s, on_fork_saved, op);
    else
        sl_op_keep_new(op);
}

static void on_fork_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (err) {
        release_source(op);
        sl_op_undo_new(op, err);
        return;
    }
    sl_sessions_ready(op->ss, op->from, on_source_ready, op);
}

/* An id for a fork that nobody named. Balancers hash an id up to "--" (deploy/), so one that begins
 * as its source's leads to the node where the fork is. A source's id that leaves no room for 128
 * random bits is not taken over. */
static enum sl_code make_fork_id(char dst[SL_SESSION_ID_MAX + 1], const char *from,
                                 struct sl_error *err)
{
    enum { HEX = 32, ROOT_MAX = SL_SESSION_ID_MAX - HEX - 2 };
    char prefix[ROOT_MAX + 3] = "s-";
    const char *end = strstr(from, "--");
    size_t n = end ? (size_t)(end - from) : strlen(from);
    if (n <= ROOT_MAX)
        snprintf(prefix, sizeof prefix, "%.*s--", (int)n, from);
    return sl_random_id(dst, SL_SESSION_ID_MAX + 1, prefix, err);
}

void sl_sessions_fork(struct sl_sessions *ss, struct sl_session *from, const char *id, bool has_ttl,
                      int64_t ttl_s, struct sl_text metadata, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    char made[SL_SESSION_ID_MAX + 1];
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (!op) {
        sl_op_refuse(cb, arg, "for a session");
        return;
    }
    op->ttl_s = has_ttl ? ttl_s : from->ttl_s;
    if (!metadata.s && from->metadata)
        metadata = (struct sl_text){from->metadata, from->n_metadata};
    if ((!id && make_fork_id(made, from->id, &err)) ||
        sl_op_insert_new(op, from->tenant, id ? id : made, metadata, &err)) {
        sl_op_end(op, NULL, &err);
        return;
    }
    /* First the new one's place, then the old one's state: who has a place is not evicted for it
     * while it is leased, and the old one is not deleted while it is read. */
    op->from = from;
    from->n_encoding++;
    sl_sessions_ready(ss, op->s, on_fork_place, op);
}

/* --- patch ----------------------------------------------------------------------------------- */

static void apply_patch(struct sl_op *op)
{
    struct sl_session *s = op->s;
    if (op->metadata) {
        sl_free(s->metadata);
        s->metadata = op->metadata;
        s->n_metadata = op->n_metadata;
        op->metadata = NULL;
    }
    if (op->has_ttl)
        s->ttl_s = op->ttl_s;
    sl_sessions_give_back(op->ss, s);
    sl_op_end(op, s, NULL);
}

static void on_patched(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    if (!code) {
        apply_patch(op);
        return;
    }
    struct sl_session *s = op->s;
    sl_sessions_give_back(op->ss, s);
    sl_op_end(op, s, err);
}

void sl_sessions_patch(struct sl_sessions *ss, struct sl_session *s, bool has_ttl, int64_t ttl_s,
                       struct sl_text metadata, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (op && metadata.s)
        op->metadata = sl_strndup(metadata.s, metadata.n);
    if (!op || (metadata.s && !op->metadata)) {
        if (op)
            sl_op_free(op);
        sl_op_refuse(cb, arg, "for metadata");
        return;
    }
    op->s = s;
    op->n_metadata = metadata.n;
    op->has_ttl = has_ttl;
    op->ttl_s = ttl_s;
    if (sl_session_lease(s, NULL, &err)) {
        sl_op_end(op, s, &err);
        return;
    }
    if (!sl_session_writes_turns(ss, s)) {
        s->head_dirty = true;
        apply_patch(op);
        return;
    }
    struct sl_store_head head = sl_session_head(s);
    head.used_at = ss->opt.now();
    if (has_ttl)
        head.ttl_s = ttl_s;
    if (metadata.s)
        head.metadata = metadata;
    sl_store_put_head(ss->store, &head, on_patched, op);
}

/* --- delete ---------------------------------------------------------------------------------- */

static void on_removed(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_sessions *ss = op->ss;
    s->going = false;
    if (code) {
        sl_sessions_give_back(ss, s);
        sl_op_end(op, s, err);
        return;
    }
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

static bool is_quiet(const struct sl_session *s)
{
    return !s->readying && !s->saving && !s->evicting && !s->n_encoding;
}

void sl_session_is_quiet(struct sl_sessions *ss, struct sl_session *s)
{
    if (!s->going || !is_quiet(s))
        return;
    struct sl_op **p = &ss->ops;
    while (*p && (*p)->s != s)
        p = &(*p)->next;
    struct sl_op *op = *p;
    if (!op)
        return;
    *p = op->next;
    delete_quiet(op);
}

void sl_sessions_delete(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                        void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (!op) {
        sl_op_refuse(cb, arg, "to delete a session");
        return;
    }
    op->s = s;
    if (sl_session_lease(s, NULL, &err)) {
        sl_op_end(op, s, &err);
        return;
    }
    s->going = true;
    if (is_quiet(s)) {
        delete_quiet(op);
        return;
    }
    op->next = ss->ops;
    ss->ops = op;
}

/* --- evict ----------------------------------------------------------------------------------- */

static void on_saved_to_evict(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_sessions *ss = op->ss;
    if (!err && s->has_place && s->in_memory && is_quiet(s) && sl_session_is_saved(ss, s)) {
        sl_session_forget_rest(ss, s);
        s->in_memory = false;
        sl_residency_leave(ss, s);
    }
    sl_sessions_give_back(ss, s);
    sl_op_end(op, s, err);
}

void sl_sessions_evict(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    struct sl_op *op = sl_op_new(ss, cb, arg);
    if (!op) {
        sl_op_refuse(cb, arg, "to store a session");
        return;
    }
    op->s = s;
    if (sl_session_lease(s, NULL, &err)) {
        sl_op_end(op, s, &err);
        return;
    }
    if (ss->store && s->in_memory) {
        sl_sessions_save(ss, s, on_saved_to_evict, op);
        return;
    }
    sl_sessions_give_back(ss, s);
    sl_op_end(op, s, NULL);
}
