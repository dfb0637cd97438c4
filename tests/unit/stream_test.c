/* stream_test.c: streams: framing, backlog and marks, readers that do not read, pings. On a
 * transport of memory; expected bytes are written out by hand from RFC 9112. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "tests/support/wire.h"

static struct {
    struct sl_config config;
    struct sl_conn_env env;
    struct wire w;
    struct sl_exchange *held;
    unsigned aborts, writables;
    bool write_when_writable;
} f;

static void on_abort(struct sl_exchange *ex, void *user)
{
    (void)ex;
    assert_ptr_equal(user, &f);
    f.aborts++;
}

static void on_writable(struct sl_exchange *ex, void *user)
{
    assert_ptr_equal(user, &f);
    f.writables++;
    if (f.write_when_writable)
        (void)sl_exchange_write(ex, "more", 4);
}

static const struct sl_exchange_events events = {.abort = on_abort, .writable = on_writable};

static void get_hello(struct sl_exchange *ex)
{
    sl_exchange_reply(ex, 200, "text/plain", "hello", 5);
}

static void get_stream(struct sl_exchange *ex)
{
    f.held = ex;
    sl_exchange_on(ex, &events, &f);
    sl_exchange_stream(ex, 200, "text/event-stream", ": ping\n\n");
}

static const struct sl_route routes[] = {
    {SL_GET, "/hello", SL_ROLE_USER, 0, SL_BODY_NONE, get_hello},
    {SL_GET, "/stream", SL_ROLE_USER, 0, SL_BODY_NONE, get_stream},
};

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
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
    wire_env_done(&f.env);
    return 0;
}

#define HOST "Host: localhost\r\n"
#define ID(n) WIRE_DATE "X-Request-Id: req-test-" #n "\r\n"
#define HELLO(n)                                                                                   \
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" ID(n) "\r\nhello"

static void test_a_stream_byte_for_byte(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(sl_exchange_write(f.held, "data: 1\n\n", 9));
    assert_true(sl_exchange_write(f.held, "", 0)); /* not the last chunk */
    wire_loop(&f.w);
    assert_true(sl_exchange_write(f.held, "0123456789abcdef", 16));
    sl_exchange_end(f.held);
    wire_puts(&f.w, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    assert_string_equal(f.w.out,
                        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                        "Transfer-Encoding: chunked\r\n" ID(
                            0) "\r\n"
                               "9\r\ndata: 1\n\n\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n" HELLO(1));
}

static void test_backlog_and_marks(void **state)
{
    (void)state;
    char block[1000];
    memset(block, 's', sizeof block);
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    wire_clear(&f.w);
    f.w.room = 0;
    size_t n = 0;
    while (sl_exchange_write(f.held, block, sizeof block))
        n++;
    assert_int_equal(n, 4); /* 4 × 1,007 bytes are below 4,096, 5 are not */
    wire_loop(&f.w);
    assert_int_equal(sl_exchange_backlog(f.held), 5 * 1007);
    assert_false(sl_exchange_is_writable(f.held));
    wire_take(&f.w, 3000);
    assert_int_equal(sl_exchange_backlog(f.held), 5 * 1007 - 3000);
    assert_int_equal(f.writables, 0); /* 2,035 left: above the low mark */
    wire_take(&f.w, 2000);
    assert_int_equal(f.writables, 0); /* libuv tells when all of it is gone, not before */
    wire_take(&f.w, 35);
    assert_int_equal(f.writables, 1);
    assert_int_equal(f.w.n_out, 5 * 1007);
    (void)sl_exchange_write(f.held, block, 10);
    wire_loop(&f.w);
    wire_take(&f.w, 100);
    assert_int_equal(f.writables, 1); /* that write had not returned false */
    sl_exchange_end(f.held);
}

/* Between the marks nothing is said: not before the low one is reached. */
static void test_the_low_mark(void **state)
{
    (void)state;
    char block[1000];
    memset(block, 's', sizeof block);
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    f.w.room = 0;
    assert_true(sl_exchange_write(f.held, block, sizeof block));
    wire_loop(&f.w); /* these 1,007 bytes are on their way alone */
    while (sl_exchange_write(f.held, block, sizeof block))
        ;
    wire_loop(&f.w);
    wire_take(&f.w, 1007);
    assert_int_equal(sl_exchange_backlog(f.held), 4 * 1007);
    assert_true(sl_exchange_is_writable(f.held));
    assert_int_equal(f.writables, 0);
    wire_take(&f.w, 4 * 1007);
    assert_int_equal(f.writables, 1);
    sl_exchange_end(f.held);
}

static void test_writing_inside_writable(void **state)
{
    (void)state;
    char block[5000];
    memset(block, 's', sizeof block);
    f.write_when_writable = true;
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    f.w.room = 0;
    assert_false(sl_exchange_write(f.held, block, sizeof block));
    wire_loop(&f.w);
    wire_take(&f.w, SIZE_MAX / 2);
    assert_int_equal(f.writables, 1);
    assert_non_null(strstr(f.w.out, "ss\r\n4\r\nmore\r\n"));
    sl_exchange_end(f.held);
}

/* A stream whose client reads nothing of a first block. */
static void stream_to_nobody(void)
{
    char block[2000];
    memset(block, 's', sizeof block);
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    f.w.room = 0;
    (void)sl_exchange_write(f.held, block, sizeof block);
    wire_loop(&f.w);
}

static void test_a_client_that_does_not_read(void **state)
{
    (void)state;
    stream_to_nobody();
    wire_clock(&f.w, 2999);
    wire_take(&f.w, 300); /* as much as --write-rate asks for: the time begins anew */
    wire_clock(&f.w, 1);
    assert_int_equal(f.aborts, 0);
    wire_clock(&f.w, 2999);
    assert_int_equal(f.aborts, 0);
    wire_clock(&f.w, 1);
    assert_int_equal(f.aborts, 1);
    assert_true(f.w.closed);
    assert_int_equal((int)f.env.metrics.value[SL_M_TIMEOUTS], 1);
    sl_exchange_end(f.held);
}

/* Single bytes, whenever the time is nearly over, do not keep it. */
static void test_a_client_that_reads_too_slowly(void **state)
{
    (void)state;
    stream_to_nobody();
    for (int i = 0; i < 299; i++) {
        wire_clock(&f.w, 10);
        wire_take(&f.w, 1);
        (void)sl_exchange_write(f.held, "more", 4); /* what comes behind changes nothing */
        wire_loop(&f.w);
        assert_int_equal(f.aborts, 0);
    }
    wire_clock(&f.w, 10);
    assert_int_equal(f.aborts, 1);
    sl_exchange_end(f.held);
}

/* Whoever takes all there is has as long as it likes for the next: only what waits counts. */
static void test_a_slow_stream_is_no_slow_client(void **state)
{
    (void)state;
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    for (int i = 0; i < 20; i++) {
        f.w.room = 0;
        (void)sl_exchange_write(f.held, "x", 1);
        wire_loop(&f.w);
        wire_clock(&f.w, 600);
        wire_take(&f.w, 1000);
        assert_int_equal(f.aborts, 0);
    }
    sl_exchange_end(f.held);
}

static void test_pings(void **state)
{
    (void)state;
    static const char ping[] = "8\r\n: ping\n\n\r\n";
    wire_puts(&f.w, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    wire_loop(&f.w);
    wire_clear(&f.w);
    wire_clock(&f.w, 699);
    assert_string_equal(f.w.out, "");
    wire_clock(&f.w, 1);
    assert_string_equal(f.w.out, ping);
    wire_clock(&f.w, 600);
    (void)sl_exchange_write(f.held, "x", 1);
    wire_loop(&f.w);
    wire_clear(&f.w);
    wire_clock(&f.w, 600); /* data 600 ms ago: none is due */
    assert_string_equal(f.w.out, "");
    wire_clock(&f.w, 100);
    assert_string_equal(f.w.out, ping);
    f.w.room = 0; /* nor while bytes wait */
    (void)sl_exchange_write(f.held, "y", 1);
    wire_loop(&f.w);
    wire_clear(&f.w);
    wire_clock(&f.w, 2000);
    wire_take(&f.w, 1000);
    assert_string_equal(f.w.out, "1\r\ny\r\n");
    sl_exchange_end(f.held);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_stream_byte_for_byte),
        T(test_backlog_and_marks),
        T(test_the_low_mark),
        T(test_writing_inside_writable),
        T(test_a_client_that_does_not_read),
        T(test_pings),
        T(test_a_client_that_reads_too_slowly),
        T(test_a_slow_stream_is_no_slow_client),
    };
    sl_log_setup(SL_LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
