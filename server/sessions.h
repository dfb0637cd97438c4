/* sessions.h: the registry: which sessions there are, who has a lease, what a commit leaves.
 *
 * Memory is a cache, the store is the truth. The registry knows every session's head; the state of
 * one is in memory while it has a *place* (residency.h), else in the store, from where the next use
 * brings it back.
 *
 * A state lies in a slot of the slab that is never written again once it was committed (session.h):
 * a turn works on a copy, and its commit swaps slots. So a fork is one more reference, and whoever
 * reads a busy session reads its last commit.
 *
 * The lease: a turn holds the session from admission to commit; whatever else changes a session
 * (PATCH, DELETE, restore, pause) takes it too. A second one is SESSION_BUSY at once.
 *
 * With a store that several servers share (redis://) what is here of a session is what was last
 * heard of it. So whoever names one asks the store first (sl_sessions_look()), and a lease is the
 * store's too (sl_sessions_take(), session_lease.c): it is renewed while a turn runs, and with it
 * comes the version that the session is at. A state in memory of another one is dropped then, also
 * of one that has that number in another history (store.h's stamps).
 *
 * Acknowledged is durable: with a store and --durability turn, a commit, a new session and a change
 * of a head call back when the store has synced them, and memory changes only then. With `drain`
 * only a pause, an eviction and the drain write. Without a store nothing is written.
 *
 * Ids are scoped by tenant: every call takes one. Loop's thread only; times are Unix seconds. */
#ifndef SLATE_SERVER_SESSIONS_H
#define SLATE_SERVER_SESSIONS_H

#include <string.h>

#include "proto/continuation.h"
#include "proto/request.h"
#include "proto/response.h"
#include "server/store/store.h"
#include "server/tenants.h"
#include "server/transcript.h"
#include "slate/session.h"
#include "slate/snapshot.h"

struct sl_run;
struct sl_waiter;

/* An answer kept for a retry under the same Idempotency-Key. */
struct sl_answer {
    char *key;
    unsigned char request_hash[16];
    int64_t at;
    uint64_t version; /* of the session, after its turn */
    char *body;       /* the whole response, not streamed */
    size_t n_body;
};

struct sl_session_point; /* session_points.c's */
struct sl_memory_seen;   /* api/memory.c's */

struct sl_session {
    struct sl_tenant *owner;
    const char *tenant; /* its name */
    const char *id;     /* lies behind the session */
    unsigned char incarnation[16];
    uint64_t version;      /* committed changes; 0: nothing was read yet */
    struct sl_stamp stamp; /* of that version, as a shared store has it */
    uint64_t tokens_seen;  /* of the conversation, the pending ones among them */

    /* At rest: what the last commit left. Valid while in_memory. */
    bool in_memory;
    void *state;                  /* a reference to a slot; NULL: the initial state */
    struct sl_memory_seen *seen;  /* what was measured of it; goes with it. One block, or NULL */
    uint32_t *pending;            /* what the state has not consumed: fed first by the next turn */
    size_t n_pending;             /* 0: the session is empty; else usually 1 (continuation.h) */
    size_t n_reread;              /* the first so many of them: of turns that had read them */
    struct sl_penalty_ring *ring; /* NULL: empty */
    char *paused;                 /* JSON of the continuation while a turn is paused, `pending`
                                     among it; or NULL */
    size_t n_paused;
    struct sl_transcript transcript; /* with keep_transcript */
    struct sl_answer *answers;       /* oldest first; NULL: none */
    size_t n_answers;
    uint64_t answers_saved; /* `drain`: the store has them up to this version */
    /* Without a store: what the commits before left, oldest first. Room for keep_turns, or NULL. */
    struct sl_session_point *points;
    size_t n_points;
    struct sl_session_point *named; /* and those with a name, by version */

    int64_t created_at, used_at;
    int64_t ttl_s;  /* since its last use; 0: never expires */
    char *metadata; /* JSON text of an object; NULL: {} */
    size_t n_metadata;

    /* registry.c's */
    struct sl_session *next_same; /* in its bucket */
    uint32_t hash, end_place;
    uint64_t bytes;         /* that count for its tenant; 0: it does not count */
    uint64_t answers_bytes; /* of them those of answers that are kept */
    uint64_t kept_counted;  /* and those of what is kept of earlier versions */
    uint64_t kept_bytes;    /* of earlier states that are kept, as was last heard */
    uint64_t n_names;       /* checkpoints that have one */
    bool expired;           /* for good */

    bool leased;
    struct sl_run *run; /* the turn that has the lease; NULL: something shorter has it */

    /* Of a shared store; session_lease.c's. */
    uint64_t fence;            /* of the store's lease; 0: not held */
    int64_t renewed_ms;        /* of the loop: when it was last known to begin anew */
    bool lease_lost, renewing; /* lost: nothing can be committed under it any more */
    bool held_elsewhere;       /* when it was last looked at */
    bool stale;                /* what is in memory is not what is stored */
    bool vanished;             /* the store does not have it any more */
    char *held_key;            /* held elsewhere: the turn's Idempotency-Key, or NULL */
    struct sl_session *next_held, *prev_held;

    /* residency.c's and residency_save.c's */
    bool has_place, readying, saving, evicting;
    bool making;        /* what makes it has the lease: it has no memory yet that could be read */
    bool going;         /* a delete has the lease */
    bool forgotten;     /* gone as soon as nobody reads it (ephemeral ones only) */
    bool in_store;      /* the store knows it */
    bool is_bare;       /* made for a turn, which it has not had yet: its maker may take it back */
    bool unwritten;     /* and that turn writes it: before, the store must not know it */
    bool head_dirty;    /* and not yet what is new of its head */
    bool is_unwritable; /* no snapshot can hold what it was at that version: */
    uint64_t unwritable_version;
    uint64_t saved_version; /* of the snapshot in the store; 0: there is none */
    uint64_t replay_tokens; /* of the turns since */
    uint64_t reread_tokens; /* what its load left to be read; 0 once a snapshot was written */
    struct sl_waiter *waiters, *save_waiters, *free_waiters;
    unsigned n_pins;                  /* it is read (encoded, told about): its memory must stay */
    unsigned n_forks;                 /* that will be made of it: it must not be deleted */
    struct sl_op *quiet_op;           /* has the lease and waits for these to end */
    struct sl_session *newer, *older; /* by last use, among those with a place */
    struct sl_session *next_in_line;  /* waiting for a place */
};

/* Of so many pending tokens those that no turn has read: any leaves the last one. */
static inline size_t sl_unread(size_t n_pending)
{
    return n_pending > 1 ? n_pending - 1 : 0;
}

/* The last tokens generated, with what a paused turn has released, without what it holds. */
void sl_paused_ring(const struct sl_paused_turn *p, struct sl_penalty_ring *ret);

/* dst has room for the longest. */
static inline void sl_session_copy_id(char dst[SL_SESSION_ID_MAX + 1], const struct sl_session *s)
{
    memcpy(dst, s->id, strlen(s->id) + 1);
}

struct sl_sessions;

enum { SL_KEEP_TURNS_MAX = 1024, SL_NAMES_MAX = 256 };

enum sl_durability { SL_DURABILITY_TURN, SL_DURABILITY_DRAIN };

struct sl_sessions_options {
    const struct sl_model *model;
    const struct sl_tokenizer *tokenizer;
    struct sl_slab *slab;
    uv_loop_t *loop;
    struct sl_tenants *tenants;
    size_t n_places;     /* sessions in memory */
    size_t max_sessions; /* of all tenants, in memory or not; without a store: ≤ n_places */
    const char *store;   /* "dir:PATH", "redis://…"; NULL: none, sessions end with the process */
    uint64_t store_timeout_ms, lease_ms; /* redis; 0: default */
    enum sl_durability durability;
    uint64_t keep_turns;   /* versions before the last to which a session can be rewound. With a
                              store its turns must be written one by one (or it is shared) */
    size_t max_names;      /* named checkpoints of a session; 0: SL_STORE_NAMES */
    bool keep_transcript;  /* all token ids of a session */
    uint64_t replay_limit; /* tokens: more than these since the snapshot are worth a new one */
    int64_t (*now)(void);
};

/* Slots of the slab that the registry may hold at once, for so many places; without a store a
 * session has keep_turns besides its own. */
size_t sl_sessions_slots(size_t n_places, bool has_store, uint64_t keep_turns);

/* Opens the store too (blocking). Errors: those of sl_store_open(), NO_MEMORY, SESSIONS_FULL (the
 * store has more than max_sessions). */
SL_NODISCARD enum sl_code sl_sessions_open(struct sl_sessions **ret,
                                           const struct sl_sessions_options *opt,
                                           struct sl_error *err);

/* Do other servers have these sessions, too? */
bool sl_sessions_are_shared(const struct sl_sessions *ss);

/* What a shared store has to tell a turn. */
struct sl_run_events {
    void (*lost)(struct sl_run *run); /* its lease */
    void (*asked)(struct sl_run *run, enum sl_store_ask what);
};
void sl_sessions_on_run(struct sl_sessions *ss, const struct sl_run_events *events);

/* Does anything still change, load or save a session? (A turn, or one that waits for the lease,
 * does not count.) */
bool sl_sessions_busy(const struct sl_sessions *ss);

/* Not while busy, and no turn may run. `closed` is called when the store has finished; then all is
 * gone. */
void sl_sessions_close(struct sl_sessions *ss, void (*closed)(void *arg), void *arg);

/* Errors: SESSION_NOT_FOUND (also when its time to live is over: it is gone then, and nothing
 * brings it back). */
SL_NODISCARD enum sl_code sl_sessions_find(struct sl_sessions *ss, const char *tenant,
                                           const char *id, struct sl_session **ret,
                                           struct sl_error *err);

/* What changes sessions calls back when it is done and durable: exactly once, maybe from inside.
 * err NULL: it is done; s is the session (NULL after a delete). err: nothing was changed. */
typedef void sl_session_done(void *arg, struct sl_session *s, const struct sl_error *err);

/* The session as the store has it now (where nobody shares it: as sl_sessions_find()). Calls back,
 * maybe from inside; s is valid in the callback only. Errors: SESSION_NOT_FOUND, NO_MEMORY, the
 * store's. */
void sl_sessions_look(struct sl_sessions *ss, const char *tenant, const char *id,
                      sl_session_done *cb, void *arg);

/* A new, empty session; id NULL: one is made from 128 random bits. metadata may be s NULL.
 * for_turn, here and below: it is made for a turn that its caller starts in the callback, and is to
 * be there with that or not at all. So the commit writes it, and until then other servers, and this
 * one after a crash, do not know it; where the turn fails, its caller deletes it.
 * Errors: SESSION_EXISTS, SESSIONS_FULL, QUOTA_EXCEEDED, NO_MEMORY, INTERNAL (no random bits), the
 * store's. */
void sl_sessions_create(struct sl_sessions *ss, const char *tenant, const char *id, int64_t ttl_s,
                        struct sl_text metadata, bool for_turn, sl_session_done *cb, void *arg);

/* Is there anything of it that may be read or copied? SESSION_BUSY until the prompt with which it
 * is made is in it. */
SL_NODISCARD enum sl_code sl_session_check_made(const struct sl_session *s, struct sl_error *err);

/* A new session at the last commit of another one (which may be busy), or as that was at another
 * moment (at->given): then the versions of then, too, and CHECKPOINT_NOT_FOUND. Time to live
 * and metadata are taken over unless has_ttl / metadata.s say otherwise; version, pending tokens
 * and ring are the same, the incarnation is a new one. id NULL: one is made that begins as the
 * other's, up to "--". What is pending is taken of the quota of tokens again, as an upload's is.
 * for_turn: of one at its last commit; another one is written at once. strict: when it is copied it
 * is to be the session that is known now, and at this version unless another moment's is copied;
 * SESSION_BUSY where it has changed. Errors as create, and those of a load. */
void sl_sessions_fork(struct sl_sessions *ss, struct sl_session *from, const struct sl_moment *at,
                      const char *id, bool has_ttl, int64_t ttl_s, struct sl_text metadata,
                      bool strict, bool for_turn, sl_session_done *cb, void *arg);

/* metadata.s NULL: stays. Errors: SESSION_BUSY, QUOTA_EXCEEDED, NO_MEMORY, the store's. */
void sl_sessions_patch(struct sl_sessions *ss, struct sl_session *s, bool has_ttl, int64_t ttl_s,
                       struct sl_text metadata, sl_session_done *cb, void *arg);

/* Errors: SESSION_BUSY, the store's. */
void sl_sessions_delete(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                        void *arg);
/* The same by who has its lease (sl_run_spec.keeps_lease), which ends with it, also where it stays.
 */
void sl_sessions_discard(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                         void *arg);

enum sl_restore_kind {
    SL_RESTORE_SNAPSHOT,
    SL_RESTORE_INITIAL_STATE, /* a state-tuned file */
    SL_RESTORE_STATE          /* a state as it lies in a slot, that was checked: initial.h */
};

/* A restore under way; the caller's, until it is called back. */
struct sl_op;
struct sl_restoring {
    struct sl_op *op;             /* NULL: it is over */
    struct sl_snapshot_info info; /* before the callback: how the snapshot differs from what is
                                     loaded, without its texts */
};

/* A session from a snapshot's bytes, which are checked whole before anything changes. `over`: a
 * session that is replaced (version + 1, same incarnation, time to live and metadata; SESSION_BUSY)
 * or NULL: `id` is made new (version as the snapshot says, at least 1; metadata.s NULL: as the
 * snapshot says). The bytes are not copied: they must stay until the callback. ret may be NULL.
 * Errors: SNAPSHOT_*, SESSION_EXISTS, SESSIONS_FULL, QUOTA_EXCEEDED, NO_MEMORY, the store's. */
void sl_sessions_restore(struct sl_sessions *ss, const char *tenant, struct sl_session *over,
                         const char *id, int64_t ttl_s, struct sl_text metadata,
                         enum sl_restore_kind kind, const void *data, size_t n, bool for_turn,
                         struct sl_restoring *ret, sl_session_done *cb, void *arg);

/* Nobody wants it any more. One that waits for a place ends now (calls back, with an error), and
 * nothing was changed; any other goes on. */
void sl_sessions_give_up(struct sl_restoring *r);

/* Back to what the session was at an earlier version: version + 1, with state, pending tokens, ring
 * and paused turn of then, to the bit. What was kept for retries stays: a key that was answered is
 * never run a second time. *ret (may be NULL) is, before the callback, which version that was, and
 * how many tokens were read again on the way from an earlier snapshot. Errors:
 * CHECKPOINT_NOT_FOUND (names what is kept), SESSION_BUSY, SERVER_FULL, DRAINING, QUOTA_EXCEEDED
 * (what is pending, as a fork's), those of a load, the store's. */
struct sl_past {
    uint64_t version, n_replayed;
};
void sl_sessions_rewind(struct sl_sessions *ss, struct sl_session *s, const struct sl_moment *to,
                        struct sl_past *ret, sl_session_done *cb, void *arg);

/* The kept transcript is read again, all of it, by the model that is loaded: version + 1, with what
 * is pending, the ring and a paused turn as they were. For a session whose state is of another
 * model, or whose snapshot is damaged, or for whoever wants it. *ret as above, but for its version.
 * Errors: NO_TRANSCRIPT (says why there is none), else as above. */
void sl_sessions_rebuild(struct sl_sessions *ss, struct sl_session *s, struct sl_past *ret,
                         sl_session_done *cb, void *arg);

/* A version (not `given`: the one that it is at) gets a name, and is kept until the name or the
 * session is deleted, however many versions come after it; nothing to be done where it has that
 * name already. *ret: the version, before the callback. Errors: CHECKPOINT_NOT_FOUND (names what is
 * kept), CHECKPOINT_EXISTS (the name stands for another version), CHECKPOINTS_FULL, SESSION_BUSY,
 * QUOTA_EXCEEDED, NO_MEMORY, the store's. */
void sl_sessions_put_name(struct sl_sessions *ss, struct sl_session *s, const struct sl_moment *as,
                          struct sl_store_point *ret, sl_session_done *cb, void *arg);
/* Errors: CHECKPOINT_NOT_FOUND, SESSION_BUSY, NO_MEMORY, the store's. */
void sl_sessions_drop_name(struct sl_sessions *ss, struct sl_session *s, const char *name,
                           sl_session_done *cb, void *arg);

/* What a session keeps besides its state: earlier versions, at least a state for each named
 * checkpoint, its transcript. In bytes, as its tenant's quota counts them. */
uint64_t sl_session_kept(const struct sl_sessions *ss, const struct sl_session *s);
/* Of all sessions; of a shared store's as of the last sweep. */
uint64_t sl_sessions_kept(const struct sl_sessions *ss);

/* The versions to which it can be rewound, oldest first, the last one being what it is at. */
void sl_sessions_points(struct sl_sessions *ss, struct sl_session *s, sl_store_pointed *cb,
                        void *arg);

/* How tokens are read again: `base` (NULL: the model's initial state) is not written, must stay and
 * is 64-byte aligned; the state is what they lead to, the last one not consumed. Calls back once,
 * maybe from inside; state NULL: an error. It is valid in the callback. */
typedef void sl_replayed(void *arg, const void *state, const struct sl_error *err);
typedef void sl_replay(void *with, const void *base, const uint32_t *tokens, size_t n,
                       sl_replayed *done, void *arg);
void sl_sessions_on_replay(struct sl_sessions *ss, sl_replay *replay, void *with);

/* The tenant of sessions that a client keeps itself (initial_state, return_state): not listed, not
 * found by anybody, never in the store. No key can have it. */
#define SL_EPHEMERAL_TENANT ""

/* The end of such a session, which nobody has the lease of: at once, or when what reads it (an
 * encoding) is through. Needs no memory, so it cannot fail. */
void sl_sessions_forget(struct sl_sessions *ss, struct sl_session *s);

/* The lease. lease: SESSION_BUSY. give_back: the session is as it was, but used now. */
SL_NODISCARD enum sl_code sl_session_lease(struct sl_session *s, struct sl_run *run,
                                           struct sl_error *err);
void sl_sessions_give_back(struct sl_sessions *ss, struct sl_session *s);

/* The store's lease for who has this one, where the store is shared; else there is nothing to do.
 * Calls back, maybe from inside; after an error the lease is still to be given back. STRICT: only
 * at the version that is known; else what is known is brought up to date, within the incarnation.
 * REMOVE: STRICT, and also where the store has no room. key: the turn's Idempotency-Key, or NULL.
 * Errors: SESSION_BUSY (also: changed meanwhile), IDEMPOTENCY_IN_FLIGHT, SESSION_NOT_FOUND,
 * NO_MEMORY, the store's. */
enum sl_take { SL_TAKE_ANY, SL_TAKE_STRICT, SL_TAKE_REMOVE };
void sl_sessions_take(struct sl_sessions *ss, struct sl_session *s, const char *key,
                      enum sl_take how, sl_session_done *cb, void *arg);

/* Asks the turn that another server runs on the session (s->held_elsewhere) to end, and waits until
 * it has: with what it has given so far, or paused. Calls back once; s is the session as it is
 * then, valid in the callback only. ran: there was a turn (the session may be held for something
 * shorter). Errors: SESSION_BUSY (that server does not listen), SESSION_NOT_FOUND, NO_MEMORY, the
 * store's. */
typedef void sl_session_ended(void *arg, struct sl_session *s, bool ran,
                              const struct sl_error *err);
void sl_sessions_ask(struct sl_sessions *ss, const struct sl_session *s, enum sl_store_ask what,
                     sl_session_ended *cb, void *arg);

/* Calls back (maybe from inside) when nobody has the lease; SESSION_NOT_FOUND when it is deleted
 * before that. Nothing is held for the caller: it acts inside the callback. */
void sl_sessions_when_free(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                           void *arg);

/* What a turn leaves. */
struct sl_commit {
    void *state; /* the caller's reference, the registry's after success: another slot, or one more
                    reference to the session's own where the turn has read nothing (NULL: neither
                    has one) */
    uint64_t tokens_seen;
    const uint32_t *pending; /* ≥ 1 */
    size_t n_pending;
    const struct sl_penalty_ring *ring;
    const struct sl_paused_turn *paused; /* NULL: the turn is finished */
    size_t n_drop;          /* the last so many pending tokens, that a pause has held (store.h) */
    const uint32_t *tokens; /* new ones of the conversation: prompt and generated */
    size_t n_tokens;
    size_t n_generated;             /* the last so many of them */
    const struct sl_answer *answer; /* NULL: none; copied, with the store's time in place of `at`,
                                       and its version */
};

/* version + 1. The lease ends with success; after a failure (QUOTA_EXCEEDED among them, where an
 * answer is to be kept) it stays, nothing was changed and the state is still the caller's.
 * Everything but the state is copied before it returns. */
void sl_sessions_commit(struct sl_sessions *ss, struct sl_session *s, const struct sl_commit *c,
                        sl_session_done *cb, void *arg);

/* The page of a tenant's sessions whose ids are above q->after and begin with q->prefix, in byte
 * order: calls item for each, at most q->limit, then done (maybe from inside), which says whether
 * there are later ones. Errors: the store's. */
struct sl_sessions_lister {
    void (*item)(const struct sl_session *s, size_t i, void *arg);
    void (*done)(bool more, const struct sl_error *err, void *arg);
    void *arg;
};
void sl_sessions_list(struct sl_sessions *ss, const char *tenant, const struct sl_list_query *q,
                      const struct sl_sessions_lister *to);

/* Removes what has expired, in memory and in the store, some at a time; a timer calls it. */
void sl_sessions_expire(struct sl_sessions *ss);
uint64_t sl_sessions_expired(const struct sl_sessions *ss); /* so far */

size_t sl_sessions_count(const struct sl_sessions *ss);
struct sl_slab *sl_sessions_slab(const struct sl_sessions *ss);
struct sl_store *sl_sessions_store(const struct sl_sessions *ss); /* NULL: none */

/* If-Match (NULL: none was sent) against what the session is. Errors: VERSION_MISMATCH. */
SL_NODISCARD enum sl_code sl_session_match(const struct sl_session *s, const char *if_match,
                                           struct sl_error *err);

/* The answer kept under that key, no older than a day; NULL: none. The session is in memory. */
const struct sl_answer *sl_session_answer(const struct sl_sessions *ss, const struct sl_session *s,
                                          const char *key);

/* 128 random bits as an id with a prefix ("gen-…"): 32 hex digits. */
SL_NODISCARD enum sl_code sl_random_id(char *dst, size_t dst_size, const char *prefix,
                                       struct sl_error *err);

#endif
