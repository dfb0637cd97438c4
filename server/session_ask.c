/* session_ask.c: the end of a turn is asked for on another server than the one that runs it.
 *
 * Servers know nothing of each other but what is in the store. So what is asked of a turn is left
 * there for the server that has its lease (sl_store_ask()), and a server that has leases looks
 * every LOOK_MS whether there is something for it: one small call for all of them, none while no
 * turn runs. Who asks looks as often whether the turn still has its lease, asks again while it has
 * (what was heard may have been lost on its way: to be told twice changes nothing), and is through
 * when it has not: the turn was committed or rolled back, or its server is gone and the lease ran
 * out. The fence says which turn is meant, so that the session's next one is not ended in its
 * place.
 *
 * Not Redis' publish and subscribe: it takes a second connection for each server, which has to be
 * watched and made again like the first, tells at most once, and wants a permission of its own.
 *
 * Loop's thread. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

enum { LOOK_MS = 200 };

struct sl_asking {
    struct sl_asking *next;
    struct sl_sessions *ss;
    enum sl_store_ask what;
    sl_session_ended *cb;
    void *arg;
    char *tenant;
    char id[SL_SESSION_ID_MAX + 1];
    uint64_t fence;   /* of the turn that is to end; 0: not known yet */
    int64_t until_ms; /* of the loop: a server that listens has heard it by then */
    bool under_way;   /* the store is being asked */
};

/* --- who asks ----------------------------------------------------------------------------------*/

static void unlink_asking(struct sl_asking *a)
{
    struct sl_asking **p = &a->ss->askings;
    while (*p != a)
        p = &(*p)->next;
    *p = a->next;
}

static void asking_ends(struct sl_asking *a, struct sl_session *s, const struct sl_error *err)
{
    sl_session_ended *cb = a->cb;
    void *arg = a->arg;
    bool ran = a->fence != 0;
    a->ss->n_busy--;
    sl_free(a->tenant);
    sl_free(a);
    cb(arg, s, ran, err);
}

static void on_seen_after(void *arg, struct sl_session *s, const struct sl_error *err)
{
    asking_ends(arg, s, err);
}

static void refuse(struct sl_asking *a, const struct sl_error *err)
{
    unlink_asking(a);
    asking_ends(a, NULL, err);
}

static void on_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err)
{
    struct sl_asking *a = arg;
    struct sl_sessions *ss = a->ss;
    struct sl_error busy;
    a->under_way = false;
    if (err) {
        refuse(a, err);
    } else if (!runs) {
        unlink_asking(a);
        sl_sessions_look(ss, a->tenant, a->id, on_seen_after, a);
    } else if ((int64_t)uv_now(ss->opt.loop) >= a->until_ms) {
        (void)sl_fail_param(
            &busy, SL_E_SESSION_BUSY, "session",
            "session '%s' is busy: the server that runs its turn does not hear that "
            "it is to end",
            a->id);
        refuse(a, &busy);
    } else {
        a->fence = fence;
    }
}

static void ask(struct sl_asking *a)
{
    a->under_way = true;
    sl_store_ask(a->ss->store, a->tenant, a->id, a->what, a->fence, on_told, a);
}

void sl_sessions_ask(struct sl_sessions *ss, const struct sl_session *s, enum sl_store_ask what,
                     sl_session_ended *cb, void *arg)
{
    struct sl_error err;
    struct sl_asking *a = sl_calloc(1, sizeof *a);
    assert(ss->shared);
    if (a)
        a->tenant = sl_strdup(s->tenant);
    if (!a || !a->tenant) {
        sl_free(a);
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to ask for the end of a turn");
        cb(arg, NULL, false, &err);
        return;
    }
    a->ss = ss;
    a->what = what;
    a->cb = cb;
    a->arg = arg;
    a->until_ms = (int64_t)(uv_now(ss->opt.loop) + sl_store_lease_ms(ss->store)) + LOOK_MS;
    sl_session_copy_id(a->id, s);
    a->next = ss->askings;
    ss->askings = a;
    ss->n_busy++;
    ask(a);
    sl_ear_listen(ss);
}

/* --- who is asked ------------------------------------------------------------------------------*/

static void on_heard(void *arg, const struct sl_store_asked *v, size_t n,
                     const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    (void)err; /* they ask again */
    ss->hearing = false;
    ss->n_busy--;
    for (size_t i = 0; i < n; i++) {
        const struct sl_session *s = sl_registry_lookup(ss, v[i].tenant, v[i].id);
        if (s && s->run && s->fence == v[i].fence && !s->lease_lost && ss->on_run.asked)
            ss->on_run.asked(s->run, v[i].what);
    }
}

static void on_look(uv_timer_t *t)
{
    struct sl_sessions *ss = t->data;
    if (ss->held && !ss->hearing) {
        ss->hearing = true;
        ss->n_busy++;
        sl_store_asked(ss->store, on_heard, ss);
    }
    for (struct sl_asking *a = ss->askings, *next; a; a = next) {
        next = a->next; /* without memory it ends inside */
        if (!a->under_way)
            ask(a);
    }
    if (!ss->held && !ss->askings)
        uv_timer_stop(t);
}

void sl_ear_listen(struct sl_sessions *ss)
{
    if (!uv_is_active((uv_handle_t *)&ss->ear))
        uv_timer_start(&ss->ear, on_look, LOOK_MS, LOOK_MS);
}

enum sl_code sl_ear_open(struct sl_sessions *ss, struct sl_error *err)
{
    if (uv_timer_init(ss->opt.loop, &ss->ear) != 0)
        return sl_fail(err, SL_E_INTERNAL, "no timer on the loop for what other servers ask");
    ss->ear.data = ss;
    ss->has_ear = true;
    uv_unref((uv_handle_t *)&ss->ear);
    return SL_OK;
}

void sl_ear_close(struct sl_sessions *ss, uv_close_cb closed)
{
    assert(!ss->askings);
    uv_close((uv_handle_t *)&ss->ear, closed);
}
