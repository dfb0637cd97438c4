/* index.c: see index.h. A hash table with chains: growing it may fail without harm. */
#include "server/store/index.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "engine/base/mem.h"

enum { BUCKETS_MIN = 64 };

void sl_index_free_snaps(struct sl_ix_snap *v)
{
    for (struct sl_ix_snap *next; v; v = next) {
        next = v->next;
        sl_free(v);
    }
}

static void free_entries(struct sl_ix_session *s)
{
    for (struct sl_ix_entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        sl_free(e);
    }
    s->entries = s->last_entry = NULL;
    s->n_turns = s->n_answers = 0;
    s->replay_tokens = 0;
}

void sl_index_done(struct sl_index *ix)
{
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (struct sl_ix_session *s = ix->buckets[i], *next; s; s = next) {
            next = s->next;
            free_entries(s);
            sl_index_free_snaps(s->kept);
            sl_free(s);
        }
    }
    sl_free((void *)ix->buckets);
    for (struct sl_ix_tenant *t = ix->tenants, *next; t; t = next) {
        next = t->next;
        sl_free(t);
    }
    *ix = (struct sl_index){0};
}

/* Names hold no '/', so that two pairs never join to the same text. */
static uint64_t name_hash(const char *tenant, size_t tenant_n, const char *id, size_t id_n)
{
    char text[SL_RECORD_NAMES_MAX + 1];
    assert(tenant_n <= SL_TENANT_MAX && id_n <= SL_SESSION_ID_MAX);
    memcpy(text, tenant, tenant_n);
    text[tenant_n] = '/';
    memcpy(text + tenant_n + 1, id, id_n);
    return XXH3_64bits(text, tenant_n + 1 + id_n);
}

static bool is_name(const struct sl_ix_session *s, const char *tenant, size_t tenant_n,
                    const char *id, size_t id_n)
{
    return s->id_n == id_n && memcmp(s->id, id, id_n) == 0 && s->tenant->name_n == tenant_n &&
           memcmp(s->tenant->name, tenant, tenant_n) == 0;
}

static struct sl_ix_session *find(const struct sl_index *ix, uint64_t hash, const char *tenant,
                                  size_t tenant_n, const char *id, size_t id_n)
{
    if (!ix->n_buckets)
        return NULL;
    struct sl_ix_session *s = ix->buckets[hash & (ix->n_buckets - 1)];
    while (s && !(s->hash == hash && is_name(s, tenant, tenant_n, id, id_n)))
        s = s->next;
    return s;
}

struct sl_ix_session *sl_index_find(const struct sl_index *ix, const char *tenant, size_t tenant_n,
                                    const char *id, size_t id_n)
{
    return find(ix, name_hash(tenant, tenant_n, id, id_n), tenant, tenant_n, id, id_n);
}

static void grow(struct sl_index *ix)
{
    size_t n = ix->n_buckets ? 2 * ix->n_buckets : BUCKETS_MIN;
    struct sl_ix_session **buckets = sl_calloc(n, sizeof(struct sl_ix_session *));
    if (!buckets)
        return; /* longer chains */
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (struct sl_ix_session *s = ix->buckets[i], *next; s; s = next) {
            next = s->next;
            struct sl_ix_session **b = &buckets[s->hash & (n - 1)];
            s->next = *b;
            *b = s;
        }
    }
    sl_free((void *)ix->buckets);
    ix->buckets = buckets;
    ix->n_buckets = n;
}

/* Tenants are few (a key file lists them) and never forgotten while the store is open. */
static struct sl_ix_tenant *get_tenant(struct sl_index *ix, const char *name, size_t n)
{
    for (struct sl_ix_tenant *t = ix->tenants; t; t = t->next)
        if (t->name_n == n && memcmp(t->name, name, n) == 0)
            return t;
    struct sl_ix_tenant *t = sl_calloc(1, sizeof *t);
    if (t) {
        memcpy(t->name, name, n);
        t->name_n = n;
        t->next = ix->tenants;
        ix->tenants = t;
    }
    return t;
}

struct sl_ix_session *sl_index_get(struct sl_index *ix, const char *tenant, size_t tenant_n,
                                   const char *id, size_t id_n)
{
    uint64_t hash = name_hash(tenant, tenant_n, id, id_n);
    struct sl_ix_session *s = find(ix, hash, tenant, tenant_n, id, id_n);
    if (s)
        return s;
    if (ix->n_nodes >= ix->n_buckets)
        grow(ix);
    struct sl_ix_tenant *t = get_tenant(ix, tenant, tenant_n);
    if (!ix->n_buckets || !t)
        return NULL;
    s = sl_calloc(1, sizeof *s + id_n + 1);
    if (!s)
        return NULL;
    memcpy(s->id, id, id_n);
    s->id_n = id_n;
    s->tenant = t;
    s->hash = hash;
    struct sl_ix_session **b = &ix->buckets[hash & (ix->n_buckets - 1)];
    s->next = *b;
    *b = s;
    ix->n_nodes++;
    return s;
}

void sl_index_release(struct sl_index *ix, struct sl_ix_session *s)
{
    if (s->exists || s->ops)
        return;
    assert(!s->entries && !s->kept);
    struct sl_ix_session **p = &ix->buckets[s->hash & (ix->n_buckets - 1)];
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    sl_free(s);
    ix->n_nodes--;
}

bool sl_index_each(const struct sl_index *ix, bool (*each)(void *arg, struct sl_ix_session *s),
                   void *arg)
{
    for (size_t i = 0; i < ix->n_buckets; i++)
        for (struct sl_ix_session *s = ix->buckets[i]; s; s = s->next)
            if (s->exists && !each(arg, s))
                return false;
    return true;
}

/* --- what records do -----------------------------------------------------------------------------
 */

static void count_live(struct sl_index *ix, struct sl_ix_session *s, int64_t by)
{
    s->live += (uint64_t)by;
    ix->live += (uint64_t)by;
}

static void set_place(struct sl_index *ix, struct sl_ix_session *s, struct sl_place *p, uint64_t at,
                      size_t size)
{
    count_live(ix, s, (int64_t)size - (int64_t)p->size);
    *p = (struct sl_place){.at = at, .size = (uint32_t)size};
}

static void drop_snap(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap *x,
                      struct sl_ix_snap **ret_old)
{
    count_live(ix, s, -(int64_t)x->place.size);
    ix->snapshot_bytes -= x->file.size;
    x->next = *ret_old;
    *ret_old = x;
}

static void keep_snap(struct sl_ix_session *s, struct sl_ix_snap *x)
{
    x->next = NULL;
    *(s->last_kept ? &s->last_kept->next : &s->kept) = x;
    s->last_kept = x;
}

/* Seen at a version between the last snapshot's and now. */
static void look_at(const struct sl_ix_session *s, uint64_t version, uint64_t *ret_tokens,
                    int64_t *ret_used_at)
{
    const struct sl_ix_entry *e = s->entries;
    while (e && (e->version != version || (!e->turn && !e->kept)))
        e = e->next;
    bool last = version == s->version;
    *ret_tokens = last ? s->tokens_seen : e ? e->tokens_seen : s->snap_tokens;
    *ret_used_at = last ? s->used_at : e ? e->used_at : s->snap_used_at;
}

/* The snapshot's file is `snap` from now on, its record at `place`; `x` becomes the one before. */
static void set_snap(struct sl_index *ix, struct sl_ix_session *s, const struct sl_snapfile *snap,
                     struct sl_place place, struct sl_ix_snap *x, struct sl_ix_snap **ret_old)
{
    *x = (struct sl_ix_snap){.file = s->snap,
                             .place = s->snapat,
                             .tokens_seen = s->snap_tokens,
                             .used_at = s->snap_used_at};
    look_at(s, snap->version, &s->snap_tokens, &s->snap_used_at);
    if (x->file.number == snap->number || x->file.version == snap->version || !ix->keep_turns)
        drop_snap(ix, s, x, ret_old);
    else
        keep_snap(s, x);
    if (x->file.number == snap->number)
        x->file = (struct sl_snapfile){0}; /* it is needed: the head alone has changed */
    s->snap = *snap;
    ix->snapshot_bytes += snap->size;
    s->snapat = place;
    count_live(ix, s, place.size);
    if (snap->number > ix->last_number)
        ix->last_number = snap->number;
}

/* Earlier snapshots without which every version that is kept is within reach. */
static void sweep_kept(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap **ret_old)
{
    uint64_t first = s->version > ix->keep_turns ? s->version - ix->keep_turns : 0;
    struct sl_ix_snap *x;
    while ((x = s->kept)) {
        uint64_t next = x->next ? x->next->file.version : s->snap.version;
        if (ix->keep_turns && next > first)
            return;
        s->kept = x->next;
        if (!s->kept)
            s->last_kept = NULL;
        drop_snap(ix, s, x, ret_old);
    }
}

/* Times come from disks and clocks: any value. */
bool sl_answer_expired(int64_t answered_at, int64_t now)
{
    int64_t age;
    return !__builtin_sub_overflow(now, answered_at, &age) && age > SL_ANSWER_LIFE_S;
}

/* Drops the entries that are neither a turn since a snapshot nor an answer to be kept. Age is
 * reckoned from the newest answer: what is dropped depends on the records alone. */
static void sweep_entries(struct sl_index *ix, struct sl_ix_session *s)
{
    int64_t now = 0;
    for (const struct sl_ix_entry *x = s->entries; x; x = x->next)
        now = x->answer ? x->answered_at : now;
    size_t too_many = s->n_answers > SL_STORE_ANSWERS_MAX ? s->n_answers - SL_STORE_ANSWERS_MAX : 0;
    struct sl_ix_entry **p = &s->entries, *e;
    s->last_entry = NULL;
    s->n_turns = s->n_answers = 0;
    s->replay_tokens = 0;
    while ((e = *p)) {
        if (e->answer && (too_many || sl_answer_expired(e->answered_at, now))) {
            e->answer = false;
            too_many -= too_many > 0;
        }
        e->kept = (e->turn || e->kept) && e->version <= s->snap.version && s->kept &&
                  e->version > s->kept->file.version;
        e->turn = e->turn && e->version > s->snap.version;
        if (!e->turn && !e->kept && !e->answer) {
            count_live(ix, s, -(int64_t)e->place.size);
            *p = e->next;
            sl_free(e);
            continue;
        }
        s->n_turns += e->turn;
        s->n_answers += e->answer;
        s->replay_tokens += e->turn ? e->n_tokens : 0;
        s->last_entry = e;
        p = &e->next;
    }
}

static void add_entry(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_entry *e)
{
    e->next = NULL;
    if (s->last_entry)
        s->last_entry->next = e;
    else
        s->entries = e;
    s->last_entry = e;
    s->n_turns += e->turn;
    s->n_answers += e->answer;
    s->replay_tokens += e->turn ? e->n_tokens : 0;
    count_live(ix, s, e->place.size);
}

static void sweep_all(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap **ret_old)
{
    sweep_kept(ix, s, ret_old);
    sweep_entries(ix, s);
}

static bool apply_head(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_head_payload h;
    bool made = false;
    if (!sl_head_payload_read(&h, payload, r->payload_n) || h.snap.version > r->version)
        return false;
    if (s->exists) {
        bool patch = r->version == s->version && h.snap.version == s->snap.version &&
                     h.snap.number == s->snap.number;
        bool restore =
            r->version >= s->version && h.snap.number != 0 && h.snap.version == r->version;
        if (memcmp(s->incarnation, r->incarnation, 16) != 0 || (!patch && !restore))
            return false;
    } else if (h.snap.version != r->version) {
        return false; /* turns before it would be missing */
    } else {
        s->exists = true;
        memcpy(s->incarnation, r->incarnation, 16);
        ix->n_sessions++;
        made = true;
    }
    s->version = r->version;
    s->tokens_seen = h.tokens_seen;
    s->created_at = h.created_at;
    s->used_at = h.used_at;
    s->ttl_s = h.ttl_s;
    s->metadata_n = h.metadata_n;
    if (made)
        s->snap = (struct sl_snapfile){.number = h.snap.number}; /* there is none before it */
    set_snap(ix, s, &h.snap, (struct sl_place){0}, x, ret_old);
    set_place(ix, s, &s->head, at, sl_record_size(r));
    sweep_all(ix, s, ret_old);
    return true;
}

static void take_turn(struct sl_ix_entry *e, const struct sl_turn_payload *t)
{
    e->n_tokens = t->n_tokens;
    e->tokens_seen = t->tokens_seen;
    e->used_at = t->used_at;
    e->answer = t->has_answer;
    e->answered_at = t->answered_at;
    e->answer_n = t->answer_n;
}

static bool apply_turn(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, struct sl_ix_entry *e,
                       struct sl_ix_snap **ret_old)
{
    struct sl_turn_payload t;
    if (!sl_turn_payload_read(&t, payload, r->payload_n) || s->version == UINT64_MAX ||
        r->version != s->version + 1)
        return false;
    take_turn(e, &t);
    e->turn = true;
    s->version = r->version;
    s->tokens_seen = t.tokens_seen;
    s->used_at = t.used_at;
    add_entry(ix, s, e);
    sweep_kept(ix, s, ret_old);
    if (e->answer || *ret_old)
        sweep_entries(ix, s);
    return true;
}

static bool is_behind(const struct sl_ix_session *s, const struct sl_record *r)
{
    return r->version >= 1 && r->version <= s->snap.version && !s->n_turns &&
           (!s->last_entry || s->last_entry->version < r->version);
}

static bool apply_kept_turn(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                            const unsigned char *payload, struct sl_ix_entry *e)
{
    struct sl_turn_payload t;
    if (!sl_turn_payload_read(&t, payload, r->payload_n) || !is_behind(s, r))
        return false;
    take_turn(e, &t);
    e->kept = true;
    add_entry(ix, s, e);
    sweep_entries(ix, s);
    return true;
}

static bool apply_kept(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_kept_payload k;
    if (!sl_kept_payload_read(&k, payload, r->payload_n, r->version) ||
        r->version >= s->snap.version || (s->last_kept && s->last_kept->file.version >= r->version))
        return false;
    *x = (struct sl_ix_snap){.file = k.snap, .tokens_seen = k.tokens_seen, .used_at = k.used_at};
    set_place(ix, s, &x->place, at, sl_record_size(r));
    ix->snapshot_bytes += k.snap.size;
    if (k.snap.number > ix->last_number)
        ix->last_number = k.snap.number;
    keep_snap(s, x);
    sweep_all(ix, s, ret_old);
    return true;
}

static bool apply_answer(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                         const unsigned char *payload, struct sl_ix_entry *e)
{
    struct sl_answer_payload a;
    if (!sl_answer_payload_read(&a, payload, r->payload_n) || !is_behind(s, r))
        return false;
    e->answer = true;
    e->answered_at = a.at;
    e->answer_n = (uint32_t)r->payload_n;
    add_entry(ix, s, e);
    sweep_entries(ix, s);
    return true;
}

static bool apply_snap(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_snapfile snap;
    if (!sl_snap_payload_read(&snap, payload, r->payload_n, r->version) ||
        r->version > s->version || r->version < s->snap.version)
        return false;
    const struct sl_place place = {.at = at, .size = (uint32_t)sl_record_size(r)};
    set_snap(ix, s, &snap, place, x, ret_old);
    sweep_all(ix, s, ret_old);
    return true;
}

static void apply_delete(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap *x,
                         struct sl_ix_snap **ret_old)
{
    *x = (struct sl_ix_snap){.file = s->snap};
    keep_snap(s, x);
    while ((x = s->kept)) {
        s->kept = x->next;
        drop_snap(ix, s, x, ret_old);
    }
    s->last_kept = NULL;
    ix->n_sessions--;
    ix->live -= s->live;
    free_entries(s);
    s->exists = false;
    s->in_rewrite = 0;
    s->live = 0;
    s->snap = (struct sl_snapfile){0};
    s->head = s->snapat = s->damaged = (struct sl_place){0};
}

bool sl_index_apply(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                    const unsigned char *payload, uint64_t at, struct sl_ix_entry *e,
                    struct sl_ix_snap *x, struct sl_ix_snap **ret_old)
{
    *ret_old = NULL;
    bool same = s->exists && memcmp(s->incarnation, r->incarnation, 16) == 0;
    bool ok = false;
    assert((e != NULL) == sl_index_wants_entry(r->kind));
    assert((x != NULL) == sl_index_wants_snap(r->kind));
    if (e)
        *e = (struct sl_ix_entry){.place = {.at = at, .size = (uint32_t)sl_record_size(r)},
                                  .version = r->version};
    switch (r->kind) {
    case SL_RECORD_HEAD:
        ok = apply_head(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_TURN:
        ok = same && apply_turn(ix, s, r, payload, e, ret_old);
        break;
    case SL_RECORD_ANSWER:
        ok = same && apply_answer(ix, s, r, payload, e);
        break;
    case SL_RECORD_SNAP:
        ok = same && apply_snap(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_DELETE:
        if (same)
            apply_delete(ix, s, x, ret_old);
        ok = same;
        break;
    case SL_RECORD_KEPT:
        ok = same && apply_kept(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_KEPT_TURN:
        ok = same && apply_kept_turn(ix, s, r, payload, e);
        break;
    case SL_RECORD_BROKEN:
        sl_index_damage(ix, s, r, at);
        ok = true;
        break;
    default:
        break;
    }
    if (!ok) {
        sl_free(e);
        sl_free(x);
    }
    return ok;
}

bool sl_index_wants_entry(enum sl_record_kind k)
{
    return k == SL_RECORD_TURN || k == SL_RECORD_ANSWER || k == SL_RECORD_KEPT_TURN;
}

bool sl_index_wants_snap(enum sl_record_kind k)
{
    return k == SL_RECORD_HEAD || k == SL_RECORD_SNAP || k == SL_RECORD_DELETE ||
           k == SL_RECORD_KEPT;
}

void sl_index_damage(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                     uint64_t at)
{
    if (!s->exists) {
        s->exists = true;
        memcpy(s->incarnation, r->incarnation, 16);
        s->version = s->tokens_seen = 0;
        s->created_at = s->used_at = s->ttl_s = 0;
        s->metadata_n = 0;
        ix->n_sessions++;
    }
    if (r->version > s->version)
        s->version = r->version;
    if (!s->damaged.size)
        set_place(ix, s, &s->damaged, at, sl_record_size(r));
}

struct moves {
    struct sl_index *ix;
    const struct sl_moved *v;
    size_t n;
};

static const struct sl_moved *find_move(const struct moves *m, uint64_t at)
{
    size_t begin = 0, end = m->n;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        if (m->v[middle].at == at)
            return &m->v[middle];
        if (m->v[middle].at < at)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

static void move(const struct moves *m, struct sl_ix_session *s, struct sl_place *p)
{
    const struct sl_moved *x = p->size && !p->moved_to ? find_move(m, p->at) : NULL;
    if (x)
        set_place(m->ix, s, p, x->to, x->size);
    else
        set_place(m->ix, s, p, p->moved_to, p->moved_to ? p->moved_size : 0);
}

void sl_index_moved(struct sl_index *ix, const struct sl_moved *v, size_t n)
{
    const struct moves m = {ix, v, n};
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (struct sl_ix_session *s = ix->buckets[i]; s; s = s->next) {
            if (!s->exists)
                continue;
            move(&m, s, &s->head);
            move(&m, s, &s->snapat);
            move(&m, s, &s->damaged);
            for (struct sl_ix_snap *x = s->kept; x; x = x->next)
                move(&m, s, &x->place);
            for (struct sl_ix_entry *e = s->entries; e; e = e->next) {
                move(&m, s, &e->place);
                e->answer = e->answer && e->place.size;
                assert((!e->turn && !e->kept) || e->place.size || s->damaged.size);
            }
            sweep_entries(ix, s);
        }
    }
}

void sl_index_forget_missing(struct sl_index *ix)
{
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (struct sl_ix_session *s = ix->buckets[i]; s; s = s->next) {
            struct sl_ix_snap **p = &s->kept, *old = NULL, *x;
            s->last_kept = NULL;
            while ((x = *p)) {
                if (!x->file.number || x->found) {
                    s->last_kept = x;
                    p = &x->next;
                    continue;
                }
                *p = x->next;
                drop_snap(ix, s, x, &old);
            }
            if (old && s->exists)
                sweep_entries(ix, s);
            sl_index_free_snaps(old);
        }
    }
}

void sl_index_head(const struct sl_ix_session *s, struct sl_head_payload *ret)
{
    *ret = (struct sl_head_payload){.tokens_seen = s->tokens_seen,
                                    .created_at = s->created_at,
                                    .used_at = s->used_at,
                                    .ttl_s = s->ttl_s,
                                    .snap = s->snap,
                                    .metadata_n = s->metadata_n};
}

void sl_index_snap_head(const struct sl_ix_session *s, struct sl_head_payload *ret)
{
    sl_index_head(s, ret);
    ret->tokens_seen = s->snap_tokens;
    ret->used_at = s->snap_used_at;
}

/* --- what is within reach ------------------------------------------------------------------------
 */

/* So many turns lead from one version to another. */
static uint64_t turns_between(const struct sl_ix_session *s, uint64_t from, uint64_t to)
{
    uint64_t n = 0;
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next)
        n += (e->turn || e->kept) && e->version > from && e->version <= to;
    return n;
}

bool sl_index_reach(const struct sl_ix_session *s, uint64_t version, struct sl_snapfile *ret)
{
    const struct sl_snapfile *base = NULL;
    for (const struct sl_ix_snap *x = s->kept; x && x->file.version <= version; x = x->next)
        base = &x->file;
    if (s->snap.version <= version)
        base = &s->snap;
    if (!base || version > s->version ||
        turns_between(s, base->version, version) != version - base->version)
        return false;
    *ret = *base;
    return true;
}

size_t sl_index_count_points(const struct sl_ix_session *s)
{
    size_t n = 1;
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next)
        n++;
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next)
        n += e->turn || e->kept;
    return n;
}

static void add_point(const struct sl_ix_session *s, struct sl_store_point *v, size_t *n,
                      struct sl_store_point p)
{
    struct sl_snapfile base;
    if (sl_index_reach(s, p.version, &base) && (*n == 0 || v[*n - 1].version < p.version))
        v[(*n)++] = p;
}

/* Snapshots and turns, each in the order of their versions, become one. */
size_t sl_index_points(const struct sl_ix_session *s, struct sl_store_point *v)
{
    const struct sl_ix_snap live = {
        .file = s->snap, .tokens_seen = s->snap_tokens, .used_at = s->snap_used_at};
    const struct sl_ix_entry *e = s->entries;
    size_t n = 0;
    for (const struct sl_ix_snap *x = s->kept ? s->kept : &live; x || e;) {
        if (e && (!x || e->version < x->file.version)) {
            if (e->turn || e->kept)
                add_point(s, v, &n,
                          (struct sl_store_point){e->version, e->tokens_seen, e->used_at});
            e = e->next;
        } else {
            add_point(s, v, &n,
                      (struct sl_store_point){x->file.version, x->tokens_seen, x->used_at});
            x = x == &live ? NULL : x->next ? x->next : &live;
        }
    }
    return n;
}
