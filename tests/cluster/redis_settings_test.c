/* redis_settings_test.c: which Redis is taken as a store, and which addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "server/store/redis_conn.h"
#include "tests/support/redis_shop.h"

static void must_not_open(const char *spec, bool durable, enum sl_code code, const char *text)
{
    struct shop st;
    struct sl_error err;
    struct sl_store_options o = {.durable = durable, .timeout_ms = 500};
    shop_init_spec(&st, spec, &o);
    enum sl_code c = shop_open(&st, &err);
    if (c != code || !strstr(err.message, text))
        fail_msg("%s: %s '%s' instead of %s '%s'", spec, sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), text);
    assert_null(strstr(err.message, "secret"));
    shop_done(&st);
}

static void may_open(const char *spec, bool durable)
{
    struct shop st;
    struct sl_store_options o = redis_options;
    o.durable = durable;
    shop_init_spec(&st, spec, &o);
    shop_must_open(&st);
    shop_close(&st);
    shop_done(&st);
}

/* Through store.h: what no kind of store takes. */
static void test_unknown_stores(void **state)
{
    (void)state;
    must_not_open("rediss://:secret@127.0.0.1", true, SL_E_USAGE, "speaks no TLS");
    must_not_open("valkey://:secret@127.0.0.1", true, SL_E_USAGE, "a store 'valkey' is not known");
    must_not_open("redis:127.0.0.1", true, SL_E_USAGE, "the '//' is missing");
    must_not_open("redis://u:secret@h/x", true, SL_E_USAGE, "the database is a number");
}

static void test_settings(void **state)
{
    char spec[128];
    (void)state;
    redis_do(&redis, "FLUSHALL");
    redis_do(&redis, "CONFIG SET appendfsync everysec");
    must_not_open(redis.spec, true, SL_E_USAGE, "appendfsync is 'everysec'");
    redis_do(&redis, "CONFIG SET appendfsync always");
    redis_do(&redis, "CONFIG SET no-appendfsync-on-rewrite yes");
    must_not_open(redis.spec, true, SL_E_USAGE, "no-appendfsync-on-rewrite is 'yes'");
    may_open(redis.spec, false);
    redis_do(&redis, "CONFIG SET no-appendfsync-on-rewrite no");
    may_open(redis.spec, true);
    redis_do(&redis, "CONFIG SET appendonly no");
    must_not_open(redis.spec, true, SL_E_USAGE, "appendonly is off");
    redis_do(&redis, "CONFIG SET appendonly yes");
    redis_do(&redis, "CONFIG SET maxmemory-policy allkeys-lru");
    must_not_open(redis.spec, true, SL_E_USAGE, "maxmemory-policy is 'allkeys-lru'");
    may_open(redis.spec, false);
    redis_do(&redis, "CONFIG SET maxmemory-policy noeviction");
    redis_do(&redis, "REPLICAOF 127.0.0.1 1");
    must_not_open(redis.spec, true, SL_E_STORE_UNAVAILABLE, "is a read-only replica");
    redis_do(&redis, "REPLICAOF NO ONE");
    snprintf(spec, sizeof spec, "%s/99", redis.spec);
    must_not_open(spec, true, SL_E_USAGE, "SELECT: ERR DB index is out of range");
    snprintf(spec, sizeof spec, "redis://:secret@127.0.0.1:%u", redis.port);
    must_not_open(spec, true, SL_E_USAGE, "AUTH: ERR");
    redis_do(&redis, "ACL SETUSER slate on >se%%cret ~* +@all");
    snprintf(spec, sizeof spec, "redis://slate:wrong@127.0.0.1:%u", redis.port);
    must_not_open(spec, true, SL_E_USAGE, "AUTH: WRONGPASS");
    snprintf(spec, sizeof spec, "redis://slate:se%%25cret@127.0.0.1:%u/3", redis.port);
    struct shop st;
    shop_init_spec(&st, spec, &redis_options);
    shop_must_open(&st);
    do_create(&st, 0);
    shop_run(&st);
    assert_int_equal(st.n_failed, 0);
    shop_close(&st);
    shop_done(&st);
    redisReply *r = redis_ask(&redis, "EXISTS slate1:{default/s0}"); /* of database 0 */
    assert_int_equal(r->integer, 0);
    freeReplyObject(r);
    redis_do(&redis, "SET slate1:schema 3");
    must_not_open(redis.spec, true, SL_E_USAGE, "slate1:schema is 3; this one knows 2 and earlier");
    redis_do(&redis, "SET slate1:schema new");
    must_not_open(redis.spec, false, SL_E_USAGE, "slate1:schema holds no number");
    redis_do(&redis, "DEL slate1:schema");
    redis_do(&redis, "CONFIG SET maxmemory 1"); /* what it holds can still be read */
    may_open(redis.spec, true);
    redis_do(&redis, "CONFIG SET maxmemory 0");
    may_open(redis.spec, true);
    r = redis_ask(&redis, "GET slate1:schema");
    assert_string_equal(r->str, "1");
    freeReplyObject(r);
    redis_do(&redis, "ACL SETUSER slate -config");
    must_not_open(spec, true, SL_E_USAGE, "allow CONFIG GET, or --durability drain");
    redis_do(&redis, "ACL DELUSER slate");
    must_not_open("redis://127.0.0.1:1", true, SL_E_STORE_UNAVAILABLE, "Connection refused");
}

static void test_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *user, *password;
        unsigned port, db;
    } good[] = {{"//h", "h", "", "", 6379, 0},
                {"//h:1", "h", "", "", 1, 0},
                {"//h:65535/15", "h", "", "", 65535, 15},
                {"//h/", "h", "", "", 6379, 0},
                {"//[::1]", "::1", "", "", 6379, 0},
                {"//[::1]:7/2", "::1", "", "", 7, 2},
                {"//:p@h", "h", "", "p", 6379, 0},
                {"//u:p%3A%40%2f@h:9", "h", "u", "p:@/", 9, 0}};
    static const char *const bad[] = {
        "",      "h",       "//",       "//:1",         "//h:",      "//h:0",    "//h:65536",
        "//h:x", "//h/x",   "//h/-1",   "//h/99999999", "//[::1",    "//[::1]x", "//h?db=1",
        "//u@h", "//:p%@h", "//:p%2@h", "//:p%zz@h",    "//:p%00@h", "//h#1"};
    struct sl_rd_address a;
    struct sl_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(sl_rd_address_parse(&a, good[i].text, &err), SL_OK);
        assert_string_equal(a.host, good[i].host);
        assert_string_equal(a.user, good[i].user);
        assert_string_equal(a.password, good[i].password);
        assert_int_equal(a.port, good[i].port);
        assert_int_equal(a.db, good[i].db);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (sl_rd_address_parse(&a, bad[i], &err) != SL_E_USAGE)
            fail_msg("'%s' was taken", bad[i]);
    setenv("SLATE_REDIS_PASSWORD", "from outside", 1);
    assert_int_equal(sl_rd_address_parse(&a, "//u@h", &err), SL_OK);
    assert_string_equal(a.password, "from outside");
    assert_int_equal(sl_rd_address_parse(&a, "//u:own@h", &err), SL_OK);
    assert_string_equal(a.password, "own");
    unsetenv("SLATE_REDIS_PASSWORD");
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_stores),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
