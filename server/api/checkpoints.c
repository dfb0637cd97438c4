/* checkpoints.c: /v1/sessions/{id}/checkpoints, rewind and rebuild: which earlier versions of a
 * session are kept (--keep-turns, and those with a name), back to one of them; and its transcript
 * (--keep-transcript) read again by the model that is loaded. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/api/waiting.h"

/* --- list ------------------------------------------------------------------------------------- */

static struct sl_checkpoint_view view_of(const struct sl_store_point *p)
{
    return (struct sl_checkpoint_view){p->version, p->tokens_seen, p->at};
}

struct listing {
    struct sl_exchange *ex; /* NULL: the client has gone */
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
};

static enum sl_code write_kept(struct sl_buf *b, const char *id, const struct sl_store_kept *k,
                               struct sl_error *err)
{
    struct sl_checkpoint_view *views = sl_calloc(k->n + 1, sizeof *views);
    struct sl_checkpoint_name *names = sl_calloc(k->n_names + 1, sizeof *names);
    enum sl_code c = SL_OK;
    for (size_t i = 0; views && i < k->n; i++)
        views[i] = view_of(&k->v[i]);
    for (size_t i = 0; names && i < k->n_names; i++)
        names[i] = (struct sl_checkpoint_name){k->names[i].version, k->names[i].name};
    if (views && names)
        sl_write_checkpoints(b, id, views, k->n, names, k->n_names);
    else
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a list of checkpoints");
    sl_free(views);
    sl_free(names);
    return c;
}

static void on_points(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct listing *l = arg;
    struct sl_error own;
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    if (l->ex && (!k || write_kept(&b, l->id, k, &own))) {
        sl_exchange_fail(l->ex, k ? &own : err);
        sl_buf_done(&b);
    } else if (l->ex) {
        uint64_t now = k->n ? k->v[k->n - 1].version : 0;
        sl_app_session_headers_of(l->ex, l->id, l->incarnation, now);
        sl_app_reply_json(l->ex, 200, &b);
    }
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

/* --- names ------------------------------------------------------------------------------------ */

struct naming {
    struct sl_exchange *ex; /* NULL: the client has gone */
    char id[SL_SESSION_ID_MAX + 1], name[SL_SESSION_ID_MAX + 1];
    bool deletes;
    struct sl_store_point point;
};

static void on_named(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct naming *w = arg;
    struct sl_buf b;
    if (w->ex && err) {
        sl_exchange_fail(w->ex, err);
    } else if (w->ex) {
        const struct sl_checkpoint_view view = view_of(&w->point);
        sl_exchange_done(w->ex);
        sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
        sl_write_checkpoint(&b, w->id, w->name, w->deletes ? NULL : &view);
        sl_app_session_headers(w->ex, s);
        sl_app_reply_json(w->ex, w->deletes ? 200 : 201, &b);
    }
    sl_free(w);
}

static enum sl_code begin_naming(struct naming **ret, struct sl_exchange *ex,
                                 const struct sl_session *s, const char *name, struct sl_error *err)
{
    struct naming *w = sl_calloc(1, sizeof *w);
    if (!w)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the request");
    sl_session_copy_id(w->id, s);
    memcpy(w->name, name, strlen(name) + 1);
    sl_exchange_hold(ex, &w->ex);
    *ret = w;
    return SL_OK;
}

void sl_post_checkpoints(struct sl_exchange *ex)
{
    size_t n;
    struct sl_moment m;
    struct sl_session *s;
    struct sl_error err;
    struct naming *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_checkpoint_decode(&m, body, n, &err);
        sl_exchange_drop_body(ex);
    }
    if (!c)
        c = begin_naming(&w, ex, s, m.name, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        sl_sessions_put_name(sl_app_of(ex)->sessions, s, &m, &w->point, on_named, w);
}

void sl_delete_checkpoint(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct naming *w;
    const char *name = sl_exchange_param(ex, "name");
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_session_id_check(name, strlen(name), "name", &err);
    if (!c)
        c = begin_naming(&w, ex, s, name, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    w->deletes = true;
    sl_sessions_drop_name(sl_app_of(ex)->sessions, s, name, on_named, w);
}

/* --- rewind ----------------------------------------------------------------------------------- */

void sl_post_rewind(struct sl_exchange *ex)
{
    size_t n;
    struct sl_moment to;
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_app_refuse_idempotency_key(ex, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_rewind_decode(&to, body, n, &err);
        sl_exchange_drop_body(ex);
    }
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    w->rewound = true;
    sl_sessions_rewind(w->app->sessions, s, &to, &w->past, sl_waiting_done, w);
}

/* --- rebuild ---------------------------------------------------------------------------------- */

void sl_post_rebuild(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_app_refuse_idempotency_key(ex, &err);
    if (!c)
        c = sl_app_no_body(ex, &err);
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    w->rebuilt = true;
    sl_sessions_rebuild(w->app->sessions, s, &w->past, sl_waiting_done, w);
}
