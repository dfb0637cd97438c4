/* state_test.c: the slab. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/base/mem.h"
#include "slate/session.h"
#include "tests/support/floats.h"

static void test_slots_are_aligned_and_apart(void **state)
{
    (void)state;
    struct sl_slab *s;
    unsigned char *slot[7];
    assert_int_equal(sl_slab_open(&s, 7, 100, NULL), SL_OK);
    assert_int_equal(sl_slab_slot_bytes(s), 128);
    for (size_t i = 0; i < 7; i++) {
        slot[i] = sl_slab_take(s);
        assert_non_null(slot[i]);
        assert_int_equal((uintptr_t)slot[i] % 64, 0);
        memset(slot[i], (int)i + 1, 128);
    }
    assert_null(sl_slab_take(s));
    assert_int_equal(sl_slab_used(s), 7);
    for (size_t i = 0; i < 7; i++)
        for (size_t k = 0; k < 128; k++)
            assert_int_equal(slot[i][k], i + 1);
    sl_slab_close(s);
}

static void test_a_slot_is_free_after_its_last_reference(void **state)
{
    (void)state;
    struct sl_slab *s;
    assert_int_equal(sl_slab_open(&s, 1, 64, NULL), SL_OK);
    void *p = sl_slab_take(s);
    sl_slab_ref(s, p);
    sl_slab_ref(s, p);
    sl_slab_unref(s, p);
    sl_slab_unref(s, p);
    assert_int_equal(sl_slab_refs(s, p), 1);
    assert_null(sl_slab_take(s));
    sl_slab_unref(s, p);
    sl_slab_unref(s, NULL);
    assert_ptr_equal(sl_slab_take(s), p);
    sl_slab_close(s);
}

/* Against a model of it: an array of who holds what. */
static void test_random_use(void **state)
{
    (void)state;
    enum { N = 50 };
    struct sl_slab *s;
    void *held[4 * N] = {NULL};
    size_t n = 0;
    uint64_t seed = 3;
    assert_int_equal(sl_slab_open(&s, N, 64, NULL), SL_OK);
    for (int i = 0; i < 100000; i++) {
        uint64_t what = next_random(&seed) % 3;
        if (what == 0 && n < 4 * N) {
            void *p = sl_slab_take(s);
            if (p)
                held[n++] = p;
        } else if (what == 1 && n && n < 4 * N) {
            held[n] = held[next_random(&seed) % n];
            sl_slab_ref(s, held[n++]);
        } else if (n) {
            size_t k = next_random(&seed) % n;
            sl_slab_unref(s, held[k]);
            held[k] = held[--n];
        }
        size_t distinct = 0;
        for (size_t a = 0; a < n; a++) {
            size_t refs = 0, first = n;
            for (size_t b = 0; b < n; b++) {
                refs += held[b] == held[a];
                first = held[b] == held[a] && b < first ? b : first;
            }
            distinct += first == a;
            if (i % 97 == 0)
                assert_int_equal(sl_slab_refs(s, held[a]), refs);
        }
        assert_int_equal(sl_slab_used(s), distinct);
    }
    sl_slab_close(s);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct sl_slab *s;
    struct sl_error err;
    assert_int_equal(sl_slab_open(&s, 1u << 30, (size_t)1 << 30, &err), SL_E_NO_MEMORY);
    assert_non_null(strstr(err.message, "MiB"));
    assert_int_equal(sl_slab_open(&s, 0, 64, &err), SL_E_INVALID_VALUE);
    assert_int_equal(sl_slab_open(&s, 5, 0, &err), SL_E_INVALID_VALUE);
    assert_int_equal(sl_slab_open(&s, UINT32_MAX, SIZE_MAX / 2, &err), SL_E_INVALID_VALUE);
    assert_true(sl_memory_available() > 0);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct sl_slab *s = NULL;
    for (int n = 0; n < 10; n++) {
        sl_mem_fail_after(n);
        enum sl_code c = sl_slab_open(&s, 4, 64, NULL);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            assert_int_equal(n, 3);
            sl_slab_close(s);
            return;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
    }
    fail_msg("it never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_aligned_and_apart),
        cmocka_unit_test(test_a_slot_is_free_after_its_last_reference),
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
