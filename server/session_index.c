/* session_index.c: see session_index.h. */
#include "server/session_index.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "engine/base/mem.h"
#include "server/sessions.h"

/* --- by name ------------------------------------------------------------------------------------
 */

static uint32_t hash_of(const struct sl_session_table *t, const struct sl_tenant *owner,
                        const char *id)
{
    return (uint32_t)XXH3_64bits_withSeed(id, strlen(id), t->seed + (uintptr_t)owner);
}

/* The smallest power of two that is not below the number of buckets. */
static size_t round_up(size_t n)
{
    size_t p = SL_TABLE_SEGMENT;
    while (p < n)
        p *= 2;
    return p;
}

static size_t bucket_of(const struct sl_session_table *t, uint32_t hash)
{
    size_t p = round_up(t->n_buckets), i = hash & (p - 1);
    return i < t->n_buckets ? i : i & (p / 2 - 1);
}

static struct sl_session **bucket(const struct sl_session_table *t, size_t i)
{
    return &t->segments[i / SL_TABLE_SEGMENT][i % SL_TABLE_SEGMENT];
}

static bool add_segment(struct sl_session_table *t)
{
    struct sl_session **segment = sl_calloc(SL_TABLE_SEGMENT, sizeof(struct sl_session *));
    struct sl_session ***v =
        segment ? sl_realloc((void *)t->segments, t->n_segments + 1, sizeof(struct sl_session **))
                : NULL;
    if (!v) {
        sl_free((void *)segment);
        return false;
    }
    t->segments = v;
    v[t->n_segments++] = segment;
    return true;
}

/* One bucket more: of those in the bucket that it comes from, its own go over. */
static void grow(struct sl_session_table *t)
{
    size_t i = t->n_buckets, p = round_up(i + 1);
    if (i / SL_TABLE_SEGMENT == t->n_segments && !add_segment(t))
        return; /* longer chains */
    t->n_buckets++;
    struct sl_session **from = bucket(t, i & (p / 2 - 1)), **to = bucket(t, i), *s;
    while ((s = *from)) {
        if ((s->hash & (p - 1)) != i) {
            from = &s->next_same;
            continue;
        }
        *from = s->next_same;
        s->next_same = *to;
        *to = s;
    }
}

void sl_session_table_done(struct sl_session_table *t)
{
    for (size_t i = 0; i < t->n_segments; i++)
        sl_free((void *)t->segments[i]);
    sl_free((void *)t->segments);
    *t = (struct sl_session_table){.seed = t->seed};
}

bool sl_session_table_insert(struct sl_session_table *t, struct sl_session *s)
{
    if (!t->n_segments) {
        if (!add_segment(t))
            return false;
        t->n_buckets = SL_TABLE_SEGMENT;
    }
    if (t->n >= t->n_buckets)
        grow(t);
    s->hash = hash_of(t, s->owner, s->id);
    struct sl_session **b = bucket(t, bucket_of(t, s->hash));
    s->next_same = *b;
    *b = s;
    t->n++;
    return true;
}

void sl_session_table_remove(struct sl_session_table *t, struct sl_session *s)
{
    struct sl_session **p = bucket(t, bucket_of(t, s->hash));
    while (*p != s)
        p = &(*p)->next_same;
    *p = s->next_same;
    t->n--;
}

struct sl_session *sl_session_table_find(const struct sl_session_table *t,
                                         const struct sl_tenant *owner, const char *id)
{
    if (!t->n)
        return NULL;
    uint32_t hash = hash_of(t, owner, id);
    struct sl_session *s = *bucket(t, bucket_of(t, hash));
    while (s && !(s->hash == hash && s->owner == owner && !strcmp(s->id, id)))
        s = s->next_same;
    return s;
}

struct sl_session *sl_session_table_at(const struct sl_session_table *t, size_t i)
{
    assert(i < t->n_buckets);
    return *bucket(t, i);
}

/* --- in order -----------------------------------------------------------------------------------
 */

enum { BLOCK = 256 };

struct sl_list_block {
    size_t n; /* > 0 */
    struct sl_session *v[BLOCK];
};

void sl_session_list_done(struct sl_session_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        sl_free(l->v[i]);
    sl_free((void *)l->v);
    *l = (struct sl_session_list){0};
}

/* The first block whose last id is not below. */
static size_t block_of(const struct sl_session_list *l, const char *id)
{
    size_t lo = 0, hi = l->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct sl_list_block *b = l->v[mid];
        if (strcmp(b->v[b->n - 1]->id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static size_t place_in(const struct sl_list_block *b, const char *id)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(b->v[mid]->id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct sl_list_block *add_block(struct sl_session_list *l, size_t at)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct sl_list_block **v = sl_realloc((void *)l->v, cap, sizeof(struct sl_list_block *));
        if (!v)
            return NULL;
        l->v = v;
        l->cap = cap;
    }
    struct sl_list_block *b = sl_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    memmove((void *)(l->v + at + 1), (const void *)(l->v + at),
            (l->n - at) * sizeof(struct sl_list_block *));
    l->v[at] = b;
    l->n++;
    return b;
}

static void move(struct sl_list_block *to, size_t at, const struct sl_list_block *from, size_t i,
                 size_t n)
{
    memcpy((void *)(to->v + at), (const void *)(from->v + i), n * sizeof(struct sl_session *));
}

/* A full block becomes two; where what comes is the last of all the first one stays full, so that
 * ids that grow leave no half-empty ones behind. */
static bool split(struct sl_session_list *l, size_t at, bool is_last)
{
    struct sl_list_block *b = l->v[at], *next = add_block(l, at + 1);
    if (!next)
        return false;
    size_t keep = is_last ? BLOCK - 1 : BLOCK / 2;
    next->n = b->n - keep;
    move(next, 0, b, keep, next->n);
    b->n = keep;
    return true;
}

bool sl_session_list_insert(struct sl_session_list *l, struct sl_session *s)
{
    size_t at = block_of(l, s->id);
    bool is_last = at == l->n;
    if (!l->n && !add_block(l, 0))
        return false;
    if (at == l->n)
        at--;
    if (l->v[at]->n == BLOCK) {
        if (!split(l, at, is_last))
            return false;
        at = is_last ? at + 1 : block_of(l, s->id);
    }
    struct sl_list_block *b = l->v[at];
    size_t i = place_in(b, s->id);
    memmove((void *)(b->v + i + 1), (const void *)(b->v + i),
            (b->n - i) * sizeof(struct sl_session *));
    b->v[i] = s;
    b->n++;
    return true;
}

static void drop_block(struct sl_session_list *l, size_t at)
{
    sl_free(l->v[at]);
    l->n--;
    memmove((void *)(l->v + at), (const void *)(l->v + at + 1),
            (l->n - at) * sizeof(struct sl_list_block *));
}

/* Two neighbours with little in them become one, with room for more. */
static void join(struct sl_session_list *l, size_t at)
{
    if (at + 1 >= l->n || l->v[at]->n + l->v[at + 1]->n > BLOCK / 2)
        return;
    struct sl_list_block *b = l->v[at];
    move(b, b->n, l->v[at + 1], 0, l->v[at + 1]->n);
    b->n += l->v[at + 1]->n;
    drop_block(l, at + 1);
}

void sl_session_list_remove(struct sl_session_list *l, struct sl_session *s)
{
    size_t at = block_of(l, s->id);
    assert(at < l->n);
    struct sl_list_block *b = l->v[at];
    size_t i = place_in(b, s->id);
    assert(i < b->n && b->v[i] == s);
    b->n--;
    memmove((void *)(b->v + i), (const void *)(b->v + i + 1),
            (b->n - i) * sizeof(struct sl_session *));
    if (!b->n)
        drop_block(l, at);
    else
        join(l, at);
    if (at > 0)
        join(l, at - 1);
}

struct sl_list_place sl_session_list_seek(const struct sl_session_list *l, const char *id)
{
    struct sl_list_place p = {.block = block_of(l, id)};
    if (p.block < l->n)
        p.i = place_in(l->v[p.block], id);
    return p;
}

struct sl_session *sl_session_list_next(const struct sl_session_list *l, struct sl_list_place *at)
{
    if (at->block >= l->n)
        return NULL;
    const struct sl_list_block *b = l->v[at->block];
    struct sl_session *s = b->v[at->i++];
    if (at->i == b->n)
        *at = (struct sl_list_place){.block = at->block + 1};
    return s;
}

/* --- by their end -------------------------------------------------------------------------------
 *
 * s->end_place is its place in the heap + 1; 0: it is not in it.
 */

void sl_session_ends_done(struct sl_session_ends *e)
{
    sl_free(e->v);
    *e = (struct sl_session_ends){0};
}

bool sl_session_ends_reserve(struct sl_session_ends *e, size_t n)
{
    if (n <= e->cap)
        return true;
    size_t cap = 2 * e->cap > n ? 2 * e->cap : n + 64;
    struct sl_session_end *v = cap < UINT32_MAX ? sl_realloc(e->v, cap, sizeof *v) : NULL;
    if (!v)
        return false;
    e->v = v;
    e->cap = cap;
    return true;
}

static void put(struct sl_session_ends *e, size_t i, struct sl_session_end x)
{
    e->v[i] = x;
    x.s->end_place = (uint32_t)i + 1;
}

/* x belongs at i, or above or below it. */
static void settle(struct sl_session_ends *e, size_t i, struct sl_session_end x)
{
    while (i > 0 && e->v[(i - 1) / 2].at > x.at) {
        put(e, i, e->v[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (size_t child; (child = 2 * i + 1) < e->n; i = child) {
        child += child + 1 < e->n && e->v[child + 1].at < e->v[child].at;
        if (e->v[child].at >= x.at)
            break;
        put(e, i, e->v[child]);
    }
    put(e, i, x);
}

void sl_session_ends_set(struct sl_session_ends *e, struct sl_session *s, int64_t at)
{
    size_t i = s->end_place ? s->end_place - 1 : e->n++;
    assert(e->n <= e->cap);
    settle(e, i, (struct sl_session_end){at, s});
}

void sl_session_ends_remove(struct sl_session_ends *e, struct sl_session *s)
{
    if (!s->end_place)
        return;
    size_t i = s->end_place - 1;
    s->end_place = 0;
    struct sl_session_end last = e->v[--e->n];
    if (i < e->n)
        settle(e, i, last);
}

struct sl_session *sl_session_ends_due(const struct sl_session_ends *e, int64_t now)
{
    return e->n && e->v[0].at <= now ? e->v[0].s : NULL;
}
