/* workers_test.c: every part runs once per call, everything written is seen on both sides, and
 * opening gives everything back when it fails. Meant to run under the thread sanitizer as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/workers.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_PARTS = 8, ITEMS = 1000 };

static const size_t thread_counts[] = {1, 2, 3, 8};

static struct sl_workers *open_workers(size_t n)
{
    struct sl_workers *w = NULL;
    struct sl_error err;
    if (sl_workers_open(&w, n, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_int_equal(sl_workers_threads(w), n);
    return w;
}

/* Plain memory on purpose: the thread sanitizer says when the order is not given by the workers. */
struct job {
    size_t calls;
    size_t runs[MAX_PARTS];
    size_t n_parts[MAX_PARTS];
    uint64_t items[ITEMS];
};

static void work(void *arg, size_t part, size_t n_parts)
{
    struct job *j = arg;
    size_t begin, end;
    j->runs[part]++;
    j->n_parts[part] = n_parts;
    sl_work_range(ITEMS, 16, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++)
        j->items[i] += j->calls + i; /* calls: written by the caller just before */
}

static void every_part_runs_once_a_call(void **state)
{
    (void)state;
    enum { CALLS = 2000 };
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        size_t n = thread_counts[t];
        struct sl_workers *w = open_workers(n);
        static struct job j;
        memset(&j, 0, sizeof j);
        for (size_t call = 1; call <= CALLS; call++) {
            j.calls = call;
            sl_workers_run(w, work, &j);
            for (size_t p = 0; p < MAX_PARTS; p++)
                assert_int_equal(j.runs[p], p < n ? call : 0);
        }
        for (size_t p = 0; p < n; p++)
            assert_int_equal(j.n_parts[p], n);
        for (size_t i = 0; i < ITEMS; i++)
            assert_int_equal(j.items[i], (uint64_t)CALLS * (CALLS + 1) / 2 + CALLS * i);
        sl_workers_close(w);
    }
}

static void set_items(void *arg, size_t part, size_t n_parts)
{
    struct job *j = arg;
    size_t begin, end;
    sl_work_range(ITEMS, 1, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++)
        j->items[i] = i;
}

/* Each part reads what another part wrote in the call before. */
static void reverse_items(void *arg, size_t part, size_t n_parts)
{
    struct job *j = arg;
    uint64_t *out = j[1].items;
    size_t begin, end;
    sl_work_range(ITEMS, 1, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++)
        out[i] = j->items[ITEMS - 1 - i];
}

static void parts_see_each_others_writes(void **state)
{
    (void)state;
    static struct job j[2];
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        struct sl_workers *w = open_workers(thread_counts[t]);
        for (int round = 0; round < 200; round++) {
            memset(j, 0, sizeof j);
            sl_workers_run(w, set_items, j);
            sl_workers_run(w, reverse_items, j);
            for (size_t i = 0; i < ITEMS; i++)
                assert_int_equal(j[1].items[i], ITEMS - 1 - i);
        }
        sl_workers_close(w);
    }
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void busy_until(int64_t end)
{
    while (now_ns(CLOCK_MONOTONIC) < end)
        continue;
}

static void part_0_is_slow(void *arg, size_t part, size_t n_parts)
{
    (void)n_parts;
    if (part == 0)
        busy_until(*(int64_t *)arg);
}

static void others_are_slow(void *arg, size_t part, size_t n_parts)
{
    (void)n_parts;
    if (part != 0)
        busy_until(*(int64_t *)arg);
}

/* The calls come so far apart, and take so long, that both sides have gone to sleep. */
static void sleepers_wake(void **state)
{
    (void)state;
    const int64_t ms = 1000000;
    for (size_t t = 1; t < COUNT(thread_counts); t++) {
        struct sl_workers *w = open_workers(thread_counts[t]);
        for (int round = 0; round < 10; round++) {
            int64_t end = now_ns(CLOCK_MONOTONIC) + ms;
            sl_workers_run(w, round % 2 ? part_0_is_slow : others_are_slow, &end);
            assert_true(now_ns(CLOCK_MONOTONIC) >= end);
            busy_until(now_ns(CLOCK_MONOTONIC) + ms);
        }
        sl_workers_close(w);
    }
}

/* Of the others' processor time, while part 0 works for long and between calls. */
static int64_t idle_time(size_t n_threads)
{
    const int64_t ms = 1000000;
    struct sl_workers *w = open_workers(n_threads);
    int64_t end = now_ns(CLOCK_MONOTONIC);
    sl_workers_run(w, part_0_is_slow, &end); /* they have started, or do so now */
    int64_t others = now_ns(CLOCK_PROCESS_CPUTIME_ID) - now_ns(CLOCK_THREAD_CPUTIME_ID);
    end = now_ns(CLOCK_MONOTONIC) + 30 * ms;
    sl_workers_run(w, part_0_is_slow, &end);
    busy_until(end + 30 * ms);
    others = now_ns(CLOCK_PROCESS_CPUTIME_ID) - now_ns(CLOCK_THREAD_CPUTIME_ID) - others;
    sl_workers_close(w);
    return others;
}

/* Next to none. A virtual machine that stands still in a short spin counts that as well. */
static void check_idle(size_t n_threads)
{
    enum { TRIES = 5 };
    int64_t others = INT64_MAX;
    for (int i = 0; i < TRIES && others > 10000000; i++)
        others = idle_time(n_threads);
    if (others > 10000000)
        fail_msg("of %zu threads the idle ones took %lld µs", n_threads, (long long)others / 1000);
}

static void idle_workers_do_not_spin(void **state)
{
    (void)state;
    check_idle(2); /* may spin, for a short while */
    check_idle(8);
}

/* Puts all of the process's threads on those processors. */
static void put_on(const cpu_set_t *set)
{
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && sched_setaffinity(atoi(e->d_name), sizeof *set, set))
            assert_int_equal(errno, ESRCH); /* it ended just now */
    closedir(d);
}

static void count_run(void *arg, size_t part, size_t n_parts)
{
    (void)n_parts;
    ((size_t *)arg)[part]++;
}

/* Whoever spins then keeps away whom it waits for. */
static void threads_on_one_processor_do_not_spin(void **state)
{
    (void)state;
    enum { CALLS = 2000, MOST_US = 25 }; /* of processor time a call; spinning takes 50 or more */
    cpu_set_t all, one;
    size_t runs[2] = {0};
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    struct sl_workers *w = open_workers(2); /* which may spin where there are two processors */
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    put_on(&one);
    int64_t begin = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int call = 0; call < CALLS; call++)
        sl_workers_run(w, count_run, runs);
    int64_t us = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin) / 1000;
    put_on(&all);
    sl_workers_close(w);
    assert_int_equal(runs[0], CALLS);
    assert_int_equal(runs[1], CALLS);
    if (us > (int64_t)CALLS * MOST_US)
        fail_msg("%d calls took %lld µs of processor time", CALLS, (long long)us);
}

static void ranges_cover_everything(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 5, 16, 17, 100, 768}, grains[] = {1, 4, 16, 1000};
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t g = 0; g < COUNT(grains); g++)
            for (size_t n = 1; n <= MAX_PARTS; n++) {
                size_t at = 0, begin, end;
                for (size_t p = 0; p < n; p++) {
                    sl_work_range(sizes[s], grains[g], p, n, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin);
                    assert_true(end % grains[g] == 0 || end == sizes[s]);
                    at = end;
                }
                assert_int_equal(at, sizes[s]);
            }
}

static void wrong_counts_are_refused(void **state)
{
    (void)state;
    struct sl_workers *w = (struct sl_workers *)state; /* must stay as it is */
    struct sl_error err;
    assert_int_equal(sl_workers_open(&w, 0, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.message, "threads: 0 is not in the range 1 to 1024");
    assert_int_equal(sl_workers_open(&w, SL_MAX_THREADS + 1, &err), SL_E_INVALID_VALUE);
    assert_int_equal(sl_workers_open(&w, SIZE_MAX, NULL), SL_E_INVALID_VALUE);
    assert_ptr_equal(w, state);
    sl_workers_close(NULL);
}

/* The address sanitizer says when something is not given back. */
static void failed_allocations_are_survived(void **state)
{
    (void)state;
    for (int64_t n = 0;; n++) {
        struct sl_workers *w = NULL;
        struct sl_error err = {.code = SL_OK};
        sl_mem_fail_after(n);
        enum sl_code rc = sl_workers_open(&w, 3, &err);
        sl_mem_fail_after(-1);
        if (rc == SL_OK) {
            assert_true(n > 0); /* it does allocate */
            sl_workers_close(w);
            break;
        }
        assert_int_equal(rc, SL_E_NO_MEMORY);
        assert_int_equal(err.code, SL_E_NO_MEMORY);
        assert_null(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once_a_call),
        cmocka_unit_test(parts_see_each_others_writes),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(idle_workers_do_not_spin),
        cmocka_unit_test(threads_on_one_processor_do_not_spin),
        cmocka_unit_test(ranges_cover_everything),
        cmocka_unit_test(wrong_counts_are_refused),
        cmocka_unit_test(failed_allocations_are_survived),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
