/* pictures.c: see pictures.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/pictures.h"

struct picture picture_of(struct client *c, const char *id)
{
    struct picture p = {.b = snapshot_get(c, id, "")};
    uint64_t n_header;
    memcpy(&n_header, p.b.p, sizeof n_header);
    assert_true(p.b.n > 8 + n_header);
    p.data = p.b.p + 8 + n_header;
    p.n_data = p.b.n - 8 - n_header;
    const char *key = "\"continuation\":\"";
    const char *at = memmem(p.b.p, 8 + n_header, key, strlen(key));
    if (at) {
        p.continuation = at + strlen(key);
        while (p.continuation[p.n_continuation] != '"' ||
               p.continuation[p.n_continuation - 1] == '\\')
            p.n_continuation++;
    }
    return p;
}

void picture_same(const struct picture *a, const struct picture *b)
{
    assert_int_equal(a->n_data, b->n_data);
    assert_memory_equal(a->data, b->data, a->n_data);
    assert_int_equal(a->n_continuation, b->n_continuation);
    assert_memory_equal(a->continuation ? a->continuation : "",
                        b->continuation ? b->continuation : "", a->n_continuation);
}

void picture_done(struct picture *p)
{
    sl_free(p->b.p);
    *p = (struct picture){.n_data = 0};
}
