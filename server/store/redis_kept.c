/* redis_kept.c: what is kept of a session to rewind to, as Redis has it (redis_lua.h), made into
 * what the `dir:` store's index knows of one: the same function then says what is within reach. See
 * redis.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/index.h"
#include "server/store/redis.h"

enum { FIELDS = 6 /* of an earlier snapshot: version, N, bytes, digest, tokens, used at */ };

static enum sl_code no_memory(struct sl_rd_op *op)
{
    return op->code = sl_fail(&op->err, SL_E_NO_MEMORY,
                              "no memory for the versions of session '%s'", op->id);
}

/* The fields of a text, as texts of its own. False: there are not so many. */
static bool split(const redisReply *r, redisReply ret[FIELDS])
{
    if (r->type != REDIS_REPLY_STRING)
        return false;
    char *p = r->str, *end = r->str + r->len;
    for (size_t i = 0; i < FIELDS; i++) {
        char *space = memchr(p, ' ', (size_t)(end - p));
        char *to = i + 1 < FIELDS ? space : end;
        if (!to || to == p)
            return false;
        ret[i] = (redisReply){.type = REDIS_REPLY_STRING, .str = p, .len = (size_t)(to - p)};
        p = to + (to < end);
    }
    return true;
}

static bool is_none(const redisReply *r)
{
    return r->len == 0 || (r->len == 1 && r->str[0] == '-');
}

/* "": as it was before anything was kept: not known, 0. */
static bool number_or_none(const redisReply *r, uint64_t *ret)
{
    *ret = 0;
    return r->type == REDIS_REPLY_STRING && (is_none(r) || sl_rd_number(r, ret));
}

/* The number stands for which element it is, from 1 on; the live snapshot is n + 1. */
static bool take_snap(const redisReply *r, uint64_t number, struct sl_ix_snap *x)
{
    redisReply f[FIELDS];
    uint64_t at;
    if (!split(r, f) || !sl_rd_number(&f[0], &x->file.version) ||
        (is_none(&f[1]) != (x->file.version == 0)))
        return false;
    x->file.number = is_none(&f[1]) ? 0 : number;
    if (x->file.number &&
        (!sl_rd_number(&f[2], &x->file.size) || !sl_rd_hex(&f[3], x->file.digest, 16)))
        return false;
    if (!number_or_none(&f[4], &x->tokens_seen) || !number_or_none(&f[5], &at) || at > INT64_MAX)
        return false;
    x->used_at = (int64_t)at;
    return true;
}

struct view {
    struct sl_ix_snap *snaps;
    struct sl_ix_entry *entries;
    struct sl_ix_session s; /* its lists are in the two arrays; it has no id */
};

static bool link_snaps(struct view *v, const struct sl_rd_op *op, const redisReply *list)
{
    for (size_t i = 0; i < list->elements; i++) {
        struct sl_ix_snap *x = &v->snaps[i];
        if (!take_snap(list->element[i], i + 1, x) ||
            (v->s.last_kept && v->s.last_kept->file.version >= x->file.version))
            return false;
        if (!x->file.version)
            x->used_at = op->head.created_at;
        *(v->s.last_kept ? &v->s.last_kept->next : &v->s.kept) = x;
        v->s.last_kept = x;
    }
    return true;
}

static bool link_turns(struct view *v, const redisReply *list, bool kept, struct sl_ix_entry **next,
                       unsigned char *memory)
{
    for (size_t i = 0; i < list->elements; i++) {
        struct sl_ix_entry *e = (*next)++;
        struct sl_turn_payload t;
        size_t n;
        if (!sl_rd_payload(list->element[i], SL_RD_TURN_FRONT, memory, &e->version, &n) ||
            !sl_turn_payload_read(&t, memory, n) ||
            (v->s.last_entry && v->s.last_entry->version >= e->version))
            return false;
        e->tokens_seen = t.tokens_seen;
        e->used_at = t.used_at;
        e->kept = kept;
        e->turn = !kept;
        *(v->s.last_entry ? &v->s.last_entry->next : &v->s.entries) = e;
        v->s.last_entry = e;
    }
    return true;
}

static size_t longest(const redisReply *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->elements; i++)
        n = list->element[i]->type == REDIS_REPLY_STRING && list->element[i]->len > n
                ? list->element[i]->len
                : n;
    return n;
}

static bool fill(struct view *v, const struct sl_rd_op *op, const struct sl_rd_kept *k,
                 unsigned char *memory)
{
    struct sl_ix_entry *next = v->entries;
    uint64_t at;
    v->s.exists = true;
    v->s.version = op->head.version;
    v->s.snap.version = op->head.snapshot_version;
    if (v->s.snap.version) {
        v->s.snap.number = k->snaps->elements + 1;
        if (!sl_rd_number(k->size, &v->s.snap.size) || !sl_rd_hex(k->digest, v->s.snap.digest, 16))
            return false;
    }
    if (!number_or_none(k->tokens, &v->s.snap_tokens) || !number_or_none(k->at, &at) ||
        at > INT64_MAX)
        return false;
    v->s.snap_used_at = v->s.snap.version ? (int64_t)at : op->head.created_at;
    return link_snaps(v, op, k->snaps) && link_turns(v, k->before, true, &next, memory) &&
           link_turns(v, k->turns, false, &next, memory);
}

static enum sl_code list_points(struct sl_rd_op *op, const struct view *v)
{
    op->points = sl_calloc(sl_index_count_points(&v->s), sizeof *op->points);
    if (!op->points)
        return no_memory(op);
    op->n_points = sl_index_points(&v->s, op->points);
    return SL_OK;
}

static int by_version(const void *a, const void *b)
{
    const struct sl_store_name *x = a, *y = b;
    return x->version != y->version ? (x->version > y->version) - (x->version < y->version)
                                    : strcmp(x->name, y->name);
}

/* Names and versions by turns. */
static enum sl_code list_names(struct sl_rd_op *op, const redisReply *list)
{
    op->n_names = list->elements / 2;
    op->names = sl_calloc(op->n_names + 1, sizeof *op->names);
    if (!op->names)
        return no_memory(op);
    for (size_t i = 0; i < op->n_names; i++) {
        const redisReply *name = list->element[2 * i], *version = list->element[2 * i + 1];
        if (name->type != REDIS_REPLY_STRING || !sl_session_id_valid(name->str, name->len) ||
            !sl_rd_number(version, &op->names[i].version)) {
            sl_rd_strange(op, "the name of a checkpoint");
            return op->code;
        }
        memcpy(op->names[i].name, name->str, name->len + 1);
    }
    qsort(op->names, op->n_names, sizeof *op->names, by_version);
    return SL_OK;
}

/* The snapshot of that number becomes what is loaded. */
static bool choose(struct sl_rd_op *op, const struct sl_rd_kept *k, const struct sl_snapfile *file)
{
    redisReply f[FIELDS];
    const redisReply *number = k->number;
    op->number[0] = '\0';
    if (!file->number)
        return true;
    if (file->number <= k->snaps->elements) {
        if (!split(k->snaps->element[file->number - 1], f))
            return false;
        number = &f[1];
    }
    if (number->len >= sizeof op->number)
        return false;
    memcpy(op->number, number->str, number->len);
    op->number[number->len] = '\0';
    memcpy(op->digest, file->digest, sizeof op->digest);
    return true;
}

static enum sl_code find(struct sl_rd_op *op, const struct sl_rd_kept *k, const struct view *v,
                         uint64_t *ret_base, uint64_t *ret_size)
{
    struct sl_snapfile file;
    if (op->call.kind == SL_RD_POINTS) {
        enum sl_code c = list_points(op, v);
        return c ? c : list_names(op, k->names);
    }
    if (!sl_index_reach(&v->s, op->version, &file)) {
        enum sl_code c = list_points(op, v);
        return c ? c
                 : (op->code =
                        sl_store_no_point(&op->err, op->id, op->version, op->points, op->n_points));
    }
    *ret_base = file.version;
    *ret_size = file.size;
    if (choose(op, k, &file))
        return SL_OK;
    sl_rd_strange(op, "an earlier snapshot");
    return op->code;
}

enum sl_code sl_rd_find_kept(struct sl_rd_op *op, const struct sl_rd_kept *k, uint64_t *ret_base,
                             uint64_t *ret_size)
{
    size_t n_turns = k->turns->elements + k->before->elements;
    size_t a = longest(k->turns), b = longest(k->before);
    struct view v = {.snaps = sl_calloc(k->snaps->elements + 1, sizeof *v.snaps),
                     .entries = sl_calloc(n_turns + 1, sizeof *v.entries)};
    unsigned char *memory = sl_malloc((a > b ? a : b) + 8);
    enum sl_code c;
    if (!v.snaps || !v.entries || !memory) {
        c = no_memory(op);
    } else if (!fill(&v, op, k, memory)) {
        sl_rd_strange(op, "what is kept of earlier versions");
        c = op->code;
    } else {
        c = find(op, k, &v, ret_base, ret_size);
    }
    sl_free(v.snaps);
    sl_free(v.entries);
    sl_free(memory);
    return c;
}
