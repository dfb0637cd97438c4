/* response.h: what Slate's own routes answer, structs -> JSON appended to a buffer.
 *
 * All text given here is valid UTF-8 already (sl_utf8_repair), but the bytes of single tokens. The
 * functions append and return nothing: ask the buffer afterwards (sl_buf_code). No trailing
 * newline; no newline inside, so that a body fits one `data:` line. Any thread. */
#ifndef SLATE_PROTO_RESPONSE_H
#define SLATE_PROTO_RESPONSE_H

#include "proto/request.h"
#include "slate/memory.h"

/* Where the bytes of a token come from: sl_tokenizer_bytes() behind a void pointer. */
struct sl_vocab {
    const unsigned char *(*bytes)(const void *arg, uint32_t id, size_t *ret_n);
    const void *arg;
};

struct sl_usage {
    uint64_t prompt_tokens;     /* new ones of this request, cached ones among them */
    uint64_t cached_tokens;     /* of those, not computed again */
    uint64_t completion_tokens; /* kept; total_tokens is the sum */
};

struct sl_timings {
    int64_t queue_us, prefill_us, decode_us;
    uint64_t prefill_tokens; /* rows of prefill and of decoding, for the two rates */
    uint64_t decode_tokens;
    uint64_t computed_tokens;
};

/* Everything a finished turn has to tell; also the final event of a stream. */
struct sl_result {
    const char *id; /* "gen-…", "cmpl-…", "chatcmpl-…" */
    const char *model;
    const char *session; /* NULL: none; then version is not told */
    uint64_t version;    /* after the commit */
    struct sl_text text; /* not streamed: all of it. Final event: what no event had yet */
    uint64_t seed;
    enum sl_finish finish;        /* not NONE */
    struct sl_text stop_sequence; /* s NULL: none */
    const uint32_t *tokens;       /* NULL: not asked for. Final event: those no event had yet */
    size_t n_tokens;
    const struct sl_token_logprobs *logprobs; /* NULL: not asked for; else n_logprobs of them */
    size_t n_logprobs;
    int n_top; /* alternatives to list with each */
    struct sl_usage usage;
    struct sl_timings timings;
    struct sl_text state; /* base64; s NULL: not asked for */
    int64_t created;      /* Unix time, s; OpenAI's shapes only */
};

/* "stop", "length", …: NULL for SL_FINISH_NONE. (sl_finish_name() is the engine's.) */
const char *sl_proto_finish(enum sl_finish f);

/* The body of a generate that is not streamed. */
void sl_write_generate(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v);

/* One event of a stream: new text, and the tokens and logprobs that came with it (NULL: not asked
 * for). text may be "" where tokens came whose characters are not whole yet. */
struct sl_delta {
    const char *id;
    const char *model;
    struct sl_text text;
    const uint32_t *tokens;
    size_t n_tokens;
    const struct sl_token_logprobs *logprobs;
    size_t n_logprobs;
    int n_top;
    int64_t created;    /* Unix time, s; OpenAI's shapes only */
    size_t text_offset; /* OpenAI completions with logprobs: sl_logprobs_chars() of all before */
    bool include_usage; /* OpenAI: "usage":null in each chunk but the last */
};
void sl_write_generate_event(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v);

/* The final event: finish_reason, what is left of the text, usage where asked for. */
void sl_write_generate_final(struct sl_buf *b, const struct sl_result *r, bool include_usage,
                             const struct sl_vocab *v);

/* {"error":{"message","type","param","code"}}: param null when "". The shape of every error on
 * every route, and of the event of an error after the first byte. */
void sl_write_error(struct sl_buf *b, const struct sl_error *err);

struct sl_session_view {
    const char *id;
    const char *model;
    uint64_t version;
    uint64_t tokens_seen;        /* the conversation's, the pending one among them */
    bool in_memory;              /* residency: "memory" or "store" */
    bool busy;                   /* a turn is running */
    uint64_t bytes, kept_bytes;  /* of its state; and of what is kept besides */
    int64_t created_at, used_at; /* Unix time, s */
    int64_t expires_at;          /* 0: never */
    int64_t ttl_s;               /* 0: never */
    struct sl_text metadata;     /* JSON text of an object; s NULL: {} */
    bool rewound, rebuilt;       /* the answer of a rewind or a rebuild: it says to which version,
                                    and how many tokens were read again */
    uint64_t rewound_to, replayed_tokens;
};
void sl_write_session(struct sl_buf *b, const struct sl_session_view *s);

/* A list: begin, an item per session, end (has_more: there are later ones; last_id is the `after`
 * of the next page, NULL when the page is empty). `n` counts the items, for the commas. */
void sl_write_session_list_begin(struct sl_buf *b);
void sl_write_session_list_item(struct sl_buf *b, size_t i, const struct sl_session_view *s);
void sl_write_session_list_end(struct sl_buf *b, bool has_more, const char *last_id);

struct sl_checkpoint_view {
    uint64_t version, tokens_seen;
    int64_t at; /* Unix time, s */
};
struct sl_checkpoint_name {
    uint64_t version;
    const char *name;
};
/* The versions of a session that are kept, oldest first; the last one is what it is at. */
void sl_write_checkpoints(struct sl_buf *b, const char *id, const struct sl_checkpoint_view *v,
                          size_t n, const struct sl_checkpoint_name *names, size_t n_names);
/* One with a name; v NULL: it was deleted. */
void sl_write_checkpoint(struct sl_buf *b, const char *id, const char *name,
                         const struct sl_checkpoint_view *v);

void sl_write_session_deleted(struct sl_buf *b, const char *id);
/* cancelled: a turn was running and was told to end. */
void sl_write_session_cancelled(struct sl_buf *b, const char *id, bool cancelled);

struct sl_memory_view {
    const char *session;
    uint64_t version, tokens_seen, state_bytes;
    uint64_t half_life_over; /* tokens that half-lives were measured over; 0: they were not */
    const struct sl_memory_head *heads;
    size_t n_heads;
};
void sl_write_memory(struct sl_buf *b, const struct sl_memory_view *v);

struct sl_model_view {
    const char *id;  /* one of the served names */
    int64_t created; /* Unix time, s */
    const struct sl_model_info *info;
    const char *tokenizer;             /* its kind */
    const char *chat_template;         /* its name */
    const char *const *initial_states; /* names that sessions may ask for */
    size_t n_initial_states;
};
void sl_write_model(struct sl_buf *b, const struct sl_model_view *m);
void sl_write_model_list(struct sl_buf *b, const struct sl_model_view *m, size_t n);

void sl_write_tokenized(struct sl_buf *b, const uint32_t *tokens, size_t n);
void sl_write_detokenized(struct sl_buf *b, const char *text, size_t n);

/* {"status":"ok"}: /livez "ok", /readyz "ready", drain "draining". What is not ready is an error
 * body (LOADING, DRAINING). */
void sl_write_status(struct sl_buf *b, const char *status);

#endif
