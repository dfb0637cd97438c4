/* redis_shop.c: see redis_shop.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/redis_shop.h"

struct redis redis;

int start_redis(void **unused)
{
    (void)unused;
    redis_init(&redis, "store", NULL);
    return 0;
}

int end_redis(void **unused)
{
    (void)unused;
    redis_done(&redis);
    return 0;
}

const struct sl_store_options redis_options = {.durable = true, .timeout_ms = 30000};

struct shop *new_redis_shop_keeping(uint64_t keep_turns)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &redis_options);
    st->keep_turns = keep_turns;
    shop_must_open(st);
    return st;
}

struct shop *new_redis_shop(void)
{
    return new_redis_shop_keeping(0);
}

struct shop *other_redis_shop_with(const struct sl_store_options *opt)
{
    struct shop *st = calloc(1, sizeof *st);
    struct sl_error err;
    assert_non_null(st);
    shop_init_spec(st, redis.spec, opt);
    st->keep_turns = opt->keep_turns;
    assert_int_equal(shop_open(st, &err), SL_OK);
    return st;
}

struct shop *other_redis_shop(void)
{
    return other_redis_shop_with(&redis_options);
}

void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct seen *s = arg;
    s->st->n_waiting--;
    s->code = err ? err->code : SL_OK;
    s->has_view = v != NULL;
    if (!v)
        return;
    s->view = *v;
    snprintf(s->held_key, sizeof s->held_key, "%s", v->held_key);
    s->view.held_key = s->held_key;
}

struct seen look(struct shop *st, const struct sl_store_key *k)
{
    struct seen s = {.st = st};
    st->n_waiting++;
    sl_store_look(st->store, k->tenant, k->id, on_seen, &s);
    shop_run(st);
    return s;
}

struct seen take(struct shop *st, const struct sl_store_key *k, const char *key)
{
    struct seen s = {.st = st};
    st->n_waiting++;
    sl_store_take(st->store, k->tenant, k->id, key, SL_TAKER_TURN, on_seen, &s);
    shop_run(st);
    return s;
}

enum sl_code turn(struct shop *st, const struct sl_store_key *k, uint64_t version)
{
    struct got g;
    struct sl_store_turn t = {.version = version, .used_at = st->base, .continuation = {"{}", 2}};
    sl_store_append_turn(st->store, k, &t, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}

enum sl_code renew(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    sl_store_renew(st->store, k, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}

enum sl_code release(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    sl_store_release(st->store, k, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}
