/* sessions_priv.h: what sessions.c (one session, the lease), registry.c (which there are),
 * session_lease.c (leases and looks of a shared store), session_ask.c (what servers ask of each
 * other), session_ops.c (changes), session_points.c (earlier versions), residency.c (places, loads,
 * evictions) and residency_save.c (encoding, saving) share. */
#ifndef SLATE_SERVER_SESSIONS_PRIV_H
#define SLATE_SERVER_SESSIONS_PRIV_H

#include "server/residency.h"

enum {
    SL_SAVES_MAX = 8 /* snapshots being encoded at once: each pins a slot that may be replaced */
};

/* Somebody who waits for a session. */
struct sl_waiter {
    struct sl_waiter *next;
    uint64_t version; /* save: at least this one */
    sl_session_done *cb;
    void *arg;
};

/* A session whose waiters are being told that it is free; NULL: it is no more. */
struct sl_telling {
    struct sl_session *s;
    struct sl_telling *outer;
};

struct sl_sessions {
    struct sl_sessions_options opt;
    struct sl_store *store; /* NULL: none */
    struct sl_session_table table;
    struct sl_session_ends ends; /* has room for all of them */
    size_t n_dead;               /* have expired and are not removed yet */
    size_t n_expiring;           /* are being removed for it */
    bool expiring;               /* on the stack */
    bool sweeping;               /* a shared store */
    uint64_t n_expired;
    uint64_t kept_bytes; /* of all sessions that count */

    size_t n_places_used;
    struct sl_session *newest, *oldest;
    struct sl_session *line, **line_end; /* sessions that wait for a place */
    size_t n_line, n_evicting, n_encoding;
    bool balancing, balance_again;
    bool opening, closing, shared;
    struct sl_telling *tellings; /* on the stack, the innermost first */
    uv_timer_t renewal;          /* shared */
    bool has_renewal;
    struct sl_session *held; /* of which the store's lease is held */
    struct sl_run_events on_run;
    uv_timer_t ear; /* session_ask.c's; shared */
    bool has_ear, hearing;
    struct sl_asking *askings;
    sl_replay *replay;
    void *replay_with;
    struct sl_encode *encode_line, **encode_line_end; /* encodings that wait for their turn */
    struct sl_residency_stats stats;
    bool differs; /* a load has brought a state of other numerics, and that was logged */

    size_t n_busy;                    /* ops, loads, encodings, saves: see sl_sessions_busy() */
    size_t n_forks;                   /* that have one place and may wait for another */
    struct sl_op *forks, **forks_end; /* in line for that */
    size_t n_flushing, n_flush_failed;
    size_t flush_at;             /* bucket */
    struct sl_error flush_error; /* the first */
    sl_sessions_flushed *flushed;
    void *flushed_arg;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* No snapshot can hold what it is now, as one that was tried has shown. */
static inline bool sl_session_is_unwritable(const struct sl_session *s)
{
    return s->is_unwritable && s->unwritable_version == s->version;
}

/* registry.c */
SL_NODISCARD enum sl_code sl_registry_open(struct sl_sessions *ss, struct sl_error *err);
void sl_registry_close(struct sl_sessions *ss);
/* incarnation NULL: a new one, at random. bytes: what it counts with (sl_session_charge()). Errors:
 * SESSION_EXISTS, SESSIONS_FULL, QUOTA_EXCEEDED, NO_MEMORY, INTERNAL. */
SL_NODISCARD enum sl_code sl_registry_insert(struct sl_sessions *ss, const char *tenant,
                                             const char *id, const unsigned char incarnation[16],
                                             uint64_t bytes, struct sl_session **ret,
                                             struct sl_error *err);
void sl_registry_remove(struct sl_sessions *ss, struct sl_session *s); /* and frees it */
/* The session of that name, if it is being deleted (also because its time to live is over). */
struct sl_session *sl_registry_expire(struct sl_sessions *ss, const char *tenant, const char *id);
struct sl_session *sl_registry_lookup(const struct sl_sessions *ss, const char *tenant,
                                      const char *id);
void sl_session_set_ttl(struct sl_sessions *ss, struct sl_session *s, int64_t ttl_s);
SL_NODISCARD enum sl_code sl_random_bits(unsigned char bits[16], struct sl_error *err);
/* What a session counts with for its tenant's quota of bytes: its state, whether or not it has one
 * yet, and what comes to it; kept: sl_session_kept(). (Turns since its snapshot do not count:
 * --replay-limit bounds them.) */
uint64_t sl_session_charge(const struct sl_sessions *ss, size_t n_metadata, uint64_t answers,
                           uint64_t kept);
/* Of a session as it is, with one more named checkpoint, of so many tokens. What is kept already
 * may hold its state; but that goes with the turns, and the checkpoint stays. */
uint64_t sl_session_charge_named(const struct sl_sessions *ss, const struct sl_session *s,
                                 uint64_t tokens_seen);
/* Of a session as it is, but with so many metadata, and with the transcript of so many tokens. */
uint64_t sl_session_charge_seen(const struct sl_sessions *ss, const struct sl_session *s,
                                size_t n_metadata, uint64_t tokens_seen);
/* What is kept of it has changed: that is counted, and not refused. */
void sl_session_recount(struct sl_sessions *ss, struct sl_session *s);
uint64_t sl_answer_charge(size_t n_key, size_t n_body);
/* To that many, if they are more: QUOTA_EXCEEDED. To that many, if they are fewer. */
SL_NODISCARD enum sl_code sl_session_grow(struct sl_sessions *ss, struct sl_session *s,
                                          uint64_t bytes, struct sl_error *err);
void sl_session_shrink(struct sl_sessions *ss, struct sl_session *s, uint64_t bytes);

/* sessions.c */
void sl_session_free(struct sl_sessions *ss, struct sl_session *s);
/* One of those that wait for the lease; the rest comes when that one has given it back. */
void sl_session_tell_free(struct sl_session *s, const struct sl_error *err);
/* Room for answers; false: no memory. */
SL_NODISCARD bool sl_session_make_answers(struct sl_session *s);
/* Moves it there; the oldest one goes where there are as many as are kept. */
void sl_session_push_answer(struct sl_session *s, struct sl_answer *a);
SL_NODISCARD bool sl_session_keep_answer(struct sl_session *s, const struct sl_answer *a);
void sl_session_hand_over(struct sl_session *s); /* state and all are somebody else's now */
void sl_session_forget_rest(struct sl_sessions *ss, struct sl_session *s); /* state and all */
struct sl_store_key sl_session_key(const struct sl_session *s);
struct sl_store_head sl_session_head(const struct sl_session *s);
int64_t sl_sessions_now(const struct sl_sessions *ss); /* the store's clock, where it has one */

/* session_lease.c */
SL_NODISCARD enum sl_code sl_leases_open(struct sl_sessions *ss, struct sl_error *err);
void sl_leases_close(struct sl_sessions *ss, uv_close_cb closed);
/* The lease's end in the registry; told: the store has ended it already, or never had it. */
void sl_lease_ends(struct sl_sessions *ss, struct sl_session *s, bool told);
/* What the store says of a session becomes what is known. */
SL_NODISCARD enum sl_code sl_session_adopt(struct sl_session *s, const struct sl_store_head *h,
                                           struct sl_error *err);
void sl_sessions_list_shared(struct sl_sessions *ss, const char *tenant,
                             const struct sl_list_query *q, const struct sl_sessions_lister *to);
enum { SL_HEARD_OF = 1024 }; /* of a shared store, beside those with a place: more are trimmed */
void sl_registry_trim(struct sl_sessions *ss); /* what the store has anyway */

/* session_ask.c */
SL_NODISCARD enum sl_code sl_ear_open(struct sl_sessions *ss, struct sl_error *err);
void sl_ear_close(struct sl_sessions *ss, uv_close_cb closed); /* nothing is being asked */
void sl_ear_listen(struct sl_sessions *ss); /* a lease was taken: others may ask for its end */

/* session_decode.c: what a record of the store leads to. */
struct sl_decoded {
    const struct sl_sessions_options *opt;
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16]; /* of a shared store's session another look may bring another */
    void *state;                   /* where to: the caller's, that nobody else reads */
    bool has_state;                /* it is filled; else it is the initial state */
    struct sl_answer *answers;     /* NULL: none */
    size_t n_answers;
    struct sl_snapshot_info info;
    struct sl_continuation cont; /* the snapshot's */
    uint64_t tokens_seen;
    uint32_t *pending; /* n_pending; the last n_rest of them were pending when it was left */
    size_t n_pending, n_rest;
    struct sl_penalty_ring *ring;
    char *paused;
    size_t n_paused;
    struct sl_transcript transcript;
    bool rebuild; /* in: pending becomes all of the transcript, and no state is read */
    bool made; /* out: a rebuild's is all there, whatever the store says of the snapshot's data */
    enum sl_code code;
    struct sl_error err;
};
/* l is all zero but for `state`. */
void sl_decoded_init(struct sl_decoded *l, const struct sl_sessions *ss,
                     const struct sl_session *s);
/* Any thread. Errors in l->err: SNAPSHOT_*, STORE_CORRUPT, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_decode_record(struct sl_decoded *l, const struct sl_store_record *r);
/* Of what was decoded to be the session, where all of `pending` stays that until its next turn:
 * what goes by its paused turn's text (its next snapshot, a fork) finds all of it there, too. */
SL_NODISCARD enum sl_code sl_decoded_stays(struct sl_decoded *l);
void sl_decoded_done(struct sl_decoded *l); /* but for `state` */

bool sl_session_is_quiet_now(const struct sl_session *s);
struct sl_op;
/* session_ops.c: calls when nobody reads or writes s any more; the op has the lease. */
void sl_op_when_quiet(struct sl_op *op, void (*then)(struct sl_op *op));

/* session_ops.c: nothing of what its caller has begun reads or writes the session any more. What
 * has waited for that goes on now: s may be gone afterwards. */
void sl_session_is_quiet(struct sl_sessions *ss, struct sl_session *s);
void sl_session_unpin(struct sl_sessions *ss, struct sl_session *s); /* the same, and n_pins - 1 */

/* session_points.c: without a store, what the session is becomes one of its points, before a commit
 * or a restore gives it something else: state and all are moved there, or freed. prepare: room for
 * that; false: no memory. */
SL_NODISCARD bool sl_session_prepare_point(const struct sl_sessions *ss, struct sl_session *s);
void sl_session_keep_point(struct sl_sessions *ss, struct sl_session *s);
void sl_session_forget_points(struct sl_sessions *ss, struct sl_session *s);
uint64_t sl_session_point_bytes(const struct sl_sessions *ss, const struct sl_session *s);
/* What the op is about: op->name or op->target. */
void sl_op_aim(struct sl_op *op, const struct sl_moment *to);
/* What `from` was at op->target becomes what the op holds. *ret_copied: its state is `decoded`,
 * else `state`. Errors, in op->err: CHECKPOINT_NOT_FOUND, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_session_take_point(struct sl_op *op, const struct sl_session *from,
                                                bool *ret_copied);
/* session_rewind.c: a fork's new session, which is leased and without a store has its place,
 * becomes what op->from was then. */
void sl_op_begin_past(struct sl_op *op);
/* session_fork.c: op->from is not needed any more. */
void sl_op_release_source(struct sl_op *op);

/* residency_save.c: JSON; of what is pending, where no turn is paused. NULL: no memory. sl_free()
 */
char *sl_continuation_json(const struct sl_continuation *c);
char *sl_continuation_text(const uint32_t *pending, size_t n_pending,
                           const struct sl_penalty_ring *ring);

/* session_commit.c: what the op holds becomes what the session holds. Cannot fail. */
void sl_op_apply(struct sl_op *op);

/* residency.c */
void sl_residency_touch(struct sl_sessions *ss, struct sl_session *s); /* used now */
void sl_residency_leave(struct sl_sessions *ss, struct sl_session *s); /* gives its place back */
void sl_residency_balance(struct sl_sessions *ss); /* places for those that wait, or will */
/* Takes back a sl_sessions_ready() whose session has no place yet: calls back, with an error. Else
 * there is nothing to be done. */
void sl_residency_unready(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                          void *arg);

/* A change under way: it takes the lease (or makes a session that nobody else can lease yet), does
 * what takes time, and ends in one place, where either everything was changed or nothing. */
struct sl_op {
    struct sl_op *next;                   /* forks in line */
    void (*when_quiet)(struct sl_op *op); /* while it is its session's quiet_op */
    void (*leased)(struct sl_op *op);
    struct sl_sessions *ss;
    struct sl_session *s;
    char *tenant, *id; /* of a new one; id NULL: any */
    void (*made)(struct sl_op *op);
    void (*refused)(struct sl_op *op, const struct sl_error *err);
    struct sl_session *from; /* fork */
    sl_session_done *cb;
    void *arg;
    bool has_ttl, is_new, removes, for_turn;

    /* sl_sessions_take(); id is the turn's Idempotency-Key then. Fork: `from` is to be at
     * from_version of from_incarnation still. */
    bool strict;
    uint64_t from_version;
    unsigned char from_incarnation[16];
    struct sl_store_head *arg_head; /* metadata in `metadata` */

    enum sl_restore_kind kind;
    int64_t ttl_s;
    char *metadata;
    size_t n_metadata;
    uint64_t had_bytes;     /* that the session counted with before */
    uint64_t answers_bytes; /* that it will have */

    /* commit and restore: what the session will hold */
    void *state;
    uint64_t version, tokens_seen;
    struct sl_stamp stamp; /* of that version */
    uint32_t *pending;
    size_t n_pending;
    struct sl_penalty_ring *ring;
    char *paused;
    size_t n_paused;
    size_t n_tokens, n_drop;
    uint32_t *tokens;                /* commit: the turn's, where a transcript is kept */
    struct sl_transcript transcript; /* else: what it will be */
    struct sl_answer answer;         /* key NULL: none */

    /* checkpoints */
    bool drops;
    struct sl_store_point *ret_point;

    /* rewind, fork at an earlier version */
    uint64_t target;
    char name[SL_SESSION_ID_MAX + 1]; /* "": target */
    uint64_t n_replayed;
    struct sl_past *ret_past;
    struct sl_decoded past; /* its state: `decoded` */

    /* restore */
    uv_work_t work;
    const unsigned char *source; /* the caller's */
    size_t n_source;
    unsigned char *data; /* what is to be stored */
    size_t n_data;
    void *decoded; /* a state that is not in the slab */
    struct sl_snapshot_info info;
    struct sl_restoring *restoring; /* or NULL */
    uint64_t taken;                 /* of the tenant's tokens */
    enum sl_code code;
    struct sl_error err;
};

/* session_ops.c */
struct sl_op *sl_op_new(struct sl_sessions *ss, sl_session_done *cb, void *arg);
/* One of s (NULL: it is made). NULL: its caller was told that there is no memory `what`. */
struct sl_op *sl_op_begin(struct sl_sessions *ss, struct sl_session *s, const char *what,
                          sl_session_done *cb, void *arg);
void sl_op_free(struct sl_op *op);
void sl_op_end(struct sl_op *op, struct sl_session *s, const struct sl_error *err); /* calls back */
/* The same of op->s, whose lease ends before that; it is there for the callback, though who waited
 * for it may delete it. */
void sl_op_end_free(struct sl_op *op, const struct sl_error *err);
/* The lease of op->s, the store's too; then `leased`, or the op ends with the error. */
void sl_op_lease(struct sl_op *op, void (*leased)(struct sl_op *op));
/* The op is over, and gives the lease back: its caller is told when it has been. */
void sl_op_give_back(struct sl_op *op, const struct sl_error *err);
/* A new session, leased by the op, for `made`; then it is kept, or it did not come to be. An
 * expired one under its name goes first. Where it cannot be: `refused`, by default the op's end. */
void sl_op_make(struct sl_op *op, const char *tenant, const char *id, struct sl_text metadata,
                void (*made)(struct sl_op *op));
void sl_op_keep_new(struct sl_op *op);
void sl_op_keep_empty(struct sl_op *op); /* written first, where new sessions are */
void sl_op_undo_new(struct sl_op *op, const struct sl_error *err);

/* A turn takes of the quota of tokens what it brings itself, not what was pending before it. So
 * that is taken once, when it comes otherwise (uploaded, or with a fork or a rewind), but for the
 * one that any turn leaves. An op that fails gives it back. Errors: QUOTA_EXCEEDED. */
SL_NODISCARD enum sl_code sl_op_take_pending(struct sl_op *op, size_t n_pending,
                                             struct sl_error *err);
/* Of both quotas what a new session has from another one besides its state: the bytes of a
 * transcript of so many tokens, and what is pending. */
SL_NODISCARD enum sl_code sl_op_take_fork(struct sl_op *op, uint64_t tokens_seen, size_t n_pending,
                                          struct sl_error *err);

static inline bool sl_session_is_ephemeral(const struct sl_session *s)
{
    return !s->tenant[0];
}

static inline bool sl_session_writes_turns(const struct sl_sessions *ss, const struct sl_session *s)
{
    return ss->store && (ss->shared || ss->opt.durability == SL_DURABILITY_TURN) &&
           !sl_session_is_ephemeral(s) && !s->unwritten;
}

/* The last answer is in memory alone: it came with a turn that the store was not told of. */
static inline bool sl_session_has_unsaved_answer(const struct sl_sessions *ss,
                                                 const struct sl_session *s)
{
    return ss->store && !ss->shared && !sl_session_writes_turns(ss, s) && s->n_answers &&
           s->answers[s->n_answers - 1].version > s->answers_saved;
}

/* Does the store hold its snapshot and answers as of now? What is not in memory has nothing newer
 * than the store: after a crash that is a snapshot and the turns since. While something is being
 * written it may be the head that is not there yet. */
static inline bool sl_session_is_saved(const struct sl_sessions *ss, const struct sl_session *s)
{
    return !ss->store || sl_session_is_ephemeral(s) || s->stale || s->vanished ||
           (s->in_store && !s->head_dirty && !s->saving && !sl_session_has_unsaved_answer(ss, s) &&
            (!s->in_memory || s->saved_version == s->version));
}

#endif
