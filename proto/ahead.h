/* ahead.h: reading a body's JSON before it is asked for, on another thread.
 *
 * A body of megabytes takes a second to read, and the thread that handles requests has none. So
 * another one reads it ahead; from the offer to the withdrawal every sl_json_parse() of the same
 * bytes takes what is there: the document, or why it is none. Decoders know nothing of it. */
#ifndef SLATE_PROTO_AHEAD_H
#define SLATE_PROTO_AHEAD_H

#include "slate/err.h"

struct sl_json_ahead;

/* Any thread. The bytes must stay as and where they are until the withdrawal. NULL: no memory. */
struct sl_json_ahead *sl_json_ahead_read(const void *body, size_t n);
/* Both on one thread: the one that decodes. */
void sl_json_ahead_offer(struct sl_json_ahead *a);
void sl_json_ahead_withdraw(struct sl_json_ahead *a);
/* Any thread; not while offered. A large document takes its time. NULL is fine. */
void sl_json_ahead_free(struct sl_json_ahead *a);

#endif
