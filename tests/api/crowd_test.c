/* crowd_test.c: more clients than there are places: who is let in, and who has to go; and who has
 * gone. That honest clients keep their throughput meanwhile is in hostile_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/client.h"
#include "tests/support/server.h"
#include "tests/support/tree.h"

/* The one that has waited longest for its client goes: silent, in a head, in a body or between two
 * requests. One that is being answered stays. */
static void test_newcomers_take_the_place_of_who_waits(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--max-connections", "5"));
    struct raw *r[5];
    for (int i = 0; i < 5; i++)
        r[i] = raw_open(s);
    raw_long_stream(r[0]);
    raw_wait_text(r[0], "data: ");
    raw_puts(r[4], GET("/livez"));
    raw_expect(r[4], 200); /* moved on: now the last of them */
    raw_puts(r[2], "GET /livez HTTP/1.1\r\nHos");
    raw_puts(r[3], "POST /v1/generate HTTP/1.1\r\n" HOST
                   "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{");
    for (bool come = false; !come;) { /* what was sent has been read */
        raw_puts(r[4], GET("/metrics"));
        struct raw_response *p = raw_read(r[4], false);
        come = strstr(p->body, "\nslate_http_body_bytes 4096\n") != NULL;
        raw_response_free(p);
    }
    struct raw *later[4];
    for (int i = 0; i < 4; i++) {
        later[i] = raw_open(s);
        raw_puts(later[i], GET("/livez"));
        raw_expect(later[i], 200);
        if (i == 1 || i == 2) /* a part of a request had come: its client is told */
            raw_expect(r[i + 1], 503);
        (void)raw_wait_closed(r[i + 1]);
    }
    raw_expect_ask(s, GET("/metrics"), 200, "\nslate_http_connections_shed_total 5\n");
    raw_wait_text(r[0], "data: ");
    for (int i = 0; i < 5; i++)
        raw_close(r[i]);
    for (int i = 0; i < 4; i++)
        raw_close(later[i]);
    server_stop(s);
}

/* What waits for clients that do not read is bounded, all of it together: those who take the least
 * go. Who reads has all he asked for. */
static void test_unread_answers_are_bounded(void **state)
{
    (void)state;
    enum { FOES = 8, ASKED = 100, LIMIT = 2 << 20 };
    struct server *s =
        server_start(ARGS("--max-write-memory", "2MiB", "--write-high", "1MiB", "--read-ahead",
                          "16KiB", "--write-timeout", "1h", "--write-rate", "0"));
    struct raw *foe[FOES], *honest = raw_open(s);
    raw_expect_ask(s,
                   "POST /v1/sessions HTTP/1.1\r\n" HOST
                   "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"id\":\"a\"}",
                   201, "\"a\"");
    for (int i = 0; i < FOES; i++) {
        foe[i] = raw_open(s);
        for (int k = 0; k < ASKED; k++)
            raw_puts(foe[i], GET("/v1/sessions/a/snapshot"));
    }
    double shed = 0, unread = 0;
    int64_t end = client_now_ms() + CLIENT_DEADLINE_MS;
    /* Each of them holds more than a MiB. */
    while (shed < FOES - LIMIT / (1 << 20) || unread < 1 || unread > LIMIT) {
        assert_true(client_now_ms() < end);
        raw_puts(honest, GET("/v1/sessions/a/snapshot"));
        raw_expect(honest, 200);
        struct raw_response *p = raw_ask(s, GET("/metrics"));
        shed = strtod(strstr(p->body, "\nslate_http_connections_shed_total ") + 35, NULL);
        unread = strtod(strstr(p->body, "\nslate_http_unread_bytes ") + 25, NULL);
        raw_response_free(p);
    }
    for (int i = 0; i < FOES; i++)
        raw_close(foe[i]);
    raw_close(honest);
    server_stop(s);
}

/* Few descriptors, and no more to be had: fewer connections, and the store still has its own. */
static void test_few_descriptors(void **state)
{
    (void)state;
    enum { MANY = 60 };
    struct raw *r[MANY];
    char store[] = "/tmp/slate-crowd-XXXXXX", argument[64];
    assert_non_null(mkdtemp(store));
    snprintf(argument, sizeof argument, "dir:%s", store);
    server_file_limit(100);
    struct server *s = server_start(ARGS("--store", argument));
    server_file_limit(0);
    server_wait_log(s, "the limit of open files is low for --max-connections\" files=100 "
                       "connections=36");
    for (size_t i = 0; i < MANY; i++) {
        r[i] = raw_open(s);
        raw_puts(r[i], GET("/livez"));
        raw_expect(r[i], 200);
    }
    raw_expect_ask(s, GET("/metrics"), 200, "\nslate_http_connections 36\n");
    raw_expect_ask(s,
                   "POST /v1/sessions HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                   "Content-Length: 28\r\n\r\n{\"id\":\"a\",\"prompt\":\"Hello.\"}",
                   201, "\"a\"");
    raw_expect_ask(s, "POST /v1/sessions/a/pause HTTP/1.1\r\n" HOST "\r\n", 200, "store");
    for (size_t i = 0; i < MANY; i++)
        raw_close(r[i]);
    server_stop(s);
    remove_tree(store);
}

/* They send more behind a request than is read ahead, so that the server reads them no longer; that
 * they have gone is noticed all the same, and their turns end. */
static void test_who_is_not_read_is_seen_to_go(void **state)
{
    (void)state;
    enum { CLIENTS = 20, BEHIND = 64 << 10 };
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":100000,\"ignore_eos\":true,"
                               "\"logprobs\":20}";
    static char behind[BEHIND];
    char head[256];
    struct server *s = server_start(ARGS("--read-ahead", "4KiB", "--max-running", "20"));
    struct raw *r[CLIENTS];
    snprintf(head, sizeof head,
             "POST /v1/generate HTTP/1.1\r\n" HOST
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    memset(behind, '\n', sizeof behind);
    for (int i = 0; i < CLIENTS; i++) {
        r[i] = raw_open(s);
        raw_puts(r[i], head);
        raw_puts(r[i], body);
        raw_send(r[i], behind, sizeof behind);
    }
    int64_t end = client_now_ms() + CLIENT_DEADLINE_MS;
    while (raw_metric(s, "slate_requests_running") < CLIENTS)
        assert_true(client_now_ms() < end);
    for (int i = 0; i < CLIENTS; i++) { /* one by one: the others stay */
        assert_true(raw_metric(s, "slate_requests_running") == CLIENTS - i);
        raw_close(r[i]);
        while (raw_metric(s, "slate_requests_running") > CLIENTS - 1 - i)
            assert_true(client_now_ms() < end);
    }
    server_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newcomers_take_the_place_of_who_waits),
        cmocka_unit_test(test_unread_answers_are_bounded),
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_who_is_not_read_is_seen_to_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
