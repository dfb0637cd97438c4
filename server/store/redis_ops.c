/* redis_ops.c: the calls of store.h on Redis: each is made into the arguments of a script, which
 * are sent when its turn has come. See redis.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/redis.h"

static struct sl_redis *redis_of(struct sl_store *st)
{
    return (struct sl_redis *)(void *)st;
}

/* --- arguments ----------------------------------------------------------------------------------
 */

/* Room for n bytes as one more argument; NULL: no memory. */
static char *add_arg(struct sl_rd_args *a, size_t n)
{
    assert(a->n < SL_REDIS_ARGS_MAX);
    if (a->failed)
        return NULL;
    if (n > a->cap - a->used) {
        size_t cap = a->used + n + 512;
        char *mem = sl_realloc(a->mem, cap, 1);
        a->failed = !mem;
        if (!mem)
            return NULL;
        a->mem = mem;
        a->cap = cap;
    }
    char *p = a->mem + a->used;
    a->at[a->n] = a->used;
    a->len[a->n++] = n;
    a->used += n;
    return p;
}

void sl_rd_arg(struct sl_rd_args *a, const void *p, size_t n)
{
    char *to = add_arg(a, n);
    if (to && n)
        memcpy(to, p, n);
}

void sl_rd_arg_text(struct sl_rd_args *a, const char *s)
{
    sl_rd_arg(a, s, strlen(s));
}

void sl_rd_arg_number(struct sl_rd_args *a, uint64_t v)
{
    char text[24];
    sl_rd_arg(a, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, v));
}

static void arg_time(struct sl_rd_args *a, int64_t v)
{
    char text[24];
    sl_rd_arg(a, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v));
}

void sl_rd_arg_version(struct sl_rd_args *a, uint64_t v)
{
    char text[24];
    sl_rd_arg(a, text, (size_t)snprintf(text, sizeof text, "%020" PRIu64, v));
}

void sl_rd_arg_hex(struct sl_rd_args *a, const unsigned char *p, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    char *to = add_arg(a, 2 * n);
    for (size_t i = 0; to && i < n; i++) {
        to[2 * i] = digits[p[i] >> 4];
        to[2 * i + 1] = digits[p[i] & 15];
    }
}

/* A commit's: the same when it is sent again. */
static struct sl_stamp stamp_of(struct sl_store *st, const struct sl_stamp *asked)
{
    return asked->s[0] ? *asked : sl_rd_stamp(st);
}

static void too_large(struct sl_rd_op *op, const char *what)
{
    op->code = sl_fail(&op->err, SL_E_TOO_LARGE,
                       "session '%s': %s may have %d MiB in the store; this would be larger",
                       op->id, what, SL_REDIS_VALUE_MAX >> 20);
}

/* --- ops ----------------------------------------------------------------------------------------
 */

static struct sl_rd_op *new_op(struct sl_store *st, enum sl_rd_script script,
                               struct sl_rd_call call, const char *tenant, const char *id)
{
    struct sl_rd_op *op = sl_rd_new_op(redis_of(st), &call, tenant, id);
    if (!op)
        return NULL;
    op->script = script;
    sl_rd_arg_text(&op->args, tenant);
    sl_rd_arg_text(&op->args, id ? id : "");
    return op;
}

static struct sl_rd_op *new_write(struct sl_store *st, enum sl_rd_script script,
                                  enum sl_rd_kind kind, const struct sl_store_key *k,
                                  sl_store_done *cb, void *arg)
{
    struct sl_rd_call call = {.kind = kind, .cb.done = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, script, call, k->tenant, k->id);
    if (!op)
        return NULL;
    memcpy(op->incarnation, k->incarnation, 16);
    sl_rd_arg_hex(&op->args, k->incarnation, 16);
    sl_rd_arg_number(&op->args, k->fence);
    return op;
}

/* ver, tok, cre, use, ttl, meta, the most sessions, the tenant's most sessions and bytes, those of
 * a state and of a token; of a head that is not sent: the version alone. */
static void arg_head(struct sl_rd_op *op, const struct sl_store_key *k, uint64_t version,
                     const struct sl_store_head *h)
{
    static const struct sl_store_head none;
    const struct sl_store_head *from = h ? h : &none;
    struct sl_rd_args *a = &op->args;
    if (from->metadata.n > SL_REDIS_VALUE_MAX)
        too_large(op, "a session's metadata");
    sl_rd_arg_version(a, version);
    sl_rd_arg_number(a, from->tokens_seen);
    arg_time(a, from->created_at);
    arg_time(a, from->used_at);
    arg_time(a, from->ttl_s);
    sl_rd_arg(a, from->metadata.s, op->code ? 0 : from->metadata.n);
    sl_rd_arg_number(a, op->r->max_sessions);
    sl_rd_arg_number(a, k->max_sessions);
    sl_rd_arg_number(a, k->max_bytes);
    sl_rd_arg_number(a, op->r->state_bytes);
    sl_rd_arg_number(a, op->r->token_bytes);
}

static void put_head(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                     void *arg)
{
    struct sl_rd_op *op = new_write(st, SL_LUA_HEAD, SL_RD_HEAD, &h->key, cb, arg);
    if (!op)
        return;
    op->version = h->version;
    arg_head(op, &h->key, h->version, h);
}

/* The oldest version that stays within reach of `version`; "": none does. */
static void arg_first(struct sl_rd_op *op, uint64_t version)
{
    uint64_t keep = op->r->keep_turns;
    if (keep)
        sl_rd_arg_version(&op->args, version > keep ? version - keep : 0);
    else
        sl_rd_arg_text(&op->args, "");
}

/* Version, new tokens, the payload's hash, the payload (redis_lua.h). */
enum { TURN_FRONT = SL_RD_TURN_FRONT, ANSWER_FRONT = SL_RD_ANSWER_FRONT };

static void arg_turn(struct sl_rd_op *op, const struct sl_store_turn *t)
{
    struct sl_store_turn alone = *t;
    char front[TURN_FRONT + 1];
    alone.answer = NULL; /* it goes into a list of its own */
    size_t n = sl_turn_payload_size(&alone);
    if (n > SL_REDIS_VALUE_MAX) {
        too_large(op, "a turn");
        return;
    }
    unsigned char *payload = sl_malloc(n);
    char *to = add_arg(&op->args, TURN_FRONT + n);
    if (payload && to) {
        sl_turn_payload_write(payload, &alone);
        snprintf(front, sizeof front, "%020" PRIu64 "%010zu%016" PRIx64, t->version, t->n_tokens,
                 sl_record_hash(payload, n));
        memcpy(to, front, TURN_FRONT);
        memcpy(to + TURN_FRONT, payload, n);
    }
    op->args.failed |= !payload;
    sl_free(payload);
}

static void arg_answer(struct sl_rd_op *op, const struct sl_store_turn *t)
{
    char front[ANSWER_FRONT + 1];
    if (!t->answer) {
        sl_rd_arg_text(&op->args, "");
        return;
    }
    size_t n = sl_answer_payload_size(t->answer);
    if (n > SL_REDIS_VALUE_MAX) {
        too_large(op, "an answer");
        return;
    }
    unsigned char *payload = sl_malloc(n);
    char *to = add_arg(&op->args, ANSWER_FRONT + n);
    if (payload && to) {
        sl_answer_payload_write(payload, t->answer);
        snprintf(front, sizeof front, "%020" PRIu64 "%016" PRIx64, t->version,
                 sl_record_hash(payload, n));
        memcpy(to, front, ANSWER_FRONT);
        memcpy(to + ANSWER_FRONT, payload, n);
    }
    op->args.failed |= !payload;
    sl_free(payload);
}

static void append_turn(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_turn *t, sl_store_done *cb, void *arg)
{
    struct sl_rd_op *op = new_write(st, SL_LUA_TURN, SL_RD_TURN, k, cb, arg);
    if (!op)
        return;
    op->version = t->version;
    sl_rd_arg_text(&op->args, stamp_of(st, &t->stamp).s);
    sl_rd_arg_version(&op->args, t->version - 1);
    sl_rd_arg_version(&op->args, t->version);
    sl_rd_arg_number(&op->args, t->tokens_seen);
    arg_time(&op->args, t->used_at);
    sl_rd_arg_number(&op->args, t->n_tokens);
    arg_turn(op, t);
    if (!op->code)
        arg_answer(op, t);
    arg_first(op, t->version);
    sl_rd_arg_number(&op->args, k->max_bytes);
    sl_rd_arg_number(&op->args, op->r->state_bytes);
    sl_rd_arg_number(&op->args, op->r->token_bytes);
}

static void put_snapshot(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                         const struct sl_store_head *head, unsigned char *data, size_t n,
                         sl_store_done *cb, void *arg)
{
    struct sl_rd_op *op = new_write(st, SL_LUA_PIECE, SL_RD_SNAP, k, cb, arg);
    if (!op) {
        sl_free(data);
        return;
    }
    struct sl_redis *r = op->r;
    op->version = version;
    op->data = data;
    op->n_data = n;
    if (n > SL_REDIS_SNAPSHOT_MAX)
        op->code =
            sl_fail(&op->err, SL_E_TOO_LARGE,
                    "session '%s': a snapshot may have %d MiB in the store; this one has %zu "
                    "bytes",
                    op->id, SL_REDIS_SNAPSHOT_MAX >> 20, n);
    if (version == 0)
        op->code = sl_fail(&op->err, SL_E_INVALID_VALUE,
                           "session '%s': there is no state at version 0 to be stored", op->id);
    snprintf(op->number, sizeof op->number, "%s%016" PRIx64, r->node, ++r->n_calls);
    arg_head(op, k, version, head);
    sl_rd_arg_text(&op->args, op->number);
    sl_rd_arg_number(&op->args, n);
    arg_first(op, version);
    op->with_head = head != NULL; /* digest, whether with head, stamp: when the digest is known */
    op->stamp = head       ? stamp_of(st, &head->stamp)
                : k->stamp ? *k->stamp
                           : (struct sl_stamp){.s = "*"};
}

static struct sl_rd_op *new_name(struct sl_store *st, enum sl_rd_script script,
                                 enum sl_rd_kind kind, const struct sl_store_key *k, uint64_t now,
                                 const char *name, sl_store_done *cb, void *arg)
{
    struct sl_rd_op *op = new_write(st, script, kind, k, cb, arg);
    if (!op)
        return NULL;
    op->version = now;
    memcpy(op->name, name, strlen(name) + 1);
    sl_rd_arg_version(&op->args, now);
    sl_rd_arg_text(&op->args, name);
    return op;
}

static void put_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                     const char *name, uint64_t version, sl_store_done *cb, void *arg)
{
    struct sl_rd_op *op = new_name(st, SL_LUA_NAME, SL_RD_NAME, k, now, name, cb, arg);
    if (!op)
        return;
    op->named = version;
    sl_rd_arg_version(&op->args, version);
    sl_rd_arg_number(&op->args, op->r->max_names);
    sl_rd_arg_number(&op->args, k->max_bytes);
    sl_rd_arg_number(&op->args, op->r->state_bytes);
    sl_rd_arg_number(&op->args, op->r->token_bytes);
}

static void drop_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                      const char *name, sl_store_done *cb, void *arg)
{
    struct sl_rd_op *op = new_name(st, SL_LUA_UNNAME, SL_RD_UNNAME, k, now, name, cb, arg);
    if (!op)
        return;
    arg_first(op, now);
    sl_rd_arg_number(&op->args, op->r->state_bytes);
    sl_rd_arg_number(&op->args, op->r->token_bytes);
}

static void points(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                   void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_POINTS, .cb.pointed = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_LOAD, call, k->tenant, k->id);
    if (!op)
        return;
    memcpy(op->incarnation, k->incarnation, 16);
    sl_rd_arg_hex(&op->args, k->incarnation, 16);
    sl_rd_arg_text(&op->args, "1");
}

static void load(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                 sl_store_decode *decode, sl_store_loaded *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_LOAD, .cb.loaded = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_LOAD, call, k->tenant, k->id);
    if (!op)
        return;
    memcpy(op->incarnation, k->incarnation, 16);
    op->decode = decode;
    op->version = version;
    sl_rd_arg_hex(&op->args, k->incarnation, 16);
    sl_rd_arg_text(&op->args, version == SL_STORE_LAST ? "0" : "1");
}

static void remove_session(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                           void *arg)
{
    new_write(st, SL_LUA_REMOVE, SL_RD_REMOVE, k, cb, arg);
}

/* --- leases -------------------------------------------------------------------------------------
 */

static void look(struct sl_store *st, const char *tenant, const char *id, sl_store_seen *cb,
                 void *arg)
{
    new_op(st, SL_LUA_LOOK, (struct sl_rd_call){.kind = SL_RD_LOOK, .cb.seen = cb, .arg = arg},
           tenant, id);
}

static void take(struct sl_store *st, const char *tenant, const char *id,
                 const char *idempotency_key, enum sl_store_taker taker, sl_store_seen *cb,
                 void *arg)
{
    char name[32];
    struct sl_rd_call call = {.kind = SL_RD_TAKE, .cb.seen = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_TAKE, call, tenant, id);
    if (!op)
        return;
    sl_rd_arg_text(&op->args, op->r->node);
    snprintf(name, sizeof name, "%" PRIu64 "%s", ++op->r->n_calls,
             taker == SL_TAKER_TURN ? ":t" : "");
    sl_rd_arg_text(&op->args, name);
    snprintf(op->holder, sizeof op->holder, "%s:%s", op->r->node, name);
    sl_rd_arg_text(&op->args, idempotency_key ? idempotency_key : "");
    sl_rd_arg_number(&op->args, op->r->lease_ms);
    sl_rd_arg_text(&op->args, taker == SL_TAKER_REMOVE ? "1" : "0");
}

/* In no line: a snapshot that is written may take longer than the lease. Its fence tells whether it
 * still has one to renew, whatever else is on its way. */
static void renew(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_RENEW, .cb.done = cb, .arg = arg};
    struct sl_rd_op *op = sl_rd_new_op(redis_of(st), &call, k->tenant, NULL);
    if (!op)
        return;
    memcpy(op->id, k->id, strlen(k->id) + 1);
    op->script = SL_LUA_RENEW;
    sl_rd_arg_text(&op->args, k->tenant);
    sl_rd_arg_text(&op->args, k->id);
    sl_rd_arg_number(&op->args, k->fence);
    sl_rd_arg_number(&op->args, op->r->lease_ms);
}

static void release(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_RELEASE, .cb.done = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_RELEASE, call, k->tenant, k->id);
    if (!op)
        return;
    op->fence = k->fence;
    sl_rd_arg_number(&op->args, k->fence);
}

/* --- what is asked of another server's turns -----------------------------------------------------
 */

const char *const sl_rd_asks[SL_ASKS] = {[SL_ASK_CANCEL] = "cancel", [SL_ASK_PAUSE] = "pause"};

static void ask(struct sl_store *st, const char *tenant, const char *id, enum sl_store_ask what,
                uint64_t fence, sl_store_told *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_ASK, .cb.told = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_ASK, call, tenant, id);
    if (!op)
        return;
    sl_rd_arg_text(&op->args, sl_rd_asks[what]);
    sl_rd_arg_number(&op->args, fence);
    sl_rd_arg_number(&op->args, op->r->lease_ms);
}

static void asked(struct sl_store *st, sl_store_heard *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_ASKED, .cb.heard = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_ASKED, call, "-", NULL);
    if (!op)
        return;
    op->limit = SL_REDIS_ASKED;
    sl_rd_arg_text(&op->args, op->r->node);
    sl_rd_arg_number(&op->args, op->limit);
}

/* --- lists --------------------------------------------------------------------------------------
 */

/* low: "(ID", "[ID" or "-" */
static void arg_list(struct sl_rd_op *op, const char *low, const char *prefix)
{
    sl_rd_arg_text(&op->args, low);
    sl_rd_arg_text(&op->args, prefix);
    sl_rd_arg_number(&op->args, op->limit);
}

static void list(struct sl_store *st, const char *tenant, const struct sl_list_query *q,
                 sl_store_listed *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_LIST, .cb.listed = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_LIST, call, tenant, NULL);
    char low[SL_SESSION_ID_MAX + 2];
    if (!op)
        return;
    bool after = q->after[0] && strcmp(q->after, q->prefix) >= 0;
    snprintf(low, sizeof low, "%s%s",
             after          ? "("
             : q->prefix[0] ? "["
                            : "-",
             after ? q->after : q->prefix);
    op->limit = q->limit;
    memcpy(op->id, q->prefix, strlen(q->prefix) + 1);
    arg_list(op, low, q->prefix);
}

void sl_rd_list_on(struct sl_rd_op *op, const char *last)
{
    char low[SL_SESSION_ID_MAX + 2];
    snprintf(low, sizeof low, "(%s", last);
    op->args.n = 0;
    op->args.used = 0;
    sl_rd_arg_text(&op->args, op->tenant);
    sl_rd_arg_text(&op->args, "");
    arg_list(op, low, op->id);
    sl_rd_send_soon(op);
}

static void sweep(struct sl_store *st, sl_store_done *cb, void *arg)
{
    struct sl_rd_call call = {.kind = SL_RD_SWEEP, .cb.done = cb, .arg = arg};
    struct sl_rd_op *op = new_op(st, SL_LUA_SWEEP, call, "-", NULL);
    if (op)
        sl_rd_arg_number(&op->args, SL_REDIS_SWEEP);
}

/* --- the end of an op ---------------------------------------------------------------------------
 */

void sl_rd_tell_error(const struct sl_rd_call *call, const struct sl_error *err)
{
    switch (call->kind) {
    case SL_RD_LOOK:
    case SL_RD_TAKE:
        call->cb.seen(call->arg, NULL, err);
        break;
    case SL_RD_LOAD:
        call->cb.loaded(call->arg, NULL, err);
        break;
    case SL_RD_POINTS:
        call->cb.pointed(call->arg, NULL, err);
        break;
    case SL_RD_LIST:
        call->cb.listed(call->arg, NULL, 0, false, err);
        break;
    case SL_RD_ASK:
        call->cb.told(call->arg, false, 0, err);
        break;
    case SL_RD_ASKED:
        call->cb.heard(call->arg, NULL, 0, err);
        break;
    default:
        call->cb.done(call->arg, err->code, err);
        break;
    }
}

void sl_rd_tell(struct sl_rd_op *op)
{
    const struct sl_rd_call *call = &op->call;
    const struct sl_store_kept kept = {op->points, op->n_points, op->names, op->n_names};
    if (op->code && !op->view) {
        sl_rd_tell_error(call, &op->err);
        return;
    }
    switch (call->kind) {
    case SL_RD_LOOK:
    case SL_RD_TAKE:
        call->cb.seen(call->arg, op->view, op->code ? &op->err : NULL);
        break;
    case SL_RD_LOAD:
        call->cb.loaded(call->arg, &op->record, NULL);
        break;
    case SL_RD_POINTS:
        call->cb.pointed(call->arg, &kept, NULL);
        break;
    case SL_RD_LIST:
        call->cb.listed(call->arg, op->view, op->n_view, op->more, NULL);
        break;
    case SL_RD_ASK:
        call->cb.told(call->arg, op->runs, op->fence, NULL);
        break;
    case SL_RD_ASKED:
        call->cb.heard(call->arg, op->asked, op->n_view, NULL);
        break;
    default:
        call->cb.done(call->arg, SL_OK, NULL);
        break;
    }
}

void sl_rd_free_op(struct sl_rd_op *op)
{
    sl_rd_free_load(op);
    sl_free(op->view);
    sl_free(op->asked);
    sl_free(op->points);
    sl_free(op->names);
    sl_free(op->data);
    sl_free(op->owed);
    sl_free(op->args.mem);
    sl_free(op);
}

/* --- the table ----------------------------------------------------------------------------------
 */

static void stats(const struct sl_store *st, struct sl_store_stats *ret)
{
    *ret = ((const struct sl_redis *)(const void *)st)->stats;
}

static uint64_t lease_ms(const struct sl_store *st)
{
    return ((const struct sl_redis *)(const void *)st)->lease_ms;
}

static int64_t store_now(const struct sl_store *st)
{
    const struct sl_redis *r = (const struct sl_redis *)(const void *)st;
    return r->clock_ms ? (r->clock_ms + (int64_t)uv_now(r->loop)) / 1000 : 0;
}

const struct sl_store_kind sl_store_redis = {.scheme = "redis:",
                                             .usage = "redis://HOST:PORT[/DB]",
                                             .open = sl_rd_open,
                                             .close = sl_rd_close,
                                             .put_head = put_head,
                                             .append_turn = append_turn,
                                             .put_snapshot = put_snapshot,
                                             .load = load,
                                             .points = points,
                                             .put_name = put_name,
                                             .drop_name = drop_name,
                                             .remove = remove_session,
                                             .stats = stats,
                                             .look = look,
                                             .take = take,
                                             .renew = renew,
                                             .release = release,
                                             .ask = ask,
                                             .asked = asked,
                                             .list = list,
                                             .sweep = sweep,
                                             .stamp = sl_rd_stamp,
                                             .lease_ms = lease_ms,
                                             .now = store_now};
