/* request_fuzz.c: request bodies. The first byte picks the decoder, the rest is the body (or the
 * query). What was decoded must keep the promises of request.h, and is written again as answers,
 * which must be JSON; what was refused must be a 4xx with a message, and its error body JSON. */
#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/chat.h"
#include "proto/json.h"
#include "proto/openai.h"
#include "proto/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct sl_limits limits = {.max_tokens = 1000,
                                        .default_max_tokens = 100,
                                        .prompt_bytes = 1000,
                                        .prompt_tokens = 100,
                                        .messages = 10,
                                        .max_time_ms = 100000,
                                        .metadata_bytes = 200,
                                        .ttl_s = 100000,
                                        .list_page = 1000,
                                        .state_bytes = 100,
                                        .vocab_size = 300};

/* Ids below 256 are bytes, so that tokens are broken characters; but not 0: jansson, which checks
 * the answers, refuses a NUL in a key, which JSON allows. */
static const unsigned char *token_bytes(const void *arg, uint32_t id, size_t *ret_n)
{
    static unsigned char all[256];
    (void)arg;
    *ret_n = id > 0 && id < 256;
    all[id & 255] = (unsigned char)id;
    return *ret_n ? &all[id] : NULL;
}
static const struct sl_vocab vocab = {token_bytes, NULL};

/* Whatever was written is one JSON value without duplicate keys on one line. */
static void check_json(struct sl_buf *b)
{
    assert(sl_buf_code(b, NULL) == SL_OK);
    assert(!memchr(b->data, '\n', b->len));
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    assert(v);
    json_decref(v);
    sl_buf_clear(b);
}

static void check_refusal(enum sl_code c, const struct sl_error *err)
{
    assert(c != SL_OK && err->code == c);
    assert(sl_code_http(c) >= 400 && sl_code_http(c) < 500);
    assert(err->message[0] && memchr(err->message, '\0', sizeof err->message));
    assert(memchr(err->param, '\0', sizeof err->param));
    assert(sl_utf8_valid(err->message, strlen(err->message)));
    assert(sl_utf8_valid(err->param, strlen(err->param)));
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    sl_write_error(&b, err);
    check_json(&b);
    sl_buf_done(&b);
}

static void check_text(struct sl_text t)
{
    assert(t.s && t.n <= limits.prompt_bytes && t.s[t.n] == '\0' && sl_utf8_valid(t.s, t.n));
}

static void check_tokens(const uint32_t *ids, size_t n, size_t max)
{
    assert(n <= max);
    for (size_t i = 0; i < n; i++)
        assert(ids[i] < limits.vocab_size);
}

/* Rendered messages hold the separators of their turns and no other blank line. */
static void check_messages(const struct sl_input *in, struct sl_buf *b)
{
    assert(in->n_messages >= 1 && in->n_messages <= limits.messages);
    for (size_t i = 0; i < in->n_messages; i++)
        check_text(in->messages[i].content);
    sl_chat_render(b, NULL, &sl_chat_templates[0], in->messages, in->n_messages, true, true);
    assert(sl_buf_code(b, NULL) == SL_OK && sl_utf8_valid(b->data, b->len));
    size_t separators = 0;
    for (size_t i = 0; i + 1 < b->len; i++)
        separators += b->data[i] == '\n' && b->data[i + 1] == '\n';
    assert(separators == in->n_messages + 1);
}

static void check_sampling(const struct sl_sampling *s)
{
    assert(s->temperature >= 0 && s->temperature <= 100);
    assert(s->top_p >= 0 && s->top_p <= 1 && s->typical_p >= 0 && s->typical_p <= 1);
    assert(s->min_p >= 0 && s->min_p <= 1 && s->penalty_decay >= 0 && s->penalty_decay <= 1);
    assert(s->repetition_penalty > 0 && isfinite(s->repetition_penalty));
    assert(isfinite(s->presence_penalty) && isfinite(s->frequency_penalty));
    assert(s->penalty_last_n <= SL_PENALTY_LAST_N_MAX && s->seed <= INT64_MAX);
    assert(s->n_bias <= SL_LOGIT_BIAS_MAX);
    for (size_t i = 0; i < s->n_bias; i++)
        assert(s->bias[i].token < limits.vocab_size && fabsf(s->bias[i].bias) <= 100);
}

static void check_generate(const struct sl_generate_request *r)
{
    assert(r->input.kind != SL_INPUT_NONE);
    assert(!r->session || sl_session_id_valid(r->session, strlen(r->session)));
    assert(r->max_tokens <= limits.max_tokens);
    assert(r->max_time_ms >= 0 && r->max_time_ms <= limits.max_time_ms);
    assert(r->n_stops <= SL_REQUEST_STOPS_MAX);
    for (size_t i = 0; i < r->n_stops; i++)
        assert(r->stops[i].n >= 1 && r->stops[i].n <= SL_STOP_BYTES_MAX);
    check_tokens(r->stop_tokens, r->n_stop_tokens, SL_STOP_TOKENS_MAX);
    check_sampling(&r->sampling);
    assert(r->logprobs >= -1 && r->logprobs <= SL_TOP_LOGPROBS_MAX);
}

/* Answers made of what the request brought. */
static void answer(const struct sl_generate_request *r, struct sl_text text, struct sl_buf *b)
{
    struct sl_token_logprobs lp[3] = {{{200, -1}, {{7, -0.5f}, {201, -INFINITY}}},
                                      {{299, -1e-30f}, {{298, 0}, {10, NAN}}},
                                      {{0, -3.5f}, {{0, -3.5f}, {255, -9}}}};
    struct sl_result res = {.id = "x",
                            .model = r->model ? r->model : "m",
                            .session = r->session,
                            .text = text,
                            .seed = r->sampling.seed,
                            .finish = SL_FINISH_STOP,
                            .stop_sequence = {text.s, text.n},
                            .tokens = r->input.tokens,
                            .n_tokens = r->input.n_tokens,
                            .logprobs = r->logprobs >= 0 ? lp : NULL,
                            .n_logprobs = 3,
                            .n_top = r->logprobs > 2 ? 2 : r->logprobs};
    struct sl_delta d = {.id = "x",
                         .model = res.model,
                         .text = text,
                         .logprobs = res.logprobs,
                         .n_logprobs = 3,
                         .n_top = res.n_top,
                         .include_usage = r->include_usage};
    sl_buf_clear(b);
    sl_write_generate(b, &res, &vocab);
    check_json(b);
    sl_write_generate_event(b, &d, &vocab);
    check_json(b);
    sl_write_completion(b, &res, &vocab);
    check_json(b);
    sl_write_completion_delta(b, &d, &vocab);
    check_json(b);
    sl_write_chat_completion(b, &res, &vocab);
    check_json(b);
    sl_write_chat_delta(b, &d, &vocab);
    check_json(b);
}

static void generate(enum sl_code (*decode)(struct sl_generate_request *, const void *, size_t,
                                            const struct sl_limits *, struct sl_error *),
                     const uint8_t *data, size_t size)
{
    struct sl_generate_request r;
    struct sl_error err = {0};
    enum sl_code c = decode(&r, data, size, &limits, &err);
    if (c != SL_OK) {
        check_refusal(c, &err);
        return;
    }
    struct sl_buf b, out;
    struct sl_text text = {"", 0};
    sl_buf_init(&b, 1 << 20);
    sl_buf_init(&out, 1 << 20);
    check_generate(&r);
    if (r.input.kind == SL_INPUT_MESSAGES) {
        check_messages(&r.input, &b);
        text = (struct sl_text){b.data, b.len};
    } else if (r.input.kind == SL_INPUT_TEXT) {
        check_text(r.input.text);
        text = r.input.text;
    } else {
        check_tokens(r.input.tokens, r.input.n_tokens, limits.prompt_tokens);
    }
    answer(&r, text, &out);
    sl_buf_done(&b);
    sl_buf_done(&out);
    sl_generate_done(&r);
}

static void session(enum sl_code (*decode)(struct sl_session_request *, const void *, size_t,
                                           const struct sl_limits *, struct sl_error *),
                    const uint8_t *data, size_t size)
{
    struct sl_session_request r;
    struct sl_error err = {0};
    enum sl_code c = decode(&r, data, size, &limits, &err);
    if (c != SL_OK) {
        check_refusal(c, &err);
        return;
    }
    assert(!r.id || sl_session_id_valid(r.id, strlen(r.id)));
    assert(!r.from_session || sl_session_id_valid(r.from_session, strlen(r.from_session)));
    assert(!r.at.name[0] || (r.at.given && sl_session_id_valid(r.at.name, strlen(r.at.name))));
    assert(!r.at.given || (!r.from_snapshot && !r.from_initial_state_name));
    assert(r.ttl_s >= 0 && r.ttl_s <= limits.ttl_s && (r.has_ttl || !r.ttl_s));
    assert(r.metadata.n <= limits.metadata_bytes);
    struct sl_session_view view = {.id = r.id ? r.id : "x",
                                   .model = r.model ? r.model : "m",
                                   .ttl_s = r.ttl_s,
                                   .metadata = r.metadata};
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    sl_write_session(&b, &view);
    check_json(&b);
    if (r.input.kind == SL_INPUT_MESSAGES)
        check_messages(&r.input, &b);
    sl_buf_done(&b);
    sl_session_request_done(&r);
}

static void tokens(bool encode, const uint8_t *data, size_t size)
{
    struct sl_tokenize_request r;
    struct sl_error err = {0};
    enum sl_code c = encode ? sl_tokenize_decode(&r, data, size, &limits, &err)
                            : sl_detokenize_decode(&r, data, size, &limits, &err);
    if (c != SL_OK) {
        check_refusal(c, &err);
        return;
    }
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    if (encode) {
        check_text(r.text);
        sl_write_detokenized(&b, r.text.s, r.text.n);
    } else {
        check_tokens(r.tokens, r.n_tokens, limits.prompt_tokens);
        sl_write_tokenized(&b, r.tokens, r.n_tokens);
    }
    check_json(&b);
    sl_buf_done(&b);
    sl_tokenize_request_done(&r);
}

static void query(const uint8_t *data, size_t size)
{
    struct sl_list_query q;
    struct sl_error err = {0};
    enum sl_code c = sl_list_query_decode(&q, (const char *)data, size, &limits, &err);
    if (c != SL_OK) {
        check_refusal(c, &err);
        return;
    }
    assert(q.limit >= 1 && q.limit <= limits.list_page);
    assert(!q.after[0] || sl_session_id_valid(q.after, strlen(q.after)));
    assert(!q.prefix[0] || sl_session_id_valid(q.prefix, strlen(q.prefix)));
    (void)sl_etag_matches((const char *)data, size, "\"a-1\"");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_json_init();
    if (size == 0)
        return 0;
    switch (*data++ % 9) {
    case 0:
        generate(sl_generate_decode, data, size - 1);
        break;
    case 1:
        generate(sl_completions_decode, data, size - 1);
        break;
    case 2:
        generate(sl_chat_completions_decode, data, size - 1);
        break;
    case 3:
        session(sl_session_create_decode, data, size - 1);
        break;
    case 4:
        session(sl_session_patch_decode, data, size - 1);
        break;
    case 5:
        session(sl_session_fork_decode, data, size - 1);
        break;
    case 6:
        tokens(true, data, size - 1);
        break;
    case 7:
        tokens(false, data, size - 1);
        break;
    default:
        query(data, size - 1);
        break;
    }
    return 0;
}
