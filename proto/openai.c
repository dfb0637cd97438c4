/* openai.c: OpenAI's requests -> a turn. See openai.h; answers are openai_write.c. */
#include "proto/openai.h"

#include <stdio.h>
#include <string.h>

#include "proto/decode.h"

/* --- fields that would change the answer and are not served --- */

enum wish {
    WISH_ONE,      /* an integer; 1 is fine */
    WISH_FALSE,    /* a boolean; false is fine */
    WISH_NO_TEXT,  /* a string; "" is fine */
    WISH_NO_ITEMS, /* an array; an empty one is fine */
    WISH_EMPTY,    /* "", [], {} and false are fine: clients send them for nothing */
    WISH_NONE      /* any value but null is too much */
};

#define NO_GRAMMAR "text as it comes"

static const struct {
    const char *key;
    enum wish wish;
    const char *allowed;
} wishes[] = {
    {"n", WISH_ONE, "one answer per request (n: 1)"},
    {"best_of", WISH_ONE, "best_of: 1"},
    {"echo", WISH_FALSE, "echo: false"},
    {"suffix", WISH_NO_TEXT, "no suffix"},
    {"tools", WISH_NO_ITEMS, "no tools"},
    {"functions", WISH_NO_ITEMS, "no functions"},
    {"web_search_options", WISH_NONE, "no web search"},
    {"grammar", WISH_EMPTY, NO_GRAMMAR},
    {"json_schema", WISH_EMPTY, NO_GRAMMAR},
    {"structured_outputs", WISH_EMPTY, NO_GRAMMAR},
    {"guided_json", WISH_EMPTY, NO_GRAMMAR},
    {"guided_regex", WISH_EMPTY, NO_GRAMMAR},
    {"guided_choice", WISH_EMPTY, NO_GRAMMAR},
    {"guided_grammar", WISH_EMPTY, NO_GRAMMAR},
    {"resume", WISH_FALSE, "a new turn (POST /v1/generate resumes)"},
    {"initial_state", WISH_NONE, "a session (POST /v1/generate takes an initial_state)"},
    {"return_state", WISH_FALSE, "return_state: false (POST /v1/generate gives a state)"},
};

static enum sl_code check_wish(const struct sl_decode *d, size_t i, const json_t *v)
{
    const char *key = wishes[i].key;
    int64_t number = 1;
    size_t n = 0;
    bool yes = false;
    struct sl_text t = {NULL, 0};
    enum sl_code c = SL_OK;
    switch (wishes[i].wish) {
    case WISH_ONE:
        c = sl_json_int(v, key, 1, 128, &number, d->err);
        break;
    case WISH_FALSE:
        c = sl_json_bool(v, key, &yes, d->err);
        break;
    case WISH_NO_TEXT:
        c = sl_json_text(v, key, SIZE_MAX, SL_E_TOO_LARGE, &t, d->err);
        break;
    case WISH_NO_ITEMS:
        c = sl_json_array(v, key, SIZE_MAX, SL_E_TOO_LARGE, &n, d->err);
        break;
    case WISH_EMPTY:
        yes = json_string_length(v) + json_array_size(v) + json_object_size(v) > 0 ||
              json_is_true(v) || json_is_number(v);
        break;
    case WISH_NONE:
        yes = true;
        break;
    }
    if (c != SL_OK || (number == 1 && n == 0 && t.n == 0 && !yes))
        return c;
    return sl_fail_param(d->err, SL_E_UNSUPPORTED, key, "%s is not supported here; allowed is %s",
                         key, wishes[i].allowed);
}

static enum sl_code check_response_format(const struct sl_decode *d)
{
    const json_t *v = sl_json_member(d->o, "response_format");
    if (!v)
        return SL_OK;
    enum sl_code c = sl_json_object(v, "response_format", d->err);
    if (c != SL_OK)
        return c;
    v = sl_json_member(v, "type");
    if (!v)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, "response_format.type",
                             "response_format.type is missing; it must be \"text\"");
    if (!json_is_string(v))
        return sl_json_wrong_type(v, "response_format.type", "\"text\"", d->err);
    if (json_string_length(v) == 4 && strcmp(json_string_value(v), "text") == 0)
        return SL_OK;
    return sl_fail_param(d->err, SL_E_UNSUPPORTED, "response_format",
                         "response_format.type is \"%.40s\"; only \"text\" is supported",
                         json_string_value(v));
}

static enum sl_code check_modalities(const struct sl_decode *d)
{
    const json_t *v = sl_json_member(d->o, "modalities");
    size_t n = 0;
    enum sl_code c = v ? sl_json_array(v, "modalities", 16, SL_E_INVALID_VALUE, &n, d->err) : SL_OK;
    for (size_t i = 0; i < n && c == SL_OK; i++) {
        const json_t *item = json_array_get(v, i);
        char path[SL_PATH_SIZE];
        snprintf(path, sizeof path, "modalities[%zu]", i);
        if (!json_is_string(item))
            c = sl_json_wrong_type(item, path, "\"text\"", d->err);
        else if (json_string_length(item) != 4 || strcmp(json_string_value(item), "text") != 0)
            c = sl_fail_param(d->err, SL_E_UNSUPPORTED, path,
                              "%s is \"%.40s\"; only \"text\" is supported", path,
                              json_string_value(item));
    }
    return c;
}

/* Of no tools. */
static enum sl_code check_tool_choice(const struct sl_decode *d)
{
    const json_t *v = sl_json_member(d->o, "tool_choice");
    const char *s = v ? json_string_value(v) : "none";
    if (s && (!strcmp(s, "none") || !strcmp(s, "auto")))
        return SL_OK;
    return sl_fail_param(d->err, SL_E_UNSUPPORTED, "tool_choice",
                         "tool_choice asks for a tool; allowed is \"none\" or \"auto\"");
}

static enum sl_code check_wishes(const struct sl_decode *d)
{
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        const json_t *v = sl_json_member(d->o, wishes[i].key);
        enum sl_code c = v ? check_wish(d, i, v) : SL_OK;
        if (c != SL_OK)
            return c;
    }
    enum sl_code c = check_response_format(d);
    if (c == SL_OK)
        c = check_modalities(d);
    return c == SL_OK ? check_tool_choice(d) : c;
}

/* --- /v1/completions --- */

/* prompt: "text" | ["text"] | [ids] | [[ids]]; a list of several is several prompts. */
static enum sl_code read_completion_prompt(const struct sl_decode *d, struct sl_input *in)
{
    const json_t *v = sl_json_member(d->o, "prompt");
    if (!v)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, "prompt", "prompt must be given");
    const json_t *first = json_is_array(v) ? json_array_get(v, 0) : NULL;
    if (!first || !(json_is_string(first) || json_is_array(first)))
        return sl_decode_prompt(d, v, in);
    if (json_array_size(v) > 1)
        return sl_fail_param(d->err, SL_E_UNSUPPORTED, "prompt",
                             "prompt holds %zu prompts; one per request is supported",
                             json_array_size(v));
    if (json_is_string(first)) {
        in->kind = SL_INPUT_TEXT;
        return sl_decode_text(d, first, "prompt[0]", &in->text);
    }
    in->kind = SL_INPUT_TOKENS;
    return sl_decode_tokens(d, first, "prompt[0]", d->limits->prompt_tokens, SL_E_TOO_LARGE,
                            &in->tokens, &in->n_tokens);
}

static enum sl_code read_completion(const struct sl_decode *d, struct sl_generate_request *r)
{
    int64_t logprobs = -1;
    enum sl_code c = read_completion_prompt(d, &r->input);
    r->max_tokens = d->limits->max_tokens < 16 ? d->limits->max_tokens : 16;
    if (c == SL_OK)
        c = sl_decode_max_tokens(d, "max_tokens", r);
    const json_t *v = sl_json_member(d->o, "logprobs");
    if (c == SL_OK && v)
        c = sl_json_int(v, "logprobs", 0, SL_TOP_LOGPROBS_MAX, &logprobs, d->err);
    r->logprobs = (int)logprobs;
    return c;
}

/* --- /v1/chat/completions --- */

static enum sl_code read_chat_logprobs(const struct sl_decode *d, struct sl_generate_request *r)
{
    const json_t *v = sl_json_member(d->o, "logprobs");
    const json_t *top = sl_json_member(d->o, "top_logprobs");
    bool wanted = false;
    int64_t n = 0;
    enum sl_code c = v ? sl_json_bool(v, "logprobs", &wanted, d->err) : SL_OK;
    if (c == SL_OK && top)
        c = sl_json_int(top, "top_logprobs", 0, SL_TOP_LOGPROBS_MAX, &n, d->err);
    if (c == SL_OK && n > 0 && !wanted)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "top_logprobs",
                          "top_logprobs is %lld, which needs logprobs: true", (long long)n);
    if (wanted)
        r->logprobs = (int)n;
    return c;
}

static enum sl_code read_chat(const struct sl_decode *d, struct sl_generate_request *r)
{
    enum sl_code c = sl_decode_max_tokens(d, "max_tokens", r);
    if (c == SL_OK) /* the newer name wins */
        c = sl_decode_max_tokens(d, "max_completion_tokens", r);
    if (c == SL_OK)
        c = read_chat_logprobs(d, r);
    if (c != SL_OK)
        return c;
    const json_t *v = sl_json_member(d->o, "messages");
    if (!v)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, "messages", "messages must be given");
    return sl_decode_messages(d, v, &r->input);
}

/* --- both --- */

static enum sl_code decode(struct sl_generate_request *ret, enum sl_dialect dialect,
                           const void *body, size_t n, const struct sl_limits *limits,
                           struct sl_error *err)
{
    struct sl_generate_request r = {.dialect = dialect};
    json_t *doc = NULL;
    enum sl_code c = sl_json_parse(&doc, body, n, false, err);
    if (c != SL_OK)
        return c;
    struct sl_decode d = {doc, limits, &r.pool, err};
    c = sl_decode_turn(&d, &r);
    if (c == SL_OK)
        c = check_wishes(&d);
    if (c == SL_OK)
        c = dialect == SL_DIALECT_CHAT ? read_chat(&d, &r) : read_completion(&d, &r);
    json_decref(doc);
    if (c == SL_OK)
        *ret = r;
    else
        sl_pool_done(&r.pool);
    return c;
}

enum sl_code sl_completions_decode(struct sl_generate_request *ret, const void *body, size_t n,
                                   const struct sl_limits *limits, struct sl_error *err)
{
    return decode(ret, SL_DIALECT_COMPLETIONS, body, n, limits, err);
}

enum sl_code sl_chat_completions_decode(struct sl_generate_request *ret, const void *body, size_t n,
                                        const struct sl_limits *limits, struct sl_error *err)
{
    return decode(ret, SL_DIALECT_CHAT, body, n, limits, err);
}
