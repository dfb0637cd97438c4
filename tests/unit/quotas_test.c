/* quotas_test.c: tenants and what they may use: the key file's lines, counts, the bucket of tokens
 * on a clock of the test's own, figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/tenants.h"
#include "tests/support/key_file.h"

static struct sl_tenants *open_tenants(uint64_t sessions, uint64_t bytes, uint64_t running,
                                       uint64_t tokens)
{
    struct sl_tenants *ts =
        sl_tenants_open(&(struct sl_quotas){{sessions, bytes, running, tokens}});
    assert_non_null(ts);
    return ts;
}

static struct sl_tenant *tenant(struct sl_tenants *ts, const char *name)
{
    struct sl_tenant *t = sl_tenants_get(ts, name);
    assert_non_null(t);
    assert_ptr_equal(sl_tenants_find(ts, name), t);
    return t;
}

/* --- the key file ------------------------------------------------------------------------------*/

static void test_lines(void **state)
{
    (void)state;
    struct sl_keys *k;
    assert_int_equal(
        key_file_open("quota alice sessions=10 bytes=2MiB\n"
                      "alice-key-1 alice user\n"
                      "  quota\tbob  tokens-per-minute=0 running=3 bytes=7 sessions=1\r\n"
                      "bob-key-001 bob user\n"
                      "quota late running=1\n",
                      &k, NULL),
        SL_OK);
    assert_int_equal(sl_keys_count(k), 2);
    assert_string_equal(sl_keys_tenant(k, 1), "bob");
    const struct sl_quotas *a = sl_keys_quotas(k, "alice"), *b = sl_keys_quotas(k, "bob");
    assert_non_null(a);
    assert_non_null(b);
    assert_true(a->most[SL_QUOTA_SESSIONS] == 10 && a->most[SL_QUOTA_BYTES] == 2 << 20 &&
                a->most[SL_QUOTA_RUNNING] == SL_QUOTA_UNSAID &&
                a->most[SL_QUOTA_TOKENS] == SL_QUOTA_UNSAID);
    assert_true(b->most[SL_QUOTA_SESSIONS] == 1 && b->most[SL_QUOTA_BYTES] == 7 &&
                b->most[SL_QUOTA_RUNNING] == 3 && b->most[SL_QUOTA_TOKENS] == 0);
    assert_null(sl_keys_quotas(k, "carol"));
    assert_string_equal(sl_keys_keyless(k), "late");
    sl_keys_close(k);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"quota\n", "line 1: a line for quotas must be"},
        {"quota a\n", "quota TENANT NAME=VALUE"},
        {"quota a/b sessions=1\n", "quota TENANT NAME=VALUE"},
        {"key-number-1 a user\nquota a sessions\n", "line 2: a quota must be one of"},
        {"quota a sessions=\n", "a quota must be one of"},
        {"quota a sessions=-1\n", "a quota must be one of"},
        {"quota a sessions=1KiB\n", "a quota must be one of"},
        {"quota a session=1\n", "a quota must be one of"},
        {"quota a bytes=1Kib\n", "a quota must be one of"},
        {"quota a bytes=99999999999999999999999\n", "up to 2^53"},
        {"quota a running=1 running=2\n", "each once"},
        {"quota a sessions=1 bytes=1 running=1 tokens-per-minute=1 x=1\n", "quota TENANT"},
        {"quota a sessions=1\nquota a bytes=1\n", "line 2: this tenant has a line"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_keys *k;
        struct sl_error err;
        assert_int_equal(key_file_open(rows[i].text, &k, &err), SL_E_FILE_CORRUPT);
        if (!strstr(err.message, rows[i].part) || !strstr(err.message, key_file))
            fail_msg("'%s' is not in: %s", rows[i].part, err.message);
    }
}

static void test_keys_set_quotas(void **state)
{
    (void)state;
    struct sl_keys *k, *later;
    struct sl_tenants *ts = open_tenants(5, 0, 2, 100);
    assert_int_equal(key_file_open("key-number-1 a user\nquota a sessions=10 tokens-per-minute=0\n"
                                   "key-number-2 b user\n",
                                   &k, NULL),
                     SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, k, 0, NULL), SL_OK);
    struct sl_tenant *a = tenant(ts, "a"), *b = tenant(ts, "b"), *old = tenant(ts, "old");
    assert_true(a->quotas.most[SL_QUOTA_SESSIONS] == 10 && a->quotas.most[SL_QUOTA_RUNNING] == 2 &&
                a->quotas.most[SL_QUOTA_TOKENS] == 0);
    assert_true(b->quotas.most[SL_QUOTA_SESSIONS] == 5 && b->quotas.most[SL_QUOTA_TOKENS] == 100);
    assert_true(a->has_key && b->has_key && !old->has_key);
    assert_int_equal(old->quotas.most[SL_QUOTA_SESSIONS], 5);
    assert_int_equal(key_file_open("key-number-2 b user\nquota b sessions=1\n", &later, NULL),
                     SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, later, 0, NULL), SL_OK);
    assert_true(a->quotas.most[SL_QUOTA_SESSIONS] == 5 && !a->has_key);
    assert_true(b->quotas.most[SL_QUOTA_SESSIONS] == 1 && b->has_key);
    /* Nobody's sessions have none. */
    struct sl_tenant *nobody = tenant(ts, "");
    for (int i = 0; i < 20; i++)
        assert_int_equal(sl_tenant_begin_turn(nobody, NULL), SL_OK);
    sl_keys_close(k);
    sl_keys_close(later);
    sl_tenants_close(ts);
}

/* --- counts ------------------------------------------------------------------------------------*/

static void refused(enum sl_code c, const struct sl_error *err, const char *quota, int retry,
                    const char *part)
{
    assert_int_equal(c, SL_E_QUOTA_EXCEEDED);
    assert_int_equal(err->code, c);
    assert_string_equal(err->param, quota);
    assert_int_equal(err->retry_after_s, retry);
    if (!strstr(err->message, part))
        fail_msg("'%s' is not in: %s", part, err->message);
}

static void test_sessions_and_bytes(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_tenants *ts = open_tenants(3, 1000, 0, 0);
    struct sl_tenant *t = tenant(ts, "t");
    assert_int_equal(sl_tenant_add_session(t, 400, &err), SL_OK);
    assert_int_equal(sl_tenant_add_session(t, 400, &err), SL_OK);
    refused(sl_tenant_add_session(t, 201, &err), &err, "bytes", SL_RETRY_NEVER, "800 of 1000");
    assert_int_equal(sl_tenant_add_session(t, 200, &err), SL_OK); /* to the last byte */
    refused(sl_tenant_add_session(t, 0, &err), &err, "sessions", SL_RETRY_NEVER, "3 of 3");
    refused(sl_tenant_add_bytes(t, 1, &err), &err, "bytes", SL_RETRY_NEVER, "1000 of 1000");
    assert_int_equal(sl_tenant_add_bytes(t, 0, &err), SL_OK);
    refused(sl_tenant_add_bytes(t, UINT64_MAX, &err), &err, "bytes", SL_RETRY_NEVER, "1000");
    sl_tenant_drop_session(t, 400);
    assert_int_equal(sl_tenant_add_bytes(t, 400, &err), SL_OK);
    sl_tenant_drop_bytes(t, 100);
    assert_int_equal(sl_tenant_add_session(t, 100, &err), SL_OK);
    /* What a store holds already is there, whatever the quota says. */
    sl_tenant_put_session(t, 5000);
    refused(sl_tenant_add_bytes(t, 1, &err), &err, "bytes", SL_RETRY_NEVER, "6000 of 1000");
    assert_int_equal(t->n_refused[SL_QUOTA_SESSIONS], 1);
    assert_int_equal(t->n_refused[SL_QUOTA_BYTES], 4);
    sl_tenants_close(ts);
}

static void test_running(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_tenants *ts = open_tenants(0, 0, 2, 0);
    struct sl_tenant *t = tenant(ts, "t"), *other = tenant(ts, "other");
    assert_int_equal(sl_tenant_begin_turn(t, &err), SL_OK);
    assert_int_equal(sl_tenant_begin_turn(t, &err), SL_OK);
    refused(sl_tenant_begin_turn(t, &err), &err, "running", 1, "2 of 2");
    assert_int_equal(sl_tenant_begin_turn(other, &err), SL_OK);
    sl_tenant_end_turn(t);
    assert_int_equal(sl_tenant_begin_turn(t, &err), SL_OK);
    sl_tenants_close(ts);
}

static void test_tokens(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_tenants *ts = open_tenants(0, 0, 0, 600); /* ten a second */
    struct sl_tenant *t = tenant(ts, "t");
    uint64_t now = 1000000;
    assert_int_equal(sl_tenant_take_tokens(t, 500, now, &err), SL_OK);
    refused(sl_tenant_take_tokens(t, 200, now, &err), &err, "tokens-per-minute", 10, "100 of 600");
    refused(sl_tenant_take_tokens(t, 101, now, &err), &err, "tokens-per-minute", 1, "100 of 600");
    refused(sl_tenant_take_tokens(t, 601, now, &err), &err, "tokens-per-minute", SL_RETRY_NEVER,
            "may use 601");
    assert_int_equal(sl_tenant_take_tokens(t, 100, now, &err), SL_OK);
    refused(sl_tenant_take_tokens(t, 1, now, &err), &err, "tokens-per-minute", 1, "0 of 600");
    /* When it said, it goes. */
    now += 5000;
    refused(sl_tenant_take_tokens(t, 60, now, &err), &err, "tokens-per-minute", 1, "50 of 600");
    assert_int_equal(sl_tenant_take_tokens(t, 60, now + 1000, &err), SL_OK);
    now += 1000;
    /* What was not used comes back; never more than a minute's. */
    sl_tenant_return_tokens(t, 30, now);
    refused(sl_tenant_take_tokens(t, 31, now, &err), &err, "tokens-per-minute", 1, "30 of 600");
    assert_int_equal(t->n_tokens, 630);
    now += 3600000;
    refused(sl_tenant_take_tokens(t, 601, now, &err), &err, "tokens-per-minute", SL_RETRY_NEVER,
            "601");
    assert_int_equal(sl_tenant_take_tokens(t, 600, now, &err), SL_OK);
    sl_tenant_return_tokens(t, 600, now + 60000);
    refused(sl_tenant_take_tokens(t, 601, now + 60000, &err), &err, "tokens-per-minute",
            SL_RETRY_NEVER, "601");
    /* A quota that comes while it runs begins with a full minute; one that is lowered cuts. */
    struct sl_keys *k;
    assert_int_equal(
        key_file_open("key-number-1 t user\nquota t tokens-per-minute=100\n", &k, NULL), SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, k, now + 60000, NULL), SL_OK);
    refused(sl_tenant_take_tokens(t, 101, now + 60000, &err), &err, "tokens-per-minute",
            SL_RETRY_NEVER, "101");
    assert_int_equal(sl_tenant_take_tokens(t, 100, now + 60000, &err), SL_OK);
    sl_keys_close(k);
    sl_tenants_close(ts);
    ts = open_tenants(0, 0, 0, 0);
    t = tenant(ts, "t");
    assert_int_equal(sl_tenant_take_tokens(t, UINT32_MAX, 5, &err), SL_OK);
    sl_tenant_return_tokens(t, UINT32_MAX, 6);
    assert_int_equal(
        key_file_open("key-number-1 t user\nquota t tokens-per-minute=100\n", &k, NULL), SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, k, 7, NULL), SL_OK);
    assert_int_equal(sl_tenant_take_tokens(t, 100, 7, &err), SL_OK);
    refused(sl_tenant_take_tokens(t, 1, 7, &err), &err, "tokens-per-minute", 1, "0 of 100");
    /* Keys that are read again bring no tokens. */
    assert_int_equal(sl_tenants_set_keys(ts, k, 7, NULL), SL_OK);
    refused(sl_tenant_take_tokens(t, 1, 7, &err), &err, "tokens-per-minute", 1, "0 of 100");
    sl_keys_close(k);
    sl_tenants_close(ts);
    /* Nor do they take any, where the others have less. */
    ts = open_tenants(0, 0, 0, 10);
    assert_int_equal(
        key_file_open("key-number-1 t user\nquota t tokens-per-minute=100\n", &k, NULL), SL_OK);
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(sl_tenants_set_keys(ts, k, 60000 * i, NULL), SL_OK);
    assert_int_equal(sl_tenant_take_tokens(tenant(ts, "t"), 100, 60000, &err), SL_OK);
    sl_keys_close(k);
    /* Whoever has no key any more has what the others have. */
    assert_int_equal(key_file_open("key-number-1 u user\n", &k, NULL), SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, k, 3600000, NULL), SL_OK);
    refused(sl_tenant_take_tokens(tenant(ts, "t"), 11, 3600000, &err), &err, "tokens-per-minute",
            SL_RETRY_NEVER, "11");
    sl_keys_close(k);
    sl_tenants_close(ts);
}

/* --- figures, memory ---------------------------------------------------------------------------*/

static void test_figures(void **state)
{
    (void)state;
    struct sl_keys *k;
    struct sl_tenants *ts = open_tenants(0, 0, 0, 0);
    assert_int_equal(key_file_open("key-number-1 a user\nquota a sessions=1\n", &k, NULL), SL_OK);
    assert_int_equal(sl_tenants_set_keys(ts, k, 0, NULL), SL_OK);
    struct sl_tenant *a = tenant(ts, "a");
    tenant(ts, "keyless");
    assert_int_equal(sl_tenant_add_session(a, 77, NULL), SL_OK);
    assert_int_equal(sl_tenant_add_session(a, 77, NULL), SL_E_QUOTA_EXCEEDED);
    for (int shared = 0; shared < 2; shared++) {
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        assert_non_null(f);
        sl_tenants_write_metrics(ts, shared, f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(strstr(text, "\nslate_tenant_sessions{tenant=\"a\"} 1\n") != NULL,
                         !shared);
        assert_int_equal(strstr(text, "\nslate_tenant_bytes{tenant=\"a\"} 77\n") != NULL, !shared);
        assert_non_null(strstr(text, "\nslate_tenant_requests_running{tenant=\"a\"} 0\n"));
        assert_non_null(strstr(text, "\nslate_tenant_quota{tenant=\"a\",quota=\"sessions\"} 1\n"));
        assert_null(strstr(text, "quota=\"bytes\"} 0\nslate_tenant_quota"));
        assert_non_null(
            strstr(text, "\nslate_tenant_refused_total{tenant=\"a\",quota=\"sessions\"} 1\n"));
        assert_null(strstr(text, "keyless")); /* else there could be any number of them */
        free(text);
    }
    sl_keys_close(k);
    sl_tenants_close(ts);
}

static void test_without_memory(void **state)
{
    (void)state;
    struct sl_keys *k;
    struct sl_error err;
    sl_mem_fail_after(0);
    assert_null(sl_tenants_open(&(struct sl_quotas){{0}}));
    sl_mem_fail_after(-1);
    struct sl_tenants *ts = open_tenants(0, 0, 0, 0);
    assert_int_equal(key_file_open("key-number-1 a user\n", &k, NULL), SL_OK);
    sl_mem_fail_after(0);
    assert_null(sl_tenants_get(ts, "x"));
    assert_int_equal(sl_tenants_set_keys(ts, k, 0, &err), SL_E_NO_MEMORY);
    sl_mem_fail_after(-1);
    assert_null(sl_tenants_find(ts, "x"));
    sl_keys_close(k);
    sl_tenants_close(ts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),           cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_keys_set_quotas), cmocka_unit_test(test_sessions_and_bytes),
        cmocka_unit_test(test_running),         cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_figures),         cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests_name("quotas", tests, NULL, key_file_tear_down);
}
