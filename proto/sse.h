/* sse.h: framing of server-sent events (WHATWG HTML, 9.2). Appends to a buffer; any thread.
 *
 * An event is `data: ` + one line of JSON + "\n\n". The JSON is written straight into the buffer
 * between begin and end, so that a stream costs no copy:
 *
 *     sl_sse_begin(b); sl_write_generate_event(b, &delta, vocab); sl_sse_end(b);  */
#ifndef SLATE_PROTO_SSE_H
#define SLATE_PROTO_SSE_H

#include "proto/buf.h"

#define SL_SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

void sl_sse_begin(struct sl_buf *b);
void sl_sse_end(struct sl_buf *b);
/* begin, bytes, end. `json` holds no newline (asserted). */
void sl_sse_event(struct sl_buf *b, const char *json, size_t n);
void sl_sse_ping(struct sl_buf *b); /* ": ping\n\n": a comment, against idle cut-offs */
void sl_sse_done(struct sl_buf *b); /* "data: [DONE]\n\n" */

#endif
