/* buf_test.c: the bounded buffer and the pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/buf.h"

static void grows_up_to_its_limit(void **state)
{
    (void)state;
    struct sl_buf b;
    struct sl_error err = {0};
    sl_buf_init(&b, 1000);
    for (int i = 0; i < 100; i++)
        sl_buf_printf(&b, "%09d,", i);
    assert_int_equal(b.len, 1000);
    assert_int_equal(sl_buf_code(&b, &err), SL_OK);
    assert_memory_equal(b.data + 990, "000000099,", 10);
    sl_buf_putc(&b, 'x');
    sl_buf_put(&b, "", 0);
    assert_int_equal(b.len, 1000);
    assert_int_equal(sl_buf_code(&b, &err), SL_E_TOO_LARGE);
    assert_string_equal(err.message, "the text is longer than the limit of 1000 bytes");
    assert_null(sl_buf_reserve(&b, 0)); /* sticky */
    sl_buf_clear(&b);
    sl_buf_puts(&b, "again");
    assert_int_equal(sl_buf_code(&b, &err), SL_OK);
    size_t n = 0;
    char *s = sl_buf_take(&b, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(s, "again", 5);
    assert_null(b.data);
    sl_free(s);
    assert_null(sl_buf_reserve(&b, SIZE_MAX));
    assert_int_equal(sl_buf_code(&b, &err), SL_E_TOO_LARGE);
    sl_buf_done(&b);
}

static void no_memory_is_sticky(void **state)
{
    (void)state;
    struct sl_buf b;
    struct sl_error err = {0};
    sl_buf_init(&b, 1 << 20);
    sl_buf_puts(&b, "kept");
    sl_mem_fail_after(0);
    char *p = sl_buf_reserve(&b, 5000);
    sl_mem_fail_after(-1);
    assert_null(p);
    sl_buf_puts(&b, "dropped");
    assert_int_equal(sl_buf_code(&b, &err), SL_E_NO_MEMORY);
    assert_int_equal(b.len, 4);
    sl_buf_done(&b);
}

static void pool_pieces(void **state)
{
    (void)state;
    struct sl_pool p = SL_POOL_INIT;
    unsigned char *piece[300];
    for (size_t i = 0; i < 300; i++) {
        size_t n = i * 37 % 9000;
        piece[i] = sl_pool_alloc(&p, n, 1);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % _Alignof(max_align_t), 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(piece[i][k], 0);
        memset(piece[i], (int)(i % 251 + 1), n);
    }
    for (size_t i = 0; i < 300; i++) /* none overlaps another */
        for (size_t k = 0; k < i * 37 % 9000; k++)
            assert_int_equal(piece[i][k], i % 251 + 1);
    assert_null(sl_pool_alloc(&p, SIZE_MAX, 1));
    assert_null(sl_pool_alloc(&p, SIZE_MAX / 4, 8));
    assert_null(sl_pool_strndup(&p, "", SIZE_MAX));
    assert_string_equal(sl_pool_strndup(&p, "abcdef", 3), "abc");
    sl_pool_done(&p);
    assert_null(p.chunks);
    sl_pool_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_up_to_its_limit),
        cmocka_unit_test(no_memory_is_sticky),
        cmocka_unit_test(pool_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
