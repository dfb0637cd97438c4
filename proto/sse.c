/* sse.c: see sse.h. */
#include "proto/sse.h"

#include <assert.h>
#include <string.h>

void sl_sse_begin(struct sl_buf *b)
{
    sl_buf_put(b, "data: ", 6);
}

void sl_sse_end(struct sl_buf *b)
{
    sl_buf_put(b, "\n\n", 2);
}

void sl_sse_event(struct sl_buf *b, const char *json, size_t n)
{
    assert(!memchr(json, '\n', n) && !memchr(json, '\r', n));
    sl_sse_begin(b);
    sl_buf_put(b, json, n);
    sl_sse_end(b);
}

void sl_sse_ping(struct sl_buf *b)
{
    sl_buf_puts(b, ": ping\n\n");
}

void sl_sse_done(struct sl_buf *b)
{
    sl_buf_puts(b, "data: [DONE]\n\n");
}
