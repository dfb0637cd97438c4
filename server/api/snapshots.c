/* snapshots.c: /v1/sessions/{id}/snapshot (GET, PUT), pause and resume: a session as bytes, to the
 * store and back. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/api/waiting.h"
#include "server/residency.h"

#define SNAPSHOT_CONTENT_TYPE "application/vnd.safetensors"

/* --- GET ----------------------------------------------------------------------------------------
 */

struct reading {
    struct sl_exchange *ex; /* NULL: the client has gone */
    struct sl_app *app;
    enum sl_dtype dtype;
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
};

static void reading_fails(struct reading *r, const struct sl_error *err)
{
    if (r->ex)
        sl_exchange_fail(r->ex, err);
    sl_free(r);
}

static void release_bytes(void *arg)
{
    sl_free(arg);
}

static void on_encoded(void *arg, struct sl_session *s, const struct sl_encoded *e,
                       const struct sl_error *err)
{
    struct reading *r = arg;
    (void)s;
    if (!e) {
        reading_fails(r, err);
        return;
    }
    if (r->ex) {
        sl_app_session_headers_of(r->ex, r->id, r->incarnation, e->version);
        sl_exchange_add_header(r->ex, "Content-Disposition",
                               "attachment; filename=\"%s.safetensors\"", r->id);
        sl_exchange_reply_ref(r->ex, 200, SNAPSHOT_CONTENT_TYPE, e->data, e->n, release_bytes,
                              e->data);
    } else {
        sl_free(e->data);
    }
    sl_free(r);
}

static void on_ready_to_read(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct reading *r = arg;
    if (err || !r->ex)
        reading_fails(r, err);
    else
        sl_sessions_encode(r->app->sessions, s, r->dtype, on_encoded, r);
}

static enum sl_code wanted_dtype(const struct sl_exchange *ex, enum sl_dtype *ret,
                                 struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_dtype dtype;
    } row[] = {{"f32", SL_DTYPE_F32}, {"bf16", SL_DTYPE_BF16}, {"int8", SL_DTYPE_I8}};
    const char *name = sl_exchange_query(ex, "dtype");
    if (!name)
        name = "f32";
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (!strcmp(row[i].name, name)) {
            *ret = row[i].dtype;
            return SL_OK;
        }
    }
    return sl_fail_param(err, SL_E_INVALID_VALUE, "dtype",
                         "dtype is '%.32s'; allowed are f32, bf16 and int8", name);
}

void sl_get_snapshot(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    enum sl_dtype dtype = SL_DTYPE_F32;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = wanted_dtype(ex, &dtype, &err);
    if (!c)
        c = sl_session_check_made(s, &err);
    struct reading *r = c ? NULL : sl_calloc(1, sizeof *r);
    if (!c && !r)
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
    if (!r) {
        sl_exchange_fail(ex, &err);
        return;
    }
    *r = (struct reading){.app = sl_app_of(ex), .dtype = dtype};
    sl_session_copy_id(r->id, s);
    memcpy(r->incarnation, s->incarnation, sizeof r->incarnation);
    sl_exchange_hold(ex, &r->ex);
    sl_sessions_ready(r->app->sessions, s, on_ready_to_read, r);
}

/* --- PUT ----------------------------------------------------------------------------------------
 */

/* Over a session only under its ETag: nothing is lost by an upload that did not know of it. */
static enum sl_code find_target(struct sl_exchange *ex, struct sl_session **ret,
                                struct sl_error *err)
{
    const char *if_match = sl_exchange_header(ex, "If-Match");
    enum sl_code c = sl_app_session(ex, sl_exchange_param(ex, "id"), ret, err);
    if (c == SL_E_SESSION_NOT_FOUND && !if_match) {
        *ret = NULL;
        return SL_OK;
    }
    if (c)
        return c;
    if (!if_match) {
        sl_app_session_headers(ex, *ret);
        return sl_fail_param(err, SL_E_SESSION_EXISTS, "If-Match",
                             "there is a session '%s' already; to replace it send If-Match with "
                             "its ETag",
                             (*ret)->id);
    }
    return sl_app_match(ex, *ret, err);
}

/* The body is read where it lies. */
static void on_put_abort(struct sl_exchange *ex, void *user)
{
    struct sl_waiting *w = user;
    w->ex = NULL;
    w->body = ex;
    sl_sessions_give_up(&w->restoring); /* which may be its end */
}

static const struct sl_exchange_events put_events = {.abort = on_put_abort};

void sl_put_snapshot(struct sl_exchange *ex)
{
    size_t n;
    struct sl_session *over = NULL;
    struct sl_error err;
    struct sl_waiting *w = NULL;
    struct sl_app *app = sl_app_of(ex);
    const char *id = sl_exchange_param(ex, "id");
    const char *body = sl_exchange_body(ex, &n);
    enum sl_code c = sl_app_ready(app, &err);
    if (!c)
        c = sl_session_id_check(id, strlen(id), "id", &err);
    if (!c)
        c = find_target(ex, &over, &err);
    if (!c && !n)
        c = sl_fail(&err, SL_E_SNAPSHOT_CORRUPT, "the body is empty; a snapshot is expected");
    if (!c)
        c = sl_waiting_new(&w, ex, over ? 200 : 201, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    sl_exchange_on(ex, &put_events, w);
    sl_sessions_restore(app->sessions, sl_exchange_tenant(ex), over, id, sl_app_default_ttl(app),
                        (struct sl_text){NULL, 0}, SL_RESTORE_SNAPSHOT, body, n, false,
                        &w->restoring, sl_waiting_done, w);
}

/* --- pause and resume
 * ------------------------------------------------------------------------------ */

/* A pause waits for the running turn's end; the registry tells when the lease is free. */
static void on_free(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_waiting *w = arg;
    if (err)
        sl_waiting_done(w, s, err);
    else
        sl_sessions_evict(w->app->sessions, s, sl_waiting_done, w);
}

/* The same of a turn on another server. */
static void on_ended_elsewhere(void *arg, struct sl_session *s, bool ran,
                               const struct sl_error *err)
{
    (void)ran;
    on_free(arg, s, err);
}

void sl_post_pause(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_app_no_body(ex, &err);
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    if (!s->leased && s->held_elsewhere) {
        sl_sessions_ask(w->app->sessions, s, SL_ASK_PAUSE, on_ended_elsewhere, w);
        return;
    }
    if (s->run)
        sl_run_pause(s->run);
    sl_sessions_when_free(w->app->sessions, s, on_free, w);
}

void sl_post_resume(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_app_no_body(ex, &err);
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        sl_sessions_ready(w->app->sessions, s, sl_waiting_done, w);
}
