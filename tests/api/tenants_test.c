/* tenants_test.c: sessions of several tenants beside each other, and sessions without room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/api.h"

static struct api keyed, small;

static const char *path_of(const char *id, const char *rest)
{
    static char ring[16][300];
    static unsigned turn;
    char *dst = ring[turn++ % 16];
    snprintf(dst, sizeof ring[0], "/v1/sessions/%s%s", id, rest);
    return dst;
}

static void until_gone(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions?prefix=%s", id);
    for (size_t n = 1; n;) {
        struct reply *r = expect(get(c, path), 200);
        n = len_at(r->json, "data");
        reply_free(r);
        if (client_now_ms() > deadline)
            fail_msg("%s does not expire", id);
    }
}

/* --- tenants -----------------------------------------------------------------------------------*/

#define KEY_A "Authorization: Bearer key-of-tenant-a"
#define KEY_A2 "Authorization: Bearer second-key-of-a"
#define KEY_B "Authorization: Bearer key-of-tenant-b"

static char keys_path[64];

static int start_keyed(void **state)
{
    (void)state;
    snprintf(keys_path, sizeof keys_path, "/tmp/slate-keys-XXXXXX");
    int fd = mkstemp(keys_path);
    assert_true(fd >= 0);
    static const char text[] = "# two tenants\n"
                               "key-of-tenant-a a user\n"
                               "second-key-of-a a user\n"
                               "key-of-tenant-b b user\n"
                               "key-for-figures ops metrics,admin\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    api_start(&keyed, (const char *const[]){"--api-keys", keys_path, NULL});
    return 0;
}

static int stop_keyed(void **state)
{
    (void)state;
    api_stop(&keyed);
    unlink(keys_path);
    return 0;
}

static void test_tenants(void **state)
{
    (void)state;
    struct client *c = keyed.client;
    client_header(c, KEY_A);
    struct reply *r = expect(post(c, "/v1/sessions", "{'id':'mine','prompt':'a'}"), 201);
    char etag[100];
    snprintf(etag, sizeof etag, "%s", reply_header(r, "ETag"));
    reply_free(r);
    client_header(c, KEY_B);
    expect_error(get(c, path_of("mine", "")), 404, "session_not_found", "session");
    expect_error(post(c, "/v1/generate", "{'session':'mine','prompt':'a'}"), 404,
                 "session_not_found", "session");
    expect_error(post(c, "/v1/sessions", "{'from':'mine'}"), 404, "session_not_found", "session");
    expect_error(post(c, path_of("mine", "/fork"), "{}"), 404, "session_not_found", "session");
    expect_error(post(c, path_of("mine", "/cancel"), "{}"), 404, "session_not_found", "session");
    expect_error(del(c, path_of("mine", "")), 404, "session_not_found", "session");
    r = expect(get(c, "/v1/sessions"), 200);
    assert_int_equal(len_at(r->json, "data"), 0);
    reply_free(r);
    r = expect(post(c, "/v1/sessions", "{'id':'mine'}"), 201); /* its own of that name */
    assert_string_not_equal(reply_header(r, "ETag"), etag);
    reply_free(r);
    client_header(c, KEY_A2); /* another key of the same tenant */
    r = expect(get(c, path_of("mine", "")), 200);
    assert_int_equal(int_at(r->json, "version"), 1);
    assert_string_equal(reply_header(r, "ETag"), etag);
    reply_free(r);
    client_header(c, KEY_B);
    reply_free(expect(del(c, path_of("mine", "")), 200));
    client_header(c, KEY_A);
    reply_free(expect(get(c, path_of("mine", "")), 200));
    /* Without a key, with a wrong one, without the role. */
    client_header(c, NULL);
    expect_error(get(c, path_of("mine", "")), 401, "invalid_api_key", NULL);
    expect_error(post(c, "/v1/generate", "{'session':'mine','prompt':'a'}"), 401, "invalid_api_key",
                 NULL);
    client_header(c, "Authorization: Bearer key-of-tenant-c");
    expect_error(get(c, "/v1/models"), 401, "invalid_api_key", NULL);
    client_header(c, "Authorization: Bearer key-for-figures");
    expect_error(get(c, path_of("mine", "")), 403, "forbidden", NULL);
    reply_free(expect(get(c, "/metrics"), 200));
    client_header(c, KEY_A);
    expect_error(get(c, "/metrics"), 403, "forbidden", NULL);
    expect_error(post(c, "/v1/admin/drain", "{}"), 403, "forbidden", NULL);
    client_header(c, NULL);
    reply_free(expect(get(c, "/livez"), 200));
    reply_free(expect(get(c, "/readyz"), 200));
}

/* --- room --------------------------------------------------------------------------------------*/

static int start_small(void **state)
{
    (void)state;
    api_start(&small, (const char *const[]){"--sessions-in-memory=3", "--max-running=1", NULL});
    return 0;
}

static int stop_small(void **state)
{
    (void)state;
    api_stop(&small);
    return 0;
}

static void expect_full(struct reply *r)
{
    const char *after = reply_header(r, "Retry-After");
    assert_non_null(after);
    assert_true(strtol(after, NULL, 10) >= 1);
    expect_error(r, 503, "sessions_full", NULL);
}

static void test_full(void **state)
{
    (void)state;
    struct client *c = small.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'a','prompt':'once'}"), 201));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'b','prompt':'upon'}"), 201));
    reply_free(expect(post(c, path_of("b", "/fork"), "{'id':'c'}"), 201));
    expect_full(post(c, "/v1/sessions", "{}"));
    expect_full(post(c, "/v1/sessions", "{'prompt':'x'}"));
    expect_full(post(c, path_of("b", "/fork"), "{}"));
    expect_full(post(c, "/v1/sessions", "{'from':'b'}"));
    /* Those that are there go on, and so does what keeps nothing. */
    for (int i = 0; i < 4; i++) {
        struct gen g;
        generate(c, &g, "'session':'c','prompt':' a','max_tokens':2,'temperature':0");
        gen_done(&g);
        generate(c, &g, "'prompt':' a','max_tokens':2,'temperature':0");
        gen_done(&g);
    }
    reply_free(expect(del(c, path_of("c", "")), 200));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'d','prompt':'x'}"), 201));
    /* Room that an expired one leaves is found. */
    reply_free(expect(patch(c, path_of("a", ""), "{'ttl_s':1}"), 200));
    until_gone(c, "a");
    reply_free(expect(post(c, "/v1/sessions", "{'id':'e','prompt':'x'}"), 201));
    expect_full(post(c, "/v1/sessions", "{'id':'f'}"));
    assert_true(metric(c, "slate_sessions") == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tenants, start_keyed, stop_keyed),
        cmocka_unit_test_setup_teardown(test_full, start_small, stop_small),
    };
    return cmocka_run_group_tests_name("tenants", tests, NULL, NULL);
}
