/* buf.c: see buf.h. */
#include "proto/buf.h"

#include <assert.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

void sl_buf_init(struct sl_buf *b, size_t max)
{
    *b = (struct sl_buf){.max = max};
}

void sl_buf_done(struct sl_buf *b)
{
    sl_free(b->data);
    sl_buf_init(b, b->max);
}

void sl_buf_clear(struct sl_buf *b)
{
    b->len = 0;
    b->code = SL_OK;
}

static char *fail(struct sl_buf *b, enum sl_code c)
{
    b->code = c;
    return NULL;
}

char *sl_buf_reserve(struct sl_buf *b, size_t n)
{
    assert(b->len <= b->cap && b->len <= b->max);
    if (b->code != SL_OK)
        return NULL;
    if (n > b->max - b->len)
        return fail(b, SL_E_TOO_LARGE);
    if (b->data && n <= b->cap - b->len)
        return b->data + b->len;
    size_t need = b->len + n;
    size_t cap = b->cap > b->max / 2 ? b->max : b->cap * 2;
    if (cap < need)
        cap = need;
    if (cap < 256)
        cap = 256; /* may be more than max: len is what max bounds */
    char *p = sl_realloc(b->data, cap, 1);
    if (!p)
        return fail(b, SL_E_NO_MEMORY);
    b->data = p;
    b->cap = cap;
    return p + b->len;
}

void sl_buf_put(struct sl_buf *b, const void *bytes, size_t n)
{
    char *p = sl_buf_reserve(b, n);
    if (!p || !n)
        return;
    memcpy(p, bytes, n);
    b->len += n;
}

void sl_buf_puts(struct sl_buf *b, const char *s)
{
    sl_buf_put(b, s, strlen(s));
}

void sl_buf_putc(struct sl_buf *b, char c)
{
    sl_buf_put(b, &c, 1);
}

void sl_buf_printf(struct sl_buf *b, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof text);
    sl_buf_put(b, text, (size_t)n);
}

enum sl_code sl_buf_code(const struct sl_buf *b, struct sl_error *err)
{
    if (b->code == SL_E_TOO_LARGE)
        return sl_fail(err, b->code, "the text is longer than the limit of %zu bytes", b->max);
    if (b->code != SL_OK)
        return sl_fail(err, b->code, "not enough memory for a text of more than %zu bytes", b->len);
    return SL_OK;
}

char *sl_buf_take(struct sl_buf *b, size_t *ret_n)
{
    char *p = b->data;
    *ret_n = b->len;
    sl_buf_init(b, b->max);
    return p;
}

/* A pool's chunk. Large pieces get a chunk of their own, which goes behind the first, so that the
 * rest of the first stays in use. */
struct sl_pool_chunk {
    struct sl_pool_chunk *next;
    size_t used, size; /* of the bytes that follow */
    alignas(max_align_t) unsigned char bytes[];
};

enum { CHUNK_BYTES = 4000, PIECE_ALIGN = alignof(max_align_t) };

static struct sl_pool_chunk *add_chunk(struct sl_pool *p, size_t size)
{
    struct sl_pool_chunk *c = sl_malloc(sizeof *c + size);
    if (!c)
        return NULL;
    c->used = 0;
    c->size = size;
    if (p->chunks && size > CHUNK_BYTES) {
        c->next = p->chunks->next;
        p->chunks->next = c;
    } else {
        c->next = p->chunks;
        p->chunks = c;
    }
    return c;
}

void *sl_pool_alloc(struct sl_pool *p, size_t n, size_t size)
{
    if (size && n > (SIZE_MAX / 2) / size)
        return NULL;
    size_t bytes = (n * size + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    struct sl_pool_chunk *c = p->chunks;
    if (!c || bytes > c->size - c->used)
        c = add_chunk(p, bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
    if (!c)
        return NULL;
    void *piece = c->bytes + c->used;
    c->used += bytes;
    return memset(piece, 0, bytes);
}

char *sl_pool_strndup(struct sl_pool *p, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *copy = sl_pool_alloc(p, n + 1, 1);
    return copy ? memcpy(copy, s, n) : NULL;
}

void sl_pool_done(struct sl_pool *p)
{
    while (p->chunks) {
        struct sl_pool_chunk *next = p->chunks->next;
        sl_free(p->chunks);
        p->chunks = next;
    }
}

void sl_buf_put_base64(struct sl_buf *b, const void *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    enum { PAD = 64 };
    const unsigned char *s = bytes;
    if (n / 3 + 1 > SIZE_MAX / 4) {
        b->code = SL_E_TOO_LARGE;
        return;
    }
    size_t len = (n + 2) / 3 * 4;
    char *d = sl_buf_reserve(b, len);
    if (!d)
        return;
    for (size_t i = 0; i < n; i += 3, d += 4) {
        size_t left = n - i;
        uint32_t v = (uint32_t)s[i] << 16 | (left > 1 ? (uint32_t)s[i + 1] << 8 : 0) |
                     (left > 2 ? s[i + 2] : 0);
        d[0] = digit[v >> 18];
        d[1] = digit[v >> 12 & 63];
        d[2] = digit[left > 1 ? v >> 6 & 63 : PAD];
        d[3] = digit[left > 2 ? v & 63 : PAD];
    }
    b->len += len;
}
