/* net.c: see net.h. */
#include "server/net.h"

#include <assert.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { KEEPALIVE_S = 60, FAIR = 64 * 1024 };

struct sl_net_conn {
    struct sl_net *net;
    struct sl_conn *conn;
    struct sl_net_conn *next, *prev;
    struct sl_net_conn *next_waker;
    bool is_waker;
    struct sl_net_conn *line_next, *line_prev; /* in the line of those that wait */
    bool in_line;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    unsigned n_handles; /* not yet closed */
    bool is_spare;
    bool lost; /* it cannot be read: told on the loop's next turn */
    bool closing;
    int64_t armed_ms; /* -1: the timer is off */
};

/* --- the line of those that wait for their client --------------------------------------------- */

static void leave_line(struct sl_net_conn *c)
{
    struct sl_net *n = c->net;
    if (!c->in_line)
        return;
    c->in_line = false;
    *(c->line_prev ? &c->line_prev->line_next : &n->line_first) = c->line_next;
    *(c->line_next ? &c->line_next->line_prev : &n->line_last) = c->line_prev;
    c->line_next = c->line_prev = NULL;
}

static void t_waits(void *t, enum sl_conn_wait w)
{
    struct sl_net_conn *c = t;
    struct sl_net *n = c->net;
    leave_line(c);
    if (w == SL_WAIT_NONE || c->closing)
        return;
    c->in_line = true;
    c->line_prev = w == SL_WAIT_END ? NULL : n->line_last;
    c->line_next = w == SL_WAIT_END ? n->line_first : NULL;
    *(c->line_prev ? &c->line_prev->line_next : &n->line_first) = c;
    *(c->line_next ? &c->line_next->line_prev : &n->line_last) = c;
}

/* --- the end of a connection ----------------------------------------------------------------- */

static void unlink_conn(struct sl_net_conn *c)
{
    struct sl_net *n = c->net;
    if (c->prev)
        c->prev->next = c->next;
    else
        n->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    for (struct sl_net_conn **p = &n->wakers; c->is_waker && *p; p = &(*p)->next_waker)
        if (*p == c) {
            *p = c->next_waker;
            break;
        }
    n->n_conns--;
    sl_metric_set(&n->env->metrics, SL_M_CONNECTIONS, (double)n->n_conns);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct sl_net_conn *c = h->data;
    if (--c->n_handles > 0)
        return;
    struct sl_net *n = c->net;
    unlink_conn(c);
    sl_conn_close(c->conn);
    sl_free(c);
    if (n->n_conns == 0 && n->empty)
        n->empty(n->empty_arg);
}

/* What its client has not taken never will be whole: the kernel forgets its part of it, too, which
 * a client that goes on reading a byte now and then would make it keep. */
static void forget_sent(struct sl_net_conn *c)
{
    uv_os_fd_t fd;
    const struct linger reset = {.l_onoff = 1};
    if (uv_fileno(&c->socket.handle, &fd) == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

static void t_close(void *t)
{
    struct sl_net_conn *c = t;
    if (c->closing)
        return;
    c->closing = true;
    c->net->n_open--;
    leave_line(c);
    if (c->conn && c->conn->out.n > 0)
        forget_sent(c);
    uv_close(&c->socket.handle, on_handle_closed); /* its descriptor, too: nobody watches it */
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
}

/* --- the transport --------------------------------------------------------------------------- */

static size_t to_bufs(uv_buf_t *bufs, size_t max, const struct iovec *spans, size_t n)
{
    assert(n <= max);
    for (size_t i = 0; i < n; i++)
        bufs[i] = (uv_buf_t){.base = spans[i].iov_base, .len = spans[i].iov_len};
    return n;
}

static ptrdiff_t t_send(void *t, const struct iovec *spans, size_t n)
{
    struct sl_net_conn *c = t;
    uv_buf_t bufs[16];
    int r = uv_try_write(&c->socket.stream, bufs, (unsigned)to_bufs(bufs, 16, spans, n));
    return r >= 0 ? r : r == UV_EAGAIN ? 0 : -1;
}

static void on_written(uv_write_t *w, int status)
{
    struct sl_net_conn *c = w->data;
    if (!c->closing)
        sl_conn_sent(c->conn, status == 0);
}

static bool t_send_later(void *t, const struct iovec *spans, size_t n)
{
    struct sl_net_conn *c = t;
    uv_buf_t bufs[16];
    size_t k = to_bufs(bufs, 16, spans, n);
    c->write.data = c;
    return uv_write(&c->write, &c->socket.stream, bufs, (unsigned)k, on_written) == 0;
}

static size_t t_unsent(void *t)
{
    struct sl_net_conn *c = t;
    return uv_stream_get_write_queue_size(&c->socket.stream);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct sl_net_conn *c = h->data;
    size_t room = sl_conn_room(c->conn);
    buf->base = c->net->buffer;
    buf->len = room < sizeof c->net->buffer ? room : sizeof c->net->buffer;
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct sl_net_conn *c = s->data;
    if (c->closing || n == 0)
        return;
    if (n > 0)
        sl_conn_feed(c->conn, buf->base, (size_t)n);
    else if (n == UV_EOF)
        sl_conn_eof(c->conn);
    else if (n != UV_ENOBUFS) /* no room: reading is being stopped */
        sl_conn_gone(c->conn);
}

static void on_hangup(void *arg)
{
    struct sl_net_conn *c = arg;
    if (!c->closing)
        sl_conn_gone(c->conn);
}

/* While input is left in the socket on purpose, only the hang-up is of interest. */
static void t_watch(void *t, bool on)
{
    struct sl_net_conn *c = t;
    uv_os_fd_t fd;
    if (uv_fileno(&c->socket.handle, &fd) != 0)
        return;
    if (on)
        /* If not, the client's end is noticed later: when it is written to. */
        (void)sl_hangups_add(&c->net->hangups, fd, c);
    else
        sl_hangups_remove(&c->net->hangups, fd);
}

static void on_timer(uv_timer_t *timer)
{
    struct sl_net_conn *c = timer->data;
    c->armed_ms = -1;
    if (!c->closing)
        sl_conn_tick(c->conn);
}

/* A later deadline leaves the timer as it is: it fires, finds nothing due, and is set again. So a
 * busy connection does not touch the loop's timers at every read. */
static void t_deadline(void *t, int64_t at_ms)
{
    struct sl_net_conn *c = t;
    if (at_ms < 0 || c->closing || (c->armed_ms >= 0 && c->armed_ms <= at_ms))
        return;
    int64_t now = (int64_t)uv_now(c->net->loop);
    c->armed_ms = at_ms;
    uv_timer_start(&c->timer, on_timer, at_ms > now ? (uint64_t)(at_ms - now) : 0, 0);
}

/* Of those that something waits for, who took the least a millisecond since then, FAIR bytes being
 * given to each: who has just begun to wait is not yet slow. NULL: nobody. */
static struct sl_net_conn *slowest(const struct sl_net *n)
{
    struct sl_net_conn *worst = NULL;
    double least = 0;
    for (struct sl_net_conn *c = n->conns; c; c = c->next) {
        int64_t ms;
        uint64_t taken;
        if (c->closing || !sl_conn_is_behind(c->conn, &ms, &taken))
            continue;
        double pace = (double)(taken + FAIR) / (double)(ms > 0 ? ms : 1);
        if (!worst || pace < least) {
            worst = c;
            least = pace;
        }
    }
    return worst;
}

static void on_idle(uv_idle_t *idle);

/* One at a time: what it held is free when its handles are closed, by the loop's next turn. */
static void thin_out(struct sl_net *n)
{
    n->crowded = n->env->unread_bytes > n->env->config->max_write_memory;
    struct sl_net_conn *c = n->crowded ? slowest(n) : NULL;
    if (!c) {
        n->crowded = false; /* nobody's to take: until somebody is behind again */
        return;
    }
    sl_metric_add(&n->env->metrics, SL_M_SHED, 1);
    sl_conn_gone(c->conn);
    uv_idle_start(&n->idle, on_idle);
}

static void on_idle(uv_idle_t *idle)
{
    struct sl_net *n = idle->data;
    struct sl_net_conn *c = n->wakers;
    n->wakers = NULL;
    uv_idle_stop(idle);
    while (c) {
        struct sl_net_conn *next = c->next_waker;
        c->is_waker = false;
        if (!c->closing && c->lost)
            sl_conn_gone(c->conn);
        else if (!c->closing)
            sl_conn_advance(c->conn);
        c = next;
    }
    if (n->crowded)
        thin_out(n);
}

static void t_wake(void *t)
{
    struct sl_net_conn *c = t;
    if (c->is_waker || c->closing)
        return;
    c->is_waker = true;
    c->next_waker = c->net->wakers;
    c->net->wakers = c;
    uv_idle_start(&c->net->idle, on_idle);
}

static void t_crowded(void *t)
{
    struct sl_net *n = ((struct sl_net_conn *)t)->net;
    n->crowded = true;
    uv_idle_start(&n->idle, on_idle);
}

static void on_shut(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status; /* the reading side tells how it goes on */
}

/* Without reading neither a request nor the client's end would be noticed. */
static void t_read(void *t, bool on)
{
    struct sl_net_conn *c = t;
    int e =
        on ? uv_read_start(&c->socket.stream, on_alloc, on_read) : uv_read_stop(&c->socket.stream);
    if (e == 0)
        return;
    sl_log(SL_LOG_WARN, "a connection cannot be read", SL_LS("address", c->net->address),
           SL_LS("why", uv_strerror(e)));
    c->lost = true;
    t_wake(c);
}

static void t_shut(void *t)
{
    struct sl_net_conn *c = t;
    (void)uv_shutdown(&c->shutdown, &c->socket.stream, on_shut);
}

static int64_t t_now_ms(void *t)
{
    struct sl_net_conn *c = t;
    return (int64_t)uv_now(c->net->loop);
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

/* --- accepting ------------------------------------------------------------------------------- */

static void accept_one(struct sl_net *n);

static bool is_unix(const struct sl_net *n)
{
    return n->env->access.listen.kind == SL_LISTEN_UNIX;
}

static void on_refused_closed(uv_handle_t *h)
{
    struct sl_net_conn *c = h->data;
    struct sl_net *n = c->net;
    if (c->is_spare && n->listening)
        n->spare = c;
    else
        sl_free(c);
    if (n->accept_again && n->listening) {
        n->accept_again = false;
        accept_one(n);
    }
}

/* What there is room for is sent, what has come is thrown away (closing with unread bytes would
 * reset the connection, and the answer with it), and that is that. */
static void send_refusal(struct sl_net_conn *c)
{
    static const char body[] =
        "{\"error\":{\"message\":\"the server has as many connections as it may "
        "(--max-connections); try again later\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"server_full\"}}";
    char head[512], id[SL_REQUEST_ID_SIZE], waste[4096];
    uv_os_fd_t fd;
    sl_request_id(c->net->env, id);
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nDate: %s\r\nX-Request-Id: %s\r\n"
                     "Retry-After: 1\r\nConnection: close\r\n\r\n",
                     sizeof body - 1, sl_date_now(c->net->env), id);
    uv_buf_t bufs[] = {{.base = head, .len = (size_t)n},
                       {.base = (char *)(uintptr_t)body, .len = sizeof body - 1}};
    (void)uv_try_write(&c->socket.stream, bufs, 2);
    if (uv_fileno(&c->socket.handle, &fd) == 0) {
        (void)shutdown(fd, SHUT_WR);
        for (int i = 0; i < 16 && recv(fd, waste, sizeof waste, MSG_DONTWAIT) > 0; i++)
            ;
    }
    sl_metric_add(&c->net->env->metrics, SL_M_REFUSED, 1);
}

static void refuse(struct sl_net_conn *c)
{
    send_refusal(c);
    uv_close(&c->socket.handle, on_refused_closed);
}

static void tune_tcp(struct sl_net_conn *c)
{
    uv_os_fd_t fd;
    unsigned ms = 2 * (unsigned)c->net->env->config->write_timeout_ms;
    (void)uv_tcp_nodelay(&c->socket.tcp, 1);
    (void)uv_tcp_keepalive(&c->socket.tcp, 1, KEEPALIVE_S);
    /* A peer that has lost its power acknowledges nothing: the kernel gives up after this time,
     * also where all was handed to it and no deadline of the connection runs. */
    if (uv_fileno(&c->socket.handle, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static void take_in(struct sl_net_conn *c)
{
    struct sl_net *n = c->net;
    uv_timer_init(n->loop, &c->timer);
    c->timer.data = c;
    c->armed_ms = -1;
    if (!is_unix(n))
        tune_tcp(c);
    c->n_handles = 2;
    c->next = n->conns;
    if (n->conns)
        n->conns->prev = c;
    n->conns = c;
    n->n_conns++;
    n->n_open++;
    sl_metric_add(&n->env->metrics, SL_M_ACCEPTED, 1);
    sl_metric_set(&n->env->metrics, SL_M_CONNECTIONS, (double)n->n_conns);
    c->conn = sl_conn_open(n->env, &transport, c);
    if (!c->conn) {
        send_refusal(c);
        t_close(c);
    }
}

/* The connection that has waited longest for its client ends now. One whose request was not yet
 * whole is told; others lose nothing but the connection. false: none waits. */
static bool make_room(struct sl_net *n)
{
    struct sl_net_conn *c = n->line_first;
    if (!c)
        return false;
    sl_metric_add(&n->env->metrics, SL_M_SHED, 1);
    if (sl_conn_is_midway(c->conn))
        send_refusal(c);
    sl_conn_gone(c->conn);
    return true;
}

static void accept_one(struct sl_net *n)
{
    struct sl_net_conn *c = sl_calloc(1, sizeof *c);
    if (!c && (c = n->spare) != NULL) {
        n->spare = NULL;
        *c = (struct sl_net_conn){.is_spare = true};
    }
    if (!c) {
        n->accept_again = true;
        return;
    }
    c->net = n;
    if (is_unix(n))
        uv_pipe_init(n->loop, &c->socket.pipe, 0);
    else
        uv_tcp_init(n->loop, &c->socket.tcp);
    c->socket.handle.data = c;
    if (uv_accept(&n->listener.stream, &c->socket.stream) != 0)
        uv_close(&c->socket.handle, on_refused_closed);
    else if (c->is_spare || (n->n_open >= n->env->max_connections && !make_room(n)))
        refuse(c);
    else
        take_in(c);
}

static void on_turn(uv_check_t *turn);

static void accept_now(struct sl_net *n)
{
    n->n_new++;
    uv_check_start(&n->turn, on_turn);
    accept_one(n);
}

static void on_turn(uv_check_t *turn)
{
    struct sl_net *n = turn->data;
    n->n_new = 0;
    uv_check_stop(turn);
    if (n->more && n->listening) {
        n->more = false;
        accept_now(n);
    }
}

/* At each turn of the loop a quarter of the places may be taken: else thousands that come at once
 * push out who came among them before it was looked whether that one has asked for something. The
 * rest waits in the kernel; libuv asks for no further one until the one that it has is accepted. */
static void on_connection(uv_stream_t *s, int status)
{
    enum { SHARE = 4 };
    struct sl_net *n = s->data;
    if (status == 0 && n->n_new > n->env->max_connections / SHARE)
        n->more = true;
    else if (status == 0)
        accept_now(n);
    else
        sl_log(SL_LOG_WARN, "a connection was not accepted", SL_LS("why", uv_strerror(status)));
}

/* --- listening ------------------------------------------------------------------------------- */

enum sl_code sl_net_open(struct sl_net *n, uv_loop_t *loop, struct sl_conn_env *env,
                         struct sl_error *err)
{
    *n = (struct sl_net){.loop = loop, .env = env};
    n->spare = sl_calloc(1, sizeof *n->spare);
    if (!n->spare)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory to listen");
    uv_idle_init(loop, &n->idle);
    uv_check_init(loop, &n->turn);
    n->idle.data = n->turn.data = n;
    n->has_handles = true;
    enum sl_code c = sl_hangups_open(&n->hangups, loop, on_hangup, err);
    return c ? c : sl_net_listen(n, on_connection, err);
}

/* --- closing --------------------------------------------------------------------------------- */

bool sl_net_awaits(const struct sl_net *n)
{
    for (const struct sl_net_conn *c = n->conns; c; c = c->next)
        if (!c->closing && sl_conn_awaits(c->conn))
            return true;
    return false;
}

void sl_net_stop_listening(struct sl_net *n)
{
    if (!n->listening)
        return;
    n->listening = false;
    uv_close(&n->listener.handle, NULL);
    if (n->unix_path)
        (void)unlink(n->unix_path);
    sl_free(n->unix_path);
    n->unix_path = NULL;
    sl_free(n->spare);
    n->spare = NULL;
}

void sl_net_stop_all(struct sl_net *n)
{
    for (struct sl_net_conn *c = n->conns; c; c = c->next) /* closed ones leave the list later */
        if (!c->closing)
            sl_conn_stop(c->conn);
}

void sl_net_cut_all(struct sl_net *n)
{
    for (struct sl_net_conn *c = n->conns; c; c = c->next)
        if (!c->closing)
            sl_conn_gone(c->conn);
}

void sl_net_close(struct sl_net *n)
{
    sl_net_stop_listening(n);
    sl_net_cut_all(n);
    sl_free(n->spare);
    n->spare = NULL;
    if (n->has_handles) {
        uv_close((uv_handle_t *)&n->idle, NULL);
        uv_close((uv_handle_t *)&n->turn, NULL);
    }
    n->has_handles = false;
    sl_hangups_close(&n->hangups);
}
