/* store_test.c: the `dir:` store as its callers see it, against a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stores.h"

/* Everything a session can go through; what was acknowledged is there, at once and after a reopen.
 */
static void test_life(void **state)
{
    (void)state;
    struct shop *st = calloc(1, sizeof *st);
    shop_init(st, &sl_store_io_system, 0);
    shop_must_open(st);
    for (size_t i = 0; i < 12; i++)
        do_create(st, i);
    for (size_t i = 0; i < 12; i++)
        for (size_t k = 0; k < i; k++)
            do_turn(st, i, k % 2);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(shop_check(st), 0);
    for (size_t i = 4; i < 12; i++)
        do_snapshot(st, i, 1000 * i);
    for (size_t i = 6; i < 12; i++)
        do_turn(st, i, true);
    for (size_t i = 0; i < 12; i += 3)
        do_patch(st, i);
    for (size_t i = 1; i < 12; i += 5)
        do_remove(st, i);
    do_create(st, 1);
    do_restore(st, 2, 5000);
    do_restore(st, 6, 77);
    do_restore(st, 20, 100);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    shop_done(st);
    free(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
