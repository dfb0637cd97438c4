/* out_test.c: the queue of bytes to a client against a plain buffer, over seeded sequences of
 * copies, borrowed pieces and partial sends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "server/out.h"

enum { TOTAL = 1 << 20 };

static uint64_t seed = 1;

static uint64_t next(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static unsigned borrowed;

static void release(void *arg)
{
    borrowed--;
    free(arg);
}

static void test_against_a_plain_buffer(void **state)
{
    (void)state;
    uint64_t total = 5; /* others have some, too */
    struct sl_out o = {.total = &total};
    unsigned char *want = malloc(TOTAL);
    size_t n_want = 0, n_taken = 0;
    for (size_t i = 0; i < TOTAL; i++)
        want[i] = (unsigned char)next(256);
    while (n_want < TOTAL - 8192 || o.n > 0) {
        size_t n = next(next(4) ? 100 : 5000);
        if (n_want < TOTAL - 8192 && next(2)) {
            if (next(3)) {
                assert_true(sl_out_copy(&o, want + n_want, n));
            } else {
                char *copy = malloc(n + 1);
                memcpy(copy, want + n_want, n);
                borrowed++;
                assert_true(sl_out_borrow(&o, copy, n, release, copy));
            }
            n_want += n;
        } else {
            struct iovec spans[4];
            size_t k = sl_out_spans(&o, spans, 4), sent = 0;
            for (size_t i = 0; i < k && sent < n; i++) {
                size_t m = spans[i].iov_len < n - sent ? spans[i].iov_len : n - sent;
                assert_true(spans[i].iov_len > 0);
                assert_memory_equal(spans[i].iov_base, want + n_taken + sent, m);
                sent += m;
            }
            sl_out_consume(&o, sent);
            n_taken += sent;
        }
        assert_int_equal(o.n, n_want - n_taken);
        assert_int_equal(total, 5 + o.n);
    }
    assert_int_equal(borrowed, 0);
    free(want);
}

static void test_no_memory(void **state)
{
    (void)state;
    uint64_t total = 5;
    struct sl_out o = {.total = &total};
    assert_true(sl_out_copy(&o, "abc", 3));
    sl_mem_fail_after(0);
    char *big = calloc(1, 10000), *mine = malloc(10);
    assert_true(sl_out_copy(&o, "def", 3)); /* has room where abc lies */
    assert_false(sl_out_copy(&o, big, 10000));
    borrowed = 1;
    assert_false(sl_out_borrow(&o, mine, 10, release, mine));
    assert_int_equal(borrowed, 0); /* released all the same */
    sl_mem_fail_after(-1);
    assert_int_equal(o.n, 6);
    assert_int_equal(total, 11);
    mine = malloc(10);
    borrowed = 1;
    assert_true(sl_out_borrow(&o, mine, 10, release, mine));
    sl_out_clear(&o);
    assert_int_equal(o.n, 0);
    assert_int_equal(total, 5);
    assert_int_equal(borrowed, 0);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_plain_buffer),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
