/* tables.c: see tables.h. */
#include "tests/support/tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

void every_table_runs_here(void **state)
{
    (void)state;
    const char *const *missing = sl_kernels_missing();
    for (size_t i = 0; missing[i]; i++)
        print_message("skipped: the kernels %s: not for this processor\n", missing[i]);
    if (missing[0])
        skip();
}
