/* edited.c: see edited.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/edited.h"

size_t header_length(const struct bytes *b)
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)(unsigned char)b->p[i] << 8 * i;
    assert_true(n <= b->n - 8);
    return (size_t)n;
}

json_t *header_of(const struct bytes *b)
{
    json_t *h = json_loadb(b->p + 8, header_length(b), 0, NULL);
    assert_non_null(h);
    return h;
}

/* The same data under another header. */
static struct bytes with_header(const struct bytes *b, const json_t *header)
{
    char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8, n_data = b->n - 8 - header_length(b);
    struct bytes r = {.n = 8 + padded + n_data};
    r.p = sl_malloc(r.n);
    assert_non_null(r.p);
    for (int i = 0; i < 8; i++)
        r.p[i] = (char)(padded >> 8 * i);
    memset(r.p + 8, ' ', padded);
    memcpy(r.p + 8, text, n);
    memcpy(r.p + 8 + padded, b->p + 8 + header_length(b), n_data);
    free(text);
    return r;
}

struct bytes with_metadata(const struct bytes *b, const char *key, const char *value)
{
    json_t *h = header_of(b), *m = json_object_get(h, "__metadata__");
    if (value)
        json_object_set_new(m, key, json_string(value));
    else
        json_object_del(m, key);
    json_object_del(m, "metadata.xxh3");
    struct bytes r = with_header(b, h);
    json_decref(h);
    return r;
}

const char *metadata_of(const json_t *header, const char *key)
{
    return json_string_value(json_object_get(json_object_get(header, "__metadata__"), key));
}
