/* ops.c: the calls of store.h: each is copied into an op, which waits in its session's queue. See
 * dir.h for its way from there. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/dir.h"

static struct sl_dir *dir_of(struct sl_store *st)
{
    struct sl_dir *d = (struct sl_dir *)(void *)st;
    assert(d->state <= SL_DIR_CLOSING); /* callbacks may ask for more until `closed` */
    return d;
}

static enum sl_code no_memory(struct sl_op *op, size_t n)
{
    op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a write of %zu bytes", n);
    return op->code;
}

/* An op in its session's queue, to be woken for; NULL: there is no memory for it, which the
 * callback will be told. */
static struct sl_op *queue_op(struct sl_dir *d, enum sl_op_kind kind, const struct sl_store_key *k,
                              struct sl_starved cb)
{
    size_t tenant_n = strlen(k->tenant), id_n = strlen(k->id);
    assert(sl_tenant_valid(k->tenant, tenant_n) && sl_session_id_valid(k->id, id_n));
    struct sl_op *op = sl_calloc(1, sizeof *op);
    d->n_ops++;
    if (!op) {
        uv_async_send(&d->wake);
        if (d->n_starved < SL_STORE_RESERVE)
            d->starved[d->n_starved++] = cb;
        else
            sl_dir_starve(d, &cb);
        return NULL;
    }
    op->d = d;
    op->kind = kind;
    op->done = cb.done;
    op->loaded = cb.loaded;
    op->pointed = cb.pointed;
    op->arg = cb.arg;
    memcpy(op->id, k->id, id_n);
    memcpy(op->incarnation, k->incarnation, 16);
    op->s = sl_index_get(&d->ix, k->tenant, tenant_n, k->id, id_n);
    if (!op->s) {
        no_memory(op, sizeof *op->s);
        sl_queue_push(&d->finished, op);
        return op;
    }
    op->tenant = op->s->tenant;
    if (op->s->last_op)
        op->s->last_op->after = op;
    else
        op->s->ops = op;
    op->s->last_op = op;
    return op;
}

/* The same, and it is seen to when the call has returned. */
static struct sl_op *new_op(struct sl_dir *d, enum sl_op_kind kind, const struct sl_store_key *k,
                            struct sl_starved cb)
{
    struct sl_op *op = queue_op(d, kind, k, cb);
    if (op && op->s && op->s->ops == op)
        sl_queue_push(&d->arrivals, op);
    uv_async_send(&d->wake);
    return op;
}

/* One that writes. */
static struct sl_op *new_write(struct sl_store *st, enum sl_op_kind kind,
                               const struct sl_store_key *k, sl_store_done *cb, void *arg)
{
    struct sl_op *op = new_op(dir_of(st), kind, k, (struct sl_starved){.done = cb, .arg = arg});
    bool places = kind == SL_OP_HEAD || kind == SL_OP_SNAP || kind == SL_OP_REMOVE;
    if (op && places && !(op->place = sl_calloc(1, sizeof *op->place)))
        no_memory(op, sizeof *op->place);
    return op;
}

static bool make_payload(struct sl_op *op, size_t n)
{
    if (n > SL_RECORD_PAYLOAD_MAX) {
        op->code = sl_fail(&op->err, SL_E_TOO_LARGE,
                           "a record of the store may have %d bytes; this one would have more",
                           (int)SL_RECORD_PAYLOAD_MAX);
        return false;
    }
    op->payload = sl_malloc(n);
    op->payload_n = n;
    if (!op->payload)
        no_memory(op, n);
    return op->payload != NULL;
}

/* The head's payload; what the store knows better is filled in when its turn has come. */
static void take_head(struct sl_op *op, const struct sl_store_head *h)
{
    op->with_head = true;
    op->head = (struct sl_head_payload){.tokens_seen = h->tokens_seen,
                                        .created_at = h->created_at,
                                        .used_at = h->used_at,
                                        .ttl_s = h->ttl_s};
    if (!make_payload(op, sl_head_payload_size(h->metadata.n)))
        return;
    op->head.metadata_n = (uint32_t)h->metadata.n;
    if (h->metadata.n)
        memcpy(op->payload + SL_HEAD_BYTES, h->metadata.s, h->metadata.n);
    op->payload[SL_HEAD_BYTES + h->metadata.n] = '\0';
}

void sl_dir_put_head(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                     void *arg)
{
    struct sl_op *op = new_write(st, SL_OP_HEAD, &h->key, cb, arg);
    if (!op)
        return;
    op->version = h->version;
    take_head(op, h);
}

void sl_dir_append_turn(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_turn *t, sl_store_done *cb, void *arg)
{
    struct sl_op *op = new_write(st, SL_OP_TURN, k, cb, arg);
    if (!op)
        return;
    op->version = t->version;
    op->entry = sl_calloc(1, sizeof *op->entry);
    if (!op->entry)
        no_memory(op, sizeof *op->entry);
    else if (make_payload(op, sl_turn_payload_size(t)))
        sl_turn_payload_write(op->payload, t);
}

void sl_dir_put_answer(struct sl_store *st, const struct sl_store_key *k,
                       const struct sl_store_answer *a, sl_store_done *cb, void *arg)
{
    struct sl_op *op = new_write(st, SL_OP_ANSWER, k, cb, arg);
    if (!op)
        return;
    op->version = a->version;
    op->entry = sl_calloc(1, sizeof *op->entry);
    if (!op->entry)
        no_memory(op, sizeof *op->entry);
    else if (make_payload(op, sl_answer_payload_size(a)))
        sl_answer_payload_write(op->payload, a);
}

void sl_dir_put_snapshot(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                         const struct sl_store_head *head, unsigned char *data, size_t n,
                         sl_store_done *cb, void *arg)
{
    assert(!head || (head->version == version && strcmp(head->key.id, k->id) == 0 &&
                     strcmp(head->key.tenant, k->tenant) == 0 &&
                     memcmp(head->key.incarnation, k->incarnation, 16) == 0));
    struct sl_op *op = new_write(st, SL_OP_SNAP, k, cb, arg);
    if (!op) {
        sl_free(data);
        return;
    }
    op->version = version;
    op->data = data;
    op->n_data = n;
    if (head)
        take_head(op, head);
    else
        make_payload(op, SL_SNAP_BYTES);
}

static struct sl_op *new_name(struct sl_store *st, enum sl_op_kind kind,
                              const struct sl_store_key *k, uint64_t now, const char *name,
                              sl_store_done *cb, void *arg)
{
    size_t n = strlen(name);
    assert(sl_session_id_valid(name, n));
    struct sl_op *op = new_write(st, kind, k, cb, arg);
    if (!op || op->code)
        return NULL;
    op->now = now;
    op->name = sl_calloc(1, sizeof *op->name);
    if (!op->name) {
        no_memory(op, sizeof *op->name);
    } else if (make_payload(op, SL_NAME_BYTES_MAX)) {
        memcpy(op->name->name, name, n + 1);
        op->payload_n = sl_name_payload_write(op->payload, name);
    }
    return op;
}

void sl_dir_put_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                     const char *name, uint64_t version, sl_store_done *cb, void *arg)
{
    struct sl_op *op = new_name(st, SL_OP_NAME, k, now, name, cb, arg);
    if (op)
        op->version = version;
}

void sl_dir_drop_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                      const char *name, sl_store_done *cb, void *arg)
{
    new_name(st, SL_OP_UNNAME, k, now, name, cb, arg);
}

void sl_dir_points(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                   void *arg)
{
    new_op(dir_of(st), SL_OP_POINTS, k, (struct sl_starved){.pointed = cb, .arg = arg});
}

void sl_dir_load(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                 sl_store_decode *decode, sl_store_loaded *cb, void *arg)
{
    struct sl_dir *d = dir_of(st);
    struct sl_op *op = queue_op(d, SL_OP_LOAD, k, (struct sl_starved){.loaded = cb, .arg = arg});
    if (!op)
        return;
    op->decode = decode;
    op->version = version;
    if (op->s && op->s->ops == op)
        sl_dir_load_now(op);
    else
        uv_async_send(&d->wake);
}

void sl_dir_remove(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg)
{
    new_write(st, SL_OP_REMOVE, k, cb, arg);
}
