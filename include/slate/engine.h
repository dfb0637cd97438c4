/* engine.h: turns on states, advanced together in one ragged batch.
 *
 * One engine thread owns the states in use, picks the rows of every step (decode first, then
 * prefill chunks under a budget, round robin), runs them through the model and samples. Callers
 * submit turns from one thread (the server's loop), are woken by a callback, and take what is new.
 *
 *   create -> submit -> (step: prefill … decode …) -> released tokens -> DONE, exactly once, also
 *   after a cancel and also when the engine is closed.
 *
 * At rest a state has consumed every token of its conversation but the last; that one is *pending*
 * and is fed first by the next turn. The submitter puts it in front of the prompt. A turn that was
 * paused may leave more pending tokens: what it had not read yet, or what an open stop candidate
 * may still take back (turn.h). */
#ifndef SLATE_ENGINE_H
#define SLATE_ENGINE_H

#include "slate/model.h"
#include "slate/tokenizer.h"

enum {
    SL_STOPS_MAX = 20,           /* stop strings of a turn: 16 of a client, 4 of a chat template */
    SL_STOP_BYTES_MAX = 256,     /* bytes of one */
    SL_STOP_TOKENS_MAX = 64,     /* stop tokens of a turn */
    SL_LOGIT_BIAS_MAX = 1024,    /* entries of logit_bias */
    SL_TOP_LOGPROBS_MAX = 20,    /* alternatives listed with a token */
    SL_PENALTY_LAST_N_MAX = 1024 /* tokens of the penalty ring */
};

struct sl_logit_bias {
    uint32_t token;
    float bias; /* added to the logit; finite */
};

struct sl_stop {
    const unsigned char *bytes;
    size_t n; /* 1 … SL_STOP_BYTES_MAX */
};

/* How the next token is chosen. The order: penalties and bias on the logits; then top_k,
 * typical_p, top_p and min_p on the distribution at temperature 1; then temperature on what is
 * left; then one draw. temperature 0: the largest logit after penalties and bias, the smallest id
 * among equals, no draw. Log probabilities are the model's own, from the logits as they came. */
struct sl_sampling {
    float temperature;        /* 0 … 100; 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 0 ≤ p ≤ 1; 0: the first one; 1: off */
    float min_p;              /* 0 … 1; 0: off */
    float typical_p;          /* 0 ≤ p ≤ 1; 0: one token; 1: off */
    float repetition_penalty; /* > 0; 1: off (Keskar 2019) */
    float presence_penalty;   /* 0: off */
    float frequency_penalty;  /* 0: off */
    float penalty_decay;      /* 0 … 1: each token multiplies earlier counts by it; 1: off */
    uint32_t penalty_last_n;  /* 0: all tokens generated in this turn; else the last n generated
                                 ones, also of earlier turns (the ring) */
    uint64_t seed;
    const struct sl_logit_bias *bias;
    size_t n_bias;
};

#define SL_SAMPLING_DEFAULT                                                                        \
    {                                                                                              \
        .temperature = 1.0f, .top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f,         \
        .penalty_decay = 1.0f                                                                      \
    }

struct sl_logprob {
    uint32_t token;
    float logprob; /* natural logarithm */
};

struct sl_token_logprobs {
    struct sl_logprob chosen;
    struct sl_logprob top[SL_TOP_LOGPROBS_MAX]; /* as many as were asked for, or the vocabulary has;
                                                   most likely first; the smaller id first among
                                                   equals. The others are not written */
};

enum sl_finish {
    SL_FINISH_NONE = 0, /* still running, or it failed: see the result's code */
    SL_FINISH_STOP,     /* a stop string or stop token */
    SL_FINISH_LENGTH,   /* max_tokens */
    SL_FINISH_EOS,      /* the end token */
    SL_FINISH_CANCELLED,
    SL_FINISH_PAUSED,
    SL_FINISH_TIMEOUT /* max_time */
};
const char *sl_finish_name(enum sl_finish f); /* "stop", "length", … */

/* The last tokens generated on a session, oldest first: what penalty_last_n carries over. */
struct sl_penalty_ring {
    uint32_t n;
    uint32_t tokens[SL_PENALTY_LAST_N_MAX];
};

/* What a turn is to do. Everything pointed to is copied at create. */
struct sl_turn_spec {
    const uint32_t *prompt; /* the pending token (or a begin token) and the new ones, in order */
    size_t n_prompt;        /* ≥ 1 */
    size_t max_tokens;      /* 0: only read the prompt */
    int64_t deadline_ms;    /* time from create after which it ends with TIMEOUT; 0: none */
    struct sl_sampling sampling;
    const struct sl_stop *stops;
    size_t n_stops;
    const uint32_t *stop_tokens;
    size_t n_stop_tokens;
    bool ignore_eos; /* the end token is a token like any other */
    int logprobs;    /* -1: none; 0 … SL_TOP_LOGPROBS_MAX alternatives a token */
    const struct sl_penalty_ring *ring; /* NULL: empty */

    /* A turn that goes on after a pause; else all 0. `ring` is then the one before the turn. */
    uint64_t draws;            /* random numbers drawn before */
    const uint32_t *generated; /* generated and released before: they count for penalties */
    size_t n_generated;
    const uint32_t *held; /* generated before and not released: they come first, without a draw;
                             max_tokens counts them */
    size_t n_held;

    bool keep_state; /* false: nobody needs the state afterwards, it need not be at rest */
    void *user;
};

struct sl_turn_result {
    enum sl_code code; /* SL_OK, or why it failed; then nothing may be committed */
    enum sl_finish finish;
    bool complete;        /* the whole prompt was read; false: there is nothing to commit (it was
                             cancelled, or timed out, while queued or in prefill) */
    size_t n_tokens;      /* generated and kept: what sl_turn_tokens() holds */
    int stop_index;       /* which stop string ended it, else -1 */
    int64_t stop_token;   /* which stop or end token ended it, else -1 */
    uint64_t tokens_seen; /* consumed by the state in `live` since the conversation began */
    size_t n_pending;     /* what the state has not consumed: the last so many of the prompt and the
                             n_tokens; 1 but after a pause */
    size_t n_held;        /* PAUSED: the last so many tokens are generated and not released */
    uint64_t draws;       /* random numbers drawn: with the seed, the generator's whole state */
    uint64_t computed_tokens; /* rows that went through the model for it */
    int64_t queue_us, prefill_us, decode_us;
};

struct sl_engine;
struct sl_turn;

struct sl_engine_options {
    size_t n_threads;        /* 0: one per core of this process */
    size_t max_running;      /* turns at once; 0: 32 */
    size_t max_step_rows;    /* tokens of one step; 0: 512. At least max_running */
    void (*wake)(void *arg); /* engine thread: there is something to take. Must not block or call
                                back into the engine; NULL: sl_engine_wait() is used instead */
    void *wake_arg;
};

/* Starts the engine's thread and workers. Model and tokenizer must outlive it; a tokenizer whose
 * ids the model does not have is refused only where it meets one.
 * Errors: NO_MEMORY, INVALID_VALUE, INTERNAL. */
SL_NODISCARD enum sl_code sl_engine_open(struct sl_engine **ret, const struct sl_model *model,
                                         const struct sl_tokenizer *tokenizer,
                                         const struct sl_engine_options *opt, struct sl_error *err);

/* Cancels what is running, waits for the thread. Every turn must have been closed or be closed
 * afterwards by its owner. NULL is fine. */
void sl_engine_close(struct sl_engine *e);

/* Submitter's thread. Checks and copies; *ret is the caller's until sl_turn_close(), which may be
 * called before submit or after DONE. Errors: INVALID_VALUE (a token id out of range, a limit
 * above), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_turn_create(struct sl_engine *e, const struct sl_turn_spec *spec,
                                         struct sl_turn **ret, struct sl_error *err);

/* The states of a turn: the engine's from submit to DONE. */
struct sl_turn_states {
    const void *base; /* the state to start from, not written; NULL: the initial state */
    void *live;       /* where the turn works; at a commit it holds the new state */
    void *shadow;     /* where the cut at a stop restarts; may be NULL only when the state is not
                         kept and no log probabilities are asked for */
};

/* Submitter's thread; once per turn. Errors: SERVER_FULL (max_running turns are in the engine
 * already; the turn is as it was). */
SL_NODISCARD enum sl_code sl_engine_submit(struct sl_engine *e, struct sl_turn *t,
                                           const struct sl_turn_states *states,
                                           struct sl_error *err);

/* Submitter's thread. The turn ends within one step, with `finish`: CANCELLED (what was generated
 * is kept and released) or PAUSED (what was generated is kept, and what was released so far stays
 * so; the turn can go on from there, byte for byte). Asking again, or after DONE, does nothing. */
void sl_engine_cancel(struct sl_engine *e, struct sl_turn *t, enum sl_finish finish);

/* Submitter's thread, a turn that was never submitted: it is DONE, with PAUSED, as it would be had
 * the engine paused it before its first step. Nothing was read: the base is the state, and all of
 * the prompt and what was held is pending. */
void sl_turn_pause_unread(struct sl_turn *t);

/* Submitter's thread: calls news(t, user, arg) for every turn that has released tokens or is DONE
 * since the last call. A turn that is DONE may be closed inside the callback; a turn is never
 * reported again after its DONE was. */
void sl_engine_poll(struct sl_engine *e, void (*news)(struct sl_turn *t, void *user, void *arg),
                    void *arg);

/* Submitter's thread, for programs without an event loop: returns once there is something to
 * poll. */
void sl_engine_wait(struct sl_engine *e);

/* What a turn has given so far. Any of these from the submitter's thread. A token is released when
 * no open stop candidate holds any of its bytes; released tokens never change. */
size_t sl_turn_released(const struct sl_turn *t);
const uint32_t *sl_turn_tokens(const struct sl_turn *t);
/* After DONE: the result's n_pending tokens, to be fed first by the next turn. */
const uint32_t *sl_turn_pending(const struct sl_turn *t);
const struct sl_token_logprobs *sl_turn_logprobs(const struct sl_turn *t); /* NULL: not asked for */
const struct sl_turn_result *sl_turn_result(const struct sl_turn *t);      /* NULL: not DONE */
const char *sl_turn_error(const struct sl_turn *t); /* the message, when the result's code is one */
bool sl_turn_prefilled(const struct sl_turn *t);    /* the prompt has been read */
/* The ring as it is after the turn: for the session's next one. After DONE. */
void sl_turn_ring(const struct sl_turn *t, struct sl_penalty_ring *ret);
void sl_turn_close(struct sl_turn *t);

/* Counters since start; any thread. */
struct sl_engine_stats {
    uint64_t steps;
    uint64_t prefill_tokens; /* rows by kind; replayed rows (after a cut) are counted apart */
    uint64_t decode_tokens;
    uint64_t replay_tokens;
    uint64_t turns_done;
    uint64_t busy_us; /* time spent in steps */
};
void sl_engine_stats(const struct sl_engine *e, struct sl_engine_stats *ret);

#endif
