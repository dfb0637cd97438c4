/* continuation.h: what a session holds besides its state, as JSON: in snapshots and in the journal.
 *
 * At rest a state has consumed all tokens of its conversation but the pending ones, usually one.
 * They are fed first by the next turn. There are more after a restart (the tokens since the
 * snapshot), after a pause in prefill (the rest of the prompt) and after a pause with an open stop
 * candidate (the tokens from which the cut may have to be found again).
 *
 * A paused turn is finished byte for byte from: its settings, how many random numbers it has drawn,
 * what it has generated (for penalties), which of the pending tokens it has generated but not
 * released (`n_held`: the last ones; they are chosen again without a draw, so that their log
 * probabilities and the stop matcher come out the same), and how far its text was given out. They
 * are in no answer: a turn that does not finish it is fed the pending ones without them.
 *
 * Pure code; any thread. The text is compact JSON of an object; unknown fields are ignored, so that
 * later versions may add some:
 *
 *     {"pending":[ids],"ring":[ids],"model":"32 hex digits","paused":{
 *       "temperature": … "penalty_last_n": …, "logit_bias":[[id,bias]],   as in a request
 *       "seed":"18446744073709551615","draws":"12",                       64 bits: decimal strings
 *       "max_tokens":100,"fewer_will_do":true,"stop":["\n\n",{"hex":"ff0a"}],"stop_tokens":[ids],
 *       "ignore_eos":false,"logprobs":5,"generated":[ids],"held":2,"ring":[ids],"utf8_tail":"e282",
 *       "chat_template":"rwkv","reply_started":true}}
 *
 * A stop is a string, or where its bytes are not UTF-8 their hex digits, as utf8_tail always is.
 * Floats are written with nine digits, which give the same float back. Empty lists, a logprobs of
 * -1, a false fewer_will_do and a NULL template are not written. A reader also takes integers for
 * seed and draws, and the defaults of a request for settings that are absent; pending, seed, draws
 * and max_tokens may not be. */
#ifndef SLATE_PROTO_CONTINUATION_H
#define SLATE_PROTO_CONTINUATION_H

#include "proto/request.h"

/* Tokens that a pause holds: as many as a record of the store can say that a turn drops
 * (store/record.h), so that a paused turn that is read can be gone on from. A stop candidate has
 * seldom more than a few; tokens without a text (end tokens under ignore_eos) keep one open. */
enum { SL_HELD_MAX = 0xFFFFFF };

struct sl_paused_turn {
    struct sl_sampling sampling; /* with its seed */
    uint64_t draws;
    size_t max_tokens;  /* what is left, held tokens included; to be held to the server's limit by
                           whoever takes it from a client */
    bool fewer_will_do; /* as in a request */
    const struct sl_stop *stops;
    size_t n_stops;
    const uint32_t *stop_tokens;
    size_t n_stop_tokens;
    bool ignore_eos;
    int logprobs;
    const uint32_t *generated; /* released ones, in order */
    size_t n_generated;
    size_t n_held;               /* ≤ SL_HELD_MAX */
    struct sl_penalty_ring ring; /* as it was before the turn */
    unsigned char utf8_tail[4];  /* bytes of released tokens that no text has shown yet */
    size_t n_utf8_tail;
    const char *chat_template; /* NULL: plain text; else its reply is being written */
    bool reply_started;        /* see sl_chat_reply_text() */
};

struct sl_continuation {
    struct sl_pool pool;     /* after decode: owns what the pointers point to */
    const uint32_t *pending; /* ≥ 1 */
    size_t n_pending;
    struct sl_penalty_ring ring;
    const struct sl_paused_turn *paused; /* NULL: no unfinished turn */
    unsigned char model[16]; /* in the journal: the fingerprint of the model that was at work; all
                                zero: not said */
};

/* Appends the JSON text. All of it is as sl_continuation_read() would have it; floats are finite
 * (asserted). */
void sl_continuation_write(struct sl_buf *b, const struct sl_continuation *c);

/* Everything is checked: ids against vocab_size, ranges of settings as in a request, counts against
 * each other. Errors: SNAPSHOT_CORRUPT (names the field), NO_MEMORY. On failure nothing is left to
 * free. */
SL_NODISCARD enum sl_code sl_continuation_read(struct sl_continuation *ret, const char *text,
                                               size_t n, size_t vocab_size, struct sl_error *err);
void sl_continuation_done(struct sl_continuation *c);

#endif
