/* ttl_test.c: times to live, with every kind of store: the default and a session's own; that no
 * turn is cut, that what has expired is removed and not only hidden, and that times go on while no
 * server runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"
#include "tests/support/redis.h"

static struct node node;
static struct redis redis;

static int stop_dir(void **state)
{
    (void)state;
    node_done(&node);
    return 0;
}

static int stop_redis(void **state)
{
    (void)state;
    redis_done(&redis);
    return 0;
}

static void until_missing(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 200; status != 404;) {
        struct reply *r = get(c, session_path(id, ""));
        status = r->status;
        if (status == 404)
            expect_error(r, 404, "session_not_found", "session");
        else
            reply_free(expect(r, 200));
        if (client_now_ms() > deadline)
            fail_msg("%s does not expire", id);
    }
}

static int64_t ttl(struct reply *r, long status)
{
    expect(r, status);
    int64_t v = int_at(r->json, "ttl_s");
    reply_free(r);
    return v;
}

static bool is_time(const struct reply *r, void *arg)
{
    (void)r;
    return client_now_ms() >= *(const int64_t *)arg;
}

/* The default, and that no turn is cut. */
static void ttl_in(const char *store)
{
    struct api t;
    const char *options[] = {"--tokenizer=bytes",
                             "--model",
                             seeded_bytes_model(),
                             "--session-ttl=900ms",
                             "--lease=3s",
                             "--store-timeout=1s",
                             NULL,
                             NULL};
    options[6] = store;
    api_start(&t, options);
    struct client *c = t.client;
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'own','ttl_s':0,'prompt':'a'}"), 201), 0);
    struct bytes b = snapshot_get(c, "own", "");
    assert_int_equal(ttl(snapshot_put(c, "put", b.p, b.n, NULL), 201), 1);
    assert_int_equal(ttl(post(c, session_path("own", "/fork"), "{'id':'fork'}"), 201), 0);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'dflt'}"), 201), 1);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'busy'}"), 201), 1);
    struct call *k =
        stream_start(c, "'session':'busy','prompt':'Tell','max_tokens':1000000,'ignore_eos':true");
    int64_t until = client_now_ms() + 2500;
    call_until(k, is_time, &until);
    assert_false(call_reply(k)->over);
    until_missing(c, "dflt");
    until_missing(c, "put");
    reply_free(expect(session_post(c, "busy", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_int_equal(int_at(r->events[r->n_events - 1], "version"), 1); /* it was committed */
    reply_free(r);
    until_missing(c, "busy");
    until_metric(c, "slate_sessions_expired_total", 3); /* removed, not only hidden */
    until_metric(c, "slate_sessions", 2);
    /* Its name is free, and what it was is not to be had any more. */
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'busy','ttl_s':0}"), 201), 0);
    assert_int_equal(session_version(c, "busy"), 0);
    expect_error(post(c, "/v1/generate", "{'session':'put','prompt':'a'}"), 404,
                 "session_not_found", "session");
    sl_free(b.p);
    api_stop(&t);
}

static void test_ttl_memory(void **state)
{
    (void)state;
    ttl_in("--store=memory");
}

static void test_ttl_dir(void **state)
{
    (void)state;
    node_init(&node, "ttl",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), NULL});
    char store[400];
    snprintf(store, sizeof store, "--store=dir:%s", node.dir);
    ttl_in(store);
    /* Times go on while nothing runs, and are the same afterwards. */
    node_start(&node);
    struct client *c = node.a.client;
    assert_true(metric(c, "slate_sessions") == 3);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'long','prompt':'a','ttl_s':5000}"), 201),
                     5000);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'short','prompt':'a','ttl_s':1}"), 201), 1);
    struct reply *r = expect(get(c, session_path("long", "")), 200);
    int64_t end = int_at(r->json, "expires_at");
    reply_free(r);
    node_kill(&node);
    node_start(&node);
    c = node.a.client;
    r = expect(get(c, session_path("long", "")), 200);
    assert_int_equal(int_at(r->json, "expires_at"), end);
    reply_free(r);
    until_missing(c, "short");
    until_metric(c, "slate_sessions_expired_total", 1);
    node_kill(&node);
    node_start(&node);
    assert_true(metric(node.a.client, "slate_sessions") == 4);
}

static void test_ttl_redis(void **state)
{
    (void)state;
    char store[100];
    redis_init(&redis, "ttl", NULL);
    snprintf(store, sizeof store, "--store=%s", redis.spec);
    ttl_in(store);
    /* Nothing of them is left. */
    redisReply *r = redis_ask(&redis, "KEYS slate1:{default/put}*");
    assert_int_equal(r->elements, 0);
    freeReplyObject(r);
    r = redis_ask(&redis, "ZCARD slate1:all");
    assert_int_equal(r->integer, 3);
    freeReplyObject(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ttl_memory),
        cmocka_unit_test_teardown(test_ttl_dir, stop_dir),
        cmocka_unit_test_teardown(test_ttl_redis, stop_redis),
    };
    return cmocka_run_group_tests_name("ttl", tests, NULL, NULL);
}
