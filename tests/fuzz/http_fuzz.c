/* http_fuzz.c: a client's bytes into the connection machine, on a transport of memory.
 *
 * The first bytes of the input say how the rest comes apart, how much the socket takes, when time
 * passes and when handlers answer; so that everything a client can do in time is reached, too.
 * After each event the machine must be valid; at the end every exchange has ended, every answer
 * that went out whole is one that HTTP knows, and no body's memory is left. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "server/conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HELD_MAX = 4 };

static struct {
    struct sl_conn *conn;
    bool closed, is_sending, reading, woken, shut;
    enum sl_conn_wait waits;
    size_t unsent, room;
    int64_t now, deadline;
    char out[1 << 16]; /* the first bytes that went out */
    size_t n_out;
    struct sl_exchange *held[HELD_MAX];
    bool streaming[HELD_MAX];
    size_t n_held;
} io;

/* --- transport -------------------------------------------------------------------------------- */

static void take(const void *bytes, size_t n)
{
    if (n > sizeof io.out - 1 - io.n_out)
        n = sizeof io.out - 1 - io.n_out;
    memcpy(io.out + io.n_out, bytes, n);
    io.n_out += n;
}

static ptrdiff_t t_send(void *t, const struct iovec *spans, size_t n)
{
    (void)t;
    size_t sent = 0;
    assert(!io.closed && !io.is_sending && !io.shut);
    for (size_t i = 0; i < n && io.room > 0; i++) {
        size_t k = spans[i].iov_len < io.room ? spans[i].iov_len : io.room;
        take(spans[i].iov_base, k);
        io.room -= k;
        sent += k;
    }
    return (ptrdiff_t)sent;
}

static bool t_send_later(void *t, const struct iovec *spans, size_t n)
{
    (void)t;
    assert(!io.closed && !io.is_sending && !io.shut);
    for (size_t i = 0; i < n; i++) {
        io.unsent += spans[i].iov_len;
        take(spans[i].iov_base, spans[i].iov_len);
    }
    io.is_sending = true;
    return true;
}

static size_t t_unsent(void *t)
{
    (void)t;
    return io.unsent;
}

static void t_read(void *t, bool on)
{
    (void)t;
    io.reading = on;
}

static void t_watch(void *t, bool on)
{
    (void)t;
    assert(!on || !io.reading);
}

static void t_deadline(void *t, int64_t at_ms)
{
    (void)t;
    io.deadline = at_ms;
}

static void t_wake(void *t)
{
    (void)t;
    io.woken = true;
}

static void t_crowded(void *t)
{
    (void)t;
    assert(!io.closed);
}

static void t_shut(void *t)
{
    (void)t;
    assert(!io.shut);
    io.shut = true;
}

static void t_close(void *t)
{
    (void)t;
    assert(!io.closed);
    io.closed = true;
}

static void t_waits(void *t, enum sl_conn_wait w)
{
    (void)t;
    assert(!io.closed && (w != io.waits || w == SL_WAIT_CLIENT));
    io.waits = w;
}

static int64_t t_now(void *t)
{
    (void)t;
    return io.now;
}

static const struct sl_transport transport = {t_send,  t_send_later, t_unsent, t_read,
                                              t_watch, t_deadline,   t_wake,   t_crowded,
                                              t_shut,  t_waits,      t_close,  t_now};

/* --- handlers --------------------------------------------------------------------------------- */

/* Reads everything a handler can read, so that a sanitizer sees it. */
static size_t touch(const struct sl_exchange *ex)
{
    size_t n, sum = 0;
    const char *body = sl_exchange_body(ex, &n);
    for (size_t i = 0; i <= n; i++)
        sum += (unsigned char)body[i];
    const char *texts[] = {sl_exchange_path(ex), sl_exchange_query(ex, "q"),
                           sl_exchange_header(ex, "accept"), sl_exchange_request_id(ex),
                           sl_exchange_tenant(ex)};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        sum += texts[i] ? strlen(texts[i]) : 0;
    return sum;
}

static void now(struct sl_exchange *ex)
{
    size_t n;
    (void)touch(ex);
    const char *body = sl_exchange_body(ex, &n);
    sl_exchange_add_header(ex, "X-Q", "%.100s",
                           sl_exchange_query(ex, "q") ? sl_exchange_query(ex, "q") : "");
    sl_exchange_reply(ex, 200, "application/json", body, n);
}

static void item(struct sl_exchange *ex)
{
    const char *id = sl_exchange_param(ex, "id");
    assert(*id);
    sl_exchange_reply_ref(ex, 200, "text/plain", "item", 4, NULL, NULL);
}

static void drop(struct sl_exchange *ex, void *user)
{
    size_t i = (size_t)((struct sl_exchange **)user - io.held);
    assert(io.held[i] == ex && sl_exchange_aborted(ex));
    if (io.streaming[i])
        sl_exchange_end(ex);
    else
        sl_exchange_reply(ex, 200, NULL, "", 0);
    io.held[i] = NULL;
}

static const struct sl_exchange_events events = {.abort = drop};

static void hold(struct sl_exchange *ex)
{
    size_t i = 0;
    while (io.held[i])
        assert(++i < HELD_MAX); /* one at a time: an aborted one ends in drop() */
    io.held[i] = ex;
    io.streaming[i] = strcmp(sl_exchange_path(ex), "/stream") == 0;
    sl_exchange_on(ex, &events, &io.held[i]);
    if (io.streaming[i])
        sl_exchange_stream(ex, 200, "text/event-stream", ": ping\n\n");
}

static void answer(unsigned how)
{
    static const char block[600];
    for (size_t i = 0; i < HELD_MAX; i++) {
        struct sl_exchange *ex = io.held[i];
        if (!ex)
            continue;
        if (io.streaming[i] && how % 4) {
            (void)sl_exchange_write(ex, block, how % 4 * 150);
            continue;
        }
        io.held[i] = NULL;
        if (how & 8)
            sl_exchange_cut(ex);
        else if (io.streaming[i])
            sl_exchange_end(ex);
        else
            sl_exchange_reply(ex, 200, "text/plain", block, sizeof block);
    }
}

static const struct sl_route routes[] = {
    {SL_POST, "/now", SL_ROLE_USER, 0, SL_BODY_JSON, now},
    {SL_GET, "/now", SL_ROLE_USER, SL_ROUTE_OPEN | SL_ROUTE_ANY_HOST, SL_BODY_NONE, now},
    {SL_GET, "/i/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, item},
    {SL_POST, "/hold", SL_ROLE_USER, 0, SL_BODY_JSON, hold},
    {SL_GET, "/hold", SL_ROLE_USER, 0, SL_BODY_NONE, hold},
    {SL_GET, "/stream", SL_ROLE_USER, 0, SL_BODY_NONE, hold},
};

/* --- a run ------------------------------------------------------------------------------------ */

static void settle(void)
{
    while (io.woken && !io.closed) {
        io.woken = false;
        sl_conn_advance(io.conn);
    }
    assert(sl_conn_is_valid(io.conn));
}

static void feed(const uint8_t *data, size_t n)
{
    while (n > 0 && !io.closed && io.reading) {
        size_t k = sl_conn_room(io.conn);
        char *copy; /* of exact size: a read beyond it is seen */
        assert(k > 0);
        k = k < n ? k : n;
        copy = malloc(k);
        assert(copy);
        memcpy(copy, data, k);
        sl_conn_feed(io.conn, copy, k);
        free(copy);
        settle();
        data += k;
        n -= k;
    }
}

static void event(unsigned op)
{
    if (io.closed)
        return;
    switch (op % 8) {
    case 0:
    case 1:
        answer(op / 8);
        break;
    case 2:
        io.now += op * 10;
        if (io.deadline >= 0 && io.now >= io.deadline)
            sl_conn_tick(io.conn);
        break;
    case 3:
        io.room += op;
        break;
    case 4:
        if (io.is_sending) {
            io.is_sending = false;
            io.unsent = 0;
            sl_conn_sent(io.conn, op < 250);
        }
        break;
    case 5:
        io.room = SIZE_MAX / 2;
        break;
    case 6:
        if (op > 200)
            sl_conn_eof(io.conn);
        break;
    default:
        if (op > 240)
            sl_conn_stop(io.conn);
        break;
    }
    settle();
}

static void check_out(void)
{
    static const char start[] = "HTTP/1.1 ";
    io.out[io.n_out] = '\0';
    if (io.n_out >= sizeof start - 1)
        assert(memcmp(io.out, start, sizeof start - 1) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sl_config config = {.listen = "127.0.0.1:80",
                                      .max_header = 1024,
                                      .max_uri = 256,
                                      .max_body = 2048,
                                      .max_body_memory = 8192,
                                      .read_ahead = 512,
                                      .header_timeout_ms = 1000,
                                      .body_timeout_ms = 1000,
                                      .idle_timeout_ms = 1000,
                                      .write_timeout_ms = 1000,
                                      .write_high = 1000,
                                      .write_low = 100,
                                      .max_write_memory = 1500,
                                      .ping_interval_ms = 500};
    static struct sl_conn_env env;
    if (!env.config) {
        sl_log_setup(SL_LOG_ERROR, false);
        env = (struct sl_conn_env){.config = &config, .access.config = &config, .id_prefix = "f"};
        if (sl_listen_parse(&env.access.listen, config.listen, NULL) != SL_OK ||
            sl_metrics_init(&env.metrics, NULL) != SL_OK)
            abort();
        sl_router_add(&env.router, routes, sizeof routes / sizeof *routes);
    }
    memset(&io, 0, offsetof(__typeof__(io), out));
    memset(&io.n_out, 0, sizeof io - offsetof(__typeof__(io), n_out));
    io.deadline = -1;
    io.room = SIZE_MAX / 2;
    io.conn = sl_conn_open(&env, &transport, &io);
    assert(io.conn);
    /* N, then N pairs (bytes to feed, event), then the client's bytes. */
    size_t n_ops = size ? data[0] % 32 : 0, at = 1 + 2 * n_ops;
    for (size_t i = 0; at <= size && i < n_ops; i++) {
        size_t n = data[1 + 2 * i];
        n = n < size - at ? n : size - at;
        feed(data + at, n);
        at += n;
        event(data[2 + 2 * i]);
    }
    if (at < size)
        feed(data + at, size - at);
    check_out();
    if (!io.closed)
        sl_conn_gone(io.conn);
    assert(io.closed);
    sl_conn_close(io.conn);
    for (size_t i = 0; i < HELD_MAX; i++)
        assert(!io.held[i]);
    assert(env.body_bytes == 0 && env.metrics.value[SL_M_IN_FLIGHT] < 0.5);
    return 0;
}
