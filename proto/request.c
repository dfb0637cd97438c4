/* request.c: see request.h. What several routes share is in decode.c and messages.c. */
#include "proto/request.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/decode.h"

/* --- POST /v1/generate --- */

/* Exactly one of prompt, messages and resume. */
static enum sl_code read_input(const struct sl_decode *d, struct sl_input *in)
{
    const json_t *prompt = sl_json_member(d->o, "prompt");
    const json_t *messages = sl_json_member(d->o, "messages");
    const json_t *v = sl_json_member(d->o, "resume");
    bool resume = false;
    enum sl_code c = v ? sl_json_bool(v, "resume", &resume, d->err) : SL_OK;
    if (c != SL_OK)
        return c;
    if (!!prompt + !!messages + resume > 1)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, resume ? "resume" : "messages",
                             "only one of prompt, messages and resume may be given, got %s and %s",
                             prompt ? "prompt" : "messages", resume ? "resume" : "messages");
    if (prompt)
        return sl_decode_prompt(d, prompt, in);
    if (messages)
        return sl_decode_messages(d, messages, in);
    if (resume)
        in->kind = SL_INPUT_RESUME;
    return SL_OK;
}

#define AT(field) offsetof(struct sl_generate_request, field)
static const struct sl_json_row generate_rows[] = {
    {"return_tokens", AT(return_tokens), 0, 0, SL_JSON_BOOL},
    {"return_state", AT(return_state), 0, 0, SL_JSON_BOOL},
};
#undef AT

static enum sl_code read_native(const struct sl_decode *d, struct sl_generate_request *r)
{
    int64_t logprobs = -1;
    enum sl_code c =
        sl_json_rows(d->o, generate_rows, sizeof generate_rows / sizeof *generate_rows, r, d->err);
    if (c == SL_OK)
        c = sl_decode_max_tokens(d, "max_tokens", r);
    const json_t *v = sl_json_member(d->o, "logprobs");
    if (c == SL_OK && v)
        c = sl_json_int(v, "logprobs", 0, SL_TOP_LOGPROBS_MAX, &logprobs, d->err);
    v = sl_json_member(d->o, "initial_state");
    if (c == SL_OK && v)
        c = sl_decode_base64(d, v, "initial_state", &r->initial_state, &r->n_initial_state);
    r->logprobs = (int)logprobs;
    return c;
}

static enum sl_code check_generate(const struct sl_generate_request *r, struct sl_error *err)
{
    if (r->input.kind == SL_INPUT_NONE)
        return sl_fail_param(err, SL_E_MISSING_FIELD, "prompt",
                             "one of prompt, messages and resume must be given");
    if (r->input.kind == SL_INPUT_RESUME && !r->session && !r->initial_state)
        return sl_fail_param(err, SL_E_MISSING_FIELD, "session",
                             "resume needs the session whose turn was paused, or its "
                             "initial_state");
    if (r->initial_state && r->session)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "initial_state",
                             "only one of session and initial_state may be given");
    return SL_OK;
}

enum sl_code sl_generate_decode(struct sl_generate_request *ret, const void *body, size_t n,
                                const struct sl_limits *limits, struct sl_error *err)
{
    struct sl_generate_request r = {.dialect = SL_DIALECT_SLATE};
    json_t *doc = NULL;
    enum sl_code c = sl_json_parse(&doc, body, n, false, err);
    if (c != SL_OK)
        return c;
    struct sl_decode d = {doc, limits, &r.pool, err};
    c = sl_decode_turn(&d, &r);
    if (c == SL_OK)
        c = read_native(&d, &r);
    if (c == SL_OK)
        c = read_input(&d, &r.input);
    if (c == SL_OK)
        c = check_generate(&r, err);
    json_decref(doc);
    if (c == SL_OK)
        *ret = r;
    else
        sl_pool_done(&r.pool);
    return c;
}

void sl_generate_done(struct sl_generate_request *r)
{
    sl_pool_done(&r->pool);
    *r = (struct sl_generate_request){.logprobs = -1};
}

/* --- sessions --- */

static enum sl_code read_ttl(const struct sl_decode *d, struct sl_session_request *r)
{
    const json_t *v = sl_json_member(d->o, "ttl_s");
    if (!v)
        return SL_OK;
    r->has_ttl = true;
    return sl_json_int(v, "ttl_s", 0, d->limits->ttl_s, &r->ttl_s, d->err);
}

static int put_json(const char *bytes, size_t n, void *buf)
{
    struct sl_buf *b = buf;
    sl_buf_put(b, bytes, n);
    return b->code == SL_OK ? 0 : -1;
}

/* Kept as the text that it will be answered with. */
static enum sl_code read_metadata(const struct sl_decode *d, struct sl_session_request *r)
{
    const json_t *v = sl_json_member(d->o, "metadata");
    if (!v)
        return SL_OK;
    enum sl_code c = sl_json_object(v, "metadata", d->err);
    if (c == SL_OK)
        c = sl_json_keepable(v, "metadata", d->err);
    if (c != SL_OK)
        return c;
    struct sl_buf b;
    sl_buf_init(&b, d->limits->metadata_bytes);
    int rc = json_dump_callback(v, put_json, &b, JSON_COMPACT);
    if (b.code == SL_E_TOO_LARGE)
        c = sl_fail_param(d->err, SL_E_TOO_LARGE, "metadata",
                          "metadata has more than %zu bytes as compact JSON, which is the limit",
                          d->limits->metadata_bytes);
    else if (rc == 0)
        r->metadata = (struct sl_text){sl_pool_strndup(d->pool, b.data, b.len), b.len};
    if (c == SL_OK && !r->metadata.s)
        c = sl_decode_no_memory(d);
    sl_buf_done(&b);
    return c;
}

static enum sl_code read_version(const json_t *o, const char *param, struct sl_moment *m,
                                 struct sl_error *err)
{
    int64_t version = 0;
    const json_t *v = sl_json_member(o, "version");
    enum sl_code c = v ? sl_json_int(v, param, 0, INT64_MAX, &version, err) : SL_OK;
    if (c != SL_OK)
        return c;
    m->given = v != NULL;
    m->version = (uint64_t)version;
    return SL_OK;
}

/* A checkpoint's name; "" stays where there is none. */
static enum sl_code read_name(const json_t *o, const char *key, const char *param,
                              char ret[SL_SESSION_ID_MAX + 1], struct sl_error *err)
{
    const json_t *v = sl_json_member(o, key);
    if (!v)
        return SL_OK;
    if (!json_is_string(v))
        return sl_json_wrong_type(v, param, "a checkpoint's name, a string", err);
    size_t n = json_string_length(v);
    enum sl_code c = sl_session_id_check(json_string_value(v), n, param, err);
    if (c != SL_OK)
        return c;
    memcpy(ret, json_string_value(v), n + 1);
    return SL_OK;
}

/* version or checkpoint; how errors name them. */
static enum sl_code read_moment_of(const json_t *o, const char *version, const char *checkpoint,
                                   struct sl_moment *m, struct sl_error *err)
{
    enum sl_code c = read_version(o, version, m, err);
    if (c == SL_OK)
        c = read_name(o, "checkpoint", checkpoint, m->name, err);
    if (c == SL_OK && m->given && m->name[0])
        return sl_fail_param(err, SL_E_INVALID_VALUE, checkpoint,
                             "only one of version and checkpoint may be given");
    m->given = m->given || m->name[0];
    return c;
}

static enum sl_code read_moment(const json_t *o, struct sl_moment *m, struct sl_error *err)
{
    return read_moment_of(o, "version", "checkpoint", m, err);
}

static enum sl_code read_from_session(const struct sl_decode *d, const json_t *v,
                                      struct sl_session_request *r)
{
    if (!json_is_string(v))
        return sl_json_wrong_type(v, "from.session", "a session's id, a string", d->err);
    enum sl_code c =
        sl_session_id_check(json_string_value(v), json_string_length(v), "from.session", d->err);
    if (c != SL_OK)
        return c;
    return sl_json_cstr(v, "from.session", SL_SESSION_ID_MAX, d->pool, &r->from_session, d->err);
}

static enum sl_code read_from_object(const struct sl_decode *d, const json_t *v,
                                     struct sl_session_request *r)
{
    const json_t *session = sl_json_member(v, "session");
    const json_t *snapshot = sl_json_member(v, "snapshot");
    const json_t *state = sl_json_member(v, "initial_state");
    const json_t *name = sl_json_member(v, "initial_state_name");
    int n = !!session + !!snapshot + !!state + !!name;
    enum sl_code c;
    if (n != 1)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, "from",
                             "from must hold exactly one of session, snapshot, initial_state and "
                             "initial_state_name, got %d of them",
                             n);
    c = read_moment_of(v, "from.version", "from.checkpoint", &r->at, d->err);
    if (c != SL_OK)
        return c;
    if (r->at.given && !session)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE,
                             r->at.name[0] ? "from.checkpoint" : "from.version",
                             "version and checkpoint are those of from.session; nothing else has "
                             "any");
    if (snapshot)
        return sl_decode_base64(d, snapshot, "from.snapshot", &r->from_snapshot,
                                &r->n_from_snapshot);
    if (state)
        return sl_decode_base64(d, state, "from.initial_state", &r->from_initial_state,
                                &r->n_from_initial_state);
    if (name && !json_is_string(name))
        return sl_json_wrong_type(name, "from.initial_state_name", "a name, a string", d->err);
    if (name)
        return sl_json_cstr(name, "from.initial_state_name", SL_INITIAL_STATE_NAME_MAX, d->pool,
                            &r->from_initial_state_name, d->err);
    return read_from_session(d, session, r);
}

/* from: a session's id, or an object that says what it holds. */
static enum sl_code read_from(const struct sl_decode *d, struct sl_session_request *r)
{
    const json_t *v = sl_json_member(d->o, "from");
    if (!v)
        return SL_OK;
    if (json_is_string(v))
        return sl_decode_id(d, "from", &r->from_session);
    if (json_is_object(v))
        return read_from_object(d, v, r);
    return sl_json_wrong_type(v, "from",
                              "a session's id or an object with one of session, snapshot, "
                              "initial_state and initial_state_name",
                              d->err);
}

static enum sl_code read_create(const struct sl_decode *d, struct sl_session_request *r)
{
    const json_t *prompt = sl_json_member(d->o, "prompt");
    const json_t *messages = sl_json_member(d->o, "messages");
    enum sl_code c = sl_decode_id(d, "id", &r->id);
    if (c == SL_OK)
        c = sl_decode_model(d, &r->model);
    if (c == SL_OK && prompt && messages)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "messages",
                          "only one of prompt and messages may be given");
    if (c == SL_OK && prompt)
        c = sl_decode_prompt(d, prompt, &r->input);
    if (c == SL_OK && messages)
        c = sl_decode_messages(d, messages, &r->input);
    if (c == SL_OK)
        c = read_from(d, r);
    return c;
}

static enum sl_code read_fork(const struct sl_decode *d, struct sl_session_request *r)
{
    enum sl_code c = sl_decode_id(d, "id", &r->id);
    return c == SL_OK ? read_moment(d->o, &r->at, d->err) : c;
}

static enum sl_code read_patch(const struct sl_decode *d, struct sl_session_request *r)
{
    (void)r;
    if (sl_json_member(d->o, "ttl_s") || sl_json_member(d->o, "metadata"))
        return SL_OK;
    return sl_fail_param(d->err, SL_E_MISSING_FIELD, "ttl_s",
                         "there is nothing to change: ttl_s or metadata must be given");
}

static enum sl_code decode_session(struct sl_session_request *ret, const void *body, size_t n,
                                   const struct sl_limits *limits,
                                   enum sl_code (*read)(const struct sl_decode *,
                                                        struct sl_session_request *),
                                   struct sl_error *err)
{
    struct sl_session_request r = {.has_ttl = false};
    json_t *doc = NULL;
    enum sl_code c = sl_json_parse(&doc, body, n, true, err);
    if (c != SL_OK)
        return c;
    struct sl_decode d = {doc, limits, &r.pool, err};
    c = read(&d, &r);
    if (c == SL_OK)
        c = read_ttl(&d, &r);
    if (c == SL_OK)
        c = read_metadata(&d, &r);
    json_decref(doc);
    if (c == SL_OK)
        *ret = r;
    else
        sl_pool_done(&r.pool);
    return c;
}

enum sl_code sl_session_create_decode(struct sl_session_request *ret, const void *body, size_t n,
                                      const struct sl_limits *limits, struct sl_error *err)
{
    return decode_session(ret, body, n, limits, read_create, err);
}

enum sl_code sl_session_patch_decode(struct sl_session_request *ret, const void *body, size_t n,
                                     const struct sl_limits *limits, struct sl_error *err)
{
    return decode_session(ret, body, n, limits, read_patch, err);
}

enum sl_code sl_session_fork_decode(struct sl_session_request *ret, const void *body, size_t n,
                                    const struct sl_limits *limits, struct sl_error *err)
{
    return decode_session(ret, body, n, limits, read_fork, err);
}

enum sl_code sl_empty_decode(const void *body, size_t n, struct sl_error *err)
{
    json_t *doc = NULL;
    enum sl_code c = sl_json_parse(&doc, body, n, true, err);
    json_decref(doc);
    return c;
}

static enum sl_code decode_moment(struct sl_moment *ret, const void *body, size_t n,
                                  enum sl_code (*read)(const json_t *doc, struct sl_moment *m,
                                                       struct sl_error *err),
                                  struct sl_error *err)
{
    json_t *doc = NULL;
    struct sl_moment m = {.given = false};
    enum sl_code c = sl_json_parse(&doc, body, n, true, err);
    if (c != SL_OK)
        return c;
    c = read(doc, &m, err);
    json_decref(doc);
    if (c == SL_OK)
        *ret = m;
    return c;
}

static enum sl_code read_rewind(const json_t *doc, struct sl_moment *m, struct sl_error *err)
{
    enum sl_code c = read_moment(doc, m, err);
    if (c == SL_OK && !m->given)
        c = sl_fail_param(err, SL_E_MISSING_FIELD, "version",
                          "version or checkpoint must be given: to which the session is to go back "
                          "(GET …/checkpoints lists them)");
    return c;
}

static enum sl_code read_checkpoint(const json_t *doc, struct sl_moment *m, struct sl_error *err)
{
    enum sl_code c = read_version(doc, "version", m, err);
    if (c == SL_OK)
        c = read_name(doc, "name", "name", m->name, err);
    if (c == SL_OK && !m->name[0])
        c = sl_fail_param(err, SL_E_MISSING_FIELD, "name",
                          "name must be given: what the checkpoint is to be called");
    return c;
}

enum sl_code sl_rewind_decode(struct sl_moment *ret, const void *body, size_t n,
                              struct sl_error *err)
{
    return decode_moment(ret, body, n, read_rewind, err);
}

enum sl_code sl_checkpoint_decode(struct sl_moment *ret, const void *body, size_t n,
                                  struct sl_error *err)
{
    return decode_moment(ret, body, n, read_checkpoint, err);
}

void sl_session_request_done(struct sl_session_request *r)
{
    sl_pool_done(&r->pool);
    *r = (struct sl_session_request){.has_ttl = false};
}

/* --- tokens and text --- */

static enum sl_code decode_tokenize(struct sl_tokenize_request *ret, const char *key,
                                    const void *body, size_t n, const struct sl_limits *limits,
                                    struct sl_error *err)
{
    struct sl_tokenize_request r = {.model = NULL};
    json_t *doc = NULL;
    enum sl_code c = sl_json_parse(&doc, body, n, false, err);
    if (c != SL_OK)
        return c;
    struct sl_decode d = {doc, limits, &r.pool, err};
    const json_t *v = sl_json_member(doc, key);
    c = sl_decode_model(&d, &r.model);
    if (c == SL_OK && !v)
        c = sl_fail_param(err, SL_E_MISSING_FIELD, key, "%s must be given", key);
    if (c == SL_OK && strcmp(key, "text") == 0)
        c = sl_decode_text(&d, v, key, &r.text);
    else if (c == SL_OK)
        c = sl_decode_tokens(&d, v, key, limits->prompt_tokens, SL_E_TOO_LARGE, &r.tokens,
                             &r.n_tokens);
    json_decref(doc);
    if (c == SL_OK)
        *ret = r;
    else
        sl_pool_done(&r.pool);
    return c;
}

enum sl_code sl_tokenize_decode(struct sl_tokenize_request *ret, const void *body, size_t n,
                                const struct sl_limits *limits, struct sl_error *err)
{
    return decode_tokenize(ret, "text", body, n, limits, err);
}

enum sl_code sl_detokenize_decode(struct sl_tokenize_request *ret, const void *body, size_t n,
                                  const struct sl_limits *limits, struct sl_error *err)
{
    return decode_tokenize(ret, "tokens", body, n, limits, err);
}

void sl_tokenize_request_done(struct sl_tokenize_request *r)
{
    sl_pool_done(&r->pool);
    *r = (struct sl_tokenize_request){.model = NULL};
}
