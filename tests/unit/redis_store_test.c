/* redis_store_test.c: the `redis://` store as its callers see it, against a model and the real
 * Redis: what every store must do (store_suite.h), leases, lists, and what is wrong with an answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "tests/support/redis.h"
#include "tests/support/store_suite.h"

static struct redis redis;

static int start_redis(void **unused)
{
    (void)unused;
    redis_init(&redis, "store", NULL);
    return 0;
}

static int end_redis(void **unused)
{
    (void)unused;
    redis_done(&redis);
    return 0;
}

static const struct sl_store_options options = {.durable = true};

static struct shop *new_shop(void)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &options);
    shop_must_open(st);
    return st;
}

static void reopen_sometimes(struct shop *st, int round)
{
    if (round % 4 == 3)
        check_twice(st);
}

static void test_random_changes(void **state)
{
    (void)state;
    suite_random_changes(new_shop(), reopen_sometimes);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    suite_new_shop = new_shop;
    suite_too_large = "a turn may have 256 MiB in the store";
    const struct CMUnitTest tests[] = {
        STORE_SUITE,
        cmocka_unit_test(test_random_changes),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
