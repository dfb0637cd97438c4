/* store.c: the calls of store.h, passed to the kind of store that the spec names. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "server/store/kind.h"

static const struct sl_store_kind *const kinds[] = {&sl_store_dir, &sl_store_redis};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

bool sl_store_is_damage(enum sl_code c)
{
    return c == SL_E_STORE_CORRUPT || c == SL_E_SNAPSHOT_CORRUPT ||
           c == SL_E_SNAPSHOT_VERSION_UNSUPPORTED || c == SL_E_SNAPSHOT_TOO_LARGE;
}

void sl_store_count(struct sl_store_stats *s, const char *tenant, const char *id, enum sl_code c,
                    const struct sl_error *err)
{
    if (sl_store_is_damage(c)) {
        s->damaged++;
        sl_log(SL_LOG_ERROR, "a session is damaged in the store", SL_LS("tenant", tenant),
               SL_LS("session", id), SL_LS("why", err->message));
        return;
    }
    switch (c) {
    case SL_E_STORE_UNAVAILABLE:
    case SL_E_STORE_FULL:
    case SL_E_COMMIT_UNKNOWN:
    case SL_E_IO:
    case SL_E_NO_MEMORY:
        s->failures++;
        break;
    default:
        break;
    }
}

enum sl_code sl_store_open(struct sl_store **ret, const struct sl_store_options *opt,
                           void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                           struct sl_error *err)
{
    char usage[128] = "";
    for (size_t i = 0; i < N_KINDS; i++) {
        size_t n = strlen(kinds[i]->scheme);
        if (strncmp(opt->spec, kinds[i]->scheme, n) == 0)
            return kinds[i]->open(ret, opt->spec + n, opt, head, arg, err);
        size_t used = strlen(usage);
        snprintf(usage + used, sizeof usage - used, "%s%s", i ? ", " : "", kinds[i]->usage);
    }
    if (strncmp(opt->spec, "rediss:", strlen("rediss:")) == 0)
        return sl_fail(
            err, SL_E_USAGE,
            "a store 'rediss:' is not known: Slate speaks no TLS to Redis; put a tunnel on "
            "the way, and redis:// to its near end");
    /* Not the rest of it, where there may be a password. */
    bool secret = strchr(opt->spec, '@') != NULL;
    return sl_fail(err, SL_E_USAGE, "a store '%.*s' is not known; allowed: %s, memory",
                   secret ? (int)strcspn(opt->spec, ":") : (int)strlen(opt->spec), opt->spec,
                   usage);
}

void sl_store_close(struct sl_store *st, void (*closed)(void *arg), void *arg)
{
    st->kind->close(st, closed, arg);
}

void sl_store_put_head(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                       void *arg)
{
    st->kind->put_head(st, h, cb, arg);
}

void sl_store_append_turn(struct sl_store *st, const struct sl_store_key *k,
                          const struct sl_store_turn *t, sl_store_done *cb, void *arg)
{
    st->kind->append_turn(st, k, t, cb, arg);
}

void sl_store_put_snapshot(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                           const struct sl_store_head *head, unsigned char *data, size_t n,
                           sl_store_done *cb, void *arg)
{
    st->kind->put_snapshot(st, k, version, head, data, n, cb, arg);
}

void sl_store_put_answer(struct sl_store *st, const struct sl_store_key *k,
                         const struct sl_store_answer *a, sl_store_done *cb, void *arg)
{
    assert(st->kind->put_answer);
    st->kind->put_answer(st, k, a, cb, arg);
}

void sl_store_load(struct sl_store *st, const struct sl_store_key *k, sl_store_decode *decode,
                   sl_store_loaded *cb, void *arg)
{
    st->kind->load(st, k, SL_STORE_LAST, decode, cb, arg);
}

void sl_store_load_at(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                      sl_store_decode *decode, sl_store_loaded *cb, void *arg)
{
    st->kind->load(st, k, version, decode, cb, arg);
}

void sl_store_points(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                     void *arg)
{
    st->kind->points(st, k, cb, arg);
}

/* Versions as ranges: "3 to 7, 9". */
enum sl_code sl_store_no_point(struct sl_error *err, const char *id, uint64_t version,
                               const struct sl_store_point *v, size_t n)
{
    char text[224] = "";
    size_t used = 0;
    for (size_t i = 0, end; i < n && used < sizeof text - 64; i = end) {
        for (end = i + 1; end < n && v[end].version == v[end - 1].version + 1;)
            end++;
        int k =
            snprintf(text + used, sizeof text - used, "%s%" PRIu64, used ? ", " : "", v[i].version);
        used += k > 0 ? (size_t)k : 0;
        if (end - i > 1)
            k = snprintf(text + used, sizeof text - used, " to %" PRIu64, v[end - 1].version);
        used += end - i > 1 && k > 0 ? (size_t)k : 0;
    }
    return sl_fail_param(err, SL_E_CHECKPOINT_NOT_FOUND, "version",
                         "session '%s' is not kept at version %" PRIu64
                         "; kept are (--keep-turns): %s",
                         id, version, n ? text : "none");
}

void sl_store_put_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                       const char *name, uint64_t version, sl_store_done *cb, void *arg)
{
    st->kind->put_name(st, k, now, name, version, cb, arg);
}

void sl_store_drop_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                        const char *name, sl_store_done *cb, void *arg)
{
    st->kind->drop_name(st, k, now, name, cb, arg);
}

void sl_store_kept_now(const struct sl_store *st, const struct sl_store_key *k,
                       uint64_t *ret_kept_bytes, uint64_t *ret_n_names)
{
    if (st->kind->kept_now)
        st->kind->kept_now(st, k, ret_kept_bytes, ret_n_names);
}

enum sl_code sl_store_no_name(struct sl_error *err, const char *id, const char *name)
{
    return sl_fail_param(err, SL_E_CHECKPOINT_NOT_FOUND, "checkpoint",
                         "session '%s' has no checkpoint '%s' (GET …/checkpoints lists them)", id,
                         name);
}

enum sl_code sl_store_name_taken(struct sl_error *err, const char *id, const char *name,
                                 uint64_t version)
{
    return sl_fail_param(err, SL_E_CHECKPOINT_EXISTS, "name",
                         "session '%s' has a checkpoint '%s' already, of version %" PRIu64
                         "; delete it first, or take another name",
                         id, name, version);
}

enum sl_code sl_store_names_full(struct sl_error *err, const char *id, size_t most)
{
    return sl_fail_param(err, SL_E_CHECKPOINTS_FULL, "name",
                         "session '%s' has %zu named checkpoints, which is the limit "
                         "(--max-checkpoints); delete one first",
                         id, most);
}

void sl_store_remove(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                     void *arg)
{
    st->kind->remove(st, k, cb, arg);
}

void sl_store_stats(const struct sl_store *st, struct sl_store_stats *ret)
{
    st->kind->stats(st, ret);
}

/* --- a shared store's ----------------------------------------------------------------------------
 */

bool sl_store_is_shared(const struct sl_store *st)
{
    return st && st->kind->look;
}

struct sl_stamp sl_store_stamp(struct sl_store *st)
{
    return sl_store_is_shared(st) ? st->kind->stamp(st) : (struct sl_stamp){.s = ""};
}

uint64_t sl_store_lease_ms(const struct sl_store *st)
{
    return st->kind->lease_ms(st);
}

int64_t sl_store_now(const struct sl_store *st)
{
    return st->kind->now(st);
}

void sl_store_look(struct sl_store *st, const char *tenant, const char *id, sl_store_seen *cb,
                   void *arg)
{
    st->kind->look(st, tenant, id, cb, arg);
}

void sl_store_take(struct sl_store *st, const char *tenant, const char *id,
                   const char *idempotency_key, enum sl_store_taker taker, sl_store_seen *cb,
                   void *arg)
{
    st->kind->take(st, tenant, id, idempotency_key, taker, cb, arg);
}

void sl_store_renew(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg)
{
    assert(k->fence);
    st->kind->renew(st, k, cb, arg);
}

void sl_store_release(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                      void *arg)
{
    assert(k->fence);
    st->kind->release(st, k, cb, arg);
}

void sl_store_ask(struct sl_store *st, const char *tenant, const char *id, enum sl_store_ask what,
                  uint64_t fence, sl_store_told *cb, void *arg)
{
    st->kind->ask(st, tenant, id, what, fence, cb, arg);
}

void sl_store_asked(struct sl_store *st, sl_store_heard *cb, void *arg)
{
    st->kind->asked(st, cb, arg);
}

void sl_store_list(struct sl_store *st, const char *tenant, const struct sl_list_query *q,
                   sl_store_listed *cb, void *arg)
{
    st->kind->list(st, tenant, q, cb, arg);
}

void sl_store_sweep(struct sl_store *st, sl_store_done *cb, void *arg)
{
    st->kind->sweep(st, cb, arg);
}
