/* wire.h: a transport of memory and a clock that stands still, for the connection machine.
 *
 * The test says how many bytes the "socket" takes, what time it is, and when the loop comes round;
 * everything the machine does to its transport is recorded and checked against its contract (one
 * send_later at a time, nothing after close, …). */
#ifndef SLATE_TESTS_WIRE_H
#define SLATE_TESTS_WIRE_H

#include "server/conn.h"

struct wire {
    struct sl_conn *conn; /* NULL once it has been closed and freed */
    char *out;            /* what the client has received; never NULL, followed by a NUL */
    size_t n_out;
    size_t room; /* bytes that the socket takes before it is full */
    struct iovec later[16];
    size_t n_later, unsent;
    bool is_sending;
    bool reading, watching, woken, shut, closed;
    enum sl_conn_wait waits;
    unsigned n_waits, n_crowded; /* how often it was told */
    int64_t now_ms, deadline_ms;
};

/* A configuration with small limits: what the tests expect is written there. */
void wire_config(struct sl_config *c);
/* env over it, without keys, listening on 127.0.0.1:8080. Ids begin with "req-test-", and it is
 * always WIRE_DATE. */
#define WIRE_DATE "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
void wire_env(struct sl_conn_env *env, const struct sl_config *c);
void wire_env_done(struct sl_conn_env *env);

void wire_open(struct wire *w, struct sl_conn_env *env); /* unlimited room */
void wire_close(struct wire *w); /* hangs up where it is still open; frees */

void wire_feed(struct wire *w, const char *bytes, size_t n); /* in pieces, as room allows */
void wire_puts(struct wire *w, const char *text);
void wire_loop(struct wire *w);              /* the loop comes round until nothing is woken */
void wire_take(struct wire *w, size_t n);    /* the client reads n more bytes */
void wire_clock(struct wire *w, int64_t ms); /* it is `ms` later now; a due deadline ticks */
void wire_clear(struct wire *w);             /* forgets what was received */

#endif
