/* session_fork.c: a session that begins as another one: one more reference to its state. See
 * sessions.h, and session_ops.c for what an op is. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

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
    sl_transcript_done(&s->transcript); /* an empty one */
    if (from->n_pending) {
        s->pending = sl_malloc(from->n_pending * sizeof *s->pending);
        if (!s->pending)
            return false;
        memcpy(s->pending, from->pending, from->n_pending * sizeof *s->pending);
        s->n_pending = from->n_pending;
        s->n_reread = from->n_reread;
    }
    if (from->ring) {
        s->ring = sl_malloc(sizeof *s->ring);
        if (!s->ring)
            return false;
        *s->ring = *from->ring;
    }
    if (!sl_transcript_copy(&s->transcript, &from->transcript))
        return false;
    if (from->paused) {
        s->paused = sl_strndup(from->paused, from->n_paused);
        if (!s->paused)
            return false;
        s->n_paused = from->n_paused;
    }
    return true;
}

static void start_forks(struct sl_sessions *ss);

static void forget_source(struct sl_sessions *ss, struct sl_session *from)
{
    from->n_forks--;
    sl_session_is_quiet(ss, from);
}

void sl_op_release_source(struct sl_op *op)
{
    struct sl_session *from = op->from;
    op->from = NULL;
    forget_source(op->ss, from);
}

/* The old one may go, and the next in line begin. */
static void release_source(struct sl_op *op)
{
    struct sl_sessions *ss = op->ss;
    sl_op_release_source(op);
    ss->n_forks--;
    start_forks(ss);
}

/* An earlier version only has to be of that life. */
static enum sl_code check_source(const struct sl_op *op, const struct sl_session *from,
                                 struct sl_error *err)
{
    bool same_life = !memcmp(from->incarnation, op->from_incarnation, sizeof from->incarnation);
    bool is_last = op->target == SL_STORE_LAST;
    if (!op->strict || (same_life && (!is_last || from->version == op->from_version)))
        return SL_OK;
    return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                         "session '%s' is busy: it has changed while its fork waited; try again",
                         from->id);
}

static void on_source_ready(void *arg, struct sl_session *from, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_session *s = op->s;
    struct sl_error own;
    if (!err && check_source(op, from, &own))
        err = &own;
    if (!err && !copy_rest(s, from)) {
        (void)sl_fail(&own, SL_E_NO_MEMORY, "no memory for a session");
        err = &own;
    }
    /* What stored turns had read is free. */
    if (!err && sl_op_take_fork(op, from->tokens_seen, from->n_pending - from->n_reread, &own))
        err = &own;
    if (!err) {
        if (from->state)
            sl_slab_ref(op->ss->opt.slab, from->state);
        s->state = from->state;
        s->version = from->version;
        s->tokens_seen = from->tokens_seen;
    }
    if (err)
        op->err = *err;
    bool failed = err != NULL;
    release_source(op);
    if (failed)
        sl_op_undo_new(op, &op->err);
    else if (sl_session_writes_turns(op->ss, s))
        sl_sessions_save(op->ss, s, on_fork_saved, op);
    else
        sl_op_keep_new(op);
}

static void on_fork_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    (void)s;
    if (err) {
        op->err = *err;
        release_source(op);
        sl_op_undo_new(op, &op->err);
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

/* A fork has the place of the new session while it waits for one for the old one. Were there as
 * many of them as places, each would wait for ever. */
static void start_forks(struct sl_sessions *ss)
{
    while (ss->forks && ss->n_forks + 1 < ss->opt.n_places) {
        struct sl_op *op = ss->forks;
        ss->forks = op->next;
        if (!ss->forks)
            ss->forks_end = &ss->forks;
        ss->n_forks++;
        sl_sessions_ready(ss, op->s, on_fork_place, op);
    }
}

/* First the new one's place, then the old one's state: who has a place is not evicted for it while
 * it is leased, and the old one is not deleted while it is read. */
static void fork_made(struct sl_op *op)
{
    struct sl_sessions *ss = op->ss;
    op->next = NULL;
    *ss->forks_end = op;
    ss->forks_end = &op->next;
    start_forks(ss);
}

/* As it was at another moment: out of the store, or of the other one's memory. */
static void on_past_place(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_op *op = arg;
    struct sl_error own;
    (void)s;
    if (!err && check_source(op, op->from, &own))
        err = &own;
    if (!err) {
        sl_op_begin_past(op);
        return;
    }
    op->err = *err;
    sl_op_release_source(op);
    sl_op_undo_new(op, &op->err);
}

static void past_made(struct sl_op *op)
{
    if (op->ss->store && !sl_session_writes_turns(op->ss, op->from))
        sl_sessions_save(op->ss, op->from, on_past_place, op); /* its last commit may be meant */
    else if (op->ss->store)
        on_past_place(op, op->s, NULL);
    else
        sl_sessions_ready(op->ss, op->s, on_past_place, op);
}

static void fork_refused(struct sl_op *op, const struct sl_error *err)
{
    struct sl_sessions *ss = op->ss;
    struct sl_session *from = op->from;
    op->err = *err;
    sl_op_end(op, NULL, &op->err);
    forget_source(ss, from);
}

void sl_sessions_fork(struct sl_sessions *ss, struct sl_session *from, const struct sl_moment *at,
                      const char *id, bool has_ttl, int64_t ttl_s, struct sl_text metadata,
                      bool strict, bool for_turn, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    char made[SL_SESSION_ID_MAX + 1];
    struct sl_op *op = sl_op_begin(ss, NULL, "for a session", cb, arg);
    if (!op)
        return;
    enum sl_code c = sl_session_check_made(from, &err);
    if (!c && ss->opt.n_places < 2 && !at->given)
        c = sl_fail(&err, SL_E_SESSIONS_FULL,
                    "a fork needs two sessions in memory at once, and there is room for one "
                    "(--sessions-in-memory)");
    if (!c && !id)
        c = make_fork_id(made, from->id, &err);
    if (c) {
        sl_op_end(op, NULL, &err);
        return;
    }
    op->ttl_s = has_ttl ? ttl_s : from->ttl_s;
    op->for_turn = for_turn && !at->given;
    if (!metadata.s && from->metadata)
        metadata = (struct sl_text){from->metadata, from->n_metadata};
    op->strict = strict;
    op->from_version = from->version;
    memcpy(op->from_incarnation, from->incarnation, sizeof op->from_incarnation);
    op->from = from;
    from->n_forks++;
    op->refused = fork_refused;
    sl_op_aim(op, at);
    sl_op_make(op, from->tenant, id ? id : made, metadata, at->given ? past_made : fork_made);
}
