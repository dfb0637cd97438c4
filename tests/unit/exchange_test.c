/* exchange_test.c: what handlers may rely on: one end, order, aborts, memory. On a
 * transport of memory; expected bytes are written out by hand from RFC 9112. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "tests/support/wire.h"

struct fixture {
    struct sl_config config;
    struct sl_conn_env env;
    struct wire w;
    struct sl_exchange *held; /* of /hold and /stream */
    unsigned aborts, releases;
    bool end_in_abort;
};

static struct fixture f;

/* --- handlers --------------------------------------------------------------------------------- */

static void on_abort(struct sl_exchange *ex, void *user)
{
    assert_ptr_equal(user, &f);
    assert_true(sl_exchange_aborted(ex));
    f.aborts++;
    if (f.end_in_abort) {
        sl_exchange_end(ex);
        f.held = NULL;
    }
}

static const struct sl_exchange_events events = {.abort = on_abort};

static void get_hello(struct sl_exchange *ex)
{
    sl_exchange_reply(ex, 200, "text/plain", "hello", 5);
}

static void post_echo(struct sl_exchange *ex)
{
    size_t n;
    const char *body = sl_exchange_body(ex, &n);
    assert_int_equal(body[n], '\0');
    sl_exchange_add_header(ex, "X-Length", "%zu", n);
    sl_exchange_reply(ex, 201, "application/json", body, n);
}

static void get_hold(struct sl_exchange *ex)
{
    assert_null(f.held);
    f.held = ex;
    sl_exchange_on(ex, &events, &f);
}

static void get_stream(struct sl_exchange *ex)
{
    get_hold(ex);
    sl_exchange_stream(ex, 200, "text/event-stream", ": ping\n\n");
}

static void count_release(void *arg)
{
    assert_ptr_equal(arg, &f);
    f.releases++;
}

static void get_borrowed(struct sl_exchange *ex)
{
    static char big[6000];
    memset(big, 'b', sizeof big);
    sl_exchange_reply_ref(ex, 200, "text/plain", big, sizeof big, count_release, &f);
}

static void get_item(struct sl_exchange *ex)
{
    char text[256];
    const char *q = sl_exchange_query(ex, "q"), *none = sl_exchange_query(ex, "none");
    int n =
        snprintf(text, sizeof text, "%s|%s|%s|%s|%s", sl_exchange_param(ex, "id"), q ? q : "(none)",
                 none ? none : "(none)",
                 sl_exchange_header(ex, "x-thing") ? sl_exchange_header(ex, "X-Thing") : "(none)",
                 sl_exchange_path(ex));
    sl_exchange_reply(ex, 200, "text/plain", text, (size_t)n);
}

static void get_busy(struct sl_exchange *ex)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_SERVER_FULL, "no \"room\"");
    sl_exchange_fail(ex, &err);
}

/* What it did stays done: that its answer is too long tells nothing of it. */
static void post_done(struct sl_exchange *ex)
{
    struct sl_error err;
    sl_exchange_done(ex);
    (void)sl_fail(&err, SL_E_TOO_LARGE, "the text is longer than the limit");
    sl_exchange_fail(ex, &err);
}

static const struct sl_route routes[] = {
    {SL_GET, "/hello", SL_ROLE_USER, 0, SL_BODY_NONE, get_hello},
    {SL_POST, "/echo", SL_ROLE_USER, 0, SL_BODY_JSON, post_echo},
    {SL_GET, "/hold", SL_ROLE_USER, 0, SL_BODY_NONE, get_hold},
    {SL_POST, "/hold", SL_ROLE_USER, 0, SL_BODY_JSON, get_hold},
    {SL_GET, "/stream", SL_ROLE_USER, 0, SL_BODY_NONE, get_stream},
    {SL_GET, "/borrowed", SL_ROLE_USER, 0, SL_BODY_NONE, get_borrowed},
    {SL_GET, "/items/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, get_item},
    {SL_GET, "/busy", SL_ROLE_USER, 0, SL_BODY_NONE, get_busy},
    {SL_POST, "/done", SL_ROLE_USER, 0, SL_BODY_JSON, post_done},
};

static int setup(void **state)
{
    (void)state;
    f = (struct fixture){.end_in_abort = false};
    wire_config(&f.config);
    wire_env(&f.env, &f.config);
    sl_router_add(&f.env.router, routes, sizeof routes / sizeof *routes);
    wire_open(&f.w, &f.env);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    wire_close(&f.w);
    assert_int_equal((int)f.env.metrics.value[SL_M_IN_FLIGHT], 0);
    assert_int_equal(f.env.body_bytes, 0);
    wire_env_done(&f.env);
    return 0;
}

#define HOST "Host: localhost\r\n"
#define ID(n) WIRE_DATE "X-Request-Id: req-test-" #n "\r\n"
#define HELLO(n)                                                                                   \
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" ID(n) "\r\nhello"

/* --- whole responses -------------------------------------------------------------------------- */

static void test_a_reply_byte_for_byte(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(f.w.out, HELLO(0));
    wire_clear(&f.w);
    wire_puts(&f.w, "POST /echo HTTP/1.1\r\n" HOST "X-Request-Id: mine\r\n"
                    "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
    assert_string_equal(f.w.out, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                                 "Content-Length: 2\r\n" WIRE_DATE
                                 "X-Request-Id: mine\r\nX-Length: 2\r\n\r\n{}");
    wire_clear(&f.w);
    wire_puts(&f.w, "GET /busy HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(
        f.w.out, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                 "Content-Length: 91\r\n" ID(
                     1) "Retry-After: 1\r\n\r\n"
                        "{\"error\":{\"message\":\"no \\\"room\\\"\",\"type\":\"server_error\","
                        "\"param\":null,\"code\":\"server_full\"}}");
    assert_false(f.w.closed);
}

static void test_what_was_done_is_not_refused(void **state)
{
    (void)state;
    wire_puts(&f.w, "POST /done HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    assert_memory_equal(f.w.out, "HTTP/1.1 504 ", 13);
    assert_non_null(strstr(f.w.out, "\"code\":\"commit_unknown\""));
    assert_non_null(strstr(f.w.out, "(the text is longer than the limit)"));
}

static void test_head_has_the_length_and_no_body(void **state)
{
    (void)state;
    wire_puts(&f.w, "HEAD /hello HTTP/1.1\r\n" HOST "\r\nHEAD /borrowed HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    assert_string_equal(f.w.out,
                        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" ID(
                            0) "\r\nHTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                               "Content-Length: 6000\r\n" ID(1) "\r\n");
    assert_int_equal(f.releases, 1);
    wire_clear(&f.w);
    wire_puts(&f.w, "HEAD /busy HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(
        f.w.out, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: "
                 "application/json\r\nContent-Length: 91\r\n" ID(2) "Retry-After: 1\r\n\r\n");
    wire_clear(&f.w);
    wire_puts(&f.w, "HEAD /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(sl_exchange_write(f.held, "x", 1));
    sl_exchange_end(f.held);
    wire_loop(&f.w);
    assert_string_equal(f.w.out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                 "Transfer-Encoding: chunked\r\n" ID(3) "\r\n");
}

static void test_path_parameters_and_query(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /items/a%2Fb%C3%A9?x=1&q=one+two%26&none HTTP/1.1\r\n" HOST
                    "x-thing:   of value \t\r\n\r\n");
    assert_non_null(strstr(f.w.out, "\r\n\r\na/b\xc3\xa9|one two&||of value|/items/a%2Fb%C3%A9"));
    wire_clear(&f.w);
    wire_puts(&f.w, "GET /items/x?q=first&q=second HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(f.w.out, "\r\n\r\nx|first|(none)|(none)|/items/x"));
    static const char *const bad[] = {"/items/%",      "/items/%4",      "/items/%zz",
                                      "/items/%00",    "/items/%ff",     "/items/x?q=%",
                                      "/items/x?q=%1", "/items/x?q=%00", "/items/x?q=%c3%28"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        wire_clear(&f.w);
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" HOST "\r\n", bad[i]);
        wire_puts(&f.w, text);
        assert_memory_equal(f.w.out, "HTTP/1.1 400 ", 13);
        assert_non_null(strstr(f.w.out, "\"bad_request\""));
    }
    assert_false(f.w.closed);
}

static void test_http_1_0(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_string_equal(f.w.out,
                        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" ID(
                            0) "Connection: keep-alive\r\n\r\nhello");
    assert_false(f.w.closed);
    wire_clear(&f.w);
    wire_puts(&f.w, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_true(sl_exchange_write(f.held, "abc", 3));
    assert_true(sl_exchange_write(f.held, "def", 3));
    sl_exchange_end(f.held);
    wire_loop(&f.w);
    assert_string_equal(f.w.out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" ID(
                                     1) "Connection: close\r\n\r\nabcdef");
    assert_true(f.w.shut); /* the end, for its client */
    sl_conn_eof(f.w.conn);
    assert_true(f.w.closed);
}

static void test_connection_close(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"
                    "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(f.w.out,
                        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" ID(
                            0) "Connection: close\r\n\r\nhello");
    assert_true(f.w.shut); /* a close would reset the connection: there was more from its client */
    assert_false(f.w.closed);
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_false(f.w.closed);
    sl_conn_eof(f.w.conn);
    assert_true(f.w.closed);
    wire_close(&f.w);
    wire_open(&f.w, &f.env);
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    assert_true(f.w.closed); /* nothing more comes: its client said so */
}

static void test_while_draining_answers_close(void **state)
{
    (void)state;
    f.env.closing_down = true;
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(f.w.out, "\r\nConnection: close\r\n"));
    assert_true(f.w.shut); /* its client did not know it: the next request may be on its way */
    assert_false(f.w.closed);
    sl_conn_stop(f.w.conn);
    assert_false(f.w.closed);
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    sl_conn_eof(f.w.conn);
    assert_true(f.w.closed);
}

/* --- order ------------------------------------------------------------------------------------ */

static void test_pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\nGET /hold HTTP/1.1\r\n" HOST
                    "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    assert_string_equal(f.w.out, HELLO(0));
    assert_non_null(f.held);
    wire_clear(&f.w);
    sl_exchange_reply(f.held, 204, NULL, "", 0);
    assert_string_equal(f.w.out, ""); /* never from inside the call */
    wire_loop(&f.w);
    assert_string_equal(f.w.out, "HTTP/1.1 204 No Content\r\n" ID(1) "\r\n" HELLO(2));
    assert_int_equal(f.aborts, 0);
}

static void test_reading_ahead_is_bounded(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 200 && f.w.reading; i++)
        wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_false(f.w.reading);
    assert_true(f.w.watching); /* the hang-up is still seen */
    assert_int_equal(sl_conn_room(f.w.conn), 0);
    sl_exchange_reply(f.held, 200, "text/plain", "held", 4);
    wire_loop(&f.w);
    assert_true(f.w.reading);
    assert_false(f.w.watching);
    size_t n = 0;
    for (const char *s = f.w.out; (s = strstr(s, "\r\n\r\nhello")) != NULL; s++)
        n++;
    assert_int_equal(n, 2048 / strlen("GET /hello HTTP/1.1\r\n" HOST "\r\n"));
}

static void test_unread_answers_do_not_pile_up(void **state)
{
    (void)state;
    f.w.room = 0;
    for (int i = 0; i < 400 && f.w.reading; i++)
        wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_false(f.w.reading);
    assert_in_range(sl_conn_backlog(f.w.conn), f.config.write_high, f.config.write_high + 200);
    wire_take(&f.w, SIZE_MAX / 2);
    assert_int_equal(sl_conn_backlog(f.w.conn), 0);
    assert_true(f.w.reading);
}

/* --- aborts ----------------------------------------------------------------------------------- */

static void test_end_of_file_aborts_once(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    struct sl_exchange *ex = f.held;
    assert_false(sl_exchange_aborted(ex));
    sl_conn_eof(f.w.conn);
    assert_int_equal(f.aborts, 1);
    assert_true(f.w.closed);
    wire_clock(&f.w, 0); /* the connection's memory goes; the exchange stays */
    assert_null(f.w.conn);
    assert_string_equal(sl_exchange_path(ex), "/hold");
    assert_int_equal(sl_exchange_backlog(ex), 0);
    assert_true(sl_exchange_is_writable(ex));
    sl_exchange_reply(ex, 200, "text/plain", "late", 4);
    assert_string_equal(f.w.out, "");
    assert_int_equal(f.aborts, 1);
    assert_int_equal((int)f.env.metrics.value[SL_M_ABORTED], 1);
}

static void test_a_broken_stream_is_ended_inside_abort(void **state)
{
    (void)state;
    f.end_in_abort = true;
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    sl_conn_gone(f.w.conn);
    assert_int_equal(f.aborts, 1);
    assert_null(f.held);
}

static void test_abort_while_requests_wait(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    while (f.w.reading)
        wire_puts(&f.w, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    sl_conn_gone(f.w.conn); /* what the watcher says */
    assert_int_equal(f.aborts, 1);
    sl_exchange_cut(f.held);
}

static void test_release_is_called_once(void **state)
{
    (void)state;
    f.w.room = 100;
    wire_puts(&f.w, "GET /borrowed HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(f.releases, 0);
    wire_take(&f.w, 3000);
    assert_int_equal(f.releases, 0);
    wire_take(&f.w, 3000 + 500);
    assert_int_equal(f.releases, 1);
    f.w.room = 100;
    wire_puts(&f.w, "GET /borrowed HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(f.releases, 1);
    sl_conn_gone(f.w.conn);
    wire_clock(&f.w, 0);
    assert_int_equal(f.releases, 2);
}

static void test_a_copy_behind_a_borrowed_body(void **state)
{
    (void)state;
    f.w.room = 50;
    wire_puts(&f.w, "GET /borrowed HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n");
    wire_take(&f.w, 100000);
    assert_int_equal(f.releases, 1);
    const char *body = strstr(f.w.out, "\r\n\r\nbbb");
    assert_non_null(body);
    assert_int_equal(strspn(body + 4, "b"), 6000);
    assert_string_equal(body + 4 + 6000, HELLO(1));
}

static void test_cut_closes_without_an_end(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    (void)sl_exchange_write(f.held, "abc", 3);
    wire_loop(&f.w);
    sl_exchange_cut(f.held);
    wire_loop(&f.w);
    assert_true(f.w.closed);
    assert_non_null(strstr(f.w.out, "3\r\nabc\r\n"));
    assert_null(strstr(f.w.out, "\r\n0\r\n\r\n"));
    assert_int_equal(f.aborts, 0);
}

static void test_the_server_stops(void **state)
{
    (void)state;
    struct wire idle, writing;
    wire_puts(&f.w, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    wire_open(&idle, &f.env);
    wire_open(&writing, &f.env);
    writing.room = 10;
    wire_puts(&writing, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    sl_conn_stop(idle.conn);
    assert_true(idle.closed);
    sl_conn_stop(writing.conn);
    assert_false(writing.closed); /* what has been written is sent */
    wire_take(&writing, 10000);
    assert_true(writing.closed);
    assert_non_null(strstr(writing.out, "\r\n\r\nhello"));
    sl_conn_stop(f.w.conn);
    assert_true(f.w.closed);
    assert_int_equal(f.aborts, 1);
    sl_exchange_reply(f.held, 200, "text/plain", "x", 1);
    wire_close(&idle);
    wire_close(&writing);
}

static void test_the_server_stops_while_a_request_comes(void **state)
{
    (void)state;
    static const char request[] = "POST /hold HTTP/1.1\r\n" HOST
                                  "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{}";
    for (size_t n = 1; n < sizeof request; n++) {
        struct wire w;
        wire_open(&w, &f.env);
        wire_feed(&w, request, n);
        sl_conn_stop(w.conn);
        assert_memory_equal(w.out, "HTTP/1.1 503 ", 13);
        assert_non_null(strstr(w.out, "\r\nConnection: close\r\n"));
        assert_non_null(strstr(w.out, "\"code\":\"draining\""));
        assert_true(w.shut); /* and what still comes of it does not take the answer away */
        assert_false(w.closed);
        wire_clock(&w, 2000);
        assert_true(w.closed);
        wire_close(&w);
    }
    assert_null(f.held);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void test_bodies_share_a_budget(void **state)
{
    (void)state;
    static const char head[] = "POST /hold HTTP/1.1\r\n" HOST
                               "Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n";
    struct wire w[5];
    struct sl_exchange *held[4];
    char body[4000];
    memset(body, ' ', sizeof body);
    for (int i = 0; i < 5; i++) {
        wire_open(&w[i], &f.env);
        wire_puts(&w[i], head);
        wire_feed(&w[i], body, sizeof body);
        if (i < 4) {
            assert_non_null(held[i] = f.held);
            f.held = NULL;
        }
    }
    assert_int_equal(f.env.body_bytes, 4 * 4096); /* 16,384 are allowed */
    assert_memory_equal(w[4].out, "HTTP/1.1 503 ", 13);
    assert_non_null(strstr(w[4].out, "--max-body-memory"));
    sl_exchange_drop_body(held[0]);
    assert_int_equal(f.env.body_bytes, 3 * 4096);
    size_t n;
    assert_string_equal(sl_exchange_body(held[0], &n), "");
    assert_int_equal(n, 0);
    for (int i = 0; i < 4; i++)
        sl_exchange_reply(held[i], 200, "text/plain", "x", 1);
    for (int i = 0; i < 5; i++)
        wire_close(&w[i]);
}

/* An eighth is left to small ones, however many large ones there are. */
static void test_large_bodies_leave_room_for_small_ones(void **state)
{
    (void)state;
    enum { LARGE = 128 << 10 };
    static char body[LARGE];
    struct wire large[8], small;
    memset(body, ' ', sizeof body);
    f.config.max_body = LARGE;
    f.config.max_body_memory = 8 * LARGE;
    for (int i = 0; i < 8; i++) { /* all but the last byte */
        char head[256];
        snprintf(head, sizeof head,
                 "POST /hold HTTP/1.1\r\n" HOST
                 "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n",
                 LARGE);
        wire_open(&large[i], &f.env);
        wire_puts(&large[i], head);
        wire_feed(&large[i], body, sizeof body - 1);
        if (i < 7)
            assert_string_equal(large[i].out, "");
    }
    assert_memory_equal(large[7].out, "HTTP/1.1 503 ", 13);
    assert_int_equal(f.env.body_bytes, 7 * LARGE);
    wire_open(&small, &f.env);
    wire_puts(&small, "POST /hold HTTP/1.1\r\n" HOST
                      "Content-Type: application/json\r\nContent-Length: 65000\r\n\r\n");
    wire_feed(&small, body, 65000);
    assert_non_null(f.held);
    sl_exchange_reply(f.held, 200, "text/plain", "x", 1);
    wire_loop(&small);
    for (int i = 0; i < 8; i++)
        wire_close(&large[i]);
    wire_close(&small);
}

/* The n-th allocation fails, for every n: each time the request is answered or the connection is
 * closed, and nothing is left behind (the sanitizers look). */
static void test_every_allocation_fails_once(void **state)
{
    (void)state;
    static const char request[] =
        "POST /echo?a=b HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET /busy HTTP/1.1\r\n" HOST "\r\n";
    bool whole = false;
    unsigned failures = 0;
    for (int64_t n = 0; !whole; n++) {
        struct wire w;
        wire_open(&w, &f.env);
        sl_mem_fail_after(n);
        wire_puts(&w, request);
        wire_loop(&w);
        sl_mem_fail_after(-1);
        whole = strstr(w.out, "201 Created") && strstr(w.out, "\"server_full\"");
        if (!whole) {
            failures++;
            assert_true(w.closed || strstr(w.out, "HTTP/1.1 503") || w.conn->state > 0);
        }
        wire_close(&w);
        assert_true(n < 100);
    }
    assert_in_range(failures, 6, 40);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_reply_byte_for_byte),
        T(test_what_was_done_is_not_refused),
        T(test_head_has_the_length_and_no_body),
        T(test_path_parameters_and_query),
        T(test_http_1_0),
        T(test_connection_close),
        T(test_while_draining_answers_close),
        T(test_pipelined_requests_are_answered_in_order),
        T(test_reading_ahead_is_bounded),
        T(test_unread_answers_do_not_pile_up),
        T(test_end_of_file_aborts_once),
        T(test_a_broken_stream_is_ended_inside_abort),
        T(test_abort_while_requests_wait),
        T(test_release_is_called_once),
        T(test_a_copy_behind_a_borrowed_body),
        T(test_cut_closes_without_an_end),
        T(test_the_server_stops),
        T(test_the_server_stops_while_a_request_comes),
        T(test_bodies_share_a_budget),
        T(test_large_bodies_leave_room_for_small_ones),
        T(test_every_allocation_fails_once),
    };
    sl_log_setup(SL_LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
