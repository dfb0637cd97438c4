/* conn.c: see conn.h. */
#include "server/conn.h"

#include <assert.h>
#include <string.h>
#include <uv.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

enum {
    SPANS_MAX = 16,
    DISCARD_MAX = 64 * 1024,  /* a refused request's body up to this is read, to keep the
                                 connection; a larger one costs it */
    LINGER_MAX = 1024 * 1024, /* bytes thrown away, and time spent, after a last answer */
    LINGER_MS = 2000,
    BODY_PIECE = 64 * 1024 /* a body that has grown by so much is on its way */
};

/* --- small things ---------------------------------------------------------------------------- */

static int64_t now_ms(const struct sl_conn *c)
{
    return c->ops->now_ms(c->t);
}

/* Between two requests: nothing of the next one has come. */
static bool is_between(const struct sl_conn *c)
{
    return c->state == SL_CONN_READING && !c->ex && c->first_byte_us == 0;
}

bool sl_conn_is_midway(const struct sl_conn *c)
{
    return c->state == SL_CONN_READING && !is_between(c) && c->out.n == 0;
}

void sl_conn_wake(struct sl_conn *c)
{
    if (!c->in_advance && c->state != SL_CONN_CLOSED)
        c->ops->wake(c->t);
}

void sl_conn_break(struct sl_conn *c)
{
    c->broken = true;
    sl_conn_wake(c);
}

bool sl_conn_write(struct sl_conn *c, const void *data, size_t n)
{
    if (!sl_out_copy(&c->out, data, n)) {
        sl_conn_break(c);
        return false;
    }
    sl_conn_wake(c);
    return true;
}

void sl_conn_write_ref(struct sl_conn *c, const void *data, size_t n, void (*release)(void *arg),
                       void *arg)
{
    if (!sl_out_borrow(&c->out, data, n, release, arg))
        sl_conn_break(c);
    sl_conn_wake(c);
}

/* --- the end --------------------------------------------------------------------------------- */

/* What happens to a running exchange is told to its handler last: it may do anything. */
static void close_now(struct sl_conn *c)
{
    struct sl_exchange *ex = c->ex;
    c->ex = NULL;
    c->state = SL_CONN_CLOSED;
    c->ops->close(c->t);
    if (ex && ex->phase == SL_EX_RECEIVING)
        sl_exchange_free(ex);
    else if (ex)
        sl_exchange_abort(ex);
}

static void finish_closing(struct sl_conn *c)
{
    if (!c->unread || c->eof) {
        close_now(c);
        return;
    }
    c->state = SL_CONN_LINGER;
    c->linger_ms = now_ms(c);
    c->ops->shut(c->t);
}

void sl_conn_answered(struct sl_conn *c, bool keep_alive, bool wished)
{
    c->ex = NULL;
    c->unread |= wished && !keep_alive;
    c->refusal.code = SL_OK;
    c->used = true;
    c->moved_on = true;
    c->idle_ms = now_ms(c);
    c->state = keep_alive && !c->stop && !c->unread ? SL_CONN_READING : SL_CONN_CLOSING;
    sl_conn_wake(c);
}

/* --- reading requests ------------------------------------------------------------------------ */

/* The answer to a request that is not read any further. */
static void answer_unread(struct sl_conn *c, const struct sl_error *err)
{
    if (!c->ex && !(c->ex = sl_exchange_new(c, NULL))) {
        c->broken = true;
        return;
    }
    c->unread = true;
    c->ex->keep_alive = false;
    c->first_byte_us = 0;
    c->state = SL_CONN_HANDLING;
    sl_refuse(c->ex, err);
}

static void on_head(struct sl_conn *c)
{
    struct sl_http_head *head = sl_http_take_head(&c->http);
    struct sl_exchange *ex = sl_exchange_new(c, head);
    if (!ex) {
        c->broken = true;
        return;
    }
    c->ex = ex;
    c->body_ms = now_ms(c);
    struct sl_error err;
    bool refused = sl_admit(ex, &err) != SL_OK;
    if (refused && head->has_body &&
        (head->chunked || head->expect_continue || head->content_length > DISCARD_MAX)) {
        answer_unread(c, &err);
    } else if (refused) {
        ex->discard = true;
        c->refusal = err;
    } else if (head->expect_continue && head->has_body && c->n_in == 0) {
        (void)sl_conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
}

static void on_complete(struct sl_conn *c)
{
    c->state = SL_CONN_HANDLING;
    c->first_byte_us = 0;
    c->has_served = true;
    if (c->refusal.code)
        sl_refuse(c->ex, &c->refusal);
    else
        sl_dispatch(c->ex);
}

static void take_body(struct sl_conn *c)
{
    struct sl_error err;
    size_t before = c->ex->n_body;
    if (c->refusal.code) /* DISCARD_MAX at most: on_head() */
        return;
    if (sl_exchange_take_body(c->ex, c->http.data, c->http.n_data, &err) != SL_OK)
        answer_unread(c, &err);
    else
        c->moved_on |= before / BODY_PIECE != c->ex->n_body / BODY_PIECE;
}

/* One event of the parser. true: there may be more to do. */
static bool parse(struct sl_conn *c)
{
    enum sl_http_event event;
    size_t used = sl_http_feed(&c->http, c->in, c->n_in, &event);
    c->in += used;
    c->n_in -= used;
    switch (event) {
    case SL_HTTP_MORE:
        return false;
    case SL_HTTP_HEAD:
        on_head(c);
        return true;
    case SL_HTTP_DATA:
        take_body(c);
        return true;
    case SL_HTTP_DONE:
        on_complete(c);
        return true;
    case SL_HTTP_ERROR:
        answer_unread(c, &c->http.err);
        return true;
    }
    return false;
}

/* Something of a next request is there. Answers that nobody reads must not pile up: no new request
 * before they are taken. */
static bool may_begin(const struct sl_conn *c)
{
    return is_between(c) && c->n_in > 0 && sl_conn_backlog(c) <= c->env->config->write_high;
}

static bool read_on(struct sl_conn *c)
{
    if (is_between(c)) {
        if (c->stop || (c->eof && c->n_in == 0)) {
            c->state = SL_CONN_CLOSING;
            return true;
        }
        if (!may_begin(c) || c->has_served)
            return false;
        c->first_byte_us = (int64_t)(uv_hrtime() / 1000);
        c->head_ms = now_ms(c);
    }
    if (parse(c))
        return true;
    if (c->eof) /* in the middle of a request */
        c->broken = true;
    return c->broken;
}

/* --- writing --------------------------------------------------------------------------------- */

static void flush(struct sl_conn *c)
{
    struct iovec spans[SPANS_MAX];
    while (c->out.n > 0 && !c->sending && !c->broken) {
        size_t n = sl_out_spans(&c->out, spans, SPANS_MAX), total = 0;
        for (size_t i = 0; i < n; i++)
            total += spans[i].iov_len;
        ptrdiff_t r = c->ops->send(c->t, spans, n);
        if (r < 0) {
            c->broken = true;
            return;
        }
        sl_metric_add(&c->env->metrics, SL_M_SENT, (double)r);
        sl_out_consume(&c->out, (size_t)r);
        c->n_taken += (size_t)r;
        if ((size_t)r == total)
            continue;
        n = sl_out_spans(&c->out, spans, SPANS_MAX);
        c->n_sending = 0;
        for (size_t i = 0; i < n; i++)
            c->n_sending += spans[i].iov_len;
        if (!c->behind) {
            c->progress_ms = now_ms(c);
            c->seen = c->n_taken;
        }
        c->behind = true;
        c->sending = true;
        if (!c->ops->send_later(c->t, spans, n)) {
            c->sending = false;
            c->broken = true;
        }
    }
    c->behind = c->sending;
    if (c->behind && c->env->unread_bytes > c->env->config->max_write_memory)
        c->ops->crowded(c->t);
}

void sl_conn_sent(struct sl_conn *c, bool ok)
{
    assert(c->sending);
    c->sending = false;
    if (ok) {
        sl_metric_add(&c->env->metrics, SL_M_SENT, (double)c->n_sending);
        sl_out_consume(&c->out, c->n_sending);
        c->n_taken += c->n_sending;
        c->idle_ms = now_ms(c);
    } else {
        c->broken = true;
    }
    sl_conn_advance(c);
}

/* --- deciding -------------------------------------------------------------------------------- */

/* Does the next thing that is due. false: nothing is. */
static bool step(struct sl_conn *c)
{
    if (c->state == SL_CONN_CLOSED)
        return false;
    if (c->broken || (c->eof && c->state == SL_CONN_HANDLING)) {
        close_now(c);
        return false;
    }
    switch (c->state) {
    case SL_CONN_READING:
        return read_on(c);
    case SL_CONN_LINGER:
        c->n_lingered += c->n_in;
        c->n_in = 0;
        if (c->eof || c->n_lingered > LINGER_MAX)
            close_now(c);
        return false;
    case SL_CONN_CLOSING:
        c->unread |= c->n_in > 0;
        c->n_in = 0;
        return false;
    case SL_CONN_HANDLING:
    case SL_CONN_CLOSED:
        break;
    }
    return false;
}

/* What sending has made possible. */
static bool after_flush(struct sl_conn *c)
{
    if (c->state == SL_CONN_CLOSED)
        return false;
    if (c->broken)
        return true;
    size_t backlog = sl_conn_backlog(c);
    if (c->state == SL_CONN_CLOSING && backlog == 0 && !c->sending) {
        finish_closing(c);
        return true;
    }
    struct sl_exchange *ex = c->ex;
    if (ex && ex->want_writable && backlog <= c->env->config->write_low) {
        ex->want_writable = false;
        if (ex->events && ex->events->writable)
            ex->events->writable(ex, ex->user);
        return true;
    }
    return may_begin(c) && !c->has_served;
}

static int64_t deadline(const struct sl_conn *c)
{
    const struct sl_config *cfg = c->env->config;
    int64_t at = INT64_MAX, d = INT64_MAX;
    if (c->sending)
        at = c->progress_ms + (int64_t)cfg->write_timeout_ms;
    if (c->state == SL_CONN_LINGER)
        d = c->linger_ms + LINGER_MS;
    else if (c->state == SL_CONN_READING && c->ex)
        d = c->body_ms + (int64_t)cfg->body_timeout_ms;
    else if (c->state == SL_CONN_READING && c->first_byte_us)
        d = c->head_ms + (int64_t)cfg->header_timeout_ms;
    else if (c->state == SL_CONN_READING && c->out.n == 0)
        d = c->idle_ms + (int64_t)(c->used ? cfg->idle_timeout_ms : cfg->header_timeout_ms);
    else if (c->ex && c->ex->ping && c->ex->phase == SL_EX_STREAMING && c->out.n == 0)
        d = c->ex->last_write_ms + (int64_t)cfg->ping_interval_ms;
    return d < at ? d : at;
}

/* next: a request that was sent ahead is begun on the loop's next turn. */
static void tell_wait(struct sl_conn *c, bool next)
{
    enum sl_conn_wait w = c->state == SL_CONN_HANDLING || next ? SL_WAIT_NONE
                          : c->state == SL_CONN_READING        ? SL_WAIT_CLIENT
                                                               : SL_WAIT_END;
    if (w != c->waits || (c->moved_on && w == SL_WAIT_CLIENT))
        c->ops->waits(c->t, c->waits = w);
    c->moved_on = false;
}

/* Reading, watching and the deadline as the state wants them; unread input is kept. */
static void settle(struct sl_conn *c, bool next)
{
    if (c->state == SL_CONN_CLOSED)
        return;
    tell_wait(c, next);
    bool on = !c->eof && sl_conn_room(c) > 0;
    if (on != c->reading)
        c->ops->read(c->t, c->reading = on);
    bool watch = !c->eof && !on;
    if (watch != c->watching)
        c->ops->watch(c->t, c->watching = watch);
    int64_t at = deadline(c);
    c->ops->deadline(c->t, at == INT64_MAX ? -1 : at);
}

/* What advance() left of its input goes to `ahead`, or stays there. */
static void keep_input(struct sl_conn *c)
{
    bool is_ahead = c->ahead && c->in >= c->ahead && c->in <= c->ahead + c->ahead_end;
    if (c->n_in == 0 || c->state == SL_CONN_CLOSED) {
        sl_free(c->ahead);
        c->ahead = NULL;
        c->ahead_begin = c->ahead_end = 0;
    } else if (is_ahead) {
        c->ahead_begin = (size_t)(c->in - c->ahead);
    } else if ((c->ahead = sl_malloc((size_t)c->env->config->read_ahead)) != NULL) {
        memcpy(c->ahead, c->in, c->n_in);
        c->ahead_begin = 0;
        c->ahead_end = c->n_in;
    } else {
        c->broken = true;
    }
    c->in = NULL;
    c->n_in = 0;
}

static void advance(struct sl_conn *c, const char *data, size_t n)
{
    assert(!c->in_advance);
    if (c->state == SL_CONN_CLOSED)
        return;
    c->in = data;
    c->n_in = n;
    c->has_served = false;
    c->in_advance = true;
    do {
        while (step(c))
            ;
        if (c->state != SL_CONN_CLOSED)
            flush(c);
    } while (after_flush(c));
    bool more = may_begin(c);
    keep_input(c);
    if (c->broken && c->state != SL_CONN_CLOSED)
        close_now(c);
    settle(c, more);
    c->in_advance = false;
    assert(sl_conn_is_valid(c));
    if (more)
        sl_conn_wake(c);
}

void sl_conn_advance(struct sl_conn *c)
{
    if (c->in_advance) /* from a callback of a handler; the loop above sees what it did */
        return;
    const char *in = c->ahead ? c->ahead + c->ahead_begin : "";
    advance(c, in, c->ahead_end - c->ahead_begin);
}

/* --- events ---------------------------------------------------------------------------------- */

void sl_conn_feed(struct sl_conn *c, const void *data, size_t n)
{
    assert(n <= sl_conn_room(c));
    if (c->state == SL_CONN_CLOSED)
        return;
    sl_metric_add(&c->env->metrics, SL_M_RECEIVED, (double)n);
    if (!c->ahead) {
        advance(c, data, n);
        return;
    }
    memmove(c->ahead, c->ahead + c->ahead_begin, c->ahead_end - c->ahead_begin);
    c->ahead_end -= c->ahead_begin;
    c->ahead_begin = 0;
    memcpy(c->ahead + c->ahead_end, data, n);
    c->ahead_end += n;
    sl_conn_advance(c);
}

void sl_conn_eof(struct sl_conn *c)
{
    c->eof = true;
    sl_conn_advance(c);
}

void sl_conn_gone(struct sl_conn *c)
{
    c->broken = true;
    sl_conn_advance(c);
}

/* From outside of advance(), which follows and sends it. */
static void give_up_reading(struct sl_conn *c, const struct sl_error *err)
{
    c->in_advance = true;
    answer_unread(c, err);
    c->in_advance = false;
}

void sl_conn_stop(struct sl_conn *c)
{
    struct sl_error err;
    c->stop = true;
    if (c->state == SL_CONN_HANDLING) {
        c->broken = true;
    } else if (c->state == SL_CONN_READING && !is_between(c)) {
        (void)sl_fail(&err, SL_E_DRAINING,
                      "the server shut down before the whole request had come");
        give_up_reading(c, &err);
    }
    sl_conn_advance(c);
}

static void time_out(struct sl_conn *c, const char *what)
{
    sl_metric_add(&c->env->metrics, SL_M_TIMEOUTS, 1);
    sl_log(SL_LOG_DEBUG, "connection timed out", SL_LS("option", what));
}

static void time_out_request(struct sl_conn *c, const char *what, uint64_t ms)
{
    struct sl_error err;
    time_out(c, what);
    (void)sl_fail(&err, SL_E_REQUEST_TIMEOUT,
                  "the request's %s did not arrive within %llu ms (--%s-timeout)", what,
                  (unsigned long long)ms, what);
    give_up_reading(c, &err);
}

static void tick_sending(struct sl_conn *c, int64_t now)
{
    const struct sl_config *cfg = c->env->config;
    uint64_t taken = sl_conn_taken(c);
    uint64_t least = cfg->write_rate * cfg->write_timeout_ms / 1000;
    if (now < c->progress_ms + (int64_t)cfg->write_timeout_ms)
        return;
    if (taken - c->seen >= (least > 1 ? least : 1)) {
        c->seen = taken;
        c->progress_ms = now;
    } else {
        time_out(c, taken == c->seen ? "write-timeout" : "write-rate");
        c->broken = true;
    }
}

void sl_conn_tick(struct sl_conn *c)
{
    const struct sl_config *cfg = c->env->config;
    int64_t now = now_ms(c);
    if (c->state == SL_CONN_CLOSED)
        return;
    if (c->sending)
        tick_sending(c, now);
    if (!c->broken && now >= deadline(c)) {
        if (c->state == SL_CONN_LINGER) {
            c->broken = true;
        } else if (c->state == SL_CONN_READING && c->ex) {
            time_out_request(c, "body", cfg->body_timeout_ms);
        } else if (c->state == SL_CONN_READING && c->first_byte_us) {
            time_out_request(c, "header", cfg->header_timeout_ms);
        } else if (c->state == SL_CONN_READING) {
            time_out(c, c->used ? "idle-timeout" : "header-timeout");
            c->broken = true;
        } else if (c->ex) {
            c->in_advance = true;
            sl_exchange_ping(c->ex);
            c->in_advance = false;
        }
    }
    sl_conn_advance(c);
}

/* --- open and close -------------------------------------------------------------------------- */

struct sl_conn *sl_conn_open(struct sl_conn_env *env, const struct sl_transport *ops, void *t)
{
    struct sl_conn *c = sl_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->env = env;
    c->ops = ops;
    c->t = t;
    c->out.total = &env->unread_bytes;
    sl_http_init(&c->http, (struct sl_http_limits){.max_header = (size_t)env->config->max_header,
                                                   .max_uri = (size_t)env->config->max_uri});
    c->idle_ms = now_ms(c);
    settle(c, false);
    return c;
}

void sl_conn_close(struct sl_conn *c)
{
    if (!c)
        return;
    assert(c->state == SL_CONN_CLOSED && !c->ex);
    sl_http_done(&c->http);
    sl_out_clear(&c->out);
    sl_free(c->ahead);
    sl_free(c);
}
