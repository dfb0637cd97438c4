/* kept_bytes_test.c: what a session keeps besides its state, earlier versions, checkpoints with
 * names and its transcript: told, counted for its tenant's quota, and given back, with each kind of
 * store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/checkpoints.h"

static void until_gone(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 200; status != 404;) {
        struct reply *r = get(c, session_path(id, ""));
        status = r->status;
        reply_free(r);
        assert_true(client_now_ms() < deadline);
    }
}

/* What is kept is counted, is refused where it is too much, and is given back. */
static void bytes_of(const char *kind)
{
    char quota[64];
    struct client *c = store_start(kind, NULL);
    make(c, "it");
    int64_t state = state_bytes(c, "it");
    assert_int_equal(kept_bytes(c, "it"), 0);
    store_stop();
    snprintf(quota, sizeof quota, "--tenant-bytes=%lld", (long long)(3 * state + state / 2));
    c = store_start(kind, (const char *const[]){quota, NULL});
    make(c, "it");
    live(c, "it", 2);
    reply_free(expect(name_it(c, "it", "a"), 201));
    assert_int_equal(kept_bytes(c, "it"), state);
    reply_free(expect(name_it(c, "it", "a"), 201)); /* it has it */
    assert_int_equal(kept_bytes(c, "it"), state);
    reply_free(expect(name_it(c, "it", "b"), 201));
    expect_error(name_it(c, "it", "c"), 429, "quota_exceeded", "bytes");
    expect_error(post(c, "/v1/sessions", "{'id':'more'}"), 429, "quota_exceeded", "bytes");
    assert_int_equal(kept_bytes(c, "it"), 2 * state);
    assert_int_equal(names_at(c, "it", 2), 2);
    if (store_survives(kind)) {
        node_kill(&store_node);
        node_start(&store_node);
        c = store_node.a.client;
        assert_int_equal(kept_bytes(c, "it"), 2 * state);
        expect_error(name_it(c, "it", "c"), 429, "quota_exceeded", "bytes");
    }
    reply_free(expect(unname(c, "it", "a"), 200));
    make(c, "more");
    expect_error(name_it(c, "more", "c"), 429, "quota_exceeded", "bytes");
    live(c, "it", 3); /* which leaves an earlier snapshot for the other name */
    assert_in_range(kept_bytes(c, "it"), state, state + 4096);
    reply_free(expect(unname(c, "it", "b"), 200));
    assert_int_equal(kept_bytes(c, "it"), 0);
    reply_free(expect(name_it(c, "it", "a"), 201));
    reply_free(expect(del(c, session_path("it", "")), 200));
    make(c, "it");
    make(c, "third");
    expect_error(post(c, "/v1/sessions", "{'id':'fourth'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(del(c, session_path("third", "")), 200));
    reply_free(expect(name_it(c, "it", "z"), 201));
    expect_error(post(c, "/v1/sessions", "{'id':'fourth'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(patch(c, session_path("it", ""), "{'ttl_s':1}"), 200));
    until_gone(c, "it"); /* when its time is over all of it is given back, too */
    make(c, "fourth");
    make(c, "fifth");
    expect_error(post(c, "/v1/sessions", "{'id':'sixth'}"), 429, "quota_exceeded", "bytes");
    store_stop();
}

static void test_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++)
        bytes_of(store_kinds[i]);
}

/* What --keep-turns and --keep-transcript keep counts, and refuses no turn; then nothing new. */
static void options_of(const char *kind)
{
    char quota[64];
    struct client *c = store_start(kind, NULL);
    make(c, "it");
    int64_t state = state_bytes(c, "it"), before = 0;
    store_stop();
    snprintf(quota, sizeof quota, "--tenant-bytes=%lld", (long long)(2 * state + state / 2));
    c = store_start(kind,
                    (const char *const[]){quota, "--keep-turns=3", "--keep-transcript", NULL});
    make(c, "it");
    make(c, "other");
    live(c, "it", 2);
    struct reply *r = expect(session_get(c, "it"), 200);
    before = int_at(r->json, "kept_bytes");
    assert_true(before >= 4 * int_at(r->json, "tokens_seen"));
    reply_free(r);
    live(c, "it", 8);
    assert_true(kept_bytes(c, "it") > before && kept_bytes(c, "it") >= 2 * state);
    reply_free(expect(del(c, session_path("other", "")), 200));
    expect_error(post(c, "/v1/sessions", "{'id':'other'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(del(c, session_path("it", "")), 200));
    make(c, "it");
    make(c, "other");
    store_stop();
}

static void test_what_options_keep(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++)
        options_of(store_kinds[i]);
}

static void test_metrics(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        struct client *c = store_start(store_kinds[i], NULL);
        make(c, "it");
        live(c, "it", 1);
        assert_int_equal(metric(c, "slate_sessions_kept_bytes"), 0);
        reply_free(expect(name_it(c, "it", "a"), 201));
        make(c, "other");
        reply_free(expect(name_it(c, "other", "a"), 201));
        double two = (double)(2 * state_bytes(c, "it"));
        until_metric(c, "slate_sessions_kept_bytes", two); /* of Redis they come with its sweeps */
        if (store_survives(store_kinds[i])) {
            node_kill(&store_node);
            node_start(&store_node);
            c = store_node.a.client;
            until_metric(c, "slate_sessions_kept_bytes", two);
        }
        reply_free(expect(unname(c, "it", "a"), 200));
        reply_free(expect(del(c, session_path("other", "")), 200));
        until_metric(c, "slate_sessions_kept_bytes", 0);
        store_stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_what_options_keep),
        cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, store_abandon);
}
