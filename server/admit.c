/* admit.c: who may do what, judged from a request's head alone.
 *
 * The order matters. The path first, because a route may be open; Host and Origin before anything
 * that answers differently for different keys, so that no web page learns from it; then the key,
 * then its role, then what the body is announced to be. A request refused here costs no body. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/conn.h"

enum { QUERY_MAX = 64 };

/* --- path and query -------------------------------------------------------------------------- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes [s, s + n) of a query to dst (which may be s) and ends it; false: a bad escape, NUL, or
 * invalid UTF-8. */
static bool decode(char *dst, const char *s, size_t n, size_t *ret_n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '+')
            c = ' ';
        if (c == '%') {
            int h = i + 2 < n ? hex(s[i + 1]) : -1;
            int l = h >= 0 ? hex(s[i + 2]) : -1;
            if (l < 0 || h * 16 + l == 0)
                return false;
            c = (char)(h * 16 + l);
            i += 2;
        }
        dst[k++] = c;
    }
    dst[k] = '\0';
    *ret_n = k;
    return sl_utf8_valid(dst, k);
}

static enum sl_code read_query(struct sl_exchange *ex, const char *q, struct sl_error *err)
{
    size_t len = strlen(q), at = 0;
    /* Each pair shrinks or keeps its length, but for "name" without '=': one NUL more. */
    ex->query = sl_malloc(2 * len + 2);
    if (!ex->query)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the query");
    while (*q) {
        size_t n = strcspn(q, "&"), n_name = strcspn(q, "=&"), k;
        if (n > 0) {
            if (ex->n_query == QUERY_MAX)
                return sl_fail(err, SL_E_BAD_REQUEST, "the query has more than %d parameters",
                               (int)QUERY_MAX);
            bool ok = decode(ex->query + at, q, n_name, &k);
            at += ok ? k + 1 : 0;
            size_t from = n_name < n ? n_name + 1 : n;
            ok = ok && decode(ex->query + at, q + from, n - from, &k);
            if (!ok)
                return sl_fail(err, SL_E_BAD_REQUEST,
                               "the query parameter '%.*s' is no valid percent-encoded UTF-8",
                               (int)(n < 100 ? n : 100), q);
            at += k + 1;
            ex->n_query++;
        }
        q += n + (q[n] == '&');
    }
    return SL_OK;
}

static enum sl_method method_of(unsigned char llhttp_method)
{
    switch (llhttp_method) {
    case HTTP_GET:
    case HTTP_HEAD:
        return SL_GET;
    case HTTP_POST:
        return SL_POST;
    case HTTP_PUT:
        return SL_PUT;
    case HTTP_PATCH:
        return SL_PATCH;
    case HTTP_DELETE:
        return SL_DELETE;
    default:
        return SL_METHOD_COUNT; /* no route takes it */
    }
}

/* Finds the row. For OPTIONS a path that exists is enough. */
static enum sl_code find_route(struct sl_exchange *ex, struct sl_error *err)
{
    struct sl_http_head *h = ex->head;
    char *q = strchr(h->target, '?');
    if (q)
        *q++ = '\0';
    ex->query_text = q;
    ex->path = h->target;
    ex->max_body = (size_t)ex->env->config->max_body;
    ex->max_body_option = "--max-body";
    ex->discard = true;
    if (!(ex->decoded = sl_strdup(ex->path)))
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the request's path");
    if (ex->is_options && strcmp(ex->path, "*") == 0)
        return SL_OK;
    enum sl_code c =
        sl_router_find(&ex->env->router, method_of(h->method), ex->decoded, &ex->match, err);
    if (c == SL_E_METHOD_NOT_ALLOWED && ex->is_options)
        return SL_OK;
    if (c)
        return c;
    ex->matched = true;
    ex->discard = ex->match.route->body == SL_BODY_NONE;
    if (ex->match.route->body == SL_BODY_BYTES) {
        ex->max_body = (size_t)ex->env->config->max_upload;
        ex->max_body_option = "--max-upload";
    }
    return q ? read_query(ex, q, err) : SL_OK;
}

/* --- who --------------------------------------------------------------------------------------*/

/* any: nobody is refused, as probes come from anywhere and tell nothing; but a page that --cors
 * names may read the answer. */
static enum sl_code check_origin(struct sl_exchange *ex, bool any, struct sl_error *err)
{
    const struct sl_access *a = &ex->env->access;
    const struct sl_http_head *h = ex->head;
    const char *origin = sl_http_head_find(h, "origin");
    if (!any && !sl_access_host(a, h->host))
        return sl_fail(err, SL_E_HOST_REFUSED,
                       "the Host '%s' is not served here; loopback names are, the address listened "
                       "on, and names given with --allowed-hosts",
                       h->host);
    ex->origin = sl_access_origin(a, origin, h->host);
    if (!any && ex->origin == SL_ORIGIN_FOREIGN)
        return sl_fail(err, SL_E_ORIGIN_REFUSED,
                       "the Origin '%s' is not allowed; the server's own is, and those given with "
                       "--cors",
                       origin);
    return SL_OK;
}

static enum sl_code check_key(struct sl_exchange *ex, struct sl_error *err)
{
    const struct sl_route *r = ex->match.route;
    const char *auth = sl_http_head_find(ex->head, "authorization");
    if (r->flags & SL_ROUTE_OPEN)
        return SL_OK;
    enum sl_code c = sl_keys_identify(ex->env->keys, auth, &ex->identity, err);
    return c ? c : sl_identity_require(&ex->identity, r->role, err);
}

/* --- the body that is announced -------------------------------------------------------------- */

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    return type && strncasecmp(type, json, n) == 0 && strchr("; \t", type[n]) != NULL;
}

static enum sl_code check_body(struct sl_exchange *ex, struct sl_error *err)
{
    const struct sl_http_head *h = ex->head;
    const struct sl_route *r = ex->match.route;
    if (h->expect_unknown)
        return sl_fail(err, SL_E_EXPECTATION_FAILED,
                       "the expectation '%s' is not understood; only 100-continue is",
                       sl_http_head_find(h, "expect"));
    if (!h->has_body)
        return SL_OK;
    const char *type = sl_http_head_find(h, "content-type");
    if (r->body == SL_BODY_JSON && !is_json(type))
        return sl_fail(err, SL_E_MEDIA_TYPE,
                       "the Content-Type is '%s'; this route takes application/json",
                       type ? type : "");
    const char *coding = sl_http_head_find(h, "content-encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return sl_fail(err, SL_E_MEDIA_TYPE,
                       "the Content-Encoding '%s' is not understood; bodies come as they are",
                       coding);
    if (h->content_length > ex->max_body)
        return sl_fail(err, SL_E_TOO_LARGE, "the body has %llu bytes; the limit is %zu (%s)",
                       (unsigned long long)h->content_length, ex->max_body, ex->max_body_option);
    return SL_OK;
}

enum sl_code sl_admit(struct sl_exchange *ex, struct sl_error *err)
{
    snprintf(ex->identity.tenant, sizeof ex->identity.tenant, "-");
    enum sl_code found = find_route(ex, err);
    bool any_host = ex->matched && (ex->match.route->flags & SL_ROUTE_ANY_HOST);
    struct sl_error other;
    enum sl_code c = check_origin(ex, any_host, &other);
    if (c) {
        if (err)
            *err = other;
        return c;
    }
    if (found || !ex->matched)
        return found;
    c = check_key(ex, err);
    return c ? c : check_body(ex, err);
}

/* --- the core's own answers ------------------------------------------------------------------ */

static void add_allow(struct sl_exchange *ex, const char *name)
{
    char allow[64];
    sl_router_allow(ex->match.methods, allow, sizeof allow);
    sl_exchange_add_header(ex, name, "%s", allow);
}

void sl_refuse(struct sl_exchange *ex, const struct sl_error *err)
{
    ex->phase = SL_EX_OPEN;
    if (err->code == SL_E_UNAUTHORIZED)
        sl_exchange_add_header(ex, "WWW-Authenticate", "Bearer realm=\"slate\"");
    if (err->code == SL_E_METHOD_NOT_ALLOWED)
        add_allow(ex, "Allow");
    sl_exchange_fail(ex, err);
}

static void answer_options(struct sl_exchange *ex)
{
    if (ex->origin == SL_ORIGIN_CORS &&
        sl_http_head_find(ex->head, "access-control-request-method")) {
        const char *wanted = sl_http_head_find(ex->head, "access-control-request-headers");
        add_allow(ex, "Access-Control-Allow-Methods");
        if (wanted && strlen(wanted) <= 1024)
            sl_exchange_add_header(ex, "Access-Control-Allow-Headers", "%s", wanted);
        sl_exchange_add_header(ex, "Access-Control-Max-Age", "600");
    } else {
        add_allow(ex, "Allow");
    }
    sl_exchange_reply(ex, 204, NULL, "", 0);
}

static void handle(struct sl_exchange *ex)
{
    if (ex->env->named && (ex->match.route->flags & SL_ROUTE_SESSION))
        ex->env->named(ex, ex->match.route->handler);
    else
        ex->match.route->handler(ex);
}

void sl_dispatch(struct sl_exchange *ex)
{
    struct sl_error err;
    ex->phase = SL_EX_OPEN;
    if (ex->env->closing) {
        (void)sl_fail(&err, SL_E_DRAINING, "the server is shutting down");
        sl_exchange_fail(ex, &err);
    } else if (ex->is_options) {
        answer_options(ex);
    } else if (!sl_exchange_read_ahead(ex, handle)) {
        handle(ex);
    }
}
