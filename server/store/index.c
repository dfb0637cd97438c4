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

static void free_names(struct sl_ix_name *v)
{
    for (struct sl_ix_name *next; v; v = next) {
        next = v->next;
        sl_free(v);
    }
}

bool sl_index_make_room(struct sl_ix_room *ret, enum sl_record_kind k)
{
    bool entry = sl_index_wants_entry(k), snap = sl_index_wants_snap(k);
    bool name = sl_index_wants_name(k);
    *ret = (struct sl_ix_room){.entry = entry ? sl_calloc(1, sizeof *ret->entry) : NULL,
                               .snap = snap ? sl_calloc(1, sizeof *ret->snap) : NULL,
                               .name = name ? sl_calloc(1, sizeof *ret->name) : NULL};
    bool ok = (!entry || ret->entry) && (!snap || ret->snap) && (!name || ret->name);
    if (!ok)
        sl_index_free_room(ret);
    return ok;
}

void sl_index_free_room(struct sl_ix_room *room)
{
    sl_free(room->entry);
    sl_free(room->snap);
    sl_free(room->name);
    *room = (struct sl_ix_room){NULL, NULL, NULL};
}

void sl_index_free_entries(struct sl_ix_session *s)
{
    free_names(s->names);
    s->names = NULL;
    s->n_names = 0;
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
            sl_index_free_entries(s);
            sl_index_free_snaps(s->kept);
            sl_free(s);
        }
    }
    sl_free((void *)ix->buckets);
    for (struct sl_ix_tenant *t = ix->tenants, *next; t; t = next) {
        next = t->next;
        sl_free(t);
    }
    sl_free(ix->moves);
    *ix = (struct sl_index){0};
}

/* Names hold no '/', so that two pairs never join to the same text. */
static uint64_t name_hash(uint64_t seed, const char *tenant, size_t tenant_n, const char *id,
                          size_t id_n)
{
    char text[SL_RECORD_NAMES_MAX + 1];
    assert(tenant_n <= SL_TENANT_MAX && id_n <= SL_SESSION_ID_MAX);
    memcpy(text, tenant, tenant_n);
    text[tenant_n] = '/';
    memcpy(text + tenant_n + 1, id, id_n);
    return XXH3_64bits_withSeed(text, tenant_n + 1 + id_n, seed);
}

static struct sl_ix_session **bucket(const struct sl_index *ix, uint64_t seeded)
{
    return &ix->buckets[seeded & (ix->n_buckets - 1)];
}

static bool is_name(const struct sl_ix_session *s, const char *tenant, size_t tenant_n,
                    const char *id, size_t id_n)
{
    return s->id_n == id_n && memcmp(s->id, id, id_n) == 0 && s->tenant->name_n == tenant_n &&
           memcmp(s->tenant->name, tenant, tenant_n) == 0;
}

static struct sl_ix_session *find(const struct sl_index *ix, uint64_t seeded, const char *tenant,
                                  size_t tenant_n, const char *id, size_t id_n)
{
    if (!ix->n_buckets)
        return NULL;
    struct sl_ix_session *s = *bucket(ix, seeded);
    while (s && !(s->seeded == seeded && is_name(s, tenant, tenant_n, id, id_n)))
        s = s->next;
    return s;
}

struct sl_ix_session *sl_index_find(const struct sl_index *ix, const char *tenant, size_t tenant_n,
                                    const char *id, size_t id_n)
{
    return find(ix, name_hash(ix->seed, tenant, tenant_n, id, id_n), tenant, tenant_n, id, id_n);
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
            struct sl_ix_session **b = &buckets[s->seeded & (n - 1)];
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
    uint64_t seeded = name_hash(ix->seed, tenant, tenant_n, id, id_n);
    struct sl_ix_session *s = find(ix, seeded, tenant, tenant_n, id, id_n);
    if (s)
        return s;
    if (ix->n_nodes >= ix->n_buckets && !ix->walked)
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
    s->hash = name_hash(0, tenant, tenant_n, id, id_n);
    s->seeded = seeded;
    struct sl_ix_session **b = bucket(ix, seeded);
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
    struct sl_ix_session **p = bucket(ix, s->seeded);
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

/* --- heads, and what is within reach
 * ---------------------------------------------------------------
 */

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

const struct sl_ix_name *sl_index_find_name(const struct sl_ix_session *s, const char *name)
{
    const struct sl_ix_name *x = s->names;
    while (x && strcmp(x->name, name) != 0)
        x = x->next;
    return x;
}

void sl_index_names(const struct sl_ix_session *s, struct sl_store_name *v)
{
    for (const struct sl_ix_name *x = s->names; x; x = x->next, v++) {
        v->version = x->version;
        memcpy(v->name, x->name, sizeof v->name);
    }
}

uint64_t sl_index_kept_bytes(const struct sl_ix_session *s)
{
    uint64_t n = 0;
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next)
        n += x->file.size;
    return n;
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
