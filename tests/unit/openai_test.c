/* openai_test.c: OpenAI's requests and shapes. What is expected was written by hand from OpenAI's
 * API reference and the types of its npm client. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <string.h>

#include "proto/json.h"
#include "proto/openai.h"
#include "tests/support/fields.h"
#include "tests/support/vocab.h"

#define N(a) (sizeof(a) / sizeof *(a))
#define TEXT(s)                                                                                    \
    {                                                                                              \
        s, sizeof(s) - 1                                                                           \
    }

static struct sl_limits limits = SL_LIMITS_DEFAULT;

static enum sl_code completions(const void *body, size_t n, struct sl_error *err)
{
    struct sl_generate_request r;
    enum sl_code c = sl_completions_decode(&r, body, n, &limits, err);
    if (c == SL_OK)
        sl_generate_done(&r);
    return c;
}

static enum sl_code chat(const void *body, size_t n, struct sl_error *err)
{
    struct sl_generate_request r;
    enum sl_code c = sl_chat_completions_decode(&r, body, n, &limits, err);
    if (c == SL_OK)
        sl_generate_done(&r);
    return c;
}

static struct sl_generate_request decoded(enum sl_dialect dialect, const char *body)
{
    struct sl_generate_request r;
    struct sl_error err = {0};
    size_t n = strlen(body);
    enum sl_code c =
        dialect == SL_DIALECT_CHAT    ? sl_chat_completions_decode(&r, body, n, &limits, &err)
        : dialect == SL_DIALECT_SLATE ? sl_generate_decode(&r, body, n, &limits, &err)
                                      : sl_completions_decode(&r, body, n, &limits, &err);
    if (c != SL_OK)
        fail_msg("%s: %s", body, err.message);
    assert_int_equal(r.dialect, dialect);
    return r;
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void completion_requests(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        enum sl_input_kind kind;
        size_t n;
    } cases[] = {{"{\"model\":\"m\",\"prompt\":\"abc\"}", SL_INPUT_TEXT, 3},
                 {"{\"prompt\":[\"ab\"]}", SL_INPUT_TEXT, 2},
                 {"{\"prompt\":[1,2,3]}", SL_INPUT_TOKENS, 3},
                 {"{\"prompt\":[[1,2]]}", SL_INPUT_TOKENS, 2},
                 {"{\"prompt\":[]}", SL_INPUT_TOKENS, 0}};
    for (size_t i = 0; i < N(cases); i++) {
        struct sl_generate_request r = decoded(SL_DIALECT_COMPLETIONS, cases[i].body);
        assert_int_equal(r.input.kind, cases[i].kind);
        assert_int_equal(r.input.text.n + r.input.n_tokens, cases[i].n);
        assert_int_equal(r.max_tokens, 16);
        assert_int_equal(r.logprobs, -1);
        sl_generate_done(&r);
    }
    struct sl_generate_request r = decoded(
        SL_DIALECT_COMPLETIONS,
        "{\"prompt\":\"x\",\"max_tokens\":5,\"logprobs\":0,\"n\":1,\"best_of\":1,\"echo\":false,"
        "\"suffix\":\"\",\"user\":\"u\",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
        ","
        "\"stop\":\"\\n\",\"seed\":3,\"temperature\":0,\"top_k\":7,\"min_p\":0.5,\"session\":\"s\","
        "\"logit_bias\":{\"50256\":-100},\"ignore_eos\":true}");
    assert_int_equal(r.max_tokens, 5);
    assert_int_equal(r.logprobs, 0);
    assert_true(r.stream && r.include_usage && r.has_seed && r.ignore_eos);
    assert_int_equal(r.n_stops, 1);
    assert_true(r.sampling.temperature == 0 && r.sampling.top_k == 7 && r.sampling.min_p == 0.5f);
    assert_string_equal(r.session, "s");
    assert_int_equal(r.sampling.bias[0].token, 50256);
    sl_generate_done(&r);
}

/* -1, as llama.cpp's and LM Studio's clients send it: as many as --max-tokens-limit allows, and
 * as fit; so it is where nothing is said. */
static void as_many_tokens_as_are_allowed(void **state)
{
    (void)state;
    static const struct {
        enum sl_dialect dialect;
        const char *body;
        size_t max_tokens;
    } cases[] = {
        {SL_DIALECT_SLATE, "{\"prompt\":\"\",\"max_tokens\":-1}", 1048576},
        {SL_DIALECT_COMPLETIONS, "{\"prompt\":\"\",\"max_tokens\":-1}", 1048576},
        {SL_DIALECT_CHAT, "{" MESSAGES ",\"max_tokens\":-1}", 1048576},
        {SL_DIALECT_CHAT, "{" MESSAGES ",\"max_completion_tokens\":-1}", 1048576},
        {SL_DIALECT_SLATE, "{\"prompt\":\"\"}", 512},
        {SL_DIALECT_COMPLETIONS, "{\"prompt\":\"\"}", 16},
        {SL_DIALECT_CHAT, "{" MESSAGES "}", 512},
        {SL_DIALECT_COMPLETIONS, "{\"prompt\":\"\",\"max_tokens\":7}", 7},
        {SL_DIALECT_CHAT, "{" MESSAGES ",\"max_tokens\":-1,\"max_completion_tokens\":7}", 7},
        {SL_DIALECT_CHAT, "{" MESSAGES ",\"max_tokens\":7,\"max_completion_tokens\":-1}", 1048576},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct sl_generate_request r = decoded(cases[i].dialect, cases[i].body);
        assert_int_equal(r.max_tokens, cases[i].max_tokens);
        assert_int_equal(r.fewer_will_do, r.max_tokens != 7); /* no number of the client's */
        sl_generate_done(&r);
    }
}

static void chat_requests(void **state)
{
    (void)state;
    struct sl_generate_request r = decoded(SL_DIALECT_CHAT, "{" MESSAGES "}");
    assert_int_equal(r.input.kind, SL_INPUT_MESSAGES);
    assert_int_equal(r.max_tokens, 512);
    assert_int_equal(r.logprobs, -1);
    sl_generate_done(&r);
    r = decoded(SL_DIALECT_CHAT, "{" MESSAGES ",\"max_tokens\":5,\"max_completion_tokens\":9,"
                                 "\"logprobs\":true,\"top_logprobs\":3}");
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.logprobs, 3);
    sl_generate_done(&r);
    r = decoded(SL_DIALECT_CHAT, "{" MESSAGES ",\"max_tokens\":5,\"logprobs\":true}");
    assert_int_equal(r.max_tokens, 5);
    assert_int_equal(r.logprobs, 0);
    sl_generate_done(&r);
    /* what changes nothing is ignored, whatever it holds */
    r = decoded(SL_DIALECT_CHAT,
                "{" MESSAGES ",\"logprobs\":false,\"top_logprobs\":0,\"n\":1,\"tools\":[],"
                "\"tool_choice\":\"none\",\"parallel_tool_calls\":true,\"functions\":[],"
                "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
                "\"metadata\":{\"a\":\"b\"},\"store\":true,\"user\":5,\"service_tier\":\"auto\","
                "\"reasoning_effort\":\"low\",\"prompt\":\"not looked at\",\"audio\":{},"
                "\"prediction\":{},\"safety_identifier\":\"x\",\"prompt_cache_key\":\"x\","
                "\"grammar\":\"\",\"json_schema\":{},\"guided_choice\":[],\"resume\":false,"
                "\"return_state\":false}");
    assert_int_equal(r.logprobs, -1);
    assert_int_equal(r.input.kind, SL_INPUT_MESSAGES);
    sl_generate_done(&r);
}

/* null is as absent for every field that there is. */
static void nulls(void **state)
{
    (void)state;
#define SHARED                                                                                     \
    "\"model\":null,\"frequency_penalty\":null,\"logit_bias\":null,\"max_tokens\":null,\"n\":"     \
    "null,"                                                                                        \
    "\"presence_penalty\":null,\"seed\":null,\"stop\":null,\"stream\":null,"                       \
    "\"stream_options\":null,\"temperature\":null,\"top_p\":null,\"user\":null,\"logprobs\":null," \
    "\"session\":null,\"top_k\":null,\"min_p\":null,\"typical_p\":null,\"metadata\":null"
    struct sl_generate_request r =
        decoded(SL_DIALECT_COMPLETIONS, "{\"prompt\":\"x\"," SHARED ",\"best_of\":null,"
                                        "\"echo\":null,\"suffix\":null}");
    assert_int_equal(r.max_tokens, 16);
    assert_false(r.has_seed);
    sl_generate_done(&r);
    r = decoded(SL_DIALECT_CHAT,
                "{" MESSAGES "," SHARED ",\"top_logprobs\":null,\"max_completion_tokens\":null,"
                "\"response_format\":null,\"tools\":null,\"tool_choice\":null,\"functions\":null,"
                "\"modalities\":null,\"audio\":null,\"web_search_options\":null}");
    assert_int_equal(r.max_tokens, 512);
    assert_int_equal(r.logprobs, -1);
    sl_generate_done(&r);
#undef SHARED
}

static void wrong_types(void **state)
{
    (void)state;
    static const struct field_types both[] = {{"model", "s"},
                                              {"max_tokens", "i"},
                                              {"stop", "sa"},
                                              {"temperature", "ir"},
                                              {"top_p", "i"},
                                              {"presence_penalty", "ir"},
                                              {"frequency_penalty", "ir"},
                                              {"logit_bias", "ao"},
                                              {"seed", "i"},
                                              {"stream", "b"},
                                              {"stream_options", "o"},
                                              {"n", "i"},
                                              {"session", "s"},
                                              {"top_k", "i"},
                                              {"min_p", "i"},
                                              {"typical_p", "i"},
                                              {"repetition_penalty", "ir"},
                                              {"penalty_decay", "i"},
                                              {"penalty_last_n", "i"},
                                              {"ignore_eos", "b"},
                                              {"stop_tokens", "a"},
                                              {"on_disconnect", ""},
                                              {"max_time_ms", "i"}};
    fields_check_types(completions, "\"prompt\":\"x\",", both, N(both));
    fields_check_types(chat, MESSAGES ",", both, N(both));
    static const struct field_types legacy[] = {
        {"logprobs", "i"}, {"best_of", "i"}, {"echo", ""}, {"suffix", ""}};
    fields_check_types(completions, "\"prompt\":\"x\",", legacy, N(legacy));
    static const struct field_types modern[] = {
        {"logprobs", "b"},       {"max_completion_tokens", "i"},
        {"response_format", ""}, {"tools", "a"},
        {"functions", "a"},      {"modalities", "a"},
        {"top_logprobs", ""},    {"web_search_options", ""}};
    fields_check_types(chat, MESSAGES ",", modern, N(modern));
    static const struct field_types top[] = {{"top_logprobs", "i"}};
    fields_check_types(chat, MESSAGES ",\"logprobs\":true,", top, 1);
}

static void not_served(void **state)
{
    (void)state;
    static const struct field_case legacy[] = {
        {"{}", SL_E_MISSING_FIELD, "prompt", NULL},
        {"{\"prompt\":null}", SL_E_MISSING_FIELD, "prompt", NULL},
        {"{\"prompt\":{}}", SL_E_INVALID_TYPE, "prompt", NULL},
        {"{\"prompt\":[\"a\",\"b\"]}", SL_E_UNSUPPORTED, "prompt", "prompt holds 2 prompts"},
        {"{\"prompt\":[[1],[2]]}", SL_E_UNSUPPORTED, "prompt", NULL},
        {"{\"prompt\":[[\"x\"]]}", SL_E_INVALID_TYPE, "prompt[0][0]", NULL},
        {"{\"prompt\":[1,\"x\"]}", SL_E_INVALID_TYPE, "prompt[1]", NULL},
        {"{\"prompt\":\"x\",\"n\":2}", SL_E_UNSUPPORTED, "n",
         "n is not supported here; allowed is one answer per request (n: 1)"},
        {"{\"prompt\":\"x\",\"n\":0}", SL_E_INVALID_VALUE, "n", NULL},
        {"{\"prompt\":\"x\",\"best_of\":3}", SL_E_UNSUPPORTED, "best_of", NULL},
        {"{\"prompt\":\"x\",\"echo\":true}", SL_E_UNSUPPORTED, "echo", NULL},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", SL_E_UNSUPPORTED, "suffix", NULL},
        {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}", SL_E_UNSUPPORTED,
         "response_format", NULL},
        {"{\"prompt\":\"x\",\"grammar\":\"root ::= x\"}", SL_E_UNSUPPORTED, "grammar",
         "grammar is not supported here; allowed is text as it comes"},
        {"{\"prompt\":\"x\",\"guided_json\":{\"type\":\"object\"}}", SL_E_UNSUPPORTED,
         "guided_json", NULL},
        {"{\"prompt\":\"x\",\"guided_choice\":[\"a\"]}", SL_E_UNSUPPORTED, "guided_choice", NULL},
        {"{\"prompt\":\"x\",\"resume\":true}", SL_E_UNSUPPORTED, "resume", NULL},
        {"{\"prompt\":\"x\",\"initial_state\":\"AAAA\"}", SL_E_UNSUPPORTED, "initial_state", NULL},
        {"{\"prompt\":\"x\",\"return_state\":true}", SL_E_UNSUPPORTED, "return_state", NULL},
        {"{\"prompt\":\"x\",\"seed\":-2}", SL_E_INVALID_VALUE, "seed", NULL},
        {"{\"prompt\":\"x\",\"logprobs\":21}", SL_E_INVALID_VALUE, "logprobs", NULL}};
    fields_check_cases(completions, legacy, N(legacy));
    static const struct field_case modern[] = {
        {"{}", SL_E_MISSING_FIELD, "messages", "messages must be given"},
        {"{\"prompt\":\"x\"}", SL_E_MISSING_FIELD, "messages", NULL},
        {"{\"messages\":[]}", SL_E_INVALID_VALUE, "messages", NULL},
        {"{" MESSAGES ",\"tools\":[{}]}", SL_E_UNSUPPORTED, "tools",
         "tools is not supported here; allowed is no tools"},
        {"{" MESSAGES ",\"functions\":[{}]}", SL_E_UNSUPPORTED, "functions", NULL},
        {"{" MESSAGES ",\"tool_choice\":\"required\"}", SL_E_UNSUPPORTED, "tool_choice", NULL},
        {"{" MESSAGES ",\"tool_choice\":{\"type\":\"function\"}}", SL_E_UNSUPPORTED, "tool_choice",
         NULL},
        {"{" MESSAGES ",\"n\":2}", SL_E_UNSUPPORTED, "n", NULL},
        {"{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\"}}", SL_E_UNSUPPORTED,
         "response_format", "response_format.type is \"json_schema\"; only \"text\""},
        {"{" MESSAGES ",\"response_format\":{}}", SL_E_MISSING_FIELD, "response_format.type", NULL},
        {"{" MESSAGES ",\"response_format\":{\"type\":7}}", SL_E_INVALID_TYPE,
         "response_format.type", NULL},
        {"{" MESSAGES ",\"modalities\":[\"text\",\"audio\"]}", SL_E_UNSUPPORTED, "modalities[1]",
         NULL},
        {"{" MESSAGES ",\"modalities\":[1]}", SL_E_INVALID_TYPE, "modalities[0]", NULL},
        {"{" MESSAGES ",\"top_logprobs\":2}", SL_E_INVALID_VALUE, "top_logprobs",
         "needs logprobs: true"},
        {"{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":21}", SL_E_INVALID_VALUE, "top_logprobs",
         NULL},
        {"{" MESSAGES ",\"max_completion_tokens\":-2}", SL_E_INVALID_VALUE, "max_completion_tokens",
         NULL},
        {"{" MESSAGES ",\"max_tokens\":-2,\"max_completion_tokens\":1}", SL_E_INVALID_VALUE,
         "max_tokens", NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
         SL_E_UNSUPPORTED, "messages[0].content[0].type", "input_audio"}};
    fields_check_cases(chat, modern, N(modern));
}

static void out_of_memory(void **state)
{
    (void)state;
    assert_true(fields_check_memory(completions, "{\"prompt\":[\"x\"],\"model\":\"m\","
                                                 "\"stop\":\"a\"}") > 5);
    assert_true(fields_check_memory(chat, "{" MESSAGES ",\"stop\":[\"a\"],\"tools\":[]}") > 5);
}

/* --- answers --- */

static void check(struct sl_buf *b, const char *expected)
{
    assert_int_equal(sl_buf_code(b, NULL), SL_OK);
    json_error_t error;
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, &error);
    if (!v)
        fail_msg("%.*s: %s", (int)b->len, b->data, error.text);
    json_decref(v);
    sl_buf_putc(b, '\0');
    assert_string_equal(b->data, expected);
    sl_buf_clear(b);
}

static struct sl_result result(const char *id)
{
    return (struct sl_result){.id = id,
                              .model = "m",
                              .text = TEXT("Hel\xc3\xa4"),
                              .finish = SL_FINISH_STOP,
                              .created = 1700000000,
                              .usage = {10, 4, 3}};
}

static struct sl_delta delta(const char *id)
{
    return (struct sl_delta){
        .id = id, .model = "m", .text = TEXT("Hel\xc3\xa4"), .created = 1700000000};
}

#define HEAD(id, object)                                                                           \
    "{\"id\":\"" id "\",\"object\":\"" object "\",\"created\":1700000000,\"model\":\"m\","         \
    "\"system_fingerprint\":null,\"choices\":["
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3,\"total_tokens\":13,"                 \
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}"

static void completion_answers(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    struct sl_result r = result("cmpl-1");
    sl_write_completion(&b, &r, &tiny_vocab);
    check(&b, HEAD("cmpl-1",
                   "text_completion") "{\"index\":0,\"text\":\"Hel\xc3\xa4\","
                                      "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}");
    struct sl_delta d = delta("cmpl-1");
    sl_write_completion_delta(&b, &d, &tiny_vocab);
    check(&b, HEAD("cmpl-1", "text_completion") "{\"index\":0,\"text\":\"Hel\xc3\xa4\","
                                                "\"logprobs\":null,\"finish_reason\":null}]}");
    d.include_usage = true;
    sl_write_completion_delta(&b, &d, &tiny_vocab);
    check(&b, HEAD("cmpl-1",
                   "text_completion") "{\"index\":0,\"text\":\"Hel\xc3\xa4\","
                                      "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}");
    r.finish = SL_FINISH_LENGTH;
    sl_write_completion_final(&b, &r, false);
    check(&b, HEAD("cmpl-1", "text_completion") "{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                                                "\"finish_reason\":\"length\"}]}");
    sl_write_completion_usage(&b, &r);
    check(&b, HEAD("cmpl-1", "text_completion") "]," USAGE "}");
    sl_buf_done(&b);
}

static void completion_logprobs(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    struct sl_result r = result("cmpl-1");
    r.logprobs = tiny_logprobs;
    r.n_logprobs = 3;
    r.n_top = 2;
    sl_write_completion(&b, &r, &tiny_vocab);
    check(&b, HEAD("cmpl-1",
                   "text_completion") "{\"index\":0,\"text\":\"Hel\xc3\xa4\","
                                      "\"logprobs\":{\"tokens\":[\"Hel\",\"bytes:\\\\xc3\",\"bytes:"
                                      "\\\\xa4\"],"
                                      "\"token_logprobs\":[-0.5,-2,0],\"top_logprobs\":["
                                      "{\"Hel\":-0.5,\" \\\"\":-1.25},"
                                      "{\"token_id:0\":-0.125,\"\\n\":-4,\"bytes:\\\\xc3\":-2},"
                                      "{\"bytes:\\\\xa4\":0,\"bytes:\\\\xc3\":-8}],"
                                      "\"text_offset\":[0,3,4]},\"finish_reason\":\"stop\"}]," USAGE
                                      "}");
    struct sl_delta d = delta("cmpl-1");
    d.logprobs = tiny_logprobs + 1;
    d.n_logprobs = 1;
    d.n_top = 0;
    d.text_offset = sl_logprobs_chars(tiny_logprobs, 1, &tiny_vocab);
    sl_write_completion_delta(&b, &d, &tiny_vocab);
    check(&b, HEAD("cmpl-1", "text_completion") "{\"index\":0,\"text\":\"Hel\xc3\xa4\","
                                                "\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\"],"
                                                "\"token_logprobs\":[-2],"
                                                "\"top_logprobs\":null,\"text_offset\":[3]},"
                                                "\"finish_reason\":null}]}");
    assert_int_equal(sl_logprobs_chars(tiny_logprobs, 3, &tiny_vocab), 4);
    sl_buf_done(&b);
}

static void chat_answers(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    struct sl_result r = result("chatcmpl-1");
    r.finish = SL_FINISH_EOS;
    r.logprobs = tiny_logprobs;
    r.n_logprobs = 2;
    r.n_top = 1;
    sl_write_chat_completion(&b, &r, &tiny_vocab);
    check(&b, HEAD("chatcmpl-1",
                   "chat.completion") "{\"index\":0,\"message\":{\"role\":"
                                      "\"assistant\",\"content\":\"Hel\xc3\xa4\",\"refusal\":null},"
                                      "\"logprobs\":{"
                                      "\"content\":[{\"token\":\"Hel\",\"logprob\":-0.5,\"bytes\":["
                                      "72,101,108],"
                                      "\"top_logprobs\":[{\"token\":\"Hel\",\"logprob\":-0.5,"
                                      "\"bytes\":[72,101,108]}]},"
                                      "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-2,\"bytes\":[195],"
                                      "\"top_logprobs\":[{\"token\":\"\",\"logprob\":-0.125,"
                                      "\"bytes\":[]}]}],"
                                      "\"refusal\":null},\"finish_reason\":\"stop\"}]," USAGE "}");
    r.logprobs = NULL;
    sl_write_chat_completion(&b, &r, &tiny_vocab);
    check(&b, HEAD("chatcmpl-1", "chat.completion") "{\"index\":0,\"message\":{\"role\":"
                                                    "\"assistant\",\"content\":\"Hel\xc3\xa4\","
                                                    "\"refusal\":null},\"logprobs\":null,"
                                                    "\"finish_reason\":\"stop\"}]," USAGE "}");
    sl_buf_done(&b);
}

static void chat_stream(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    struct sl_delta d = delta("chatcmpl-1");
    struct sl_result r = result("chatcmpl-1");
    sl_write_chat_first(&b, &d);
    check(&b, HEAD("chatcmpl-1", "chat.completion.chunk") "{\"index\":0,\"delta\":{\"role\":"
                                                          "\"assistant\",\"content\":\"\","
                                                          "\"refusal\":null},\"logprobs\":null,"
                                                          "\"finish_reason\":null}]}");
    sl_write_chat_delta(&b, &d, &tiny_vocab);
    check(&b, HEAD("chatcmpl-1", "chat.completion.chunk") "{\"index\":0,\"delta\":{\"content\":"
                                                          "\"Hel\xc3\xa4\"},\"logprobs\":null,"
                                                          "\"finish_reason\":null}]}");
    d.include_usage = true;
    d.logprobs = tiny_logprobs;
    d.n_logprobs = 1;
    sl_write_chat_delta(&b, &d, &tiny_vocab);
    check(&b,
          HEAD("chatcmpl-1", "chat.completion.chunk") "{\"index\":0,\"delta\":{\"content\":"
                                                      "\"Hel\xc3\xa4\"},\"logprobs\":{\"content\":["
                                                      "{\"token\":\"Hel\",\"logprob\":-0.5,"
                                                      "\"bytes\":[72,101,108],\"top_logprobs\":[]}]"
                                                      ",\"refusal\":null},"
                                                      "\"finish_reason\":null}],\"usage\":null}");
    sl_write_chat_final(&b, &r, true);
    check(&b, HEAD("chatcmpl-1", "chat.completion.chunk") "{\"index\":0,\"delta\":{},"
                                                          "\"logprobs\":null,\"finish_reason\":"
                                                          "\"stop\"}],\"usage\":null}");
    static const enum sl_finish unfinished[] = {SL_FINISH_LENGTH, SL_FINISH_TIMEOUT,
                                                SL_FINISH_PAUSED, SL_FINISH_CANCELLED};
    for (size_t i = 0; i < N(unfinished); i++) {
        r.finish = unfinished[i];
        sl_write_chat_final(&b, &r, false);
        check(&b,
              HEAD("chatcmpl-1",
                   "chat.completion.chunk") "{\"index\":0,\"delta\":{},"
                                            "\"logprobs\":null,\"finish_reason\":\"length\"}]}");
    }
    sl_write_chat_usage(&b, &r);
    check(&b, HEAD("chatcmpl-1", "chat.completion.chunk") "]," USAGE "}");
    sl_buf_done(&b);
}

int main(void)
{
    sl_json_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_requests), cmocka_unit_test(as_many_tokens_as_are_allowed),
        cmocka_unit_test(chat_requests),       cmocka_unit_test(nulls),
        cmocka_unit_test(wrong_types),         cmocka_unit_test(not_served),
        cmocka_unit_test(out_of_memory),       cmocka_unit_test(completion_answers),
        cmocka_unit_test(completion_logprobs), cmocka_unit_test(chat_answers),
        cmocka_unit_test(chat_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
