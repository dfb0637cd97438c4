/* sessions.h: the registry: which sessions there are, where their states lie, who has a lease.
 *
 * A session's state lies in a slot of the slab that is never written again once it was committed
 * (session.h): a turn works on a copy, and its commit swaps slots. So a fork is one more reference,
 * and whoever reads a busy session reads its last commit.
 *
 * The lease: a turn holds the session from admission to commit; whatever else changes a session
 * (PATCH, DELETE) needs it to be free. A second turn is SESSION_BUSY at once.
 *
 * Room: the slab has a slot for every session that may exist and two for every turn that may run
 * (its live state and its shadow), so a turn never waits for a slot.
 *
 *     rested states, each session's or shared by forks ≤ max_sessions
 *     live + shadow                                    ≤ 2 · max_running
 *
 * Ids are scoped by tenant: every call takes one. Loop's thread only; times are Unix seconds. */
#ifndef SLATE_SERVER_SESSIONS_H
#define SLATE_SERVER_SESSIONS_H

#include "proto/request.h"
#include "proto/response.h"
#include "slate/session.h"

struct sl_run;

struct sl_session {
    char *tenant;
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
    uint64_t version; /* committed changes; 0: nothing was read yet */

    /* At rest: what the last commit left. */
    void *state;                  /* a reference to a slot; NULL: the initial state */
    uint64_t tokens_seen;         /* consumed by the state */
    uint32_t *pending;            /* what the state has not consumed: fed first by the next turn */
    size_t n_pending;             /* 0: the session is empty; else usually 1 (see engine.h) */
    struct sl_penalty_ring *ring; /* NULL: empty */

    int64_t created_at, used_at;
    int64_t ttl_s;  /* since its last use; 0: never expires */
    char *metadata; /* JSON text of an object; NULL: {} */
    size_t n_metadata;

    struct sl_run *lease; /* the turn that holds it, or NULL */
};

struct sl_sessions;

/* max_sessions: of all tenants together. `now` gives the time (a test may have its own). */
SL_NODISCARD enum sl_code sl_sessions_open(struct sl_sessions **ret, struct sl_slab *slab,
                                           size_t max_sessions, int64_t (*now)(void),
                                           struct sl_error *err);
void sl_sessions_close(struct sl_sessions *ss); /* NULL is fine; no session may be leased */

/* Errors: SESSION_NOT_FOUND (also when its time to live is over: then it is gone). */
SL_NODISCARD enum sl_code sl_sessions_find(struct sl_sessions *ss, const char *tenant,
                                           const char *id, struct sl_session **ret,
                                           struct sl_error *err);

/* A new, empty session; id NULL: one is made from 128 random bits. metadata may be s NULL.
 * Errors: SESSION_EXISTS, SESSIONS_FULL, NO_MEMORY, INTERNAL (no random bits). */
SL_NODISCARD enum sl_code sl_sessions_create(struct sl_sessions *ss, const char *tenant,
                                             const char *id, int64_t ttl_s, struct sl_text metadata,
                                             struct sl_session **ret, struct sl_error *err);

/* A new session at the last commit of another one (which may be busy). Time to live and metadata
 * are taken over unless has_ttl / metadata.s say otherwise; version, pending token and ring are the
 * same, the incarnation is a new one. Errors as create. */
SL_NODISCARD enum sl_code sl_sessions_fork(struct sl_sessions *ss, const struct sl_session *from,
                                           const char *id, bool has_ttl, int64_t ttl_s,
                                           struct sl_text metadata, struct sl_session **ret,
                                           struct sl_error *err);

/* metadata.s NULL: stays. Errors: SESSION_BUSY, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_sessions_patch(struct sl_sessions *ss, struct sl_session *s,
                                            bool has_ttl, int64_t ttl_s, struct sl_text metadata,
                                            struct sl_error *err);

/* Errors: SESSION_BUSY. After it *s is gone. */
SL_NODISCARD enum sl_code sl_sessions_delete(struct sl_sessions *ss, struct sl_session *s,
                                             struct sl_error *err);

/* The lease. take: SESSION_BUSY. give_back: the session is as it was, but used now. */
SL_NODISCARD enum sl_code sl_session_lease(struct sl_session *s, struct sl_run *run,
                                           struct sl_error *err);
void sl_sessions_give_back(struct sl_sessions *ss, struct sl_session *s);

/* What a turn leaves: the registry takes over the reference `state`; version + 1; the lease ends.
 * Pending tokens and ring are copied; without memory for them: NO_MEMORY, nothing is changed and
 * the lease stays. */
SL_NODISCARD enum sl_code sl_sessions_commit(struct sl_sessions *ss, struct sl_session *s,
                                             void *state, uint64_t tokens_seen,
                                             const uint32_t *pending, size_t n_pending,
                                             const struct sl_penalty_ring *ring,
                                             struct sl_error *err);

/* The page of a tenant's sessions whose ids are above q->after and begin with q->prefix, in byte
 * order: calls item for each, at most q->limit; returns whether there are later ones. */
bool sl_sessions_list(struct sl_sessions *ss, const char *tenant, const struct sl_list_query *q,
                      void (*item)(const struct sl_session *s, size_t i, void *arg), void *arg);

/* Removes what has expired; a timer calls it. */
void sl_sessions_expire(struct sl_sessions *ss);

size_t sl_sessions_count(const struct sl_sessions *ss);
struct sl_slab *sl_sessions_slab(const struct sl_sessions *ss);

/* If-Match (NULL: none was sent) against what the session is. Errors: VERSION_MISMATCH. */
SL_NODISCARD enum sl_code sl_session_match(const struct sl_session *s, const char *if_match,
                                           struct sl_error *err);

/* 128 random bits as an id with a prefix ("gen-…"): 32 hex digits. */
SL_NODISCARD enum sl_code sl_random_id(char *dst, size_t dst_size, const char *prefix,
                                       struct sl_error *err);

#endif
