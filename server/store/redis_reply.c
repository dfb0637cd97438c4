/* redis_reply.c: what Redis answered, taken apart and checked. Nothing of it is trusted to have the
 * type or the size that it should have. See redis.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"

/* --- values -------------------------------------------------------------------------------------
 */

static bool is_text(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_STRING;
}

bool sl_rd_number(const redisReply *r, uint64_t *ret)
{
    uint64_t v = 0;
    if (!r)
        return false;
    if (r->type == REDIS_REPLY_INTEGER && r->integer >= 0) {
        *ret = (uint64_t)r->integer;
        return true;
    }
    if (!is_text(r) || r->len < 1 || r->len > 20)
        return false;
    for (size_t i = 0; i < r->len; i++) {
        if (r->str[i] < '0' || r->str[i] > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(r->str[i] - '0'), &v))
            return false;
    }
    *ret = v;
    return true;
}

/* Also below zero: a clock before 1970 is no reason to lose a session. */
static bool time_of(const redisReply *r, int64_t *ret)
{
    uint64_t v;
    redisReply rest;
    if (!is_text(r))
        return false;
    bool minus = r->len > 1 && r->str[0] == '-';
    rest = *r;
    rest.str += minus;
    rest.len -= minus;
    if (!sl_rd_number(&rest, &v) || v > INT64_MAX)
        return false;
    *ret = minus ? -(int64_t)v : (int64_t)v;
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool sl_rd_hex(const redisReply *r, unsigned char *ret, size_t n)
{
    if (!is_text(r) || r->len != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int a = hex(r->str[2 * i]), b = hex(r->str[2 * i + 1]);
        if (a < 0 || b < 0)
            return false;
        ret[i] = (unsigned char)(a * 16 + b);
    }
    return true;
}

/* What view() of redis_lua.c gives; its first element is not looked at. */
enum { INC = 2, VER, TOK, CRE, USE, TTL, META, SV, RT, FEN, LK, HELD, KB, CN, OP, VIEW };

bool sl_rd_view(const redisReply *r, const char *tenant, const char *id, struct sl_store_view *ret)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements < VIEW)
        return false;
    redisReply *const *e = r->element;
    struct sl_store_view v = {.head = {.key = {.tenant = tenant, .id = id}}};
    struct sl_store_head *h = &v.head;
    uint64_t held;
    bool ok = sl_rd_hex(e[INC], h->key.incarnation, 16) && sl_rd_number(e[VER], &h->version) &&
              sl_rd_number(e[TOK], &h->tokens_seen) && time_of(e[CRE], &h->created_at) &&
              time_of(e[USE], &h->used_at) && time_of(e[TTL], &h->ttl_s) && is_text(e[META]) &&
              sl_rd_number(e[SV], &h->snapshot_version) && sl_rd_number(e[RT], &h->replay_tokens) &&
              sl_rd_number(e[FEN], &h->key.fence) && is_text(e[LK]) &&
              sl_rd_number(e[HELD], &held) && sl_rd_number(e[KB], &h->kept_bytes) &&
              sl_rd_number(e[CN], &h->n_names) && is_text(e[OP]) && e[OP]->len <= SL_STAMP_MAX;
    if (!ok)
        return false;
    memcpy(h->stamp.s, e[OP]->str, e[OP]->len);
    if (e[META]->len)
        h->metadata = (struct sl_text){e[META]->str, e[META]->len};
    v.held = held != 0;
    v.held_key = e[LK]->str;
    *ret = v;
    return true;
}

/* --- errors -------------------------------------------------------------------------------------
 */

void sl_rd_strange(struct sl_rd_op *op, const char *what)
{
    op->code = sl_fail(&op->err, SL_E_STORE_CORRUPT,
                       "redis %s:%u, session '%s': what came is not what the store keeps (%s)",
                       op->r->address.host, op->r->address.port, op->id, what);
}

/* Redis 6 has the word of a command that failed inside of a script further behind. */
static bool begins(const redisReply *r, const char *word)
{
    const char *inside = strncmp(r->str, "ERR ", 4) ? NULL : strstr(r->str, ": -");
    return strncmp(inside ? inside + 3 : r->str, word, strlen(word)) == 0;
}

/* What Redis says of an attempt that it refuses, and what that says of the one before, whose answer
 * was lost: a script that met it inside (WITHIN) has looked first whether it was done already,
 * where it can. What is DAMAGED is damaged whoever has done it. */
enum refusal { WITHIN, BEFORE, DAMAGED };

/* May it have been done the first time, although it was refused when it was asked again? TURN and
 * NAME find what they have done before, and REMOVE has nothing to do then. A snapshot without a
 * head commits nothing. */
static bool is_not_known(const struct sl_rd_op *op, enum refusal how)
{
    enum sl_rd_kind kind = op->call.kind;
    bool rewrites = kind == SL_RD_HEAD || kind == SL_RD_UNNAME;
    bool finds = kind == SL_RD_TURN || kind == SL_RD_NAME || kind == SL_RD_REMOVE;
    rewrites |= kind == SL_RD_SNAP && op->with_head;
    return op->untold && how != DAMAGED && (rewrites || (finds && how == BEFORE));
}

static void refused(struct sl_rd_op *op, enum sl_code code, enum refusal how, const char *why,
                    const redisReply *r)
{
    const struct sl_rd_address *a = &op->r->address;
    if (is_not_known(op, how))
        op->code = sl_fail(&op->err, SL_E_COMMIT_UNKNOWN,
                           "redis %s:%u: the connection broke before the answer, and it was "
                           "refused when it was asked again, so whether this counts is not known "
                           "(the session tells): %s: %.200s",
                           a->host, a->port, why, r->str);
    else
        op->code =
            sl_fail(&op->err, code, "redis %s:%u: %s: %.200s", a->host, a->port, why, r->str);
    sl_rd_finish(op);
}

/* Redis says what is wrong: a word in capitals, then a text. */
static void take_error(struct sl_rd_op *op, const redisReply *r)
{
    enum { READONLY };
    static const struct {
        const char *word;
        enum sl_code code;
        enum refusal how;
        const char *why;
    } rows[] = {
        [READONLY] = {"READONLY", SL_E_STORE_UNAVAILABLE, BEFORE, "it is a read-only replica"},
        {"OOM", SL_E_STORE_FULL, WITHIN, "it has no memory left"},
        {"MISCONF", SL_E_STORE_UNAVAILABLE, WITHIN, "it cannot write its data to its disk"},
        {"NOREPLICAS", SL_E_STORE_UNAVAILABLE, WITHIN, "it has too few replicas"},
        {"NOAUTH", SL_E_STORE_UNAVAILABLE, BEFORE, "it wants a password"},
        {"NOPERM", SL_E_STORE_UNAVAILABLE, BEFORE, "it does not allow this"},
        {"WRONGTYPE", SL_E_STORE_CORRUPT, DAMAGED, "a key holds something else"},
        {"ERR user_script", SL_E_STORE_CORRUPT, DAMAGED, "a key holds something else"},
        {"ERR Error running script", SL_E_STORE_CORRUPT, DAMAGED, "a key holds something else"}};
    static const char *const later[] = {"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN"};
    if (begins(r, "NOSCRIPT")) {
        op->whole_script = true;
        sl_rd_send_soon(op);
        return;
    }
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        if (begins(r, later[i])) {
            sl_rd_send_later(op);
            return;
        }
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (begins(r, rows[i].word)) {
            if (i == READONLY) {
                op->r->leads_astray = true;
                uv_async_send(&op->r->wake);
            }
            refused(op, rows[i].code, rows[i].how, rows[i].why, r);
            return;
        }
    }
    refused(op, SL_E_IO, BEFORE, "an error", r);
}

/* {'quota', ms, which, used, most} */
static void over_quota(struct sl_rd_op *op, const redisReply *r)
{
    uint64_t used = 0, most = 0;
    const char *what = r->elements > 4 && is_text(r->element[2]) ? r->element[2]->str : "";
    bool bytes = !strcmp(what, "bytes");
    if (r->elements < 5 || (!bytes && strcmp(what, "sessions") != 0) ||
        !sl_rd_number(r->element[3], &used) || !sl_rd_number(r->element[4], &most)) {
        sl_rd_strange(op, "a quota");
        return;
    }
    op->code = sl_fail_param(&op->err, SL_E_QUOTA_EXCEEDED, what,
                             "the tenant's quota of %s is used up: %" PRIu64 " of %" PRIu64 "%s",
                             bytes ? "bytes of sessions" : "sessions", used, most,
                             bytes ? ", and this needs more than is left" : "");
    op->err.retry_after_s = SL_RETRY_NEVER;
}

static void not_ok(struct sl_rd_op *op, const redisReply *r)
{
    const char *word = r->element[0]->str;
    uint64_t n = 0;
    bool creates = op->call.kind == SL_RD_HEAD || (op->call.kind == SL_RD_SNAP && op->with_head);
    if (r->elements > 2)
        (void)sl_rd_number(r->element[2], &n);
    if (!strcmp(word, "none"))
        op->code = sl_fail_param(&op->err, SL_E_SESSION_NOT_FOUND, "session",
                                 "there is no session '%s' in the store", op->id);
    else if (!strcmp(word, "other") && !creates)
        op->code = sl_fail(&op->err, SL_E_VERSION_MISMATCH,
                           "session '%s' was deleted and made anew", op->id);
    else if (!strcmp(word, "exists"))
        op->code = sl_fail_param(&op->err, SL_E_SESSION_EXISTS, "id",
                                 "there is a session '%s' already", op->id);
    else if (!strcmp(word, "version"))
        op->code = sl_fail(&op->err, SL_E_VERSION_MISMATCH,
                           "session '%s' is at version %" PRIu64
                           " in the store; this speaks of version %" PRIu64,
                           op->id, n, op->version);
    else if (!strcmp(word, "stamp"))
        op->code = sl_fail(&op->err, SL_E_VERSION_MISMATCH,
                           "version %" PRIu64 " of session '%s' is another one in the store, or "
                           "was too long ago",
                           op->version, op->id);
    else if (!strcmp(word, "fence"))
        op->code = sl_fail(&op->err, SL_E_LEASE_LOST,
                           "the lease of session '%s' ran out and another server took it; nothing "
                           "of this was kept",
                           op->id);
    else if (!strcmp(word, "busy"))
        op->code = sl_fail_param(
            &op->err, SL_E_SESSION_BUSY, "session",
            "session '%s' is busy: one turn at a time; another server is at it", op->id);
    else if (!strcmp(word, "full"))
        op->code = sl_fail(
            &op->err, SL_E_SESSIONS_FULL,
            "there are %" PRIu64 " sessions in the store, which is the limit (--max-sessions)", n);
    else if (!strcmp(word, "quota"))
        over_quota(op, r);
    else if (!strcmp(word, "named"))
        op->code = sl_store_name_taken(&op->err, op->id, op->name, n);
    else if (!strcmp(word, "names"))
        op->code = sl_store_names_full(&op->err, op->id, (size_t)n);
    else if (!strcmp(word, "unnamed"))
        op->code = sl_store_no_name(&op->err, op->id, op->name);
    else if (!strcmp(word, "unkept"))
        op->code = sl_fail_param(&op->err, SL_E_CHECKPOINT_NOT_FOUND, "version",
                                 "session '%s' is not kept at version %" PRIu64, op->id, op->named);
    else
        sl_rd_strange(op, word);
    sl_rd_finish(op);
}

/* What is said where others were at the session since. */
static bool is_of_others(const char *word)
{
    static const char *const words[] = {"none", "other", "exists", "version", "fence", "busy"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i]))
            return true;
    return false;
}

/* Would a repetition be refused like this, too, where the first time did it? Others came between
 * then. Not REMOVE, which finds its session again only where it was not done; nor a snapshot
 * without a head, which commits nothing: others have gone on, and that is what its caller asks. */
static bool may_have_been_done(const struct sl_rd_op *op, const char *word)
{
    enum sl_rd_kind kind = op->call.kind;
    return op->untold && is_of_others(word) &&
           (kind == SL_RD_HEAD || kind == SL_RD_TURN || (kind == SL_RD_SNAP && op->with_head) ||
            kind == SL_RD_NAME || kind == SL_RD_UNNAME);
}

static void not_known(struct sl_rd_op *op)
{
    op->code = sl_fail(&op->err, SL_E_COMMIT_UNKNOWN,
                       "redis %s:%u: the connection broke before the answer, and others were at "
                       "session '%s' since, so whether this counts is not known (the session's "
                       "version tells)",
                       op->r->address.host, op->r->address.port, op->id);
    sl_rd_finish(op);
}

/* --- answers ------------------------------------------------------------------------------------
 */

/* What came in its place is logged, but for what is the client's: of something that cannot be, no
 * more will be seen later. */
static void log_view(const struct sl_rd_op *op, const redisReply *r)
{
    char text[512];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < r->elements && n < sizeof text; i++) {
        const redisReply *e = r->element[i];
        size_t room = sizeof text - n;
        int k;
        if (!is_text(e))
            k = snprintf(text + n, room, "(%d)%lld|", e ? e->type : -1, e ? e->integer : 0);
        else if (i == META || i == LK)
            k = snprintf(text + n, room, "%zu bytes|", e->len);
        else
            k = snprintf(text + n, room, "%.40s|", e->str);
        n += (size_t)k;
    }
    sl_log(SL_LOG_ERROR, "Redis' answer is no head", SL_LS("tenant", op->tenant),
           SL_LS("session", op->id), SL_LS("answer", text));
}

static void take_view(struct sl_rd_op *op, const redisReply *r, bool busy)
{
    op->view = sl_calloc(1, sizeof *op->view);
    if (!op->view) {
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for session '%s'", op->id);
    } else if (!sl_rd_view(r, op->tenant, op->id, op->view)) {
        sl_free(op->view);
        op->view = NULL;
        log_view(op, r);
        sl_rd_strange(op, "a head");
    } else if (busy) {
        op->code = sl_fail_param(
            &op->err, SL_E_SESSION_BUSY, "session",
            "session '%s' is busy: one turn at a time; another server is at it", op->id);
    }
    if (op->view && (busy || op->call.kind == SL_RD_LOOK))
        op->view->head.key.fence = 0;
    else if (op->view)
        op->view->asked_ms = op->asked_ms;
    sl_rd_finish(op);
}

static void take_list(struct sl_rd_op *op, const redisReply *r)
{
    enum { FIRST = 4 };
    uint64_t more = 0;
    size_t n = r->elements - FIRST;
    bool ok = r->elements >= FIRST && sl_rd_number(r->element[2], &more) &&
              is_text(r->element[3]) && n <= op->limit;
    if (ok && more && !n && sl_session_id_valid(r->element[3]->str, r->element[3]->len)) {
        sl_rd_list_on(op, r->element[3]->str); /* all of these had expired */
        return;
    }
    if (ok)
        op->view = sl_calloc(n + 1, sizeof *op->view);
    for (size_t i = 0; op->view && ok && i < n; i++) {
        const redisReply *e = r->element[FIRST + i];
        ok = e->type == REDIS_REPLY_ARRAY && e->elements >= VIEW && is_text(e->element[0]) &&
             sl_session_id_valid(e->element[0]->str, e->element[0]->len) &&
             sl_rd_view(e, op->tenant, e->element[0]->str, &op->view[i]);
    }
    if (ok && !op->view)
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a list of sessions");
    if (!ok) {
        sl_free(op->view);
        op->view = NULL;
        sl_rd_strange(op, "a list of sessions");
    }
    op->n_view = n;
    op->more = more != 0;
    sl_rd_finish(op);
}

static void take_told(struct sl_rd_op *op, const redisReply *r)
{
    uint64_t runs;
    if (r->elements < 4 || !sl_rd_number(r->element[2], &runs) ||
        !sl_rd_number(r->element[3], &op->fence))
        sl_rd_strange(op, "whether a turn runs");
    else
        op->runs = runs != 0;
    sl_rd_finish(op);
}

/* "WHAT FENCE TENANT/ID". */
static bool asked_of(const redisReply *r, struct sl_store_asked *ret)
{
    if (!is_text(r))
        return false;
    for (size_t i = 0; i < SL_ASKS; i++) {
        size_t n = strlen(sl_rd_asks[i]);
        if (r->len <= n || memcmp(r->str, sl_rd_asks[i], n) != 0 || r->str[n] != ' ')
            continue;
        redisReply fence = *r;
        const char *end = r->str + r->len;
        fence.str += n + 1;
        const char *blank = memchr(fence.str, ' ', (size_t)(end - fence.str));
        const char *slash = blank ? memchr(blank, '/', (size_t)(end - blank)) : NULL;
        if (!slash)
            return false;
        size_t n_tenant = (size_t)(slash - blank - 1), n_id = (size_t)(end - slash - 1);
        fence.len = (size_t)(blank - fence.str);
        ret->what = (enum sl_store_ask)i;
        if (!sl_rd_number(&fence, &ret->fence) || !sl_tenant_valid(blank + 1, n_tenant) ||
            !sl_session_id_valid(slash + 1, n_id))
            return false;
        memcpy(ret->tenant, blank + 1, n_tenant);
        memcpy(ret->id, slash + 1, n_id);
        return true;
    }
    return false;
}

static void take_asked(struct sl_rd_op *op, const redisReply *r)
{
    const redisReply *v = r->elements > 2 ? r->element[2] : NULL;
    if (!v || v->type != REDIS_REPLY_ARRAY || v->elements > op->limit) {
        sl_rd_strange(op, "what other servers ask");
        sl_rd_finish(op);
        return;
    }
    op->asked = sl_calloc(v->elements + 1, sizeof *op->asked);
    if (!op->asked)
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for what other servers ask");
    /* One that is none of ours is left out: the others are not to miss what they ask for it. */
    for (size_t i = 0; op->asked && i < v->elements; i++)
        op->n_view += asked_of(v->element[i], &op->asked[op->n_view]);
    sl_rd_finish(op);
}

static void take_swept(struct sl_rd_op *op, const redisReply *r)
{
    struct sl_store_stats *st = &op->r->stats;
    uint64_t sessions, gone, looked, kept;
    if (r->elements < 6 || !sl_rd_number(r->element[5], &kept) ||
        !sl_rd_number(r->element[2], &sessions) || !sl_rd_number(r->element[3], &gone) ||
        !sl_rd_number(r->element[4], &looked)) {
        sl_rd_strange(op, "what a sweep found");
    } else {
        st->sessions = sessions;
        st->kept_bytes = kept;
        st->swept += gone;
        st->more_to_sweep = looked == SL_REDIS_SWEEP;
    }
    sl_rd_finish(op);
}

static void take_ok(struct sl_rd_op *op, redisReply *r)
{
    switch (op->call.kind) {
    case SL_RD_LOOK:
    case SL_RD_TAKE:
        take_view(op, r, false);
        break;
    case SL_RD_LIST:
        take_list(op, r);
        break;
    case SL_RD_LOAD:
    case SL_RD_POINTS:
        sl_rd_take_load(op, r);
        break;
    case SL_RD_SNAP:
        if (op->in_pieces)
            sl_rd_next_piece(op);
        else
            sl_rd_finish(op);
        break;
    case SL_RD_ASK:
        take_told(op, r);
        break;
    case SL_RD_ASKED:
        take_asked(op, r);
        break;
    case SL_RD_SWEEP:
        take_swept(op, r);
        break;
    default:
        sl_rd_finish(op);
        break;
    }
}

static void note_clock(struct sl_redis *r, const redisReply *reply)
{
    uint64_t ms;
    if (reply->elements > 1 && sl_rd_number(reply->element[1], &ms) && ms < INT64_MAX)
        r->clock_ms = (int64_t)ms - (int64_t)uv_now(r->loop);
}

void sl_rd_take(struct sl_rd_op *op, redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        take_error(op, reply);
        return;
    }
    if (op->call.kind == SL_RD_LOAD && op->in_pieces) {
        sl_rd_take_piece(op, reply);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || !reply->elements || !is_text(reply->element[0])) {
        sl_rd_strange(op, "an answer without a word");
        sl_rd_finish(op);
        return;
    }
    note_clock(op->r, reply);
    const char *word = reply->element[0]->str;
    if (!strcmp(word, "ok"))
        take_ok(op, reply);
    else if (!strcmp(word, "busy") && op->call.kind == SL_RD_TAKE)
        take_view(op, reply, true);
    else if (!strcmp(word, "missing") && op->call.kind == SL_RD_SNAP &&
             op->n_reloads++ < SL_REDIS_RELOADS_MAX)
        sl_rd_begin_pieces(op);
    else if (op->untold && ((!strcmp(word, "none") && op->call.kind == SL_RD_REMOVE) ||
                            (!strcmp(word, "unnamed") && op->call.kind == SL_RD_UNNAME)))
        sl_rd_finish(op); /* the first time did it */
    else if (may_have_been_done(op, word))
        not_known(op);
    else
        not_ok(op, reply);
}
