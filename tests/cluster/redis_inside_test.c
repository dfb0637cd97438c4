/* redis_inside_test.c: a server of a fleet as a part of the test (inside.h), which therefore has
 * its clock and its pool in hand: a clock that is not that of Redis, a save that is still being
 * encoded when another server deletes the session, and one that a turn waits behind.
 *
 * time() and uv_queue_work() are defined here, so that the whole program calls those. Redis and the
 * other server are processes of their own, with the true clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#include "tests/support/api.h"
#include "tests/support/inside.h"
#include "tests/support/redis.h"
#include "tests/support/server.h"

static struct redis redis;

/* --- the clock ---------------------------------------------------------------------------------*/

static _Atomic int64_t ahead_s; /* of the server's clock */

time_t time(time_t *ret)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += ahead_s;
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}

/* --- the pool ----------------------------------------------------------------------------------*/

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool holds; /* a work waits before it begins, until that ends */
    int skips;  /* which: so many come before it */
    uv_work_t *held;
    uv_work_cb work; /* its own */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void held_work(uv_work_t *w)
{
    pthread_mutex_lock(&pool.lock);
    while (pool.holds)
        pthread_cond_wait(&pool.changed, &pool.lock);
    uv_work_cb work = pool.work;
    pool.held = NULL;
    pthread_mutex_unlock(&pool.lock);
    work(w);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *w, uv_work_cb work, uv_after_work_cb after)
{
    __typeof__(&uv_queue_work) next =
        (__typeof__(&uv_queue_work))(uintptr_t)dlsym(RTLD_NEXT, "uv_queue_work");
    assert_non_null(next);
    pthread_mutex_lock(&pool.lock);
    if (pool.holds && !pool.held && pool.skips-- == 0) {
        pool.held = w;
        pool.work = work;
        work = held_work;
        pthread_cond_broadcast(&pool.changed);
    }
    pthread_mutex_unlock(&pool.lock);
    return next(loop, w, work, after);
}

static void hold_work_after(int skips)
{
    pthread_mutex_lock(&pool.lock);
    assert_null(pool.held);
    pool.holds = true;
    pool.skips = skips;
    pthread_mutex_unlock(&pool.lock);
}

static void until_held(void)
{
    struct timespec deadline;
    int e = 0;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += SERVER_DEADLINE_MS / 1000;
    pthread_mutex_lock(&pool.lock);
    while (!pool.held && !e)
        e = pthread_cond_timedwait(&pool.changed, &pool.lock, &deadline);
    pthread_mutex_unlock(&pool.lock);
    assert_int_equal(e, 0);
}

static void let_go(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.holds = false;
    pthread_cond_broadcast(&pool.changed);
    pthread_mutex_unlock(&pool.lock);
}

/* --- the server --------------------------------------------------------------------------------*/

static void start_with(const char *replay_limit, const char *lease, const char *timeout)
{
    static char model[300];
    snprintf(model, sizeof model, "--model=%s", seeded_bytes_model());
    assert_int_equal(
        inside_start(redis.spec, true,
                     (const char *const[]){model, "--tokenizer=bytes", "--sessions-in-memory=1",
                                           "--threads=1", "--log-level=error", replay_limit, lease,
                                           timeout, NULL}),
        0);
}

static void start(void)
{
    start_with("--replay-limit=0", "--lease=15s", "--store-timeout=5s");
}

static void make(const char *id)
{
    char body[64];
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
    talk_must("POST", "/v1/sessions", body, 201);
}

#define TURN(id) "{\"session\":\"" id "\",\"prompt\":\"ab\",\"max_tokens\":3,\"ignore_eos\":true}"

/* --- kept answers ------------------------------------------------------------------------------*/

/* The turn under its key; what the session says of itself then is its first or its last line. */
static bool ask_under_key(char text[256])
{
    static const char body[] = TURN("keyed");
    assert_true(talk_bytes("POST", "/v1/generate",
                           "Content-Type: application/json\r\nIdempotency-Key: once\r\n", body,
                           sizeof body - 1));
    assert_int_equal(inside.status, 200);
    size_t n;
    const char *p = talk_body(&n);
    assert_true(n < 4096);
    p = strstr(p, "\"text\":");
    assert_non_null(p);
    snprintf(text, 256, "%.*s", (int)strcspn(p, "}"), p);
    return strstr(inside.reply, "Idempotent-Replayed: true") != NULL;
}

static void keeps_answers_with_a_clock_that_is_off_by(int64_t seconds)
{
    char first[256], again[256];
    ahead_s = seconds;
    start();
    make("keyed");
    assert_false(ask_under_key(first));
    for (int i = 0; i < 4; i++) {
        assert_true(ask_under_key(again));
        assert_string_equal(again, first);
        /* From what is in memory, then from what Redis has. */
        if (i % 2)
            talk_must("POST", "/v1/sessions/keyed/pause", "", 200);
    }
    talk_must("GET", "/v1/sessions/keyed", "", 200);
    assert_non_null(strstr(inside.reply, "\"version\":1,"));
    talk_must("DELETE", "/v1/sessions/keyed", "", 200);
    assert_int_equal(inside_stop(), 0);
    ahead_s = 0;
}

/* They are kept for a day of the store's clock, which the server's is far from. */
static void test_an_answer_is_kept_by_the_clock_of_redis(void **state)
{
    enum { DAY_S = 24 * 3600, MORE_S = 3600 };
    (void)state;
    keeps_answers_with_a_clock_that_is_off_by(-DAY_S - MORE_S);
    keeps_answers_with_a_clock_that_is_off_by(DAY_S + MORE_S);
}

/* --- a save that comes late --------------------------------------------------------------------*/

static void test_a_late_save_brings_nothing_back(void **state)
{
    (void)state;
    start();
    struct server *other = server_start(ARGS("--store", redis.spec, "--model", seeded_bytes_model(),
                                             "--tokenizer=bytes", "--threads=1"));
    make("gone");
    talk_must("POST", "/v1/generate", TURN("gone"), 200);
    make("next");
    double saves = talk_metric("slate_session_saves_total");
    /* There is one place: "gone" is to be saved first, and that is being encoded. */
    hold_work_after(0);
    int connection = talk_begin("POST", "/v1/generate", TURN("next"));
    until_held();
    raw_expect_ask(other, "DELETE /v1/sessions/gone HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n",
                   200, "gone");
    talk_must("GET", "/v1/sessions/gone", "", 404);
    assert_true(talk_metric("slate_session_saves_total") == saves);
    let_go();
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 200);
    assert_true(talk_metric("slate_session_saves_total") > saves);
    talk_must("GET", "/v1/sessions/gone", "", 404);
    raw_expect_ask(other, GET("/v1/sessions/gone") "Connection: close\r\n\r\n", 404,
                   "session_not_found");
    server_stop(other);
    assert_int_equal(inside_stop(), 0);
}

/* --- a lease that is waited for ----------------------------------------------------------------*/

enum { LEASE_MS = 1000 };

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A turn waits for the snapshot of the one before for longer than a lease: it has a whole lease
 * from when it gets it. It runs long enough for a look at what is due. */
static void test_a_lease_counts_from_when_it_is_given(void **state)
{
    (void)state;
    start_with("--replay-limit=1", "--lease=1s", "--store-timeout=500ms"); /* it saves each turn */
    make("waits");
    hold_work_after(1); /* encoded, and then it stands in the session's line */
    talk_must("POST", "/v1/generate", TURN("waits"), 200);
    until_held();
    int64_t until = now_ms() + 2 * LEASE_MS;
    int connection = talk_begin("POST", "/v1/generate",
                                "{\"session\":\"waits\",\"prompt\":\"ab\",\"max_tokens\":20000,"
                                "\"ignore_eos\":true}");
    while (now_ms() < until)
        assert_true(talk_metric("slate_store_read_only") == 0);
    let_go();
    assert_true(talk_end(connection));
    if (inside.status != 200)
        fail_msg("%d: %.400s", inside.status, inside.reply);
    talk_must("GET", "/v1/sessions/waits", "", 200);
    assert_non_null(strstr(inside.reply, "\"version\":2,"));
    assert_int_equal(inside_stop(), 0);
}

static int start_redis(void **state)
{
    (void)state;
    redis_init(&redis, "inside", NULL);
    return 0;
}

static int end_redis(void **state)
{
    (void)state;
    redis_done(&redis);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_is_kept_by_the_clock_of_redis),
        cmocka_unit_test(test_a_late_save_brings_nothing_back),
        cmocka_unit_test(test_a_lease_counts_from_when_it_is_given),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
