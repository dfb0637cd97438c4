/* request.h: the bodies and queries of Slate's own routes, bytes -> structs.
 *
 * Every decoder takes the whole body and gives a struct that owns what it points to (its pool) or
 * an error that names the field, what was given and what is allowed. On failure nothing is left to
 * free. Unknown fields are ignored, null means absent, an integral real (100.0) is an integer.
 * What a model or the registry must know to judge (does the session exist, is the model's name
 * right) is the caller's to check; ids of tokens are checked against limits->vocab_size.
 *
 * Errors of all: INVALID_JSON, INVALID_TYPE, INVALID_VALUE, MISSING_FIELD, UNSUPPORTED, TOO_LARGE,
 * NO_MEMORY. Any thread, after sl_json_init(). The OpenAI routes: openai.h, into the same struct.
 */
#ifndef SLATE_PROTO_REQUEST_H
#define SLATE_PROTO_REQUEST_H

#include "proto/buf.h"
#include "slate/engine.h"

enum {
    SL_SESSION_ID_MAX = 128,
    SL_INITIAL_STATE_NAME_MAX = 64,
    SL_MODEL_NAME_MAX = 256,
    SL_METADATA_BYTES_MAX = 16384, /* of a session; compact JSON text */
    SL_REQUEST_STOPS_MAX = 16,     /* stop strings in a request; a chat template's come on top */
    SL_ETAG_SIZE = 64              /* room for an ETag and its '\0' */
};

/* What requests may ask for. The caller fills it once: max_tokens and its default come from the
 * server's options, the rest is SL_LIMITS_DEFAULT's. What is not here has its limit in engine.h
 * (SL_STOP_BYTES_MAX …). */
struct sl_limits {
    size_t max_tokens;         /* largest max_tokens of a turn */
    size_t default_max_tokens; /* where a request says nothing */
    size_t prompt_bytes;       /* of prompt text, or of all messages' contents together */
    size_t prompt_tokens;      /* ids in prompt, or in tokens of detokenize */
    size_t messages;
    int64_t max_time_ms;
    size_t metadata_bytes; /* of the compact JSON text */
    int64_t ttl_s;
    size_t list_page;   /* largest limit of a list */
    size_t state_bytes; /* of a snapshot given in base64, decoded */
    size_t vocab_size;  /* ids of tokens are below it; 0: not checked here */
};
#define SL_LIMITS_DEFAULT                                                                          \
    {                                                                                              \
        .max_tokens = 1u << 20, .default_max_tokens = 512, .prompt_bytes = 8u << 20,               \
        .prompt_tokens = 1u << 20, .messages = 4096, .max_time_ms = 86400000,                      \
        .metadata_bytes = SL_METADATA_BYTES_MAX, .ttl_s = 315360000, .list_page = 1000,            \
        .state_bytes = 256u << 20                                                                  \
    }

/* Bytes with a length: may hold '\0' and is also ended by one. s NULL: absent. */
struct sl_text {
    const char *s;
    size_t n;
};

enum sl_chat_role { SL_CHAT_SYSTEM, SL_CHAT_USER, SL_CHAT_ASSISTANT };

struct sl_message {
    enum sl_chat_role role; /* "developer" is SYSTEM */
    struct sl_text content; /* text parts joined; null is "" */
};

/* What a turn reads. */
enum sl_input_kind {
    SL_INPUT_NONE,     /* none of the fields was given */
    SL_INPUT_TEXT,     /* prompt: a string, may be empty (continue where the session is) */
    SL_INPUT_TOKENS,   /* prompt: ids, may be none */
    SL_INPUT_MESSAGES, /* to be rendered with chat.h */
    SL_INPUT_RESUME    /* finish a paused turn; `session` is set */
};
struct sl_input {
    enum sl_input_kind kind;
    struct sl_text text;
    const uint32_t *tokens;
    size_t n_tokens;
    const struct sl_message *messages;
    size_t n_messages; /* ≥ 1 with SL_INPUT_MESSAGES */
};

enum sl_on_disconnect {
    SL_ON_DISCONNECT_ROLLBACK,
    SL_ON_DISCONNECT_COMMIT,
    SL_ON_DISCONNECT_CONTINUE
};

/* Which shape the answer has. */
enum sl_dialect { SL_DIALECT_SLATE, SL_DIALECT_COMPLETIONS, SL_DIALECT_CHAT };

/* POST /v1/generate, and OpenAI's two. */
struct sl_generate_request {
    struct sl_pool pool; /* owns all pointers below */
    enum sl_dialect dialect;
    struct sl_input input; /* never SL_INPUT_NONE */
    const char *session;   /* a valid id, or NULL */
    const char *model;     /* NULL: not named */

    size_t max_tokens;           /* 0: only read the prompt */
    bool fewer_will_do;          /* max_tokens is no number of the client's (-1, absent): as many of
                                    them as fit */
    int64_t max_time_ms;         /* 0: none */
    const struct sl_stop *stops; /* the client's; with messages add the chat template's */
    size_t n_stops;              /* ≤ SL_REQUEST_STOPS_MAX */
    const uint32_t *stop_tokens;
    size_t n_stop_tokens;
    bool ignore_eos;
    enum sl_on_disconnect on_disconnect;

    struct sl_sampling sampling; /* bias points into the pool */
    bool has_seed;               /* false: draw one, 0 … 2^63-1, and tell it */

    int logprobs; /* -1: none; else how many alternatives */
    bool return_tokens;
    bool stream;
    bool include_usage; /* in the stream */

    const unsigned char *initial_state; /* a snapshot; NULL: none */
    size_t n_initial_state;
    bool return_state;
};

SL_NODISCARD enum sl_code sl_generate_decode(struct sl_generate_request *ret, const void *body,
                                             size_t n, const struct sl_limits *limits,
                                             struct sl_error *err);
void sl_generate_done(struct sl_generate_request *r); /* all zero is fine */

/* POST …/pause, /resume, /cancel, /rebuild: an object, of which nothing is read, or no body. */
SL_NODISCARD enum sl_code sl_empty_decode(const void *body, size_t n, struct sl_error *err);

/* A moment of a session: what a checkpoint's name stands for, or a version. */
struct sl_moment {
    bool given;
    char name[SL_SESSION_ID_MAX + 1]; /* "": version */
    uint64_t version;
};

/* POST /v1/sessions, PATCH /v1/sessions/{id}, POST …/fork: which fields each takes is said there.
 * An empty body is {}. */
struct sl_session_request {
    struct sl_pool pool;
    const char *id;        /* create, fork: the new session's; NULL: make one */
    struct sl_input input; /* create: what it reads first; NONE, TEXT, TOKENS or MESSAGES */
    const char *model;     /* create; NULL: not named */
    bool has_ttl;
    int64_t ttl_s;           /* 0: never expires */
    struct sl_text metadata; /* compact JSON text of an object; s NULL: absent. It replaces the
                                old one whole */

    /* create: `from`, at most one of them */
    const char *from_session;
    const unsigned char *from_snapshot;
    size_t n_from_snapshot;
    const unsigned char *from_initial_state;
    size_t n_from_initial_state;
    const char *from_initial_state_name;

    struct sl_moment at; /* fork, and create with from_session: as it was then */
};

SL_NODISCARD enum sl_code sl_session_create_decode(struct sl_session_request *ret, const void *body,
                                                   size_t n, const struct sl_limits *limits,
                                                   struct sl_error *err);
/* ttl_s and metadata; at least one of them. */
SL_NODISCARD enum sl_code sl_session_patch_decode(struct sl_session_request *ret, const void *body,
                                                  size_t n, const struct sl_limits *limits,
                                                  struct sl_error *err);
/* id, ttl_s, metadata; what is absent is taken over from the old session. version or checkpoint:
 * as it was then. */
SL_NODISCARD enum sl_code sl_session_fork_decode(struct sl_session_request *ret, const void *body,
                                                 size_t n, const struct sl_limits *limits,
                                                 struct sl_error *err);
/* {"version": N} or {"checkpoint": NAME}: to which a session is rewound. */
SL_NODISCARD enum sl_code sl_rewind_decode(struct sl_moment *ret, const void *body, size_t n,
                                           struct sl_error *err);
/* {"name": NAME, "version": N}: a version that gets a name; not `given`: the present one. */
SL_NODISCARD enum sl_code sl_checkpoint_decode(struct sl_moment *ret, const void *body, size_t n,
                                               struct sl_error *err);
void sl_session_request_done(struct sl_session_request *r);

/* 1-128 of [A-Za-z0-9._-], not starting with a dot. */
bool sl_session_id_valid(const char *s, size_t n);
/* The same as an error that says what is allowed; `param` is where it was given. */
SL_NODISCARD enum sl_code sl_session_id_check(const char *s, size_t n, const char *param,
                                              struct sl_error *err);

/* GET /v1/sessions?limit=…&after=…&prefix=… */
struct sl_list_query {
    size_t limit;                       /* 1 … limits->list_page; 100 where not given */
    char after[SL_SESSION_ID_MAX + 1];  /* "": from the start */
    char prefix[SL_SESSION_ID_MAX + 1]; /* "": all */
};
/* `query`: what stands behind the '?', still percent-encoded; n 0: none. */
SL_NODISCARD enum sl_code sl_list_query_decode(struct sl_list_query *ret, const char *query,
                                               size_t n, const struct sl_limits *limits,
                                               struct sl_error *err);

/* POST /v1/tokenize {"text"} and /v1/detokenize {"tokens"}. */
struct sl_tokenize_request {
    struct sl_pool pool;
    const char *model;   /* NULL: not named */
    struct sl_text text; /* tokenize */
    const uint32_t *tokens;
    size_t n_tokens; /* detokenize */
};
SL_NODISCARD enum sl_code sl_tokenize_decode(struct sl_tokenize_request *ret, const void *body,
                                             size_t n, const struct sl_limits *limits,
                                             struct sl_error *err);
SL_NODISCARD enum sl_code sl_detokenize_decode(struct sl_tokenize_request *ret, const void *body,
                                               size_t n, const struct sl_limits *limits,
                                               struct sl_error *err);
void sl_tokenize_request_done(struct sl_tokenize_request *r);

/* The ETag of a session, quotes and all: "<32 hex digits of the incarnation>-<version>". */
void sl_etag_format(char ret[SL_ETAG_SIZE], const unsigned char incarnation[16], uint64_t version);
/* Does the value of an If-Match header (a list of ETags, or *) name it? Compared strongly: W/"…"
 * never does. */
bool sl_etag_matches(const char *header, size_t n, const char *etag);

#endif
