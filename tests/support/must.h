/* must.h: what ends a bench, or what stands under a test, where it cannot go on. */
#ifndef SLATE_TESTS_MUST_H
#define SLATE_TESTS_MUST_H

#include <stdio.h>
#include <stdlib.h>

#include "slate/err.h"

static inline void must(enum sl_code c, const struct sl_error *err)
{
    if (c == SL_OK)
        return;
    fprintf(stderr, "%s: %s\n", sl_code_name(c), err->message);
    abort();
}

static inline void *must_have(void *p)
{
    if (!p)
        abort();
    return p;
}

#endif
