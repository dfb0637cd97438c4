/* redis_load.c: snapshots in pieces, and what the pool does: digests, and a record put together,
 * verified and decoded. See redis.h. */
#include <assert.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"

/* --- writing ------------------------------------------------------------------------------------
 */

static void take_digest(unsigned char ret[16], const unsigned char *p, size_t n)
{
    struct sl_digest d;
    sl_digest_begin(&d);
    sl_digest_add(&d, p, n);
    sl_digest_end(&d, ret);
}

static void digest_job(uv_work_t *w)
{
    struct sl_rd_op *op = w->data;
    take_digest(op->digest, op->data, op->n_data);
}

/* The script's last arguments, behind those that put_snapshot() gave. */
static void digest_done(uv_work_t *w, int status)
{
    struct sl_rd_op *op = w->data;
    (void)status;
    op->working = false;
    sl_rd_arg_hex(&op->args, op->digest, 16);
    sl_rd_arg_text(&op->args, op->with_head ? "1" : "0");
    sl_rd_arg_text(&op->args, op->stamp.s);
    op->switching = op->args;
    op->args = (struct sl_rd_args){0};
    if (op->switching.failed) {
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a call of the store");
        sl_rd_finish(op);
    } else {
        sl_rd_begin_pieces(op);
    }
    sl_rd_pump(op->r);
}

void sl_rd_begin_snap(struct sl_rd_op *op)
{
    op->working = true;
    op->work.data = op;
    int rc = uv_queue_work(op->r->loop, &op->work, digest_job, digest_done);
    assert(rc == 0); /* it has a job */
    (void)rc;
}

/* The piece at op->at. */
static void send_piece(struct sl_rd_op *op)
{
    size_t left = op->n_data - op->at, n = left < SL_REDIS_PIECE ? left : SL_REDIS_PIECE;
    struct sl_rd_args *a = &op->args;
    a->used = 0;
    a->n = 0;
    sl_rd_arg_text(a, op->tenant);
    sl_rd_arg_text(a, op->id);
    sl_rd_arg_text(a, op->number);
    sl_rd_arg_number(a, op->at);
    sl_rd_arg_number(a, SL_REDIS_UPLOAD_LIFE_MS);
    sl_rd_arg(a, op->data + op->at, n);
    op->sent = 0;
    sl_rd_touch(op);
    if (a->failed) {
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a piece of a snapshot");
        sl_rd_finish(op);
        return;
    }
    sl_rd_send_soon(op);
}

void sl_rd_begin_pieces(struct sl_rd_op *op)
{
    if (!op->in_pieces && op->switching.n == 0) { /* from the script: it is in args now */
        op->switching = op->args;
        op->args = (struct sl_rd_args){0};
    }
    op->script = SL_LUA_PIECE;
    op->in_pieces = true;
    op->at = 0;
    send_piece(op);
}

void sl_rd_next_piece(struct sl_rd_op *op)
{
    op->at += SL_REDIS_PIECE;
    if (op->at < op->n_data) {
        send_piece(op);
        return;
    }
    sl_free(op->args.mem);
    op->args = op->switching;
    op->switching = (struct sl_rd_args){0};
    op->in_pieces = false;
    op->script = SL_LUA_SNAP;
    op->sent = 0;
    sl_rd_touch(op);
    sl_rd_send_soon(op);
}

/* --- reading ------------------------------------------------------------------------------------
 */

/* What the script gives behind the view. */
enum { SN = 17, SZ, SD, TURNS, ANSWERS, KEPT, BEFORE, ST, SU, NAMES, LOAD };
enum { VERSION = 20, HASH = 16 };

static enum sl_code no_memory(struct sl_rd_op *op)
{
    return op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to load session '%s'", op->id);
}

static enum sl_code corrupt(struct sl_rd_op *op, const char *what)
{
    return op->code = sl_fail(&op->err, SL_E_STORE_CORRUPT,
                              "redis %s:%u, session '%s': %s is not what was written",
                              op->r->address.host, op->r->address.port, op->id, what);
}

bool sl_rd_digits(const char *p, size_t n, unsigned base, uint64_t *ret)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned d = p[i] >= '0' && p[i] <= '9'   ? (unsigned)(p[i] - '0')
                     : p[i] >= 'a' && p[i] <= 'f' ? (unsigned)(p[i] - 'a') + 10
                                                  : base;
        if (d >= base || __builtin_mul_overflow(v, (uint64_t)base, &v) ||
            __builtin_add_overflow(v, (uint64_t)d, &v))
            return false;
    }
    *ret = v;
    return true;
}

bool sl_rd_payload(const redisReply *r, size_t n_front, unsigned char *to, uint64_t *ret_version,
                   size_t *ret_n)
{
    uint64_t hash;
    if (r->type != REDIS_REPLY_STRING || r->len < n_front ||
        !sl_rd_digits(r->str, VERSION, 10, ret_version) ||
        !sl_rd_digits(r->str + n_front - HASH, HASH, 16, &hash))
        return false;
    *ret_n = r->len - n_front;
    memcpy(to, r->str + n_front, *ret_n);
    return sl_record_hash(to, *ret_n) == hash;
}

static size_t room(const redisReply *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->elements; i++)
        n += (list->element[i]->len + 8 + 7) & ~(size_t)7;
    return n;
}

/* Those of the list that lead on from the snapshot. */
static enum sl_code take_turns(struct sl_rd_op *op, const redisReply *list, unsigned char **to)
{
    struct sl_turn_payload t;
    struct sl_store_record *rec = &op->record;
    uint64_t version;
    size_t n;
    for (size_t i = 0; i < list->elements; i++) {
        if (!sl_rd_payload(list->element[i], SL_RD_TURN_FRONT, *to, &version, &n) ||
            !sl_turn_payload_read(&t, *to, n) || t.has_answer)
            return corrupt(op, "a turn");
        if (version <= rec->snapshot_version || version > rec->version)
            continue;
        if (version != rec->snapshot_version + rec->n_turns + 1)
            return corrupt(op, "a turn");
        sl_turn_decode(&op->turns[rec->n_turns++], *to, version);
        *to += (n + 7) & ~(size_t)7;
    }
    return SL_OK;
}

static enum sl_code take_all_turns(struct sl_rd_op *op, redisReply *const *e, unsigned char **to)
{
    const struct sl_store_record *rec = &op->record;
    enum sl_code c = take_turns(op, e[BEFORE], to);
    if (!c)
        c = take_turns(op, e[TURNS], to);
    return c || rec->version == rec->snapshot_version + rec->n_turns
               ? c
               : corrupt(op, "the list of its turns");
}

static enum sl_code take_answers(struct sl_rd_op *op, const redisReply *list, unsigned char **to)
{
    struct sl_answer_payload a;
    uint64_t version;
    size_t n;
    int64_t now = (op->r->clock_ms + (int64_t)uv_now(op->r->loop)) / 1000;
    if (list->elements > SL_STORE_ANSWERS_MAX)
        return corrupt(op, "the list of its answers");
    for (size_t i = 0; i < list->elements; i++) {
        if (!sl_rd_payload(list->element[i], SL_RD_ANSWER_FRONT, *to, &version, &n) ||
            !sl_answer_payload_read(&a, *to, n))
            return corrupt(op, "an answer");
        if (sl_answer_expired(a.at, now))
            continue;
        struct sl_store_answer *answer = &op->answers[op->record.n_answers++];
        sl_answer_decode(answer, *to, version);
        *to += (n + 7) & ~(size_t)7;
        for (size_t k = 0; k < op->record.n_turns; k++)
            if (op->turns[k].version == version)
                op->turns[k].answer = answer;
    }
    return SL_OK;
}

/* Which snapshot, and which version it and the turns lead to. */
static enum sl_code take_snapshot(struct sl_rd_op *op, redisReply *const *e, uint64_t *ret_size)
{
    struct sl_store_record *rec = &op->record;
    const struct sl_rd_kept kept = {.snaps = e[KEPT],
                                    .turns = e[TURNS],
                                    .before = e[BEFORE],
                                    .names = e[NAMES],
                                    .number = e[SN],
                                    .size = e[SZ],
                                    .digest = e[SD],
                                    .tokens = e[ST],
                                    .at = e[SU]};
    rec->version = op->version == SL_STORE_LAST ? op->head.version : op->version;
    rec->snapshot_version = op->head.snapshot_version;
    if (op->version != SL_STORE_LAST || op->call.kind == SL_RD_POINTS)
        return sl_rd_find_kept(op, &kept, &rec->snapshot_version, ret_size);
    bool has_snapshot = e[SN]->len > 0;
    if (has_snapshot && (!sl_rd_number(e[SZ], ret_size) || !sl_rd_hex(e[SD], op->digest, 16)))
        return corrupt(op, "its head");
    memcpy(op->number, e[SN]->str, e[SN]->len + 1);
    return SL_OK;
}

/* The head and all but the snapshot's bytes, copied out of the reply. */
static enum sl_code take_record(struct sl_rd_op *op, const redisReply *r, uint64_t *ret_size)
{
    struct sl_store_view v;
    redisReply *const *e = r->element;
    if (r->elements != LOAD || !sl_rd_view(r, op->tenant, op->id, &v) ||
        e[TURNS]->type != REDIS_REPLY_ARRAY || e[ANSWERS]->type != REDIS_REPLY_ARRAY ||
        e[KEPT]->type != REDIS_REPLY_ARRAY || e[BEFORE]->type != REDIS_REPLY_ARRAY ||
        e[NAMES]->type != REDIS_REPLY_ARRAY || e[SN]->type != REDIS_REPLY_STRING ||
        e[SN]->len >= sizeof op->number || (e[SN]->len > 0) != (v.head.snapshot_version != 0))
        return corrupt(op, "its head");
    op->head = v.head;
    op->head.key.fence = 0;
    enum sl_code c = take_snapshot(op, e, ret_size);
    if (c || op->call.kind == SL_RD_POINTS)
        return c;
    if (*ret_size > SL_REDIS_SNAPSHOT_MAX)
        return corrupt(op, "its head");
    op->turns = sl_calloc(e[TURNS]->elements + e[BEFORE]->elements + 1, sizeof *op->turns);
    op->answers = sl_calloc(SL_STORE_ANSWERS_MAX, sizeof *op->answers);
    op->memory = sl_malloc(room(e[TURNS]) + room(e[BEFORE]) + room(e[ANSWERS]) + 8);
    if (v.head.metadata.n)
        op->head.metadata.s = op->texts = sl_strndup(v.head.metadata.s, v.head.metadata.n);
    if (!op->turns || !op->answers || !op->memory || (v.head.metadata.n && !op->texts))
        return no_memory(op);
    unsigned char *to = op->memory;
    c = take_all_turns(op, e, &to);
    return c ? c : take_answers(op, e[ANSWERS], &to);
}

/* All of it is there: in the pool. */
static enum sl_code have_all(void *arg, size_t end, size_t *ret_have, struct sl_error *err)
{
    const struct sl_rd_op *op = arg;
    (void)end;
    (void)err;
    *ret_have = op->n_data;
    return SL_OK;
}

static void load_job(uv_work_t *w)
{
    struct sl_rd_op *op = w->data;
    unsigned char digest[16];
    op->record.head = &op->head;
    op->record.turns = op->turns;
    op->record.answers = op->answers;
    if (op->data) {
        take_digest(digest, op->data, op->n_data);
        if (memcmp(digest, op->digest, 16) != 0) {
            op->code = sl_fail(&op->err, SL_E_SNAPSHOT_CORRUPT,
                               "redis %s:%u, session '%s': its snapshot is not what was written",
                               op->r->address.host, op->r->address.port, op->id);
            return;
        }
        op->record.snapshot = op->data;
        op->record.n_snapshot = op->n_data;
    }
    op->record.source = (struct sl_snapshot_source){have_all, op};
    if (op->decode)
        op->code = op->decode(op->call.arg, &op->record, &op->err);
    op->record.source = (struct sl_snapshot_source){NULL, NULL};
}

static void load_done(uv_work_t *w, int status)
{
    struct sl_rd_op *op = w->data;
    (void)status;
    op->working = false;
    sl_rd_finish(op);
    sl_rd_pump(op->r);
}

static void decode_soon(struct sl_rd_op *op)
{
    op->working = true;
    op->work.data = op;
    int rc = uv_queue_work(op->r->loop, &op->work, load_job, load_done);
    assert(rc == 0); /* it has a job */
    (void)rc;
}

void sl_rd_take_load(struct sl_rd_op *op, redisReply *reply)
{
    uint64_t size = 0;
    if (take_record(op, reply, &size) || op->call.kind == SL_RD_POINTS) {
        sl_rd_finish(op);
        return;
    }
    if (!op->number[0]) {
        decode_soon(op);
        return;
    }
    op->n_data = (size_t)size;
    op->data = sl_malloc(op->n_data + 1); /* a snapshot of no bytes is one, too */
    op->at = 0;
    if (!op->data) {
        no_memory(op);
        sl_rd_finish(op);
        return;
    }
    op->in_pieces = true;
    op->sent = 0;
    sl_rd_touch(op);
    sl_rd_transfer(op);
}

/* Somebody has put another one in its place: from the beginning. */
static void load_again(struct sl_rd_op *op)
{
    const bool same =
        strcmp(op->missed, op->number) == 0; /* it was there all the time, as it seems */
    memcpy(op->missed, op->number, sizeof op->missed);
    if (op->n_reloads++ == SL_REDIS_RELOADS_MAX) {
        if (same)
            corrupt(op, "the key of its snapshot");
        else
            op->code = sl_fail(&op->err, SL_E_STORE_UNAVAILABLE,
                               "session '%s' changes faster than it can be loaded", op->id);
        sl_rd_finish(op);
        return;
    }
    sl_rd_free_load(op);
    op->in_pieces = false;
    op->sent = 0;
    sl_rd_send_soon(op);
}

void sl_rd_take_piece(struct sl_rd_op *op, redisReply *r)
{
    size_t left = op->n_data - op->at, n = left < SL_REDIS_PIECE ? left : SL_REDIS_PIECE;
    if (r->type != REDIS_REPLY_STRING || r->len > n) {
        corrupt(op, "its snapshot");
        sl_rd_finish(op);
        return;
    }
    if (r->len < n) {
        load_again(op);
        return;
    }
    memcpy(op->data + op->at, r->str, n);
    op->at += n;
    op->sent = 0;
    sl_rd_touch(op);
    if (op->at < op->n_data)
        sl_rd_send_soon(op);
    else
        decode_soon(op);
}

void sl_rd_free_load(struct sl_rd_op *op)
{
    sl_free(op->turns);
    sl_free(op->answers);
    sl_free(op->memory);
    sl_free(op->texts);
    if (op->call.kind == SL_RD_LOAD) {
        sl_free(op->data);
        op->data = NULL;
    }
    op->turns = NULL;
    op->answers = NULL;
    op->memory = NULL;
    op->texts = NULL;
    op->record = (struct sl_store_record){0};
    sl_free(op->switching.mem);
    op->switching = (struct sl_rd_args){0};
}
