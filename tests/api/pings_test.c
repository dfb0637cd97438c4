/* pings_test.c: --ping-interval of streams that wait for a place in memory before their turn is
 * made: with Idempotency-Key, or with an initial_state. Nothing can be told while they wait
 * there (their headers are not known yet), but from then on they are as all others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"

static struct node node;

static struct client *client(void)
{
    return node.a.client;
}

static int start(void **state)
{
    (void)state;
    node_init(&node, "pings",
              (const char *const[]){"--sessions-in-memory=1", "--ping-interval=20ms",
                                    "--max-queued-prefill=1000000", "--max-tokens-limit=1000000",
                                    NULL});
    node_start(&node);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    node_done(&node);
    return 0;
}

static void create(const char *id)
{
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s'}", id), 201));
}

static bool has_pings(const struct reply *r, void *n)
{
    return r->n_pings >= *(const size_t *)n || r->n_events > 0;
}

static void until_pings(struct call *k, size_t n)
{
    call_until(k, has_pings, &n);
    assert_true(call_reply(k)->n_pings >= n); /* and no token came before */
}

/* A stream with much to read before its first token; more: JSON. */
static struct call *long_prompt(const char *more, const char *key)
{
    enum { N = 30000 };
    char *ids = repeated("[", "9,", N, "0]");
    size_t n = strlen(more) + strlen(ids) + 64;
    char *body = sl_malloc(n);
    assert_non_null(body);
    snprintf(body, n, "{%s,\"prompt\":%s,\"max_tokens\":1,\"stream\":true}", more, ids);
    sl_free(ids);
    struct call *k = call_start(client(), "POST", "/v1/generate", key, body, strlen(body));
    sl_free(body);
    return k;
}

/* One behind the other: who holds the only place, the one that is looked at, and one whose pings
 * tell that the interval has passed, whatever is going on. */
static void check(const char *more, const char *key)
{
    create("a");
    create("b");
    create("clock");
    struct call *holds =
        stream_start(client(), "'session':'a','prompt':'a','ignore_eos':true,'max_tokens':1000000,"
                               "'return_tokens':true");
    stream_until(holds, 2);
    struct call *k = long_prompt(more, key);
    struct call *clock = stream_start(client(), "'session':'clock','prompt':'a','max_tokens':1");
    until_pings(clock, 1);
    until_pings(clock, call_reply(clock)->n_pings + 3);
    assert_int_equal(call_reply(k)->status, 0);
    call_abort(holds);
    until_pings(k, 2);
    until_metric(client(), "slate_http_body_bytes", 0); /* understood, and none of it is kept */
    call_abort(k);
    reply_free(expect(call_finish(clock), 200));
    static const char *const id[] = {"a", "b", "clock"};
    for (size_t i = 0; i < 3; i++) {
        until_free(client(), id[i]);
        reply_free(expect(del(client(), session_path(id[i], "")), 200));
    }
}

static void test_with_a_key(void **state)
{
    (void)state;
    check("\"session\":\"b\"", "Idempotency-Key: k");
}

static void test_with_a_state_of_the_clients(void **state)
{
    (void)state;
    struct gen g;
    generate(client(), &g, "'prompt':'a','max_tokens':1,'return_state':true");
    const char *given = str_at(g.r->json, "state");
    size_t n = strlen(given) + 32;
    char *more = sl_malloc(n);
    assert_non_null(more);
    snprintf(more, n, "\"initial_state\":\"%s\"", given);
    gen_done(&g);
    check(more, NULL);
    sl_free(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_with_a_key),
        cmocka_unit_test(test_with_a_state_of_the_clients),
    };
    return cmocka_run_group_tests_name("pings", tests, start, stop);
}
