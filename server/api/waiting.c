/* waiting.c: see waiting.h. */
#include "server/api/waiting.h"

#include <string.h>

#include "engine/base/mem.h"

static void reply(struct sl_exchange *ex, int status, const struct sl_session *s,
                  const struct sl_waiting *w)
{
    struct sl_session_view view;
    struct sl_buf b;
    sl_app_session_view(sl_app_of(ex), s, &view);
    view.rewound = w && w->rewound;
    view.rebuilt = w && w->rebuilt;
    view.rewound_to = w ? w->past.version : 0;
    view.replayed_tokens = w ? w->past.n_replayed : 0;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session(&b, &view);
    sl_app_session_headers(ex, s);
    if (status == 201)
        sl_exchange_add_header(ex, "Location", "/v1/sessions/%s", s->id);
    sl_app_reply_json(ex, status, &b);
}

void sl_app_reply_session(struct sl_exchange *ex, int status, const struct sl_session *s)
{
    reply(ex, status, s, NULL);
}

enum sl_code sl_app_find_named(struct sl_exchange *ex, struct sl_session **ret,
                               struct sl_error *err)
{
    struct sl_session *s;
    enum sl_code c = sl_app_ready(sl_app_of(ex), err);
    if (!c)
        c = sl_app_session(ex, sl_exchange_param(ex, "id"), &s, err);
    if (c)
        return c;
    c = sl_app_match(ex, s, err);
    if (!c)
        *ret = s;
    return c;
}

/* --- what the store has of a session ------------------------------------------------------------
 */

struct asking {
    struct sl_exchange *ex; /* NULL: the client has gone */
    void (*handler)(struct sl_exchange *ex);
};

static const struct sl_exchange_events no_events;

/* That there is none is for the handler to say: a PUT may make it. */
static void on_answer(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct asking *a = arg;
    struct sl_exchange *ex = a->ex;
    void (*handler)(struct sl_exchange *) = a->handler;
    (void)s;
    sl_free(a);
    if (!ex)
        return;
    sl_exchange_on(ex, &no_events, NULL);
    if (err && err->code != SL_E_SESSION_NOT_FOUND)
        sl_exchange_fail(ex, err);
    else
        handler(ex);
}

void sl_app_named(struct sl_exchange *ex, void (*handler)(struct sl_exchange *ex))
{
    const struct sl_app *app = sl_app_of(ex);
    const char *id = sl_exchange_param(ex, "id");
    struct sl_error err;
    if (!app->turns || !sl_sessions_are_shared(app->sessions) ||
        !sl_session_id_valid(id, strlen(id))) {
        handler(ex);
        return;
    }
    struct asking *a = sl_calloc(1, sizeof *a);
    if (!a) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
        sl_exchange_fail(ex, &err);
        return;
    }
    a->handler = handler;
    sl_exchange_hold(ex, &a->ex);
    sl_sessions_look(app->sessions, sl_exchange_tenant(ex), id, on_answer, a);
}

/* --- waiting for a change -----------------------------------------------------------------------
 */

enum sl_code sl_waiting_new(struct sl_waiting **ret, struct sl_exchange *ex, int status,
                            struct sl_error *err)
{
    struct sl_waiting *w = sl_calloc(1, sizeof *w);
    if (!w)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the request");
    w->app = sl_app_of(ex);
    w->status = status;
    sl_exchange_hold(ex, &w->ex);
    *ret = w;
    return SL_OK;
}

static void reply_deleted(struct sl_exchange *ex, const char *id)
{
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session_deleted(&b, id);
    sl_app_reply_json(ex, 200, &b);
}

void sl_waiting_done(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_waiting *w = arg;
    if (w->ex) {
        if (!err)
            sl_exchange_done(w->ex);
        if (err) {
            sl_exchange_fail(w->ex, err);
        } else if (w->deleted[0]) {
            reply_deleted(w->ex, w->deleted);
        } else {
            sl_app_tell_differences(w->ex, &w->restoring.info);
            reply(w->ex, w->status, s, w);
        }
    }
    if (w->body)
        sl_exchange_cut(w->body);
    sl_free(w);
}
