/* sessions.c: see sessions.h. The registry is one array, sorted by tenant and id: a lookup is a
 * binary search, a page of a list is a range, and an insertion moves pointers (8 bytes a session:
 * microseconds at 100,000 of them), where a hash table would need a second order for the lists. */
#include "server/sessions.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/mem.h"

struct sl_sessions {
    struct sl_slab *slab;
    size_t max;
    int64_t (*now)(void);
    struct sl_session **v; /* n of max, by (tenant, id) */
    size_t n;
};

enum sl_code sl_sessions_open(struct sl_sessions **ret, struct sl_slab *slab, size_t max_sessions,
                              int64_t (*now)(void), struct sl_error *err)
{
    assert(max_sessions > 0);
    struct sl_sessions *ss = sl_calloc(1, sizeof *ss);
    if (ss)
        ss->v = sl_calloc(max_sessions, sizeof *ss->v);
    if (!ss || !ss->v) {
        sl_free(ss);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a list of %zu sessions", max_sessions);
    }
    ss->slab = slab;
    ss->max = max_sessions;
    ss->now = now;
    *ret = ss;
    return SL_OK;
}

static void free_session(struct sl_sessions *ss, struct sl_session *s)
{
    assert(!s->lease);
    sl_slab_unref(ss->slab, s->state);
    sl_free(s->pending);
    sl_free(s->ring);
    sl_free(s->metadata);
    sl_free(s->tenant);
    sl_free(s);
}

void sl_sessions_close(struct sl_sessions *ss)
{
    if (!ss)
        return;
    for (size_t i = 0; i < ss->n; i++)
        free_session(ss, ss->v[i]);
    sl_free((void *)ss->v);
    sl_free(ss);
}

static int compare(const struct sl_session *s, const char *tenant, const char *id)
{
    int c = strcmp(s->tenant, tenant);
    return c ? c : strcmp(s->id, id);
}

/* The first place whose session is not below (tenant, id). */
static size_t place_of(const struct sl_sessions *ss, const char *tenant, const char *id)
{
    size_t lo = 0, hi = ss->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(ss->v[mid], tenant, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void remove_at(struct sl_sessions *ss, size_t place)
{
    struct sl_session *s = ss->v[place];
    ss->n--;
    memmove((void *)(ss->v + place), (const void *)(ss->v + place + 1),
            (ss->n - place) * sizeof(struct sl_session *));
    free_session(ss, s);
}

static bool is_expired(const struct sl_sessions *ss, const struct sl_session *s)
{
    return s->ttl_s && !s->lease && ss->now() - s->used_at >= s->ttl_s;
}

/* The live session of that name, or NULL; one whose time is over is removed on the way. */
static struct sl_session *lookup(struct sl_sessions *ss, const char *tenant, const char *id)
{
    size_t i = place_of(ss, tenant, id);
    if (i == ss->n || compare(ss->v[i], tenant, id))
        return NULL;
    if (!is_expired(ss, ss->v[i]))
        return ss->v[i];
    remove_at(ss, i);
    return NULL;
}

enum sl_code sl_sessions_find(struct sl_sessions *ss, const char *tenant, const char *id,
                              struct sl_session **ret, struct sl_error *err)
{
    struct sl_session *s = lookup(ss, tenant, id);
    if (!s)
        return sl_fail_param(err, SL_E_SESSION_NOT_FOUND, "session",
                             "there is no session '%.128s' (it was never made, was deleted, or "
                             "its time to live is over)",
                             id);
    *ret = s;
    return SL_OK;
}

static enum sl_code random_bits(unsigned char bits[16], struct sl_error *err)
{
    if (getrandom(bits, 16, 0) != 16)
        return sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
    return SL_OK;
}

enum sl_code sl_random_id(char *dst, size_t dst_size, const char *prefix, struct sl_error *err)
{
    unsigned char bits[16];
    size_t n = strlen(prefix);
    assert(n + 2 * sizeof bits < dst_size);
    enum sl_code c = random_bits(bits, err);
    if (c)
        return c;
    memcpy(dst, prefix, n);
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(dst + n + 2 * i, 3, "%02x", bits[i]);
    return SL_OK;
}

static enum sl_code set_metadata(struct sl_session *s, struct sl_text m, struct sl_error *err)
{
    if (!m.s)
        return SL_OK;
    char *copy = sl_strndup(m.s, m.n);
    if (!copy)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu bytes of metadata", m.n);
    sl_free(s->metadata);
    s->metadata = copy;
    s->n_metadata = m.n;
    return SL_OK;
}

enum sl_code sl_sessions_create(struct sl_sessions *ss, const char *tenant, const char *id,
                                int64_t ttl_s, struct sl_text metadata, struct sl_session **ret,
                                struct sl_error *err)
{
    if (id && lookup(ss, tenant, id))
        return sl_fail_param(err, SL_E_SESSION_EXISTS, "id",
                             "there is a session '%s' already; delete it first, or take another id",
                             id);
    if (ss->n == ss->max)
        sl_sessions_expire(ss);
    if (ss->n == ss->max)
        return sl_fail(err, SL_E_SESSIONS_FULL,
                       "there are %zu sessions, which is all that fit in memory "
                       "(--sessions-in-memory)",
                       ss->n);
    enum sl_code c = SL_OK;
    struct sl_session *s = sl_calloc(1, sizeof *s);
    if (s)
        s->tenant = sl_strdup(tenant);
    if (!s || !s->tenant) {
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a session");
        goto out;
    }
    c = random_bits(s->incarnation, err);
    if (!c && !id)
        c = sl_random_id(s->id, sizeof s->id, "s-", err);
    if (!c)
        c = set_metadata(s, metadata, err);
    if (c)
        goto out;
    if (id) {
        assert(sl_session_id_valid(id, strlen(id)));
        memcpy(s->id, id, strlen(id) + 1);
    }
    s->created_at = s->used_at = ss->now();
    s->ttl_s = ttl_s;
    size_t place = place_of(ss, tenant, s->id);
    memmove((void *)(ss->v + place + 1), (const void *)(ss->v + place),
            (ss->n - place) * sizeof(struct sl_session *));
    ss->v[place] = s;
    ss->n++;
    *ret = s;
    s = NULL;
out:
    if (s)
        free_session(ss, s);
    return c;
}

static uint32_t *copy_ids(const uint32_t *ids, size_t n)
{
    uint32_t *copy = sl_malloc(n * sizeof *copy);
    if (copy)
        memcpy(copy, ids, n * sizeof *copy);
    return copy;
}

enum sl_code sl_sessions_fork(struct sl_sessions *ss, const struct sl_session *from, const char *id,
                              bool has_ttl, int64_t ttl_s, struct sl_text metadata,
                              struct sl_session **ret, struct sl_error *err)
{
    struct sl_session *s;
    struct sl_penalty_ring *ring = NULL;
    uint32_t *pending = NULL;
    enum sl_code c = SL_OK;
    if (!metadata.s && from->metadata)
        metadata = (struct sl_text){from->metadata, from->n_metadata};
    if (from->n_pending)
        pending = copy_ids(from->pending, from->n_pending);
    if (from->ring) {
        ring = sl_malloc(sizeof *ring);
        if (ring)
            *ring = *from->ring;
    }
    if ((from->n_pending && !pending) || (from->ring && !ring))
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a session");
    if (!c)
        c = sl_sessions_create(ss, from->tenant, id, has_ttl ? ttl_s : from->ttl_s, metadata, &s,
                               err);
    if (c) {
        sl_free(pending);
        sl_free(ring);
        return c;
    }
    if (from->state)
        sl_slab_ref(ss->slab, from->state);
    s->state = from->state;
    s->version = from->version;
    s->tokens_seen = from->tokens_seen;
    s->pending = pending;
    s->n_pending = from->n_pending;
    s->ring = ring;
    *ret = s;
    return SL_OK;
}

static enum sl_code check_free(const struct sl_session *s, struct sl_error *err)
{
    if (s->lease)
        return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                             "session '%s' is busy: one turn at a time; wait for the running one "
                             "or cancel it",
                             s->id);
    return SL_OK;
}

enum sl_code sl_sessions_patch(struct sl_sessions *ss, struct sl_session *s, bool has_ttl,
                               int64_t ttl_s, struct sl_text metadata, struct sl_error *err)
{
    enum sl_code c = check_free(s, err);
    if (!c)
        c = set_metadata(s, metadata, err);
    if (c)
        return c;
    if (has_ttl)
        s->ttl_s = ttl_s;
    s->used_at = ss->now();
    return SL_OK;
}

enum sl_code sl_sessions_delete(struct sl_sessions *ss, struct sl_session *s, struct sl_error *err)
{
    enum sl_code c = check_free(s, err);
    if (c)
        return c;
    size_t place = place_of(ss, s->tenant, s->id);
    assert(place < ss->n && ss->v[place] == s);
    remove_at(ss, place);
    return SL_OK;
}

enum sl_code sl_session_lease(struct sl_session *s, struct sl_run *run, struct sl_error *err)
{
    enum sl_code c = check_free(s, err);
    if (!c)
        s->lease = run;
    return c;
}

void sl_sessions_give_back(struct sl_sessions *ss, struct sl_session *s)
{
    assert(s->lease);
    s->lease = NULL;
    s->used_at = ss->now();
}

enum sl_code sl_sessions_commit(struct sl_sessions *ss, struct sl_session *s, void *state,
                                uint64_t tokens_seen, const uint32_t *pending, size_t n_pending,
                                const struct sl_penalty_ring *ring, struct sl_error *err)
{
    assert(s->lease && state && state != s->state && n_pending > 0);
    uint32_t *ids = copy_ids(pending, n_pending);
    if (ring->n && !s->ring)
        s->ring = sl_calloc(1, sizeof *s->ring);
    if (!ids || (ring->n && !s->ring)) {
        sl_free(ids);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for what the session remembers of a turn");
    }
    if (s->ring)
        *s->ring = *ring;
    sl_free(s->pending);
    s->pending = ids;
    s->n_pending = n_pending;
    sl_slab_unref(ss->slab, s->state);
    s->state = state;
    s->tokens_seen = tokens_seen;
    s->version++;
    sl_sessions_give_back(ss, s);
    return SL_OK;
}

bool sl_sessions_list(struct sl_sessions *ss, const char *tenant, const struct sl_list_query *q,
                      void (*item)(const struct sl_session *s, size_t i, void *arg), void *arg)
{
    size_t n_prefix = strlen(q->prefix), given = 0;
    bool after = strcmp(q->after, q->prefix) >= 0;
    size_t i = place_of(ss, tenant, after ? q->after : q->prefix);
    for (; i < ss->n && !strcmp(ss->v[i]->tenant, tenant); i++) {
        const struct sl_session *s = ss->v[i];
        int beyond = strncmp(s->id, q->prefix, n_prefix);
        if (beyond > 0)
            break;
        if (beyond < 0 || strcmp(s->id, q->after) <= 0 || is_expired(ss, s))
            continue;
        if (given == q->limit)
            return true;
        item(s, given++, arg);
    }
    return false;
}

void sl_sessions_expire(struct sl_sessions *ss)
{
    for (size_t i = ss->n; i-- > 0;)
        if (is_expired(ss, ss->v[i]))
            remove_at(ss, i);
}

size_t sl_sessions_count(const struct sl_sessions *ss)
{
    return ss->n;
}

struct sl_slab *sl_sessions_slab(const struct sl_sessions *ss)
{
    return ss->slab;
}

enum sl_code sl_session_match(const struct sl_session *s, const char *if_match,
                              struct sl_error *err)
{
    char etag[SL_ETAG_SIZE];
    if (!if_match)
        return SL_OK;
    sl_etag_format(etag, s->incarnation, s->version);
    if (sl_etag_matches(if_match, strlen(if_match), etag))
        return SL_OK;
    return sl_fail_param(err, SL_E_VERSION_MISMATCH, "If-Match",
                         "session '%s' is at %s, and If-Match says %.80s", s->id, etag, if_match);
}
