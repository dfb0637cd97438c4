/* app.h: what the routes share: model, tokenizer, sessions, turns, limits, names.
 *
 * One per process, made by cli/serve.c, given to handlers by sl_exchange_app(). Loop's thread. */
#ifndef SLATE_SERVER_APP_H
#define SLATE_SERVER_APP_H

#include "proto/chat.h"
#include "server/initial.h"
#include "server/server.h"
#include "server/sessions.h"
#include "server/turns.h"

struct sl_app {
    struct sl_server *server;
    const struct sl_config *config;
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct sl_slab *slab;
    struct sl_initial_states *initial; /* NULL: none were given */
    struct sl_tenants *tenants;
    struct sl_sessions *sessions;
    struct sl_turns *turns;
    struct sl_limits limits;
    const struct sl_chat_template *chat; /* NULL: none is known for this model */
    bool chat_unknown;                   /* it has one, which is not known here */
    uint32_t plain_marks;                /* of its marks those that are no special tokens: a bit */
    struct sl_vocab vocab;               /* of the tokenizer */
    const char *const *model_names;      /* the first is what responses say */
    size_t n_model_names;
    int64_t started_at; /* Unix time, s */
    uv_timer_t expiry;
    bool measuring; /* api/memory.c: one at a time */
};

static inline struct sl_app *sl_app_of(const struct sl_exchange *ex)
{
    return sl_exchange_app(ex);
}

/* While the model is being loaded everything that needs it is refused: LOADING. Every handler of
 * server/api/ that needs it asks first. */
SL_NODISCARD enum sl_code sl_app_ready(const struct sl_app *app, struct sl_error *err);

/* A header that would be obeyed elsewhere must not be passed over in silence where a retry makes
 * something twice: UNSUPPORTED, named. */
SL_NODISCARD enum sl_code sl_app_refuse_idempotency_key(const struct sl_exchange *ex,
                                                        struct sl_error *err);

/* Whose request it is. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_app_tenant(const struct sl_exchange *ex, struct sl_tenant **ret,
                                        struct sl_error *err);

/* --session-ttl in seconds; 0: sessions live for ever where nobody says otherwise. */
int64_t sl_app_default_ttl(const struct sl_app *app);

/* Is that one of the served names (NULL: not named)? Errors: MODEL_NOT_FOUND. */
SL_NODISCARD enum sl_code sl_app_check_model(const struct sl_app *app, const char *name,
                                             struct sl_error *err);

/* The body of a route that takes an object and reads nothing of it; it goes. */
SL_NODISCARD enum sl_code sl_app_no_body(struct sl_exchange *ex, struct sl_error *err);

/* The session a request speaks of: `id` (from path or body), checked against X-Slate-Session (a
 * body that names another is INVALID_VALUE) and found for the exchange's tenant: then the response
 * is its own. id NULL: the header's, where it was sent; else *ret is NULL. */
SL_NODISCARD enum sl_code sl_app_session(struct sl_exchange *ex, const char *id,
                                         struct sl_session **ret, struct sl_error *err);

/* The hook `named` (server.h): where other servers share the store, it is asked first. */
void sl_app_named(struct sl_exchange *ex, void (*handler)(struct sl_exchange *ex));

/* The name alone, as sl_app_session() finds it; NULL: none was given. */
SL_NODISCARD enum sl_code sl_app_session_name(const struct sl_exchange *ex, const char *id,
                                              const char **ret, struct sl_error *err);

/* Adds X-Slate-Session and ETag to the response. */
void sl_app_session_headers(struct sl_exchange *ex, const struct sl_session *s);

/* The same, of a session that may not be there any more. */
void sl_app_session_headers_of(struct sl_exchange *ex, const char *id,
                               const unsigned char incarnation[16], uint64_t version);

/* If-Match, where it was sent, names what the session is; else VERSION_MISMATCH, and the response
 * has the session's headers: what it is at. */
SL_NODISCARD enum sl_code sl_app_match(struct sl_exchange *ex, const struct sl_session *s,
                                       struct sl_error *err);

/* Adds X-Slate-Snapshot-Differs for each way in which a restored snapshot differs from what is
 * loaded; all zero: none. Equal bits are promised only where nothing of it holds. */
void sl_app_tell_differences(struct sl_exchange *ex, const struct sl_snapshot_info *info);

/* What a turn reads, as text. */
struct sl_rendered {
    struct sl_text text; /* the prompt's, or rendered messages */
    struct sl_buf own;   /* those */
    struct sl_buf ranges;
    const struct sl_range *contents; /* where in text the messages' contents lie */
    size_t n_contents;
};

/* Errors: UNSUPPORTED (no chat template is known for the model; names the option). */
SL_NODISCARD enum sl_code sl_app_has_chat(const struct sl_app *app, struct sl_error *err);

/* Messages become text with the model's chat template; other inputs stay as they are. *ret wants
 * sl_rendered_done() after a failure, too. Errors: UNSUPPORTED, INVALID_VALUE (sl_chat_check()),
 * TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_app_render(const struct sl_app *app, const struct sl_input *in,
                                        bool continues, bool reply, struct sl_rendered *ret,
                                        struct sl_error *err);
void sl_rendered_done(struct sl_rendered *r);

/* The id of a special token of the model by its text, or -1. */
int64_t sl_app_special_token(const struct sl_app *app, const char *text);

/* The template that --chat-template names, or that the model's files have. After the model was
 * loaded; `jinja` NULL: they have none. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_app_choose_chat(struct sl_app *app, const char *jinja, size_t n,
                                             bool embedded, struct sl_error *err);

/* Counts a turn that is over. */
void sl_app_count_turn(const struct sl_app *app, const struct sl_run_result *res);

/* A session as responses show it; text points into the session. */
void sl_app_session_view(const struct sl_app *app, const struct sl_session *s,
                         struct sl_session_view *ret);

/* Sends what was written to b as JSON (or the buffer's own error) and empties it. */
void sl_app_reply_json(struct sl_exchange *ex, int status, struct sl_buf *b);

/* Largest JSON body of a response. */
enum { SL_RESPONSE_BYTES_MAX = 256 << 20 };

/* The tables of server/api/. */
extern const struct sl_route sl_generate_routes[]; /* generate.c: /v1/generate, OpenAI's two */
extern const size_t sl_generate_n_routes;
extern const struct sl_route sl_session_routes[]; /* sessions.c */
extern const size_t sl_session_n_routes;
extern const struct sl_route sl_model_routes[]; /* models.c: /v1/models, tokenize, detokenize */
extern const size_t sl_model_n_routes;

#endif
