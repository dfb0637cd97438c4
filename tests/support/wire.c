/* wire.c: see wire.h. */
#include "tests/support/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void receive(struct wire *w, const char *bytes, size_t n)
{
    w->out = realloc(w->out, w->n_out + n + 1);
    assert_non_null(w->out);
    memcpy(w->out + w->n_out, bytes, n);
    w->n_out += n;
    w->out[w->n_out] = '\0';
}

static ptrdiff_t t_send(void *t, const struct iovec *spans, size_t n)
{
    struct wire *w = t;
    size_t sent = 0;
    assert_false(w->closed || w->is_sending || w->shut);
    for (size_t i = 0; i < n && w->room > 0; i++) {
        size_t k = spans[i].iov_len < w->room ? spans[i].iov_len : w->room;
        receive(w, spans[i].iov_base, k);
        sent += k;
        w->room -= w->room == SIZE_MAX ? 0 : k;
    }
    return (ptrdiff_t)sent;
}

static bool t_send_later(void *t, const struct iovec *spans, size_t n)
{
    struct wire *w = t;
    assert_false(w->closed || w->is_sending || w->shut);
    assert_in_range(n, 1, 16);
    memcpy(w->later, spans, n * sizeof *spans);
    w->n_later = n;
    w->unsent = 0;
    for (size_t i = 0; i < n; i++)
        w->unsent += spans[i].iov_len;
    w->is_sending = true;
    return true;
}

static size_t t_unsent(void *t)
{
    struct wire *w = t;
    return w->unsent;
}

static void t_read(void *t, bool on)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->reading = on;
}

static void t_watch(void *t, bool on)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->watching = on;
}

static void t_deadline(void *t, int64_t at_ms)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->deadline_ms = at_ms;
}

static void t_wake(void *t)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->woken = true;
}

static void t_crowded(void *t)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->n_crowded++;
}

static void t_shut(void *t)
{
    struct wire *w = t;
    assert_false(w->closed || w->shut);
    w->shut = true;
}

static void t_close(void *t)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->closed = true;
}

static void t_waits(void *t, enum sl_conn_wait waits)
{
    struct wire *w = t;
    assert_false(w->closed);
    w->waits = waits;
    w->n_waits++;
}

static int64_t t_now_ms(void *t)
{
    struct wire *w = t;
    return w->now_ms;
}

static const struct sl_transport transport = {
    .send = t_send,
    .send_later = t_send_later,
    .unsent = t_unsent,
    .read = t_read,
    .watch = t_watch,
    .deadline = t_deadline,
    .wake = t_wake,
    .crowded = t_crowded,
    .shut = t_shut,
    .close = t_close,
    .waits = t_waits,
    .now_ms = t_now_ms,
};

/* As the real transport does it: freed from the loop, after the call that closed it. */
static void see_off(struct wire *w)
{
    if (w->closed && w->conn) {
        sl_conn_close(w->conn);
        w->conn = NULL;
    }
}

void wire_config(struct sl_config *c)
{
    *c = (struct sl_config){
        .listen = "127.0.0.1:8080",
        .max_connections = 16,
        .max_header = 1024,
        .max_uri = 128,
        .max_body = 4096,
        .max_body_memory = 16384,
        .read_ahead = 2048,
        .header_timeout_ms = 1000,
        .body_timeout_ms = 2000,
        .idle_timeout_ms = 5000,
        .write_timeout_ms = 3000,
        .write_rate = 100,
        .write_high = 4096,
        .write_low = 1024,
        .max_write_memory = 65536,
        .ping_interval_ms = 700,
    };
}

static int64_t then(void)
{
    return 784111777; /* the date of RFC 9110's examples */
}

void wire_env(struct sl_conn_env *env, const struct sl_config *c)
{
    *env =
        (struct sl_conn_env){.config = c, .access.config = c, .id_prefix = "test", .unix_s = then};
    assert_int_equal(sl_listen_parse(&env->access.listen, c->listen, NULL), SL_OK);
    assert_int_equal(sl_metrics_init(&env->metrics, NULL), SL_OK);
    sl_router_init(&env->router);
}

void wire_env_done(struct sl_conn_env *env)
{
    sl_metrics_done(&env->metrics);
}

void wire_open(struct wire *w, struct sl_conn_env *env)
{
    *w = (struct wire){.room = SIZE_MAX, .deadline_ms = -1, .now_ms = 1000000};
    receive(w, "", 0);
    w->conn = sl_conn_open(env, &transport, w);
    assert_non_null(w->conn);
}

void wire_close(struct wire *w)
{
    if (!w->closed)
        sl_conn_gone(w->conn);
    assert_true(w->closed);
    see_off(w);
    free(w->out);
    w->out = NULL;
}

void wire_feed(struct wire *w, const char *bytes, size_t n)
{
    while (n > 0 && !w->closed && w->reading) {
        size_t k = sl_conn_room(w->conn);
        assert_true(k > 0);
        if (k > n)
            k = n;
        sl_conn_feed(w->conn, bytes, k);
        bytes += k;
        n -= k;
    }
    see_off(w);
}

void wire_puts(struct wire *w, const char *text)
{
    wire_feed(w, text, strlen(text));
}

void wire_loop(struct wire *w)
{
    while (w->woken && !w->closed) {
        w->woken = false;
        sl_conn_advance(w->conn);
    }
    see_off(w);
}

void wire_take(struct wire *w, size_t n)
{
    while (n > 0 && w->is_sending) {
        struct iovec *v = &w->later[0];
        size_t k = v->iov_len < n ? v->iov_len : n;
        receive(w, v->iov_base, k);
        v->iov_base = (char *)v->iov_base + k;
        v->iov_len -= k;
        w->unsent -= k;
        n -= k;
        if (v->iov_len == 0)
            memmove(w->later, w->later + 1, --w->n_later * sizeof *v);
        if (w->unsent == 0) {
            w->is_sending = false;
            w->room = n;
            sl_conn_sent(w->conn, true);
            n = w->room;
            see_off(w);
        }
    }
    w->room = w->closed || w->is_sending ? 0 : n;
}

void wire_clock(struct wire *w, int64_t ms)
{
    w->now_ms += ms;
    if (!w->closed && w->deadline_ms >= 0 && w->now_ms >= w->deadline_ms)
        sl_conn_tick(w->conn);
    see_off(w);
}

void wire_clear(struct wire *w)
{
    w->n_out = 0;
    w->out[0] = '\0';
}
