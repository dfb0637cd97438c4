/* redis_store_test.c: the `redis://` store as its callers see it, against a model and the real
 * Redis: what every store must do (store_suite.h), leases, lists, and what is wrong with an answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis_conn.h"
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

/* What is asked here is answered, however much else the machine has to do. */
static const struct sl_store_options options = {.durable = true, .timeout_ms = 30000};

static struct shop *new_shop_keeping(uint64_t keep_turns)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &options);
    st->keep_turns = keep_turns;
    shop_must_open(st);
    return st;
}

static struct shop *new_shop(void)
{
    return new_shop_keeping(0);
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

/* --- leases ------------------------------------------------------------------------------------*/

struct seen {
    struct shop *st;
    struct sl_store_view view;
    char held_key[64];
    enum sl_code code;
    bool has_view;
};

static void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err)
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

static struct seen look(struct shop *st, const struct sl_store_key *k)
{
    struct seen s = {.st = st};
    st->n_waiting++;
    sl_store_look(st->store, k->tenant, k->id, on_seen, &s);
    shop_run(st);
    return s;
}

static struct seen take(struct shop *st, const struct sl_store_key *k, const char *key)
{
    struct seen s = {.st = st};
    st->n_waiting++;
    sl_store_take(st->store, k->tenant, k->id, key, SL_TAKER_TURN, on_seen, &s);
    shop_run(st);
    return s;
}

static enum sl_code turn(struct shop *st, const struct sl_store_key *k, uint64_t version)
{
    struct got g;
    struct sl_store_turn t = {.version = version, .used_at = st->base, .continuation = {"{}", 2}};
    sl_store_append_turn(st->store, k, &t, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}

static enum sl_code renew(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    sl_store_renew(st->store, k, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}

static void check_past(struct shop *st, int round)
{
    assert_int_equal(shop_check_past(st), 0);
    reopen_sometimes(st, round);
}

/* The same, and each of the last versions is still there; and all that is kept goes with it. */
static void test_random_changes_kept(void **state)
{
    (void)state;
    static const uint64_t keep[] = {0, 1, 4};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        struct shop *st = new_shop_keeping(keep[i]);
        suite_random_changes(st, check_past);
    }
}

static long long n_keys(void)
{
    redisReply *r = redis_ask(&redis, "DBSIZE");
    long long n = r->integer;
    freeReplyObject(r);
    return n;
}

static void test_nothing_kept_is_left(void **state)
{
    (void)state;
    struct shop *st = new_shop_keeping(4);
    do_create(st, 0);
    for (int i = 0; i < 20; i++) {
        do_turn(st, 0, false);
        do_snapshot(st, 0, 1000);
        shop_run(st);
        /* the form's number, head, lists of ids, turns, kept ones; and the snapshots */
        assert_true(n_keys() <= 7 + 5);
    }
    assert_int_equal(shop_check_past(st), 0);
    do_remove(st, 0);
    shop_run(st);
    assert_int_equal(n_keys(), 1);
    free_shop(st);
}

static enum sl_code release(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    sl_store_release(st->store, k, on_got, expect(st, &g));
    shop_run(st);
    return g.code;
}

/* Another server on the same Redis. */
static struct shop *other_shop(void)
{
    struct shop *st = calloc(1, sizeof *st);
    struct sl_error err;
    assert_non_null(st);
    shop_init_spec(st, redis.spec, &options);
    assert_int_equal(shop_open(st, &err), SL_OK);
    return st;
}

static void set_lease_over(const struct sl_store_key *k)
{
    redis_do(&redis, "HSET slate1:{%s/%s} lu 1", k->tenant, k->id);
}

static void test_one_holder_at_a_time(void **state)
{
    (void)state;
    struct shop *a = new_shop(), *b = other_shop();
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0);
    assert_false(look(b, &k).view.held);
    struct seen s = take(a, &k, "my-key");
    assert_int_equal(s.code, SL_OK);
    assert_int_equal(s.view.head.key.fence, 1);
    assert_memory_equal(s.view.head.key.incarnation, k.incarnation, 16);
    struct sl_store_key held = k;
    held.fence = s.view.head.key.fence;
    s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_E_SESSION_BUSY);
    assert_string_equal(s.held_key, "my-key");
    assert_int_equal(s.view.head.key.fence, 0);
    s = look(b, &k);
    assert_true(s.view.held);
    assert_string_equal(s.held_key, "my-key");
    /* Nobody else changes it, not even without any fence. */
    assert_int_equal(turn(b, &k, 1), SL_E_SESSION_BUSY);
    assert_int_equal(renew(a, &held), SL_OK);
    /* Its own server takes it anew: it has lost the answer to a release. */
    s = take(a, &k, NULL);
    assert_int_equal(s.view.head.key.fence, 2);
    assert_int_equal(renew(a, &held), SL_E_LEASE_LOST);
    assert_int_equal(turn(a, &held, 1), SL_E_LEASE_LOST);
    held.fence = 2;
    assert_int_equal(turn(a, &held, 1), SL_OK); /* which releases it */
    s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_OK);
    assert_int_equal(s.view.head.version, 1);
    assert_int_equal(s.view.head.key.fence, 3);
    held.fence = 3;
    assert_int_equal(release(b, &held), SL_OK);
    assert_int_equal(release(b, &held), SL_OK); /* again: nothing */
    assert_int_equal(take(a, &k, NULL).view.head.key.fence, 4);
    free_shop(b);
    free_shop(a);
}

/* What a server does that slept through the end of its lease. */
static void test_a_lease_that_is_over(void **state)
{
    (void)state;
    struct shop *a = new_shop(), *b = other_shop();
    do_create(a, 0);
    do_create(a, 1);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), late = k, free = shop_key(a, 1);
    late.fence = take(a, &k, NULL).view.head.key.fence;
    set_lease_over(&k);
    assert_false(look(b, &k).view.held);
    struct sl_store_key held = k;
    held.fence = take(b, &k, NULL).view.head.key.fence;
    assert_int_equal(held.fence, late.fence + 1);
    assert_int_equal(turn(a, &late, 1), SL_E_LEASE_LOST);
    struct got g;
    struct sl_store_head h = {.key = late, .version = 0, .used_at = a->base};
    sl_store_put_head(a->store, &h, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    sl_store_remove(a->store, &late, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    unsigned char *p = sl_malloc(10);
    assert_non_null(p);
    memset(p, 0, 10);
    h.version = 1;
    sl_store_put_snapshot(a->store, &late, 1, &h, p, 10, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    assert_int_equal(release(a, &late), SL_OK); /* of its own, which is gone: not of the other's */
    assert_true(look(a, &k).view.held);
    assert_int_equal(turn(b, &held, 1), SL_OK);
    assert_int_equal(turn(a, &late, 2), SL_E_LEASE_LOST);
    assert_int_equal(look(a, &k).view.head.version, 1);
    /* One that nobody took: nothing has happened since, so it still counts. */
    free.fence = take(a, &free, NULL).view.head.key.fence;
    set_lease_over(&free);
    assert_int_equal(renew(a, &free), SL_OK);
    set_lease_over(&free);
    assert_int_equal(turn(a, &free, 1), SL_OK);
    free_shop(b);
    free_shop(a);
}

/* --- what one server asks of another's turn ----------------------------------------------------*/

struct asked {
    struct shop *st;
    enum sl_code code;
    bool runs;
    uint64_t fence;
    struct sl_store_asked v[8];
    size_t n;
};

static void on_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err)
{
    struct asked *a = arg;
    a->st->n_waiting--;
    a->code = err ? err->code : SL_OK;
    a->runs = runs;
    a->fence = fence;
}

static struct asked ask(struct shop *st, const struct sl_store_key *k, enum sl_store_ask what,
                        uint64_t fence)
{
    struct asked a = {.st = st};
    st->n_waiting++;
    sl_store_ask(st->store, k->tenant, k->id, what, fence, on_told, &a);
    shop_run(st);
    return a;
}

static void on_heard(void *arg, const struct sl_store_asked *v, size_t n,
                     const struct sl_error *err)
{
    struct asked *a = arg;
    a->st->n_waiting--;
    assert_null(err);
    assert_true(n <= sizeof a->v / sizeof *a->v);
    memcpy(a->v, v, n * sizeof *v);
    a->n = n;
}

static struct asked hear(struct shop *st)
{
    struct asked a = {.st = st};
    st->n_waiting++;
    sl_store_asked(st->store, on_heard, &a);
    shop_run(st);
    return a;
}

static void expect_told(struct asked a, enum sl_code code, bool runs, uint64_t fence)
{
    assert_int_equal(a.code, code);
    assert_int_equal(a.runs, runs);
    assert_int_equal(a.fence, fence);
}

static void test_what_is_asked_of_a_turn(void **state)
{
    (void)state;
    struct shop *a = new_shop(), *b = other_shop();
    struct sl_store_key none = {.tenant = "default", .id = "none"};
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), held = k;
    expect_told(ask(b, &none, SL_ASK_CANCEL, 0), SL_E_SESSION_NOT_FOUND, false, 0);
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, false, 0);
    held.fence = take(a, &k, NULL).view.head.key.fence;
    assert_int_equal(hear(a).n, 0);
    for (int i = 0; i < 2; i++) /* again: it is one thing that is asked */
        expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, true, held.fence);
    expect_told(ask(b, &k, SL_ASK_PAUSE, held.fence), SL_OK, true, held.fence);
    expect_told(ask(b, &k, SL_ASK_PAUSE, held.fence + 1), SL_OK, false, held.fence);
    redisReply *keys = redis_ask(&redis, "KEYS slate1:asked:?*");
    assert_int_equal(keys->elements, 1);
    redis_do(&redis, "SADD %s nonsense cancel", keys->element[0]->str);
    redisReply *life = redis_ask(&redis, "PTTL %s", keys->element[0]->str);
    assert_true(life->integer > 0); /* it ends by itself */
    freeReplyObject(life);
    freeReplyObject(keys);
    assert_int_equal(hear(b).n, 0);
    struct asked heard = hear(a);
    assert_int_equal(heard.n, 2); /* what nobody can have asked is left out */
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(heard.v[i].tenant, k.tenant);
        assert_string_equal(heard.v[i].id, k.id);
        assert_int_equal(heard.v[i].fence, held.fence);
    }
    assert_int_equal(heard.v[0].what + heard.v[1].what, SL_ASK_CANCEL + SL_ASK_PAUSE);
    assert_int_equal(hear(a).n, 0);
    /* Without room for anything: what ends a turn may be what makes some. */
    redis_do(&redis, "CONFIG SET maxmemory 1");
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, true, held.fence);
    redis_do(&redis, "CONFIG SET maxmemory 0");
    assert_int_equal(hear(a).n, 1);
    assert_int_equal(turn(a, &held, 1), SL_OK);
    expect_told(ask(b, &k, SL_ASK_CANCEL, held.fence), SL_OK, false, held.fence);
    /* Something shorter than a turn cannot be ended. */
    struct seen s = {.st = a};
    a->n_waiting++;
    sl_store_take(a->store, k.tenant, k.id, NULL, SL_TAKER_CHANGE, on_seen, &s);
    shop_run(a);
    assert_int_equal(s.code, SL_OK);
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, false, held.fence + 1);
    free_shop(b);
    free_shop(a);
}

/* --- while there is no Redis -------------------------------------------------------------------*/

enum { CALLS = 1000 };

struct callers {
    struct shop *st;
    uv_timer_t timer;
    unsigned n_called, n_told;
};

static void on_told_none(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct callers *c = arg;
    assert_null(v);
    assert_int_equal(err->code, SL_E_STORE_UNAVAILABLE);
    c->st->n_waiting--;
    c->n_told++;
}

static void call_once_more(uv_timer_t *timer)
{
    struct callers *c = timer->data;
    char id[16];
    snprintf(id, sizeof id, "c%u", c->n_called);
    c->st->n_waiting++;
    sl_store_look(c->st->store, "default", id, on_told_none, c);
    if (++c->n_called == CALLS)
        uv_timer_stop(timer);
}

/* Whenever a call comes, also in the very round of the loop in which deadlines are looked at. */
static void test_every_call_is_told_that_redis_is_away(void **state)
{
    (void)state;
    static struct callers c;
    static const struct sl_store_options brief = {.durable = true, .timeout_ms = 100};
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &brief);
    shop_must_open(st);
    c = (struct callers){.st = st};
    redis_end(&redis, SIGTERM);
    uv_timer_init(&st->loop, &c.timer);
    c.timer.data = &c;
    uv_timer_start(&c.timer, call_once_more, 1, 1);
    while (c.n_told < CALLS)
        uv_run(&st->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&c.timer, NULL);
    assert_int_equal(st->n_waiting, 0);
    redis_start(&redis);
    free_shop(st);
}

/* --- times to live, lists, limits --------------------------------------------------------------*/

static void make(struct shop *st, const char *tenant, const char *id, int64_t ttl_s,
                 int64_t used_at, enum sl_code code)
{
    struct got g;
    struct sl_store_head h = {.key = {.tenant = tenant, .id = id},
                              .created_at = used_at,
                              .used_at = used_at,
                              .ttl_s = ttl_s};
    for (size_t i = 0; id[i]; i++)
        h.key.incarnation[i % 16] = (unsigned char)(id[i] + ttl_s);
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, code);
}

static void test_times_to_live(void **state)
{
    (void)state;
    struct shop *st = new_shop();
    int64_t now = st->base;
    make(st, "t", "over", 10, now - 11, SL_OK);
    make(st, "t", "there", 100, now - 11, SL_OK);
    make(st, "t", "ever", 0, 5, SL_OK);
    struct sl_store_key k = {.tenant = "t", .id = "over"};
    assert_int_equal(look(st, &k).code, SL_E_SESSION_NOT_FOUND);
    assert_int_equal(take(st, &k, NULL).code, SL_E_SESSION_NOT_FOUND);
    make(st, "t", "over", 11, now, SL_OK); /* a new life: the old one is not in the way */
    assert_int_equal(look(st, &k).code, SL_OK);
    make(st, "t", "over", 12, now, SL_E_SESSION_EXISTS);
    make(st, "t", "gone", 10, now - 11, SL_OK);
    assert_int_equal(shop_sessions(st), 3); /* a sweep took it */
    redisReply *r = redis_ask(&redis, "EXISTS slate1:{t/gone} slate1:{t/ever}");
    assert_int_equal(r->integer, 1);
    freeReplyObject(r);
    k.id = "there"; /* it is used: its time begins anew */
    struct sl_store_key held = take(st, &k, NULL).view.head.key;
    held.tenant = "t";
    held.id = "there";
    assert_int_equal(release(st, &held), SL_OK);
    assert_true(look(st, &k).view.head.used_at >= now);
    assert_true(sl_store_now(st->store) >= now && sl_store_now(st->store) < now + 60);
    free_shop(st);
}

struct page {
    struct shop *st;
    char ids[200];
    bool more;
};

static void on_page(void *arg, const struct sl_store_view *v, size_t n, bool more,
                    const struct sl_error *err)
{
    struct page *p = arg;
    p->st->n_waiting--;
    p->more = more;
    p->ids[0] = '\0';
    assert_null(err);
    for (size_t i = 0; i < n; i++)
        snprintf(p->ids + strlen(p->ids), sizeof p->ids - strlen(p->ids), "%s ", v[i].head.key.id);
}

static void expect_page(struct shop *st, const char *after, const char *prefix, size_t limit,
                        const char *ids, bool more)
{
    struct page p = {.st = st};
    struct sl_list_query q = {.limit = limit};
    snprintf(q.after, sizeof q.after, "%s", after);
    snprintf(q.prefix, sizeof q.prefix, "%s", prefix);
    st->n_waiting++;
    sl_store_list(st->store, "t", &q, on_page, &p);
    shop_run(st);
    assert_string_equal(p.ids, ids);
    assert_int_equal(p.more, more);
}

static void test_lists(void **state)
{
    (void)state;
    struct shop *st = new_shop();
    static const char *const ids[] = {"b", "a", "ab", "B", "ac", "_", "abc", "z"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        make(st, "t", ids[i], 0, st->base, SL_OK);
    make(st, "u", "other", 0, st->base, SL_OK);
    make(st, "t", "abb", 5, st->base - 100, SL_OK); /* its time is over */
    expect_page(st, "", "", 100, "B _ a ab abc ac b z ", false);
    expect_page(st, "", "", 3, "B _ a ", true);
    expect_page(st, "a", "", 3, "ab abc ac ", true);
    expect_page(st, "ac", "", 3, "b z ", false);
    expect_page(st, "", "ab", 100, "ab abc ", false);
    expect_page(st, "ab", "ab", 1, "abc ", false);
    expect_page(st, "", "ab", 1, "ab ", true);
    expect_page(st, "z", "", 9, "", false);
    expect_page(st, "", "q", 9, "", false);
    free_shop(st);
}

static void test_as_many_as_there_may_be(void **state)
{
    (void)state;
    struct shop *st = calloc(1, sizeof *st);
    struct sl_store_options few = options;
    few.max_sessions = 2;
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &few);
    shop_must_open(st);
    make(st, "t", "a", 0, st->base, SL_OK);
    make(st, "u", "b", 0, st->base, SL_OK);
    make(st, "t", "c", 0, st->base, SL_E_SESSIONS_FULL);
    free_shop(st);
}

/* --- what is damaged ---------------------------------------------------------------------------*/

static void must_not_load(struct shop *st, size_t i, enum sl_code code, const char *text)
{
    struct sl_error err;
    assert_int_equal(shop_load(st, i, &err), code);
    if (!strstr(err.message, text))
        fail_msg("'%s' instead of '%s'", err.message, text);
}

static void test_damage_is_named(void **state)
{
    (void)state;
    struct shop *st = new_shop();
    do_create(st, 0);
    for (int i = 0; i < 3; i++)
        do_turn(st, 0, true);
    do_snapshot(st, 0, 3000000);
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(shop_check(st), 0);
    const char *h = "slate1:{default/s0}";
    redisReply *n = redis_ask(&redis, "HGET %s sn", h);
    redis_do(&redis, "SETRANGE %s:s:%s 2000000 damaged", h, n->str);
    must_not_load(st, 0, SL_E_SNAPSHOT_CORRUPT, "its snapshot is not what was written");
    redis_do(&redis, "DEL %s:s:%s", h, n->str);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "the key of its snapshot");
    freeReplyObject(n);
    do_restore(st, 0, 100); /* a new snapshot heals it */
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(shop_check(st), 0);
    redis_do(&redis, "LSET %s:a 0 nonsense", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "an answer is not what was written");
    redis_do(&redis, "DEL %s:a", h);
    redis_do(&redis, "LSET %s:t 0 00000000000000000005", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "a turn is not what was written");
    redis_do(&redis, "DEL %s:t", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "the list of its turns");
    redis_do(&redis, "SET %s:t text", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "a key holds something else");
    redis_do(&redis, "HSET %s ver x", h);
    redis_do(&redis, "DEL %s:t", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "its head is not what was written");
    free_shop(st);
}

/* --- which Redis is taken ----------------------------------------------------------------------*/

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
    redis_do(&redis, "CONFIG SET appendonly no");
    must_not_open(redis.spec, true, SL_E_USAGE, "appendonly is off");
    redis_do(&redis, "CONFIG SET appendonly yes");
    redis_do(&redis, "CONFIG SET maxmemory-policy allkeys-lru");
    must_not_open(redis.spec, true, SL_E_USAGE, "maxmemory-policy is 'allkeys-lru'");
    struct shop st;
    struct sl_error err;
    shop_init_spec(&st, redis.spec, &(struct sl_store_options){.durable = false});
    assert_int_equal(shop_open(&st, &err), SL_OK);
    shop_close(&st);
    shop_done(&st);
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
    shop_init_spec(&st, spec, &options);
    assert_int_equal(shop_open(&st, &err), SL_OK);
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
    shop_init_spec(&st, redis.spec, &options);
    assert_int_equal(shop_open(&st, &err), SL_OK);
    shop_close(&st);
    shop_done(&st);
    redis_do(&redis, "CONFIG SET maxmemory 0");
    shop_init_spec(&st, redis.spec, &options);
    assert_int_equal(shop_open(&st, &err), SL_OK);
    shop_close(&st);
    shop_done(&st);
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
    suite_new_shop = new_shop;
    suite_too_large = "a turn may have 256 MiB in the store";
    const struct CMUnitTest tests[] = {
        STORE_SUITE,
        cmocka_unit_test(test_random_changes),
        cmocka_unit_test(test_random_changes_kept),
        cmocka_unit_test(test_nothing_kept_is_left),
        cmocka_unit_test(test_one_holder_at_a_time),
        cmocka_unit_test(test_a_lease_that_is_over),
        cmocka_unit_test(test_what_is_asked_of_a_turn),
        cmocka_unit_test(test_every_call_is_told_that_redis_is_away),
        cmocka_unit_test(test_times_to_live),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_as_many_as_there_may_be),
        cmocka_unit_test(test_damage_is_named),
        cmocka_unit_test(test_unknown_stores),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
