/* request_test.c: the bodies of Slate's own routes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proto/json.h"
#include "tests/support/fields.h"

#define N(a) (sizeof(a) / sizeof *(a))

static struct sl_limits limits = SL_LIMITS_DEFAULT;

static enum sl_code generate(const void *body, size_t n, struct sl_error *err)
{
    struct sl_generate_request r;
    enum sl_code c = sl_generate_decode(&r, body, n, &limits, err);
    if (c == SL_OK)
        sl_generate_done(&r);
    return c;
}

static struct sl_generate_request decoded(const char *body)
{
    struct sl_generate_request r;
    struct sl_error err = {0};
    if (sl_generate_decode(&r, body, strlen(body), &limits, &err) != SL_OK)
        fail_msg("%s: %s", body, err.message);
    return r;
}

static bool is(struct sl_text t, const char *s)
{
    return t.s && t.n == strlen(s) && memcmp(t.s, s, t.n) == 0 && t.s[t.n] == '\0';
}

static void generate_defaults(void **state)
{
    (void)state;
    struct sl_generate_request r = decoded("{\"prompt\":\"\",\"top_k\":-1,\"seed\":-1}");
    assert_true(r.sampling.top_k == UINT32_MAX && !r.has_seed); /* all; none: as others say it */
    sl_generate_done(&r);
    r = decoded("{\"prompt\":\"\"}");
    assert_int_equal(r.dialect, SL_DIALECT_SLATE);
    assert_int_equal(r.input.kind, SL_INPUT_TEXT);
    assert_true(is(r.input.text, ""));
    assert_null(r.session);
    assert_null(r.model);
    assert_int_equal(r.max_tokens, 512);
    assert_int_equal(r.max_time_ms, 0);
    assert_int_equal(r.n_stops, 0);
    assert_int_equal(r.n_stop_tokens, 0);
    assert_int_equal(r.on_disconnect, SL_ON_DISCONNECT_ROLLBACK);
    assert_false(r.ignore_eos || r.has_seed || r.return_tokens || r.stream || r.include_usage);
    assert_int_equal(r.logprobs, -1);
    assert_true(r.sampling.temperature == 1 && r.sampling.top_k == 0 && r.sampling.top_p == 1);
    assert_true(r.sampling.min_p == 0 && r.sampling.typical_p == 1);
    assert_true(r.sampling.repetition_penalty == 1 && r.sampling.presence_penalty == 0);
    assert_true(r.sampling.frequency_penalty == 0 && r.sampling.penalty_decay == 1);
    assert_int_equal(r.sampling.penalty_last_n, 0);
    assert_int_equal(r.sampling.n_bias, 0);
    assert_null(r.initial_state);
    assert_false(r.return_state);
    sl_generate_done(&r);
}

static void generate_all_fields(void **state)
{
    (void)state;
    struct sl_generate_request r = decoded(
        "{\"prompt\":\"a\\u0000\\u00e4\",\"session\":\"s-1\",\"model\":\"m\",\"max_tokens\":100.0,"
        "\"max_time_ms\":5000,\"stop\":[\"\\n\\n\",\"x\\u0000\"],\"stop_tokens\":[0,7],"
        "\"ignore_eos\":true,\"on_disconnect\":\"continue\",\"temperature\":0.5,\"top_k\":40,"
        "\"top_p\":0.25,\"min_p\":0.125,\"typical_p\":0.75,\"repetition_penalty\":1.25,"
        "\"presence_penalty\":-0.5,\"frequency_penalty\":0.5,\"penalty_decay\":0.96875,"
        "\"penalty_last_n\":64,\"logit_bias\":{\"5\":-100,\"0\":1.5},\"seed\":9223372036854775807,"
        "\"logprobs\":20,\"return_tokens\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"x\":1},\"return_state\":true,"
        "\"unknown\":{\"deep\":[1e308]}}");
    assert_int_equal(r.input.text.n, 4);
    assert_memory_equal(r.input.text.s, "a\0\xc3\xa4", 5);
    assert_string_equal(r.session, "s-1");
    assert_string_equal(r.model, "m");
    assert_int_equal(r.max_tokens, 100);
    assert_int_equal(r.max_time_ms, 5000);
    assert_int_equal(r.n_stops, 2);
    assert_int_equal(r.stops[0].n, 2);
    assert_memory_equal(r.stops[0].bytes, "\n\n", 2);
    assert_memory_equal(r.stops[1].bytes, "x\0", 2);
    assert_int_equal(r.n_stop_tokens, 2);
    assert_int_equal(r.stop_tokens[1], 7);
    assert_int_equal(r.on_disconnect, SL_ON_DISCONNECT_CONTINUE);
    assert_true(r.ignore_eos && r.return_tokens && r.stream && r.include_usage && r.return_state);
    const struct sl_sampling *s = &r.sampling;
    assert_true(s->temperature == 0.5f && s->top_k == 40 && s->top_p == 0.25f);
    assert_true(s->min_p == 0.125f && s->typical_p == 0.75f && s->repetition_penalty == 1.25f);
    assert_true(s->presence_penalty == -0.5f && s->frequency_penalty == 0.5f);
    assert_true(s->penalty_decay == 0.96875f && s->penalty_last_n == 64);
    assert_int_equal(s->n_bias, 2);
    assert_int_equal(s->bias[0].token, 5);
    assert_true(s->bias[0].bias == -100.0f && s->bias[1].bias == 1.5f);
    assert_true(r.has_seed && s->seed == INT64_MAX);
    assert_int_equal(r.logprobs, 20);
    sl_generate_done(&r);
    assert_null(r.pool.chunks);
}

static void generate_inputs(void **state)
{
    (void)state;
    struct sl_generate_request r = decoded("{\"prompt\":[1,2.0,4294967295],\"stop\":\"x\"}");
    assert_int_equal(r.input.kind, SL_INPUT_TOKENS);
    assert_int_equal(r.input.n_tokens, 3);
    assert_int_equal(r.input.tokens[1], 2);
    assert_int_equal(r.input.tokens[2], UINT32_MAX);
    assert_int_equal(r.n_stops, 1);
    sl_generate_done(&r);
    r = decoded("{\"prompt\":[]}");
    assert_int_equal(r.input.kind, SL_INPUT_TOKENS);
    assert_int_equal(r.input.n_tokens, 0);
    sl_generate_done(&r);
    r = decoded("{\"resume\":true,\"session\":\"a\",\"prompt\":null}");
    assert_int_equal(r.input.kind, SL_INPUT_RESUME);
    sl_generate_done(&r);
    r = decoded("{\"resume\":false,\"prompt\":\"x\",\"logit_bias\":[[3,0.5],[3,1]],\"stop\":[],"
                "\"initial_state\":\"AP8Q\"}");
    assert_int_equal(r.input.kind, SL_INPUT_TEXT);
    assert_int_equal(r.sampling.n_bias, 2);
    assert_int_equal(r.sampling.bias[1].token, 3);
    assert_int_equal(r.n_stops, 0);
    assert_int_equal(r.n_initial_state, 3);
    assert_memory_equal(r.initial_state, "\x00\xff\x10", 3);
    sl_generate_done(&r);
}

static void generate_messages(void **state)
{
    (void)state;
    struct sl_generate_request r = decoded(
        "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
        "{\"role\":\"developer\",\"content\":null},{\"role\":\"user\",\"name\":\"bo\",\"content\":["
        "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\\u0000\"}]},"
        "{\"role\":\"assistant\",\"tool_calls\":[]},{\"role\":\"user\",\"content\":[]}]}");
    assert_int_equal(r.input.kind, SL_INPUT_MESSAGES);
    assert_int_equal(r.input.n_messages, 5);
    const struct sl_message *m = r.input.messages;
    assert_int_equal(m[0].role, SL_CHAT_SYSTEM);
    assert_true(is(m[0].content, "be brief"));
    assert_int_equal(m[1].role, SL_CHAT_SYSTEM);
    assert_true(is(m[1].content, ""));
    assert_int_equal(m[2].role, SL_CHAT_USER);
    assert_int_equal(m[2].content.n, 4);
    assert_memory_equal(m[2].content.s, "a\nb\0", 5);
    assert_int_equal(m[3].role, SL_CHAT_ASSISTANT);
    assert_true(is(m[3].content, ""));
    assert_true(is(m[4].content, ""));
    sl_generate_done(&r);
}

static void generate_wrong_types(void **state)
{
    (void)state;
    static const struct field_types fields[] = {
        {"session", "s"},
        {"model", "s"},
        {"max_tokens", "i"},
        {"max_time_ms", "i"},
        {"stop", "sa"},
        {"stop_tokens", "a"},
        {"ignore_eos", "b"},
        {"on_disconnect", ""},
        {"temperature", "ir"},
        {"top_k", "i"},
        {"top_p", "i"},
        {"min_p", "i"},
        {"typical_p", "i"},
        {"repetition_penalty", "ir"},
        {"presence_penalty", "ir"},
        {"frequency_penalty", "ir"},
        {"penalty_decay", "i"},
        {"penalty_last_n", "i"},
        {"logit_bias", "ao"},
        {"seed", "i"},
        {"logprobs", "i"},
        {"return_tokens", "b"},
        {"stream", "b"},
        {"stream_options", "o"},
        {"initial_state", ""},
        {"return_state", "b"},
    };
    fields_check_types(generate, "\"prompt\":\"x\",", fields, N(fields));
    static const struct field_case prompts[] = {
        {"{\"prompt\":true}", SL_E_INVALID_TYPE, "prompt",
         "prompt must be a string or an array of token ids, got true"},
        {"{\"prompt\":1}", SL_E_INVALID_TYPE, "prompt", NULL},
        {"{\"prompt\":1.5}", SL_E_INVALID_TYPE, "prompt", NULL},
        {"{\"prompt\":{}}", SL_E_INVALID_TYPE, "prompt", NULL}};
    fields_check_cases(generate, prompts, N(prompts));
    static const struct field_types resume[] = {{"resume", ""}};
    fields_check_types(generate, "\"prompt\":\"x\",", resume, N(resume));
}

static void generate_ranges(void **state)
{
    (void)state;
    static const struct field_case cases[] = {
        {"{\"prompt\":\"\",\"max_tokens\":0}", SL_OK, NULL, NULL},
        {"{\"prompt\":\"\",\"max_tokens\":-2}", SL_E_INVALID_VALUE, "max_tokens",
         "max_tokens must be an integer from -1 to 1048576, got the number -2"},
        {"{\"prompt\":\"\",\"max_tokens\":1e18}", SL_E_INVALID_VALUE, "max_tokens", "1e+18"},
        {"{\"prompt\":\"\",\"max_tokens\":1e400}", SL_E_INVALID_VALUE, "max_tokens", "too large"},
        {"{\"prompt\":\"\",\"seed\":-2}", SL_E_INVALID_VALUE, "seed",
         "seed must be an integer from -1 to 9223372036854775807, got the number -2"},
        {"{\"prompt\":\"\",\"seed\":18446744073709551616}", SL_E_INVALID_VALUE, "seed",
         "too large"},
        {"{\"prompt\":\"\",\"seed\":9223372036854775808}", SL_E_INVALID_VALUE, "seed", "too large"},
        {"{\"prompt\":\"\",\"temperature\":-0.1}", SL_E_INVALID_VALUE, "temperature", NULL},
        {"{\"prompt\":\"\",\"temperature\":1e308}", SL_E_INVALID_VALUE, "temperature",
         "temperature must be a number from 0 to 100"},
        {"{\"prompt\":\"\",\"temperature\":NaN}", SL_E_INVALID_JSON, "", "NaN"},
        {"{\"prompt\":\"\",\"top_k\":-2}", SL_E_INVALID_VALUE, "top_k", NULL},
        {"{\"prompt\":\"\",\"top_k\":4294967296}", SL_E_INVALID_VALUE, "top_k", NULL},
        {"{\"prompt\":\"\",\"top_p\":-1}", SL_E_INVALID_VALUE, "top_p", NULL},
        {"{\"prompt\":\"\",\"top_p\":1.1}", SL_E_INVALID_VALUE, "top_p", NULL},
        {"{\"prompt\":\"\",\"min_p\":-0.1}", SL_E_INVALID_VALUE, "min_p", NULL},
        {"{\"prompt\":\"\",\"typical_p\":-1}", SL_E_INVALID_VALUE, "typical_p", NULL},
        {"{\"prompt\":\"\",\"repetition_penalty\":0}", SL_E_INVALID_VALUE, "repetition_penalty",
         NULL},
        {"{\"prompt\":\"\",\"presence_penalty\":101}", SL_E_INVALID_VALUE, "presence_penalty",
         NULL},
        {"{\"prompt\":\"\",\"frequency_penalty\":-101}", SL_E_INVALID_VALUE, "frequency_penalty",
         NULL},
        {"{\"prompt\":\"\",\"penalty_decay\":1.5}", SL_E_INVALID_VALUE, "penalty_decay", NULL},
        {"{\"prompt\":\"\",\"penalty_last_n\":1025}", SL_E_INVALID_VALUE, "penalty_last_n", NULL},
        {"{\"prompt\":\"\",\"max_time_ms\":86400001}", SL_E_INVALID_VALUE, "max_time_ms", NULL},
        {"{\"prompt\":\"\",\"logprobs\":21}", SL_E_INVALID_VALUE, "logprobs", NULL},
        {"{\"prompt\":\"\",\"logprobs\":-1}", SL_E_INVALID_VALUE, "logprobs", NULL},
        {"{\"prompt\":\"\",\"on_disconnect\":\"stay\"}", SL_E_INVALID_VALUE, "on_disconnect",
         "\"rollback\", \"commit\" or \"continue\""},
        {"{\"prompt\":\"\",\"session\":\".x\"}", SL_E_INVALID_VALUE, "session", "dot"},
        {"{\"prompt\":\"\",\"session\":\"\"}", SL_E_INVALID_VALUE, "session", NULL},
        {"{\"prompt\":\"\",\"session\":\"a\\u0000\"}", SL_E_INVALID_VALUE, "session", NULL},
        {"{\"prompt\":\"\",\"model\":\"a\\u0000\"}", SL_E_INVALID_VALUE, "model", "NUL"},
        {"{\"prompt\":\"\",\"stream_options\":{\"include_usage\":1}}", SL_E_INVALID_TYPE,
         "stream_options.include_usage", NULL},
    };
    fields_check_cases(generate, cases, N(cases));
}

static void generate_lists(void **state)
{
    (void)state;
    static const struct field_case cases[] = {
        {"{\"prompt\":\"\",\"stop\":\"\"}", SL_E_INVALID_VALUE, "stop",
         "stop must not be an empty string"},
        {"{\"prompt\":\"\",\"stop\":[\"a\",\"b\",\"c\",\"\"]}", SL_E_INVALID_VALUE, "stop[3]",
         NULL},
        {"{\"prompt\":\"\",\"stop\":[\"a\",null]}", SL_E_INVALID_TYPE, "stop[1]", "got null"},
        {"{\"prompt\":\"\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\","
         "\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]}",
         SL_E_INVALID_VALUE, "stop", "stop has 17 items; at most 16 are allowed"},
        {"{\"prompt\":[1,true]}", SL_E_INVALID_TYPE, "prompt[1]", "got true"},
        {"{\"prompt\":[1,null]}", SL_E_INVALID_TYPE, "prompt[1]", "got null"},
        {"{\"prompt\":[1,2,1.5]}", SL_E_INVALID_TYPE, "prompt[2]", NULL},
        {"{\"prompt\":[-1]}", SL_E_INVALID_VALUE, "prompt[0]", NULL},
        {"{\"prompt\":[4294967296]}", SL_E_INVALID_VALUE, "prompt[0]", NULL},
        {"{\"prompt\":[[1]]}", SL_E_INVALID_TYPE, "prompt[0]", NULL},
        {"{\"prompt\":\"\",\"stop_tokens\":[\"x\"]}", SL_E_INVALID_TYPE, "stop_tokens[0]", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"x\":1}}", SL_E_INVALID_VALUE, "logit_bias.x",
         "a key of logit_bias must be a token id from 0 to 4294967295, got \"x\""},
        {"{\"prompt\":\"\",\"logit_bias\":{\"01\":1}}", SL_E_INVALID_VALUE, "logit_bias.01", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"-1\":1}}", SL_E_INVALID_VALUE, "logit_bias.-1", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"4294967296\":1}}", SL_E_INVALID_VALUE,
         "logit_bias.4294967296", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"\":1}}", SL_E_INVALID_VALUE, "logit_bias.", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"7\":101}}", SL_E_INVALID_VALUE, "logit_bias.7", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":{\"7\":null}}", SL_E_INVALID_TYPE, "logit_bias.7", NULL},
        {"{\"prompt\":\"\",\"logit_bias\":[[1,2],[3]]}", SL_E_INVALID_TYPE, "logit_bias[1]",
         "a pair [token id, bias], got an array of 1"},
        {"{\"prompt\":\"\",\"logit_bias\":[[\"1\",2]]}", SL_E_INVALID_TYPE, "logit_bias[0][0]",
         NULL},
        {"{\"prompt\":\"\",\"logit_bias\":[[1,\"2\"]]}", SL_E_INVALID_TYPE, "logit_bias[0][1]",
         NULL},
    };
    fields_check_cases(generate, cases, N(cases));
}

static void generate_cross_checks(void **state)
{
    (void)state;
    static const struct field_case cases[] = {
        {"{}", SL_E_MISSING_FIELD, "prompt", "one of prompt, messages and resume must be given"},
        {"{\"prompt\":null}", SL_E_MISSING_FIELD, "prompt", NULL},
        {"{\"resume\":false}", SL_E_MISSING_FIELD, "prompt", NULL},
        {"{\"prompt\":\"\",\"messages\":[]}", SL_E_INVALID_VALUE, "messages",
         "only one of prompt, messages and resume may be given, got prompt and messages"},
        {"{\"prompt\":\"\",\"resume\":true,\"session\":\"a\"}", SL_E_INVALID_VALUE, "resume", NULL},
        {"{\"resume\":true}", SL_E_MISSING_FIELD, "session", NULL},
        {"{\"prompt\":\"\",\"session\":\"a\",\"initial_state\":\"AAAA\"}", SL_E_INVALID_VALUE,
         "initial_state", NULL},
        {"{\"prompt\":\"\",\"initial_state\":\"AAA\"}", SL_E_INVALID_VALUE, "initial_state",
         "multiple of 4"},
        {"{\"prompt\":\"\",\"initial_state\":\"A=AA\"}", SL_E_INVALID_VALUE, "initial_state",
         "character 1"},
        {"{\"prompt\":\"\",\"initial_state\":\"AAAB====\"}", SL_E_INVALID_VALUE, "initial_state",
         NULL},
        {"{\"prompt\":\"\",\"initial_state\":\"AB==\"}", SL_E_INVALID_VALUE, "initial_state", NULL},
        {"{\"prompt\":\"\",\"initial_state\":\"AA==\"}", SL_OK, NULL, NULL},
    };
    fields_check_cases(generate, cases, N(cases));
}

static void message_errors(void **state)
{
    (void)state;
#define M(m) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}," m "]}"
    static const struct field_case cases[] = {
        {"{\"messages\":[]}", SL_E_INVALID_VALUE, "messages", "at least one"},
        {"{\"messages\":\"x\"}", SL_E_INVALID_TYPE, "messages", "got the string \"x\""},
        {M("1"), SL_E_INVALID_TYPE, "messages[1]", "messages[1] must be an object"},
        {M("null"), SL_E_INVALID_TYPE, "messages[1]", NULL},
        {M("{}"), SL_E_MISSING_FIELD, "messages[1].role", NULL},
        {M("{\"role\":1}"), SL_E_INVALID_TYPE, "messages[1].role", NULL},
        {M("{\"role\":\"tool\"}"), SL_E_INVALID_VALUE, "messages[1].role",
         "\"system\", \"developer\", \"user\" or \"assistant\", got the string \"tool\""},
        {M("{\"role\":\"user\\u0000\"}"), SL_E_INVALID_VALUE, "messages[1].role", NULL},
        {M("{\"role\":\"user\",\"content\":5}"), SL_E_INVALID_TYPE, "messages[1].content", NULL},
        {M("{\"role\":\"user\",\"content\":{}}"), SL_E_INVALID_TYPE, "messages[1].content", NULL},
        {M("{\"role\":\"user\",\"content\":[\"x\"]}"), SL_E_INVALID_TYPE, "messages[1].content[0]",
         NULL},
        {M("{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}"), SL_E_MISSING_FIELD,
         "messages[1].content[0].type", NULL},
        {M("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
           "{\"type\":\"image_url\",\"image_url\":{}}]}"),
         SL_E_UNSUPPORTED, "messages[1].content[1].type",
         "messages[1].content[1].type is \"image_url\"; only parts of type \"text\""},
        {M("{\"role\":\"user\",\"content\":[{\"type\":3}]}"), SL_E_INVALID_TYPE,
         "messages[1].content[0].type", NULL},
        {M("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), SL_E_MISSING_FIELD,
         "messages[1].content[0].text", NULL},
        {M("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":[]}]}"), SL_E_INVALID_TYPE,
         "messages[1].content[0].text", NULL},
        {M("{\"role\":\"assistant\",\"tool_calls\":[{}]}"), SL_E_UNSUPPORTED,
         "messages[1].tool_calls", NULL},
    };
#undef M
    fields_check_cases(generate, cases, N(cases));
}

static void limits_by_name(void **state)
{
    (void)state;
    struct sl_limits all = limits;
    limits.prompt_bytes = 4;
    limits.prompt_tokens = 2;
    limits.messages = 2;
    limits.vocab_size = 100;
    limits.state_bytes = 3;
    static const struct field_case cases[] = {
        {"{\"prompt\":\"abcd\"}", SL_OK, NULL, NULL},
        {"{\"prompt\":\"abcde\"}", SL_E_TOO_LARGE, "prompt",
         "prompt has 5 bytes; at most 4 are allowed"},
        {"{\"prompt\":[1,99]}", SL_OK, NULL, NULL},
        {"{\"prompt\":[1,100]}", SL_E_INVALID_VALUE, "prompt[1]",
         "prompt[1] must be an integer from 0 to 99, got the number 100"},
        {"{\"prompt\":[1,2,3]}", SL_E_TOO_LARGE, "prompt",
         "prompt has 3 items; at most 2 are allowed"},
        {"{\"prompt\":[],\"stop_tokens\":[100]}", SL_E_INVALID_VALUE, "stop_tokens[0]", NULL},
        {"{\"prompt\":[],\"logit_bias\":{\"100\":1}}", SL_E_INVALID_VALUE, "logit_bias.100",
         "from 0 to 99"},
        {"{\"prompt\":[],\"logit_bias\":[[100,1]]}", SL_E_INVALID_VALUE, "logit_bias[0][0]", NULL},
        {"{\"prompt\":[],\"initial_state\":\"AAAAAAAAAAAA\"}", SL_E_TOO_LARGE, "initial_state",
         NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"},{\"role\":\"user\",\"content\":"
         "\"d\"}]}",
         SL_OK, NULL, NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"},{\"role\":\"user\",\"content\":"
         "\"de\"}]}",
         SL_E_TOO_LARGE, "messages[1].content", "more than 4 bytes"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"},"
         "{\"type\":\"text\",\"text\":\"cd\"}]}]}",
         SL_E_TOO_LARGE, "messages[0].content", NULL},
        {"{\"messages\":[{\"role\":\"user\"},{\"role\":\"user\"},{\"role\":\"user\"}]}",
         SL_E_TOO_LARGE, "messages", NULL},
    };
    fields_check_cases(generate, cases, N(cases));
    limits = all;
    char body[400], stop[300];
    struct sl_error err = {0};
    memset(stop, 'x', sizeof stop);
    int n = snprintf(body, sizeof body, "{\"prompt\":\"\",\"stop\":\"%.256s\"}", stop);
    assert_int_equal(generate(body, (size_t)n, &err), SL_OK);
    n = snprintf(body, sizeof body, "{\"prompt\":\"\",\"stop\":[\"%.257s\"]}", stop);
    assert_int_equal(generate(body, (size_t)n, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.message, "stop[0] has 257 bytes; at most 256 are allowed");
    n = snprintf(body, sizeof body, "{\"prompt\":\"\",\"model\":\"%.257s\"}", stop);
    assert_int_equal(generate(body, (size_t)n, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.param, "model");
}

/* --- sessions --- */

#define DECODER(name, type, decode, done)                                                          \
    static enum sl_code name(const void *body, size_t n, struct sl_error *err)                     \
    {                                                                                              \
        struct type r;                                                                             \
        enum sl_code c = decode(&r, body, n, &limits, err);                                        \
        if (c == SL_OK)                                                                            \
            done(&r);                                                                              \
        return c;                                                                                  \
    }
DECODER(create, sl_session_request, sl_session_create_decode, sl_session_request_done)
DECODER(patch, sl_session_request, sl_session_patch_decode, sl_session_request_done)
DECODER(fork_session, sl_session_request, sl_session_fork_decode, sl_session_request_done)
DECODER(tokenize, sl_tokenize_request, sl_tokenize_decode, sl_tokenize_request_done)
DECODER(detokenize, sl_tokenize_request, sl_detokenize_decode, sl_tokenize_request_done)

static void session_bodies(void **state)
{
    (void)state;
    struct sl_session_request r;
    assert_int_equal(sl_session_create_decode(&r, "", 0, &limits, NULL), SL_OK);
    assert_null(r.id);
    assert_int_equal(r.input.kind, SL_INPUT_NONE);
    assert_false(r.has_ttl);
    assert_null(r.metadata.s);
    sl_session_request_done(&r);
    static const char body[] =
        "{\"id\":\"a.B_9-\",\"prompt\":\"hi\",\"ttl_s\":60,\"model\":\"m\","
        "\"metadata\":{ \"b\" : [1, 2.5], \"a\":\"\\u0000\\u00e4\" },\"from\":\"other\"}";
    assert_int_equal(sl_session_create_decode(&r, body, sizeof body - 1, &limits, NULL), SL_OK);
    assert_string_equal(r.id, "a.B_9-");
    assert_true(is(r.input.text, "hi"));
    assert_true(r.has_ttl && r.ttl_s == 60);
    assert_string_equal(r.model, "m");
    assert_true(is(r.metadata, "{\"b\":[1,2.5],\"a\":\"\\u0000\xc3\xa4\"}"));
    assert_string_equal(r.from_session, "other");
    sl_session_request_done(&r);
    static const char from[] = "{\"from\":{\"snapshot\":\"AAECAw==\"},\"ttl_s\":0}";
    assert_int_equal(sl_session_create_decode(&r, from, sizeof from - 1, &limits, NULL), SL_OK);
    assert_int_equal(r.n_from_snapshot, 4);
    assert_memory_equal(r.from_snapshot, "\0\1\2\3", 4);
    assert_true(r.has_ttl && r.ttl_s == 0);
    sl_session_request_done(&r);
    static const char at_name[] = "{\"from\":{\"session\":\"a\",\"checkpoint\":\"b\"}}";
    assert_int_equal(sl_session_create_decode(&r, at_name, sizeof at_name - 1, &limits, NULL),
                     SL_OK);
    assert_string_equal(r.from_session, "a");
    assert_true(r.at.given);
    assert_string_equal(r.at.name, "b");
    sl_session_request_done(&r);
    static const char at_version[] =
        "{\"from\":{\"session\":\"a\",\"version\":0,\"checkpoint\":null}}";
    assert_int_equal(sl_session_create_decode(&r, at_version, sizeof at_version - 1, &limits, NULL),
                     SL_OK);
    assert_true(r.at.given && r.at.version == 0 && !r.at.name[0]);
    sl_session_request_done(&r);
    static const char forked[] = "{\"id\":\"b\",\"metadata\":{}}";
    assert_int_equal(sl_session_fork_decode(&r, forked, sizeof forked - 1, &limits, NULL), SL_OK);
    assert_string_equal(r.id, "b");
    assert_true(is(r.metadata, "{}"));
    sl_session_request_done(&r);
    static const char patched[] = "{\"ttl_s\":5,\"id\":7}"; /* id is no field of PATCH */
    assert_int_equal(sl_session_patch_decode(&r, patched, sizeof patched - 1, &limits, NULL),
                     SL_OK);
    assert_true(r.has_ttl && r.ttl_s == 5 && !r.id);
    sl_session_request_done(&r);
}

static void session_errors(void **state)
{
    (void)state;
    static const struct field_types on_create[] = {
        {"id", "s"},    {"model", "s"},    {"prompt", "sa"}, {"messages", ""},
        {"ttl_s", "i"}, {"metadata", "o"}, {"from", "s"}};
    fields_check_types(create, "", on_create, N(on_create));
    static const struct field_types on_fork[] = {{"id", "s"}, {"ttl_s", "i"}, {"metadata", "o"}};
    fields_check_types(fork_session, "", on_fork, N(on_fork));
    fields_check_types(patch, "\"ttl_s\":1,", on_fork + 2, 1);
    fields_check_types(patch, "\"metadata\":{},", on_fork + 1, 1);
    static const struct field_case creates[] = {
        {"{\"id\":\"a/b\"}", SL_E_INVALID_VALUE, "id",
         "id must be 1 to 128 of A-Z a-z 0-9 . _ - and not start with a dot, got \"a/b\" (3 "
         "bytes)"},
        {"{\"id\":\"..\"}", SL_E_INVALID_VALUE, "id", NULL},
        {"{\"prompt\":\"\",\"messages\":[{\"role\":\"user\"}]}", SL_E_INVALID_VALUE, "messages",
         NULL},
        {"{\"ttl_s\":-1}", SL_E_INVALID_VALUE, "ttl_s", NULL},
        {"{\"ttl_s\":1e12}", SL_E_INVALID_VALUE, "ttl_s", NULL},
        {"{\"from\":{}}", SL_E_INVALID_VALUE, "from", "got 0 of them"},
        {"{\"from\":{\"session\":\"a\",\"snapshot\":\"AAAA\"}}", SL_E_INVALID_VALUE, "from",
         "got 2 of them"},
        {"{\"from\":{\"session\":5}}", SL_E_INVALID_TYPE, "from.session", NULL},
        {"{\"from\":{\"session\":\".\"}}", SL_E_INVALID_VALUE, "from.session", NULL},
        {"{\"from\":{\"snapshot\":5}}", SL_E_INVALID_TYPE, "from.snapshot", NULL},
        {"{\"from\":{\"initial_state\":\"?\"}}", SL_E_INVALID_VALUE, "from.initial_state", NULL},
        {"{\"from\":{\"session\":\"a\"}}", SL_OK, NULL, NULL},
        {"{\"from\":{\"session\":\"a\",\"version\":\"1\"}}", SL_E_INVALID_TYPE, "from.version",
         NULL},
        {"{\"from\":{\"session\":\"a\",\"version\":-1}}", SL_E_INVALID_VALUE, "from.version", NULL},
        {"{\"from\":{\"session\":\"a\",\"checkpoint\":1}}", SL_E_INVALID_TYPE, "from.checkpoint",
         NULL},
        {"{\"from\":{\"session\":\"a\",\"checkpoint\":\".b\"}}", SL_E_INVALID_VALUE,
         "from.checkpoint", NULL},
        {"{\"from\":{\"session\":\"a\",\"version\":1,\"checkpoint\":\"b\"}}", SL_E_INVALID_VALUE,
         "from.checkpoint", "only one of version and checkpoint may be given"},
        {"{\"from\":{\"version\":1}}", SL_E_INVALID_VALUE, "from", "got 0 of them"},
        {"{\"from\":{\"snapshot\":\"AAAA\",\"version\":1}}", SL_E_INVALID_VALUE, "from.version",
         "those of from.session"},
        {"{\"from\":{\"initial_state_name\":\"a\",\"checkpoint\":\"b\"}}", SL_E_INVALID_VALUE,
         "from.checkpoint", "those of from.session"},
        {"[]", SL_E_INVALID_TYPE, "", NULL},
    };
    fields_check_cases(create, creates, N(creates));
    static const struct field_case patches[] = {
        {"{}", SL_E_MISSING_FIELD, "ttl_s", "nothing to change"},
        {"", SL_E_MISSING_FIELD, "ttl_s", NULL},
        {"{\"metadata\":{\"a\":9223372036854775808}}", SL_E_INVALID_VALUE, "metadata", NULL},
    };
    fields_check_cases(patch, patches, N(patches));
    size_t all = limits.metadata_bytes;
    limits.metadata_bytes = 9;
    static const struct field_case sized[] = {
        {"{\"metadata\": {\"a\" : \"bc\" } }", SL_E_TOO_LARGE, "metadata", "more than 9 bytes"},
        {"{\"metadata\": {\"a\" : \"b\" } }", SL_OK, NULL, NULL},
    };
    fields_check_cases(patch, sized, N(sized));
    limits.metadata_bytes = all;
}

static void tokens_and_text(void **state)
{
    (void)state;
    struct sl_tokenize_request r;
    static const char text[] = "{\"text\":\"a\\u0000b\"}", ids[] = "{\"tokens\":[5,6]}";
    assert_int_equal(sl_tokenize_decode(&r, text, sizeof text - 1, &limits, NULL), SL_OK);
    assert_int_equal(r.text.n, 3);
    sl_tokenize_request_done(&r);
    assert_int_equal(sl_detokenize_decode(&r, ids, sizeof ids - 1, &limits, NULL), SL_OK);
    assert_int_equal(r.n_tokens, 2);
    assert_int_equal(r.tokens[1], 6);
    sl_tokenize_request_done(&r);
    static const struct field_types model[] = {{"model", "s"}};
    fields_check_types(tokenize, "\"text\":\"\",", model, 1);
    static const struct field_case texts[] = {
        {"{}", SL_E_MISSING_FIELD, "text", "text must be given"},
        {"{\"text\":null}", SL_E_MISSING_FIELD, "text", NULL},
        {"{\"text\":[1]}", SL_E_INVALID_TYPE, "text", "text must be a string, got an array of 1"},
        {"", SL_E_INVALID_JSON, "", NULL}};
    fields_check_cases(tokenize, texts, N(texts));
    static const struct field_case lists[] = {
        {"{\"text\":\"x\"}", SL_E_MISSING_FIELD, "tokens", NULL},
        {"{\"tokens\":\"x\"}", SL_E_INVALID_TYPE, "tokens", NULL},
        {"{\"tokens\":[0,-1]}", SL_E_INVALID_VALUE, "tokens[1]", NULL}};
    fields_check_cases(detokenize, lists, N(lists));
}

/* Every allocation of a decoder fails once; the address sanitizer sees what is lost. */
static void out_of_memory(void **state)
{
    (void)state;
    size_t n = fields_check_memory(
        generate, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                  "\"text\":\"hello, this is longer than a lexer's first buffer\"}]},"
                  "{\"role\":\"assistant\",\"content\":\"x\"}],\"session\":\"s\","
                  "\"model\":\"m\",\"stop\":[\"a\",\"b\"],\"stop_tokens\":[1],"
                  "\"logit_bias\":{\"1\":2},\"seed\":1,\"ignored\":1e400}");
    assert_true(n > 30);
    char big[12000]; /* a prompt that gets a chunk of its own in the pool */
    int len = snprintf(big, sizeof big, "{\"prompt\":\"%010000d\",\"stop\":\"x\"}", 1);
    assert_true(len > 10000 && (size_t)len < sizeof big);
    assert_true(fields_check_memory(generate, big) > 5);
    n = fields_check_memory(create, "{\"id\":\"a\",\"prompt\":[1,2],\"metadata\":{\"a\":[1]},"
                                    "\"from\":{\"snapshot\":\"AAAA\"}}");
    assert_true(n > 10);
    assert_true(fields_check_memory(tokenize, "{\"text\":\"x\",\"model\":\"m\"}") > 3);
    assert_true(fields_check_memory(detokenize, "{\"tokens\":[1]}") > 3);
}

int main(void)
{
    sl_json_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_defaults),    cmocka_unit_test(generate_all_fields),
        cmocka_unit_test(generate_inputs),      cmocka_unit_test(generate_messages),
        cmocka_unit_test(generate_wrong_types), cmocka_unit_test(generate_ranges),
        cmocka_unit_test(generate_lists),       cmocka_unit_test(generate_cross_checks),
        cmocka_unit_test(message_errors),       cmocka_unit_test(limits_by_name),
        cmocka_unit_test(session_bodies),       cmocka_unit_test(session_errors),
        cmocka_unit_test(tokens_and_text),      cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
