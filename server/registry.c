/* registry.c: which sessions there are: found, listed, made, forgotten, expired, and counted for
 * their tenants' quotas. See sessions.h; the structures are session_index.h's.
 *
 * A session's time to live ends by itself: whoever asks for it after that is told that there is
 * none, whether or not it has been removed from memory and from the store yet. That is done a few
 * at a time, so that a million that end together hold nobody up. What has expired counts for no
 * quota any more from the moment it is noticed.
 *
 * Of a shared store the sessions here are some that were heard of: their times to live, their
 * number and their bytes are the store's matter (redis_lua.c). */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

enum {
    EXPIRING_MAX = 64,  /* being removed at once */
    EXPIRE_AGAIN_S = 5, /* after a removal that failed */
    ANSWER_BYTES = 34   /* of an answer that is kept, besides its key and body */
};

/* --- random bits --------------------------------------------------------------------------------
 */

enum sl_code sl_random_bits(unsigned char bits[16], struct sl_error *err)
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
    enum sl_code c = sl_random_bits(bits, err);
    if (c)
        return c;
    snprintf(dst, dst_size, "%s", prefix);
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(dst + n + 2 * i, 3, "%02x", bits[i]);
    return SL_OK;
}

/* --- what a session counts for ------------------------------------------------------------------
 */

static bool is_counted(const struct sl_sessions *ss, const struct sl_session *s)
{
    return !ss->shared && !s->expired && !sl_session_is_ephemeral(s);
}

uint64_t sl_session_charge(const struct sl_sessions *ss, size_t n_metadata, uint64_t answers,
                           uint64_t kept)
{
    return sl_model_info(ss->opt.model)->state_bytes + n_metadata + answers + kept;
}

static uint64_t transcript_bytes(const struct sl_sessions *ss, uint64_t tokens_seen)
{
    bool has = ss->opt.keep_transcript && tokens_seen <= SL_TRANSCRIPT_MAX;
    return has ? tokens_seen * sizeof(uint32_t) : 0;
}

/* Each named checkpoint is a state at least. */
static uint64_t kept_with(const struct sl_sessions *ss, const struct sl_session *s,
                          uint64_t tokens_seen)
{
    uint64_t named = s->n_names * sl_model_info(ss->opt.model)->state_bytes;
    return (s->kept_bytes > named ? s->kept_bytes : named) + transcript_bytes(ss, tokens_seen);
}

uint64_t sl_session_kept(const struct sl_sessions *ss, const struct sl_session *s)
{
    return sl_session_is_ephemeral(s) ? 0 : kept_with(ss, s, s->tokens_seen);
}

uint64_t sl_session_charge_named(const struct sl_sessions *ss, const struct sl_session *s,
                                 uint64_t tokens_seen)
{
    uint64_t named = sl_model_info(ss->opt.model)->state_bytes + transcript_bytes(ss, tokens_seen);
    return sl_session_charge(ss, s->n_metadata, s->answers_bytes,
                             kept_with(ss, s, s->tokens_seen) + named);
}

uint64_t sl_session_charge_seen(const struct sl_sessions *ss, const struct sl_session *s,
                                size_t n_metadata, uint64_t tokens_seen)
{
    return sl_session_charge(ss, n_metadata, s->answers_bytes, kept_with(ss, s, tokens_seen));
}

uint64_t sl_sessions_kept(const struct sl_sessions *ss)
{
    struct sl_store_stats st;
    if (!ss->shared)
        return ss->kept_bytes;
    sl_store_stats(ss->store, &st);
    return st.kept_bytes;
}

uint64_t sl_answer_charge(size_t n_key, size_t n_body)
{
    return ANSWER_BYTES + n_key + n_body;
}

enum sl_code sl_session_grow(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes,
                             struct sl_error *err)
{
    if (!is_counted(ss, s) || bytes <= s->bytes)
        return SL_OK;
    enum sl_code c = sl_tenant_add_bytes(s->owner, bytes - s->bytes, err);
    if (!c)
        s->bytes = bytes;
    return c;
}

void sl_session_shrink(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes)
{
    if (!is_counted(ss, s) || bytes >= s->bytes)
        return;
    sl_tenant_drop_bytes(s->owner, s->bytes - bytes);
    s->bytes = bytes;
}

static void count_kept(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes)
{
    ss->kept_bytes += bytes - s->kept_counted;
    s->kept_counted = bytes;
}

static void uncount(struct sl_sessions *ss, struct sl_session *s)
{
    if (!is_counted(ss, s))
        return;
    sl_tenant_drop_session(s->owner, s->bytes);
    s->bytes = 0;
    count_kept(ss, s, 0);
}

void sl_session_recount(struct sl_sessions *ss, struct sl_session *s)
{
    struct sl_store_key key = sl_session_key(s);
    if (!is_counted(ss, s))
        return;
    if (!ss->store)
        s->kept_bytes = sl_session_point_bytes(ss, s);
    else if (s->in_store)
        sl_store_kept_now(ss->store, &key, &s->kept_bytes, &s->n_names);
    uint64_t kept = sl_session_kept(ss, s);
    uint64_t bytes = sl_session_charge(ss, s->n_metadata, s->answers_bytes, kept);
    if (bytes > s->bytes)
        sl_tenant_put_bytes(s->owner, bytes - s->bytes);
    else
        sl_tenant_drop_bytes(s->owner, s->bytes - bytes);
    s->bytes = bytes;
    count_kept(ss, s, kept);
}

/* --- times to live ------------------------------------------------------------------------------
 */

/* The first second in which it is over: it was used at some time in used_at. */
static int64_t end_of(const struct sl_session *s)
{
    int64_t end;
    return __builtin_add_overflow(s->used_at + 1, s->ttl_s, &end) ? INT64_MAX : end;
}

/* One that is used is not. */
static bool is_expired(const struct sl_sessions *ss, const struct sl_session *s)
{
    return s->expired || (s->ttl_s && !s->leased && sl_sessions_now(ss) >= end_of(s));
}

/* Nobody finds it any more. (A deletion that fails brings it back, but for an expired one.) */
static bool is_gone(const struct sl_sessions *ss, const struct sl_session *s)
{
    return s->going || s->vanished || is_expired(ss, s);
}

void sl_session_set_ttl(struct sl_sessions *ss, struct sl_session *s, int64_t ttl_s)
{
    s->ttl_s = ttl_s;
    if (ss->shared)
        return;
    if (ttl_s)
        sl_session_ends_set(&ss->ends, s, end_of(s));
    else
        sl_session_ends_remove(&ss->ends, s);
}

static void on_expired_gone(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    (void)s; /* one that could not be deleted is tried again */
    ss->n_expiring--;
    ss->n_expired += err == NULL;
    if (!ss->expiring && !err)
        sl_sessions_expire(ss); /* the next ones */
}

static void expire(struct sl_sessions *ss, struct sl_session *s, int64_t now)
{
    if (!s->expired && !is_expired(ss, s)) { /* it was used meanwhile, or is */
        sl_session_ends_set(&ss->ends, s, s->leased ? now + s->ttl_s : end_of(s));
        return;
    }
    sl_session_ends_set(&ss->ends, s, now + EXPIRE_AGAIN_S);
    if (!s->expired) {
        uncount(ss, s);
        s->expired = true;
        ss->n_dead++;
    }
    if (s->leased)
        return; /* a deletion is at it */
    ss->n_expiring++;
    sl_sessions_delete(ss, s, on_expired_gone, ss);
}

static void nothing_done(void *arg, struct sl_session *s, const struct sl_error *err)
{
    (void)arg;
    (void)s;
    (void)err; /* one that could not be deleted is in the way still */
}

/* One that failed is tried again by the timer, and by the other servers. */
static void on_swept(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct sl_sessions *ss = arg;
    struct sl_store_stats st;
    (void)err;
    sl_store_stats(ss->store, &st);
    if (!code && st.more_to_sweep && !ss->closing)
        sl_store_sweep(ss->store, on_swept, ss);
    else
        ss->sweeping = false;
}

/* Of a shared store what has expired is anybody's to remove. */
static void sweep(struct sl_sessions *ss)
{
    sl_registry_trim(ss);
    if (ss->sweeping)
        return;
    ss->sweeping = true;
    sl_store_sweep(ss->store, on_swept, ss);
}

void sl_sessions_expire(struct sl_sessions *ss)
{
    struct sl_session *s;
    if (ss->shared) {
        sweep(ss);
        return;
    }
    int64_t now = sl_sessions_now(ss);
    ss->expiring = true;
    while (ss->n_expiring < EXPIRING_MAX && (s = sl_session_ends_due(&ss->ends, now)))
        expire(ss, s, now);
    ss->expiring = false;
}

struct sl_session *sl_registry_expire(struct sl_sessions *ss, const char *tenant, const char *id)
{
    struct sl_session *s = sl_registry_lookup(ss, tenant, id);
    if (!s || !is_gone(ss, s))
        return NULL;
    if (!s->leased && ss->shared)
        sl_sessions_delete(ss, s, nothing_done, NULL);
    else if (!s->leased)
        expire(ss, s, sl_sessions_now(ss));
    return sl_registry_lookup(ss, tenant, id);
}

/* --- making and forgetting ----------------------------------------------------------------------
 */

static enum sl_code check_room(struct sl_sessions *ss, struct sl_error *err)
{
    size_t most = ss->opt.max_sessions;
    if (ss->shared) { /* the limit is the store's; here are those that were heard of */
        if (ss->table.n > ss->opt.n_places + (size_t)2 * SL_HEARD_OF)
            sl_registry_trim(ss);
        return SL_OK;
    }
    if (ss->table.n - ss->n_dead >= most && !ss->opening)
        sl_sessions_expire(ss);
    if (ss->table.n - ss->n_dead >= most)
        return sl_fail(err, SL_E_SESSIONS_FULL, "there are %zu sessions, which is the limit (%s)",
                       ss->table.n - ss->n_dead,
                       ss->store || most < ss->opt.n_places ? "--max-sessions"
                                                            : "--sessions-in-memory");
    return SL_OK;
}

static enum sl_code count(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes,
                          struct sl_error *err)
{
    enum sl_code c = SL_OK;
    if (!is_counted(ss, s))
        return SL_OK;
    if (ss->opening) { /* what is there stays */
        sl_tenant_put_session(s->owner, bytes);
    } else {
        sl_sessions_expire(ss); /* what has expired makes room */
        c = sl_tenant_add_session(s->owner, bytes, err);
    }
    if (!c)
        s->bytes = bytes;
    return c;
}

static enum sl_code enter(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes,
                          struct sl_error *err)
{
    if (!sl_session_ends_reserve(&ss->ends, ss->table.n + 1) ||
        !sl_session_list_insert(&s->owner->sessions, s))
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a list of %zu sessions", ss->table.n);
    enum sl_code c = count(ss, s, bytes, err);
    if (!c && !sl_session_table_insert(&ss->table, s)) {
        uncount(ss, s);
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a table of %zu sessions", ss->table.n);
    }
    if (c)
        sl_session_list_remove(&s->owner->sessions, s);
    return c;
}

/* With its names; not in the registry yet. */
static enum sl_code new_session(struct sl_sessions *ss, const char *tenant, const char *id,
                                const unsigned char incarnation[16], struct sl_session **ret,
                                struct sl_error *err)
{
    char made[SL_SESSION_ID_MAX + 1];
    struct sl_tenant *owner = sl_tenants_get(ss->opt.tenants, tenant);
    enum sl_code c = id ? SL_OK : sl_random_id(made, sizeof made, "s-", err);
    if (c)
        return c;
    if (!id)
        id = made;
    size_t n = strlen(id) + 1;
    assert(sl_session_id_valid(id, n - 1));
    struct sl_session *s = owner ? sl_calloc(1, sizeof *s + n) : NULL;
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a session");
    s->id = memcpy((char *)(s + 1), id, n);
    s->owner = owner;
    s->tenant = owner->name;
    if (incarnation)
        memcpy(s->incarnation, incarnation, sizeof s->incarnation);
    else
        c = sl_random_bits(s->incarnation, err);
    if (c)
        sl_session_free(ss, s);
    else
        *ret = s;
    return c;
}

enum sl_code sl_registry_insert(struct sl_sessions *ss, const char *tenant, const char *id,
                                const unsigned char incarnation[16], uint64_t bytes,
                                struct sl_session **ret, struct sl_error *err)
{
    struct sl_session *s = NULL;
    if (id && sl_registry_lookup(ss, tenant, id))
        return sl_fail_param(err, SL_E_SESSION_EXISTS, "id",
                             "there is a session '%s' already; delete it first, or take another id",
                             id);
    enum sl_code c = check_room(ss, err);
    if (!c)
        c = new_session(ss, tenant, id, incarnation, &s, err);
    if (c)
        return c;
    assert(s);
    s->created_at = s->used_at = sl_sessions_now(ss);
    c = enter(ss, s, bytes, err);
    if (c)
        sl_session_free(ss, s);
    else
        *ret = s;
    return c;
}

static void tell_gone(struct sl_session *s)
{
    struct sl_error gone;
    (void)sl_fail_param(&gone, SL_E_SESSION_NOT_FOUND, "session", "session '%s' was deleted",
                        s->id);
    while (s->free_waiters)
        sl_session_tell_free(s, &gone);
}

/* It is in its tenant's list no more. */
static void forget(struct sl_sessions *ss, struct sl_session *s)
{
    sl_session_table_remove(&ss->table, s);
    sl_session_ends_remove(&ss->ends, s);
    ss->n_dead -= s->expired;
    uncount(ss, s);
    sl_session_forget_rest(ss, s); /* before who is told makes use of its place */
    sl_session_forget_points(ss, s);
    if (s->has_place)
        sl_residency_leave(ss, s);
    if (s->free_waiters)
        tell_gone(s);
    for (struct sl_telling *t = ss->tellings; t; t = t->outer)
        t->s = t->s == s ? NULL : t->s;
    sl_session_free(ss, s);
}

void sl_registry_remove(struct sl_sessions *ss, struct sl_session *s)
{
    sl_session_list_remove(&s->owner->sessions, s);
    forget(ss, s);
}

/* --- finding ------------------------------------------------------------------------------------
 */

struct sl_session *sl_registry_lookup(const struct sl_sessions *ss, const char *tenant,
                                      const char *id)
{
    const struct sl_tenant *owner = sl_tenants_find(ss->opt.tenants, tenant);
    return owner ? sl_session_table_find(&ss->table, owner, id) : NULL;
}

enum sl_code sl_sessions_find(struct sl_sessions *ss, const char *tenant, const char *id,
                              struct sl_session **ret, struct sl_error *err)
{
    struct sl_session *s = sl_registry_lookup(ss, tenant, id);
    if (!s || is_gone(ss, s))
        return sl_fail_param(err, SL_E_SESSION_NOT_FOUND, "session",
                             "there is no session '%.128s' (it was never made, was deleted, or "
                             "its time to live is over)",
                             id);
    if (s->making)
        return sl_fail_param(err, SL_E_SESSION_BUSY, "session",
                             "session '%s' is being made; try again when that is done", id);
    *ret = s;
    return SL_OK;
}

void sl_sessions_list(struct sl_sessions *ss, const char *tenant, const struct sl_list_query *q,
                      const struct sl_sessions_lister *to)
{
    if (ss->shared) {
        sl_sessions_list_shared(ss, tenant, q, to);
        return;
    }
    const struct sl_tenant *owner = sl_tenants_find(ss->opt.tenants, tenant);
    size_t n_prefix = strlen(q->prefix), given = 0;
    bool after = strcmp(q->after, q->prefix) >= 0;
    struct sl_list_place at = {0};
    const struct sl_session *s;
    if (owner)
        at = sl_session_list_seek(&owner->sessions, after ? q->after : q->prefix);
    while (owner && (s = sl_session_list_next(&owner->sessions, &at))) {
        if (strncmp(s->id, q->prefix, n_prefix) != 0)
            break; /* from the prefix on they come together */
        if (strcmp(s->id, q->after) <= 0 || s->making || is_gone(ss, s))
            continue;
        if (given == q->limit) {
            to->done(true, NULL, to->arg);
            return;
        }
        to->item(s, given++, to->arg);
    }
    to->done(false, NULL, to->arg);
}

size_t sl_sessions_count(const struct sl_sessions *ss)
{
    struct sl_store_stats st;
    if (!ss->shared)
        return ss->table.n - ss->n_dead;
    sl_store_stats(ss->store, &st);
    return (size_t)st.sessions;
}

uint64_t sl_sessions_expired(const struct sl_sessions *ss)
{
    struct sl_store_stats st;
    if (!ss->shared)
        return ss->n_expired;
    sl_store_stats(ss->store, &st);
    return st.swept;
}

/* --- open and close ----------------------------------------------------------------------------
 */

enum sl_code sl_registry_open(struct sl_sessions *ss, struct sl_error *err)
{
    unsigned char bits[16];
    enum sl_code c = sl_random_bits(bits, err);
    if (!c)
        memcpy(&ss->table.seed, bits, sizeof ss->table.seed);
    return c;
}

/* Each list goes with its first session: it takes no order to lose them all. */
void sl_registry_close(struct sl_sessions *ss)
{
    struct sl_session *s;
    for (size_t i = 0; i < ss->table.n_buckets; i++) {
        while ((s = sl_session_table_at(&ss->table, i))) {
            sl_session_list_done(&s->owner->sessions);
            forget(ss, s);
        }
    }
    sl_session_table_done(&ss->table);
    sl_session_ends_done(&ss->ends);
}
