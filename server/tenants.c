/* tenants.c: see tenants.h. */
#include "server/tenants.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { BUCKETS = 256, MINUTE_S = 60, MINUTE_MS = 60000 };

struct sl_tenants {
    struct sl_quotas quotas; /* of who has no others */
    struct sl_tenant *buckets[BUCKETS];
};

struct sl_tenants *sl_tenants_open(const struct sl_quotas *quotas)
{
    struct sl_tenants *ts = sl_calloc(1, sizeof *ts);
    if (ts)
        ts->quotas = *quotas;
    return ts;
}

void sl_tenants_close(struct sl_tenants *ts)
{
    for (size_t i = 0; ts && i < BUCKETS; i++) {
        for (struct sl_tenant *t = ts->buckets[i], *next; t; t = next) {
            next = t->next;
            sl_session_list_done(&t->sessions);
            sl_free(t);
        }
    }
    sl_free(ts);
}

static size_t bucket_of(const char *name)
{
    uint32_t h = 2166136261u; /* FNV-1a: names come from the key file, not from clients */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h % BUCKETS;
}

struct sl_tenant *sl_tenants_find(const struct sl_tenants *ts, const char *name)
{
    struct sl_tenant *t = ts->buckets[bucket_of(name)];
    while (t && strcmp(t->name, name) != 0)
        t = t->next;
    return t;
}

struct sl_tenant *sl_tenants_get(struct sl_tenants *ts, const char *name)
{
    struct sl_tenant *t = sl_tenants_find(ts, name);
    if (t)
        return t;
    size_t n = strlen(name) + 1;
    t = sl_calloc(1, sizeof *t + n);
    if (!t)
        return NULL;
    memcpy(t->name, name, n);
    if (n > 1)
        t->quotas = ts->quotas;
    t->tokens_left = (double)t->quotas.most[SL_QUOTA_TOKENS];
    struct sl_tenant **b = &ts->buckets[bucket_of(name)];
    t->next = *b;
    *b = t;
    return t;
}

/* --- what they may use --------------------------------------------------------------------------
 */

/* What flowed in since; what does not fit is lost. */
static void fill(struct sl_tenant *t, uint64_t now_ms)
{
    double most = (double)t->quotas.most[SL_QUOTA_TOKENS];
    uint64_t ms = now_ms > t->filled_ms ? now_ms - t->filled_ms : 0;
    double left = t->tokens_left + most * (double)ms / MINUTE_MS;
    t->tokens_left = left < most ? left : most;
    t->filled_ms = now_ms;
}

static void set_quotas(struct sl_tenant *t, const struct sl_quotas *own,
                       const struct sl_quotas *others, uint64_t now_ms)
{
    bool was_free = !t->quotas.most[SL_QUOTA_TOKENS];
    fill(t, now_ms);
    for (size_t i = 0; i < SL_QUOTA_KINDS; i++)
        t->quotas.most[i] = own && own->most[i] != SL_QUOTA_UNSAID ? own->most[i] : others->most[i];
    if (was_free)
        t->tokens_left = (double)t->quotas.most[SL_QUOTA_TOKENS];
    fill(t, now_ms); /* no more than fits now */
}

static enum sl_code set_key(struct sl_tenants *ts, const char *name, const struct sl_quotas *own,
                            uint64_t now_ms, struct sl_error *err)
{
    struct sl_tenant *t = sl_tenants_get(ts, name);
    if (!t)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the tenants");
    t->has_key = true;
    set_quotas(t, own, &ts->quotas, now_ms);
    return SL_OK;
}

enum sl_code sl_tenants_set_keys(struct sl_tenants *ts, const struct sl_keys *k, uint64_t now_ms,
                                 struct sl_error *err)
{
    struct sl_tenant *t;
    for (size_t i = 0; i < BUCKETS; i++)
        for (t = ts->buckets[i]; t; t = t->next)
            t->has_key = false;
    enum sl_code c = k ? SL_OK : set_key(ts, SL_TENANT_DEFAULT, NULL, now_ms, err);
    for (size_t i = 0; k && !c && i < sl_keys_count(k); i++) {
        const char *name = sl_keys_tenant(k, i);
        c = set_key(ts, name, sl_keys_quotas(k, name), now_ms, err);
    }
    /* Those that have lost theirs. Each is set once: what is left of its tokens would not survive a
     * quota that it has for a moment. */
    for (size_t i = 0; i < BUCKETS; i++)
        for (t = ts->buckets[i]; t; t = t->next)
            if (!t->has_key && t->name[0])
                set_quotas(t, NULL, &ts->quotas, now_ms);
    return c;
}

/* --- what they do use ---------------------------------------------------------------------------
 */

/* "sessions: 10 of 10", as a part of a sentence. */
static const char *const named[SL_QUOTA_KINDS] = {
    [SL_QUOTA_SESSIONS] = "sessions",
    [SL_QUOTA_BYTES] = "bytes of sessions",
    [SL_QUOTA_RUNNING] = "requests running at once",
    [SL_QUOTA_TOKENS] = "tokens per minute",
};

enum sl_code sl_tenant_refused(struct sl_tenant *t, enum sl_quota q, uint64_t used, uint64_t most,
                               struct sl_error *err)
{
    t->n_refused[q]++;
    (void)sl_fail_param(err, SL_E_QUOTA_EXCEEDED, sl_quota_names[q],
                        "the tenant's quota of %s is used up: %" PRIu64 " of %" PRIu64, named[q],
                        used, most);
    if (err)
        err->retry_after_s = q == SL_QUOTA_RUNNING ? 1 : SL_RETRY_NEVER;
    return SL_E_QUOTA_EXCEEDED;
}

static enum sl_code check_bytes(struct sl_tenant *t, uint64_t bytes, struct sl_error *err)
{
    uint64_t most = t->quotas.most[SL_QUOTA_BYTES];
    if (!most || (t->bytes <= most && bytes <= most - t->bytes))
        return SL_OK;
    t->n_refused[SL_QUOTA_BYTES]++;
    (void)sl_fail_param(err, SL_E_QUOTA_EXCEEDED, sl_quota_names[SL_QUOTA_BYTES],
                        "the tenant's quota of %s is used up: %" PRIu64 " of %" PRIu64
                        ", and this needs %" PRIu64,
                        named[SL_QUOTA_BYTES], t->bytes, most, bytes);
    if (err)
        err->retry_after_s = SL_RETRY_NEVER;
    return SL_E_QUOTA_EXCEEDED;
}

enum sl_code sl_tenant_add_session(struct sl_tenant *t, uint64_t bytes, struct sl_error *err)
{
    uint64_t most = t->quotas.most[SL_QUOTA_SESSIONS];
    if (most && t->n_sessions >= most)
        return sl_tenant_refused(t, SL_QUOTA_SESSIONS, t->n_sessions, most, err);
    enum sl_code c = check_bytes(t, bytes, err);
    if (!c)
        sl_tenant_put_session(t, bytes);
    return c;
}

void sl_tenant_put_session(struct sl_tenant *t, uint64_t bytes)
{
    t->n_sessions++;
    t->bytes += bytes;
}

void sl_tenant_drop_session(struct sl_tenant *t, uint64_t bytes)
{
    assert(t->n_sessions > 0 && t->bytes >= bytes);
    t->n_sessions--;
    t->bytes -= bytes;
}

enum sl_code sl_tenant_add_bytes(struct sl_tenant *t, uint64_t bytes, struct sl_error *err)
{
    enum sl_code c = bytes ? check_bytes(t, bytes, err) : SL_OK;
    if (!c)
        t->bytes += bytes;
    return c;
}

void sl_tenant_put_bytes(struct sl_tenant *t, uint64_t bytes)
{
    t->bytes += bytes;
}

void sl_tenant_drop_bytes(struct sl_tenant *t, uint64_t bytes)
{
    assert(t->bytes >= bytes);
    t->bytes -= bytes;
}

enum sl_code sl_tenant_begin_turn(struct sl_tenant *t, struct sl_error *err)
{
    if (!t)
        return SL_OK;
    uint64_t most = t->quotas.most[SL_QUOTA_RUNNING];
    if (most && t->n_running >= most)
        return sl_tenant_refused(t, SL_QUOTA_RUNNING, t->n_running, most, err);
    t->n_running++;
    return SL_OK;
}

void sl_tenant_end_turn(struct sl_tenant *t)
{
    if (!t)
        return;
    assert(t->n_running > 0);
    t->n_running--;
}

uint64_t sl_tenant_tokens_most(const struct sl_tenant *t)
{
    uint64_t most = t ? t->quotas.most[SL_QUOTA_TOKENS] : 0;
    return most ? most : UINT64_MAX;
}

enum sl_code sl_tenant_take_tokens(struct sl_tenant *t, uint64_t n, uint64_t now_ms,
                                   struct sl_error *err)
{
    if (!t)
        return SL_OK;
    uint64_t most = t->quotas.most[SL_QUOTA_TOKENS];
    fill(t, now_ms);
    if (!most || t->tokens_left >= (double)n) {
        t->tokens_left -= most ? (double)n : 0;
        t->n_tokens += n;
        return SL_OK;
    }
    t->n_refused[SL_QUOTA_TOKENS]++;
    if (n > most)
        (void)sl_fail_param(err, SL_E_QUOTA_EXCEEDED, sl_quota_names[SL_QUOTA_TOKENS],
                            "this request may use %" PRIu64
                            " tokens (its prompt and max_tokens, or what a snapshot has pending); "
                            "the tenant's quota of %s is %" PRIu64,
                            n, named[SL_QUOTA_TOKENS], most);
    else
        (void)sl_fail_param(err, SL_E_QUOTA_EXCEEDED, sl_quota_names[SL_QUOTA_TOKENS],
                            "the tenant's quota of %s is used up: %.0f of %" PRIu64
                            " are left, and this request may use %" PRIu64
                            " (its prompt and max_tokens, or what a snapshot has pending)",
                            named[SL_QUOTA_TOKENS], floor(t->tokens_left), most, n);
    if (err)
        err->retry_after_s =
            n > most ? SL_RETRY_NEVER
                     : (int)ceil(((double)n - t->tokens_left) * MINUTE_S / (double)most);
    return SL_E_QUOTA_EXCEEDED;
}

void sl_tenant_return_tokens(struct sl_tenant *t, uint64_t n, uint64_t now_ms)
{
    if (!t)
        return;
    assert(t->n_tokens >= n);
    fill(t, now_ms);
    t->n_tokens -= n;
    if (t->quotas.most[SL_QUOTA_TOKENS])
        t->tokens_left += (double)n;
    fill(t, now_ms); /* no more than fits */
}

/* --- figures ------------------------------------------------------------------------------------
 */

static void write_head(FILE *f, const char *name, const char *kind, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void write_values(const struct sl_tenants *ts, FILE *f, const char *name,
                         uint64_t (*value)(const struct sl_tenant *t))
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct sl_tenant *t = ts->buckets[i]; t; t = t->next)
            if (t->has_key)
                fprintf(f, "%s{tenant=\"%s\"} %" PRIu64 "\n", name, t->name, value(t));
}

/* One line for each kind; `from`: the first that is shown. */
static void write_kinds(const struct sl_tenants *ts, FILE *f, const char *name, bool refused)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct sl_tenant *t = ts->buckets[i]; t; t = t->next)
            for (size_t q = 0; t->has_key && q < SL_QUOTA_KINDS; q++)
                if (refused || t->quotas.most[q])
                    fprintf(f, "%s{tenant=\"%s\",quota=\"%s\"} %" PRIu64 "\n", name, t->name,
                            sl_quota_names[q], refused ? t->n_refused[q] : t->quotas.most[q]);
}

static uint64_t n_sessions(const struct sl_tenant *t)
{
    return t->n_sessions;
}

static uint64_t n_bytes(const struct sl_tenant *t)
{
    return t->bytes;
}

static uint64_t n_running(const struct sl_tenant *t)
{
    return t->n_running;
}

static uint64_t n_tokens(const struct sl_tenant *t)
{
    return t->n_tokens;
}

void sl_tenants_write_metrics(const struct sl_tenants *ts, bool shared, FILE *f)
{
    static const struct {
        const char *name, *kind, *help;
        uint64_t (*value)(const struct sl_tenant *t);
        bool of_store;
    } rows[] = {
        {"slate_tenant_sessions", "gauge", "Sessions of the tenant", n_sessions, true},
        {"slate_tenant_bytes", "gauge", "Bytes of its sessions, as its quota counts them", n_bytes,
         true},
        {"slate_tenant_requests_running", "gauge", "Its turns, waiting ones among them", n_running,
         false},
        {"slate_tenant_tokens", "gauge",
         "Tokens that its turns have used, or may still use, since the start", n_tokens, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (shared && rows[i].of_store)
            continue;
        write_head(f, rows[i].name, rows[i].kind, rows[i].help);
        write_values(ts, f, rows[i].name, rows[i].value);
    }
    write_head(f, "slate_tenant_quota", "gauge", "What the tenant may use");
    write_kinds(ts, f, "slate_tenant_quota", false);
    write_head(f, "slate_tenant_refused_total", "counter", "Requests refused for a quota");
    write_kinds(ts, f, "slate_tenant_refused_total", true);
}
