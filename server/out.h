/* out.h: bytes on their way to a client: a queue of chunks, each owned here or borrowed.
 *
 * A chunk's memory never moves, so spans given to the transport stay valid until those bytes are
 * consumed; appending may use the free end of the last chunk meanwhile. Loop's thread. */
#ifndef SLATE_SERVER_OUT_H
#define SLATE_SERVER_OUT_H

#include <sys/uio.h>

#include "slate/base.h"

struct sl_out_chunk;

struct sl_out {
    struct sl_out_chunk *first, *last;
    size_t n;        /* bytes in all chunks */
    uint64_t *total; /* those of several queues together are kept here; may be NULL */
};

/* false: no memory; nothing was appended. */
SL_NODISCARD bool sl_out_copy(struct sl_out *o, const void *data, size_t n);

/* Without a copy: release(arg), when not NULL, is called exactly once, also when this fails. */
SL_NODISCARD bool sl_out_borrow(struct sl_out *o, const void *data, size_t n,
                                void (*release)(void *arg), void *arg);

/* The first bytes, as at most max spans; returns how many. */
size_t sl_out_spans(const struct sl_out *o, struct iovec *spans, size_t max);

void sl_out_consume(struct sl_out *o, size_t n);
void sl_out_clear(struct sl_out *o);

#endif
