/* conn_limits_test.c: how much of a request a connection takes, and how long it waits for it:
 * limits of heads and bodies, deadlines, clients that leave, and who has to move next. On a
 * transport of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "tests/support/wired.h"

/* --- limits ----------------------------------------------------------------------------------- */

static const char *with_padding(const char *before, size_t n, const char *after)
{
    static char text[16384];
    size_t k = (size_t)snprintf(text, sizeof text, "%s", before);
    memset(text + k, 'a', n);
    snprintf(text + k + n, sizeof text - k - n, "%s", after);
    return text;
}

static void test_limits_of_the_head(void **state)
{
    (void)state;
    /* --max-uri 128, --max-header 1024: at the limit, and one byte above. */
    assert_int_equal(
        wired_status(wired_ask(with_padding("GET /ok?", 124, " HTTP/1.1\r\n" H "\r\n"))), 200);
    assert_int_equal(
        wired_status(wired_ask(with_padding("GET /ok?", 125, " HTTP/1.1\r\n" H "\r\n"))), 414);
    assert_int_equal(wired_status(wired_ask(with_padding("GET /", 2000, ""))),
                     414); /* before its end */
    size_t fixed = strlen("GET /ok HTTP/1.1\r\n" H "X: \r\n\r\n");
    const char *before = "GET /ok HTTP/1.1\r\n" H "X: ";
    assert_int_equal(wired_status(wired_ask(with_padding(before, 1024 - fixed, "\r\n\r\n"))), 200);
    assert_int_equal(wired_status(wired_ask(with_padding(before, 1025 - fixed, "\r\n\r\n"))), 431);
    assert_int_equal(wired_status(wired_ask(with_padding(before, 4000, ""))), 431);
    wired.config.max_header = 8192;
    char many[8192] = "GET /ok HTTP/1.1\r\n" H;
    size_t n = strlen(many);
    for (int i = 1; i < SL_HTTP_HEADERS_MAX; i++)
        n += (size_t)snprintf(many + n, sizeof many - n, "X-%d: y\r\n", i);
    snprintf(many + n, sizeof many - n, "\r\n");
    assert_int_equal(wired_status(wired_ask(many)), 200);
    snprintf(many + n, sizeof many - n, "One: more\r\n\r\n");
    assert_int_equal(wired_status(wired_ask(many)), 431);
}

static void test_limits_of_the_body(void **state)
{
    (void)state;
    static const char by_length[] =
        "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: %zu\r\n%s\r\n";
    char head[256];
    wired.env.config = &wired.config;
    snprintf(head, sizeof head, by_length, (size_t)4096, "");
    assert_int_equal(wired_status(wired_ask(with_padding(head, 4096, ""))), 200);
    /* Announced: refused before a byte of it comes, and 100 Continue is not sent. */
    snprintf(head, sizeof head, by_length, (size_t)4097, "Expect: 100-continue\r\n");
    const char *a = wired_ask(head);
    assert_int_equal(wired_status(a), 413);
    assert_non_null(strstr(a, "4097 bytes; the limit is 4096 (--max-body)"));
    assert_non_null(strstr(a, "\r\nConnection: close\r\n"));
    static const char chunked[] =
        "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n1000\r\n";
    assert_int_equal(wired_status(wired_ask(with_padding(chunked, 4096, "\r\n0\r\n\r\n"))), 200);
    assert_int_equal(
        wired_status(wired_ask(with_padding(chunked, 4096, "\r\n1\r\na\r\n0\r\n\r\n"))), 413);
    /* A body that nobody wants is bounded all the same. */
    assert_int_equal(wired_status(wired_ask(with_padding(
                         "GET /ok HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1001\r\n",
                         4097, "\r\n0\r\n\r\n"))),
                     413);
    /* Framing without a body has a limit too. */
    assert_int_equal(wired_status(wired_ask(with_padding("POST /echo HTTP/1.1\r\n" H JSON
                                                         "Transfer-Encoding: chunked\r\n\r\n2;x=",
                                                         3000, "\r\n{}\r\n0\r\n\r\n"))),
                     431);
}

/* What is wrong with a request is told, and not that its body, which nobody wants, is large. */
static void test_a_refusal_with_a_body_above_the_limit(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        int status;
    } rows[] = {
        {"POST /none HTTP/1.1\r\n" H JSON, 404},
        {"PUT /ok HTTP/1.1\r\n" H JSON, 405},
        {"POST /echo HTTP/1.1\r\n" H "Content-Type: text/plain\r\n", 415},
        {"POST /echo HTTP/1.1\r\n" JSON "Host: evil.example\r\n", 403},
        {"POST /echo HTTP/1.1\r\n" H JSON, 413},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char head[256];
        snprintf(head, sizeof head, "%sContent-Length: 5000\r\n\r\n", rows[i].head);
        const char *a = wired_ask(with_padding(head, 5000, GET_OK));
        assert_int_equal(wired_status(a), rows[i].status);
        assert_non_null(strstr(a, "\r\n\r\nok")); /* the next one */
        assert_int_equal(wired.env.body_bytes, 0);
    }
}

static void test_100_continue(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "POST /echo HTTP/1.1\r\n" H JSON "Expect: 100-Continue\r\n"
                        "Content-Length: 2\r\n\r\n");
    assert_string_equal(wired.w.out, "HTTP/1.1 100 Continue\r\n\r\n");
    wire_clear(&wired.w);
    wire_puts(&wired.w, "{}");
    assert_memory_equal(wired.w.out, "HTTP/1.1 200 ", 13);
    wire_clear(&wired.w); /* HTTP/1.0 knows no 100 */
    wire_puts(&wired.w, "POST /echo HTTP/1.0\r\n" JSON "Expect: 100-continue\r\n"
                        "Content-Length: 2\r\n\r\n");
    assert_string_equal(wired.w.out, "");
    wire_puts(&wired.w, "{}");
    assert_memory_equal(wired.w.out, "HTTP/1.1 200 ", 13);
    wire_close(&wired.w);
}

/* --- deadlines -------------------------------------------------------------------------------- */

static void test_a_slow_head(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env);
    const char *text = GET_OK;
    wire_clock(&wired.w, 500);
    wire_feed(&wired.w, text, 1);
    for (size_t i = 1; i <= 9; i++) { /* a byte every 111 ms does not move the deadline */
        wire_clock(&wired.w, 111);
        wire_feed(&wired.w, text + i, 1);
    }
    assert_string_equal(wired.w.out, "");
    wire_clock(&wired.w, 1);
    assert_memory_equal(wired.w.out, "HTTP/1.1 408 ", 13);
    assert_non_null(strstr(wired.w.out, "1000 ms (--header-timeout)"));
    assert_true(wired.w.shut);
    wire_close(&wired.w);
}

static void test_a_slow_body(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 100\r\n\r\n");
    for (int i = 0; i < 19; i++) {
        wire_clock(&wired.w, 100);
        wire_puts(&wired.w, "x");
    }
    wire_clock(&wired.w, 99);
    assert_string_equal(wired.w.out, "");
    wire_clock(&wired.w, 1);
    assert_memory_equal(wired.w.out, "HTTP/1.1 408 ", 13);
    assert_non_null(strstr(wired.w.out, "2000 ms (--body-timeout)"));
    wire_close(&wired.w);
}

static void test_idle_connections(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env); /* a connection that never says anything: --header-timeout */
    wire_clock(&wired.w, 999);
    assert_false(wired.w.closed);
    wire_clock(&wired.w, 1);
    assert_true(wired.w.closed);
    assert_string_equal(wired.w.out, "");
    wire_close(&wired.w);
    wire_open(&wired.w, &wired.env); /* between requests: --idle-timeout */
    wire_puts(&wired.w, GET_OK);
    wire_clear(&wired.w);
    wire_clock(&wired.w, 4999);
    wire_puts(&wired.w, GET_OK);
    wire_clear(&wired.w);
    wire_clock(&wired.w, 4999);
    assert_false(wired.w.closed);
    wire_clock(&wired.w, 1);
    assert_true(wired.w.closed);
    assert_string_equal(wired.w.out, "");
    wire_close(&wired.w);
    wire_open(&wired.w,
              &wired.env); /* a request that is being handled has no deadline of its own */
    wire_puts(&wired.w, "GET /hold HTTP/1.1\r\n" H "\r\n");
    assert_int_equal(wired.w.deadline_ms, -1);
    sl_exchange_reply(wired.held, 200, "text/plain", "x", 1);
    wire_loop(&wired.w);
    wire_close(&wired.w);
}

static void test_the_client_leaves_in_the_middle(void **state)
{
    (void)state;
    static const char request[] = "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2\r\n\r\n{}";
    for (size_t n = 0; n < sizeof request - 1; n++) {
        wire_open(&wired.w, &wired.env);
        wire_feed(&wired.w, request, n);
        sl_conn_eof(wired.w.conn);
        assert_true(wired.w.closed);
        assert_string_equal(wired.w.out, "");
        wire_close(&wired.w);
    }
    assert_int_equal(wired.handled, 0);
}

/* printf 'GET …' | nc -N: the end of file comes right behind the request. */
static void test_end_of_file_behind_a_request(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env);
    wired.w.room = 5;
    wire_puts(&wired.w, GET_OK GET_OK);
    sl_conn_eof(wired.w.conn);
    assert_false(wired.w.closed);
    wire_take(&wired.w, 10000);
    assert_true(wired.w.closed);
    assert_int_equal(wired.handled, 2);
    assert_int_equal(strlen(strstr(wired.w.out, "\r\n\r\nok")),
                     strlen("\r\n\r\nok") + wired.w.n_out / 2);
    wire_close(&wired.w);
}

/* What the transport hears of who has to move next: with it it knows whom to shed. */
static void test_who_waits_for_whom(void **state)
{
    (void)state;
    wired.config.max_body = wired.config.max_body_memory = 1 << 20;
    wire_open(&wired.w, &wired.env);
    assert_int_equal(wired.w.waits, SL_WAIT_CLIENT);
    assert_false(sl_conn_is_midway(wired.w.conn));
    wire_puts(&wired.w, "GET /ok HT"); /* a piece of a head is no reason to begin anew */
    wire_puts(&wired.w, "T");
    assert_int_equal(wired.w.n_waits, 1);
    assert_true(sl_conn_is_midway(wired.w.conn));
    wire_puts(&wired.w, "P/1.1\r\n" H "\r\n"); /* an answered request is */
    assert_int_equal(wired.w.waits, SL_WAIT_CLIENT);
    assert_int_equal(wired.w.n_waits, 2);
    wire_puts(&wired.w, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 70000\r\n\r\n");
    for (int i = 0; i < 65535; i++)
        wire_puts(&wired.w, " ");
    assert_int_equal(wired.w.n_waits, 2); /* nor is a byte of a body, */
    wire_puts(&wired.w, " ");
    assert_int_equal(wired.w.n_waits, 3); /* but 64 KiB of it are */
    assert_true(sl_conn_is_midway(wired.w.conn));
    wire_close(&wired.w);
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "GET /hold HTTP/1.1\r\n" H "\r\n");
    assert_int_equal(wired.w.waits, SL_WAIT_NONE);
    sl_exchange_reply(wired.held, 200, "text/plain", "x", 1);
    wire_loop(&wired.w);
    assert_int_equal(wired.w.waits, SL_WAIT_CLIENT);
    wired.w.room = 5; /* its client does not read */
    wire_puts(&wired.w, "GET /ok HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    assert_int_equal(wired.w.waits, SL_WAIT_END);
    wire_take(&wired.w, 10000);
    wire_close(&wired.w);
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "nonsense\r\n\r\n");
    assert_true(wired.w.shut); /* lingers */
    assert_int_equal(wired.w.waits, SL_WAIT_END);
    wire_close(&wired.w);
}

/* A thousand requests in one piece do not keep the loop: one at a time, then others come. */
static void test_requests_sent_ahead_take_turns(void **state)
{
    (void)state;
    enum { MANY = 40 };
    char *text = calloc(MANY, sizeof GET_OK);
    assert_non_null(text);
    for (size_t i = 0; i < MANY; i++)
        memcpy(text + i * strlen(GET_OK), GET_OK, sizeof GET_OK);
    wired.config.read_ahead = MANY * sizeof GET_OK;
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, text);
    for (unsigned n = 1; n < MANY; n++) {
        assert_int_equal(wired.handled, n);
        assert_true(wired.w.woken);
        assert_int_equal(wired.w.waits,
                         SL_WAIT_NONE); /* not for its client: none of them is shed */
        wired.w.woken = false;
        sl_conn_advance(wired.w.conn);
    }
    assert_int_equal(wired.handled, MANY);
    assert_false(wired.w.woken);
    assert_int_equal(wired.w.waits, SL_WAIT_CLIENT);
    sl_conn_eof(wired.w.conn);
    assert_true(wired.w.closed);
    wire_close(&wired.w);
    free(text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, wired_setup, wired_teardown)
    const struct CMUnitTest tests[] = {
        T(test_limits_of_the_head),
        T(test_limits_of_the_body),
        T(test_a_refusal_with_a_body_above_the_limit),
        T(test_100_continue),
        T(test_a_slow_head),
        T(test_a_slow_body),
        T(test_idle_connections),
        T(test_the_client_leaves_in_the_middle),
        T(test_end_of_file_behind_a_request),
        T(test_who_waits_for_whom),
        T(test_requests_sent_ahead_take_turns),
    };
    sl_log_setup(SL_LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
