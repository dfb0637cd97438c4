/* residency.c: places, loads and evictions; see residency.h. */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
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
    unsigned n_reloads;
    struct sl_decoded d;
};

static void load_free(struct load *l)
{
    sl_decoded_done(&l->d);
    sl_slab_unref(l->ss->opt.slab, l->d.state);
    sl_free(l);
}

/* The pool's thread: the session is not touched, its head does not change while it is loaded. */
static enum sl_code decode(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct load *l = arg;
    enum sl_code c = sl_decode_record(&l->d, r);
    if (!c)
        c = sl_decoded_stays(&l->d);
    if (c)
        *err = l->d.err;
    return c;
}

static void install(struct load *l)
{
    struct sl_session *s = l->s;
    struct sl_decoded *d = &l->d;
    sl_session_forget_rest(l->ss, s);
    if (d->has_state) {
        s->state = d->state;
        d->state = NULL;
    }
    s->pending = d->pending;
    s->n_pending = d->n_pending;
    s->ring = d->ring;
    s->paused = d->paused;
    s->n_paused = d->n_paused;
    s->transcript = d->transcript;
    d->transcript = (struct sl_transcript){0};
    if (!s->n_answers) {
        sl_free(s->answers);
        s->answers = d->answers;
        s->n_answers = d->n_answers;
        s->answers_saved = s->n_answers ? s->answers[s->n_answers - 1].version : 0;
        d->answers = NULL;
        d->n_answers = 0;
    }
    d->pending = NULL;
    d->ring = NULL;
    d->paused = NULL;
    s->in_memory = true;
    s->n_reread = d->n_pending - d->n_rest;
    s->reread_tokens = sl_unread(s->n_pending);
    l->ss->stats.reread_tokens += s->reread_tokens;
}

/* Errors of a load that say what they are. */
static bool is_told(const struct sl_sessions *ss, enum sl_code c)
{
    return c == SL_E_NO_MEMORY || c == SL_E_IO || c == SL_E_STORE_UNAVAILABLE ||
           c == SL_E_SNAPSHOT_MODEL_MISMATCH || (ss->shared && c == SL_E_SESSION_NOT_FOUND);
}

static void point_to_rebuild(struct sl_error *err)
{
    const struct sl_error was = *err;
    (void)sl_fail(err, was.code, "%.320s; POST …/rebuild reads its transcript again", was.message);
}

/* A server that was started with others, or another one of a fleet: once, for it will be many. */
static void note_differences(struct sl_sessions *ss, const struct sl_session *s,
                             const struct sl_snapshot_info *info)
{
    if (ss->differs || (!info->other_weights_type && !info->other_numerics))
        return;
    ss->differs = true;
    sl_log(SL_LOG_WARN,
           "sessions in the store are of other --weights or --numerics: they go on, but not with "
           "the same bits",
           SL_LS("session", s->id),
           SL_LS("differs", info->other_weights_type ? "weights" : "numerics"));
}

static void load_ends(struct load *l)
{
    struct sl_sessions *ss = l->ss;
    struct sl_session *s = l->s;
    struct sl_error err = l->d.err;
    bool failed = l->d.code != SL_OK;
    if (failed && !is_told(ss, l->d.code))
        err.code = SL_E_STORE_CORRUPT; /* it is not the request that is wrong */
    if (l->d.code == SL_E_SNAPSHOT_MODEL_MISMATCH && ss->opt.keep_transcript)
        point_to_rebuild(&err);
    if (!failed) {
        note_differences(ss, s, &l->d.info);
        install(l);
    }
    ss->stats.loads += !failed;
    load_free(l);
    ready_ends(ss, s, failed ? &err : NULL);
}

static void start_load(struct load *l);

/* What others have done meanwhile, on this server (a rewind of what was not in memory) or, with a
 * shared store, on another one: true: it is loaded again. */
static bool load_again(struct load *l, const struct sl_store_record *r)
{
    enum { RELOADS_MAX = 3 };
    struct sl_session *s = l->s;
    struct sl_decoded *d = &l->d;
    bool other_life = memcmp(s->incarnation, d->incarnation, sizeof d->incarnation) != 0;
    bool older = other_life || (r && r->head->version < s->version);
    if (older && l->n_reloads < RELOADS_MAX) {
        void *slot = d->state;
        sl_decoded_done(d);
        *l = (struct load){.ss = l->ss, .s = s, .n_reloads = l->n_reloads + 1};
        d->state = slot;
        start_load(l);
        return true;
    }
    if (older)
        d->code = sl_fail(&d->err, SL_E_STORE_UNAVAILABLE,
                          "session '%s' changes faster than it can be loaded", s->id);
    else if (!r && l->ss->shared &&
             (d->code == SL_E_VERSION_MISMATCH || d->code == SL_E_SESSION_NOT_FOUND)) {
        d->code = sl_fail_param(&d->err, SL_E_SESSION_NOT_FOUND, "session",
                                "there is no session '%s' any more", s->id);
        s->vanished = !s->leased;
    } else if (r && l->ss->shared &&
               (r->head->version > s->version || r->head->snapshot_version > s->saved_version ||
                !sl_stamps_are_same(&r->head->stamp, &s->stamp))) {
        d->code = sl_session_adopt(s, r->head, &d->err);
    }
    return false;
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct load *l = arg;
    if (!r) {
        l->d.code = err->code;
        l->d.err = *err;
    }
    if (!load_again(l, r))
        load_ends(l);
}

static void start_load(struct load *l)
{
    struct sl_store_key key = sl_session_key(l->s);
    sl_decoded_init(&l->d, l->ss, l->s);
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
    l->d.state = sl_slab_take(ss->opt.slab);
    assert(l->d.state); /* the place that it has */
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

static void quit_line(struct sl_sessions *ss, struct sl_session *s)
{
    struct sl_session **p = &ss->line;
    while (*p != s)
        p = &(*p)->next_in_line;
    *p = s->next_in_line;
    if (ss->line_end == &s->next_in_line)
        ss->line_end = p;
    ss->n_line--;
    s->readying = false;
    ss->n_busy--;
}

void sl_residency_unready(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                          void *arg)
{
    struct sl_error err;
    struct sl_waiter **p = &s->waiters, *w;
    while (*p && ((*p)->cb != cb || (*p)->arg != arg))
        p = &(*p)->next;
    w = *p;
    if (!w || s->has_place)
        return;
    *p = w->next;
    sl_free(w);
    if (!s->waiters)
        quit_line(ss, s);
    (void)sl_fail(&err, SL_E_BAD_REQUEST, "nobody waits for session '%s' any more", s->id);
    s->n_pins++;
    cb(arg, s, &err);
    sl_session_unpin(ss, s);
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

static bool is_at_rest(const struct sl_session *s)
{
    return s->in_memory && !sl_session_is_ephemeral(s) && !s->leased && !s->readying &&
           !s->saving && !s->evicting && !s->waiters && !s->n_pins;
}

static bool may_go(const struct sl_session *s)
{
    return is_at_rest(s) && !s->unwritten && !sl_session_is_unwritable(s);
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
    if (sl_session_is_unwritable(s))
        return; /* its own trouble, and nobody else's; who encoded it balances next */
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

/* No place will become free by itself: what is there stays, as it cannot be written down. */
static bool is_stuck(const struct sl_sessions *ss)
{
    if (!ss->line || ss->n_places_used < ss->opt.n_places)
        return false;
    for (const struct sl_session *s = ss->oldest; s; s = s->newer)
        if (!is_at_rest(s) || !sl_session_is_unwritable(s))
            return false;
    return true;
}

static void tell_stuck(struct sl_sessions *ss)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_SERVER_FULL,
                  "none of the %zu sessions in memory can be written down to make room",
                  ss->n_places_used);
    ready_ends(ss, leave_line(ss), &err);
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
        while (ss->store && is_stuck(ss))
            tell_stuck(ss);
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
