/* sessions.c: see sessions.h: one session (what is kept with it, its lease), opening and closing.
 * Which sessions there are is registry.c's. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

enum { ANSWER_LIFE_S = 24 * 3600 };

size_t sl_sessions_slots(size_t n_places, bool has_store, uint64_t keep_turns)
{
    return n_places * (has_store ? 1 : 1 + (size_t)keep_turns) + SL_SAVES_MAX;
}

/* --- one session ------------------------------------------------------------------------------ */

static void free_answer(struct sl_answer *a)
{
    sl_free(a->key);
    sl_free(a->body);
}

static void forget_answers(struct sl_session *s)
{
    for (size_t i = 0; i < s->n_answers; i++)
        free_answer(&s->answers[i]);
    sl_free(s->answers);
    s->answers = NULL;
    s->n_answers = 0;
}

void sl_session_hand_over(struct sl_session *s)
{
    sl_free(s->seen);
    s->seen = NULL;
    s->state = NULL;
    s->pending = NULL;
    s->n_pending = s->n_reread = 0;
    s->ring = NULL;
    s->paused = NULL;
    s->n_paused = 0;
    s->transcript = (struct sl_transcript){0};
}

void sl_session_forget_rest(struct sl_sessions *ss, struct sl_session *s)
{
    sl_slab_unref(ss->opt.slab, s->state);
    sl_free(s->pending);
    sl_free(s->ring);
    sl_free(s->paused);
    if (sl_session_writes_turns(ss, s)) /* else they are nowhere else */
        forget_answers(s);
    sl_transcript_done(&s->transcript);
    sl_session_hand_over(s);
}

void sl_session_free(struct sl_sessions *ss, struct sl_session *s)
{
    assert(!s->leased && !s->has_place && !s->waiters && !s->save_waiters);
    sl_session_forget_rest(ss, s);
    sl_session_forget_points(ss, s);
    forget_answers(s);
    assert(!s->fence);
    sl_free(s->held_key);
    sl_free(s->metadata);
    sl_free(s);
}

bool sl_session_make_answers(struct sl_session *s)
{
    if (!s->answers)
        s->answers = sl_calloc(SL_STORE_ANSWERS_MAX, sizeof *s->answers);
    return s->answers;
}

void sl_session_push_answer(struct sl_session *s, struct sl_answer *a)
{
    assert(s->answers); /* made before; a session with a lease keeps what it has */
    if (s->n_answers == SL_STORE_ANSWERS_MAX) {
        free_answer(&s->answers[0]);
        s->n_answers--;
        memmove(s->answers, s->answers + 1, s->n_answers * sizeof *s->answers);
    }
    s->answers[s->n_answers++] = *a;
    *a = (struct sl_answer){.key = NULL};
}

bool sl_session_keep_answer(struct sl_session *s, const struct sl_answer *a)
{
    struct sl_answer copy = {.at = a->at, .version = a->version, .n_body = a->n_body};
    memcpy(copy.request_hash, a->request_hash, sizeof copy.request_hash);
    copy.key = sl_strdup(a->key);
    copy.body = sl_strndup(a->body, a->n_body);
    if (!copy.key || !copy.body || !sl_session_make_answers(s)) {
        free_answer(&copy);
        return false;
    }
    sl_session_push_answer(s, &copy);
    return true;
}

const struct sl_answer *sl_session_answer(const struct sl_sessions *ss, const struct sl_session *s,
                                          const char *key)
{
    int64_t now = sl_sessions_now(ss);
    for (size_t i = s->n_answers; i-- > 0;)
        if (!strcmp(s->answers[i].key, key) && now - s->answers[i].at < ANSWER_LIFE_S)
            return &s->answers[i];
    return NULL;
}

int64_t sl_sessions_now(const struct sl_sessions *ss)
{
    int64_t now = ss->shared ? sl_store_now(ss->store) : 0;
    return now ? now : ss->opt.now();
}

struct sl_store_key sl_session_key(const struct sl_session *s)
{
    struct sl_store_key k = {.tenant = s->tenant,
                             .id = s->id,
                             .fence = s->fence,
                             .stamp = &s->stamp,
                             .max_sessions = s->owner->quotas.most[SL_QUOTA_SESSIONS],
                             .max_bytes = s->owner->quotas.most[SL_QUOTA_BYTES]};
    memcpy(k.incarnation, s->incarnation, sizeof k.incarnation);
    return k;
}

struct sl_store_head sl_session_head(const struct sl_session *s)
{
    return (struct sl_store_head){.key = sl_session_key(s),
                                  .version = s->version,
                                  .stamp = s->stamp,
                                  .tokens_seen = s->tokens_seen,
                                  .created_at = s->created_at,
                                  .used_at = s->used_at,
                                  .ttl_s = s->ttl_s,
                                  .metadata = {.s = s->metadata, .n = s->n_metadata},
                                  .snapshot_version = s->saved_version,
                                  .replay_tokens = s->replay_tokens};
}

/* --- lease and version ----------------------------------------------------------------------- */

/* One of those that wait for the lease. */
void sl_session_tell_free(struct sl_session *s, const struct sl_error *err)
{
    struct sl_waiter *w = s->free_waiters;
    if (!w)
        return;
    s->free_waiters = w->next;
    sl_session_done *cb = w->cb;
    void *arg = w->arg;
    sl_free(w);
    cb(arg, s, err);
}

bool sl_sessions_busy(const struct sl_sessions *ss)
{
    return ss->n_busy > 0;
}

void sl_sessions_on_run(struct sl_sessions *ss, const struct sl_run_events *events)
{
    ss->on_run = *events;
}

bool sl_sessions_are_shared(const struct sl_sessions *ss)
{
    return ss->shared;
}

struct sl_slab *sl_sessions_slab(const struct sl_sessions *ss)
{
    return ss->opt.slab;
}

struct sl_store *sl_sessions_store(const struct sl_sessions *ss)
{
    return ss->store;
}

enum sl_code sl_session_lease(struct sl_session *s, struct sl_run *run, struct sl_error *err)
{
    if (s->leased)
        return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                             "session '%s' is busy: one turn at a time; wait for the running one "
                             "or cancel it",
                             s->id);
    s->leased = true;
    s->run = run;
    return SL_OK;
}

enum sl_code sl_session_check_made(const struct sl_session *s, struct sl_error *err)
{
    if (!s->is_bare)
        return SL_OK;
    return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                         "session '%s' is busy: it is being made, and has not read its first "
                         "prompt yet",
                         s->id);
}

void sl_sessions_when_free(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                           void *arg)
{
    struct sl_error err;
    (void)ss;
    if (!s->leased) {
        cb(arg, s, NULL);
        return;
    }
    struct sl_waiter *w = sl_calloc(1, sizeof *w);
    if (!w) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to wait for session '%s'", s->id);
        cb(arg, s, &err);
        return;
    }
    *w = (struct sl_waiter){.cb = cb, .arg = arg};
    struct sl_waiter **end = &s->free_waiters;
    while (*end)
        end = &(*end)->next;
    *end = w;
}

/* One after another until somebody takes the lease: the rest comes when that one gives it back. Who
 * is told may also remove the session. */
static void tell_free(struct sl_sessions *ss, struct sl_session *s)
{
    struct sl_telling t = {s, ss->tellings};
    ss->tellings = &t;
    while (t.s && s->free_waiters && !s->leased)
        sl_session_tell_free(s, NULL);
    ss->tellings = t.outer;
}

void sl_sessions_give_back(struct sl_sessions *ss, struct sl_session *s)
{
    assert(s->leased);
    sl_lease_ends(ss, s, false);
    s->leased = false;
    s->run = NULL;
    s->used_at = sl_sessions_now(ss);
    sl_residency_touch(ss, s);
    tell_free(ss, s);
    sl_residency_balance(ss);
}

enum sl_code sl_session_match(const struct sl_session *s, const char *if_match,
                              struct sl_error *err)
{
    char etag[SL_ETAG_SIZE];
    if (!if_match)
        return SL_OK;
    sl_etag_format(etag, s->incarnation, s->version);
    if (sl_etag_matches(if_match, strlen(if_match), etag))
        return SL_OK;
    return sl_fail_param(err, SL_E_VERSION_MISMATCH, "If-Match",
                         "session '%s' is at %s, and If-Match says %.80s", s->id, etag, if_match);
}

/* --- open and close -------------------------------------------------------------------------- */

struct opening {
    struct sl_sessions *ss;
    enum sl_code code;
    struct sl_error *err;
};

/* A session that the store has. */
static void take_head(void *arg, const struct sl_store_head *h)
{
    struct opening *o = arg;
    struct sl_session *s = NULL;
    if (o->code)
        return;
    struct sl_session as = {.tenant = h->key.tenant,
                            .tokens_seen = h->tokens_seen,
                            .kept_bytes = h->kept_bytes,
                            .n_names = h->n_names};
    uint64_t kept = sl_session_kept(o->ss, &as);
    uint64_t bytes = sl_session_charge(o->ss, h->metadata.n, h->answers_bytes, kept);
    o->code =
        sl_registry_insert(o->ss, h->key.tenant, h->key.id, h->key.incarnation, bytes, &s, o->err);
    if (o->code)
        return;
    assert(s);
    s->answers_bytes = h->answers_bytes;
    o->code = sl_session_adopt(s, h, o->err);
    if (o->code)
        return;
    sl_session_set_ttl(o->ss, s, h->ttl_s);
    s->kept_counted = kept;
    o->ss->kept_bytes += kept;
}

static void free_registry(void *arg)
{
    struct sl_sessions *ss = arg;
    void (*closed)(void *) = ss->closed;
    void *closed_arg = ss->closed_arg;
    sl_registry_close(ss);
    sl_free(ss);
    if (closed)
        closed(closed_arg);
}

static void close_store(struct sl_sessions *ss)
{
    if (ss->store)
        sl_store_close(ss->store, free_registry, ss);
    else
        free_registry(ss);
}

static void on_ear_closed(uv_handle_t *h)
{
    close_store(h->data);
}

static void on_leases_closed(uv_handle_t *h)
{
    struct sl_sessions *ss = h->data;
    if (ss->has_ear)
        sl_ear_close(ss, on_ear_closed);
    else
        close_store(ss);
}

void sl_sessions_close(struct sl_sessions *ss, void (*closed)(void *arg), void *arg)
{
    if (!ss) {
        if (closed)
            closed(arg);
        return;
    }
    ss->closing = true;
    ss->closed = closed;
    ss->closed_arg = arg;
    if (ss->has_renewal)
        sl_leases_close(ss, on_leases_closed);
    else
        close_store(ss);
}

enum sl_code sl_sessions_open(struct sl_sessions **ret, const struct sl_sessions_options *opt,
                              struct sl_error *err)
{
    assert(opt->n_places > 0 && (opt->store || opt->max_sessions <= opt->n_places));
    assert(opt->keep_turns <= SL_KEEP_TURNS_MAX);
    struct sl_sessions *ss = sl_calloc(1, sizeof *ss);
    if (!ss)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the sessions");
    ss->opt = *opt;
    if (!ss->opt.max_names)
        ss->opt.max_names = SL_STORE_NAMES;
    ss->line_end = &ss->line;
    ss->encode_line_end = &ss->encode_line;
    ss->forks_end = &ss->forks;
    ss->opening = true;
    struct opening o = {.ss = ss, .err = err};
    enum sl_code c = sl_registry_open(ss, err);
    if (!c && opt->store)
        c = sl_store_open(
            &ss->store,
            &(struct sl_store_options){.spec = opt->store,
                                       .loop = opt->loop,
                                       .durable = opt->durability == SL_DURABILITY_TURN,
                                       .max_sessions = opt->max_sessions,
                                       .state_bytes = sl_model_info(opt->model)->state_bytes,
                                       .token_bytes = opt->keep_transcript ? sizeof(uint32_t) : 0,
                                       .max_names = ss->opt.max_names,
                                       .timeout_ms = opt->store_timeout_ms,
                                       .lease_ms = opt->lease_ms,
                                       .keep_turns = opt->keep_turns},
            take_head, &o, err);
    ss->opening = false;
    ss->shared = !c && sl_store_is_shared(ss->store);
    if (!c)
        c = o.code;
    if (!c && ss->shared)
        c = sl_leases_open(ss, err);
    if (!c && ss->shared)
        c = sl_ear_open(ss, err);
    if (c) {
        sl_sessions_close(ss, NULL, NULL);
        return c;
    }
    *ret = ss;
    return SL_OK;
}
