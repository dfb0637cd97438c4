/* generation.h: one POST of /v1/generate, /v1/completions or /v1/chat/completions, from its request
 * to its last byte. Private to generate.c (request -> turn, events) and answer.c (turn -> bytes).
 *
 * There are two owners to satisfy: the run, which is over when `done` was called, and the exchange,
 * which ends with its answer or when the client goes. The generation lives until both are through:
 *
 *     ex      the client is there and has not been answered whole (NULL: through)
 *     over    the run has ended
 *
 * Loop's thread only. */
#ifndef SLATE_SERVER_API_GENERATION_H
#define SLATE_SERVER_API_GENERATION_H

#include "proto/sse.h"
#include "server/app.h"
#include "server/text.h"

enum { SL_ANSWER_ID_SIZE = 64 };

/* How one of the three routes speaks. */
struct sl_dialect_row {
    const char *id_prefix;
    enum sl_code (*decode)(struct sl_generate_request *ret, const void *body, size_t n,
                           const struct sl_limits *limits, struct sl_error *err);
    void (*whole)(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v);
    /* The stream. first and usage may be NULL: there is no such event. */
    void (*first)(struct sl_buf *b, const struct sl_delta *d);
    void (*delta)(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v);
    void (*final)(struct sl_buf *b, const struct sl_result *r, bool include_usage,
                  const struct sl_vocab *v);
    void (*usage)(struct sl_buf *b, const struct sl_result *r);
};
extern const struct sl_dialect_row sl_dialects[]; /* by enum sl_dialect */

struct sl_generation {
    struct sl_app *app;
    struct sl_exchange *ex;
    const struct sl_dialect_row *dialect;
    struct sl_generate_request req;
    size_t n_body; /* bytes that req counts with */
    struct sl_tenant *tenant;
    struct sl_run *run;
    bool over;

    char id[SL_ANSWER_ID_SIZE];
    int64_t created;                     /* Unix time, s */
    int64_t started_us, first_us;        /* uv_hrtime() / 1000; first_us 0: no token yet */
    char session[SL_SESSION_ID_MAX + 1]; /* "": none */
    unsigned char incarnation[16];
    const struct sl_chat_template *chat; /* a reply under it is written; NULL: plain text */
    struct sl_stop stops[SL_STOPS_MAX];  /* the client's, then the template's */
    size_t n_stops;
    unsigned char stop_bytes[SL_STOPS_MAX][SL_STOP_BYTES_MAX];
    uint32_t stop_tokens[SL_STOP_TOKENS_MAX]; /* the same */
    size_t n_stop_tokens;

    /* The session's memory, when it is the client's own (stateless.c). */
    bool stateless;
    struct sl_session *ephemeral;
    struct sl_restoring restoring; /* initial_state's */
    bool awaits_state;             /* the turn is over, its state is being written */
    struct sl_buf state;           /* base64 */
    struct sl_error state_error;

    /* Idempotency-Key (keyed.c). */
    char *key;
    unsigned char body_hash[16];

    bool adopted; /* resume: the paused turn's settings are taken over */

    /* What the client has so far. */
    struct sl_text_stream text;
    bool text_begins;   /* nothing stands before the text that is generated */
    bool reply_started; /* sl_chat_reply_text()'s */
    bool streaming;     /* the response's head is out */
    size_t n_taken;     /* tokens */
    bool text_ended;    /* and the last character, whole or not */
    size_t text_offset; /* with logprobs: of the next token, see response.h */

    /* A stream whose first token takes long (a queue, a long prompt) gets its head at this time, so
     * that pings can go out. Its memory is the generation's: closing it is the last that happens.
     */
    bool has_timer;
    uv_timer_t head_timer;
};

/* Streaming: writes what is new, as long as the client takes it; after the run's end also the end.
 * True: the exchange is over (answered, or cut off by an error that was told in the stream). */
SL_NODISCARD bool sl_answer_stream(struct sl_generation *g);

/* The head of any stream of events. */
void sl_answer_open_stream(struct sl_exchange *ex);

/* Begins the stream if it has not begun. */
void sl_answer_begin(struct sl_generation *g);

/* Not streaming, after the run's end: the whole answer; the exchange is over. */
void sl_answer_whole(struct sl_generation *g);

/* The run failed, or the answer cannot be made: an error, in the stream where that has begun; the
 * exchange is over. */
void sl_answer_fail(struct sl_generation *g, const struct sl_error *err);

/* The whole answer as it is kept for a retry: everything from the start, whatever was streamed. */
void sl_answer_body(const struct sl_generation *g, struct sl_buf *b);

/* generate.c, for the two below: the run begins (messages are rendered now). */
SL_NODISCARD enum sl_code sl_generation_run(struct sl_generation *g, struct sl_session *s,
                                            struct sl_error *err);
/* It failed before a run began; answers and frees. */
void sl_generation_fail(struct sl_generation *g, const struct sl_error *err);
/* The run is over and everything is there: the end of the answer. */
void sl_generation_finish(struct sl_generation *g);
/* Frees it when client and run are through. */
void sl_generation_settle(struct sl_generation *g);

/* keyed.c: the body's hash, where there is a key; the header's key, then a kept answer or a run. */
void sl_keyed_see(struct sl_generation *g, const void *body, size_t n);
SL_NODISCARD enum sl_code sl_keyed_take(struct sl_generation *g, struct sl_error *err);
SL_NODISCARD enum sl_code sl_keyed_start(struct sl_generation *g, struct sl_session *s,
                                         struct sl_error *err);

/* stateless.c: initial_state, return_state. */
SL_NODISCARD enum sl_code sl_stateless_check(const struct sl_generation *g, struct sl_error *err);
size_t sl_stateless_room(const struct sl_generation *g); /* bytes of the answer's state */
void sl_stateless_start(struct sl_generation *g);
void sl_stateless_over(struct sl_generation *g); /* the run has ended: its state, then the finish */
void sl_stateless_forget(struct sl_generation *g);

#endif
