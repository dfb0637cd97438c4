/* store.h: where sessions live, whether or not they are in memory, as the registry sees it.
 *
 * Memory is a cache, the store is the truth. Every write is conditional on incarnation and version:
 * a writer that speaks of a session that was deleted and made anew, or of another version than the
 * store has, is refused (VERSION_MISMATCH) and nothing is written. `dir:` belongs to one server, by
 * a lock. A store that several servers share (sl_store_is_shared()) adds leases to that: who
 * changes a session takes its lease first, and gets a fence with it, a number that grows with every
 * taking; a write with an older fence than the last one given is refused (LEASE_LOST), so that a
 * server that slept through the end of its lease changes nothing any more.
 *
 * A session in the store is its head, its last snapshot, and the turns since. The calls return at
 * once and call back later, exactly once, on the loop's thread, never from inside (but with
 * NO_MEMORY where there is none to remember the call by, and a thousand wait to be told so
 * already); what they are given is copied. After a write has called back with SL_OK it is durable:
 * no crash and no power cut loses it. After a failure the store is as it was before (memory and
 * disk agree), or it refuses everything but reads with the cause until it has repaired itself. */
#ifndef SLATE_SERVER_STORE_H
#define SLATE_SERVER_STORE_H

#include <string.h>
#include <uv.h>

#include "proto/request.h"
#include "slate/snapshot.h"

enum { SL_TENANT_MAX = 64 /* bytes of a tenant's name */ };

/* Which commit has made a version, in a shared store: no two commits of any servers have the same.
 * A store that came back older than it was (a crash, a backup) gives numbers of versions a second
 * time: by this the one that a server has in memory is told from the one that the store has. */
enum { SL_STAMP_MAX = 39 };
struct sl_stamp {
    char s[SL_STAMP_MAX + 1]; /* zeros behind it; "": none: of version 0, and of `dir:` */
};
static inline bool sl_stamps_are_same(const struct sl_stamp *a, const struct sl_stamp *b)
{
    return memcmp(a->s, b->s, sizeof a->s) == 0;
}

/* Which session, and which of its lives. */
struct sl_store_key {
    const char *tenant;
    const char *id;
    unsigned char incarnation[16];
    uint64_t fence; /* of the lease that the caller holds; 0: none. Not looked at by `dir:` */
    /* Of the version that a snapshot without a head is of; NULL: whichever the store has. Not
     * looked at by other calls, nor by `dir:`. */
    const struct sl_stamp *stamp;
    /* What the tenant may have; 0: any number. A shared store's alone: of `dir:` its caller knows
     * every session. */
    uint64_t max_sessions, max_bytes;
};

/* What is known of a session without its state. */
struct sl_store_head {
    struct sl_store_key key;
    uint64_t version;      /* of the last commit; 0: nothing was read yet */
    struct sl_stamp stamp; /* of that commit; of one that is written: "": the store chooses one */
    uint64_t tokens_seen;
    int64_t created_at, used_at; /* Unix time, s */
    int64_t ttl_s;               /* 0: never expires */
    struct sl_text metadata;     /* JSON text of an object; s NULL: {} */
    uint64_t snapshot_version;   /* 0: there is none */
    uint64_t replay_tokens;      /* of the turns since */
    uint64_t kept_bytes;         /* of earlier snapshots that are kept */
    uint64_t n_names;            /* checkpoints that have one */
    uint64_t answers_bytes; /* of the answers kept (record.h); `dir:`, and only when it tells */
};

enum { SL_STORE_ANSWERS_MAX = 4 };

/* An answer kept for a retry under the same Idempotency-Key. */
struct sl_store_answer {
    const char *idempotency_key;
    unsigned char request_hash[16]; /* XXH3-128 of the body */
    int64_t at;                     /* Unix time, s */
    uint64_t version;               /* its turn's */
    struct sl_text body;            /* the whole response, not streamed */
};

/* One committed turn: what a replay needs. */
struct sl_store_turn {
    uint64_t version;      /* after it; before it: version - 1 */
    struct sl_stamp stamp; /* for a shared store, and not loaded; "": the store chooses one */
    uint64_t tokens_seen;
    int64_t used_at;
    size_t n_drop; /* the last so many tokens of the conversation before (pending ones) go first:
                      what a paused turn held, and this one chose again or had nothing to do with;
                      at most SL_HELD_MAX (proto/continuation.h) */
    const uint32_t *tokens; /* new ones of the conversation: the prompt's, then generated ones */
    size_t n_tokens;
    size_t n_generated;          /* the last so many of `tokens` */
    struct sl_text continuation; /* JSON (proto/continuation.h): pending and ring after the turn */
    const struct sl_store_answer *answer; /* NULL: none */
};

struct sl_store_record { /* what load gives; valid during the call */
    const struct sl_store_head *head;
    uint64_t snapshot_version; /* of the snapshot below; 0: there is none */
    uint64_t version; /* that snapshot and turns lead to: the head's, or what was asked for */
    const unsigned char *snapshot; /* NULL: the initial state */
    size_t n_snapshot;
    /* For a decoder, which sees the bytes before they are verified: those it asks this for are
     * there, and then a piece of them lies in a cache. */
    struct sl_snapshot_source source;
    const struct sl_store_turn *turns; /* since the snapshot, in order */
    size_t n_turns;
    const struct sl_store_answer *answers; /* the last SL_STORE_ANSWERS_MAX, oldest first */
    size_t n_answers;
};

/* Errors: IO (names the call, the file and the system's reason), STORE_FULL (no space, quota),
 * VERSION_MISMATCH, SESSION_EXISTS, SESSION_NOT_FOUND, CHECKPOINT_* (below), SNAPSHOT_CORRUPT (a
 * snapshot's file is not what was written; a new snapshot heals it), STORE_CORRUPT (what there was
 * of this session is damaged; it can only be removed), TOO_LARGE (a record of more than 256 MiB),
 * INVALID_VALUE (a snapshot of version 0), NO_MEMORY; of a shared store besides: STORE_UNAVAILABLE
 * (it cannot be reached, or takes no writes; nothing was changed), COMMIT_UNKNOWN (it could not be
 * reached any more after a write had been sent, or others have changed the session until it could,
 * or it took no writes by then: what became of it is not known), SESSION_BUSY (another one holds
 * the lease), LEASE_LOST, SESSIONS_FULL, QUOTA_EXCEEDED. err is valid during the call. */
typedef void sl_store_done(void *arg, enum sl_code code, const struct sl_error *err);
/* Makes of a record what its asker wants, in libuv's pool, where it was read: its error is the
 * load's. The snapshot is verified after it; what it made counts when the load succeeds, and only
 * then. Nothing of the asker's may change meanwhile. */
typedef enum sl_code sl_store_decode(void *arg, const struct sl_store_record *r,
                                     struct sl_error *err);
/* r NULL after an error. */
typedef void sl_store_loaded(void *arg, const struct sl_store_record *r,
                             const struct sl_error *err);

struct sl_store;

struct sl_store_options {
    const char *spec; /* "dir:PATH", "redis://HOST:PORT" */
    uv_loop_t *loop;
    bool durable;        /* redis: what is acknowledged must be on a disk (its settings say so) */
    size_t max_sessions; /* redis: of all tenants and servers; 0: any number */
    size_t state_bytes;  /* redis: what a session counts with besides metadata and answers */
    size_t token_bytes;  /* redis: and for each token seen, where a transcript is kept */
    uint64_t timeout_ms; /* redis: for one call; 0: default */
    uint64_t lease_ms;   /* redis; 0: default */
    const struct sl_redis_io *redis_io; /* NULL: the real one (redis.h) */
    uint64_t keep_turns;        /* versions of a session before its last that stay within reach */
    size_t max_names;           /* that a session's versions may have; 0: SL_STORE_NAMES */
    uint64_t log_rewrite_bytes; /* the log is rewritten when its dead part is larger; 0: default */
    size_t log_slice_bytes;     /* so much at once, between commits; 0: default */
};

/* Opens, locks, recovers. `head` is called for every session there is, before open returns
 * (blocking: at start), also for those that are damaged, so that they can be removed. Errors: USAGE
 * (a spec that is not understood, a folder that holds other things), IO, STORE_FULL, STORE_LOCKED
 * (another server has it), STORE_CORRUPT (names file and offset), FILE_UNSUPPORTED (another
 * version's), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_store_open(struct sl_store **ret, const struct sl_store_options *opt,
                                        void (*head)(void *arg, const struct sl_store_head *h),
                                        void *arg, struct sl_error *err);

/* When everything that was asked for has called back, `closed` is called; until then callbacks may
 * ask for more. */
void sl_store_close(struct sl_store *st, void (*closed)(void *arg), void *arg);

/* A new session (version 0), or head fields that changed (ttl_s, metadata, used_at). SESSION_EXISTS
 * where another incarnation has the name. A shared store takes version 0 without a fence for a new
 * one always: of one that is there it was asked already, and nothing is changed. */
void sl_store_put_head(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                       void *arg);
void sl_store_append_turn(struct sl_store *st, const struct sl_store_key *k,
                          const struct sl_store_turn *t, sl_store_done *cb, void *arg);
/* The state at `version`, above the last snapshot's and at most the store's (turns may have been
 * committed while it was encoded: they stay; a shared store remembers the stamps of the last eight
 * versions, and takes nothing of others); turns up to it are dropped. With `head` also writes
 * that, and `version` is then any from the store's on, or the session is new (a restore, a fork,
 * turns that were not written one by one). Takes over `data` (sl_free). */
void sl_store_put_snapshot(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                           const struct sl_store_head *head, unsigned char *data, size_t n,
                           sl_store_done *cb, void *arg);
/* An answer of a turn that was not written by itself and is in the snapshot; before a later one,
 * and before turns: what comes too late changes nothing. Not of a shared store, which has every
 * turn. */
void sl_store_put_answer(struct sl_store *st, const struct sl_store_key *k,
                         const struct sl_store_answer *a, sl_store_done *cb, void *arg);
/* decode NULL: none. Both get arg. */
void sl_store_load(struct sl_store *st, const struct sl_store_key *k, sl_store_decode *decode,
                   sl_store_loaded *cb, void *arg);

/* --- earlier versions ----------------------------------------------------------------------------
 *
 * With keep_turns the last so many versions of a session stay within reach, besides the one it is
 * at: an earlier snapshot, and the turns since. What leads to them is kept as it was written, so
 * nothing has to be written for it but what a session writes anyway.
 *
 * A version that is within reach can be given a name; then it stays there until the name is taken
 * from it, whatever keep_turns says. One version may have several. */

#define SL_STORE_LAST UINT64_MAX

/* The session as it was at `version`; the record's answers are those of now. Errors also:
 * CHECKPOINT_NOT_FOUND (names the versions that are kept). */
void sl_store_load_at(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                      sl_store_decode *decode, sl_store_loaded *cb, void *arg);

struct sl_store_point {
    uint64_t version, tokens_seen;
    int64_t at; /* Unix time, s: when it came to be */
};
struct sl_store_name {
    uint64_t version;
    char name[SL_SESSION_ID_MAX + 1];
};
/* What is kept of a session; valid during the call. */
struct sl_store_kept {
    const struct sl_store_point *v; /* oldest first; the last one is what the session is at now */
    size_t n;
    const struct sl_store_name *names; /* by version */
    size_t n_names;
};
/* k NULL: an error. */
typedef void sl_store_pointed(void *arg, const struct sl_store_kept *k, const struct sl_error *err);
void sl_store_points(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                     void *arg);
/* Says that `version` is not among them, and which are. */
enum sl_code sl_store_no_point(struct sl_error *err, const char *id, uint64_t version,
                               const struct sl_store_point *v, size_t n);

enum { SL_STORE_NAMES = 16 };
/* Names a version; nothing to be done where it has that name already. `now`: the version that the
 * session is at. Errors also: CHECKPOINT_NOT_FOUND (the version is not within reach),
 * CHECKPOINT_EXISTS (the name stands for another version), CHECKPOINTS_FULL. */
void sl_store_put_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                       const char *name, uint64_t version, sl_store_done *cb, void *arg);
/* And what is kept for it alone goes. Errors also: CHECKPOINT_NOT_FOUND. */
void sl_store_drop_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                        const char *name, sl_store_done *cb, void *arg);
/* As `dir:` knows a session at this moment; of one that it does not know, and of another store's:
 * nothing is set. */
void sl_store_kept_now(const struct sl_store *st, const struct sl_store_key *k,
                       uint64_t *ret_kept_bytes, uint64_t *ret_n_names);
/* The texts of these errors. */
enum sl_code sl_store_no_name(struct sl_error *err, const char *id, const char *name);
enum sl_code sl_store_name_taken(struct sl_error *err, const char *id, const char *name,
                                 uint64_t version);
enum sl_code sl_store_names_full(struct sl_error *err, const char *id, size_t most);

void sl_store_remove(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                     void *arg);

/* --- what a shared store has besides -------------------------------------------------------------
 *
 * The calls below are a shared store's only, and those above know leases only there. */

bool sl_store_is_shared(const struct sl_store *st);
/* For the commit that its caller makes next; of no store (NULL) and of `dir:` there is none. */
struct sl_stamp sl_store_stamp(struct sl_store *st);
uint64_t sl_store_lease_ms(const struct sl_store *st);
/* The store's clock, Unix time, s: times to live run on it. As of the last answer; 0: none yet. */
int64_t sl_store_now(const struct sl_store *st);

/* A session as the store has it at this moment. */
struct sl_store_view {
    struct sl_store_head head; /* key.fence: of the lease just taken, else 0 */
    bool held;                 /* somebody has its lease */
    const char *held_key;      /* the Idempotency-Key of the turn that has it, "": none */
    int64_t asked_ms;          /* take: uv_now() of its loop when the store was asked for the lease,
                                * which therefore ends lease_ms after this at the earliest */
};
/* v NULL: an error; SESSION_NOT_FOUND also when its time to live is over. SESSION_BUSY comes with
 * both. Texts are valid during the call. */
typedef void sl_store_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err);
void sl_store_look(struct sl_store *st, const char *tenant, const char *id, sl_store_seen *cb,
                   void *arg);
/* What a lease is taken for. REMOVE: also where there is no room for anything else. */
enum sl_store_taker { SL_TAKER_TURN, SL_TAKER_CHANGE, SL_TAKER_REMOVE };
/* Takes the lease. What this server itself still held (its release was lost) is taken anew.
 * idempotency_key NULL: none. */
void sl_store_take(struct sl_store *st, const char *tenant, const char *id,
                   const char *idempotency_key, enum sl_store_taker taker, sl_store_seen *cb,
                   void *arg);
/* For another lease_ms, from now on. LEASE_LOST, SESSION_NOT_FOUND. */
void sl_store_renew(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                    void *arg);
/* The session was used now, and is free. A turn that was appended has released its lease already.
 * Nothing to be done where it was lost: SL_OK. */
void sl_store_release(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                      void *arg);

/* What one server asks of the turn that another one has the lease for. */
enum sl_store_ask { SL_ASK_CANCEL, SL_ASK_PAUSE, SL_ASKS };
/* Does such a turn run? fence: of its lease. */
typedef void sl_store_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err);
/* fence 0: whatever turn has the lease now; else that one's alone. Its server hears of it with the
 * next sl_store_asked(), or not at all (it is gone, or the answer to that was lost): ask until the
 * turn does not run any more. */
void sl_store_ask(struct sl_store *st, const char *tenant, const char *id, enum sl_store_ask what,
                  uint64_t fence, sl_store_told *cb, void *arg);
struct sl_store_asked {
    char tenant[SL_TENANT_MAX + 1], id[SL_SESSION_ID_MAX + 1];
    uint64_t fence;
    enum sl_store_ask what;
};
/* What others have asked of this server's turns since the last call. v is valid during the call. */
typedef void sl_store_heard(void *arg, const struct sl_store_asked *v, size_t n,
                            const struct sl_error *err);
void sl_store_asked(struct sl_store *st, sl_store_heard *cb, void *arg);

/* The tenant's sessions above q->after that begin with q->prefix, in byte order, q->limit at most;
 * v NULL: an error. */
typedef void sl_store_listed(void *arg, const struct sl_store_view *v, size_t n, bool more,
                             const struct sl_error *err);
void sl_store_list(struct sl_store *st, const char *tenant, const struct sl_list_query *q,
                   sl_store_listed *cb, void *arg);

/* Removes some of those whose time to live is over, and counts the others (sl_store_stats()). */
void sl_store_sweep(struct sl_store *st, sl_store_done *cb, void *arg);

struct sl_store_stats {
    uint64_t sessions, log_bytes, live_log_bytes, snapshot_bytes;
    uint64_t commits, syncs, rewrites, failures;
    uint64_t damaged;             /* reads of sessions of which what is kept is damaged */
    uint64_t retries, reconnects; /* a shared store's */
    uint64_t swept;               /* sessions whose time to live was over; likewise */
    uint64_t kept_bytes;          /* besides states, of all sessions; likewise */
    bool more_to_sweep;           /* than the last sweep took */
    bool read_only;               /* it refuses writes, or is not there; why is in the log */
};
void sl_store_stats(const struct sl_store *st, struct sl_store_stats *ret);

/* Of a load: what is kept of the session cannot be read. */
bool sl_store_is_damage(enum sl_code c);

#endif
