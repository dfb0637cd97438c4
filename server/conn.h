/* conn.h: one connection as a protocol machine, apart from sockets and from the clock.
 *
 * Events come in (bytes, end of file, something sent, a deadline, a wish of a handler), and one
 * function, advance(), looks at all that is recorded and decides what to do next. It acts through
 * struct sl_transport, which server/net.c implements on libuv and the tests with memory.
 *
 *   READING ──head, checks──> READING (body) ──whole request──> HANDLING ──the end──> READING …
 *      └─refused before its body has come─> answered, then LINGER        └─close──> flushed, CLOSED
 *
 * - One exchange at a time; what a client sends ahead waits in `ahead`, at most --read-ahead bytes;
 *   when that is full reading stops and the transport watches for the hang-up alone. So a client
 *   that goes away is noticed in any state.
 * - End of file while a request is being handled means that the client has gone (as it does for the
 *   proxies in front of it): nobody waits for half-closed clients.
 * - LINGER: after an answer to a request that was not read to its end, and after a last one behind
 *   which the client may have sent further requests, the sending side is closed and what still
 *   comes is thrown away for a while; a close at once would reset the connection and could take
 *   the answer with it.
 * - Deadlines are one per connection: deadline() names the earliest that applies. None of them is
 *   put off by single bytes: a head and a body have their time from their beginning, and a client
 *   that takes its answers must do so at --write-rate.
 * - Whoever waits for its client can lose its place to a newcomer: the transport is told who does
 *   (`waits`) and sheds the one that has waited longest. So idle and slow clients, however many,
 *   keep nobody out.
 * - One request of a connection at each turn of the loop: a thousand that were sent ahead wait
 * until all other connections had theirs.
 *
 * Why not uv_tcp_t in here: the fuzzer, and tests of a hundred interleavings, need no sockets.
 * Loop's thread. Private to the HTTP core. */
#ifndef SLATE_SERVER_CONN_H
#define SLATE_SERVER_CONN_H

#include "proto/request.h"
#include "server/access.h"
#include "server/auth.h"
#include "server/date.h"
#include "server/http.h"
#include "server/longwork.h"
#include "server/metrics.h"
#include "server/out.h"
#include "server/router.h"

struct sl_conn;

enum sl_conn_wait {
    SL_WAIT_NONE,   /* for nothing: a request is being answered, or begun next */
    SL_WAIT_CLIENT, /* for the client's next request, for the rest of one, or for it to read */
    SL_WAIT_END     /* for the last answer to be taken: nothing more is expected */
};

struct sl_transport {
    /* Sends what the socket takes at once: bytes, 0 when it takes none, -1 when it is broken. */
    ptrdiff_t (*send)(void *t, const struct iovec *spans, size_t n);
    /* Sends the spans when it can; then, never from inside, sl_conn_sent(). One at a time. */
    bool (*send_later)(void *t, const struct iovec *spans, size_t n);
    size_t (*unsent)(void *t);                /* of send_later's bytes, those not yet taken */
    void (*read)(void *t, bool on);           /* may be called with what is already set */
    void (*watch)(void *t, bool on);          /* while not reading: sl_conn_gone() at a hang-up */
    void (*deadline)(void *t, int64_t at_ms); /* sl_conn_tick() at that time; -1: never */
    void (*wake)(void *t);                    /* sl_conn_advance() on the loop's next turn */
    void (*crowded)(void *t); /* --max-write-memory is exceeded: somebody is to go, soon */
    void (*shut)(void *t);    /* no more will be sent */
    /* When it changes, and again where the client has moved on (a request answered, a good piece of
     * a body received) and waiting begins anew. */
    void (*waits)(void *t, enum sl_conn_wait w);
    /* The end: no event any more. The transport frees the conn (sl_conn_close) when it is through
     * with it, not from inside this call. */
    void (*close)(void *t);
    int64_t (*now_ms)(void *t); /* any clock that does not go back */
};

/* What connections share. */
struct sl_conn_env {
    const struct sl_config *config;
    struct sl_access access;
    struct sl_router router;
    struct sl_metrics metrics;
    struct sl_keys *keys;   /* swapped by a reload; NULL: none needed */
    size_t max_connections; /* config's, or fewer where the system gives fewer descriptors */
    uint64_t body_bytes;    /* held by all bodies */
    uint64_t unread_bytes;  /* of all responses, not taken by their clients yet */
    bool closing_down;      /* draining: answers say Connection: close */
    bool closing;           /* nothing is begun any more: DRAINING */
    char id_prefix[17];     /* of request ids made here */
    uint64_t id_next;
    struct sl_date date;
    struct sl_longwork *longwork; /* NULL: bodies are read by the handler, however large */
    struct sl_server *server;     /* for handlers */
    void *app;
    void (*named)(struct sl_exchange *ex, void (*handler)(struct sl_exchange *ex)); /* or NULL */
    int64_t (*unix_s)(void); /* tests: the time that answers tell; NULL: the system's */
    /* Tests: called when an exchange is freed; may be NULL. */
    void (*freed)(void *arg);
    void *freed_arg;
};

enum sl_conn_state {
    SL_CONN_READING,
    SL_CONN_HANDLING,
    SL_CONN_CLOSING, /* the last answer is being sent; what comes in is thrown away */
    SL_CONN_LINGER,
    SL_CONN_CLOSED
};

enum { SL_REQUEST_ID_SIZE = 129 }; /* room for one of a client's, which may have 128 bytes */

struct sl_exchange {
    struct sl_conn *conn; /* NULL: the client has gone */
    struct sl_conn_env *env;
    struct sl_http_head *head; /* NULL where the head could not be read */
    char *path;                /* as sent, without the query */
    char *decoded;             /* a copy that the router decodes and match.params point into */
    struct sl_route_match match;
    bool matched;
    bool is_head; /* HEAD: no body goes out */
    bool is_options;
    bool http11;
    const char *query_text; /* as sent, without the '?'; NULL: none */
    char *query;            /* decoded pairs, n_query of them: name NUL value NUL … */
    size_t n_query;
    char *body;
    size_t n_body, cap_body, max_body;
    const char *max_body_option; /* which option max_body is */
    struct long_body *ahead;     /* its JSON, where it was read before the handler asks for it */
    bool discard; /* the body is read and thrown away: refused, or of no use to the route */
    struct sl_identity identity;
    char id[SL_REQUEST_ID_SIZE];
    int64_t started_us, started_ms;

    const struct sl_exchange_events *events;
    void *user;
    bool want_writable; /* a write has returned false */

    enum { SL_EX_RECEIVING, SL_EX_OPEN, SL_EX_STREAMING } phase;
    bool keep_alive;
    bool chunked;
    int status; /* of the stream */
    const char *ping;
    int64_t last_write_ms;
    enum sl_origin origin;
    size_t n_headers; /* added by the handler, in `headers` as whole lines */
    size_t n_header_bytes;
    bool has_retry_after;
    bool done;                           /* what was asked for has been done, and stays so */
    char session[SL_SESSION_ID_MAX + 1]; /* "": none */
    char headers[SL_EXCHANGE_HEADER_BYTES_MAX];
};

struct sl_conn {
    struct sl_conn_env *env;
    const struct sl_transport *ops;
    void *t;
    enum sl_conn_state state;
    struct sl_http http;
    struct sl_exchange *ex;
    struct sl_error refusal; /* of the request being discarded; code OK: none */

    const char *in; /* inside advance(): what is to be read next, of `ahead` or just fed */
    size_t n_in;
    char *ahead; /* --read-ahead bytes, there while it holds some: [ahead_begin, ahead_end) */
    size_t ahead_begin, ahead_end;
    struct sl_out out;
    bool sending; /* send_later is under way with the first `n_sending` bytes of out */
    size_t n_sending;
    bool behind;      /* something has been waiting for the client to read since progress_ms */
    uint64_t n_taken; /* bytes that the socket took, those of a send_later under way not counted */
    uint64_t seen;    /* for the write deadline: what had been taken at progress_ms */

    bool reading, watching;
    bool eof;    /* the client sends no more */
    bool broken; /* it cannot be reached */
    bool in_advance;
    bool unread;             /* the client may still be sending: LINGER comes after CLOSING */
    bool used;               /* a request has been read on it */
    bool stop;               /* the server is closing: no further request */
    bool has_served;         /* a request, in this call of advance() */
    enum sl_conn_wait waits; /* as the transport was told */
    bool moved_on;           /* waiting begins anew */

    int64_t first_byte_us; /* of the request being read; 0: none has come */
    int64_t head_ms, body_ms, idle_ms, progress_ms, linger_ms; /* when these began */
    size_t n_lingered;
};

/* --- for the transport -------------------------------------------------------------------------*/

/* NULL: no memory. Reading is on from now. */
struct sl_conn *sl_conn_open(struct sl_conn_env *env, const struct sl_transport *ops, void *t);
void sl_conn_close(struct sl_conn *c); /* after ops->close; NULL is fine */

/* How many bytes sl_conn_feed() takes at most now. */
size_t sl_conn_room(const struct sl_conn *c);
void sl_conn_feed(struct sl_conn *c, const void *data, size_t n);
void sl_conn_eof(struct sl_conn *c);
void sl_conn_gone(struct sl_conn *c);
void sl_conn_sent(struct sl_conn *c, bool ok);
void sl_conn_tick(struct sl_conn *c);
void sl_conn_advance(struct sl_conn *c);

/* A part of a request has come, and nothing else is being sent: where the transport gives it up it
 * may answer first. */
bool sl_conn_is_midway(const struct sl_conn *c);

/* Has it begun a request, or, new, not asked anything yet, both within the last second? */
bool sl_conn_awaits(const struct sl_conn *c);
/* Has something been waiting for the client to read? Then for how long, and how much of it was
 * taken meanwhile. */
bool sl_conn_is_behind(const struct sl_conn *c, int64_t *ret_ms, uint64_t *ret_taken);
/* The server closes: an idle connection at once, others after what has been written was sent; who
 * is in the middle of a request is told; a running exchange is aborted. */
void sl_conn_stop(struct sl_conn *c);

/* Checks that always hold between events; false is a bug. */
bool sl_conn_is_valid(const struct sl_conn *c);

/* --- between conn.c, admit.c and exchange.c ----------------------------------------------------*/

/* admit.c: the request's head has come: everything that can be judged from it. Sets the exchange's
 * route, parameters, identity and body limit. On failure the refusal. */
SL_NODISCARD enum sl_code sl_admit(struct sl_exchange *ex, struct sl_error *err);
/* Answers with an error, with the headers that belong to it (Allow, WWW-Authenticate). */
void sl_refuse(struct sl_exchange *ex, const struct sl_error *err);
/* The whole request has come: to the handler, or the core's own answer to OPTIONS. */
void sl_dispatch(struct sl_exchange *ex);

/* What every answer carries, net.c's refusals too: an id for a request that has none, and the text
 * of Date, valid until the next call. */
void sl_request_id(struct sl_conn_env *env, char ret[SL_REQUEST_ID_SIZE]);
const char *sl_date_now(struct sl_conn_env *env);
struct sl_exchange *sl_exchange_new(struct sl_conn *c,
                                    struct sl_http_head *head); /* NULL: memory */
void sl_exchange_free(struct sl_exchange *ex);
SL_NODISCARD enum sl_code sl_exchange_take_body(struct sl_exchange *ex, const char *data, size_t n,
                                                struct sl_error *err);
/* ahead.c: lets a large body's JSON be read first; then, from the loop, `next` is called, unless
 * the client has gone meanwhile. false: it is not large, go on. */
bool sl_exchange_read_ahead(struct sl_exchange *ex, void (*next)(struct sl_exchange *ex));
void sl_exchange_forget_ahead(struct sl_exchange *ex); /* before the body goes */
void sl_exchange_abort(struct sl_exchange *ex);        /* detaches it and tells the handler */
void sl_exchange_ping(struct sl_exchange *ex);

/* conn_tell.c: bytes that the socket took, of a send_later under way (there must be one) too. */
uint64_t sl_conn_taken(const struct sl_conn *c);

/* conn.c: for exchange.c. */
/* Append to what is to be sent; without memory the connection is broken, and false. */
bool sl_conn_write(struct sl_conn *c, const void *data, size_t n);
void sl_conn_write_ref(struct sl_conn *c, const void *data, size_t n, void (*release)(void *arg),
                       void *arg);
size_t sl_conn_backlog(const struct sl_conn *c);
/* wished: the client counts on the connection for its next request, which it may have sent. */
void sl_conn_answered(struct sl_conn *c, bool keep_alive, bool wished);
void sl_conn_break(struct sl_conn *c);
void sl_conn_wake(struct sl_conn *c);

#endif
