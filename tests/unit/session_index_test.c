/* session_index_test.c: the registry's structures against plain arrays: what is inserted and
 * removed in whatever order is found, listed and ends as it should, also where memory fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/session_index.h"
#include "server/sessions.h"

enum { N = 6000, TENANTS = 3 };

static struct sl_session sessions[N];
static char ids[N][24];
static bool there[N];
static struct sl_tenant *const owners[TENANTS] = {(struct sl_tenant *)&sessions[0],
                                                  (struct sl_tenant *)&sessions[1],
                                                  (struct sl_tenant *)&sessions[2]};

static uint64_t random_state;

static size_t draw(size_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % below);
}

/* Each third has the same ids under another tenant. */
static int setup(void **state)
{
    (void)state;
    random_state = 88172645463325252u;
    memset(sessions, 0, sizeof sessions);
    memset(there, 0, sizeof there);
    for (size_t i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "s%zu", (i / TENANTS) * 7919 % 100003);
        sessions[i].id = ids[i];
        sessions[i].owner = owners[i % TENANTS];
    }
    return 0;
}

/* --- the table ---------------------------------------------------------------------------------*/

static void table_is_right(const struct sl_session_table *t)
{
    size_t n = 0, seen = 0;
    for (size_t i = 0; i < N; i++) {
        n += there[i];
        assert_ptr_equal(sl_session_table_find(t, sessions[i].owner, ids[i]),
                         there[i] ? &sessions[i] : NULL);
    }
    assert_int_equal(t->n, n);
    for (size_t i = 0; i < t->n_buckets; i++)
        for (const struct sl_session *s = sl_session_table_at(t, i); s; s = s->next_same, seen++)
            assert_true(there[s - sessions]);
    assert_int_equal(seen, n);
}

static void test_table(void **state)
{
    (void)state;
    struct sl_session_table t = {.seed = 12345};
    for (int round = 0; round < 4; round++) {
        for (size_t k = 0; k < 2 * N; k++) {
            size_t i = draw(N);
            if (there[i])
                sl_session_table_remove(&t, &sessions[i]);
            else
                assert_true(sl_session_table_insert(&t, &sessions[i]));
            there[i] = !there[i];
        }
        table_is_right(&t);
    }
    for (size_t i = 0; i < N; i++) {
        if (!there[i])
            assert_true(sl_session_table_insert(&t, &sessions[i]));
        there[i] = true;
    }
    table_is_right(&t);
    /* Chains stay short: as many buckets as sessions. */
    size_t longest = 0;
    for (size_t i = 0; i < t.n_buckets; i++) {
        size_t n = 0;
        for (const struct sl_session *s = sl_session_table_at(&t, i); s; s = s->next_same)
            n++;
        longest = n > longest ? n : longest;
    }
    assert_true(t.n_buckets >= N - 1 && longest < 12);
    sl_session_table_done(&t);
}

static void test_table_without_memory(void **state)
{
    (void)state;
    struct sl_session_table t = {.seed = 1};
    sl_mem_fail_after(0);
    assert_false(sl_session_table_insert(&t, &sessions[0]));
    sl_mem_fail_after(-1);
    assert_int_equal(t.n, 0);
    for (size_t i = 0; i < N; i++) { /* once it has buckets, it only gets slower */
        sl_mem_fail_after(i ? 0 : -1);
        assert_true(sl_session_table_insert(&t, &sessions[i]));
        there[i] = true;
    }
    sl_mem_fail_after(-1);
    table_is_right(&t);
    sl_session_table_done(&t);
}

/* --- the list ----------------------------------------------------------------------------------*/

static int by_id(const void *a, const void *b)
{
    const struct sl_session *const *x = a, *const *y = b;
    return strcmp((*x)->id, (*y)->id);
}

/* From `from` on it gives what a sorted array has. */
static void list_is_right(const struct sl_session_list *l, size_t step, const char *from)
{
    static const struct sl_session *sorted[N];
    size_t n = 0, i = 0;
    for (size_t k = 0; k < N; k += step)
        if (there[k])
            sorted[n++] = &sessions[k];
    qsort((void *)sorted, n, sizeof sorted[0], by_id);
    while (i < n && strcmp(sorted[i]->id, from) < 0)
        i++;
    struct sl_list_place at = sl_session_list_seek(l, from);
    for (; i < n; i++)
        assert_ptr_equal(sl_session_list_next(l, &at), sorted[i]);
    assert_null(sl_session_list_next(l, &at));
    assert_null(sl_session_list_next(l, &at));
}

static void test_list(void **state)
{
    (void)state;
    struct sl_session_list l = {0};
    list_is_right(&l, TENANTS, "");
    for (int round = 0; round < 6; round++) {
        size_t bias = round % 2 ? 3 : 1; /* rounds that grow, and rounds that shrink */
        for (size_t k = 0; k < N; k++) {
            size_t i = draw(N / TENANTS) * TENANTS;
            if (there[i] && draw(4) < bias) {
                sl_session_list_remove(&l, &sessions[i]);
                there[i] = false;
            } else if (!there[i] && draw(4) >= bias - 1) {
                assert_true(sl_session_list_insert(&l, &sessions[i]));
                there[i] = true;
            }
        }
        list_is_right(&l, TENANTS, "");
        for (int k = 0; k < 20; k++)
            list_is_right(&l, TENANTS, ids[draw(N)]);
        list_is_right(&l, TENANTS, "s5");
        list_is_right(&l, TENANTS, "t");
    }
    for (size_t i = 0; i < N; i += TENANTS) {
        if (there[i])
            sl_session_list_remove(&l, &sessions[i]);
        there[i] = false;
    }
    assert_int_equal(l.n, 0); /* no empty block stays */
    sl_session_list_done(&l);
}

/* Ids that grow leave full blocks behind; and what most are removed of does not keep them. */
static void test_list_blocks(void **state)
{
    (void)state;
    struct sl_session_list l = {0};
    for (size_t i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "s%06zu", i);
        assert_true(sl_session_list_insert(&l, &sessions[i]));
    }
    assert_true(l.n <= N / 255 + 1);
    for (size_t i = 0; i < N; i++)
        if (i % 16)
            sl_session_list_remove(&l, &sessions[i]);
    assert_true(l.n <= 2 * (N / 16) / 128 + 2);
    sl_session_list_done(&l);
}

static void test_list_without_memory(void **state)
{
    (void)state;
    struct sl_session_list l = {0};
    size_t n_failed = 0;
    for (size_t i = 0; i < N; i += TENANTS) {
        sl_mem_fail_once((int64_t)draw(2));
        there[i] = sl_session_list_insert(&l, &sessions[i]);
        sl_mem_fail_after(-1);
        n_failed += !there[i];
    }
    assert_true(n_failed > 2);
    list_is_right(&l, TENANTS, "");
    sl_session_list_done(&l);
}

/* --- ends --------------------------------------------------------------------------------------*/

static void test_ends(void **state)
{
    (void)state;
    struct sl_session_ends e = {0};
    static int64_t end[N];
    assert_true(sl_session_ends_reserve(&e, N));
    assert_null(sl_session_ends_due(&e, INT64_MAX));
    for (size_t k = 0; k < 8 * N; k++) {
        size_t i = draw(N);
        if (draw(4)) {
            end[i] = (int64_t)draw(1000) - 20;
            sl_session_ends_set(&e, &sessions[i], end[i]);
            there[i] = true;
        } else {
            sl_session_ends_remove(&e, &sessions[i]);
            there[i] = false;
        }
    }
    struct sl_session *s;
    size_t left = 0;
    for (size_t i = 0; i < N; i++)
        left += there[i];
    for (int64_t now = -20; now < 1000; now++) {
        while ((s = sl_session_ends_due(&e, now))) {
            size_t i = (size_t)(s - sessions);
            assert_true(there[i]);
            assert_int_equal(end[i], now); /* not later, not earlier */
            sl_session_ends_remove(&e, s);
            sl_session_ends_remove(&e, s); /* does nothing */
            there[i] = false;
            left--;
        }
    }
    assert_int_equal(left, 0);
    assert_int_equal(e.n, 0);
    sl_mem_fail_after(0);
    assert_false(sl_session_ends_reserve(&e, 4 * N));
    sl_mem_fail_after(-1);
    sl_session_ends_done(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_table, setup),
        cmocka_unit_test_setup(test_table_without_memory, setup),
        cmocka_unit_test_setup(test_list, setup),
        cmocka_unit_test_setup(test_list_blocks, setup),
        cmocka_unit_test_setup(test_list_without_memory, setup),
        cmocka_unit_test_setup(test_ends, setup),
    };
    return cmocka_run_group_tests_name("session_index", tests, NULL, NULL);
}
