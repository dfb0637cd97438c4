/* http_test.c: the program at its socket: requests, and slow and dead clients, as only real
 * connections show them. Framing, limits and deadlines to the byte and millisecond are in
 * tests/unit/conn_test.c and conn_limits_test.c; how the program is started and ended is in
 * serve_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <cmocka.h>

#include "tests/support/server.h"
#include "tests/support/tree.h"

/* Others are served while something odd goes on. */
static void expect_alive(const struct server *s)
{
    raw_expect_ask(s, GET("/livez"), 200, "ok");
}

/* --- requests --------------------------------------------------------------------------------- */

/* Its Date is of the last minute, in the one form that may be sent. */
static void expect_date(const struct raw_response *p)
{
    char date[64], same[64];
    struct tm tm = {.tm_isdst = 0};
    assert_true(raw_header(p, "Date", date, sizeof date));
    const char *end = strptime(date, "%a, %d %b %Y %H:%M:%S GMT", &tm); /* in the C locale */
    assert_true(end && !*end);
    assert_int_equal(strftime(same, sizeof same, "%a, %d %b %Y %H:%M:%S GMT", &tm), 29);
    assert_string_equal(date, same);
    assert_in_range(timegm(&tm), time(NULL) - 60, time(NULL));
}

static void test_keep_alive_and_ids(void **state)
{
    struct server *s = *state;
    struct raw *r = raw_open(s);
    char id[2][160];
    for (int i = 0; i < 2; i++) {
        raw_puts(r, GET("/livez"));
        struct raw_response *p = raw_read(r, false);
        assert_true(raw_header(p, "X-Request-Id", id[i], sizeof id[i]));
        assert_true(strlen(id[i]) > 8);
        expect_date(p);
        raw_response_free(p);
    }
    assert_string_not_equal(id[0], id[1]);
    static const struct {
        const char *sent;
        bool echoed;
    } rows[] = {{"abc-123!~", true}, {"two words", false}, {"caf\xc3\xa9", false}, {"", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char request[256];
        snprintf(request, sizeof request, "GET /none HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n",
                 rows[i].sent);
        raw_puts(r, request);
        struct raw_response *p = raw_read(r, false);
        assert_int_equal(p->status, 404); /* errors have one as well */
        expect_date(p);
        assert_true(raw_header(p, "x-request-id", id[0], sizeof id[0]));
        assert_int_equal(strcmp(id[0], rows[i].sent) == 0, rows[i].echoed);
        raw_response_free(p);
    }
    raw_puts(r, "GET /livez HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    raw_expect(r, 200);
    assert_true(raw_wait_closed(r));
    raw_close(r);
}

static void test_pipelining_over_a_slow_one(void **state)
{
    struct server *s = *state;
    struct raw *r = raw_open(s);
    raw_puts(r, GET("/livez") "POST /v1/generate HTTP/1.1\r\n" HOST
                              "Content-Type: application/json\r\nContent-Length: 34\r\n\r\n"
                              "{\"prompt\":\"Once\",\"max_tokens\":10 }" GET(
                                  "/none") "HEAD /livez HTTP/1.1\r\n" HOST "\r\n" GET("/readyz"));
    raw_expect(r, 200);
    struct raw_response *p = raw_read(r, false);
    assert_int_equal(p->status, 200);
    assert_non_null(strstr(p->body, "\"finish_reason\""));
    raw_response_free(p);
    raw_expect(r, 404);
    p = raw_read(r, true);
    assert_int_equal(p->status, 200);
    raw_response_free(p);
    raw_expect(r, 200);
    raw_close(r);
}

static void test_byte_by_byte(void **state)
{
    struct server *s = *state;
    static const char request[] =
        "POST /v1/tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"text\":\r\n9;x=y\r\n \"Once\" }\r\n0\r\n\r\n";
    struct raw *r = raw_open(s);
    for (size_t i = 0; i < sizeof request - 1; i++) {
        raw_send(r, request + i, 1);
        if (i % 16 == 0)
            expect_alive(s); /* the loop has come round in between */
    }
    struct raw_response *p = raw_read(r, false);
    assert_int_equal(p->status, 200);
    assert_non_null(strstr(p->body, "\"tokens\":["));
    raw_response_free(p);
    raw_close(r);
}

/* One without a value takes nothing of the next one. */
static void test_empty_headers(void **state)
{
    static const char *const empty[] = {"X-Empty:\r\n", "X-Empty: \t \r\n", "X-A:\r\nX-B:\r\n"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        char request[256];
        snprintf(request, sizeof request,
                 "POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\n%s"
                 "Content-Type: application/json\r\nContent-Length: 12\r\n"
                 "Connection: close\r\n\r\n{\"text\":\"a\"}",
                 empty[i]);
        raw_expect_ask(*state, request, 200, "\"tokens\"");
    }
}

static void test_100_continue(void **state)
{
    struct server *s = *state;
    struct raw *r = raw_open(s);
    raw_puts(r, "POST /v1/tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n");
    raw_expect(r, 100);
    raw_puts(r, "{\"text\":\"Once\"}");
    raw_expect(r, 200);
    /* Too large: refused with the answer, not asked for. */
    raw_puts(r, "POST /v1/tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    raw_expect(r, 413);
    assert_true(raw_wait_closed(r));
    raw_close(r);
}

/* An answer given before the body was read arrives, although the client goes on sending. */
static void test_an_early_answer_survives(void **state)
{
    struct server *s = *state;
    static char block[65536];
    struct raw *r = raw_open(s);
    raw_puts(r, "POST /v1/tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                "Content-Length: 99999999\r\n\r\n");
    for (int i = 0; i < 8; i++)
        if (raw_send_some(r, block, sizeof block) < 0)
            break;
    raw_expect(r, 413);
    raw_close(r);
}

/* Probes refuse nobody; their answers are for the pages that may read the others'. */
static void expect_probes_for_pages(const struct server *s)
{
    static const char *const path[] = {"/livez", "/readyz"};
    for (size_t i = 0; i < 2; i++) {
        char request[256];
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: pod\r\nOrigin: %s\r\n\r\n",
                 path[i], "https://app.example");
        raw_expect_ask(s, request, 200,
                       "Access-Control-Allow-Origin: https://app.example\r\nVary: Origin\r\n");
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: pod\r\nOrigin: %s\r\n\r\n",
                 path[i], "https://evil.example");
        struct raw_response *p = raw_ask(s, request);
        assert_int_equal(p->status, 200);
        assert_null(strstr(p->head, "Access-Control"));
        raw_response_free(p);
    }
}

static void test_hosts_and_origins(void **state)
{
    struct server *s = *state;
    raw_expect_ask(s, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "host_refused");
    raw_expect_ask(s, "GET /livez HTTP/1.1\r\nHost: pod.example\r\n\r\n", 200, "ok");
    raw_expect_ask(s, "GET /v1/models HTTP/1.1\r\n" HOST "Origin: https://evil.example\r\n\r\n",
                   403, "origin_refused");
    struct server *c =
        server_start(ARGS("--cors", "https://app.example", "--allowed-hosts", "slate.example"));
    raw_expect_ask(c, "GET /v1/models HTTP/1.1\r\nHost: slate.example\r\n\r\n", 200, "data");
    raw_expect_ask(c, "GET /v1/models HTTP/1.1\r\n" HOST "Origin: https://app.example\r\n\r\n", 200,
                   "Access-Control-Allow-Origin: https://app.example\r\nVary: Origin\r\n"
                   "Access-Control-Expose-Headers: X-Request-Id, X-Slate-Session, "
                   "X-Slate-Snapshot-Differs, ETag, Idempotent-Replayed, Location, Retry-After, "
                   "Content-Disposition\r\n");
    raw_expect_ask(c, "GET /none HTTP/1.1\r\n" HOST "Origin: https://app.example\r\n\r\n", 404,
                   "Access-Control-Allow-Origin: https://app.example\r\n");
    raw_expect_ask(c, "GET /v1/models HTTP/1.1\r\n" HOST "Origin: https://evil.example\r\n\r\n",
                   403, "--cors");
    expect_probes_for_pages(c);
    static const char preflight[] =
        "OPTIONS /v1/generate HTTP/1.1\r\n" HOST "Origin: https://%s\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization, content-type\r\n\r\n";
    char request[512];
    snprintf(request, sizeof request, preflight, "app.example");
    raw_expect_ask(c, request, 204, "Access-Control-Allow-Methods: POST, OPTIONS\r\n");
    raw_expect_ask(c, request, 204,
                   "Access-Control-Allow-Headers: authorization, content-type\r\n");
    snprintf(request, sizeof request, preflight, "evil.example");
    raw_expect_ask(c, request, 403, "origin_refused");
    server_stop(c);
}

/* --- slow and dead clients -------------------------------------------------------------------- */

static void test_deadlines(void **state)
{
    (void)state;
    struct server *s = server_start_loading(
        ARGS("--header-timeout", "150ms", "--body-timeout", "150ms", "--idle-timeout", "150ms"));
    struct raw *silent = raw_open(s), *head = raw_open(s), *body = raw_open(s), *idle = raw_open(s);
    raw_puts(head, "GET /livez HT");
    raw_puts(body, "POST /v1/generate HTTP/1.1\r\n" HOST
                   "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{");
    raw_puts(idle, GET("/livez"));
    raw_expect(idle, 200);
    expect_alive(s);
    assert_true(raw_wait_closed(silent));
    raw_expect(head, 408);
    assert_true(raw_wait_closed(head));
    raw_expect(body, 408);
    assert_true(raw_wait_closed(body));
    assert_true(raw_wait_closed(idle));
    raw_close(silent);
    raw_close(head);
    raw_close(body);
    raw_close(idle);
    server_stop(s);
}

/* Where everybody is being answered, one more is refused. */
static void test_more_connections_than_allowed(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--max-connections", "2"));
    struct raw *a = raw_open(s), *b = raw_open(s);
    raw_long_stream(a);
    raw_wait_text(a, "data: ");
    raw_long_stream(b);
    raw_wait_text(b, "data: ");
    char id[5][160];
    for (int i = 0; i < 5; i++) {
        struct raw *c = raw_open(s);
        raw_puts(c, GET("/livez"));
        struct raw_response *p = raw_read(c, false);
        assert_int_equal(p->status, 503);
        assert_non_null(strstr(p->body, "\"code\":\"server_full\""));
        assert_non_null(strstr(p->head, "\r\nRetry-After: 1\r\n"));
        assert_true(raw_header(p, "X-Request-Id", id[i], sizeof id[i]) && strlen(id[i]) > 8);
        assert_true(i == 0 || strcmp(id[i], id[i - 1]) != 0);
        expect_date(p);
        raw_response_free(p);
        raw_close(c);
    }
    raw_close(a); /* its place is free once the server has seen the end */
    server_wait_log(s, "request aborted");
    expect_alive(s);
    raw_close(b);
    server_stop(s);
}

/* The usual soft limit of files is no limit of connections. */
static void test_many_connections(void **state)
{
    (void)state;
    enum { MANY = 150 };
    struct rlimit old, low;
    struct raw *r[MANY];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){.rlim_cur = 64, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct server *s = server_start_loading(ARGS("--max-connections", "200"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    for (size_t i = 0; i < MANY; i++) {
        r[i] = raw_open(s);
        raw_puts(r[i], GET("/livez"));
    }
    for (size_t i = 0; i < MANY; i++) {
        raw_expect(r[i], 200);
        raw_close(r[i]);
    }
    server_stop(s);
}

/* A client that reads nothing is cut off after --write-timeout; nobody waits for it. Over a unix
 * socket, whose buffers are small. */
static void test_a_client_that_does_not_read(void **state)
{
    (void)state;
    char folder[] = "/tmp/slate-http-XXXXXX", listen[64];
    assert_non_null(mkdtemp(folder));
    snprintf(listen, sizeof listen, "unix:%s/socket", folder);
    struct server *s =
        server_start(ARGS("--listen", listen, "--write-timeout", "300ms", "--write-high", "16KiB",
                          "--write-low", "4KiB", "--log-level", "debug"));
    struct raw *stream = raw_open(s), *many = raw_open(s);
    raw_long_stream(stream);
    for (int i = 0; i < 1000; i++) /* answers of some 10 KB each */
        if (raw_send_some(many, GET("/metrics"), strlen(GET("/metrics"))) <= 0)
            break;
    expect_alive(s);
    server_wait_log_times(s, "\"connection timed out\" option=write-timeout", 2);
    server_wait_log(s, "request aborted");
    expect_alive(s);
    raw_close(stream);
    raw_close(many);
    server_stop(s);
    remove_tree(folder);
}

static void test_clients_that_go_away(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--read-ahead", "4KiB"));
    static const char queued[] = GET("/livez");
    for (int how = 0; how < 4; how++) {
        struct raw *r = raw_open(s);
        raw_long_stream(r);
        raw_wait_text(r, "data: ");
        struct linger hard = {.l_onoff = 1};
        if (how == 0)
            assert_int_equal(shutdown(r->fd, SHUT_WR), 0); /* half closed counts as gone */
        if (how == 1)                                      /* a reset */
            assert_int_equal(setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
        if (how == 2) /* with requests queued */
            raw_puts(r, queued);
        if (how == 3) { /* with so many that the server has stopped reading */
            for (int i = 0; i < 500; i++)
                if (raw_send_some(r, queued, strlen(queued)) <= 0)
                    break;
            expect_alive(s);
        }
        if (how != 0)
            raw_close(r);
        server_wait_log_times(s, "request aborted", (unsigned)how + 1);
        if (how == 0)
            raw_close(r);
    }
    for (bool running = true; running;) { /* the engine drops the turn within a step */
        struct raw_response *p = raw_ask(s, GET("/metrics"));
        running = !strstr(p->body, "\nslate_requests_running 0\n");
        raw_response_free(p);
    }
    raw_expect_ask(s, GET("/metrics"), 200, "\nslate_http_requests_aborted_total 4\n");
    server_stop(s);
}

/* --- the lot ---------------------------------------------------------------------------------- */

static int start_shared(void **state)
{
    *state = server_start(ARGS("--log-level", "info"));
    return 0;
}

static int stop_shared(void **state)
{
    server_stop(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_alive_and_ids),
        cmocka_unit_test(test_pipelining_over_a_slow_one),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_empty_headers),
        cmocka_unit_test(test_100_continue),
        cmocka_unit_test(test_an_early_answer_survives),
        cmocka_unit_test(test_hosts_and_origins),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_more_connections_than_allowed),
        cmocka_unit_test(test_many_connections),
        cmocka_unit_test(test_a_client_that_does_not_read),
        cmocka_unit_test(test_clients_that_go_away),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}
