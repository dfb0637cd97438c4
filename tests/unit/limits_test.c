/* limits_test.c: what the machine can do is measured for every table that runs here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/cli/limits.h"
#include "tests/support/tables.h"

enum { BYTES = 1 << 20, LIMITS = 5 };

static void every_table_has_all_limits(void **state)
{
    (void)state;
    struct sl_workers *w = NULL;
    char *memory = sl_huge_alloc(BYTES);
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    assert_int_equal(sl_workers_open(&w, 2, NULL), SL_OK);
    FOR_TABLES(k, NULL)
    {
        struct limits l = {.fma = {.n = 0}};
        limits_measure(&l, w, k->name, memory, BYTES);
        const struct series *all[LIMITS] = {&l.read_1, &l.read_4, &l.fma, &l.bytes, &l.fours};
        for (size_t i = 0; i < LIMITS; i++) {
            assert_int_equal(all[i]->n, 1);
            assert_true(isfinite(all[i]->value[0]) && all[i]->value[0] > 0);
        }
    }
    sl_workers_close(w);
    sl_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(every_table_has_all_limits),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
