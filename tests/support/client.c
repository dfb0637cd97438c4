/* client.c: see client.h. The transport; reply.c looks into what came. */
#include "tests/support/client.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/base/mem.h"

enum { BODY_MAX = 64 << 20, FMT_MAX = 16 << 20, RECORDED_BYTES = 64 << 10 };

struct client {
    CURLM *multi;
    char *base;
    char *unix_path; /* NULL: TCP */
    char *header;
    bool unrecorded;
    bool small_buffers;
    struct call *calls;
};

struct call {
    struct client *client;
    struct call *next;
    CURL *easy;
    struct curl_slist *headers;
    char *url, *method, *request_body;
    size_t n_request_body;
    struct reply *r;
    size_t cap_headers, cap_body, cap_events;
    size_t parsed; /* bytes of the body that were taken apart into events */
    bool sse;
    const char *fault; /* what was wrong with it; told outside of curl's callbacks */
};

/* --- the record --------------------------------------------------------------------------------*/

static FILE *record_file;

static void record_open(void)
{
    if (record_file)
        return;
    const char *dir = getenv("SLATE_API_RECORD"), *build = getenv("SLATE_BUILD");
    char path[512], folder[400];
    if (dir)
        snprintf(folder, sizeof folder, "%s", dir);
    else
        snprintf(folder, sizeof folder, "%s/api-record", build ? build : "build/release");
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, program_invocation_short_name);
    if ((mkdir(folder, 0777) && errno != EEXIST) || !(record_file = fopen(path, "w")))
        fail_msg("%s: %s", path, strerror(errno));
}

static json_t *record_headers(const struct reply *r)
{
    json_t *list = json_array();
    for (const char *p = r->headers, *end; (end = strstr(p, "\r\n")); p = end + 2) {
        const char *colon = memchr(p, ':', (size_t)(end - p));
        if (!colon)
            continue;
        const char *v = colon + 1 + strspn(colon + 1, " ");
        json_array_append_new(list,
                              json_pack("[s%, s%]", p, (size_t)(colon - p), v, (size_t)(end - v)));
    }
    return list;
}

/* The request's body where it is JSON and not huge; else null. */
static json_t *record_request(const struct call *k)
{
    json_t *j = NULL;
    if (k->n_request_body <= RECORDED_BYTES && k->n_request_body)
        j = json_loadb(k->request_body, k->n_request_body, JSON_ALLOW_NUL, NULL);
    return j ? j : json_null();
}

/* Asked again and again until something happens: the first answers are enough. */
static bool is_poll(const struct reply *r)
{
    enum { ENOUGH = 4 };
    static char last[300];
    static unsigned n;
    char now[300];
    int len = snprintf(now, sizeof now, "%s %ld %s", r->method, r->status, r->path);
    n = strcmp(r->method, "GET") != 0 || len >= (int)sizeof now || strcmp(now, last) ? 0 : n + 1;
    memcpy(last, now, sizeof last);
    return n >= ENOUGH;
}

static void record(const struct call *k)
{
    const struct reply *r = k->r;
    if (k->client->unrecorded || !r->status || is_poll(r)) /* …, or the same question again */
        return;
    const char *type = reply_header(r, "Content-Type");
    bool bytes = type && !strcmp(type, "application/vnd.safetensors");
    json_t *body = r->json ? json_incref(r->json) : json_stringn(r->body, bytes ? 0 : r->n_body);
    if (!body) {
        if (r->whole)
            fail_msg("%s %s: the body is not UTF-8", r->method, r->path);
        return;
    }
    json_t *line = json_pack("{s:s, s:s, s:s, s:o, s:I, s:o, s:o, s:b}", "test",
                             program_invocation_short_name, "method", r->method, "path", r->path,
                             "request", record_request(k), "status", (json_int_t)r->status,
                             "headers", record_headers(r), "body", body, "whole", r->whole);
    if (!line) /* a path that is not UTF-8 */
        return;
    json_dumpf(line, record_file, JSON_COMPACT | JSON_ENSURE_ASCII);
    fputc('\n', record_file);
    fflush(record_file);
    json_decref(line);
}

/* --- what curl calls ---------------------------------------------------------------------------*/

/* *cap: what *dst has room for, beside the NUL; it doubles. */
static bool append(char **dst, size_t *n_dst, size_t *cap, const void *bytes, size_t n)
{
    if (n > BODY_MAX - *n_dst)
        return false;
    if (*n_dst + n > *cap) {
        size_t more = 2 * (*n_dst + n);
        char *p = sl_realloc(*dst, more + 1, 1);
        if (!p)
            return false;
        *dst = p;
        *cap = more;
    }
    memcpy(*dst + *n_dst, bytes, n);
    *n_dst += n;
    (*dst)[*n_dst] = '\0';
    return true;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *user)
{
    struct call *k = user;
    struct reply *r = k->r;
    n *= size;
    if (n > 5 && !memcmp(bytes, "HTTP/", 5)) { /* again after a 100 Continue */
        r->n_headers = 0;
        r->headers[0] = '\0';
        return n;
    }
    if (n == 2) { /* the end of the headers */
        long status = 0;
        curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
        r->status = status == 100 ? 0 : status;
        return n;
    }
    if (n > 13 && !strncasecmp(bytes, "Content-Type:", 13))
        k->sse = memmem(bytes, n, "text/event-stream", 17) != NULL;
    return append(&r->headers, &r->n_headers, &k->cap_headers, bytes, n) ? n : 0;
}

/* It doubles: under the address sanitizer each growth copies all of them, and while this client
 * does that for seconds a server takes the connection that says nothing for dead. */
static bool room_for_event(struct call *k)
{
    enum { FIRST = 16 };
    if (k->r->n_events < k->cap_events)
        return true;
    size_t cap = k->cap_events ? 2 * k->cap_events : FIRST;
    json_t **p = sl_realloc(k->r->events, cap, sizeof *p);
    if (!p)
        return false;
    k->r->events = p;
    k->cap_events = cap;
    return true;
}

static void take_event(struct call *k, const char *data, size_t n)
{
    struct reply *r = k->r;
    if (r->done) {
        k->fault = "something came after [DONE]";
    } else if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        r->done = true;
    } else {
        json_t *j = json_loadb(data, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        if (!j)
            k->fault = "an event is not JSON";
        else if (room_for_event(k))
            r->events[r->n_events++] = j;
    }
}

/* Takes whole events off the end of the body: "data: {…}\n\n" and ": comment\n\n", nothing else. */
static void take_events(struct call *k)
{
    struct reply *r = k->r;
    for (;;) {
        const char *p = r->body + k->parsed;
        const char *end = memmem(p, r->n_body - k->parsed, "\n\n", 2);
        if (!end)
            return;
        size_t n = (size_t)(end - p);
        k->parsed += n + 2;
        if (memchr(p, '\n', n) || memchr(p, '\r', n))
            k->fault = "an event of several lines";
        else if (n > 0 && p[0] == ':')
            r->n_pings++;
        else if (n > 6 && !memcmp(p, "data: ", 6))
            take_event(k, p + 6, n - 6);
        else
            k->fault = "an event that is no data line";
    }
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    struct call *k = user;
    n *= size;
    if (!append(&k->r->body, &k->r->n_body, &k->cap_body, bytes, n))
        return 0;
    if (k->sse)
        take_events(k);
    return n;
}

/* A server that is started later must not hold this connection open. */
static int on_socket(void *user, curl_socket_t fd, curlsocktype purpose)
{
    const struct call *k = user;
    int small = 32 << 10;
    (void)purpose;
    if (k->client->small_buffers)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    return fcntl(fd, F_SETFD, FD_CLOEXEC) ? CURL_SOCKOPT_ERROR : CURL_SOCKOPT_OK;
}

/* --- clients -----------------------------------------------------------------------------------*/

struct client *client_open(const char *base)
{
    record_open();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    struct client *c = sl_calloc(1, sizeof *c);
    assert_non_null(c);
    c->multi = curl_multi_init();
    bool is_unix = !strncmp(base, "unix:", 5);
    c->base = sl_strdup(is_unix ? "http://localhost" : base);
    if (is_unix)
        c->unix_path = sl_strdup(base + 5);
    assert_true(c->multi && c->base && (!is_unix || c->unix_path));
    return c;
}

void client_close(struct client *c)
{
    if (!c)
        return;
    while (c->calls)
        call_abort(c->calls);
    curl_multi_cleanup(c->multi);
    sl_free(c->base);
    sl_free(c->unix_path);
    sl_free(c->header);
    sl_free(c);
}

void client_header(struct client *c, const char *line)
{
    sl_free(c->header);
    c->header = line ? sl_strdup(line) : NULL;
}

void client_unrecorded(struct client *c)
{
    c->unrecorded = true;
}

void client_small_buffers(struct client *c)
{
    c->small_buffers = true;
}

/* --- calls -------------------------------------------------------------------------------------*/

int64_t client_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void add_headers(struct call *k, const char *lines)
{
    for (const char *p = lines; p && *p;) {
        size_t n = strcspn(p, "\n");
        char *line = sl_strndup(p, n);
        k->headers = curl_slist_append(k->headers, line);
        sl_free(line);
        p += n + (p[n] == '\n');
    }
}

static void set_method(struct call *k, const void *body, size_t n_body)
{
    if (!strcmp(k->method, "HEAD"))
        curl_easy_setopt(k->easy, CURLOPT_NOBODY, 1L);
    else if (body || !strcmp(k->method, "POST"))
        curl_easy_setopt(k->easy, CURLOPT_POST, 1L);
    if (body || !strcmp(k->method, "POST")) {
        k->request_body = sl_malloc(n_body + 1);
        assert_non_null(k->request_body);
        if (body && n_body)
            memcpy(k->request_body, body, n_body);
        k->n_request_body = n_body;
        curl_easy_setopt(k->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n_body);
        curl_easy_setopt(k->easy, CURLOPT_POSTFIELDS, k->request_body);
    }
    curl_easy_setopt(k->easy, CURLOPT_CUSTOMREQUEST, k->method);
}

static struct call *call_new(struct client *c, const char *method, const char *path)
{
    struct call *k = sl_calloc(1, sizeof *k);
    assert_non_null(k);
    k->client = c;
    k->easy = curl_easy_init();
    k->method = sl_strdup(method);
    size_t n_base = strlen(c->base);
    k->url = sl_malloc(n_base + strlen(path) + 1);
    k->r = sl_calloc(1, sizeof *k->r);
    assert_true(k->easy && k->method && k->url && k->r);
    memcpy(k->url, c->base, n_base);
    memcpy(k->url + n_base, path, strlen(path) + 1);
    *k->r = (struct reply){.method = sl_strdup(method),
                           .path = sl_strdup(path),
                           .headers = sl_calloc(1, 1),
                           .body = sl_calloc(1, 1)};
    k->next = c->calls;
    c->calls = k;
    return k;
}

struct call *call_start(struct client *c, const char *method, const char *path, const char *extra,
                        const void *body, size_t n_body)
{
    struct call *k = call_new(c, method, path);
    set_method(k, body, n_body);
    add_headers(k, c->header);
    add_headers(k, extra);
    if (body && !(extra && strcasestr(extra, "Content-Type:")))
        add_headers(k, "Content-Type: application/json");
    curl_easy_setopt(k->easy, CURLOPT_URL, k->url);
    if (c->unix_path)
        curl_easy_setopt(k->easy, CURLOPT_UNIX_SOCKET_PATH, c->unix_path);
    curl_easy_setopt(k->easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(k->easy, CURLOPT_HTTPHEADER, k->headers);
    curl_easy_setopt(k->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(k->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(k->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(k->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(k->easy, CURLOPT_HEADERDATA, k);
    curl_easy_setopt(k->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(k->easy, CURLOPT_WRITEDATA, k);
    curl_easy_setopt(k->easy, CURLOPT_PRIVATE, k);
    curl_easy_setopt(k->easy, CURLOPT_SOCKOPTFUNCTION, on_socket);
    curl_easy_setopt(k->easy, CURLOPT_SOCKOPTDATA, k);
    if (c->small_buffers) {
        curl_easy_setopt(k->easy, CURLOPT_FRESH_CONNECT, 1L);
        /* It reads up to a hundred buffers at once. */
        curl_easy_setopt(k->easy, CURLOPT_BUFFERSIZE, 1024L);
    }
    assert_int_equal(curl_multi_add_handle(c->multi, k->easy), CURLM_OK);
    return k;
}

static void decode_json(struct call *k)
{
    struct reply *r = k->r;
    const char *type = reply_header(r, "Content-Type");
    if (!r->whole || !r->n_body || !type || strncmp(type, "application/json", 16) != 0)
        return;
    r->json = json_loadb(r->body, r->n_body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!r->json)
        k->fault = "the body is not JSON";
}

static void end_call(struct call *k, CURLcode code)
{
    struct reply *r = k->r;
    r->over = true;
    r->curl_code = (int)code;
    r->whole = code == CURLE_OK;
    if (k->sse && r->whole && k->parsed != r->n_body)
        k->fault = "the stream ends in the middle of an event";
    decode_json(k);
}

static void check_fault(const struct call *k)
{
    if (k->fault)
        fail_msg("%s %s: %s; the body was: %s", k->method, k->r->path, k->fault, k->r->body);
}

/* Moves all calls on, without waiting. */
static void pump(struct client *c)
{
    int n;
    assert_int_equal(curl_multi_perform(c->multi, &n), CURLM_OK);
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &n));) {
        struct call *k = NULL;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&k);
        if (m->msg == CURLMSG_DONE)
            end_call(k, m->data.result);
    }
    for (const struct call *k = c->calls; k; k = k->next)
        check_fault(k);
}

void call_until(struct call *k, bool (*ready)(const struct reply *r, void *arg), void *arg)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (;;) {
        pump(k->client);
        if (k->r->over || ready(k->r, arg))
            return;
        int64_t left = deadline - client_now_ms();
        if (left <= 0)
            fail_msg("%s %s: nothing for %d s; so far status %ld, %s", k->method, k->r->path,
                     CLIENT_DEADLINE_MS / 1000, k->r->status, k->r->body);
        curl_multi_poll(k->client->multi, NULL, 0, (int)left, NULL);
    }
}

static bool has_events(const struct reply *r, void *arg)
{
    return r->n_events >= *(size_t *)arg;
}

void call_until_events(struct call *k, size_t n)
{
    call_until(k, has_events, &n);
}

static bool never(const struct reply *r, void *arg)
{
    (void)r;
    (void)arg;
    return false;
}

const struct reply *call_reply(const struct call *k)
{
    return k->r;
}

static void call_free(struct call *k)
{
    struct call **p = &k->client->calls;
    while (*p != k)
        p = &(*p)->next;
    *p = k->next;
    curl_multi_remove_handle(k->client->multi, k->easy);
    curl_easy_cleanup(k->easy);
    curl_slist_free_all(k->headers);
    sl_free(k->url);
    sl_free(k->method);
    sl_free(k->request_body);
    sl_free(k);
}

struct reply *call_finish(struct call *k)
{
    call_until(k, never, NULL);
    struct reply *r = k->r;
    record(k);
    call_free(k);
    return r;
}

void call_abort(struct call *k)
{
    struct reply *r = k->r;
    record(k);
    call_free(k); /* taking a running transfer off its multi closes the connection */
    reply_free(r);
}

/* --- whole calls -------------------------------------------------------------------------------*/

char *json_text(const char *fmt, va_list args, size_t *ret_n)
{
    char *f = sl_strdup(fmt), *text = NULL;
    assert_non_null(f);
    for (char *p = f; *p; p++)
        if (*p == '\'')
            *p = '"';
    va_list again;
    va_copy(again, args);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = vsnprintf(NULL, 0, f, args);
    assert_true(n >= 0 && n < FMT_MAX);
    text = sl_malloc((size_t)n + 1);
    assert_non_null(text);
    vsnprintf(text, (size_t)n + 1, f, again);
#pragma GCC diagnostic pop
    va_end(again);
    sl_free(f);
    *ret_n = (size_t)n;
    return text;
}

static struct call *vcall(struct client *c, const char *method, const char *path, const char *fmt,
                          va_list args)
{
    size_t n;
    char *text = json_text(fmt, args, &n);
    struct call *k = call_start(c, method, path, NULL, text, n);
    sl_free(text);
    return k;
}

struct call *call_post(struct client *c, const char *path, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    struct call *k = vcall(c, "POST", path, fmt, args);
    va_end(args);
    return k;
}

struct reply *post(struct client *c, const char *path, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    struct call *k = vcall(c, "POST", path, fmt, args);
    va_end(args);
    return call_finish(k);
}

struct reply *patch(struct client *c, const char *path, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    struct call *k = vcall(c, "PATCH", path, fmt, args);
    va_end(args);
    return call_finish(k);
}

struct reply *request(struct client *c, const char *method, const char *path, const char *extra,
                      const void *body, size_t n_body)
{
    return call_finish(call_start(c, method, path, extra, body, n_body));
}

struct reply *get(struct client *c, const char *path)
{
    return request(c, "GET", path, NULL, NULL, 0);
}

struct reply *del(struct client *c, const char *path)
{
    return request(c, "DELETE", path, NULL, NULL, 0);
}
