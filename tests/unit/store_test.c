/* store_test.c: the `dir:` store as its callers see it, against a model. */
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
#include "tests/support/disk.h"
#include "tests/support/store_suite.h"

static struct shop *new_shop_keeping(const struct sl_store_io *io, uint64_t rewrite_bytes,
                                     uint64_t keep_turns)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    shop_init(st, io, rewrite_bytes);
    st->keep_turns = keep_turns;
    shop_must_open(st);
    return st;
}

static struct shop *new_shop(const struct sl_store_io *io, uint64_t rewrite_bytes)
{
    return new_shop_keeping(io, rewrite_bytes, 0);
}

static struct shop *new_default(void)
{
    return new_shop(&sl_store_io_system, 0);
}

static uint64_t rewrites;

static void check_size(struct shop *st, int round)
{
    struct sl_store_stats s = stats_of(st);
    rewrites += s.rewrites;
    assert_true(s.log_bytes <= 2 * s.live_log_bytes + 2 * 8000 + 4096);
    if (round % 4 == 3) {
        shop_close(st);
        shop_must_open(st);
        assert_int_equal(shop_check(st), 0);
        /* Opened again, the same records are needed. */
        assert_int_equal(stats_of(st).live_log_bytes, s.live_log_bytes);
        assert_int_equal(stats_of(st).snapshot_bytes, s.snapshot_bytes);
    }
}

/* With a rewrite every few kilobytes. */
static void test_random_changes(void **state)
{
    (void)state;
    suite_random_changes(new_shop(&sl_store_io_system, 8000), check_size);
    assert_true(rewrites > 0);
}

/* --- earlier versions --------------------------------------------------------------------------
 */

static void check_past(struct shop *st, int round)
{
    assert_int_equal(shop_check_past(st), 0);
    check_size(st, round);
    assert_int_equal(shop_check_past(st), 0);
}

/* The same, and each of the last versions is still there. */
static void test_random_changes_kept(void **state)
{
    (void)state;
    static const uint64_t keep[] = {0, 1, 4, 1000};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        struct shop *st = new_shop_keeping(&sl_store_io_system, 8000, keep[i]);
        uint64_t before = rewrites;
        suite_random_changes(st, check_past);
        assert_true(rewrites > before);
    }
}

/* What is kept has a limit, whatever a session does. */
static void test_kept_is_bounded(void **state)
{
    (void)state;
    struct shop *st = new_shop_keeping(&sl_store_io_system, 0, 4);
    do_create(st, 0);
    for (int i = 0; i < 40; i++) {
        do_turn(st, 0, false);
        do_snapshot(st, 0, 1000); /* as a pause after every turn does */
        shop_run(st);
        assert_true(stats_of(st).snapshot_bytes <= 5 * 1000);
    }
    assert_int_equal(shop_check_past(st), 0);
    do_remove(st, 0);
    shop_run(st);
    assert_int_equal(stats_of(st).snapshot_bytes, 0);
    check_twice(st);
    free_shop(st);
}

static void test_a_name_behind_the_last_turns(void **state)
{
    (void)state;
    suite_a_name_behind_the_last_turns(new_shop_keeping(&sl_store_io_system, 2000, 2));
}

/* With more: what had gone does not come back. With fewer: the rest goes. */
static void test_kept_is_changed(void **state)
{
    (void)state;
    struct shop *st = new_shop_keeping(&sl_store_io_system, 0, 3);
    do_create(st, 0);
    for (int i = 0; i < 12; i++) {
        do_turn(st, 0, i % 2);
        if (i % 2)
            do_snapshot(st, 0, 500);
        shop_run(st);
    }
    assert_int_equal(shop_check_past(st), 0);
    static const uint64_t keep[] = {100, 2, 0, 3};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        shop_close(st);
        st->keep_turns = keep[i];
        shop_must_open(st);
        assert_int_equal(shop_check(st), 0);
        st->keep_turns = keep[i] < 3 ? keep[i] : 0; /* what must be there */
        assert_int_equal(shop_check_past(st), 0);
        if (keep[i] == 0)
            assert_int_equal(stats_of(st).snapshot_bytes, 500);
    }
    free_shop(st);
}

/* --- group commit --------------------------------------------------------------------------------
 */

static void test_commits_share_a_sync(void **state)
{
    (void)state;
    struct shop *st = new_shop(&sl_store_io_system, 0);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        do_create(st, i);
    shop_run(st);
    struct sl_store_stats a = stats_of(st);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        do_turn(st, i, false);
    shop_run(st);
    struct sl_store_stats b = stats_of(st);
    assert_int_equal(b.commits - a.commits, SHOP_SESSIONS);
    assert_int_equal(b.syncs - a.syncs, 1);
    for (size_t i = 0; i < 8; i++) /* of one session they come one by one */
        do_turn(st, 0, false);
    shop_run(st);
    assert_int_equal(stats_of(st).syncs - b.syncs, 8);
    check_twice(st);
    free_shop(st);
}

/* --- answers -------------------------------------------------------------------------------------
 */

/* The model keeps the last four whatever is cut; here it is their age that counts. */
static void count_answers(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    size_t *n = arg;
    assert_null(err);
    *n = r->n_answers;
}

static size_t answers_of(struct shop *st, size_t i)
{
    size_t n = SIZE_MAX;
    struct sl_store_key k = shop_key(st, i);
    sl_store_load(st->store, &k, NULL, count_answers, &n);
    while (n == SIZE_MAX)
        uv_run(&st->loop, UV_RUN_ONCE);
    return n;
}

static void test_answers_live_a_day(void **state)
{
    (void)state;
    const int64_t now = 1900000000, day = 86400;
    disk_end();
    disk_set_time(now);
    struct shop *st = new_shop(&disk_io, 3000);
    do_create(st, 0);
    for (int i = 0; i < 6; i++)
        do_turn(st, 0, i < 5);
    do_snapshot(st, 0, 10);
    shop_run(st);
    assert_int_equal(answers_of(st, 0), 4);
    check_twice(st);
    disk_set_time(now + day);
    assert_int_equal(answers_of(st, 0), 4);
    disk_set_time(now + day + 1);
    assert_int_equal(answers_of(st, 0), 0);
    st->base = now + day + 1; /* a new answer puts the old ones out */
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(answers_of(st, 0), 1);
    disk_set_time(now); /* also for a clock that was set back */
    assert_int_equal(answers_of(st, 0), 1);
    disk_set_time(now + day + 1);
    shop_close(st);
    shop_must_open(st);
    assert_int_equal(answers_of(st, 0), 1);
    shop_close(st);
    shop_done(st);
    free(st);
    disk_end();
}

/* Answers of turns that a snapshot holds survive rewrites, as records of their own. */
static void test_answers_survive_rewrites(void **state)
{
    (void)state;
    struct shop *st = new_shop(&sl_store_io_system, 2000);
    do_create(st, 0);
    do_create(st, 1);
    for (int i = 0; i < 3; i++)
        do_turn(st, 0, true);
    do_turn(st, 0, false);
    do_snapshot(st, 0, 10);
    do_turn(st, 0, false);
    shop_run(st);
    for (int round = 0; round < 12; round++) { /* dead records of another session */
        for (int i = 0; i < 10; i++)
            do_patch(st, 1);
        shop_run(st);
        assert_int_equal(shop_check(st), 0);
    }
    assert_true(stats_of(st).rewrites >= 2); /* so a rewritten answer was rewritten again */
    check_twice(st);
    do_turn(st, 0, true);
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    check_twice(st);
    free_shop(st);
}

/* Answers of turns that were not written one by one: with what stands in store.h. */
struct told_answers {
    size_t n;
    uint64_t versions[SL_STORE_ANSWERS_MAX];
    char last[16];
};

static enum sl_code note_answers(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct told_answers *t = arg;
    (void)err;
    t->n = r->n_answers;
    for (size_t i = 0; i < r->n_answers; i++)
        t->versions[i] = r->answers[i].version;
    if (t->n)
        snprintf(t->last, sizeof t->last, "%.*s", (int)r->answers[t->n - 1].body.n,
                 r->answers[t->n - 1].body.s);
    return SL_OK;
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    (void)arg;
    (void)err;
    assert_non_null(r);
}

static void expect_answers(struct shop *st, size_t n, uint64_t first, const char *last)
{
    struct told_answers t = {0};
    struct sl_store_key k = shop_key(st, 0);
    sl_store_load(st->store, &k, note_answers, on_loaded, &t);
    shop_run(st);
    uv_run(&st->loop, UV_RUN_NOWAIT);
    while (!t.n)
        uv_run(&st->loop, UV_RUN_ONCE);
    assert_int_equal(t.n, n);
    for (size_t i = 1; i < n; i++)
        assert_true(t.versions[i] > t.versions[i - 1]);
    assert_int_equal(t.versions[0], first);
    assert_string_equal(t.last, last);
}

static void on_answered(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)err;
    *(int *)arg = (int)code;
}

static enum sl_code answer(struct shop *st, uint64_t version, const char *body)
{
    int code = -1;
    struct sl_store_key k = shop_key(st, 0);
    struct sl_store_answer a = {.idempotency_key = "k",
                                .at = sl_store_io_system.now(),
                                .version = version,
                                .body = {body, strlen(body)}};
    sl_store_put_answer(st->store, &k, &a, on_answered, &code);
    while (code < 0)
        uv_run(&st->loop, UV_RUN_ONCE);
    return (enum sl_code)code;
}

static void test_answers_behind_a_snapshot(void **state)
{
    (void)state;
    struct shop *st = new_shop(&sl_store_io_system, 2000);
    do_create(st, 0);
    do_create(st, 1);
    shop_run(st);
    assert_int_equal(answer(st, 1, "early"), SL_E_VERSION_MISMATCH);
    do_far_restore(st, 0, 8, 100); /* what several turns have left */
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    uint64_t at = st->v[0].version;
    assert_true(at > 7);
    assert_int_equal(answer(st, at + 1, "late"), SL_E_VERSION_MISMATCH);
    assert_int_equal(answer(st, at - 2, "one"), SL_OK);
    assert_int_equal(answer(st, at, "two"), SL_OK);
    assert_int_equal(answer(st, at, "again"), SL_OK);      /* it is there */
    assert_int_equal(answer(st, at - 1, "before"), SL_OK); /* too late for it */
    expect_answers(st, 2, at - 2, "two");
    shop_close(st);
    shop_must_open(st);
    expect_answers(st, 2, at - 2, "two");
    for (uint64_t n = stats_of(st).rewrites; stats_of(st).rewrites < n + 2; shop_run(st))
        do_patch(st, 1);
    expect_answers(st, 2, at - 2, "two");
    do_far_restore(st, 0, 8, 100);
    shop_run(st);
    for (uint64_t k = 1; k <= 4; k++)
        assert_int_equal(answer(st, at + k, k < 4 ? "more" : "four"), SL_OK);
    expect_answers(st, SL_STORE_ANSWERS_MAX, at + 1, "four"); /* no more than these are kept */
    do_turn(st, 0, false);
    shop_run(st);
    assert_int_equal(answer(st, at + 7, "behind a turn"), SL_OK); /* too late as well */
    shop_close(st);
    shop_must_open(st);
    expect_answers(st, SL_STORE_ANSWERS_MAX, at + 1, "four");
    free_shop(st);
}

/* --- odds ----------------------------------------------------------------------------------------
 */

/* The system may move a byte at a time, and interrupt anything. */
static void test_stutter(void **state)
{
    (void)state;
    disk_end();
    disk_short_writes(1);
    disk_interrupt(true);
    struct shop *st = new_shop(&disk_io, 3000);
    for (size_t i = 0; i < 6; i++) {
        do_create(st, i);
        for (size_t k = 0; k < 5; k++)
            do_turn(st, i, k % 2);
        do_snapshot(st, i, 500);
        do_patch(st, i);
    }
    do_remove(st, 3);
    for (shop_run(st); !stats_of(st).rewrites; shop_run(st))
        do_patch(st, 0);
    assert_int_equal(st->n_failed, 0);
    check_twice(st);
    free_shop(st);
    disk_end();
    assert_int_equal(disk_open_files(), 0);
}

/* Loads and a rewrite at the same time: the old log is read to the end. */
static void test_loads_during_rewrites(void **state)
{
    (void)state;
    struct shop *st = new_shop(&sl_store_io_system, 1500);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        do_create(st, i);
    shop_run(st);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < 6; i++)
            for (int k = 0; k < 10; k++)
                do_patch(st, i);
        for (size_t i = 6; i < SHOP_SESSIONS; i++)
            if (st->v[i].n_turns < 2)
                do_turn(st, i, false);
        /* Not waited for: the loads come between. */
        assert_int_equal(shop_check_soon(st), 0);
    }
    assert_true(stats_of(st).rewrites > 2);
    assert_int_equal(st->n_failed, 0);
    check_twice(st);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    suite_new_shop = new_default;
    suite_too_large = "a record of the store may have 268435456 bytes";
    const struct CMUnitTest tests[] = {
        STORE_SUITE,
        cmocka_unit_test(test_random_changes),
        cmocka_unit_test(test_random_changes_kept),
        cmocka_unit_test(test_kept_is_bounded),
        cmocka_unit_test(test_a_name_behind_the_last_turns),
        cmocka_unit_test(test_kept_is_changed),
        cmocka_unit_test(test_commits_share_a_sync),
        cmocka_unit_test(test_answers_live_a_day),
        cmocka_unit_test(test_answers_survive_rewrites),
        cmocka_unit_test(test_answers_behind_a_snapshot),
        cmocka_unit_test(test_stutter),
        cmocka_unit_test(test_loads_during_rewrites),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
