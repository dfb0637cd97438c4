/* load.c: a session read back: its head, the turns since its snapshot, the answers kept, the
 * snapshot; everything verified, and decoded, in one job of the pool. The snapshot is decoded while
 * it is read (store.h), and its digest has the last word: where that is another one, it does not
 * matter what the decoder said. Places are copied when the load begins, and the log they lie in is
 * held, so that a rewrite meanwhile does no harm. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/dir.h"

struct item {
    struct sl_place place;
    uint64_t version;
    bool turn, answer;
};

struct sl_load {
    struct sl_log_file *log;
    int64_t now;
    struct sl_place damaged, at_head;
    struct sl_store_head head;
    struct sl_snapfile snap;
    struct item *items;
    size_t n_items;

    struct sl_store_record record;
    struct sl_store_turn *turns;
    struct sl_store_answer *answers;
    struct sl_bytes buffer; /* for the snapshot; p NULL: none yet */
    struct sl_bytes memory; /* of all records; sized before, so that texts in it stay in place */
    size_t used;
};

/* Is it a turn that leads from the snapshot to the version that is asked for? */
static bool leads(const struct sl_ix_entry *e, const struct sl_load *l)
{
    return (e->turn || e->kept) && e->version > l->snap.version && e->version <= l->record.version;
}

void sl_dir_head(const struct sl_ix_session *s, struct sl_store_head *ret)
{
    *ret = (struct sl_store_head){.key = {.tenant = s->tenant->name, .id = s->id},
                                  .version = s->version,
                                  .tokens_seen = s->tokens_seen,
                                  .created_at = s->created_at,
                                  .used_at = s->used_at,
                                  .ttl_s = s->ttl_s,
                                  .metadata = {NULL, s->metadata_n},
                                  .snapshot_version = s->snap.version,
                                  .replay_tokens = s->replay_tokens};
    memcpy(ret->key.incarnation, s->incarnation, 16);
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next)
        ret->answers_bytes += e->answer ? e->answer_n : 0;
    ret->kept_bytes = sl_index_kept_bytes(s);
    ret->n_names = s->n_names;
}

/* Room that sl_log_fetch() needs for a record. */
static size_t room(const struct sl_place *p)
{
    return p->size + 8;
}

static enum sl_code fetch(struct sl_op *op, const struct sl_place *place, struct sl_record *ret,
                          unsigned char **ret_payload)
{
    struct sl_load *l = op->load;
    struct sl_owner owner = {op->tenant->name, op->id, op->incarnation};
    struct sl_bytes b = {l->memory.p + l->used, l->memory.cap - l->used};
    assert(b.cap >= room(place));
    l->used += room(place);
    return sl_log_fetch(&op->d->place, l->log, &owner, place, &b, ret, ret_payload, &op->err);
}

static enum sl_code wrong_record(struct sl_op *op, const struct sl_place *place)
{
    return sl_fail(&op->err, SL_E_STORE_CORRUPT,
                   "%s/%s: offset %llu does not hold what belongs to session '%s'", op->d->path,
                   SL_LOG_NAME, (unsigned long long)place->at, op->id);
}

static enum sl_code read_damage(struct sl_op *op)
{
    struct sl_record r;
    unsigned char *payload;
    const struct sl_place *place = &op->load->damaged;
    enum sl_code c = fetch(op, place, &r, &payload);
    if (!c && r.kind == SL_RECORD_BROKEN && r.payload_n && payload[r.payload_n - 1] == '\0')
        return sl_fail(&op->err, SL_E_STORE_CORRUPT, "session '%s' is damaged: %s", op->id,
                       (const char *)payload);
    if (c && c != SL_E_STORE_CORRUPT)
        return c;
    return c ? c
             : sl_fail(&op->err, SL_E_STORE_CORRUPT,
                       "%s/%s: the record at offset %llu contradicts those before it", op->d->path,
                       SL_LOG_NAME, (unsigned long long)place->at);
}

static enum sl_code read_head(struct sl_op *op)
{
    struct sl_load *l = op->load;
    struct sl_record r;
    unsigned char *payload;
    struct sl_head_payload h;
    enum sl_code c = fetch(op, &l->at_head, &r, &payload);
    if (c)
        return c;
    if (r.kind != SL_RECORD_HEAD || !sl_head_payload_read(&h, payload, r.payload_n) ||
        h.metadata_n != l->head.metadata.n)
        return wrong_record(op, &l->at_head);
    l->head.metadata.s = h.metadata_n ? (const char *)payload + SL_HEAD_BYTES : NULL;
    return SL_OK;
}

static enum sl_code read_item(struct sl_op *op, const struct item *it)
{
    struct sl_load *l = op->load;
    struct sl_record r;
    unsigned char *payload;
    struct sl_turn_payload t;
    struct sl_answer_payload a;
    size_t offset = 0;
    enum sl_code c = fetch(op, &it->place, &r, &payload);
    if (c)
        return c;
    bool is_turn = (r.kind == SL_RECORD_TURN || r.kind == SL_RECORD_KEPT_TURN) &&
                   sl_turn_payload_read(&t, payload, r.payload_n);
    if (r.version != it->version || (!is_turn && (it->turn || r.kind != SL_RECORD_ANSWER)))
        return wrong_record(op, &it->place);
    if (is_turn)
        offset = t.answer_offset;
    if (it->turn)
        sl_turn_decode(&l->turns[l->record.n_turns++], payload, it->version);
    if (!it->answer)
        return SL_OK;
    if (!sl_answer_payload_read(&a, payload + offset, r.payload_n - offset))
        return wrong_record(op, &it->place);
    if (sl_answer_expired(a.at, l->now))
        return SL_OK;
    struct sl_store_answer *to = &l->answers[l->record.n_answers++];
    sl_answer_decode(to, payload + offset, it->version);
    if (it->turn)
        l->turns[l->record.n_turns - 1].answer = to;
    return SL_OK;
}

/* Snapshots are large, and memory that is new to the process costs as much as reading one into it:
 * so buffers are used again. */
static enum sl_code read_snapshot(struct sl_op *op)
{
    struct sl_load *l = op->load;
    struct sl_file_of of = {.tenant = op->tenant->name, .id = op->id, .hash = op->s->hash};
    struct sl_file_reading r;
    struct sl_error err;
    memcpy(of.incarnation, op->incarnation, 16);
    enum sl_code c = sl_file_begin(&r, &op->d->files, &of, &l->snap, &l->buffer, &op->err);
    if (c)
        return c;
    l->record.snapshot = l->buffer.p;
    l->record.n_snapshot = (size_t)l->snap.size;
    l->record.source = (struct sl_snapshot_source){sl_file_need, &r};
    enum sl_code decoded = op->decode ? op->decode(op->arg, &l->record, &op->err) : SL_OK;
    c = sl_file_end(&r, &err);
    l->record.source = (struct sl_snapshot_source){NULL, NULL};
    if (!c)
        return decoded;
    op->err = err;
    return c;
}

static void fill_record(struct sl_op *op)
{
    struct sl_load *l = op->load;
    l->head.key.tenant = op->tenant->name;
    l->head.key.id = op->id;
    l->record.head = &l->head;
    l->record.turns = l->turns;
    l->record.answers = l->answers;
}

static void load_job(uv_work_t *w)
{
    struct sl_op *op = w->data;
    struct sl_load *l = op->load;
    if (l->damaged.size) {
        op->code = read_damage(op);
        return;
    }
    op->code = read_head(op);
    for (size_t i = 0; !op->code && i < l->n_items; i++)
        op->code = read_item(op, &l->items[i]);
    if (op->code)
        return;
    fill_record(op);
    if (l->snap.number)
        op->code = read_snapshot(op);
    else if (op->decode)
        op->code = op->decode(op->arg, &l->record, &op->err);
}

static void load_done(uv_work_t *w, int status)
{
    struct sl_op *op = w->data;
    struct sl_dir *d = op->d;
    (void)status;
    d->n_loading--;
    sl_store_count(&d->stats, op->tenant->name, op->id, op->code, &op->err);
    sl_dir_unref_log(d, op->load->log);
    op->load->log = NULL;
    sl_queue_push(&d->finished, op);
    sl_dir_pump(d);
}

/* Without where it is moved to, which a rewrite in the pool may be setting. */
static struct sl_place place_of(const struct sl_place *p)
{
    return (struct sl_place){.at = p->at, .size = p->size};
}

/* Everything the job needs, from what is known now. */
static bool prepare(struct sl_load *l, const struct sl_ix_session *s, uint64_t version)
{
    size_t n = 0, n_turns = 0, bytes = room(s->damaged.size ? &s->damaged : &s->head);
    sl_dir_head(s, &l->head);
    l->damaged = place_of(&s->damaged);
    l->at_head = place_of(&s->head);
    l->snap = s->snap;
    l->record.version = version == SL_STORE_LAST ? s->version : version;
    if (version != SL_STORE_LAST)
        (void)sl_index_reach(s, version, &l->snap); /* it was checked */
    l->record.snapshot_version = l->snap.version;
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next) {
        n += leads(e, l) || e->answer;
        n_turns += leads(e, l);
        bytes += room(&e->place);
    }
    l->items = sl_calloc(n, sizeof *l->items);
    l->turns = sl_calloc(n_turns, sizeof *l->turns);
    l->answers = sl_calloc(s->n_answers, sizeof *l->answers);
    if (!sl_bytes_reserve(&l->memory, bytes) || !l->items || !l->turns || !l->answers)
        return false;
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next)
        if (leads(e, l) || e->answer)
            l->items[l->n_items++] = (struct item){.place = place_of(&e->place),
                                                   .version = e->version,
                                                   .turn = leads(e, l),
                                                   .answer = e->answer};
    return true;
}

/* A buffer that is large enough and not too large; p NULL: there is none. */
static struct sl_bytes take_spare(struct sl_dir *d, uint64_t n)
{
    for (size_t i = 0; i < SL_STORE_SPARES; i++) {
        struct sl_bytes b = d->spares[i];
        if (b.p && b.cap >= n && b.cap / 2 <= n) {
            d->spares[i] = (struct sl_bytes){0};
            return b;
        }
    }
    return (struct sl_bytes){0};
}

/* In a free place, or in that of one of another size: sizes change with the model alone. */
static void keep_spare(struct sl_dir *d, struct sl_bytes b)
{
    size_t to = SL_STORE_SPARES;
    for (size_t i = 0; i < SL_STORE_SPARES && b.p; i++)
        if (!d->spares[i].p || (to == SL_STORE_SPARES && d->spares[i].cap < b.cap))
            to = i;
    if (to == SL_STORE_SPARES) {
        sl_free(b.p);
        return;
    }
    sl_free(d->spares[to].p);
    d->spares[to] = b;
}

void sl_load_start(struct sl_op *op)
{
    struct sl_dir *d = op->d;
    sl_index_settle(&d->ix, op->s);
    op->load = sl_calloc(1, sizeof *op->load);
    if (!op->load || !prepare(op->load, op->s, op->version)) {
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory to load session '%s'", op->id);
        sl_queue_push(&d->finished, op);
        uv_async_send(&d->wake); /* the pump is beyond its finished ones */
        return;
    }
    if (op->load->snap.number)
        op->load->buffer = take_spare(d, op->load->snap.size);
    op->load->now = d->io->now();
    op->load->log = d->log;
    d->log->refs++;
    d->n_loading++;
    op->work.data = op;
    uv_queue_work(d->loop, &op->work, load_job, load_done);
}

void sl_load_tell(struct sl_op *op)
{
    struct sl_load *l = op->load;
    if (op->code) {
        op->loaded(op->arg, NULL, &op->err);
        return;
    }
    op->loaded(op->arg, &l->record, NULL);
}

void sl_load_free(struct sl_op *op)
{
    struct sl_load *l = op->load;
    if (!l)
        return;
    sl_free(l->items);
    sl_free(l->turns);
    sl_free(l->answers);
    keep_spare(op->d, l->buffer);
    sl_free(l->memory.p);
    sl_free(l);
    op->load = NULL;
}
