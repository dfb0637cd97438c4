/* redis_conn.c: see redis_conn.h. */
#include "server/store/redis_conn.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

const struct sl_redis_io sl_redis_io_system = {.connect = redisAsyncConnect,
                                               .poll_init = uv_poll_init,
                                               .command = redisAsyncCommandArgv,
                                               .reply = NULL};

static void begin(struct sl_rd_conn *c);

/* --- libuv's side of a connection ------------------------------------------------------------ */

struct watch {
    uv_poll_t h;
    struct sl_rd_conn *c;
    redisAsyncContext *ac; /* NULL: hiredis has freed it */
    int events;
};

static void one_less(struct sl_rd_conn *c)
{
    assert(c->n_open > 0);
    if (--c->n_open == 0 && c->state == SL_RD_CLOSED)
        c->closed(c->arg);
}

static void on_watch_closed(uv_handle_t *h)
{
    struct watch *w = h->data;
    struct sl_rd_conn *c = w->c;
    sl_free(w);
    one_less(c);
}

static enum sl_code no_connection(const struct sl_rd_conn *c, struct sl_error *err, const char *why)
{
    return sl_fail(err, SL_E_STORE_UNAVAILABLE, "redis %s:%u: %s", c->address->host,
                   c->address->port, why);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    struct watch *w = h->data;
    struct sl_error err;
    if (w->ac && status < 0) {
        int e = 0;
        socklen_t n = sizeof e;
        bool known = getsockopt(w->ac->c.fd, SOL_SOCKET, SO_ERROR, &e, &n) == 0 && e;
        (void)no_connection(w->c, &err, known ? strerror(e) : uv_strerror(status));
        sl_rd_conn_drop(w->c, &err);
        return;
    }
    if (w->ac && (events & UV_READABLE))
        redisAsyncHandleRead(w->ac);
    if (w->ac && w->ac->c.reader->len > SL_REDIS_REPLY_MAX) {
        (void)no_connection(w->c, &err, "a reply of more than 512 MiB");
        sl_rd_conn_drop(w->c, &err);
    }
    if (w->ac && (events & UV_WRITABLE))
        redisAsyncHandleWrite(w->ac);
}

static void on_deaf(uv_timer_t *t)
{
    struct sl_error err;
    (void)no_connection(t->data, &err, "its socket cannot be waited for");
    sl_rd_conn_drop(t->data, &err);
}

/* Called by hiredis, which goes on with the connection: where it cannot be waited for it is dropped
 * on the loop's next turn. */
static void set_events(struct watch *w, int events)
{
    if (w->events == events || uv_is_closing((uv_handle_t *)&w->h))
        return;
    int rc = events ? uv_poll_start(&w->h, events, on_poll) : uv_poll_stop(&w->h);
    if (rc == 0)
        w->events = events;
    else if (w->c->ac == w->ac)
        uv_timer_start(&w->c->timer, on_deaf, 0, 0);
}

static void add_read(void *arg)
{
    struct watch *w = arg;
    set_events(w, w->events | UV_READABLE);
}

static void del_read(void *arg)
{
    struct watch *w = arg;
    set_events(w, w->events & ~UV_READABLE);
}

static void add_write(void *arg)
{
    struct watch *w = arg;
    set_events(w, w->events | UV_WRITABLE);
}

static void del_write(void *arg)
{
    struct watch *w = arg;
    set_events(w, w->events & ~UV_WRITABLE);
}

static void went_down(struct sl_rd_conn *c, const struct sl_error *why);

/* hiredis frees the connection: we told it to, or it met an error. */
static void cleanup(void *arg)
{
    struct watch *w = arg;
    struct sl_rd_conn *c = w->c;
    redisAsyncContext *ac = w->ac;
    struct sl_error err;
    w->ac = NULL;
    uv_close((uv_handle_t *)&w->h, on_watch_closed);
    if (c->ac != ac)
        return; /* dropped */
    c->ac = NULL;
    (void)no_connection(c, &err, ac->c.err ? ac->c.errstr : "the connection was closed");
    went_down(c, &err);
}

/* --- replies --------------------------------------------------------------------------------- */

static redisReplyObjectFunctions hiredis_replies; /* as they are without us */

static void *create_array(const redisReadTask *task, int n)
{
    /* As if there were no memory for it: the connection ends with an error. */
    return n > SL_REDIS_REPLY_ELEMENTS_MAX ? NULL : hiredis_replies.createArray(task, n);
}

/* --- up and down ----------------------------------------------------------------------------- */

static void on_backoff(uv_timer_t *t)
{
    begin(t->data);
}

static void went_down(struct sl_rd_conn *c, const struct sl_error *why)
{
    if (c->state == SL_RD_CLOSED)
        return;
    bool was_up = c->state == SL_RD_UP;
    if (was_up || c->why.code != why->code)
        sl_log(SL_LOG_WARN, was_up ? "the store's connection ended" : "the store is not there",
               SL_LS("why", why->message));
    c->state = SL_RD_WAITING;
    c->why = *why;
    if (was_up)
        c->backoff_ms = SL_REDIS_BACKOFF_MIN_MS;
    uv_timer_start(&c->timer, on_backoff, c->backoff_ms, 0);
    c->backoff_ms =
        2 * c->backoff_ms < SL_REDIS_BACKOFF_MAX_MS ? 2 * c->backoff_ms : SL_REDIS_BACKOFF_MAX_MS;
    c->down(c->arg, &c->why);
}

void sl_rd_conn_drop(struct sl_rd_conn *c, const struct sl_error *why)
{
    redisAsyncContext *ac = c->ac;
    struct sl_error copy = *why;
    c->ac = NULL;
    if (ac)
        redisAsyncFree(ac); /* replies come as NULL; from inside one of them: when it is over */
    went_down(c, &copy);
}

/* --- greeting -------------------------------------------------------------------------------- */

/* The value of `name:` in INFO's text; n 0: it is not there. */
static const char *info_value(const redisReply *r, const char *name, size_t *n)
{
    size_t n_name = strlen(name);
    for (const char *p = r->str; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n_name) != 0 || p[n_name] != ':')
            continue;
        *n = strcspn(p + n_name + 1, "\r\n");
        return p + n_name + 1;
    }
    *n = 0;
    return "";
}

static bool info_is(const redisReply *r, const char *name, const char *value)
{
    size_t n;
    const char *v = info_value(r, name, &n);
    return n == strlen(value) && memcmp(v, value, n) == 0;
}

static enum sl_code refuse(const struct sl_rd_conn *c, struct sl_error *err, const char *what)
{
    return sl_fail(err, SL_E_USAGE, "redis %s:%u: %s", c->address->host, c->address->port, what);
}

static enum sl_code check_info(const struct sl_rd_conn *c, const redisReply *r,
                               struct sl_error *err)
{
    size_t n;
    unsigned version = 0;
    if (r->type != REDIS_REPLY_STRING)
        return refuse(c, err, "INFO gives no text");
    const char *v = info_value(r, "redis_version", &n);
    for (size_t i = 0; i < n && i < 3 && v[i] >= '0' && v[i] <= '9'; i++)
        version = 10 * version + (unsigned)(v[i] - '0');
    if (version < SL_REDIS_VERSION_MIN)
        return sl_fail(err, SL_E_USAGE, "redis %s:%u: its version is '%.*s'; 6 or later is needed",
                       c->address->host, c->address->port, (int)n, v);
    if (info_is(r, "redis_mode", "cluster"))
        return refuse(c, err, "is a Redis Cluster; one Redis, or one with replicas, is needed");
    if (info_is(r, "loading", "1"))
        return no_connection(c, err, "is still loading its data");
    if (!info_is(r, "role", "master"))
        return no_connection(c, err, "is a read-only replica");
    if (c->durable && !info_is(r, "maxmemory_policy", "noeviction")) {
        v = info_value(r, "maxmemory_policy", &n);
        return sl_fail(err, SL_E_USAGE,
                       "redis %s:%u: maxmemory-policy is '%.*s', so it may drop sessions; set "
                       "noeviction, or --durability drain",
                       c->address->host, c->address->port, (int)n, v);
    }
    if (c->durable && !info_is(r, "aof_enabled", "1"))
        return refuse(c, err,
                      "appendonly is off, so what it acknowledges is lost with it; set "
                      "appendonly yes and appendfsync always, or --durability drain");
    return SL_OK;
}

/* What CONFIG GET gives of what it must be set to. */
static const struct setting {
    const char *name, *value, *else_lost;
} settings[] = {
    {"appendfsync", "always", "the last turns that it acknowledges"},
    {"no-appendfsync-on-rewrite", "no", "what it acknowledges while it rewrites its file"}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static enum sl_code check_setting(const struct sl_rd_conn *c, const struct setting *s,
                                  const redisReply *r, struct sl_error *err)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return sl_fail(err, SL_E_USAGE,
                       "redis %s:%u: CONFIG GET %s gives nothing that can be understood",
                       c->address->host, c->address->port, s->name);
    if (strcmp(r->element[1]->str, s->value) == 0)
        return SL_OK;
    return sl_fail(
        err, SL_E_USAGE,
        "redis %s:%u: %s is '%.32s', so %s may be lost with it; set %s, or --durability drain",
        c->address->host, c->address->port, s->name, r->element[1]->str, s->else_lost, s->value);
}

/* The form of what is kept: a later one is not touched. Where there was none it is written down, or
 * will be, when Redis takes writes again. */
static enum sl_code check_schema(const struct sl_rd_conn *c, const redisReply *r,
                                 struct sl_error *err)
{
    unsigned v = 0;
    if (r->type == REDIS_REPLY_NIL)
        return SL_OK;
    bool ok = r->type == REDIS_REPLY_STRING && r->len > 0 && r->len < 9;
    for (size_t i = 0; ok && i < r->len; i++) {
        ok = r->str[i] >= '0' && r->str[i] <= '9';
        v = 10 * v + (unsigned)(r->str[i] - '0');
    }
    if (!ok)
        return sl_fail(err, SL_E_USAGE, "redis %s:%u: %s holds no number", c->address->host,
                       c->address->port, c->schema_key);
    if (v > c->schema)
        return sl_fail(
            err, SL_E_USAGE,
            "redis %s:%u: a later Slate keeps its sessions there (%s is %u; this one knows "
            "%u and earlier)",
            c->address->host, c->address->port, c->schema_key, v, c->schema);
    return SL_OK;
}

/* It takes no writes at the moment; that is told to who wants some. */
static bool is_no_write(const redisReply *r)
{
    static const char *const words[] = {"OOM", "READONLY", "MISCONF", "NOREPLICAS"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(r->str, words[i], strlen(words[i])) == 0)
            return true;
    return false;
}

enum greeting { AUTH, SELECT, INFO, SETTING, MARK = SETTING + SETTINGS, SCHEMA, SCRIPT };

static const struct setting *setting_of(enum greeting what)
{
    return what >= SETTING && what < MARK ? &settings[what - SETTING] : NULL;
}

static enum greeting greeting_at(const struct sl_rd_conn *c, size_t i)
{
    size_t first = c->address->password[0] ? 0 : 1; /* without AUTH */
    size_t kind = i + first;
    if (kind > INFO && !c->durable)
        kind += SETTINGS;
    return kind < SCRIPT ? (enum greeting)kind : SCRIPT;
}

static enum sl_code take_error(const struct sl_rd_conn *c, enum greeting what, const redisReply *r,
                               struct sl_error *err)
{
    static const char *const names[] = {
        [AUTH] = "AUTH",  [SELECT] = "SELECT", [INFO] = "INFO",
        [MARK] = "SETNX", [SCHEMA] = "GET",    [SCRIPT] = "SCRIPT LOAD"};
    const struct setting *s = setting_of(what);
    bool later = strncmp(r->str, "LOADING", 7) == 0 || strncmp(r->str, "BUSY", 4) == 0 ||
                 strncmp(r->str, "MASTERDOWN", 10) == 0;
    return sl_fail(err, later ? SL_E_STORE_UNAVAILABLE : SL_E_USAGE, "redis %s:%u: %s%s: %.200s%s",
                   c->address->host, c->address->port, s ? "CONFIG GET " : "",
                   s ? s->name : names[what], r->str,
                   s ? "; whether it keeps what it acknowledges cannot be known: allow "
                       "CONFIG GET, or --durability drain"
                     : "");
}

static enum sl_code take_greeting(struct sl_rd_conn *c, const redisReply *r, struct sl_error *err)
{
    size_t i = c->n_greeted++;
    enum greeting what = greeting_at(c, i);
    if (r->type == REDIS_REPLY_ERROR)
        return what == MARK && is_no_write(r) ? SL_OK : take_error(c, what, r, err);
    if (what == INFO)
        return check_info(c, r, err);
    if (setting_of(what))
        return check_setting(c, setting_of(what), r, err);
    if (what == SCHEMA)
        return check_schema(c, r, err);
    if (what != SCRIPT)
        return SL_OK;
    if (r->type != REDIS_REPLY_STRING || r->len != SL_REDIS_SHA_BYTES)
        return refuse(c, err, "SCRIPT LOAD gives no SHA1");
    size_t script = c->n_scripts - (c->n_greetings - i);
    memcpy(c->shas[script], r->str, SL_REDIS_SHA_BYTES + 1);
    return SL_OK;
}

static void on_greeting(redisAsyncContext *ac, void *reply, void *arg)
{
    struct sl_rd_conn *c = arg;
    struct sl_error err;
    redisReply *r = reply;
    if (r && c->io->reply)
        r = c->io->reply(r);
    if (c->ac != ac)
        return; /* it has ended already, or ends: cleanup() tells */
    if (!r) {
        if (reply) {
            (void)no_connection(c, &err, "the connection broke");
            sl_rd_conn_drop(c, &err);
        }
        return;
    }
    if (take_greeting(c, r, &err)) {
        sl_rd_conn_drop(c, &err);
        return;
    }
    if (c->n_greeted < c->n_greetings)
        return;
    uv_timer_stop(&c->timer);
    if (c->why.code)
        sl_log(SL_LOG_INFO, "the store is there again", SL_LS("host", c->address->host));
    c->state = SL_RD_UP;
    c->why = (struct sl_error){0};
    c->n_ups++;
    c->n_attempts = 0;
    c->backoff_ms = SL_REDIS_BACKOFF_MIN_MS;
    c->up(c->arg);
}

static bool say(struct sl_rd_conn *c, int argc, const char **argv)
{
    size_t lens[4];
    for (int i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    c->n_greetings++;
    return c->io->command(c->ac, on_greeting, c, argc, argv, lens) == REDIS_OK;
}

static bool greet(struct sl_rd_conn *c)
{
    char db[16], schema[16];
    const struct sl_rd_address *a = c->address;
    bool ok = true;
    snprintf(db, sizeof db, "%u", a->db);
    const char *auth[] = {"AUTH", a->user, a->password}, *auth_1[] = {"AUTH", a->password};
    const char *select[] = {"SELECT", db}, *info[] = {"INFO"};
    snprintf(schema, sizeof schema, "%u", c->new_schema);
    const char *mark[] = {"SETNX", c->schema_key, schema}, *get[] = {"GET", c->schema_key};
    c->n_greeted = c->n_greetings = 0;
    if (a->password[0])
        ok = a->user[0] ? say(c, 3, auth) : say(c, 2, auth_1);
    ok = ok && say(c, 2, select) && say(c, 1, info);
    for (size_t i = 0; ok && c->durable && i < SETTINGS; i++) {
        const char *get_one[] = {"CONFIG", "GET", settings[i].name};
        ok = say(c, 3, get_one);
    }
    ok = ok && say(c, 3, mark) && say(c, 2, get);
    for (size_t i = 0; ok && i < c->n_scripts; i++) {
        const char *load[] = {"SCRIPT", "LOAD", c->scripts[i]};
        ok = say(c, 3, load);
    }
    return ok;
}

/* --- connecting ------------------------------------------------------------------------------ */

static void on_connect_limit(uv_timer_t *t)
{
    struct sl_rd_conn *c = t->data;
    struct sl_error err;
    (void)no_connection(c, &err,
                        c->state == SL_RD_GREETING ? "does not answer"
                                                   : "the connection is not made in time");
    sl_rd_conn_drop(c, &err);
}

static void on_connect(const redisAsyncContext *ac, int status)
{
    struct watch *w = ac->ev.data;
    if (status == REDIS_OK && w->c->ac == ac)
        w->c->state = SL_RD_GREETING;
}

/* A connection that hiredis has made an attempt of; false: *err. */
static bool watch(struct sl_rd_conn *c, redisAsyncContext *ac, struct sl_error *err)
{
    struct watch *w = sl_calloc(1, sizeof *w);
    if (!w) {
        (void)sl_fail(err, SL_E_NO_MEMORY, "no memory for a connection to the store");
        return false;
    }
    int rc = c->io->poll_init(c->loop, &w->h, ac->c.fd);
    if (rc) {
        sl_free(w);
        (void)no_connection(c, err, uv_strerror(rc));
        return false;
    }
    *w = (struct watch){.h = w->h, .c = c, .ac = ac};
    w->h.data = w;
    c->n_open++;
    ac->ev.data = w;
    ac->ev.addRead = add_read;
    ac->ev.delRead = del_read;
    ac->ev.addWrite = add_write;
    ac->ev.delWrite = del_write;
    ac->ev.cleanup = cleanup;
    if (!hiredis_replies.createArray)
        hiredis_replies = *ac->c.reader->fn;
    c->replies = hiredis_replies;
    c->replies.createArray = create_array;
    ac->c.reader->fn = &c->replies;
    return true;
}

static void try_address(struct sl_rd_conn *c, const char *ip)
{
    struct sl_error err;
    redisAsyncContext *ac = c->io->connect(ip, (int)c->address->port);
    if (!ac || ac->err || !watch(c, ac, &err)) {
        if (!ac)
            (void)no_connection(c, &err, "no memory for a connection");
        else if (ac->err)
            (void)no_connection(c, &err, ac->errstr);
        if (ac)
            redisAsyncFree(ac);
        went_down(c, &err);
        return;
    }
    c->ac = ac;
    c->state = SL_RD_CONNECTING;
    uv_timer_start(&c->timer, on_connect_limit, c->timeout_ms, 0);
    redisAsyncSetConnectCallback(ac, on_connect);
    if (!greet(c)) {
        (void)no_connection(c, &err, "a command could not be sent");
        sl_rd_conn_drop(c, &err);
    }
}

static void on_resolved(uv_getaddrinfo_t *q, int status, struct addrinfo *all)
{
    struct sl_rd_conn *c = q->data;
    struct sl_error err;
    char ip[NI_MAXHOST];
    size_t n = 0;
    const struct addrinfo *a = all;
    for (const struct addrinfo *p = all; p; p = p->ai_next)
        n++;
    for (size_t i = n ? c->n_attempts++ % n : 0; i > 0; i--)
        a = a->ai_next;
    if (c->state == SL_RD_CLOSED) {
        /* nobody wants it any more */
    } else if (status || !a ||
               getnameinfo(a->ai_addr, a->ai_addrlen, ip, sizeof ip, NULL, 0, NI_NUMERICHOST)) {
        (void)no_connection(c, &err, status ? uv_strerror(status) : "has no address");
        went_down(c, &err);
    } else {
        try_address(c, ip);
    }
    uv_freeaddrinfo(all);
    one_less(c);
}

static void begin(struct sl_rd_conn *c)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct sl_error err;
    c->state = SL_RD_RESOLVING;
    c->resolve.data = c;
    int rc = uv_getaddrinfo(c->loop, &c->resolve, on_resolved, c->address->host, NULL, &hints);
    if (rc) {
        (void)no_connection(c, &err, uv_strerror(rc));
        went_down(c, &err);
        return;
    }
    c->n_open++;
}

/* --- the calls ------------------------------------------------------------------------------- */

enum sl_code sl_rd_conn_open(struct sl_rd_conn *c, struct sl_error *err)
{
    if (uv_timer_init(c->loop, &c->timer) != 0)
        return sl_fail(err, SL_E_INTERNAL, "no timer on the loop for the store");
    c->timer.data = c;
    c->n_open = 1;
    c->backoff_ms = SL_REDIS_BACKOFF_MIN_MS;
    begin(c);
    return SL_OK;
}

static void on_timer_closed(uv_handle_t *h)
{
    one_less(h->data);
}

void sl_rd_conn_close(struct sl_rd_conn *c, void (*closed)(void *arg))
{
    redisAsyncContext *ac = c->ac;
    assert(c->state != SL_RD_CLOSED);
    c->state = SL_RD_CLOSED;
    c->closed = closed;
    c->ac = NULL;
    if (ac)
        redisAsyncFree(ac);
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

bool sl_rd_conn_command(struct sl_rd_conn *c, int argc, const char **argv, const size_t *argvlen,
                        redisCallbackFn *fn, void *arg)
{
    assert(c->state == SL_RD_UP);
    return c->io->command(c->ac, fn, arg, argc, argv, argvlen) == REDIS_OK;
}
