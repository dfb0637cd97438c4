/* exchange.h: one request and its response, as a route's handler sees them.
 *
 * Life: when the whole request has arrived and passed every check that needs no knowledge of the
 * route's work (limits, Host, Origin, key, role, content type), the router's handler is called
 * with the exchange. The handler answers now or later, always from the loop's thread:
 *
 *     sl_exchange_reply()  or  sl_exchange_fail()               a whole response, or
 *     sl_exchange_stream(), sl_exchange_write() …, sl_exchange_end()   a stream
 *
 * Exactly one of reply, fail and end is called per exchange, also after the client has gone: it
 * is the end of the handler's ownership, and the exchange must not be touched after it. Until then
 * the pointer and everything got from it (path, headers, body) stay valid, whatever becomes of the
 * connection; what is written to a client that has gone is dropped.
 *
 *     dispatch ──handler──> open ──reply/fail──────────────> over
 *                            └──stream──> streaming ──end──> over      abort: at any time, once
 *
 * Events are never delivered from inside a call of this header, nor from inside the handler, nor
 * after the end. A handler that answers at once needs none.
 *
 * Slow readers: bytes that the kernel does not take are kept; sl_exchange_backlog() says how many.
 * Above the high mark (--write-high) sl_exchange_write() still accepts, but returns false: take no
 * more tokens until `writable` is called (backlog at or below --write-low). A client that reads
 * nothing for --write-timeout is disconnected: abort.
 *
 * All functions: loop's thread only. */
#ifndef SLATE_SERVER_EXCHANGE_H
#define SLATE_SERVER_EXCHANGE_H

#include "slate/err.h"

struct sl_exchange;
struct sl_server;
struct sl_route;

/* --- the request -------------------------------------------------------------------------------*/

enum sl_method { /* what routes may take; HEAD comes to a GET handler as GET */
                 SL_GET,
                 SL_POST,
                 SL_PUT,
                 SL_PATCH,
                 SL_DELETE,
                 SL_METHOD_COUNT
};
const char *sl_method_name(enum sl_method m); /* "GET" */

enum { /* roles as bits: a key grants one or more, a route asks for one */
       SL_ROLE_USER = 1,
       SL_ROLE_METRICS = 2,
       SL_ROLE_ADMIN = 4,
       SL_ROLE_ALL = 7
};

enum sl_method sl_exchange_method(const struct sl_exchange *ex);
const struct sl_route *sl_exchange_route(const struct sl_exchange *ex);
const char *sl_exchange_path(const struct sl_exchange *ex); /* as sent, without the query */

/* The part of the path that stands for {name} in the route's pattern: percent-decoded, valid UTF-8
 * without NUL, never empty. A name that the pattern does not have is a bug (assert). */
const char *sl_exchange_param(const struct sl_exchange *ex, const char *name);

/* The first query parameter of that name, decoded ('+' is a space), valid UTF-8 without NUL; NULL
 * when there is none, "" for `?name` and `?name=`. */
const char *sl_exchange_query(const struct sl_exchange *ex, const char *name);

/* The whole query as it was sent, without the '?'; "" when there is none. */
const char *sl_exchange_query_text(const struct sl_exchange *ex);

/* The first header of that name (any case), without surrounding white space; NULL: none. */
const char *sl_exchange_header(const struct sl_exchange *ex, const char *name);

/* The whole body; never NULL, may have length 0. Followed by a NUL byte that does not count. */
const char *sl_exchange_body(const struct sl_exchange *ex, size_t *ret_n);

/* Frees the body, and its JSON where that was read ahead, before the end: by every handler that has
 * understood its request and goes on. Decoded requests hold copies (proto/decode.h). */
void sl_exchange_drop_body(struct sl_exchange *ex);

/* The same, but what was decoded is held while nothing bounds how many wait: so many bytes of
 * --max-body-memory stay taken, until sl_server_free_body(). */
size_t sl_exchange_keep_body(struct sl_exchange *ex);

const char *sl_exchange_tenant(const struct sl_exchange *ex); /* "default" without keys */
unsigned sl_exchange_roles(const struct sl_exchange *ex);     /* SL_ROLE_… bits of its key */
const char *sl_exchange_request_id(const struct sl_exchange *ex);
int64_t
sl_exchange_started_us(const struct sl_exchange *ex); /* uv_hrtime() / 1000 at its first byte */
struct sl_server *sl_exchange_server(const struct sl_exchange *ex);
void *sl_exchange_app(const struct sl_exchange *ex); /* the hooks' app, see server.h */

/* --- events ------------------------------------------------------------------------------------*/

struct sl_exchange_events { /* either may be NULL */
    /* The client has gone (end of file, error, write timeout, server closing). At most once.
     * Stop the work, then end the exchange, here or later. */
    void (*abort)(struct sl_exchange *ex, void *user);
    /* The backlog fell to the low mark after a write had returned false. */
    void (*writable)(struct sl_exchange *ex, void *user);
};

/* events: static storage, or living until the end. To be called inside the handler: later the
 * client may have gone already, then no abort comes any more (sl_exchange_aborted() tells). */
void sl_exchange_on(struct sl_exchange *ex, const struct sl_exchange_events *events, void *user);
/* For whoever answers later and lets what it waits for go on without the client: *holder is ex, and
 * NULL once the client has gone; it must be there until ex is answered, or other events are given.
 * Otherwise as above. */
void sl_exchange_hold(struct sl_exchange *ex, struct sl_exchange **holder);
void *sl_exchange_user(const struct sl_exchange *ex);

/* The client has gone; abort was, or is being, called. */
bool sl_exchange_aborted(const struct sl_exchange *ex);

/* --- the response ------------------------------------------------------------------------------*/

enum { SL_EXCHANGE_HEADERS_MAX = 16, SL_EXCHANGE_HEADER_BYTES_MAX = 4096 };

/* The session that the response belongs to, whatever it will say (X-Slate-Session); before reply,
 * fail and stream. The last one counts. */
void sl_exchange_of_session(struct sl_exchange *ex, const char *id);

/* Adds a header to the response; before reply, fail and stream. name: a literal. The value is
 * copied; bytes that a header cannot hold (controls) are replaced by '?'. More headers or bytes
 * than the limits above are a bug (assert). Content-Type, Content-Length, Transfer-Encoding,
 * Connection, Date, X-Request-Id and X-Slate-Session are the core's own. */
void sl_exchange_add_header(struct sl_exchange *ex, const char *name, const char *fmt, ...)
    SL_PRINTF(3, 4);

/* A whole response. content_type: a literal, NULL where there is no body (204). The body is copied
 * (for HEAD: counted and left out). */
void sl_exchange_reply(struct sl_exchange *ex, int status, const char *content_type,
                       const void *body, size_t n);

/* The same without a copy: the core calls release(arg) exactly once, when the bytes have been sent
 * or will not be. release may be NULL (static storage). */
void sl_exchange_reply_ref(struct sl_exchange *ex, int status, const char *content_type,
                           const void *body, size_t n, void (*release)(void *arg), void *arg);

/* What was asked for has been done, and stays so. From here on an answer that cannot be made (no
 * memory, too long) is a COMMIT_UNKNOWN: any other error would say that nothing was done. */
void sl_exchange_done(struct sl_exchange *ex);
/* The error as the client is told it: err, or *own. */
const struct sl_error *sl_exchange_told(const struct sl_exchange *ex, const struct sl_error *err,
                                        struct sl_error *own);
/* An error as JSON, with the status of err->code. For 503 and 429 without a Retry-After of the
 * handler's own, one is added, as err->retry_after_s says. */
void sl_exchange_fail(struct sl_exchange *ex, const struct sl_error *err);

/* Status line and headers of a stream; the body is sent chunked (HTTP/1.0: until the connection
 * closes). ping: NULL, or a text (": ping\n\n") that the core sends by itself whenever nothing has
 * been written for --ping-interval; static storage. */
void sl_exchange_stream(struct sl_exchange *ex, int status, const char *content_type,
                        const char *ping);

/* Copies n bytes to the stream. false: the backlog is above the high mark. What is written within
 * one turn of the loop goes out together. */
bool sl_exchange_write(struct sl_exchange *ex, const void *data, size_t n);

size_t sl_exchange_backlog(const struct sl_exchange *ex); /* bytes the kernel has not taken */
bool sl_exchange_is_writable(const struct sl_exchange *ex);

void sl_exchange_end(struct sl_exchange *ex);

/* Instead of end(), where the rest of the response cannot be produced: the connection is cut, so
 * that no client takes the response for whole. Ends the exchange. */
void sl_exchange_cut(struct sl_exchange *ex);

#endif
