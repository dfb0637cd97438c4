/* turn.h: one running turn: what it feeds next, when it ends, and how its state is brought to rest.
 * Private to libslate; see engine.h for what a turn is.
 *
 * The tokens of a turn are one sequence: the prompt (whose first token is the pending one of the
 * turn before), then what was generated. `fed` of them are in the live state. At rest all but the
 * last are.
 *
 *   PREFILL  fed < n_prompt: the prompt is being read
 *   DECODE   fed = n_seq - 1: the newest token was chosen and not fed yet
 *   REPLAY   the sequence was cut (stop string, stop token, end token): the live state restarts
 *            from the shadow and is fed again up to the cut
 *   DONE     the result is final
 *
 * The shadow. When a turn is cut, the state has seen more than what is kept, and no rule of these
 * models can be run backwards. So a copy is kept from which the cut can be reached by feeding a few
 * tokens again, which gives the same bits (promise 2). It is taken
 *   - before the last chunk of the prompt (for free, when that chunk is the whole prompt: then it
 * is the base), and
 *   - before a generated token is fed while no stop candidate is open: for the first one, and then
 *     when the last copy is SL_SHADOW_EVERY tokens old.
 * Proof that a cut never lies before it: taken before feeding token j with no candidate open behind
 * j's text, a later candidate begins in token i ≥ j + 1, at worst all of i is cut, i - 1 becomes
 * pending, and the state must have seen i - 1 ≥ j tokens: the shadow has seen exactly j. An end
 * token in the place of i leaves i - 1 pending: the same.
 *
 * A pause must leave a state from which every later cut can be reached. Without an open candidate
 * that is the live state: its next token is the newest. With one it is the shadow, and all tokens
 * since are pending; those that were not released (`held`) are chosen again, without a draw, when
 * the turn goes on, so that the stop matcher, log probabilities and penalties come out the same.
 *
 * A token that the cut divides is replaced by the tokens of its kept head, so that the state is the
 * one of a session that was fed the text which the client has; their log probabilities come from
 * the replay.
 *
 * Owner: before submit and after DONE the submitter's thread, in between the engine's, but for the
 * atomics. */
#ifndef SLATE_ENGINE_TURN_H
#define SLATE_ENGINE_TURN_H

#include <stdatomic.h>

#include "engine/base/mailbox.h"
#include "engine/batch.h"
#include "engine/forward.h"
#include "engine/sampler.h"
#include "engine/stops.h"
#include "slate/engine.h"

enum { SL_SHADOW_EVERY = 8 };

enum sl_turn_phase { SL_TURN_PREFILL, SL_TURN_DECODE, SL_TURN_REPLAY, SL_TURN_DONE };

/* What all turns of an engine share. */
struct sl_turn_env {
    const struct sl_model *model;
    const struct sl_tokenizer *tokenizer;
    size_t state_bytes;
};

struct sl_turn {
    struct sl_mail to_engine;
    struct sl_mail to_owner;

    struct sl_turn_spec spec; /* its arrays are this turn's own */
    struct sl_turn_states states;
    uint32_t *seq; /* prompt, then generated tokens */
    size_t n_prompt;
    size_t n_seq;
    struct sl_token_logprobs *logprobs; /* one for each generated token, or NULL */
    struct sl_stops *stops;             /* NULL: no stop strings */

    _Atomic int cancel;      /* an enum sl_finish that was asked for */
    _Atomic size_t released; /* generated tokens that the owner may read */
    _Atomic bool prefilled;
    bool reported; /* owner: DONE was seen */

    enum sl_turn_phase phase;
    size_t fed;
    size_t shadow_fed;
    bool shadow_taken; /* else the base is the shadow, and shadow_fed is 0 */
    size_t room;       /* tokens that can be fed from the base on; SIZE_MAX: without end */
    size_t head_begin; /* REPLAY: where in seq the tokens of a divided token's head begin */

    struct sl_sampler *sampler; /* lent by the engine while it runs */
    float *logits;              /* likewise: one row */
    uint32_t chosen;
    enum sl_code chosen_code;

    int64_t created_us, started_us, prefilled_us;
    int64_t deadline_us; /* 0: none */
    struct sl_turn_result result;
    char error[128]; /* what a code's text would not say; "": nothing */
};

/* Owner's thread: checks the spec against the model and copies it. */
SL_NODISCARD enum sl_code sl_turn_open(struct sl_turn **ret, const struct sl_turn_env *env,
                                       const struct sl_turn_spec *spec, int64_t now_us,
                                       struct sl_error *err);

/* Engine's thread, in this order. begin: copies the base into the live slot. */
void sl_turn_begin(struct sl_turn *t, const struct sl_turn_env *env, struct sl_sampler *sampler,
                   float *logits, int64_t now_us);

/* What it wants of the next step. Only while not DONE. */
void sl_turn_want(const struct sl_turn *t, struct sl_batch_entry *ret);

/* Takes the shadow where one is due. */
void sl_turn_prepare(struct sl_turn *t, const struct sl_turn_env *env, size_t take);

/* The segment that feeds its next `take` tokens. */
void sl_turn_segment(const struct sl_turn *t, size_t take, struct sl_segment *ret);

/* The segment was fed. Any worker, for different turns at once, with scratch of its own: chooses
 * the next token where the segment gave logits. */
void sl_turn_choose(struct sl_turn *t, const struct sl_turn_env *env,
                    struct sl_sampler_scratch *scratch, size_t take);

/* Engine's thread: what the choice means. */
void sl_turn_advance(struct sl_turn *t, const struct sl_turn_env *env, size_t take, int64_t now_us);

/* Ends it now if a cancel was asked for or its time is over. */
void sl_turn_interrupt(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us);

/* DONE, before it is reported: whether somebody will go on from its state, which was fed. Then it
 * is checked (any worker, for different turns at once): it fails where the state is not finite.
 * Logits that are finite do not say that the state is: a prompt that generates nothing and a pause
 * within one have none, and a denominator that is infinite makes zeros. */
bool sl_turn_leaves_state(const struct sl_turn *t);
void sl_turn_check_state(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us);

#endif
