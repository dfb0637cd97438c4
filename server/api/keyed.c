/* keyed.c: Idempotency-Key: a retried turn is answered again instead of running twice.
 *
 * The answers of the last four keys of a session are kept with it for a day, written with the
 * turn's commit (sessions.h). The same key with another body or route is a mistake (422); one whose
 * turn still runs is a 409. A turn that failed or was rolled back keeps nothing: its retry runs.
 * If-Match is looked at after the key, because the first try has moved the session on. */
#include <string.h>
#include <xxhash.h>

#include "engine/base/mem.h"
#include "server/api/generation.h"
#include "server/residency.h"

enum { KEY_BYTES_MAX = 255 };

void sl_keyed_see(struct sl_generation *g, const void *body, size_t n)
{
    XXH128_canonical_t hash;
    if (!sl_exchange_header(g->ex, "Idempotency-Key"))
        return;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(body, n));
    memcpy(g->body_hash, hash.digest, sizeof g->body_hash);
}

enum sl_code sl_keyed_take(struct sl_generation *g, struct sl_error *err)
{
    const char *key = sl_exchange_header(g->ex, "Idempotency-Key");
    if (!key)
        return SL_OK;
    size_t len = strlen(key);
    for (size_t i = 0; i < len; i++)
        if (key[i] < 0x21 || key[i] > 0x7E)
            len = 0;
    if (!len || len > KEY_BYTES_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "Idempotency-Key",
                             "Idempotency-Key must be 1 to %d visible ASCII characters",
                             KEY_BYTES_MAX);
    if (!g->session[0])
        return sl_fail_param(err, SL_E_INVALID_VALUE, "Idempotency-Key",
                             "Idempotency-Key needs a session, where the answer is kept");
    if (g->req.stream && g->req.dialect != SL_DIALECT_SLATE)
        return sl_fail_param(err, SL_E_UNSUPPORTED, "Idempotency-Key",
                             "with Idempotency-Key this route answers whole only: leave stream "
                             "away, or use /v1/generate");
    g->key = sl_strdup(key);
    return g->key ? SL_OK : sl_fail(err, SL_E_NO_MEMORY, "no memory for the request");
}

/* As it was; streamed it is one event with everything in it. */
static void answer_again(struct sl_generation *g, const struct sl_session *s,
                         const struct sl_answer *a)
{
    struct sl_exchange *ex = g->ex;
    g->ex = NULL;
    /* Its own version's: where the session has moved on since, If-Match with it is a 412. */
    sl_app_session_headers_of(ex, s->id, s->incarnation, a->version);
    sl_exchange_add_header(ex, "Idempotent-Replayed", "true");
    if (!g->req.stream) {
        sl_exchange_reply(ex, 200, "application/json", a->body, a->n_body);
        return;
    }
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_sse_event(&b, a->body, a->n_body);
    sl_sse_done(&b);
    sl_answer_open_stream(ex);
    bool ok = !sl_buf_code(&b, NULL);
    if (ok)
        (void)sl_exchange_write(ex, b.data, b.len);
    sl_buf_done(&b);
    if (ok)
        sl_exchange_end(ex);
    else
        sl_exchange_cut(ex);
}

static enum sl_code check_in_flight(const struct sl_generation *g, const struct sl_session *s,
                                    struct sl_error *err)
{
    const char *running = s->run              ? sl_run_idempotency_key(s->run)
                          : s->held_elsewhere ? s->held_key
                                              : NULL;
    if (!running || strcmp(running, g->key) != 0)
        return SL_OK;
    return sl_fail_param(err, SL_E_IDEMPOTENCY_IN_FLIGHT, "Idempotency-Key",
                         "a request with this key is being answered; ask again later");
}

/* Of the same request: a kept body begins with the id that its route gives. */
static bool answers(const struct sl_generation *g, const struct sl_answer *a)
{
    static const char before[] = "{\"id\":\"";
    const char *prefix = g->dialect->id_prefix;
    size_t n = sizeof before - 1, n_prefix = strlen(prefix);
    return !memcmp(a->request_hash, g->body_hash, sizeof g->body_hash) &&
           a->n_body > n + n_prefix && !memcmp(a->body, before, n) &&
           !memcmp(a->body + n, prefix, n_prefix);
}

static void on_ready(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_generation *g = arg;
    struct sl_error own;
    if (err || !g->ex) {
        sl_generation_fail(g, err);
        return;
    }
    const struct sl_answer *a = sl_session_answer(g->app->sessions, s, g->key);
    if (a && answers(g, a)) {
        answer_again(g, s, a);
        sl_generation_fail(g, NULL); /* only frees it: it is answered */
        return;
    }
    enum sl_code c = check_in_flight(g, s, &own); /* again: both may have waited for the session */
    if (!c && a)
        c = sl_fail_param(&own, SL_E_IDEMPOTENCY_MISMATCH, "Idempotency-Key",
                          "this key was used for another body or route; every new request needs "
                          "its own");
    else if (!c)
        c = sl_app_match(g->ex, s, &own);
    if (!c)
        c = sl_generation_run(g, s, &own);
    if (c)
        sl_generation_fail(g, &own);
}

enum sl_code sl_keyed_start(struct sl_generation *g, struct sl_session *s, struct sl_error *err)
{
    enum sl_code c = check_in_flight(g, s, err);
    if (!c)
        sl_sessions_ready(g->app->sessions, s, on_ready, g);
    return c;
}
