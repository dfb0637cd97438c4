/* redis_fault_test.c: every call of hiredis in the life of a `redis://` store fails once, each in
 * its turn, in each way that it can: it is not sent; it is sent and the connection breaks before
 * the answer; Redis answers with an error, a wrong type, nothing, or something else. Then every
 * allocation of ours fails once. (Those of hiredis 0.14 cannot be made to fail.)
 *
 * What was told to have been done is there, what was told to have failed is not, and nothing else
 * has changed: the store is compared with the model (stores.h) and goes on afterwards. */
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
#include "server/store/redis_conn.h"
#include "tests/support/redis.h"
#include "tests/support/stores.h"

static struct redis redis;

/* --- hiredis that fails ------------------------------------------------------------------------*/

enum fault {
    NOT_SENT,   /* the call fails */
    NOT_TOLD,   /* done, and the connection breaks before the answer */
    ANSWER_ERR, /* from here on nothing is done, and the answer is … */
    ANSWER_STATUS,
    ANSWER_NIL,
    ANSWER_NUMBER,
    ANSWER_ARRAY, /* of other things */
    ANSWER_TEXT,
    FAULTS
};
static const char *const names[FAULTS] = {"not sent", "not told", "an error", "a status",
                                          "nothing",  "a number", "an array", "a text"};

static enum fault fault;
static int64_t fail_at; /* the n-th call; -1: none */
static int64_t n_calls;
static bool drop_reply;

static bool is_it(void)
{
    return n_calls++ == fail_at;
}

static redisAsyncContext *fail_connect(const char *ip, int port)
{
    return is_it() && fault == NOT_SENT ? NULL : redisAsyncConnect(ip, port);
}

static int fail_poll_init(uv_loop_t *loop, uv_poll_t *h, int fd)
{
    return is_it() && fault == NOT_SENT ? UV_ENOMEM : uv_poll_init(loop, h, fd);
}

static int fail_command(redisAsyncContext *ac, redisCallbackFn *fn, void *arg, int argc,
                        const char **argv, const size_t *argvlen)
{
    static const struct {
        int argc;
        const char *argv[2];
    } instead[FAULTS] = {
        [ANSWER_ERR] = {1, {"NONSENSE", NULL}}, [ANSWER_STATUS] = {1, {"PING", NULL}},
        [ANSWER_NIL] = {2, {"GET", "nothing"}}, [ANSWER_NUMBER] = {2, {"EXISTS", "nothing"}},
        [ANSWER_ARRAY] = {1, {"TIME", NULL}},   [ANSWER_TEXT] = {2, {"ECHO", "hello"}}};
    if (!is_it())
        return redisAsyncCommandArgv(ac, fn, arg, argc, argv, argvlen);
    if (fault == NOT_SENT)
        return REDIS_ERR;
    if (fault == NOT_TOLD) {
        drop_reply = true; /* of what is asked first from now on, maybe another one's */
        return redisAsyncCommandArgv(ac, fn, arg, argc, argv, argvlen);
    }
    size_t lens[2];
    const char *other[2];
    for (int i = 0; i < instead[fault].argc; i++) {
        other[i] = instead[fault].argv[i];
        lens[i] = strlen(other[i]);
    }
    return redisAsyncCommandArgv(ac, fn, arg, instead[fault].argc, other, lens);
}

static redisReply *see_reply(redisReply *r)
{
    if (!drop_reply)
        return r;
    drop_reply = false;
    return NULL;
}

static const struct sl_redis_io failing = {.connect = fail_connect,
                                           .poll_init = fail_poll_init,
                                           .command = fail_command,
                                           .reply = see_reply};

/* --- a life ------------------------------------------------------------------------------------*/

enum { BIG = 2500000 /* bytes of a snapshot: three pieces */ };

static const struct sl_store_options options = {
    .redis_io = &failing, .timeout_ms = 3000, .lease_ms = 60000};

static struct shop *new_shop(void)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &options);
    return st;
}

static size_t n_told; /* errors */

/* Opens; a failure is told, and the next attempt succeeds. */
static void open_shop(struct shop *st)
{
    struct sl_error err;
    if (shop_open(st, &err)) {
        n_told++;
        shop_must_open(st);
    }
}

struct leasing {
    struct shop *st;
    struct sl_store_key key;
    enum sl_code code;
    bool has_view;
    size_t n;
};

static void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct leasing *l = arg;
    l->st->n_waiting--;
    l->code = err ? err->code : SL_OK;
    assert_true(err || v);
    if (v)
        memcpy(l->key.incarnation, v->head.key.incarnation, 16);
    l->key.fence = v && !err ? v->head.key.fence : 0;
    n_told += err != NULL;
}

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct leasing *l = arg;
    l->st->n_waiting--;
    l->code = code;
    assert_true((code == SL_OK) == (err == NULL));
    n_told += err != NULL;
}

static void on_listed(void *arg, const struct sl_store_view *v, size_t n, bool more,
                      const struct sl_error *err)
{
    struct leasing *l = arg;
    l->st->n_waiting--;
    l->n = n;
    assert_true(err || (v && !more));
    n_told += err != NULL;
}

static void on_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err)
{
    struct leasing *l = arg;
    l->st->n_waiting--;
    assert_true(err || (runs && fence == l->key.fence));
    n_told += err != NULL;
}

static void on_heard(void *arg, const struct sl_store_asked *v, size_t n,
                     const struct sl_error *err)
{
    struct leasing *l = arg;
    l->st->n_waiting--;
    /* None: what was heard was lost on its way, and is asked again. Two: nobody heard the first. */
    assert_true(err || n <= 2);
    for (size_t i = 0; i < n; i++)
        assert_true(v[i].fence <= l->key.fence);
    n_told += err != NULL;
}

/* A lease is taken, looked at, renewed and given back; what is refused is refused by its fence. */
static void lease(struct shop *st, size_t i)
{
    struct leasing l = {.st = st, .key = shop_key(st, i)}, other = l;
    st->n_waiting++;
    sl_store_take(st->store, l.key.tenant, l.key.id, "key", SL_TAKER_TURN, on_seen, &l);
    shop_run(st);
    if (l.code)
        return;
    assert_true(l.key.fence > 0);
    struct sl_store_key old = l.key;
    st->n_waiting++;
    sl_store_renew(st->store, &l.key, on_done, &l);
    shop_run(st);
    st->n_waiting++;
    sl_store_look(st->store, l.key.tenant, l.key.id, on_seen, &other);
    shop_run(st);
    st->n_waiting++;
    sl_store_ask(st->store, l.key.tenant, l.key.id, SL_ASK_CANCEL, 0, on_told, &l);
    shop_run(st);
    st->n_waiting++;
    sl_store_asked(st->store, on_heard, &l);
    shop_run(st);
    st->n_waiting++;
    sl_store_release(st->store, &old, on_done, &l);
    shop_run(st);
}

static void list(struct shop *st)
{
    struct leasing l = {.st = st};
    struct sl_list_query q = {.limit = 10};
    st->n_waiting++;
    sl_store_list(st->store, "default", &q, on_listed, &l);
    shop_run(st);
}

static void live(struct shop *st)
{
    for (size_t i = 0; i < 3; i++) {
        do_create(st, i);
        do_turn(st, i, true);
    }
    shop_run(st);
    if (shop_has(st, 0) && st->v[0].version) {
        do_name(st, 0, 0);
        do_snapshot(st, 0, BIG);
        do_turn(st, 0, true);
        do_name(st, 0, 0);
        do_unname(st, 0, 0);
    }
    if (shop_has(st, 1))
        do_patch(st, 1);
    do_far_restore(st, 3, 2, 100);
    if (shop_has(st, 2))
        do_remove(st, 2);
    shop_run(st);
    if (st->v[0].version) /* else nothing comes after it that sets the time of its use again */
        lease(st, 0);
    list(st);
    (void)shop_load(st, 0, NULL);
}

/* Without faults: everything is as the model has it, and goes on. */
static void check(struct shop *st)
{
    fail_at = -1;
    drop_reply = false;
    n_told += st->n_failed;
    if (st->v[0].exists && st->v[0].version) {
        lease(st, 0); /* by this very server: what it still holds is taken anew */
        st->n_failed = 0;
        do_turn(st, 0, false);
        do_snapshot(st, 0, 100);
        shop_run(st);
        assert_int_equal(st->n_failed, 0);
    }
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    assert_int_equal(shop_check_past(st), 0);
    shop_close(st);
    shop_done(st);
    free(st);
}

static int64_t count(void)
{
    struct shop *st = new_shop();
    fail_at = -1;
    n_calls = 0;
    n_told = 0;
    open_shop(st);
    live(st);
    int64_t n = n_calls;
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(n_told, 0);
    check(st);
    return n;
}

/* --- tests -------------------------------------------------------------------------------------*/

static void test_each_call_fails(void **state)
{
    (void)state;
    int64_t n = count();
    for (fault = 0; fault < FAULTS; fault++) {
        size_t told = 0;
        for (int64_t i = 0; i < n; i++) {
            struct shop *st = new_shop();
            n_told = 0;
            n_calls = 0;
            fail_at = i;
            open_shop(st);
            live(st);
            assert_true(n_calls > i);
            check(st);
            told += n_told > 0;
        }
        printf("%lld calls, each once: %s; %zu were told\n", (long long)n, names[fault], told);
        /* What was not sent, and what was not told, is sent again. */
        if (fault <= NOT_TOLD)
            assert_int_equal(told, 0);
        else
            assert_true(told > 20);
    }
}

static void test_each_allocation_fails(void **state)
{
    (void)state;
    size_t told = 0;
    int64_t n = 0;
    fail_at = -1;
    for (bool reached = true; reached; n++) {
        struct shop *st = new_shop();
        n_told = 0;
        uint64_t before = sl_mem_count();
        sl_mem_fail_once(n);
        open_shop(st);
        live(st);
        reached = sl_mem_count() - before > (uint64_t)n;
        sl_mem_fail_after(-1);
        check(st);
        told += n_told > 0;
    }
    printf("%lld allocations failed; %zu were told\n", (long long)n, told);
    assert_true(told > (size_t)n / 2);
}

static int start(void **state)
{
    (void)state;
    redis_init(&redis, "fault", (const char *const[]){"--appendonly", "no", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    redis_done(&redis);
    return 0;
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call_fails),
        cmocka_unit_test(test_each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
