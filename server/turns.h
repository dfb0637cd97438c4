/* turns.h: a turn from request to commit: admission, tokenising, the engine, the commit.
 *
 *     start ──> READYING ──> TOKENISING ──> WAITING ──> RUNNING ──> COMMITTING ──> OVER ──close──>
 *               (session      (long text:     (FIFO)    (engine)     (store)        `done` was
 *                loads)        longwork.h)                                           called
 *
 * A run holds its session's lease from start to OVER. It is refused at start when the server is
 * full: running + waiting turns, or prompt tokens of turns that wait or are in prefill; and when
 * its tenant has used up a quota (tenants.h). What was admitted is served in order of arrival.
 *
 * A run has two slots of the slab while it runs, and one while it is COMMITTING: the new state,
 * beside the session's, which stays until the store has the turn. So a store that stands still
 * holds slots of ever more runs; where fewer than two are left of those that runs may have, the
 * line waits.
 *
 * `done` is called exactly once, from the loop, never from inside start; after it the session is
 * free and what was committed is final. The run itself (its tokens) stays until sl_run_close().
 *
 * Loop's thread only. */
#ifndef SLATE_SERVER_TURNS_H
#define SLATE_SERVER_TURNS_H

#include <uv.h>

#include "server/longwork.h"
#include "server/metrics.h"
#include "server/sessions.h"

struct sl_turns;
struct sl_run;

enum { SL_ANSWER_BYTES_MAX = 16 << 20 }; /* kept under an Idempotency-Key */

struct sl_turns_options {
    size_t max_running; /* turns in the engine */
    size_t max_slots;   /* of the slab, that runs may have at once; ≥ 2 */
    size_t max_waiting; /* beyond those; also before the engine: they are tokenised, or loaded */
    size_t max_queued_prefill; /* tokens */
    size_t max_tokens;         /* that a paused turn may still want; 0: any number */
    size_t max_step_rows;
    size_t n_threads;
    int64_t begin_token;          /* fed to an empty session first; -1: none */
    const void *initial_state;    /* of turns without a session; NULL: the model's own */
    struct sl_longwork *longwork; /* where long texts are tokenised */
};

/* Opens the engine and hangs it on the loop. Everything given must outlive it. */
SL_NODISCARD enum sl_code sl_turns_open(struct sl_turns **ret, uv_loop_t *loop,
                                        const struct sl_model *model,
                                        const struct sl_tokenizer *tokenizer,
                                        struct sl_sessions *sessions, struct sl_metrics *metrics,
                                        const struct sl_turns_options *opt, struct sl_error *err);

/* After a drain, or with no run left. The loop must run once more for its handles to close. */
void sl_turns_close(struct sl_turns *ts);

struct sl_run_spec {
    struct sl_tenant *tenant;        /* whose quotas it takes of; NULL: nobody's (a replay) */
    struct sl_session *session;      /* NULL: nothing is kept */
    const struct sl_text *text;      /* what is read: text, or … */
    const struct sl_range *verbatim; /* … of its bytes those in which no special token is looked
                                        for: see tokenizer.h */
    size_t n_verbatim;
    const uint32_t *tokens; /* … ids (text NULL); either may be empty on a session that is not */
    size_t n_tokens;
    size_t max_tokens;
    bool fewer_will_do; /* as many of max_tokens as the answer, the tenant's quota and (of a resumed
                           one) the server's limit have room for: not refused for its number */
    int64_t max_time_ms; /* 0: none; counts from start */
    struct sl_sampling sampling;
    const struct sl_stop *stops;
    size_t n_stops;
    const uint32_t *stop_tokens;
    size_t n_stop_tokens;
    bool ignore_eos;
    int logprobs;
    bool resume; /* finish the session's paused turn: everything above but session, max_time_ms is
                    ignored (sl_run_paused() says what goes on) */
    /* Tokens are read by a state of nobody's (session NULL), `base` (NULL: the model's initial
     * one), as they were once: no begin token comes before them, and the limit on a prompt does not
     * hold. `replayed` is given what they lead to, right before `done`, when nothing went wrong. */
    const void *base;
    void (*replayed)(struct sl_run *r, void *user, const void *state);
    const char *chat_template; /* a reply under this template is written; NULL: plain text. Kept
                                  for a pause; static storage */
    /* An Idempotency-Key: `answer` is asked for the body to keep, right before the commit, when
     * sl_run_result() is final but for a failure of the commit itself. NULL: none. */
    const char *idempotency_key;
    /* What could give an answer of more than these bytes (0: however many; under a key never more
     * than SL_ANSWER_BYTES_MAX) is refused before it runs, unless fewer will do: INVALID_VALUE,
     * max_tokens (resume, of a paused one). */
    size_t answer_max;
    enum sl_dialect dialect; /* of that answer */
    bool strict; /* the session must be at the version that is known (sl_sessions_take()) */
    /* Where nothing was committed, done() has the session's lease, and ends it
     * (sl_sessions_discard()): nobody comes between. */
    bool keeps_lease;
    unsigned char request_hash[16];
    void (*answer)(struct sl_run *r, void *user, struct sl_buf *b);
    /* news: tokens were released since the last call (sl_run_turn() has them). May be NULL. */
    void (*news)(struct sl_run *r, void *user);
    void (*done)(struct sl_run *r, void *user);
    void *user;
};

/* Copies the spec. Errors: NOTHING_PAUSED, SESSION_BUSY, QUOTA_EXCEEDED, SERVER_FULL, DRAINING,
 * INVALID_VALUE (an empty prompt where there is nothing to continue, ids out of range …), TOO_LARGE
 * (a prompt that can never be admitted), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_run_start(struct sl_turns *ts, const struct sl_run_spec *spec,
                                       struct sl_run **ret, struct sl_error *err);

/* Ends it: `done` follows within a step, with CANCELLED. commit false: whatever it ends with, the
 * turn did not happen. After OVER it does nothing. */
void sl_run_cancel(struct sl_run *r, bool commit);

/* Ends it with PAUSED, committed with what it takes to go on (resume): within a step of the engine,
 * or at once where it has not begun. */
void sl_run_pause(struct sl_run *r);

/* Nobody waits for it any more: news and done are not called, it closes itself when it is over. */
void sl_run_detach(struct sl_run *r);

void sl_run_close(struct sl_run *r); /* OVER only */

/* The engine's turn, for tokens and log probabilities; NULL before it is RUNNING, and where it
 * ended before. */
const struct sl_turn *sl_run_turn(const struct sl_run *r);

struct sl_run_result {
    struct sl_error error;  /* code SL_OK, or why it failed; nothing was committed then */
    enum sl_finish finish;  /* NONE with an error */
    bool committed;         /* its tokens are in the session */
    size_t n_tokens;        /* generated and kept */
    int stop_index;         /* into spec.stops, or -1 */
    uint64_t version;       /* of the session, after it */
    uint64_t prompt_tokens; /* new tokens that were read: the request's, with a begin token */
    struct sl_timings timings;
};
const struct sl_run_result *sl_run_result(const struct sl_run *r); /* NULL before COMMITTING */

/* With spec.resume: the turn that goes on; NULL before the session was loaded. */
const struct sl_paused_turn *sl_run_paused(const struct sl_run *r);
/* The key that it was started with, or NULL. */
const char *sl_run_idempotency_key(const struct sl_run *r);
struct sl_session *sl_run_session(const struct sl_run *r); /* while it has the lease */

/* No new runs; `drained` is called (maybe at once) when none is left. limit: ends what runs, with
 * PAUSED. */
void sl_turns_drain(struct sl_turns *ts, void (*drained)(void *arg), void *arg);
void sl_turns_drain_limit(struct sl_turns *ts);

/* Sets the gauges and counters of the engine and of admission. */
void sl_turns_collect(const struct sl_turns *ts, struct sl_metrics *m);

#endif
