/* checkpoints.c: /v1/sessions/{id}/checkpoints, rewind and rebuild: which earlier versions of a
 * session are kept (--keep-turns), back to one of them; and its transcript (--keep-transcript) read
 * again by the model that is loaded. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/api/waiting.h"

/* --- list ------------------------------------------------------------------------------------- */

struct listing {
    struct sl_exchange *ex; /* NULL: the client has gone */
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
};

static void on_points(void *arg, const struct sl_store_point *v, size_t n,
                      const struct sl_error *err)
{
    struct listing *l = arg;
    struct sl_error own;
    struct sl_buf b;
    struct sl_checkpoint_view *views = err ? NULL : sl_calloc(n ? n : 1, sizeof *views);
    if (!err && !views) {
        (void)sl_fail(&own, SL_E_NO_MEMORY, "no memory for a list of checkpoints");
        err = &own;
    }
    for (size_t i = 0; !err && i < n; i++)
        views[i] = (struct sl_checkpoint_view){v[i].version, v[i].tokens_seen, v[i].at};
    if (l->ex && err) {
        sl_exchange_fail(l->ex, err);
    } else if (l->ex) {
        sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
        sl_write_checkpoints(&b, l->id, views, n);
        sl_app_session_headers_of(l->ex, l->id, l->incarnation, n ? v[n - 1].version : 0);
        sl_app_reply_json(l->ex, 200, &b);
    }
    sl_free(views);
    sl_free(l);
}

void sl_get_checkpoints(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct listing *l = NULL;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c && !(l = sl_calloc(1, sizeof *l)))
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    sl_session_copy_id(l->id, s);
    memcpy(l->incarnation, s->incarnation, sizeof l->incarnation);
    sl_exchange_hold(ex, &l->ex);
    sl_sessions_points(sl_app_of(ex)->sessions, s, on_points, l);
}

/* --- rewind ----------------------------------------------------------------------------------- */

void sl_post_rewind(struct sl_exchange *ex)
{
    size_t n;
    uint64_t version;
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_rewind_decode(&version, body, n, &err);
    }
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    w->rewound = true;
    w->rewound_to = version;
    sl_sessions_rewind(w->app->sessions, s, version, &w->replayed_tokens, sl_waiting_done, w);
}

/* --- rebuild ---------------------------------------------------------------------------------- */

void sl_post_rebuild(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    w->rebuilt = true;
    sl_sessions_rebuild(w->app->sessions, s, &w->replayed_tokens, sl_waiting_done, w);
}
