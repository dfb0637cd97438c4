/* store.h: where sessions live when they are not in memory, as the registry sees it.
 *
 * Memory is a cache, the store is the truth, a lease spans one turn. Every call is asynchronous on
 * the loop: it returns at once and calls back later, exactly once, never from inside. Every write
 * is conditional on incarnation, version and fence: a writer that has lost its lease, or speaks of
 * a session that was deleted and made anew, is refused (VERSION_MISMATCH) and nothing is written.
 *
 * A session in the store is its last snapshot and the turns since; replaying them is exact. */
#ifndef SLATE_SERVER_STORE_H
#define SLATE_SERVER_STORE_H

#include "slate/engine.h"

/* Which session, and which of its lives. */
struct sl_store_key {
    const char *tenant;
    const char *id;
    unsigned char incarnation[16];
};

/* What a writer believes; a write happens only where it is so. */
struct sl_store_guard {
    uint64_t version; /* before the write */
    uint64_t fence;   /* of the lease; grows with every lease of the session */
};

/* One committed turn: what a replay needs. */
struct sl_store_turn {
    uint64_t version; /* after it */
    const uint32_t *tokens;
    size_t n_tokens;
    const void *continuation; /* JSON */
    size_t n_continuation;
};

struct sl_store_record { /* what get gives */
    struct sl_store_key key;
    uint64_t version;
    const void *snapshot; /* safetensors; NULL: the initial state */
    size_t n_snapshot;
    const struct sl_store_turn *turns;
    size_t n_turns;
};

typedef void sl_store_done(void *arg, enum sl_code code, const struct sl_error *err);
typedef void sl_store_got(void *arg, const struct sl_store_record *r, const struct sl_error *err);
typedef void sl_store_leased(void *arg, const struct sl_store_guard *g, const struct sl_error *err);
typedef void sl_store_item(void *arg, const struct sl_store_key *k, uint64_t version);

/* An open store: its own struct begins with this table. */
struct sl_store {
    const char *name; /* "dir" */
    void (*get)(struct sl_store *st, const struct sl_store_key *k, sl_store_got *cb, void *arg);
    void (*put_snapshot)(struct sl_store *st, const struct sl_store_key *k,
                         const struct sl_store_guard *g, const void *data, size_t n,
                         sl_store_done *cb, void *arg);
    void (*append_turn)(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_guard *g, const struct sl_store_turn *t,
                        sl_store_done *cb, void *arg);
    void (*remove)(struct sl_store *st, const struct sl_store_key *k,
                   const struct sl_store_guard *g, sl_store_done *cb, void *arg);
    void (*list)(struct sl_store *st, const char *tenant, const char *after, const char *prefix,
                 size_t limit, sl_store_item *item, sl_store_done *cb, void *arg);
    void (*lease_acquire)(struct sl_store *st, const struct sl_store_key *k, sl_store_leased *cb,
                          void *arg);
    void (*lease_renew)(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_guard *g, sl_store_done *cb, void *arg);
    void (*lease_release)(struct sl_store *st, const struct sl_store_key *k,
                          const struct sl_store_guard *g, sl_store_done *cb, void *arg);
    void (*close)(struct sl_store *st, void (*closed)(void *arg), void *arg);
};

#endif
