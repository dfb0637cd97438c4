/* rewrite_fault_test.c: the log is rewritten while everything goes on, on a disk that fails.
 *
 * The rewrite copies one session a slice, and is held at the first read of each slice. Then each
 * kind of change is asked for of a session that was copied, of the one that is being copied, and of
 * one that was not copied yet; likewise while the tail is copied. That scenario is run once for
 * each call of the system (each allocation) with that one failing, and once for each with the power
 * cut there. What was acknowledged must be there afterwards; and where only the rewrite failed, all
 * of it was acknowledged, and the next rewrite succeeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "tests/support/faults.h"

enum { N = 18, NEWER = 6, STEPS = 2 * N, SLICE = 64, NEVER = 1 << 30 };

/* The thread sanitizer is after other things than each single call, and takes twenty times as long.
 */
#if defined(__SANITIZE_THREAD__)
enum { EACH = 9 };
#else
enum { EACH = 1 };
#endif

/* --- the gate ------------------------------------------------------------------------------------
 */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    struct sl_dir *d; /* NULL: it is open for all */
    bool waiting;
    size_t next, tail_next; /* where it was held last */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

/* The pool's thread: the rewrite is its own, as long as its step is under way. */
static ssize_t held_pread(int fd, void *p, size_t n, off_t at)
{
    pthread_mutex_lock(&gate.lock);
    struct sl_dir *d = gate.d;
    if (d && (d->rewrite.next != gate.next || d->rewrite.tail_next != gate.tail_next)) {
        gate.next = d->rewrite.next;
        gate.tail_next = d->rewrite.tail_next;
        gate.waiting = true;
        uv_async_send(&d->wake);
        while (gate.waiting)
            pthread_cond_wait(&gate.opened, &gate.lock);
    }
    pthread_mutex_unlock(&gate.lock);
    return disk_io.pread(fd, p, n, at);
}

static void set_gate(struct sl_dir *d)
{
    pthread_mutex_lock(&gate.lock);
    gate.d = d;
    gate.next = gate.tail_next = SIZE_MAX;
    pthread_mutex_unlock(&gate.lock);
}

static void open_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.waiting = false;
    pthread_cond_signal(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

static bool is_held(void)
{
    pthread_mutex_lock(&gate.lock);
    bool held = gate.waiting;
    pthread_mutex_unlock(&gate.lock);
    return held;
}

static struct sl_dir *dir_of(struct shop *st)
{
    return (struct sl_dir *)(void *)st->store;
}

/* Until the rewrite is held; false: there is none any more, and nothing is waited for. */
static bool run_to_gate(struct shop *st)
{
    while (!is_held()) {
        if (!dir_of(st)->rewriting && !st->n_waiting)
            return false;
        uv_run(&st->loop, UV_RUN_ONCE);
    }
    return true;
}

/* --- what is asked for ---------------------------------------------------------------------------
 */

enum kind { TURN, REMOVE, REMAKE, RESTORE, SNAPSHOT, PATCH, NAME, UNNAME, KINDS };
enum position { COPIED, BEING_COPIED, NOT_YET, POSITIONS };

static size_t asked[KINDS][POSITIONS];

static void ask(struct shop *st, size_t i, enum kind kind)
{
    if (st->n_ahead[i] + 3 > SHOP_AHEAD)
        return;
    if (!shop_has(st, i)) {
        do_create(st, i);
        do_turn(st, i, true);
        return;
    }
    switch (kind) {
    case TURN:
        do_turn(st, i, i % 2);
        return;
    case REMOVE:
        do_remove(st, i);
        return;
    case REMAKE:
        do_remove(st, i);
        do_create(st, i);
        do_turn(st, i, i % 2 == 0);
        return;
    case RESTORE:
        do_restore(st, i, 100);
        return;
    case SNAPSHOT:
        do_turn(st, i, true);
        do_snapshot(st, i, 100);
        return;
    case NAME:
        do_name(st, i, i % 3);
        return;
    case UNNAME:
        do_unname(st, i, i);
        return;
    default:
        do_patch(st, i);
    }
}

/* In which order the sessions are copied. The gate is closed. */
static void find_order(struct shop *st, size_t order[N])
{
    const struct sl_rewrite *w = &dir_of(st)->rewrite;
    assert_int_equal(w->n, N);
    for (size_t k = 0; k < N; k++) {
        order[k] = N;
        for (size_t i = 0; w->v[k] && i < N; i++) {
            struct sl_store_key key = shop_key(st, i);
            if (strcmp(w->v[k]->id, key.id) == 0 && strcmp(w->v[k]->tenant->name, key.tenant) == 0)
                order[k] = i;
        }
        assert_true(order[k] < N);
    }
}

static void ask_at(struct shop *st, const size_t order[N], size_t step)
{
    size_t next = dir_of(st)->rewrite.next;
    const size_t begin[] = {0, next, next + 1}, end[] = {next, next + 1, N};
    for (size_t p = 0; p < POSITIONS; p++) {
        size_t first = begin[p] < N ? begin[p] : N, last = end[p] < N ? end[p] : N;
        enum kind kind = (enum kind)((step + 2 * p) % KINDS);
        if (first >= last)
            continue;
        size_t i = order[first + step * 5 % (last - first)];
        asked[kind][p] += shop_has(st, i);
        ask(st, i, kind);
    }
    ask(st, N + step % NEWER, (enum kind)(step / NEWER % KINDS));
}

/* --- the scenario --------------------------------------------------------------------------------
 */

static struct sl_store_io held_io;

/* A store of which more than half is dead. */
static struct shop *prepare(void)
{
    struct shop *st = faults_shop(NEVER, SLICE);
    held_io = disk_io;
    held_io.pread = held_pread;
    st->io = &held_io;
    shop_must_open(st);
    for (size_t i = 0; i < N; i++) {
        do_create(st, i);
        do_turn(st, i, true);
        do_turn(st, i, false);
    }
    shop_run(st);
    for (size_t i = 0; i < N; i++) {
        do_name(st, i, 0);
        if (i % 3)
            do_snapshot(st, i, 200);
    }
    for (size_t k = 0; k < 10; k++)
        for (size_t i = 0; i < N; i++)
            do_patch(st, i);
    shop_run(st);
    for (size_t i = 0; i < N; i++)
        do_turn(st, i, i % 2);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    return st;
}

static uint64_t n_rewrites(struct shop *st)
{
    struct sl_store_stats s;
    sl_store_stats(st->store, &s);
    return s.rewrites;
}

static void scenario(struct shop *st)
{
    struct sl_dir *d = dir_of(st);
    size_t order[N];
    set_gate(d);
    d->rewrite_bytes = 1;
    do_patch(st, 0);
    for (size_t step = 0; run_to_gate(st); step++) {
        d->rewrite_bytes = NEVER; /* no second one */
        if (!step)
            find_order(st, order);
        if (step < STEPS && !disk_is_cut())
            ask_at(st, order, step);
        uv_run(&st->loop, UV_RUN_NOWAIT);
        open_gate();
    }
    set_gate(NULL);
    for (size_t i = 0; i < N && !disk_is_cut(); i++)
        if (shop_has(st, i) && st->n_ahead[i] < SHOP_AHEAD)
            do_turn(st, i, true);
    shop_run(st);
}

static int64_t count_calls(void)
{
    struct shop *st = prepare();
    uint64_t before = disk_calls();
    memset(asked, 0, sizeof asked);
    scenario(st);
    int64_t n = (int64_t)(disk_calls() - before);
    assert_int_equal(n_rewrites(st), 1);
    assert_int_equal(st->n_failed, 0);
    for (size_t k = 0; k < KINDS; k++)
        for (size_t p = 0; p < POSITIONS; p++)
            assert_true(asked[k][p] > 0);
    faults_salvaged(st, DISK_SYNCED, 0, NULL);
    faults_check(st);
    faults_done(st);
    assert_int_equal(disk_open_files(), 0);
    return n;
}

/* What is left of an earlier one does no harm to the next. */
static void rewrite_again(struct shop *st)
{
    struct sl_dir *d = dir_of(st);
    uint64_t before = n_rewrites(st);
    d->rewrite_bytes = 1;
    d->rewrite_from = 0;
    for (size_t k = 0; k < 400 && n_rewrites(st) == before; k++) {
        for (size_t i = 0; i < N; i++)
            if (shop_has(st, i))
                do_patch(st, i);
        shop_run(st);
    }
    assert_true(n_rewrites(st) > before);
    d->rewrite_bytes = NEVER;
}

/* --- the tests -----------------------------------------------------------------------------------
 */

static void fail_each(int errnum, int64_t step)
{
    int64_t n = count_calls();
    size_t n_dropped = 0, n_kept = 0, n_refused = 0;
    for (int64_t i = 0; i < n; i += step) {
        struct shop *st = prepare();
        disk_fail_at(i, errnum);
        scenario(st);
        assert_true(disk_failed() == 1 || faults_late(i, n));
        disk_fail_at(-1, 0);
        n_dropped += !n_rewrites(st) && !st->n_failed;
        n_kept += n_rewrites(st) > 0;
        n_refused += st->n_failed > 0;
        faults_salvaged(st, DISK_SYNCED, 0, NULL);
        rewrite_again(st);
        faults_check(st);
        faults_done(st);
        assert_int_equal(disk_open_files(), 0);
    }
    printf(
        "%d calls failed with %s: %zu drop the rewrite alone, %zu leave it, %zu refuse a change\n",
        (int)((n + step - 1) / step), strerror(errnum), n_dropped, n_kept, n_refused);
    assert_true(n_dropped > N / (size_t)step && n_refused > 0 && n_kept > 0);
}

static void test_each_call_fails(void **state)
{
    (void)state;
    fail_each(EIO, EACH);
}

static void test_each_call_finds_no_space(void **state)
{
    (void)state;
    fail_each(ENOSPC, 5 * EACH);
}

static void test_each_allocation_fails(void **state)
{
    (void)state;
    size_t n_dropped = 0;
    int64_t n = 0;
    for (bool reached = true; reached; n++) {
        struct shop *st = prepare();
        uint64_t before = sl_mem_count();
        sl_mem_fail_once(n);
        scenario(st);
        reached = sl_mem_count() - before > (uint64_t)n;
        sl_mem_fail_after(-1);
        n_dropped += !n_rewrites(st) && !st->n_failed;
        rewrite_again(st);
        faults_check(st);
        faults_done(st);
    }
    printf("%d allocations failed: %zu drop the rewrite alone\n", (int)n, n_dropped);
    assert_true(n_dropped > 2);
}

static void test_power_is_cut_at_each_call(void **state)
{
    (void)state;
    int64_t n = count_calls();
    for (int64_t i = 0; i < n; i += EACH) {
        struct shop *st = prepare();
        st->crashed = true;
        disk_cut_at(i);
        scenario(st);
        assert_true(disk_is_cut() || faults_late(i, n));
        shop_close(st);
        faults_salvaged(st, DISK_SYNCED, 0, NULL);
        faults_salvaged(st, DISK_ALL, 0, NULL);
        faults_salvaged(st, DISK_SOME, (uint64_t)i, NULL);
        faults_done(st);
    }
    printf("power cut at %d of %d calls\n", (int)((n + EACH - 1) / EACH), (int)n);
}

/* Closed in the midst of it: the old log stays, whole. */
static void test_closed_at_each_slice(void **state)
{
    (void)state;
    bool whole = false;
    for (size_t at = 0; !whole; at++) {
        struct shop *st = prepare();
        struct sl_dir *d = dir_of(st);
        set_gate(d);
        d->rewrite_bytes = 1;
        do_patch(st, 0);
        size_t step = 0;
        for (; step < at && run_to_gate(st); step++) {
            d->rewrite_bytes = NEVER;
            open_gate();
        }
        whole = step < at;
        if (!whole && run_to_gate(st))
            open_gate();
        set_gate(NULL);
        do_turn(st, 1, true); /* what was asked for is done before */
        shop_close(st);
        faults_check(st);
        faults_done(st);
        assert_int_equal(disk_open_files(), 0);
    }
}

int main(void)
{
    setenv("UV_THREADPOOL_SIZE", "1", 1); /* so that the n-th call is the same each time */
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_at_each_slice),
        cmocka_unit_test(test_each_call_fails),
        cmocka_unit_test(test_each_call_finds_no_space),
        cmocka_unit_test(test_each_allocation_fails),
        cmocka_unit_test(test_power_is_cut_at_each_call),
    };
    return cmocka_run_group_tests_name("rewrite_fault", tests, NULL, NULL);
}
