/* residency.c: places, loads and evictions; see residency.h. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

/* --- the order of use ------------------------------------------------------------------------ */

static void unlink_used(struct sl_sessions *ss, struct sl_session *s)
{
    *(s->newer ? &s->newer->older : &ss->newest) = s->older;
    *(s->older ? &s->older->newer : &ss->oldest) = s->newer;
    s->newer = s->older = NULL;
}

static void link_newest(struct sl_sessions *ss, struct sl_session *s)
{
    s->older = ss->newest;
    s->newer = NULL;
    *(ss->newest ? &ss->newest->newer : &ss->oldest) = s;
    ss->newest = s;
}

void sl_residency_touch(struct sl_sessions *ss, struct sl_session *s)
{
    if (s->has_place && ss->newest != s) {
        unlink_used(ss, s);
        link_newest(ss, s);
    }
}

void sl_residency_leave(struct sl_sessions *ss, struct sl_session *s)
{
    assert(s->has_place);
    unlink_used(ss, s);
    s->has_place = false;
    ss->n_places_used--;
}

static void take_place(struct sl_sessions *ss, struct sl_session *s)
{
    assert(!s->has_place && ss->n_places_used < ss->opt.n_places);
    s->has_place = true;
    ss->n_places_used++;
    link_newest(ss, s);
}

/* --- becoming ready -------------------------------------------------------------------------- */

/* Everybody who waits for it is told; whoever of them does something new comes after. */
static void tell_waiters(struct sl_session *s, const struct sl_error *err)
{
    struct sl_waiter *w = s->waiters;
    s->waiters = NULL;
    while (w) {
        struct sl_waiter *next = w->next;
        w->cb(w->arg, s, err);
        sl_free(w);
        w = next;
    }
}

static void ready_ends(struct sl_sessions *ss, struct sl_session *s, const struct sl_error *err)
{
    s->readying = false;
    ss->n_busy--;
    if (err) {
        if (s->has_place && !s->in_memory)
            sl_residency_leave(ss, s);
        ss->stats.failures++;
    }
    s->n_pins++; /* what one of them does must not take it from the next one */
    tell_waiters(s, err);
    sl_session_unpin(ss, s);
    sl_residency_balance(ss);
}

struct load {
    struct sl_sessions *ss;
    struct sl_session *s;
    unsigned char incarnation[16]; /* of a shared store's session another look may bring another */
    unsigned n_reloads;
    bool has_state; /* the slot is filled; else it is the initial state */
    struct sl_answer answers[SL_STORE_ANSWERS_MAX];
    size_t n_answers;
    void *slot;
    struct sl_snapshot_info info;
    struct sl_continuation cont; /* the snapshot's */
    uint32_t *pending;
    size_t n_pending;
    struct sl_penalty_ring *ring;
    char *paused;
    size_t n_paused;
    enum sl_code code;
    struct sl_error err;
};

static void load_forget(struct load *l)
{
    for (size_t i = 0; i < l->n_answers; i++) {
        sl_free(l->answers[i].key);
        sl_free(l->answers[i].body);
    }
    sl_continuation_done(&l->cont);
    sl_free(l->info.text);
    sl_free(l->pending);
    sl_free(l->ring);
    sl_free(l->paused);
}

static void load_free(struct load *l)
{
    load_forget(l);
    sl_slab_unref(l->ss->opt.slab, l->slot);
    sl_free(l);
}

static void push_ring(struct sl_penalty_ring *ring, const uint32_t *tokens, size_t n)
{
    if (n > SL_PENALTY_LAST_N_MAX) {
        tokens += n - SL_PENALTY_LAST_N_MAX;
        n = SL_PENALTY_LAST_N_MAX;
    }
    size_t keep = ring->n < SL_PENALTY_LAST_N_MAX - n ? ring->n : SL_PENALTY_LAST_N_MAX - n;
    memmove(ring->tokens, ring->tokens + ring->n - keep, keep * sizeof *ring->tokens);
    memcpy(ring->tokens + keep, tokens, n * sizeof *tokens);
    ring->n = (uint32_t)(keep + n);
}

static enum sl_code contradicts(struct load *l, const char *what)
{
    return sl_fail(&l->err, SL_E_STORE_CORRUPT,
                   "what is stored of session '%s' contradicts itself: %s", l->s->id, what);
}

/* The ring before a turn that goes on with a paused one: without what that one held. */
static enum sl_code rewind_ring(struct load *l, const struct sl_continuation *before)
{
    const struct sl_paused_turn *p = before->paused;
    if (!p)
        return contradicts(l, "a turn goes on where none was paused");
    *l->ring = p->ring;
    push_ring(l->ring, p->generated, p->n_generated);
    return SL_OK;
}

static enum sl_code add_turn(struct load *l, const struct sl_store_turn *t,
                             const struct sl_continuation *before)
{
    if (t->n_drop > l->n_pending || t->n_generated > t->n_tokens)
        return contradicts(l, "a turn takes back more than there is");
    enum sl_code c = t->n_drop ? rewind_ring(l, before) : SL_OK;
    if (c)
        return c;
    l->n_pending -= t->n_drop;
    uint32_t *all = sl_realloc(l->pending, l->n_pending + t->n_tokens, sizeof *all);
    if (!all)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session's turns");
    l->pending = all;
    memcpy(all + l->n_pending, t->tokens, t->n_tokens * sizeof *all);
    l->n_pending += t->n_tokens;
    push_ring(l->ring, t->tokens + t->n_tokens - t->n_generated, t->n_generated);
    return SL_OK;
}

/* What is pending after the last turn must be the end of what the turns say. */
static enum sl_code check_last(struct load *l, const struct sl_continuation *c, const char *text,
                               size_t n_text)
{
    if (c->n_pending > l->n_pending || memcmp(c->pending, l->pending + l->n_pending - c->n_pending,
                                              c->n_pending * sizeof *c->pending) != 0)
        return contradicts(l, "its pending tokens are not the last ones of its turns");
    if (c->paused) {
        l->paused = sl_strndup(text, n_text);
        l->n_paused = n_text;
        if (!l->paused)
            return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a paused turn");
    }
    return SL_OK;
}

static enum sl_code replay_turns(struct load *l, const struct sl_store_record *r)
{
    size_t vocab = sl_model_info(l->ss->opt.model)->vocab_size;
    struct sl_continuation before = {.pool = SL_POOL_INIT};
    const struct sl_continuation *now = &l->cont;
    const char *text = l->info.continuation;
    size_t n_text = text ? strlen(text) : 0;
    enum sl_code c = SL_OK;
    for (size_t i = 0; !c && i < r->n_turns; i++) {
        const struct sl_store_turn *t = &r->turns[i];
        if (t->version != r->head->snapshot_version + i + 1)
            c = contradicts(l, "a turn is missing");
        if (!c)
            c = add_turn(l, t, now);
        if (c)
            break;
        sl_continuation_done(&before);
        before = (struct sl_continuation){.pool = SL_POOL_INIT};
        text = t->continuation.s;
        n_text = t->continuation.n;
        c = sl_continuation_read(&before, text, n_text, vocab, &l->err);
        now = &before;
    }
    if (!c && l->n_pending)
        c = check_last(l, now, text, n_text);
    sl_continuation_done(&before);
    return c;
}

static enum sl_code decode_snapshot(struct load *l, const struct sl_store_record *r)
{
    const struct sl_sessions_options *o = &l->ss->opt;
    if (!r->snapshot)
        return SL_OK;
    enum sl_code c = sl_snapshot_read_from(o->model, o->tokenizer, r->snapshot, r->n_snapshot,
                                           &r->source, l->slot, &l->info, &l->err);
    if (c)
        return c;
    l->has_state = true;
    if (memcmp(l->info.incarnation, l->incarnation, sizeof l->info.incarnation) != 0 ||
        strcmp(l->info.session_id, l->s->id) != 0 || l->info.version != r->head->snapshot_version)
        return contradicts(l, "its snapshot is that of another session, or of another version");
    if (!l->info.continuation)
        return SL_OK;
    c = sl_continuation_read(&l->cont, l->info.continuation, strlen(l->info.continuation),
                             sl_model_info(o->model)->vocab_size, &l->err);
    if (c)
        return c;
    *l->ring = l->cont.ring;
    l->pending = sl_malloc(l->cont.n_pending * sizeof *l->pending);
    if (!l->pending)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session");
    memcpy(l->pending, l->cont.pending, l->cont.n_pending * sizeof *l->pending);
    l->n_pending = l->cont.n_pending;
    return SL_OK;
}

static enum sl_code copy_answers(struct load *l, const struct sl_store_record *r)
{
    struct sl_session keeper = {.n_answers = 0};
    bool ok = true;
    for (size_t i = 0; ok && i < r->n_answers; i++) {
        const struct sl_store_answer *a = &r->answers[i];
        struct sl_answer answer = {.key = (char *)(uintptr_t)a->idempotency_key,
                                   .at = a->at,
                                   .body = (char *)(uintptr_t)a->body.s,
                                   .n_body = a->body.n};
        memcpy(answer.request_hash, a->request_hash, sizeof answer.request_hash);
        ok = sl_session_keep_answer(&keeper, &answer);
    }
    memcpy(l->answers, keeper.answers, sizeof l->answers);
    l->n_answers = keeper.n_answers;
    return ok ? SL_OK : sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session's answers");
}

static enum sl_code decode_record(struct load *l, const struct sl_store_record *r)
{
    l->ring = sl_calloc(1, sizeof *l->ring);
    if (!l->ring)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory to load session '%s'", l->s->id);
    enum sl_code c = decode_snapshot(l, r);
    if (!c)
        c = replay_turns(l, r);
    return c ? c : copy_answers(l, r);
}

/* The pool's thread: the session is not touched, its head does not change while it is loaded. */
static enum sl_code decode(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct load *l = arg;
    enum sl_code c = decode_record(l, r);
    if (c)
        *err = l->err;
    return c;
}

static void install(struct load *l)
{
    struct sl_session *s = l->s;
    sl_session_forget_rest(l->ss, s);
    if (l->has_state) {
        s->state = l->slot;
        l->slot = NULL;
    }
    s->pending = l->pending;
    s->n_pending = l->n_pending;
    s->ring = l->ring;
    s->paused = l->paused;
    s->n_paused = l->n_paused;
    if (!s->n_answers) {
        memcpy(s->answers, l->answers, sizeof s->answers);
        s->n_answers = l->n_answers;
        l->n_answers = 0;
    }
    l->pending = NULL;
    l->ring = NULL;
    l->paused = NULL;
    s->in_memory = true;
}

/* Errors of a load that say what they are. */
static bool is_told(const struct sl_sessions *ss, enum sl_code c)
{
    return c == SL_E_NO_MEMORY || c == SL_E_IO || c == SL_E_STORE_UNAVAILABLE ||
           (ss->shared && c == SL_E_SESSION_NOT_FOUND);
}

static void load_ends(struct load *l)
{
    struct sl_sessions *ss = l->ss;
    struct sl_session *s = l->s;
    struct sl_error err = l->err;
    bool failed = l->code != SL_OK;
    if (failed && !is_told(ss, l->code))
        err.code = SL_E_STORE_CORRUPT; /* it is not the request that is wrong */
    if (!failed)
        install(l);
    ss->stats.loads += !failed;
    load_free(l);
    ready_ends(ss, s, failed ? &err : NULL);
}

static void start_load(struct load *l);

/* What other servers have done meanwhile: true: it is loaded again. */
static bool load_shared(struct load *l, const struct sl_store_record *r)
{
    enum { RELOADS_MAX = 3 };
    struct sl_session *s = l->s;
    bool other_life = memcmp(s->incarnation, l->incarnation, sizeof l->incarnation) != 0;
    bool older = other_life || (r && r->head->version < s->version);
    if (older && l->n_reloads < RELOADS_MAX) {
        struct load again = {.ss = l->ss, .s = s, .slot = l->slot, .n_reloads = l->n_reloads + 1};
        load_forget(l);
        *l = again;
        start_load(l);
        return true;
    }
    if (older)
        l->code = sl_fail(&l->err, SL_E_STORE_UNAVAILABLE,
                          "session '%s' changes faster than it can be loaded", s->id);
    else if (!r && (l->code == SL_E_VERSION_MISMATCH || l->code == SL_E_SESSION_NOT_FOUND)) {
        l->code = sl_fail_param(&l->err, SL_E_SESSION_NOT_FOUND, "session",
                                "there is no session '%s' any more", s->id);
        s->vanished = !s->leased;
    } else if (r && r->head->version > s->version) {
        l->code = sl_session_adopt(s, r->head, &l->err);
    }
    return false;
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct load *l = arg;
    if (!r) {
        l->code = err->code;
        l->err = *err;
    }
    if (!l->ss->shared || !load_shared(l, r))
        load_ends(l);
}

static void start_load(struct load *l)
{
    struct sl_store_key key = sl_session_key(l->s);
    memcpy(l->incarnation, key.incarnation, sizeof l->incarnation);
    l->cont.pool = (struct sl_pool)SL_POOL_INIT;
    sl_store_load(l->ss->store, &key, decode, on_loaded, l);
}

static void on_place(struct sl_sessions *ss, struct sl_session *s)
{
    take_place(ss, s);
    if (s->in_memory) {
        ready_ends(ss, s, NULL);
        return;
    }
    struct load *l = sl_calloc(1, sizeof *l);
    if (!l) {
        struct sl_error err;
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to load session '%s'", s->id);
        ready_ends(ss, s, &err);
        return;
    }
    l->ss = ss;
    l->s = s;
    l->slot = sl_slab_take(ss->opt.slab);
    assert(l->slot); /* the place that it has */
    start_load(l);
}

void sl_sessions_ready(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb, void *arg)
{
    struct sl_error err;
    if (s->in_memory && s->has_place) {
        sl_residency_touch(ss, s);
        cb(arg, s, NULL);
        return;
    }
    struct sl_waiter *w = sl_calloc(1, sizeof *w);
    if (!w) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to load session '%s'", s->id);
        cb(arg, s, &err);
        return;
    }
    *w = (struct sl_waiter){.cb = cb, .arg = arg};
    struct sl_waiter **end = &s->waiters;
    while (*end)
        end = &(*end)->next;
    *end = w;
    if (s->readying)
        return;
    s->readying = true;
    ss->n_busy++;
    s->next_in_line = NULL;
    *ss->line_end = s;
    ss->line_end = &s->next_in_line;
    ss->n_line++;
    sl_residency_balance(ss);
}

/* --- making room ----------------------------------------------------------------------------- */

static struct sl_session *leave_line(struct sl_sessions *ss)
{
    struct sl_session *s = ss->line;
    ss->line = s->next_in_line;
    if (!ss->line)
        ss->line_end = &ss->line;
    ss->n_line--;
    return s;
}

static bool may_go(const struct sl_session *s)
{
    return s->in_memory && !sl_session_is_ephemeral(s) && !s->leased && !s->readying &&
           !s->saving && !s->evicting && !s->waiters && !s->n_pins;
}

static void drop(struct sl_sessions *ss, struct sl_session *s)
{
    sl_session_forget_rest(ss, s);
    s->in_memory = false;
    sl_residency_leave(ss, s);
    ss->stats.evictions++;
}

static void on_saved_to_go(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    s->evicting = false;
    ss->n_evicting--;
    if (!err)
        return; /* who saved it balances next: then it goes, unless it was used meanwhile */
    sl_residency_touch(ss, s); /* try another one next */
    if (ss->line && ss->n_places_used == ss->opt.n_places)
        ready_ends(ss, leave_line(ss), err);
}

static size_t reserve(const struct sl_sessions *ss)
{
    return ss->opt.n_places / 16 + (ss->opt.n_places > 1);
}

/* Starts what is needed so that those in line, and a few more, will find a place. */
static void make_room(struct sl_sessions *ss)
{
    size_t want = ss->n_line + reserve(ss);
    struct sl_session *s = ss->oldest;
    while (s && ss->opt.n_places - ss->n_places_used + ss->n_evicting < want) {
        struct sl_session *newer = s->newer;
        if (may_go(s)) {
            if (sl_session_is_saved(ss, s)) {
                drop(ss, s);
            } else if (ss->n_evicting < SL_SAVES_MAX) {
                s->evicting = true;
                ss->n_evicting++;
                sl_sessions_save(ss, s, on_saved_to_go, ss);
            } else {
                return;
            }
        }
        s = newer;
    }
}

void sl_residency_balance(struct sl_sessions *ss)
{
    if (ss->balancing) { /* it is on the stack already, and will see */
        ss->balance_again = true;
        return;
    }
    ss->balancing = true;
    do {
        ss->balance_again = false;
        if (ss->store)
            make_room(ss);
        while (ss->line && ss->n_places_used < ss->opt.n_places)
            on_place(ss, leave_line(ss));
    } while (ss->balance_again);
    ss->balancing = false;
}

size_t sl_sessions_in_memory(const struct sl_sessions *ss)
{
    return ss->n_places_used;
}

void sl_residency_stats(const struct sl_sessions *ss, struct sl_residency_stats *ret)
{
    *ret = ss->stats;
}
