/* quotas_test.c: how many sessions a tenant may have and how many turns may run, with every kind of
 * store, over one server and over two: what is over is a 429 that names the quota, whatever comes
 * at once; what is given back can be used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/key_file.h"
#include "tests/support/quotas.h"

enum { AT_ONCE = 12 };

/* Asks until it is made: what has expired makes room, if not at once. */
static void until_made(const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    while (!made_or_over(post(quotas.api.client, "/v1/sessions", "{'id':'%s'}", id), "sessions"))
        if (client_now_ms() > deadline)
            fail_msg("nothing expires");
}

/* A prompt that is refused only when the turn has begun. */
static const char *too_long(void)
{
    static char text[1101];
    memset(text, 'l', sizeof text - 1);
    return text;
}

/* --- sessions ----------------------------------------------------------------------------------*/

static void test_sessions(void **state)
{
    (void)state;
    quotas_start("sessions=3");
    struct client *c = quotas.api.client;
    made(post(c, "/v1/sessions", "{'id':'s1','prompt':'Once'}"));
    struct bytes b = snapshot_get(c, "s1", "");
    made(post(c, session_path("s1", "/fork"), "{'id':'s2'}"));
    made(snapshot_put(c, "s3", b.p, b.n, NULL));
    over(post(c, "/v1/sessions", "{'id':'s4'}"), "sessions", 0);
    over(post(c, "/v1/sessions", "{'id':'s4','prompt':'a'}"), "sessions", 0);
    over(post(c, "/v1/sessions", "{'id':'s4','from':'s1'}"), "sessions", 0);
    over(post(c, session_path("s1", "/fork"), "{'id':'s4'}"), "sessions", 0);
    over(snapshot_put(c, "s4", b.p, b.n, NULL), "sessions", 0);
    expect_error(get(c, session_path("s4", "")), 404, "session_not_found", "session");
    assert_int_equal(listed(), 3);
    /* What is there goes on, another tenant is not concerned, and what keeps nothing is free. */
    reply_free(
        expect(post(c, "/v1/generate", "{'session':'s1','prompt':'x','max_tokens':2}"), 200));
    reply_free(expect(snapshot_put(c, "s3", b.p, b.n, "If-Match: *"), 200));
    reply_free(
        expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2,'return_state':true}"), 200));
    client_header(c, KEY_B);
    for (int i = 0; i < 4; i++)
        made(post(c, "/v1/sessions", "{}"));
    client_header(c, KEY_A);
    /* A deletion gives one back, a failure does not take one. */
    gone("s2");
    expect_error(post(c, "/v1/sessions", "{'id':'s4','prompt':'%s'}", too_long()), 413, "too_large",
                 "prompt");
    expect_error(snapshot_put(c, "s4", b.p, b.n / 2, NULL), 422, "snapshot_corrupt", NULL);
    expect_error(post(c, "/v1/sessions", "{'id':'s1'}"), 409, "session_exists", "id");
    made(post(c, "/v1/sessions", "{'id':'s4'}"));
    over(post(c, "/v1/sessions", "{'id':'s5'}"), "sessions", 0);
    /* And so does the end of one's time. */
    reply_free(expect(patch(c, session_path("s4", ""), "{'ttl_s':1}"), 200));
    until_made("s5");
    expect_error(get(c, session_path("s4", "")), 404, "session_not_found", "session");
    over(post(c, "/v1/sessions", "{'id':'s6'}"), "sessions", 0);
    assert_true(figure("slate_tenant_refused_total{tenant=\"a\",quota=\"sessions\"}") >= 8);
    sl_free(b.p);
}

static void test_sessions_at_once(void **state)
{
    (void)state;
    quotas_start("sessions=5");
    struct client *c = quotas.api.client;
    struct call *k[AT_ONCE];
    for (int round = 0; round < 3; round++) {
        size_t n_made = 0;
        for (int i = 0; i < AT_ONCE; i++)
            k[i] = call_post(c, "/v1/sessions",
                             i % 2 ? "{'id':'r%d','prompt':'a'}" : "{'id':'r%d'}", i);
        for (int i = 0; i < AT_ONCE; i++)
            n_made += made_or_over(call_finish(k[i]), "sessions");
        assert_int_equal(n_made, 5);
        assert_int_equal(listed(), 5);
        for (int i = 0; i < AT_ONCE; i++)
            reply_free(del(c, session_path((char[]){'r', (char)('0' + i), '\0'}, "")));
        reply_free(del(c, session_path("r10", "")));
        reply_free(del(c, session_path("r11", "")));
        assert_int_equal(listed(), 0);
    }
}

static void test_fleet(void **state)
{
    (void)state;
    quotas_start("sessions=5");
    char store[100];
    struct api other;
    snprintf(store, sizeof store, "--store=%s", quotas.redis.spec);
    api_start(&other, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                            "--api-keys", key_file, "--lease=3s",
                                            "--store-timeout=1s", store, NULL});
    client_header(other.client, KEY_A);
    struct call *k[2][AT_ONCE];
    size_t n_made = 0;
    for (int i = 0; i < AT_ONCE; i++)
        for (int j = 0; j < 2; j++)
            k[j][i] = call_post(j ? other.client : quotas.api.client, "/v1/sessions",
                                i % 2 ? "{'id':'f%d-%d','prompt':'a'}" : "{'id':'f%d-%d'}", i, j);
    for (int i = 0; i < AT_ONCE; i++)
        for (int j = 0; j < 2; j++)
            n_made += made_or_over(call_finish(k[j][i]), "sessions");
    assert_int_equal(n_made, 5);
    assert_int_equal(listed(), 5);
    /* One that ends there makes room here. */
    struct reply *r = expect(get(quotas.api.client, "/v1/sessions?limit=1"), 200);
    char id[40];
    snprintf(id, sizeof id, "%s", str_at(r->json, "data.0.id"));
    reply_free(r);
    reply_free(expect(patch(other.client, session_path(id, ""), "{'ttl_s':1}"), 200));
    until_made("late");
    assert_int_equal(listed(), 5);
    api_stop(&other);
}

/* --- turns -------------------------------------------------------------------------------------*/

static bool has_status(const struct reply *r, void *arg)
{
    (void)arg;
    return r->status != 0;
}

static struct call *endless(void)
{
    return stream_start(quotas.api.client,
                        "'prompt':'Tell','max_tokens':1000000,'ignore_eos':true");
}

static void test_running(void **state)
{
    (void)state;
    quotas_start("running=2");
    struct client *c = quotas.api.client;
    struct call *k[6];
    int n_running = 0;
    made(post(c, "/v1/sessions", "{'id':'r1'}"));
    for (int i = 0; i < 6; i++)
        k[i] = endless();
    for (int i = 0; i < 6; i++) {
        call_until(k[i], has_status, NULL);
        n_running += call_reply(k[i])->status == 200;
        if (call_reply(k[i])->status == 200)
            continue;
        over(call_finish(k[i]), "running", 1);
        k[i] = NULL;
    }
    assert_int_equal(n_running, 2);
    over(post(c, "/v1/generate", "{'session':'r1','prompt':'x','max_tokens':2}"), "running", 1);
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2,'return_state':true}"), "running",
         1);
    over(post(c, "/v1/completions", "{'prompt':'x','max_tokens':2}"), "running", 1);
    over(post(c, "/v1/chat/completions", "{'messages':[{'role':'user','content':'a'}]}"), "running",
         1);
    over(post(c, "/v1/sessions", "{'id':'r2','prompt':'x'}"), "running", 1);
    expect_error(get(c, session_path("r2", "")), 404, "session_not_found", "session");
    made(post(c, "/v1/sessions", "{'id':'r2'}")); /* runs nothing */
    client_header(c, KEY_B);
    reply_free(expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2}"), 200));
    client_header(c, KEY_A);
    for (int i = 0; i < 6; i++)
        if (k[i])
            call_abort(k[i]);
    until_figure("slate_tenant_requests_running{tenant=\"a\"}", 0);
    for (int i = 0; i < 4; i++) /* each is given back at its end */
        reply_free(
            expect(post(c, "/v1/generate", "{'session':'r1','prompt':'x','max_tokens':2}"), 200));
    for (int i = 0; i < 4; i++)
        expect_error(post(c, "/v1/generate", "{'session':'r1','prompt':'%s'}", too_long()), 413,
                     "too_large", "prompt");
    assert_true(figure("slate_tenant_requests_running{tenant=\"a\"}") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sessions, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_sessions, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_sessions, with_redis, quotas_stop),
        cmocka_unit_test_setup_teardown(test_sessions_at_once, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_sessions_at_once, with_redis, quotas_stop),
        cmocka_unit_test_setup_teardown(test_running, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_fleet, with_redis, quotas_stop),
    };
    return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
