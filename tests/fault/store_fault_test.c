/* store_fault_test.c: the `dir:` store on a disk that fails, and without memory.
 *
 * One scenario does everything a store can do: create, turns, patch, snapshot, restore, delete,
 * load, rewrite, close and open again. It is run once for each call of the system (each allocation)
 * with that one failing, and once for each with the power cut there. Afterwards what was
 * acknowledged must be there, what failed must not, before and after opening again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "tests/support/disk.h"
#include "tests/support/faults.h"

enum { REWRITE_BYTES = 2500, ACTORS = 5 };

static bool load_all(struct shop *st, struct faults *in)
{
    for (size_t i = 0; i < ACTORS; i++) {
        struct sl_error err;
        enum sl_code c = shop_has(st, i) ? shop_load(st, i, &err) : SL_OK;
        if (c)
            faults_told(in, c, err.message);
        if (disk_is_cut())
            return false;
    }
    return true;
}

/* Some of everything, several sessions at once. */
static bool act(struct shop *st, struct faults *in)
{
    for (size_t i = 0; i < ACTORS; i++)
        if (!shop_has(st, i))
            do_create(st, i);
    if (!faults_settle(st, in))
        return false;
    for (size_t i = 0; i < 2 * ACTORS; i++)
        if (shop_has(st, i % ACTORS))
            do_turn(st, i % ACTORS, i % 4 == 1);
    if (!faults_settle(st, in))
        return false;
    for (size_t i = 0; i < ACTORS; i++) {
        if (!shop_has(st, i))
            continue;
        if (i < 3)
            do_name(st, i, i);
        if (i == 0)
            do_snapshot(st, i, 600);
        if (i == 2)
            do_old_snapshot(st, i, 1, 602);
        for (size_t k = i; k < 3; k++)
            do_patch(st, i);
        if (i == 3)
            do_remove(st, i);
        if (i == 4)
            do_far_restore(st, i, 2, 90);
        if (i == 0 || i == 4)
            do_turn(st, i, i == 0);
        if (i == 2)
            do_unname(st, i, 1);
    }
    return faults_settle(st, in) && load_all(st, in);
}

static bool goes_on(struct shop *st)
{
    struct faults none = {0};
    return act(st, &none);
}

/* What is kept to rewind to makes the log long before it is worth writing anew. */
static bool act_until_rewritten(struct shop *st, struct faults *in)
{
    return act(st, in) && act(st, in) && act(st, in);
}

static void scenario(struct shop *st, struct faults *in)
{
    if (!faults_open(st, in))
        return;
    if (!act_until_rewritten(st, in))
        return;
    shop_close(st);
    if (disk_is_cut() || !faults_open(st, in))
        return;
    if (act(st, in))
        shop_close(st);
}

/* How many calls of the system the scenario makes; and that it rewrites. */
static uint64_t count_calls(size_t short_writes)
{
    struct shop *st = faults_shop(REWRITE_BYTES, 0);
    disk_short_writes(short_writes);
    struct faults none = {0};
    struct sl_store_stats stats;
    assert_true(faults_open(st, &none));
    assert_true(act_until_rewritten(st, &none));
    sl_store_stats(st->store, &stats);
    if (!stats.rewrites)
        fail_msg("no rewrite: %llu bytes, %llu needed", (unsigned long long)stats.log_bytes,
                 (unsigned long long)stats.live_log_bytes);
    shop_close(st);
    assert_true(faults_open(st, &none) && act(st, &none));
    shop_close(st);
    uint64_t n = disk_calls();
    assert_int_equal(st->n_failed, 0);
    faults_check(st);
    faults_done(st);
    assert_int_equal(disk_open_files(), 0);
    return n;
}

static void fail_each(int errnum, enum sl_code code, const char *text, int64_t step)
{
    int64_t n = (int64_t)count_calls(150);
    size_t n_errors = 0;
    for (int64_t i = 0; i < n; i += step) {
        struct shop *st = faults_shop(REWRITE_BYTES, 0);
        struct faults in = {code, text, 0};
        disk_short_writes(150); /* a write that fails has written something */
        disk_fail_at(i, errnum);
        scenario(st, &in);
        assert_true(disk_failed() == 1 || faults_late(i, n));
        disk_fail_at(-1, 0);
        n_errors += in.n_errors > 0;
        faults_salvaged(st, DISK_SYNCED, 0, goes_on);
        faults_check(st);
        faults_done(st);
        assert_int_equal(disk_open_files(), 0);
    }
    printf("%d calls failed with %s; %zu were told\n", (int)((n + step - 1) / step), text,
           n_errors);
    assert_true(n_errors > (size_t)(n / step) / 2);
}

static void test_each_call_fails(void **state)
{
    (void)state;
    fail_each(EIO, SL_E_IO, "Input/output error", 1);
}

static void test_each_call_finds_no_space(void **state)
{
    (void)state;
    fail_each(ENOSPC, SL_E_STORE_FULL, "No space left on device", 1);
}

static void test_each_allocation_fails(void **state)
{
    (void)state;
    size_t n_errors = 0;
    int64_t n = 0;
    for (bool reached = true; reached; n++) {
        struct shop *st = faults_shop(REWRITE_BYTES, 0);
        struct faults in = {SL_E_NO_MEMORY, "no memory", 0};
        uint64_t before = sl_mem_count();
        sl_mem_fail_once(n);
        scenario(st, &in);
        reached = sl_mem_count() - before > (uint64_t)n;
        sl_mem_fail_after(-1);
        n_errors += in.n_errors > 0;
        faults_check(st);
        faults_done(st);
    }
    printf("%d allocations failed; %zu were told\n", (int)n, n_errors);
    assert_true(n_errors > (size_t)n / 2);
}

/* --- the power is cut ----------------------------------------------------------------------------
 */

static void test_power_is_cut_at_each_call(void **state)
{
    (void)state;
    int64_t n = (int64_t)count_calls(0);
    for (int64_t i = 0; i < n; i++) {
        struct shop *st = faults_shop(REWRITE_BYTES, 0);
        struct faults none = {0};
        st->crashed = true;
        disk_cut_at(i);
        scenario(st, &none);
        assert_true(disk_is_cut() || faults_late(i, n));
        if (st->store)
            shop_close(st);
        faults_salvaged(st, DISK_SYNCED, 0, goes_on);
        faults_salvaged(st, DISK_ALL, 0, goes_on);
        faults_salvaged(st, DISK_SOME, (uint64_t)i, goes_on);
        faults_salvaged(st, DISK_SOME, (uint64_t)i + 1000000, goes_on);
        faults_done(st);
    }
    printf("power cut at each of %d calls\n", (int)n);
}

/* Killed at each call, started again, shown to its clients; then the power is cut: what was shown
 * is there, although the first one may not have come to sync it. */
static void test_killed_and_then_cut(void **state)
{
    (void)state;
    int64_t n = (int64_t)count_calls(0);
    for (int64_t i = 0; i < n; i++) {
        struct shop *st = faults_shop(REWRITE_BYTES, 0);
        struct faults none = {0};
        st->crashed = true;
        disk_cut_at(i);
        scenario(st, &none);
        if (st->store)
            shop_close(st);
        disk_cut_at(-1);
        shop_must_open(st);
        assert_int_equal(shop_check(st), 0); /* now the model is what was found */
        faults_salvaged(st, DISK_SYNCED, 0, goes_on);
        st->crashed = false;
        if (i % 3 == 0)
            assert_true(act(st, &none));
        faults_salvaged(st, DISK_SYNCED, 0, goes_on);
        faults_check(st);
        faults_done(st);
    }
    printf("killed at each of %d calls\n", (int)n);
}

/* --- a disk that stays bad -----------------------------------------------------------------------
 */

/* One write of each kind, which must fail so. */
static void try_writes(struct shop *st, enum sl_code code, const char *text)
{
    void (*const writes[])(struct shop * st, size_t i) = {do_create, do_patch, do_remove};
    for (size_t i = 0; i < 5; i++) {
        size_t failed = st->n_failed;
        if (i < 3)
            writes[i](st, i == 0 ? 9 : 1);
        else if (i == 3)
            do_turn(st, 1, true);
        else
            do_snapshot(st, 1, 100);
        shop_run(st);
        assert_int_equal(st->n_failed, failed + 1);
        if (st->last.code != code || !strstr(st->last.message, text))
            fail_msg("'%s' (%s) instead of '%s' (%s)", st->last.message,
                     sl_code_name(st->last.code), text, sl_code_name(code));
    }
}

static bool is_read_only(const struct shop *st)
{
    struct sl_store_stats s;
    sl_store_stats(st->store, &s);
    return s.read_only;
}

/* While nothing can be synced (or written), reads go on and every write says why; afterwards
 * everything goes on from what was acknowledged. */
static void refuse_and_heal(void (*refuse)(int errnum), int errnum, enum sl_code code,
                            const char *text)
{
    struct shop *st = faults_shop(REWRITE_BYTES, 0);
    struct faults none = {0};
    shop_must_open(st);
    assert_true(act(st, &none));
    for (int round = 0; round < 2; round++) {
        refuse(errnum);
        do_turn(st, 0, true);
        shop_run(st);
        assert_int_equal(st->last.code, code);
        assert_true(is_read_only(st));
        try_writes(st, code, text);
        assert_int_equal(shop_check(st), 0);
        refuse(0);
        do_turn(st, 0, true);
        do_turn(st, 1, true);
        size_t failed = st->n_failed;
        shop_run(st);
        assert_int_equal(st->n_failed, failed);
        assert_false(is_read_only(st));
        assert_true(act(st, &none));
        faults_salvaged(st, DISK_SYNCED, 0, goes_on);
        assert_int_equal(shop_check(st), 0);
    }
    refuse(errnum); /* and closed while it is bad: what failed may be there, if it was written */
    st->crashed = true;
    do_turn(st, 0, true);
    shop_run(st);
    shop_close(st);
    refuse(0);
    faults_check(st);
    faults_done(st);
    assert_int_equal(disk_open_files(), 0);
}

static void test_nothing_can_be_synced(void **state)
{
    (void)state;
    refuse_and_heal(disk_refuse_syncs, EIO, SL_E_IO, "Input/output error");
}

static void test_nothing_can_be_written(void **state)
{
    (void)state;
    refuse_and_heal(disk_refuse_writes, ENOSPC, SL_E_STORE_FULL, "No space left on device");
}

static void test_the_quota_is_used_up(void **state)
{
    (void)state;
    refuse_and_heal(disk_refuse_writes, EDQUOT, SL_E_STORE_FULL, "Disk quota exceeded");
}

int main(void)
{
    setenv("UV_THREADPOOL_SIZE", "1", 1); /* so that the n-th call is the same each time */
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call_fails),
        cmocka_unit_test(test_each_call_finds_no_space),
        cmocka_unit_test(test_each_allocation_fails),
        cmocka_unit_test(test_power_is_cut_at_each_call),
        cmocka_unit_test(test_killed_and_then_cut),
        cmocka_unit_test(test_nothing_can_be_synced),
        cmocka_unit_test(test_nothing_can_be_written),
        cmocka_unit_test(test_the_quota_is_used_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
