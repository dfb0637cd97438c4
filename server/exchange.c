/* exchange.c: the handler's side of an exchange, see exchange.h; and its birth and end. */
#include "server/exchange.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/response.h"
#include "server/conn.h"

enum {
    BODY_FIRST = 4096,
    BODY_SMALL = 64 * 1024,
    HEAD_MAX = SL_EXCHANGE_HEADER_BYTES_MAX + 2048,
    ERROR_BODY_MAX = 8192, /* a struct sl_error with every byte escaped fits */
};

/* --- birth and end --------------------------------------------------------------------------- */

static bool id_is_valid(const char *id)
{
    size_t n = strlen(id);
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0x21 || id[i] > 0x7e)
            return false;
    return n >= 1 && n <= 128;
}

void sl_request_id(struct sl_conn_env *env, char ret[SL_REQUEST_ID_SIZE])
{
    snprintf(ret, SL_REQUEST_ID_SIZE, "req-%s-%llx", env->id_prefix,
             (unsigned long long)env->id_next++);
}

const char *sl_date_now(struct sl_conn_env *env)
{
    return sl_date_text(&env->date, env->unix_s ? env->unix_s() : (int64_t)time(NULL));
}

struct sl_exchange *sl_exchange_new(struct sl_conn *c, struct sl_http_head *head)
{
    struct sl_exchange *ex = sl_calloc(1, sizeof *ex);
    if (!ex) {
        sl_http_head_free(head);
        return NULL;
    }
    ex->conn = c;
    ex->env = c->env;
    ex->head = head;
    ex->keep_alive = head && head->keep_alive;
    ex->http11 = !head || head->minor >= 1;
    ex->is_head = head && head->method == HTTP_HEAD;
    ex->is_options = head && head->method == HTTP_OPTIONS;
    ex->started_us = c->first_byte_us;
    const char *id = head ? sl_http_head_find(head, "x-request-id") : NULL;
    if (id && id_is_valid(id))
        snprintf(ex->id, sizeof ex->id, "%s", id);
    else
        sl_request_id(c->env, ex->id);
    sl_metric_add(&c->env->metrics, SL_M_IN_FLIGHT, 1);
    return ex;
}

void sl_exchange_drop_body(struct sl_exchange *ex)
{
    sl_exchange_forget_ahead(ex);
    ex->env->body_bytes -= ex->cap_body;
    sl_free(ex->body);
    ex->body = NULL;
    ex->n_body = ex->cap_body = 0;
}

size_t sl_exchange_keep_body(struct sl_exchange *ex)
{
    size_t n = ex->n_body;
    sl_exchange_drop_body(ex);
    ex->env->body_bytes += n;
    return n;
}

void sl_exchange_free(struct sl_exchange *ex)
{
    struct sl_conn_env *env = ex->env;
    sl_exchange_drop_body(ex);
    sl_http_head_free(ex->head);
    sl_free(ex->decoded);
    sl_free(ex->query);
    sl_free(ex);
    sl_metric_add(&env->metrics, SL_M_IN_FLIGHT, -1);
    if (env->freed)
        env->freed(env->freed_arg);
}

void sl_exchange_abort(struct sl_exchange *ex)
{
    ex->conn = NULL;
    sl_metric_add(&ex->env->metrics, SL_M_ABORTED, 1);
    if (ex->events && ex->events->abort)
        ex->events->abort(ex, ex->user);
}

enum sl_code sl_exchange_take_body(struct sl_exchange *ex, const char *data, size_t n,
                                   struct sl_error *err)
{
    const struct sl_config *cfg = ex->env->config;
    if (n > ex->max_body - ex->n_body)
        return sl_fail(err, SL_E_TOO_LARGE, "the body has more than %zu bytes, the limit (%s)",
                       ex->max_body, ex->max_body_option);
    if (ex->discard) {
        ex->n_body += n; /* only counted */
        return SL_OK;
    }
    size_t need = ex->n_body + n + 1;
    if (need > ex->cap_body) {
        size_t cap = ex->cap_body ? ex->cap_body : BODY_FIRST;
        while (cap < need)
            cap *= 2;
        if (cap > ex->max_body + 1)
            cap = ex->max_body + 1;
        /* Large bodies leave some for small ones: whoever fills the memory with them, and lets them
         * wait, does not keep those out. */
        uint64_t limit = cfg->max_body_memory;
        if (cap > BODY_SMALL)
            limit -= limit / 8;
        if (ex->env->body_bytes > limit || cap - ex->cap_body > limit - ex->env->body_bytes)
            return sl_fail(err, SL_E_SERVER_FULL,
                           "the bodies of running requests take %llu bytes already, the limit is "
                           "%llu for those above %d KiB, %llu for all (--max-body-memory)",
                           (unsigned long long)ex->env->body_bytes,
                           (unsigned long long)(cfg->max_body_memory - cfg->max_body_memory / 8),
                           BODY_SMALL >> 10, (unsigned long long)cfg->max_body_memory);
        char *b = sl_realloc(ex->body, cap, 1);
        if (!b)
            return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the request's body");
        ex->env->body_bytes += cap - ex->cap_body;
        ex->body = b;
        ex->cap_body = cap;
    }
    memcpy(ex->body + ex->n_body, data, n);
    ex->n_body += n;
    ex->body[ex->n_body] = '\0';
    return SL_OK;
}

/* The response is written; the handler is through with the exchange. */
static void finish(struct sl_exchange *ex, int status)
{
    struct sl_conn *c = ex->conn;
    struct sl_conn_env *env = ex->env;
    int64_t us = (int64_t)(uv_hrtime() / 1000) - ex->started_us;
    if (c) {
        sl_metrics_request(&env->metrics, ex->matched ? ex->match.index : SL_ROUTES_MAX, status);
        sl_metric_observe(&env->metrics, SL_M_HTTP_DURATION, (double)us * 1e-6);
    }
    const struct sl_route *r = ex->matched ? ex->match.route : NULL;
    bool quiet = r && (r->flags & SL_ROUTE_OPEN) && status < 500;
    sl_log(quiet ? SL_LOG_DEBUG : SL_LOG_INFO, c ? "request" : "request aborted",
           SL_LS("id", ex->id),
           SL_LS("method", ex->head ? llhttp_method_name(ex->head->method) : "-"),
           SL_LS("route", r ? r->pattern : "-"), SL_LI("status", status),
           SL_LS("tenant", ex->identity.tenant), SL_LD("ms", (double)us * 1e-3));
    bool keep = ex->keep_alive, wished = ex->head && ex->head->keep_alive;
    sl_exchange_free(ex);
    if (c)
        sl_conn_answered(c, keep, wished);
}

/* --- the request ----------------------------------------------------------------------------- */

const char *sl_method_name(enum sl_method m)
{
    static const char *const names[SL_METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
    assert((unsigned)m < SL_METHOD_COUNT);
    return names[m];
}

enum sl_method sl_exchange_method(const struct sl_exchange *ex)
{
    return ex->match.route->method;
}

const struct sl_route *sl_exchange_route(const struct sl_exchange *ex)
{
    return ex->match.route;
}

const char *sl_exchange_path(const struct sl_exchange *ex)
{
    return ex->path;
}

const char *sl_exchange_param(const struct sl_exchange *ex, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < ex->match.n_params; i++) {
        const struct sl_route_param *p = &ex->match.params[i];
        if (p->n_name == n && memcmp(p->name, name, n) == 0)
            return p->value;
    }
    assert(!"the route's pattern has no such parameter");
    return "";
}

const char *sl_exchange_query_text(const struct sl_exchange *ex)
{
    return ex->query_text ? ex->query_text : "";
}

const char *sl_exchange_query(const struct sl_exchange *ex, const char *name)
{
    const char *s = ex->query;
    for (size_t i = 0; i < ex->n_query; i++) {
        const char *value = s + strlen(s) + 1;
        if (strcmp(s, name) == 0)
            return value;
        s = value + strlen(value) + 1;
    }
    return NULL;
}

const char *sl_exchange_header(const struct sl_exchange *ex, const char *name)
{
    return sl_http_head_find(ex->head, name);
}

const char *sl_exchange_body(const struct sl_exchange *ex, size_t *ret_n)
{
    *ret_n = ex->body ? ex->n_body : 0;
    return ex->body ? ex->body : "";
}

const char *sl_exchange_tenant(const struct sl_exchange *ex)
{
    return ex->identity.tenant;
}

unsigned sl_exchange_roles(const struct sl_exchange *ex)
{
    return ex->identity.roles;
}

const char *sl_exchange_request_id(const struct sl_exchange *ex)
{
    return ex->id;
}

int64_t sl_exchange_started_us(const struct sl_exchange *ex)
{
    return ex->started_us;
}

struct sl_server *sl_exchange_server(const struct sl_exchange *ex)
{
    return ex->env->server;
}

void *sl_exchange_app(const struct sl_exchange *ex)
{
    return ex->env->app;
}

/* --- events ---------------------------------------------------------------------------------- */

void sl_exchange_on(struct sl_exchange *ex, const struct sl_exchange_events *events, void *user)
{
    ex->events = events;
    ex->user = user;
}

static void on_holder_alone(struct sl_exchange *ex, void *user)
{
    struct sl_exchange **holder = user;
    *holder = NULL;
    sl_exchange_cut(ex);
}

void sl_exchange_hold(struct sl_exchange *ex, struct sl_exchange **holder)
{
    static const struct sl_exchange_events events = {.abort = on_holder_alone};
    *holder = ex;
    sl_exchange_on(ex, &events, holder);
}

void *sl_exchange_user(const struct sl_exchange *ex)
{
    return ex->user;
}

bool sl_exchange_aborted(const struct sl_exchange *ex)
{
    return !ex->conn;
}

/* --- the response's head --------------------------------------------------------------------- */

void sl_exchange_of_session(struct sl_exchange *ex, const char *id)
{
    assert(ex->phase != SL_EX_STREAMING && strlen(id) < sizeof ex->session);
    memcpy(ex->session, id, strlen(id) + 1);
}

void sl_exchange_add_header(struct sl_exchange *ex, const char *name, const char *fmt, ...)
{
    assert(ex->phase != SL_EX_STREAMING && ex->n_headers < SL_EXCHANGE_HEADERS_MAX);
    char *at = ex->headers + ex->n_header_bytes;
    size_t room = sizeof ex->headers - ex->n_header_bytes;
    int n_name = snprintf(at, room, "%s: ", name);
    assert(n_name > 0 && (size_t)n_name < room);
    va_list ap;
    va_start(ap, fmt);
    int n_value = vsnprintf(at + n_name, room - (size_t)n_name, fmt, ap);
    va_end(ap);
    assert(n_value >= 0 && (size_t)n_name + (size_t)n_value + 2 < room);
    size_t n = (size_t)n_name + (size_t)n_value;
    for (size_t i = (size_t)n_name; i < n; i++)
        if ((unsigned char)at[i] < 0x20 || at[i] == 0x7f)
            at[i] = '?';
    at[n] = '\r';
    at[n + 1] = '\n';
    ex->n_header_bytes += n + 2;
    ex->n_headers++;
    ex->has_retry_after |= strcmp(name, "Retry-After") == 0;
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } rows[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status)
            return rows[i].text;
    return "";
}

struct head {
    char text[HEAD_MAX];
    size_t n;
};

static void SL_PRINTF(2, 3) put(struct head *h, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(h->text + h->n, sizeof h->text - h->n, fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof h->text - h->n); /* every part of it is bounded */
    h->n += (size_t)n;
}

enum { LENGTH_NONE = -1, LENGTH_CHUNKED = -2, LENGTH_CLOSE = -3 };

/* Status line and headers. length: of the body, or one of the above. */
static void write_head(struct sl_exchange *ex, int status, const char *content_type, int64_t length)
{
    struct head h = {.n = 0};
    struct sl_conn_env *env = ex->env;
    ex->keep_alive = ex->keep_alive && !env->closing_down && length != LENGTH_CLOSE;
    put(&h, "HTTP/1.1 %d %s\r\n", status, reason(status));
    if (content_type)
        put(&h, "Content-Type: %s\r\n", content_type);
    if (length >= 0)
        put(&h, "Content-Length: %lld\r\n", (long long)length);
    else if (length == LENGTH_CHUNKED)
        put(&h, "Transfer-Encoding: chunked\r\n");
    put(&h, "Date: %s\r\nX-Request-Id: %s\r\n", sl_date_now(env), ex->id);
    if (ex->session[0])
        put(&h, "X-Slate-Session: %s\r\n", ex->session);
    if (!ex->keep_alive)
        put(&h, "Connection: close\r\n");
    else if (!ex->http11)
        put(&h, "Connection: keep-alive\r\n");
    const char *origin = ex->head ? sl_http_head_find(ex->head, "origin") : NULL;
    if (ex->origin == SL_ORIGIN_CORS && origin && strlen(origin) <= 256)
        put(&h,
            "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: "
            "X-Request-Id, X-Slate-Session, X-Slate-Snapshot-Differs, ETag, Idempotent-Replayed, "
            "Location, Retry-After, Content-Disposition\r\n",
            origin);
    put(&h, "%.*s\r\n", (int)ex->n_header_bytes, ex->headers);
    (void)sl_conn_write(ex->conn, h.text, h.n);
}

/* --- whole responses ------------------------------------------------------------------------- */

static int64_t length_of(int status, size_t n)
{
    return status == 204 || status == 304 ? LENGTH_NONE : (int64_t)n;
}

void sl_exchange_reply(struct sl_exchange *ex, int status, const char *content_type,
                       const void *body, size_t n)
{
    assert(ex->phase == SL_EX_OPEN);
    if (ex->conn) {
        write_head(ex, status, content_type, length_of(status, n));
        if (!ex->is_head)
            (void)sl_conn_write(ex->conn, body, n);
    }
    finish(ex, status);
}

void sl_exchange_reply_ref(struct sl_exchange *ex, int status, const char *content_type,
                           const void *body, size_t n, void (*release)(void *arg), void *arg)
{
    assert(ex->phase == SL_EX_OPEN);
    if (ex->conn)
        write_head(ex, status, content_type, length_of(status, n));
    if (ex->conn && !ex->is_head)
        sl_conn_write_ref(ex->conn, body, n, release, arg);
    else if (release)
        release(arg);
    finish(ex, status);
}

void sl_exchange_done(struct sl_exchange *ex)
{
    ex->done = true;
}

const struct sl_error *sl_exchange_told(const struct sl_exchange *ex, const struct sl_error *err,
                                        struct sl_error *own)
{
    if (!ex->done || err->code == SL_E_COMMIT_UNKNOWN)
        return err;
    (void)sl_fail(own, SL_E_COMMIT_UNKNOWN,
                  "it was done, but its answer could not be made (%.200s); the session's version "
                  "tells, and so does a retry with the same Idempotency-Key",
                  err->message);
    return own;
}

void sl_exchange_fail(struct sl_exchange *ex, const struct sl_error *err)
{
    struct sl_error own;
    assert(ex->phase == SL_EX_OPEN && err->code != SL_OK);
    err = sl_exchange_told(ex, err, &own);
    int status = sl_code_http(err->code);
    struct sl_buf b;
    sl_buf_init(&b, ERROR_BODY_MAX);
    sl_write_error(&b, err);
    if ((status == 503 || status == 429) && !ex->has_retry_after &&
        err->retry_after_s != SL_RETRY_NEVER)
        sl_exchange_add_header(ex, "Retry-After", "%d",
                               err->retry_after_s ? err->retry_after_s : 1);
    if (sl_buf_code(&b, NULL) == SL_OK)
        sl_exchange_reply(ex, status, "application/json", b.data, b.len);
    else /* no memory for a text */
        sl_exchange_reply(ex, status, NULL, "", 0);
    sl_buf_done(&b);
}

/* --- streams --------------------------------------------------------------------------------- */

void sl_exchange_stream(struct sl_exchange *ex, int status, const char *content_type,
                        const char *ping)
{
    assert(ex->phase == SL_EX_OPEN);
    ex->phase = SL_EX_STREAMING;
    ex->status = status;
    ex->ping = ping;
    if (!ex->conn)
        return;
    ex->chunked = ex->http11;
    ex->last_write_ms = ex->conn->ops->now_ms(ex->conn->t);
    write_head(ex, status, content_type, ex->chunked ? LENGTH_CHUNKED : LENGTH_CLOSE);
}

bool sl_exchange_write(struct sl_exchange *ex, const void *data, size_t n)
{
    assert(ex->phase == SL_EX_STREAMING);
    struct sl_conn *c = ex->conn;
    if (!c)
        return true; /* dropped; abort has told the handler to stop */
    if (n > 0 && !ex->is_head) {
        char size[24];
        int k = snprintf(size, sizeof size, "%zx\r\n", n);
        bool ok = !ex->chunked || sl_conn_write(c, size, (size_t)k);
        ok = ok && sl_conn_write(c, data, n);
        ok = ok && (!ex->chunked || sl_conn_write(c, "\r\n", 2));
        ex->last_write_ms = c->ops->now_ms(c->t);
        if (!ok)
            return true; /* no memory: the connection is broken now */
    }
    ex->want_writable = !sl_exchange_is_writable(ex);
    return !ex->want_writable;
}

void sl_exchange_ping(struct sl_exchange *ex)
{
    if (ex->ping)
        (void)sl_exchange_write(ex, ex->ping, strlen(ex->ping));
}

size_t sl_exchange_backlog(const struct sl_exchange *ex)
{
    return ex->conn ? sl_conn_backlog(ex->conn) : 0;
}

bool sl_exchange_is_writable(const struct sl_exchange *ex)
{
    return sl_exchange_backlog(ex) <= ex->env->config->write_high;
}

void sl_exchange_end(struct sl_exchange *ex)
{
    assert(ex->phase == SL_EX_STREAMING);
    if (ex->conn && ex->chunked && !ex->is_head)
        (void)sl_conn_write(ex->conn, "0\r\n\r\n", 5);
    finish(ex, ex->status);
}

void sl_exchange_cut(struct sl_exchange *ex)
{
    assert(ex->phase != SL_EX_RECEIVING);
    struct sl_conn *c = ex->conn;
    ex->keep_alive = false;
    finish(ex, ex->phase == SL_EX_STREAMING ? ex->status : 500);
    if (c)
        sl_conn_break(c);
}
