/* redis_stamp_test.c: stamps of the `redis://` store's versions (store.h): that they are told, and
 * that no snapshot of another version of the same number is taken. What servers make of them is
 * fleet_older_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"
#include "tests/support/redis_shop.h"

enum { SIZE = 100, REMEMBERED = 8 };

static struct sl_stamp stamp(const char *text)
{
    struct sl_stamp s = {.s = ""};
    snprintf(s.s, sizeof s.s, "%s", text);
    return s;
}

static void stamped_turn(struct shop *st, const struct sl_store_key *k, uint64_t version,
                         const char *text)
{
    struct got g;
    struct sl_store_turn t = {
        .version = version, .stamp = stamp(text), .used_at = st->base, .continuation = {"{}", 2}};
    sl_store_append_turn(st->store, k, &t, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
}

/* Under the session's key, with the stamp of what is put; st waits for *ret. */
static void begin_put(struct shop *st, const struct sl_store_key *k, uint64_t version,
                      const char *text, const struct sl_store_head *h, struct got *ret)
{
    const struct sl_stamp s = stamp(text);
    struct sl_store_key key = *k;
    key.stamp = &s;
    unsigned char *p = sl_calloc(1, SIZE);
    assert_non_null(p);
    sl_store_put_snapshot(st->store, &key, version, h, p, SIZE, on_got, expect(st, ret));
}

static enum sl_code put(struct shop *st, const struct sl_store_key *k, uint64_t version,
                        const char *text, const struct sl_store_head *h)
{
    struct got g;
    begin_put(st, k, version, text, h, &g);
    shop_run(st);
    return g.code;
}

static void is_at(struct shop *st, const struct sl_store_key *k, uint64_t version, const char *text,
                  uint64_t snapshot)
{
    const struct sl_store_head h = look(st, k).view.head;
    assert_int_equal(h.version, version);
    assert_string_equal(h.stamp.s, text);
    assert_int_equal(h.snapshot_version, snapshot);
}

static void on_record(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct seen *s = arg;
    s->st->n_waiting--;
    assert_null(err);
    s->view.head.stamp = r->head->stamp;
}

static void on_list(void *arg, const struct sl_store_view *v, size_t n, bool more,
                    const struct sl_error *err)
{
    struct seen *s = arg;
    s->st->n_waiting--;
    assert_true(!err && !more && n == 1);
    s->view.head.stamp = v[0].head.stamp;
}

/* A look, a lease, a load and a list tell it: of a turn, and of what is written whole. */
static void test_what_is_told(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    is_at(st, &k, 0, "", 0);
    struct sl_stamp a = sl_store_stamp(st->store), b = sl_store_stamp(st->store);
    assert_true(a.s[0] && !sl_stamps_are_same(&a, &b));
    stamped_turn(st, &k, 1, a.s);
    is_at(st, &k, 1, a.s, 0);
    struct sl_store_head h = {.key = k, .version = 5, .stamp = b, .used_at = st->base};
    assert_int_equal(put(st, &k, 5, "", &h), SL_OK);
    is_at(st, &k, 5, b.s, 5);
    struct seen s = {.st = st};
    struct sl_list_query q = {.limit = 9};
    st->n_waiting++;
    sl_store_load(st->store, &k, NULL, on_record, &s);
    shop_run(st);
    assert_string_equal(s.view.head.stamp.s, b.s);
    s.view.head.stamp = stamp("");
    st->n_waiting++;
    sl_store_list(st->store, k.tenant, &q, on_list, &s);
    shop_run(st);
    assert_string_equal(s.view.head.stamp.s, b.s);
    assert_string_equal(take(st, &k, NULL).view.head.stamp.s, b.s);
    free_shop(st);
}

static void test_snapshots_of_another_history(void **state)
{
    (void)state;
    static const char *const text[] = {"", "t.1", "t.2", "t.3", "t.4"};
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    for (uint64_t v = 1; v <= 4; v++)
        stamped_turn(st, &k, v, text[v]);
    long long n = redis_n_keys(&redis);
    for (uint64_t v = 1; v <= 4; v++) {
        assert_int_equal(put(st, &k, v, "u.1", NULL), SL_E_VERSION_MISMATCH);
        assert_int_equal(put(st, &k, v, text[v == 4 ? 3 : v + 1], NULL), SL_E_VERSION_MISMATCH);
        assert_int_equal(put(st, &k, v, "t", NULL), SL_E_VERSION_MISMATCH);
        assert_int_equal(put(st, &k, v, "", NULL), SL_E_VERSION_MISMATCH);
    }
    is_at(st, &k, 4, "t.4", 0);
    assert_int_equal(redis_n_keys(&redis), n); /* nor are their bytes left */
    struct got g;
    begin_put(st, &k, 2, "u.1", NULL, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "is another one in the store");
    assert_int_equal(put(st, &k, 2, "t.2", NULL), SL_OK);
    is_at(st, &k, 4, "t.4", 2);
    assert_int_equal(put(st, &k, 4, "t.4", NULL), SL_OK);
    is_at(st, &k, 4, "t.4", 4);
    free_shop(st);
}

/* What was so long ago that its stamp is not there any more. */
static void test_a_snapshot_that_comes_late(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    char text[REMEMBERED + 2][16];
    for (uint64_t v = 1; v <= REMEMBERED + 1; v++) {
        snprintf(text[v], sizeof text[v], "t.%u", (unsigned)v);
        stamped_turn(st, &k, v, text[v]);
    }
    assert_int_equal(put(st, &k, 1, text[1], NULL), SL_E_VERSION_MISMATCH);
    assert_int_equal(put(st, &k, 2, text[2], NULL), SL_OK);
    is_at(st, &k, REMEMBERED + 1, text[REMEMBERED + 1], 2);
    free_shop(st);
}

/* What servers wrote that knew no stamps: which call it was, under the same name, or nothing. */
static void test_records_of_before(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    stamped_turn(st, &k, 1, "t.1");
    redis_do(&redis, "HDEL slate1:{%s/%s} ops", k.tenant, k.id);
    redis_do(&redis, "HSET slate1:{%s/%s} op 00112233445566770000000000000009", k.tenant, k.id);
    is_at(st, &k, 1, "00112233445566770000000000000009", 0);
    assert_int_equal(put(st, &k, 1, "t.1", NULL), SL_E_VERSION_MISMATCH);
    assert_int_equal(put(st, &k, 1, "00112233445566770000000000000009", NULL), SL_OK);
    stamped_turn(st, &k, 2, "t.2");
    redis_do(&redis, "HDEL slate1:{%s/%s} op ops", k.tenant, k.id);
    is_at(st, &k, 2, "", 1);
    assert_int_equal(put(st, &k, 2, "t.2", NULL), SL_E_VERSION_MISMATCH);
    assert_int_equal(put(st, &k, 2, "", NULL), SL_OK);
    is_at(st, &k, 2, "", 2);
    redis_do(&redis, "HSET slate1:{%s/%s} op %s", k.tenant, k.id,
             "longer-than-a-stamp-of-any-version-that-there-is");
    assert_int_equal(look(st, &k).code, SL_E_STORE_CORRUPT);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_told),
        cmocka_unit_test(test_snapshots_of_another_history),
        cmocka_unit_test(test_a_snapshot_that_comes_late),
        cmocka_unit_test(test_records_of_before),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
