/* out.c: see out.h. */
#include "server/out.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"

enum { CHUNK_MIN = 2048 }; /* a response's head and a small body, or many events, in one */

struct sl_out_chunk {
    struct sl_out_chunk *next;
    const char *data;
    size_t begin, end; /* what of data is still to be sent */
    size_t cap;        /* of own; 0: borrowed */
    void (*release)(void *arg);
    void *arg;
    char own[];
};

static void count(struct sl_out *o, size_t more, size_t less)
{
    o->n = o->n + more - less;
    if (o->total)
        *o->total = *o->total + more - less;
}

static void push(struct sl_out *o, struct sl_out_chunk *c)
{
    if (o->last)
        o->last->next = c;
    else
        o->first = c;
    o->last = c;
}

static void free_first(struct sl_out *o)
{
    struct sl_out_chunk *c = o->first;
    o->first = c->next;
    if (!o->first)
        o->last = NULL;
    if (c->release)
        c->release(c->arg);
    sl_free(c);
}

bool sl_out_copy(struct sl_out *o, const void *data, size_t n)
{
    if (n == 0)
        return true;
    struct sl_out_chunk *c = o->last;
    if (!c || c->cap == 0 || c->cap - c->end < n) {
        size_t cap = n > CHUNK_MIN ? n : CHUNK_MIN;
        c = cap <= SIZE_MAX - sizeof *c ? sl_malloc(sizeof *c + cap) : NULL;
        if (!c)
            return false;
        *c = (struct sl_out_chunk){.data = c->own, .cap = cap};
        push(o, c);
    }
    memcpy(c->own + c->end, data, n);
    c->end += n;
    count(o, n, 0);
    return true;
}

bool sl_out_borrow(struct sl_out *o, const void *data, size_t n, void (*release)(void *arg),
                   void *arg)
{
    struct sl_out_chunk *c = n ? sl_malloc(sizeof *c) : NULL;
    if (!c) {
        if (release)
            release(arg);
        return n == 0;
    }
    *c = (struct sl_out_chunk){.data = data, .end = n, .release = release, .arg = arg};
    push(o, c);
    count(o, n, 0);
    return true;
}

size_t sl_out_spans(const struct sl_out *o, struct iovec *spans, size_t max)
{
    size_t n = 0;
    for (const struct sl_out_chunk *c = o->first; c && n < max; c = c->next, n++)
        spans[n] = (struct iovec){.iov_base = (void *)(uintptr_t)(c->data + c->begin),
                                  .iov_len = c->end - c->begin};
    return n;
}

void sl_out_consume(struct sl_out *o, size_t n)
{
    assert(n <= o->n);
    count(o, 0, n);
    while (n > 0) {
        struct sl_out_chunk *c = o->first;
        size_t k = c->end - c->begin;
        if (k > n)
            k = n;
        c->begin += k;
        n -= k;
        if (c->begin == c->end)
            free_first(o);
    }
}

void sl_out_clear(struct sl_out *o)
{
    while (o->first)
        free_first(o);
    count(o, 0, o->n);
}
