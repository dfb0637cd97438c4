/* conn_test.c: reading requests: framing, and every way to be refused. On a transport of memory.
 * Right and wrong are RFC 9110's and 9112's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "tests/support/wired.h"

/* --- requests that are right ------------------------------------------------------------------ */

static const char *const good[] = {
    GET_OK,
    "\r\n" GET_OK,
    "GET /ok?a=b&c HTTP/1.1\r\n" H "Accept: */*\r\nX-Empty:\r\nX-Bytes: \xc3\xa9\r\n\r\n",
    "GET http://localhost/ok HTTP/1.1\r\n" H "\r\n",
    "GET http://localhost:8080/ok?x HTTP/1.1\r\n" H "\r\n",
    "GET /ok HTTP/1.0\r\n\r\n",
    "GET /ok HTTP/1.1\r\nhOsT: LOCALHOST:8080\r\n\r\n",
    "GET /ok HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
    "GET /ok HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n",
    "GET /ok HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc",
    "GET /ok HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /ok HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.1\r\n" H "Content-Type: application/JSON ; charset=utf-8\r\n"
    "Content-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.1\r\n" H JSON
    "Transfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n"
    "1;flag;name=\"quoted value\"\r\n{\r\n0001\r\n}\r\n000\r\nTrailer: yes\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "\r\n",
    "POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H JSON "Content-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.1\r\n" H JSON "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    "GET /ok HTTP/1.1\r\n" H "Origin: http://localhost\r\n\r\n",
    "GET /probe HTTP/1.1\r\nHost: pod.example:1\r\nOrigin: https://evil.example\r\n\r\n",
};

static void test_good_requests(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char twice[4096];
        const char *a = wired_ask(good[i]);
        if (wired_status(a) != 200)
            fail_msg("%s\nwas answered with\n%s", good[i], a);
        /* And the message ended exactly where it ends: the one behind it is read as well. */
        snprintf(twice, sizeof twice, "%s%s", good[i], "GET /none HTTP/1.1\r\n" H "\r\n");
        wired.handled = 0;
        a = wired_ask(twice);
        bool keeps = !strstr(good[i], "HTTP/1.0");
        if (wired.handled != 1 || (strstr(a, "HTTP/1.1 404 ") != NULL) != keeps)
            fail_msg("%s\nand another were answered with\n%s", good[i], a);
    }
}

/* However the bytes come apart on their way, the answers are the same. */
static void test_split_at_every_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char whole[4096], expected[8192];
        /* 100-continue is only sent when the body is not there yet: that one differs rightly. */
        if (strstr(good[i], "100-continue"))
            continue;
        size_t n = (size_t)snprintf(whole, sizeof whole, "%s%s", good[i], GET_OK);
        snprintf(expected, sizeof expected, "%s", wired_ask_bytes(whole, n));
        for (size_t cut = 1; cut < n; cut++) {
            wire_open(&wired.w, &wired.env);
            wired.env.id_next = 0;
            wire_feed(&wired.w, whole, cut);
            wire_feed(&wired.w, whole + cut, n - cut);
            wire_loop(&wired.w);
            assert_string_equal(wired.w.out, expected);
            wire_close(&wired.w);
        }
        wire_open(&wired.w, &wired.env);
        wired.env.id_next = 0;
        for (size_t k = 0; k < n; k++)
            wire_feed(&wired.w, whole + k, 1);
        wire_loop(&wired.w);
        assert_string_equal(wired.w.out, expected);
        wire_close(&wired.w);
    }
}

/* --- requests that are wrong ------------------------------------------------------------------ */

static const struct {
    int status;
    const char *request;
} bad[] = {
    /* lines */
    {400, "GET /ok HTTP/1.1\nHost: localhost\n\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: localhost\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X: a\rb\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X: a\r\n folded\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X: a\r\n\tfolded\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n X: a\r\n" H "\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X: a\x01\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n"},
    {400, "\r\n\r\n\r\n" GET_OK},
    /* the request line */
    {400, "GET  /ok HTTP/1.1\r\n" H "\r\n"},
    {400, "GET /ok  HTTP/1.1\r\n" H "\r\n"},
    {400, "GET /ok HTTP/1.1 \r\n" H "\r\n"},
    {400, "GET /ok\r\n" H "\r\n"},
    {400, "GET ok HTTP/1.1\r\n" H "\r\n"},
    {400, "GET * HTTP/1.1\r\n" H "\r\n"},
    {400, "GET /o\xc3\xa9 HTTP/1.1\r\n" H "\r\n"},
    {400, "GET /ok HTTP/2.0\r\n" H "\r\n"},
    {400, "GET /ok HTTP/1.2\r\n" H "\r\n"},
    {400, "GET /ok HTTP/0.9\r\n" H "\r\n"},
    {400, "GET /ok HTTPS/1.1\r\n" H "\r\n"},
    {400, "get /ok HTTP/1.1\r\n" H "\r\n"},
    {400, "NONSENSE /ok HTTP/1.1\r\n" H "\r\n"},
    {400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
    {400, "\x16\x03\x01\x02"},
    /* header names */
    {400, "GET /ok HTTP/1.1\r\n" H "X : a\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "X(: a\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H ": a\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "no colon\r\n\r\n"},
    /* Host */
    {400, "GET /ok HTTP/1.1\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost:\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H H "\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "Host: evil.example\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: local host\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: localhost:80a\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: user@localhost\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: [::1\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\nHost: localhost/evil\r\n\r\n"},
    {400, "GET http:///ok HTTP/1.1\r\n" H "\r\n"},
    {400, "GET http://localhost HTTP/1.1\r\n" H "\r\n"},
    {400, "GET http://u@localhost/ok HTTP/1.1\r\n" H "\r\n"},
    {403, "GET /ok HTTP/1.1\r\nHost: evil.example\r\n\r\n"},
    {403, "GET /none HTTP/1.1\r\nHost: evil.example\r\n\r\n"},
    {403, "GET http://evil.example/ok HTTP/1.1\r\n" H "\r\n"},
    {403, "GET /ok HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n"},
    {403, "GET /ok HTTP/1.1\r\n" H "Origin: https://evil.example\r\n\r\n"},
    {403, "GET /ok HTTP/1.1\r\n" H "Origin: null\r\n\r\n"},
    {403, "GET /ok HTTP/1.1\r\n" H "Origin: http://localhost.evil.example\r\n\r\n"},
    {403, "OPTIONS /echo HTTP/1.1\r\n" H "Origin: https://evil.example\r\n"
          "Access-Control-Request-Method: POST\r\n\r\n"},
    /* framing: what two parties could read in two ways */
    {400, "CONNECT /echo HTTP/1.1\r\n" H JSON "Content-Length: 2\r\n\r\n{}"},
    {400, "GET /ok HTTP/1.1\r\n" H "X-Slate-Session: a\r\nX-Slate-Session: b\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "Idempotency-Key: a\r\nidempotency-key: a\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "If-Match: \"a\"\r\nIf-Match: \"b\"\r\n\r\n"},
    {400, "GET /ok HTTP/1.1\r\n" H "Authorization: Bearer a\r\nAuthorization: x\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON JSON "Content-Length: 2\r\n\r\n{}"},
    {400, "CONNECT /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} "},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2, 2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: +2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: -2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 0x2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 2 2\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length:\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Content-Length: 99999999999999999999\r\n\r\n{}"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON
          "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON
          "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON
          "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON
          "Transfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400,
     "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n"
          "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
    {400, "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding:\r\n\r\n"},
    {400,
     "POST /echo HTTP/1.0\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
};

/* The bodies of requests with Transfer-Encoding: chunked. */
static const char *const bad_chunks[] = {
    "2\n{}\n0\n\n",
    "2\r\n{}0\r\n\r\n",
    "2\r\n{}XX0\r\n\r\n",
    "2\r\n{}\n0\r\n\r\n",
    "2\r{}\r\n0\r\n\r\n",
    "2\rX{}\r\n0\r\n\r\n",
    " 2\r\n{}\r\n0\r\n\r\n",
    "2 \r\n{}\r\n0\r\n\r\n",
    "+2\r\n{}\r\n0\r\n\r\n",
    "-2\r\n{}\r\n0\r\n\r\n",
    "0x2\r\n{}\r\n0\r\n\r\n",
    "g\r\n{}\r\n0\r\n\r\n",
    "\r\n\r\n",
    ";x\r\n\r\n",
    "10000000000000002\r\n{}\r\n0\r\n\r\n",
    "2\r\n{}\r\n0\r\nbad trailer\r\n\r\n",
    "2;x\n\r\n{}\r\n0\r\n\r\n",
    "2;x\x01\r\n{}\r\n0\r\n\r\n",
    "0\n\r\n",
};

static void expect_refusal(const char *request, int status)
{
    char with[4096];
    wired.handled = 0;
    snprintf(with, sizeof with, "%s" GET_OK, request);
    const char *a = wired_ask(with);
    if (wired_status(a) != status || !strstr(a, "{\"error\":{\"message\":\""))
        fail_msg("%s\nmust be answered with %d, and was with\n%s", request, status, a);
    /* A request whose end is in doubt ends the connection: nothing behind it is read. */
    if (status == 400 && (wired.handled != 0 || !strstr(a, "\r\nConnection: close\r\n")))
        fail_msg("%s\nmust close the connection, but\n%s", request, a);
}

static void test_bad_requests(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refusal(bad[i].request, bad[i].status);
    for (size_t i = 0; i < sizeof bad_chunks / sizeof *bad_chunks; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "POST /echo HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n%s",
                 bad_chunks[i]);
        expect_refusal(text, 400);
    }
    static const char nul[] = "GET /ok HTTP/1.1\r\n" H "X: a\0b\r\n\r\n";
    assert_int_equal(wired_status(wired_ask_bytes(nul, sizeof nul - 1)), 400);
    assert_non_null(strstr(wired_ask(bad[0].request), "does not end with CR LF"));
}

/* Refused for what they ask, not for how: the connection stays, the body is passed over. */
static void test_refusals_keep_the_connection(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *request, *header;
    } rows[] = {
        {404, "GET /none HTTP/1.1\r\n" H "\r\n", ""},
        {404, "POST /none HTTP/1.1\r\n" H JSON "Content-Length: 2\r\n\r\n{}", ""},
        {405, "PUT /echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", "Allow: POST, OPTIONS\r\n"},
        {405, "DELETE /ok HTTP/1.1\r\n" H "\r\n", "Allow: GET, HEAD, POST, OPTIONS\r\n"},
        {405, "TRACE /ok HTTP/1.1\r\n" H "\r\n", "Allow: GET, HEAD, POST, OPTIONS\r\n"},
        {405, "HEAD /echo HTTP/1.1\r\n" H "\r\n", "Allow: POST, OPTIONS\r\n"},
        {415, "POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", ""},
        {415, "POST /echo HTTP/1.1\r\n" H "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
         ""},
        {415,
         "POST /echo HTTP/1.1\r\n" H
         "Content-Type: application/jsonx\r\nContent-Length: 2\r\n\r\n{}",
         ""},
        {415,
         "POST /echo HTTP/1.1\r\n" H JSON "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
         ""},
        {417, "POST /echo HTTP/1.1\r\n" H JSON "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", ""},
        {204, "OPTIONS /ok HTTP/1.1\r\n" H "\r\n", "Allow: GET, HEAD, POST, OPTIONS\r\n"},
        {204, "OPTIONS * HTTP/1.1\r\n" H "\r\n", "Allow: OPTIONS\r\n"},
        {404, "OPTIONS /none HTTP/1.1\r\n" H "\r\n", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s" GET_OK, rows[i].request);
        wired.handled = 0;
        const char *a = wired_ask(text);
        if (wired_status(a) != rows[i].status || !strstr(a, rows[i].header) || wired.handled != 1)
            fail_msg("%s\nmust be a %d with '%s' and keep the connection, but\n%s", rows[i].request,
                     rows[i].status, rows[i].header, a);
    }
}

static void test_chunked_refusal_closes_at_once(void **state)
{
    (void)state;
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w,
              "POST /none HTTP/1.1\r\n" H JSON "Transfer-Encoding: chunked\r\n\r\n2\r\n{}");
    assert_memory_equal(wired.w.out, "HTTP/1.1 404 ", 13);
    assert_non_null(strstr(wired.w.out, "\r\nConnection: close\r\n"));
    assert_true(wired.w.shut); /* half closed, so that the answer survives what is still coming */
    assert_false(wired.w.closed);
    wire_puts(&wired.w, "\r\n2\r\n{}");
    assert_false(wired.w.closed);
    sl_conn_eof(wired.w.conn);
    assert_true(wired.w.closed);
    wire_close(&wired.w);
}

static void test_lingering_ends(void **state)
{
    (void)state;
    static char flood[1000];
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "BAD\r\n\r\n");
    assert_true(wired.w.shut);
    wire_clock(&wired.w, 1999);
    assert_false(wired.w.closed);
    wire_clock(&wired.w, 1);
    assert_true(wired.w.closed);
    wire_close(&wired.w);
    wire_open(&wired.w, &wired.env);
    wire_puts(&wired.w, "BAD\r\n\r\n");
    for (int i = 0; i < 1100 && !wired.w.closed; i++)
        wire_feed(&wired.w, flood, sizeof flood);
    assert_true(wired.w.closed);
    wire_close(&wired.w);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, wired_setup, wired_teardown)
    const struct CMUnitTest tests[] = {
        T(test_good_requests),
        T(test_split_at_every_byte),
        T(test_bad_requests),
        T(test_refusals_keep_the_connection),
        T(test_chunked_refusal_closes_at_once),
        T(test_lingering_ends),
    };
    sl_log_setup(SL_LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
