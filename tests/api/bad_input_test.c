/* bad_input_test.c: what clients send wrong: each gets a clear error that names the field, and the
 * server goes on. After every row a good request must still be answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

static struct api tiny;

static int start(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){"--max-body=1MiB", NULL});
    reply_free(expect(post(tiny.client, "/v1/sessions", "{'id':'s'}"), 201));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&tiny);
    return 0;
}

static void still_answers(void)
{
    struct gen g;
    generate(tiny.client, &g, "'prompt':'a','max_tokens':1,'temperature':0");
    gen_done(&g);
}

/* --- the wrong type for every field ------------------------------------------------------------*/

enum { /* what a field takes, of the values below */
       T_STRING = 1,
       T_INT = 2,
       T_REAL = 4,
       T_BOOL = 8,
       T_ARRAY = 16,
       T_OBJECT = 32
};

static const struct {
    int is;
    const char *json;
} values[] = {
    {T_STRING, "'a'"}, {T_INT, "1"},    {T_REAL, "0.5"},       {T_BOOL, "true"},
    {T_BOOL, "false"}, {T_ARRAY, "[]"}, {T_ARRAY, "[[[{}]]]"}, {T_OBJECT, "{'x':1}"},
};

struct field {
    const char *name;
    int takes;
};

static const struct field turn_fields[] = {
    {"model", T_STRING},
    {"session", T_STRING},
    {"max_time_ms", T_INT},
    {"stop", T_STRING | T_ARRAY},
    {"stop_tokens", T_ARRAY},
    {"ignore_eos", T_BOOL},
    {"on_disconnect", T_STRING},
    {"temperature", T_INT | T_REAL},
    {"top_k", T_INT},
    {"top_p", T_INT | T_REAL},
    {"min_p", T_INT | T_REAL},
    {"typical_p", T_INT | T_REAL},
    {"repetition_penalty", T_INT | T_REAL},
    {"presence_penalty", T_INT | T_REAL},
    {"frequency_penalty", T_INT | T_REAL},
    {"penalty_decay", T_INT | T_REAL},
    {"penalty_last_n", T_INT},
    {"logit_bias", T_ARRAY | T_OBJECT},
    {"seed", T_INT},
    {"stream", T_BOOL},
    {"stream_options", T_OBJECT},
    {"max_tokens", T_INT},
};
static const struct field generate_fields[] = {
    {"prompt", T_STRING | T_ARRAY},
    {"messages", T_ARRAY},
    {"resume", T_BOOL},
    {"logprobs", T_INT},
    {"return_tokens", T_BOOL},
    {"return_state", T_BOOL},
    {"initial_state", T_STRING},
};
static const struct field chat_fields[] = {
    {"messages", T_ARRAY},
    {"logprobs", T_BOOL},
    {"top_logprobs", T_INT},
    {"max_completion_tokens", T_INT},
    {"n", T_INT},
    {"tools", T_ARRAY},
    {"response_format", T_OBJECT},
    {"modalities", T_ARRAY},
};
static const struct field completion_fields[] = {
    {"prompt", T_STRING | T_ARRAY}, {"logprobs", T_INT}, {"best_of", T_INT}, {"echo", T_BOOL},
    {"suffix", T_STRING},           {"n", T_INT},
};
static const struct field session_fields[] = {
    {"id", T_STRING},       {"prompt", T_STRING | T_ARRAY}, {"messages", T_ARRAY}, {"ttl_s", T_INT},
    {"metadata", T_OBJECT}, {"from", T_STRING | T_OBJECT},  {"model", T_STRING},
};
static const struct field fork_fields[] = {
    {"id", T_STRING}, {"ttl_s", T_INT}, {"metadata", T_OBJECT}};
static const struct field patch_fields[] = {{"ttl_s", T_INT}, {"metadata", T_OBJECT}};
static const struct field tokenize_fields[] = {{"text", T_STRING}, {"model", T_STRING}};
static const struct field detokenize_fields[] = {{"tokens", T_ARRAY}, {"model", T_STRING}};

/* good: the field that the request cannot do without. */
static void check_types(const char *method, const char *path, const char *good,
                        const struct field *f, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            char body[300], what[300];
            if (f[i].takes & values[k].is)
                continue;
            bool alone = !*good || !strncmp(good + 1, f[i].name, strlen(f[i].name));
            snprintf(body, sizeof body, "{\"%s\":%s%s%s}", f[i].name, quoted(values[k].json),
                     alone ? "" : ",", alone ? "" : quoted(good));
            struct reply *r = request(tiny.client, method, path, NULL, body, strlen(body));
            snprintf(what, sizeof what, "%s", r->json ? str_at(r->json, "error.message") : "");
            /* The message names the field and what it should be. */
            if (!strstr(what, f[i].name))
                print_error("%s: %s\n", body, what);
            assert_non_null(strstr(what, f[i].name));
            expect_error(r, 400, "invalid_type", f[i].name);
        }
    }
    still_answers();
}

#define CHECK_TYPES(method, path, good, fields)                                                    \
    check_types((method), (path), (good), (fields), sizeof(fields) / sizeof *(fields))

static void test_types(void **state)
{
    (void)state;
    static const char prompt[] = "'prompt':'a'",
                      messages[] = "'messages':[{'role':'user','content':'a'}]";
    CHECK_TYPES("POST", "/v1/generate", prompt, turn_fields);
    CHECK_TYPES("POST", "/v1/generate", "", generate_fields);
    CHECK_TYPES("POST", "/v1/completions", prompt, turn_fields);
    CHECK_TYPES("POST", "/v1/completions", prompt, completion_fields);
    CHECK_TYPES("POST", "/v1/chat/completions", messages, turn_fields);
    CHECK_TYPES("POST", "/v1/chat/completions", messages, chat_fields);
    CHECK_TYPES("POST", "/v1/sessions", "", session_fields);
    CHECK_TYPES("POST", "/v1/sessions/s/fork", "", fork_fields);
    CHECK_TYPES("PATCH", "/v1/sessions/s", "", patch_fields);
    CHECK_TYPES("POST", "/v1/tokenize", "'text':'a'", tokenize_fields);
    CHECK_TYPES("POST", "/v1/detokenize", "'tokens':[]", detokenize_fields);
}

/* --- values ------------------------------------------------------------------------------------*/

static const struct {
    const char *fields, *code, *param;
    int status; /* 0: 400 */
} bad[] = {
    /* numbers out of range */
    {"'prompt':'a','max_tokens':-2", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':1e18", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':1000000000000000000", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':1e308", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':1e400", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':99999999999999999999999", "invalid_value", "max_tokens", 0},
    {"'prompt':'a','max_tokens':1.5", "invalid_type", "max_tokens", 0},
    {"'prompt':'a','seed':-2", "invalid_value", "seed", 0},
    {"'prompt':'a','seed':18446744073709551616", "invalid_value", "seed", 0},
    {"'prompt':'a','seed':1e400", "invalid_value", "seed", 0},
    {"'prompt':'a','temperature':-0.1", "invalid_value", "temperature", 0},
    {"'prompt':'a','temperature':1e308", "invalid_value", "temperature", 0},
    {"'prompt':'a','temperature':-1e400", "invalid_value", "temperature", 0},
    {"'prompt':'a','top_k':-2", "invalid_value", "top_k", 0},
    {"'prompt':'a','top_k':4294967296", "invalid_value", "top_k", 0},
    {"'prompt':'a','top_p':-0.01", "invalid_value", "top_p", 0},
    {"'prompt':'a','top_p':1.01", "invalid_value", "top_p", 0},
    {"'prompt':'a','top_p':-1e-320", "invalid_value", "top_p", 0},
    {"'prompt':'a','min_p':-0.01", "invalid_value", "min_p", 0},
    {"'prompt':'a','min_p':2", "invalid_value", "min_p", 0},
    {"'prompt':'a','typical_p':-1", "invalid_value", "typical_p", 0},
    {"'prompt':'a','typical_p':7", "invalid_value", "typical_p", 0},
    {"'prompt':'a','repetition_penalty':0", "invalid_value", "repetition_penalty", 0},
    {"'prompt':'a','repetition_penalty':1e300", "invalid_value", "repetition_penalty", 0},
    {"'prompt':'a','presence_penalty':1e39", "invalid_value", "presence_penalty", 0},
    {"'prompt':'a','frequency_penalty':-1e39", "invalid_value", "frequency_penalty", 0},
    {"'prompt':'a','penalty_decay':1.5", "invalid_value", "penalty_decay", 0},
    {"'prompt':'a','penalty_last_n':1025", "invalid_value", "penalty_last_n", 0},
    {"'prompt':'a','logprobs':21", "invalid_value", "logprobs", 0},
    {"'prompt':'a','logprobs':-1", "invalid_value", "logprobs", 0},
    {"'prompt':'a','max_time_ms':-5", "invalid_value", "max_time_ms", 0},
    {"'prompt':'a','on_disconnect':'explode'", "invalid_value", "on_disconnect", 0},
    {"'prompt':'a','stream_options':{'include_usage':1}", "invalid_type",
     "stream_options.include_usage", 0},
    /* ids of tokens */
    {"'prompt':[1,2048]", "invalid_value", "prompt[1]", 0},
    {"'prompt':[-1]", "invalid_value", "prompt[0]", 0},
    {"'prompt':[1.5]", "invalid_type", "prompt[0]", 0},
    {"'prompt':[1,null]", "invalid_type", "prompt[1]", 0},
    {"'prompt':['a']", "invalid_type", "prompt[0]", 0},
    {"'prompt':[4294967296]", "invalid_value", "prompt[0]", 0},
    {"'prompt':[1e19]", "invalid_value", "prompt[0]", 0},
    {"'prompt':'a','stop_tokens':[2048]", "invalid_value", "stop_tokens[0]", 0},
    {"'prompt':'a','stop_tokens':[true]", "invalid_type", "stop_tokens[0]", 0},
    {"'prompt':'a','logit_bias':{'2048':1}", "invalid_value", "logit_bias.2048", 0},
    {"'prompt':'a','logit_bias':{'-1':1}", "invalid_value", "logit_bias.-1", 0},
    {"'prompt':'a','logit_bias':{'a':1}", "invalid_value", "logit_bias.a", 0},
    {"'prompt':'a','logit_bias':{'01':1}", "invalid_value", "logit_bias.01", 0},
    {"'prompt':'a','logit_bias':{'':1}", "invalid_value", "logit_bias.", 0},
    {"'prompt':'a','logit_bias':{'5':101}", "invalid_value", "logit_bias.5", 0},
    {"'prompt':'a','logit_bias':{'5':'1'}", "invalid_type", "logit_bias.5", 0},
    {"'prompt':'a','logit_bias':{'5':null}", "invalid_type", "logit_bias.5", 0},
    {"'prompt':'a','logit_bias':[[5]]", "invalid_type", "logit_bias[0]", 0},
    {"'prompt':'a','logit_bias':[[5,1],[2048,1]]", "invalid_value", "logit_bias[1][0]", 0},
    {"'prompt':'a','logit_bias':[[5,1e308]]", "invalid_value", "logit_bias[0][1]", 0},
    /* stops */
    {"'prompt':'a','stop':''", "invalid_value", "stop", 0},
    {"'prompt':'a','stop':['x','']", "invalid_value", "stop[1]", 0},
    {"'prompt':'a','stop':['x',7]", "invalid_type", "stop[1]", 0},
    {"'prompt':'a','stop':['1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16',"
     "'17']",
     "invalid_value", "stop", 0},
    /* what is read */
    {"'max_tokens':1", "missing_field", "prompt", 0},
    {"'prompt':'a','messages':[{'role':'user','content':'b'}]", "invalid_value", "messages", 0},
    {"'messages':[]", "invalid_value", "messages", 0},
    {"'messages':['hi']", "invalid_type", "messages[0]", 0},
    {"'messages':[{'content':'hi'}]", "missing_field", "messages[0].role", 0},
    {"'messages':[{'role':'robot','content':'hi'}]", "invalid_value", "messages[0].role", 0},
    {"'messages':[{'role':7,'content':'hi'}]", "invalid_type", "messages[0].role", 0},
    {"'messages':[{'role':'user','content':7}]", "invalid_type", "messages[0].content", 0},
    {"'messages':[{'role':'user','content':[7]}]", "invalid_type", "messages[0].content[0]", 0},
    {"'messages':[{'role':'user','content':[{'type':'text'}]}]", "missing_field",
     "messages[0].content[0].text", 0},
    {"'messages':[{'role':'user','content':[{'type':'image_url','image_url':{}}]}]", "unsupported",
     "messages[0].content[0].type", 0},
    {"'resume':true", "missing_field", "session", 0},
    {"'resume':true,'session':'s'", "nothing_paused", "resume", 409},
    {"'prompt':'a','initial_state':'!!!!'", "invalid_value", "initial_state", 0},
    {"'prompt':'a','model':'\\u0000'", "invalid_value", "model", 0},
    {"'prompt':'a','session':'a/b'", "invalid_value", "session", 0},
};

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct reply *r = post(tiny.client, "/v1/generate", "{%s}", quoted(bad[i].fields));
        if (!r->json || r->status != (bad[i].status ? bad[i].status : 400) ||
            strcmp(str_at(r->json, "error.code"), bad[i].code) != 0)
            print_error("{%s}\n", bad[i].fields);
        expect_error(r, bad[i].status ? bad[i].status : 400, bad[i].code, bad[i].param);
        if (i % 8 == 0)
            still_answers();
    }
    still_answers();
}

/* What is at the edge is allowed. */
static void test_edges(void **state)
{
    (void)state;
    static const char *const fine[] = {
        "'seed':0",
        "'seed':-1",
        "'seed':9223372036854775807",
        "'temperature':100",
        "'temperature':0.0",
        "'temperature':1e-40",
        "'top_k':4294967295",
        "'top_k':-1",
        "'top_p':1e-30",
        "'top_p':0",
        "'min_p':1",
        "'typical_p':0",
        "'repetition_penalty':100",
        "'repetition_penalty':0.01",
        "'presence_penalty':-100",
        "'frequency_penalty':100",
        "'penalty_decay':0",
        "'penalty_last_n':1024",
        "'logit_bias':{}",
        "'logit_bias':{'0':-100,'2047':100.0}",
        "'stop':[]",
        "'stop_tokens':[]",
        "'stop_tokens':[0,2047]",
        "'logprobs':20",
        "'max_tokens':3.0",
        "'max_time_ms':0",
        "'stop':['1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16']",
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct gen g;
        const char *n = strstr(fine[i], "max_tokens") ? "" : "'max_tokens':3,";
        generate(tiny.client, &g, "'prompt':'a',%s%s", quoted(n), quoted(fine[i]));
        gen_done(&g);
    }
}

/* --- no JSON at all ----------------------------------------------------------------------------*/

static const struct {
    const char *body, *code;
} broken[] = {
    {"", "invalid_json"},
    {" ", "invalid_json"},
    {"{", "invalid_json"},
    {"{\"prompt\":\"a\"", "invalid_json"},
    {"{\"prompt\":\"a\"}}", "invalid_json"},
    {"{\"prompt\":\"a\",}", "invalid_json"},
    {"{'prompt':'a'}", "invalid_json"},
    {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "invalid_json"},
    {"{\"prompt\":\"\\ud800\"}", "invalid_json"},
    {"{\"prompt\":\"\\udc00x\"}", "invalid_json"},
    {"{\"prompt\":\"\\ud83d\\u0041\"}", "invalid_json"},
    {"{\"prompt\":\"\xff\xfe\"}", "invalid_json"},
    {"{\"prompt\":\"\xc0\xaf\"}", "invalid_json"},
    {"{\"prompt\":\"\xed\xa0\x80\"}", "invalid_json"},
    {"{\"prompt\":\"\xf4\x90\x80\x80\"}", "invalid_json"},
    {"{\"prompt\":\"a\xe2\x82\"}", "invalid_json"},
    {"{\"\xff\":1}", "invalid_json"},
    {"{\"prompt\":\"a\nb\"}", "invalid_json"},
    {"{\"prompt\":NaN}", "invalid_json"},
    {"{\"prompt\":Infinity}", "invalid_json"},
    {"{\"max_tokens\":01}", "invalid_json"},
    {"{\"max_tokens\":+1}", "invalid_json"},
    {"{\"max_tokens\":1.}", "invalid_json"},
    {"\xef\xbb\xbf{\"prompt\":\"a\"}", "invalid_json"},
    {"null", "invalid_type"},
    {"[]", "invalid_type"},
    {"\"prompt\"", "invalid_type"},
    {"7", "invalid_type"},
    {"[{\"prompt\":\"a\"}]", "invalid_type"},
};

static void test_no_json(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/generate", "/v1/completions", "/v1/chat/completions",
                                        "/v1/tokenize", "/v1/detokenize"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct reply *r = request(tiny.client, "POST", paths[i % 5], NULL, broken[i].body,
                                  strlen(broken[i].body));
        expect_error(r, 400, broken[i].code, NULL);
        if (!*broken[i].body)
            continue; /* an empty body is {} for the others */
        r = request(tiny.client, "POST", "/v1/sessions", NULL, broken[i].body,
                    strlen(broken[i].body));
        expect_error(r, 400, broken[i].code, NULL);
    }
    still_answers();
}

static void test_deep(void **state)
{
    (void)state;
    static const struct {
        const char *before, *unit;
    } row[] = {{"{\"x\":", "["}, {"{\"x\":", "{\"a\":"}, {"", "["}, {"{\"prompt\":", "[[{\"b\":"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        for (size_t n = 1000; n <= 100000; n *= 10) {
            char *body = repeated(row[i].before, row[i].unit, n, "");
            struct reply *r =
                request(tiny.client, "POST", "/v1/generate", NULL, body, strlen(body));
            expect_error(r, 400, "invalid_json", NULL);
            sl_free(body);
        }
    }
    /* Deep and well formed, in a field that nobody reads. */
    char *open = repeated("{\"prompt\":\"a\",\"max_tokens\":1,\"x\":", "[", 500, "");
    char *body = repeated(open, "]", 500, "}");
    reply_free(expect(request(tiny.client, "POST", "/v1/generate", NULL, body, strlen(body)), 200));
    sl_free(open);
    sl_free(body);
    still_answers();
}

/* --- sizes and headers -------------------------------------------------------------------------*/

static void test_too_large(void **state)
{
    (void)state;
    char *body = repeated("{\"prompt\":\"", "x", 1100000, "\"}");
    struct reply *r = request(tiny.client, "POST", "/v1/generate", NULL, body, strlen(body));
    expect_error(r, 413, "too_large", NULL);
    /* Said to be large, and nothing of it sent. */
    r = request(tiny.client, "POST", "/v1/generate",
                "Content-Length: 99999999999\nExpect: 100-continue", "{", 1);
    expect_error(r, 413, "too_large", NULL);
    r = request(tiny.client, "POST", "/v1/generate", "Transfer-Encoding: chunked\nExpect:", body,
                strlen(body));
    expect_error(r, 413, "too_large", NULL);
    sl_free(body);
    still_answers();
    char *stop = repeated("", "s", 257, "");
    expect_error(post(tiny.client, "/v1/generate", "{'prompt':'a','stop':'%s'}", stop), 400,
                 "invalid_value", "stop");
    sl_free(stop);
    char *ids = repeated("[1", ",1", 64, "]");
    expect_error(post(tiny.client, "/v1/generate", "{'prompt':'a','stop_tokens':%s}", ids), 400,
                 "invalid_value", "stop_tokens");
    sl_free(ids);
    char *bias = repeated("[[1,1]", ",[1,1]", 1024, "]");
    expect_error(post(tiny.client, "/v1/generate", "{'prompt':'a','logit_bias':%s}", bias), 400,
                 "invalid_value", "logit_bias");
    sl_free(bias);
    char *name = repeated("", "m", 300, "");
    expect_error(post(tiny.client, "/v1/generate", "{'prompt':'a','model':'%s'}", name), 400,
                 "invalid_value", "model");
    sl_free(name);
    char *messages = repeated("[{\"role\":\"user\"}", ",{\"role\":\"user\"}", 4096, "]");
    expect_error(post(tiny.client, "/v1/generate", "{'messages':%s}", messages), 413, "too_large",
                 "messages");
    sl_free(messages);
    still_answers();
}

static void test_content_type(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    static const char *const wrong[] = {"Content-Type:", "Content-Type: text/plain",
                                        "Content-Type: application/x-www-form-urlencoded",
                                        "Content-Type: multipart/form-data",
                                        "Content-Type: application/jsonp"};
    static const char *const right[] = {"Content-Type: application/json",
                                        "Content-Type: application/json; charset=utf-8",
                                        "Content-Type: Application/JSON"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(request(tiny.client, "POST", "/v1/generate", wrong[i], body, strlen(body)),
                     415, "unsupported_media_type", NULL);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        reply_free(expect(
            request(tiny.client, "POST", "/v1/generate", right[i], body, strlen(body)), 200));
}

/* No web page may drive a local server. */
static void test_host_and_origin(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    expect_error(
        request(tiny.client, "POST", "/v1/generate", "Host: evil.example", body, strlen(body)), 403,
        "host_refused", NULL);
    expect_error(request(tiny.client, "POST", "/v1/generate", "Origin: http://evil.example", body,
                         strlen(body)),
                 403, "origin_refused", NULL);
    expect_error(request(tiny.client, "GET", "/v1/sessions", "Origin: null", NULL, 0), 403,
                 "origin_refused", NULL);
    still_answers();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),        cmocka_unit_test(test_values),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_no_json),
        cmocka_unit_test(test_deep),         cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_content_type), cmocka_unit_test(test_host_and_origin),
    };
    return cmocka_run_group_tests_name("bad input", tests, start, stop);
}
