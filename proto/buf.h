/* buf.h: a growing, bounded byte buffer, and a pool of small allocations that are freed at once.
 *
 * Errors are sticky: the append functions return nothing, the first failure is remembered and
 * everything after it is dropped, so that a writer of fifty fields has one check, at its end
 * (sl_buf_code). One thread at a time. */
#ifndef SLATE_PROTO_BUF_H
#define SLATE_PROTO_BUF_H

#include "slate/err.h"

struct sl_buf {
    char *data;        /* sl_malloc'ed; NULL while cap is 0. Not a C string */
    size_t len, cap;   /* bytes */
    size_t max;        /* len never exceeds it */
    enum sl_code code; /* SL_OK, TOO_LARGE (max was hit) or NO_MEMORY */
};

void sl_buf_init(struct sl_buf *b, size_t max); /* allocates nothing */
void sl_buf_done(struct sl_buf *b);             /* frees; may be used again after init */
void sl_buf_clear(struct sl_buf *b);            /* len 0 and SL_OK again; keeps the memory */

void sl_buf_put(struct sl_buf *b, const void *bytes, size_t n);
void sl_buf_puts(struct sl_buf *b, const char *s);
void sl_buf_putc(struct sl_buf *b, char c);
void sl_buf_printf(struct sl_buf *b, const char *fmt, ...) SL_PRINTF(2, 3); /* ≤ 255 bytes */

/* Appends RFC 4648 base64 of n bytes, padded. */
void sl_buf_put_base64(struct sl_buf *b, const void *bytes, size_t n);

/* Room for n more bytes at data + len, for who writes there himself and then adds to len. NULL
 * (and the code set) when there is none. */
char *sl_buf_reserve(struct sl_buf *b, size_t n);

/* SL_OK, or the first failure, with a message. */
enum sl_code sl_buf_code(const struct sl_buf *b, struct sl_error *err);

/* Gives the memory away (free it with sl_free) and leaves the buffer empty. NULL when it is. */
char *sl_buf_take(struct sl_buf *b, size_t *ret_n);

/* A pool: what a decoded request points to. Aligned for any type. */
struct sl_pool {
    struct sl_pool_chunk *chunks;
};
#define SL_POOL_INIT                                                                               \
    {                                                                                              \
        NULL                                                                                       \
    }

void *sl_pool_alloc(struct sl_pool *p, size_t n, size_t size); /* n × size bytes, zeroed; or NULL */
char *sl_pool_strndup(struct sl_pool *p, const char *s, size_t n); /* and a '\0' behind it */
void sl_pool_done(struct sl_pool *p);                              /* frees all of it */

#endif
