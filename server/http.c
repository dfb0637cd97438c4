/* http.c: see http.h. */
#include "server/http.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "engine/base/mem.h"

enum { BLOCK_FIRST = 1024, SKIPPED_MAX = 4, URI_SLACK = 32 };

/* --- llhttp's callbacks: they record --------------------------------------------------------- */

static int on_url(llhttp_t *l, const char *at, size_t n)
{
    struct sl_http *p = l->data;
    p->head->target = p->block + (at - p->block);
    p->head->n_target = n;
    return 0;
}

static int on_field(llhttp_t *l, const char *at, size_t n)
{
    struct sl_http *p = l->data;
    struct sl_http_head *h = p->head;
    if (p->state == SL_HTTP_IN_BODY) /* a trailer: read, bounded, of no use */
        return 0;
    if (h->n_headers == SL_HTTP_HEADERS_MAX) {
        (void)sl_fail(&p->err, SL_E_HEADERS_TOO_LARGE,
                      "the request has more than %d header lines, the limit",
                      (int)SL_HTTP_HEADERS_MAX);
        return HPE_USER;
    }
    struct sl_http_header *f = &h->headers[h->n_headers++];
    f->name = p->block + (at - p->block);
    f->n_name = (uint32_t)n;
    return 0;
}

static int on_value(llhttp_t *l, const char *at, size_t n)
{
    struct sl_http *p = l->data;
    if (p->state == SL_HTTP_IN_BODY)
        return 0;
    assert(p->head->n_headers > 0);
    struct sl_http_header *f = &p->head->headers[p->head->n_headers - 1];
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
        n--;
    /* llhttp gives an empty value at the beginning of the next line, which its end must not cut. */
    f->value = n ? p->block + (at - p->block) : f->name + f->n_name;
    f->n_value = (uint32_t)n;
    return 0;
}

static int on_body(llhttp_t *l, const char *at, size_t n)
{
    struct sl_http *p = l->data;
    if (n == 0) /* asked without bytes in the middle of a body */
        return 0;
    p->data = at;
    p->n_data = n;
    return HPE_PAUSED; /* so that the caller gets one piece at a time */
}

static int on_complete(llhttp_t *l)
{
    struct sl_http *p = l->data;
    p->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_body = on_body,
    .on_message_complete = on_complete,
};

/* --- the head -------------------------------------------------------------------------------- */

const char *sl_http_head_find(const struct sl_http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}

void sl_http_head_free(struct sl_http_head *h)
{
    if (!h)
        return;
    sl_free(h->block);
    sl_free(h);
}

static size_t count(const struct sl_http_head *h, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n_headers; i++)
        n += strcasecmp(h->headers[i].name, name) == 0;
    return n;
}

/* Letters that a host name or an IP literal with an optional port is made of. Not the whole of
 * RFC 3986's reg-name: %-escapes and sub-delims name no host that exists. */
static bool host_is_valid(const char *host)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    const char *s = host;
    if (*s == '[') {
        size_t n = strspn(s + 1, "0123456789abcdefABCDEF:.");
        s += 1 + n;
        if (n < 2 || *s++ != ']')
            return false;
    } else {
        size_t n = strspn(s, letters);
        s += n;
        if (n == 0)
            return false;
    }
    if (*s == ':') {
        size_t n = strspn(s + 1, "0123456789");
        if (n > 5)
            return false;
        s += 1 + n;
    }
    return *s == '\0';
}

/* GET http://host/path: the host of the target counts, not the header's (RFC 9112, 3.2.2). */
static enum sl_code split_absolute(struct sl_http_head *h, struct sl_error *err)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(h->target, schemes[i], n) != 0)
            continue;
        char *host = h->target + n;
        size_t n_host = strcspn(host, "/?");
        if (host[n_host] != '/')
            return sl_fail(err, SL_E_BAD_REQUEST,
                           "an absolute request target must have a path that begins with '/'");
        /* The host moves over the scheme, to make room for its end; the path stays. */
        memmove(h->target, host, n_host);
        h->host = h->target;
        h->target = host + n_host;
        h->host[n_host] = '\0';
        return SL_OK;
    }
    return SL_OK;
}

static enum sl_code check_target(struct sl_http_head *h, struct sl_error *err)
{
    size_t n_hosts = count(h, "host");
    if (n_hosts > 1)
        return sl_fail(err, SL_E_BAD_REQUEST, "the request has %zu Host headers; one is allowed",
                       n_hosts);
    if (n_hosts == 0 && h->minor >= 1)
        return sl_fail(err, SL_E_BAD_REQUEST, "an HTTP/1.1 request must have a Host header");
    if (n_hosts) {
        for (size_t i = 0; i < h->n_headers; i++)
            if (strcasecmp(h->headers[i].name, "host") == 0)
                h->host = h->headers[i].value;
        if (!host_is_valid(h->host))
            return sl_fail(err, SL_E_BAD_REQUEST, "the Host header '%s' is no host", h->host);
    }
    enum sl_code c = split_absolute(h, err);
    if (c)
        return c;
    if (h->host && !host_is_valid(h->host))
        return sl_fail(err, SL_E_BAD_REQUEST, "the request target's host '%s' is no host", h->host);
    bool star = strcmp(h->target, "*") == 0 && h->method == HTTP_OPTIONS;
    if (h->target[0] != '/' && !star)
        return sl_fail(err, SL_E_BAD_REQUEST, "the request target '%s' does not begin with '/'",
                       h->target);
    return SL_OK;
}

/* Of these the first one would count here, and perhaps another one for who stands before. */
static enum sl_code check_repeats(const struct sl_http_head *h, struct sl_error *err)
{
    static const char *const once[] = {"Authorization", "Content-Type", "Idempotency-Key",
                                       "If-Match", "X-Slate-Session"};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
        size_t n = count(h, once[i]);
        if (n > 1)
            return sl_fail(err, SL_E_BAD_REQUEST, "the request has %zu %s headers; one is allowed",
                           n, once[i]);
    }
    return SL_OK;
}

/* llhttp has refused a Content-Length that is no number, a second one, and one beside a
 * Transfer-Encoding that it knows; how long a body is only llhttp says. */
static enum sl_code check_framing(struct sl_http_head *h, uint64_t length, struct sl_error *err)
{
    const char *te = sl_http_head_find(h, "transfer-encoding");
    if (te) {
        if (h->minor == 0)
            return sl_fail(err, SL_E_BAD_REQUEST,
                           "an HTTP/1.0 request cannot have a Transfer-Encoding");
        if (count(h, "transfer-encoding") > 1 || strcasecmp(te, "chunked") != 0)
            return sl_fail(err, SL_E_BAD_REQUEST,
                           "the Transfer-Encoding '%s' is not understood; only 'chunked', once, is",
                           te);
        h->chunked = true;
    }
    h->content_length = length;
    h->has_body = h->chunked || length > 0;
    const char *expect = sl_http_head_find(h, "expect");
    if (expect && h->minor >= 1) {
        h->expect_continue = count(h, "expect") == 1 && strcasecmp(expect, "100-continue") == 0;
        h->expect_unknown = !h->expect_continue;
    }
    return SL_OK;
}

/* Ends every string of the head where a delimiter stood; llhttp is through with them now. */
static void terminate(struct sl_http_head *h)
{
    h->target[h->n_target] = '\0';
    for (size_t i = 0; i < h->n_headers; i++) {
        struct sl_http_header *f = &h->headers[i];
        f->name[f->n_name] = '\0';
        if (!f->value) /* empty: there was no callback */
            f->value = f->name + f->n_name;
        f->value[f->n_value] = '\0';
    }
}

/* METHOD SP target SP HTTP/1.x CR LF and nothing more: llhttp takes further spaces. */
static bool request_line_is_exact(const struct sl_http *p)
{
    const struct sl_http_head *h = p->head;
    size_t n_method = strlen(llhttp_method_name((llhttp_method_t)p->parser.method));
    const char *version = h->target + h->n_target + 1;
    return h->target == p->block + n_method + 1 && version + 10 <= p->block + p->n_block &&
           memcmp(version - 1, " HTTP/1.", 8) == 0 && memcmp(version + 8, "\r\n", 2) == 0;
}

/* The collected head, in one piece, through llhttp. */
static enum sl_code read_head(struct sl_http *p)
{
    llhttp_init(&p->parser, HTTP_REQUEST, &settings);
    p->parser.data = p;
    p->complete = false;
    llhttp_errno_t e = llhttp_execute(&p->parser, p->block, p->n_block);
    if (e != HPE_OK && !(p->complete && (e == HPE_PAUSED || e == HPE_PAUSED_UPGRADE))) {
        if (e == HPE_USER)
            return p->err.code;
        const char *why = llhttp_get_error_reason(&p->parser);
        return sl_fail(&p->err, SL_E_BAD_REQUEST, "the request's head is malformed: %s",
                       why && *why ? why : llhttp_errno_name(e));
    }
    struct sl_http_head *h = p->head;
    if (p->parser.http_major != 1 || p->parser.http_minor > 1 || !h->target)
        return sl_fail(&p->err, SL_E_BAD_REQUEST,
                       "HTTP/%u.%u is not spoken here; HTTP/1.1 and 1.0 are",
                       (unsigned)p->parser.http_major, (unsigned)p->parser.http_minor);
    if (!request_line_is_exact(p))
        return sl_fail(&p->err, SL_E_BAD_REQUEST,
                       "the request line must be a method, a target and a version with one space "
                       "between them");
    terminate(h);
    for (size_t i = 0; i < h->n_headers; i++)
        if (h->headers[i].n_name == 0)
            return sl_fail(&p->err, SL_E_BAD_REQUEST, "a header has no name");
    h->method = p->parser.method;
    h->minor = p->parser.http_minor;
    h->keep_alive = llhttp_should_keep_alive(&p->parser);
    if (h->n_target > p->limits.max_uri)
        return sl_fail(&p->err, SL_E_URI_TOO_LONG,
                       "the request target has %zu bytes; the limit is %zu (--max-uri)",
                       h->n_target, p->limits.max_uri);
    enum sl_code c = check_framing(h, p->parser.content_length, &p->err);
    /* A CONNECT: for llhttp it ends here, and what it announces would be read as requests. */
    if (!c && h->has_body && p->complete)
        c = sl_fail(&p->err, SL_E_BAD_REQUEST, "a %s request cannot have a body",
                    llhttp_method_name((llhttp_method_t)h->method));
    if (!c)
        c = check_repeats(h, &p->err);
    return c ? c : check_target(h, &p->err);
}

/* --- collecting the head --------------------------------------------------------------------- */

static enum sl_code grow(struct sl_http *p)
{
    if (!p->head && !(p->head = sl_calloc(1, sizeof *p->head)))
        return sl_fail(&p->err, SL_E_NO_MEMORY, "not enough memory for the request's head");
    if (p->n_block < p->cap_block)
        return SL_OK;
    size_t cap = p->cap_block ? p->cap_block * 2 : BLOCK_FIRST;
    if (cap > p->limits.max_header)
        cap = p->limits.max_header;
    if (cap <= p->cap_block)
        return sl_fail(&p->err, SL_E_HEADERS_TOO_LARGE,
                       "the request's head has more than %zu bytes, the limit (--max-header)",
                       p->limits.max_header);
    char *b = sl_realloc(p->block, cap, 1);
    if (!b)
        return sl_fail(&p->err, SL_E_NO_MEMORY, "not enough memory for the request's head");
    p->block = b;
    p->cap_block = cap;
    return SL_OK;
}

/* Takes one byte of the head. *ret_end: it was the last one. */
static enum sl_code scan(struct sl_http *p, unsigned char b, bool *ret_end)
{
    *ret_end = false;
    if (p->n_block == 0 && (b == '\r' || b == '\n')) { /* RFC 9112, 2.2: at least one is ignored */
        if (++p->n_skipped > SKIPPED_MAX)
            return sl_fail(&p->err, SL_E_BAD_REQUEST, "more than two empty lines before a request");
        return SL_OK;
    }
    enum sl_code c = grow(p);
    if (c)
        return c;
    unsigned char last = p->n_block ? (unsigned char)p->block[p->n_block - 1] : 0;
    if ((last == '\r') != (b == '\n'))
        return sl_fail(&p->err, SL_E_BAD_REQUEST, "a line of the head does not end with CR LF");
    if ((b < 0x20 && b != '\r' && b != '\n' && b != '\t') || b == 0x7f)
        return sl_fail(&p->err, SL_E_BAD_REQUEST, "the request's head has a control byte (0x%02x)",
                       (unsigned)b);
    if (p->n_block == p->line_begin && p->n_block > 0 && (b == ' ' || b == '\t'))
        return sl_fail(&p->err, SL_E_BAD_REQUEST,
                       "a header line begins with white space; folded lines are not allowed");
    p->block[p->n_block++] = (char)b;
    if (p->line_begin == 0 && p->n_block > p->limits.max_uri + URI_SLACK && b != '\n')
        return sl_fail(&p->err, SL_E_URI_TOO_LONG,
                       "the request line is too long: a target may have %zu bytes (--max-uri)",
                       p->limits.max_uri);
    if (b == '\n') {
        *ret_end = p->n_block - p->line_begin == 2;
        p->line_begin = p->n_block;
    }
    return SL_OK;
}

static size_t feed_head(struct sl_http *p, const unsigned char *d, size_t n,
                        enum sl_http_event *ret)
{
    *ret = SL_HTTP_MORE;
    for (size_t i = 0; i < n; i++) {
        bool end;
        enum sl_code c = scan(p, d[i], &end);
        if (!c && !end)
            continue;
        if (!c)
            c = read_head(p);
        if (c) {
            p->state = SL_HTTP_FAILED;
            *ret = SL_HTTP_ERROR;
            return i;
        }
        p->state = SL_HTTP_IN_BODY;
        p->n_framing = 0;
        *ret = SL_HTTP_HEAD;
        return i + 1;
    }
    return n;
}

/* --- the body -------------------------------------------------------------------------------- */

static void next_message(struct sl_http *p)
{
    p->state = SL_HTTP_IN_HEAD;
    p->n_skipped = 0;
    p->complete = false;
}

static size_t body_error(struct sl_http *p, enum sl_http_event *ret)
{
    p->state = SL_HTTP_FAILED;
    *ret = SL_HTTP_ERROR;
    return 0;
}

static size_t feed_body(struct sl_http *p, const char *d, size_t n, enum sl_http_event *ret)
{
    if (p->complete) {
        next_message(p);
        *ret = SL_HTTP_DONE;
        return 0;
    }
    *ret = SL_HTTP_MORE;
    p->data = NULL; /* n may be 0: after the last piece of body llhttp has its end still to tell */
    llhttp_errno_t e = llhttp_execute(&p->parser, d, n);
    size_t used = n;
    if (e == HPE_PAUSED) {
        used = (size_t)(llhttp_get_error_pos(&p->parser) - d);
        llhttp_resume(&p->parser);
    } else if (e == HPE_PAUSED_UPGRADE && p->complete) {
        used = (size_t)(llhttp_get_error_pos(&p->parser) - d);
    } else if (e != HPE_OK) {
        const char *why = llhttp_get_error_reason(&p->parser);
        (void)sl_fail(&p->err, SL_E_BAD_REQUEST, "the request's body is malformed: %s",
                      why && *why ? why : llhttp_errno_name(e));
        return body_error(p, ret);
    }
    assert(used <= n);
    if (p->data) {
        p->n_framing = 0;
        *ret = SL_HTTP_DATA;
        return used;
    }
    p->n_framing += used;
    if (p->n_framing > p->limits.max_header) {
        (void)sl_fail(&p->err, SL_E_HEADERS_TOO_LARGE,
                      "chunk extensions or trailers have more than %zu bytes, the limit "
                      "(--max-header)",
                      p->limits.max_header);
        return body_error(p, ret);
    }
    if (p->complete) {
        next_message(p);
        *ret = SL_HTTP_DONE;
    }
    return used;
}

/* --- the interface --------------------------------------------------------------------------- */

void sl_http_init(struct sl_http *p, struct sl_http_limits limits)
{
    *p = (struct sl_http){.limits = limits};
}

void sl_http_done(struct sl_http *p)
{
    sl_http_head_free(p->head);
    p->head = NULL;
    sl_free(p->block);
    p->block = NULL;
}

size_t sl_http_feed(struct sl_http *p, const void *data, size_t n, enum sl_http_event *ret)
{
    switch (p->state) {
    case SL_HTTP_IN_HEAD:
        return feed_head(p, data, n, ret);
    case SL_HTTP_IN_BODY:
        assert(!p->head); /* taken */
        return feed_body(p, data, n, ret);
    case SL_HTTP_FAILED:
        break;
    }
    *ret = SL_HTTP_ERROR;
    return 0;
}

struct sl_http_head *sl_http_take_head(struct sl_http *p)
{
    struct sl_http_head *h = p->head;
    assert(h && p->state == SL_HTTP_IN_BODY);
    h->block = p->block;
    p->head = NULL;
    p->block = NULL;
    p->n_block = p->cap_block = p->line_begin = 0;
    return h;
}

bool sl_http_in_head(const struct sl_http *p)
{
    return p->state == SL_HTTP_IN_HEAD && p->n_block > 0;
}
