/* calls_test.c: one request of each route, with every call of libuv, hiredis and the system that it
 * makes (in the loop, in the pool, in libuv and hiredis themselves) failing once, each in its turn
 * and in each way that it can (intercept.h). On memory, on `dir:`, on Redis.
 *
 * What the client may see: no answer or a broken one (the connection is closed), an error of 5xx
 * that says what failed, or the answer, where it could be had all the same. What must hold
 * afterwards:
 *
 *   - the sessions that the request speaks of are as they were before, or as it leaves them: as
 *     before where it was told to have failed, as afterwards where it was told to have been done,
 *     and what the store has of them is the same (their version, metadata, tokens, and what
 *     they say next);
 *   - with an Idempotency-Key the retry is answered, and the turn has happened once;
 *   - another session is the same to the byte; no turn runs, no exchange is open, all slots and
 *     descriptors are given back; under the address sanitizer nothing has leaked.
 *
 * The same with every allocation that is made for it.
 *
 * `calls_test` tries every STRIDE-th fault of those; `calls_test 1` (make soak) all;
 * `calls_test 1 NAME` all of the scenes that have NAME in their name; `calls_test 1 NAME STORE`
 * those on memory, dir or redis alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/fault/intercept.h"
#include "tests/support/api.h"
#include "tests/support/inside.h"
#include "tests/support/process.h"
#include "tests/support/redis.h"
#include "tests/support/scenes.h"

enum { STRIDE = 13, MOST_CALLS = 500, ALLOCATION = -1, LONG_MS = 20000 };

static unsigned stride = STRIDE;
static const char *only; /* of the scenes those that have it in their name; NULL: all */
static struct redis redis;
static size_t n_tried, n_failed, n_broken;

/* --- one request, one fault --------------------------------------------------------------------*/

struct expected {
    char before[LOOK_MAX], after[LOOK_MAX];
    size_t files;
    double slots;
    uint64_t counts[INTERCEPT_KIND_COUNT], n_allocations; /* of an undisturbed run */
};

/* Again, under its key. On Redis it may be told to wait: where a lease could not be given back the
 * first try counts as running until that ends by itself. */
static bool asked_too_early(const struct scene *sc)
{
    assert_true(scene_ask(sc));
    return !strncmp(scenes_store, "redis", 5) && inside.status == 409 &&
           strstr(inside.reply, "\"idempotency_in_flight\"");
}

static void check_looks(const struct scene *sc, const struct expected *x, enum outcome o,
                        const char *what)
{
    char now[LOOK_MAX], stored[LOOK_MAX];
    if (sc->keyed && !asked_too_early(sc)) { /* it must be answered now, and have happened once */
        if (scene_outcome() != DONE)
            fail_msg("%s: the retry is answered with %.600s", what, inside.reply);
        o = DONE;
    }
    scenes_look(now);
    bool is_before = !strcmp(now, x->before);
    bool is_after = sc->finish ? !is_before : !strcmp(now, x->after);
    if (!(o == DONE ? is_after : o == FAILED ? is_before : is_before || is_after))
        fail_msg("%s: was told that it %s, but:\n%s\nbefore:\n%s\nafterwards:\n%s", what,
                 o == DONE     ? "was done"
                 : o == FAILED ? "failed"
                               : "(nothing)",
                 now, x->before, x->after);
    scenes_put_away();
    scenes_look(stored);
    if (strcmp(now, stored) != 0)
        fail_msg("%s: in memory:\n%s\nin the store:\n%s", what, now, stored);
    if (sc->finish && is_after)
        scene_check_turn(sc, now, what);
}

static void check_rest(const struct expected *x, const char *what)
{
    scene_gone("t");
    scene_gone("new");
    if (!scenes_by_is_the_same())
        fail_msg("%s: another session has changed", what);
    talk_must("POST", "/v1/sessions/base/pause", "", 200);
    talk_must("POST", "/v1/sessions/by/pause", "", 200);
    double slots = talk_metric("slate_slots_used");
    if (slots != x->slots)
        fail_msg("%s: %g slots are in use, not %g", what, slots, x->slots);
    int64_t deadline = client_now_ms() + 20000;
    size_t files;
    while ((files = process_files(getpid())) >
           x->files) { /* a connection of the store comes back by itself */
        if (client_now_ms() > deadline)
            fail_msg("%s: %zu descriptors are open, not %zu", what, files, x->files);
        talk_must("GET", "/livez", "", 200);
    }
}

/* Without a descriptor to accept with libuv turns away all who wait in that moment: maybe the next
 * one, too. */
static void served_again(const char *what)
{
    int64_t deadline = client_now_ms() + 20000;
    while (!talk("GET", "/livez", "") || inside.status != 200)
        if (client_now_ms() > deadline)
            fail_msg("%s: nobody is served any more", what);
}

struct fault {
    int kind; /* intercept.h's; ALLOCATION: of ours (mem.h) */
    uint64_t n;
    int error;
};

static void describe(char dst[256], const struct scene *sc, const struct fault *f)
{
    snprintf(dst, 256, "%s on %.20s, call %llu of %s: %s", sc->name, scenes_store,
             (unsigned long long)f->n,
             f->kind == ALLOCATION ? "malloc" : intercept_rows[f->kind].name,
             f->error == INTERCEPT_SHORT ? "short" : strerror(f->error));
}

/* Asks, with the fault; false: it did not come to it. */
static bool ask_with(const struct scene *sc, const struct fault *f)
{
    uint64_t before = sl_mem_count();
    if (f->kind == ALLOCATION)
        sl_mem_fail_once((int64_t)f->n);
    else
        intercept_fail((enum intercept_kind)f->kind, f->n, f->error);
    (void)scene_ask(sc);
    sl_mem_fail_after(-1);
    return f->kind == ALLOCATION ? sl_mem_count() - before > f->n : intercept_end();
}

static void attempt(const struct scene *sc, const struct expected *x, struct fault f)
{
    char what[256];
    describe(what, sc, &f);
    scene_set_up(sc);
    if (getenv("SLATE_TEST_VERBOSE")) /* which one ended the program */
        print_message("%lld: %s\n", (long long)client_now_ms(), what);
    talk_until("slate_http_connections", 1); /* the scrape's own */
    scene_begin(sc);
    int64_t begin_ms = client_now_ms();
    bool reached = ask_with(sc, &f);
    if (client_now_ms() - begin_ms > LONG_MS)
        fail_msg("%s: it hung; at last:\n%.600s", what, inside.reply);
    enum outcome o = scene_outcome();
    scene_end(sc);
    if (!reached)
        return;
    n_tried++;
    n_failed += o == FAILED;
    n_broken += o == UNKNOWN;
    served_again(what);
    talk_until("slate_requests_running", 0);
    talk_until("slate_http_requests_in_flight", 1);
    check_looks(sc, x, o, what);
    check_rest(x, what);
}

static void expectations(const struct scene *sc, struct expected *x)
{
    scene_set_up(sc);
    scenes_look(x->before);
    scene_set_up(sc);
    talk_until("slate_http_connections", 1);
    scene_begin(sc);
    intercept_clear();
    uint64_t allocations = sl_mem_count();
    assert_true(scene_ask(sc));
    x->n_allocations = sl_mem_count() - allocations;
    for (size_t i = 0; i < INTERCEPT_KIND_COUNT; i++)
        x->counts[i] = intercept_count((enum intercept_kind)i);
    if (scene_outcome() != DONE)
        fail_msg("%s is answered with %.600s", sc->name, inside.reply);
    assert_int_equal(scene_exit_code, 0);
    scene_end(sc);
    talk_until("slate_requests_running", 0);
    scenes_look(x->after);
    if (sc->finish)
        scene_check_turn(sc, x->after, sc->name);
    scene_gone("t");
    scene_gone("new");
    talk_must("POST", "/v1/sessions/base/pause", "", 200);
    talk_must("POST", "/v1/sessions/by/pause", "", 200);
    x->slots = talk_metric("slate_slots_used");
    talk_until("slate_http_connections", 1);
    x->files = process_files(getpid());
}

static bool is_meant(const struct scene *sc)
{
    return scene_is_possible(sc) && (!only || strstr(sc->name, only));
}

static void each_call_fails(void **state)
{
    static struct expected x;
    unsigned turn = 0;
    (void)state;
    n_tried = n_failed = n_broken = 0;
    for (size_t s = 0; s < n_scenes; s++) {
        if (!is_meant(&scenes[s]))
            continue;
        expectations(&scenes[s], &x);
        for (int k = 0; k < INTERCEPT_KIND_COUNT; k++) {
            assert_true(x.counts[k] < MOST_CALLS);
            for (uint64_t n = 0; n < x.counts[k]; n++)
                for (const int *e = intercept_rows[k].errors; *e; e++)
                    if (turn++ % stride == 0)
                        attempt(&scenes[s], &x, (struct fault){k, n, *e});
        }
    }
    print_message("%zu calls failed, each once: %zu requests were told, %zu had no answer\n",
                  n_tried, n_failed, n_broken);
    if (only)
        return;
    assert_true(n_tried > 400 / stride);
    /* A sessions' memory has hardly a call that can fail, and with Redis most of them are made good
     * by another connection: only of a folder's calls is every sample told of some. */
    bool told = strcmp(scenes_store, "dir") != 0 || n_failed > 0;
    assert_true(stride > STRIDE || (told && n_broken > 0));
}

static void each_allocation_fails(void **state)
{
    static struct expected x;
    unsigned turn = 0, every = stride == 1 ? 1 : 3 * stride;
    (void)state;
    n_tried = n_failed = n_broken = 0;
    for (size_t s = 0; s < n_scenes; s++) {
        if (!is_meant(&scenes[s]))
            continue;
        expectations(&scenes[s], &x);
        for (uint64_t n = 0; n < x.n_allocations; n++)
            if (turn++ % every == 0)
                attempt(&scenes[s], &x, (struct fault){ALLOCATION, n, ENOMEM});
    }
    print_message("%zu allocations failed, each once: %zu requests were told, %zu had no answer\n",
                  n_tried, n_failed, n_broken);
    if (only)
        return;
    assert_true(n_tried > 500 / every);
    assert_true(stride > STRIDE || n_failed > 0);
}

static int start_memory(void **state)
{
    (void)state;
    return scenes_start("memory", false);
}

static int start_dir(void **state)
{
    (void)state;
    return scenes_start("dir", true);
}

static int start_redis(void **state)
{
    (void)state;
    redis_init(&redis, "calls", NULL);
    return scenes_start(redis.spec, true);
}

static int stop(void **state)
{
    (void)state;
    return inside_stop();
}

static int stop_redis(void **state)
{
    int rc = stop(state);
    redis_done(&redis);
    return rc;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails),
                                       cmocka_unit_test(each_allocation_fails)};
    if (argc > 1)
        stride = (unsigned)strtoul(argv[1], NULL, 10);
    assert_true(stride > 0);
    only = argc > 2 ? argv[2] : NULL;
#if defined(__SANITIZE_THREAD__)
    print_message(
        "skipped: 6 cases of failing calls: the thread sanitizer does not see what openat() "
        "opens, and its reports make calls that are intercepted here\n");
    return 0;
#endif
    intercept_not_here();
    const char *store = argc > 3 ? argv[3] : NULL;
    int rc = 0;
    if (!store || !strcmp(store, "memory"))
        rc += cmocka_run_group_tests_name("calls, memory", tests, start_memory, stop);
    if (!store || !strcmp(store, "dir"))
        rc += cmocka_run_group_tests_name("calls, dir:", tests, start_dir, stop);
    if (!store || !strcmp(store, "redis"))
        rc += cmocka_run_group_tests_name("calls, redis:", tests, start_redis, stop_redis);
    return rc;
}
