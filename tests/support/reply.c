/* reply.c: looking into what a client received; see client.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/mem.h"
#include "tests/support/client.h"

enum { SHOWN_BYTES = 1500 };

void reply_free(struct reply *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_events; i++)
        json_decref(r->events[i]);
    sl_free(r->events);
    json_decref(r->json);
    sl_free((char *)r->method);
    sl_free((char *)r->path);
    sl_free(r->headers);
    sl_free(r->body);
    sl_free(r);
}

/* --- failing with the reply in the message -----------------------------------------------------*/

static void fail_reply(const struct reply *r, const char *what, const char *file, int line)
{
    print_error("%s:%d: %s %s: %s\n%s: status %ld, curl %d\n%s%.*s\n", file, line, r->method,
                r->path, what, r->whole ? "whole" : "not whole", r->status, r->curl_code,
                r->headers, SHOWN_BYTES, r->body);
    _fail(file, line);
}

struct reply *expect_at(struct reply *r, long status, const char *file, int line)
{
    char what[64];
    snprintf(what, sizeof what, "expected status %ld", status);
    if (r->status != status || !r->whole)
        fail_reply(r, what, file, line);
    return r;
}

static bool is_string_or_null(const json_t *j)
{
    return j && (json_is_string(j) || json_is_null(j));
}

void expect_error_at(struct reply *r, long status, const char *code, const char *param,
                     const char *file, int line)
{
    expect_at(r, status, file, line);
    const json_t *e = at(r->json, "error");
    if (!e || !json_is_string(at(e, "message")) || !json_is_string(at(e, "type")) ||
        !json_is_string(at(e, "code")) || !is_string_or_null(at(e, "param")))
        fail_reply(r, "not the shape of an error", file, line);
    char what[200];
    const char *p = json_string_value(at(e, "param"));
    snprintf(what, sizeof what, "expected code %s, param %s", code, param ? param : "null");
    if (strcmp(json_string_value(at(e, "code")), code) != 0 || !p != !param ||
        (p && strcmp(p, param) != 0))
        fail_reply(r, what, file, line);
    if (!*json_string_value(at(e, "message")))
        fail_reply(r, "an empty message", file, line);
    if (status == 412 && (!reply_header(r, "ETag") || !reply_header(r, "X-Slate-Session")))
        fail_reply(r, "does not tell what the session is at", file, line);
    reply_free(r);
}

/* --- headers and JSON --------------------------------------------------------------------------*/

const char *reply_header(const struct reply *r, const char *name)
{
    static char ring[16][1024];
    static unsigned turn;
    size_t n_name = strlen(name);
    for (const char *p = r->headers, *end; (end = strstr(p, "\r\n")); p = end + 2) {
        if (strncasecmp(p, name, n_name) != 0 || p[n_name] != ':')
            continue;
        const char *v = p + n_name + 1;
        v += strspn(v, " \t");
        char *dst = ring[turn++ % 16];
        snprintf(dst, sizeof ring[0], "%.*s", (int)(end - v), v);
        return dst;
    }
    return NULL;
}

json_t *at(const json_t *j, const char *path)
{
    char name[128];
    while (j && *path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof name);
        memcpy(name, path, n);
        name[n] = '\0';
        j = json_is_array(j) ? json_array_get(j, strtoul(name, NULL, 10))
                             : json_object_get(j, name);
        path += n + (path[n] == '.');
    }
    return (json_t *)j;
}

static const json_t *need(const json_t *j, const char *path, const char *what,
                          bool (*is)(const json_t *), const char *file, int line)
{
    const json_t *v = at(j, path);
    if (v && is(v))
        return v;
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    print_error("%s:%d: no %s at %s in %.*s\n", file, line, what, path, SHOWN_BYTES,
                text ? text : "(nothing)");
    free(text); /* jansson's own */
    _fail(file, line);
    return v;
}

static bool is_string(const json_t *j)
{
    return json_is_string(j);
}

static bool is_integer(const json_t *j)
{
    return json_is_integer(j);
}

static bool is_number(const json_t *j)
{
    return json_is_number(j);
}

static bool is_boolean(const json_t *j)
{
    return json_is_boolean(j);
}

static bool is_array(const json_t *j)
{
    return json_is_array(j);
}

const char *str_at_(const json_t *j, const char *path, const char *file, int line)
{
    return json_string_value(need(j, path, "string", is_string, file, line));
}

int64_t int_at_(const json_t *j, const char *path, const char *file, int line)
{
    return json_integer_value(need(j, path, "integer", is_integer, file, line));
}

double num_at_(const json_t *j, const char *path, const char *file, int line)
{
    return json_number_value(need(j, path, "number", is_number, file, line));
}

bool bool_at_(const json_t *j, const char *path, const char *file, int line)
{
    return json_is_true(need(j, path, "boolean", is_boolean, file, line));
}

size_t len_at_(const json_t *j, const char *path, const char *file, int line)
{
    return json_array_size(need(j, path, "array", is_array, file, line));
}

/* --- what a generate gave ----------------------------------------------------------------------*/

static void add_part(struct output *o, const json_t *part)
{
    const json_t *text = at(part, "text"), *tokens = at(part, "tokens");
    if (text) {
        size_t n = json_string_length(text);
        o->text = sl_realloc(o->text, o->n_text + n + 1, 1);
        assert_non_null(o->text);
        memcpy(o->text + o->n_text, json_string_value(text), n + 1);
        o->n_text += n;
    }
    size_t n_tokens = json_array_size(tokens);
    o->tokens = sl_realloc(o->tokens, o->n_tokens + n_tokens + 1, sizeof *o->tokens);
    assert_non_null(o->tokens);
    for (size_t i = 0; i < n_tokens; i++) {
        const json_t *id = json_array_get(tokens, i);
        assert_true(json_is_integer(id) && json_integer_value(id) >= 0);
        o->tokens[o->n_tokens++] = (uint32_t)json_integer_value(id);
    }
    json_array_extend(o->logprobs, at(part, "logprobs"));
}

void output_of(const struct reply *r, struct output *ret)
{
    *ret = (struct output){.text = sl_calloc(1, 1), .logprobs = json_array()};
    assert_true(ret->text && ret->logprobs);
    if (r->json) {
        ret->final = r->json;
        add_part(ret, r->json);
        return;
    }
    for (size_t i = 0; i < r->n_events; i++) {
        ret->final = r->events[i];
        add_part(ret, r->events[i]);
        /* Only the last event says how it ended. */
        bool ends = json_is_string(at(ret->final, "finish_reason"));
        if (ends != (i + 1 == r->n_events) || at(ret->final, "error"))
            fail_reply(r, "finish_reason in an event that is not the last, or an error", __FILE__,
                       __LINE__);
    }
    if (!r->n_events || !r->done)
        fail_reply(r, "the stream has no end", __FILE__, __LINE__);
}

void output_done(struct output *o)
{
    sl_free(o->text);
    sl_free(o->tokens);
    json_decref(o->logprobs);
    *o = (struct output){0};
}

void output_same(const struct output *a, const struct output *b)
{
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    /* json_equal compares doubles exactly. */
    assert_true(json_equal(a->logprobs, b->logprobs));
    assert_string_equal(str_at(a->final, "finish_reason"), str_at(b->final, "finish_reason"));
    assert_true(json_equal(at(a->final, "stop_sequence"), at(b->final, "stop_sequence")) ||
                !at(a->final, "stop_sequence"));
}

/* --- metrics -----------------------------------------------------------------------------------*/

double metric(struct client *c, const char *name)
{
    struct reply *r = expect(get(c, "/metrics"), 200);
    size_t n = strlen(name);
    double v = NAN;
    for (const char *p = r->body; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (!strncmp(p, name, n) && p[n] == ' ') {
            v = strtod(p + n, NULL);
            break;
        }
    }
    if (isnan(v))
        fail_reply(r, name, __FILE__, __LINE__);
    reply_free(r);
    return v;
}

void until_metric(struct client *c, const char *name, double value)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    double v;
    while ((v = metric(c, name)) != value)
        if (client_now_ms() > deadline)
            fail_msg("%s is %g and does not become %g", name, v, value);
}
