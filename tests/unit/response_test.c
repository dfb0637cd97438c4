/* response_test.c: every body of Slate's own routes, against strings written by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/response.h"
#include "tests/support/vocab.h"

#define TEXT(s)                                                                                    \
    {                                                                                              \
        s, sizeof(s) - 1                                                                           \
    }

/* The text, and that it is JSON without duplicate keys and fits a data: line. */
static void check(struct sl_buf *b, const char *expected)
{
    assert_int_equal(sl_buf_code(b, NULL), SL_OK);
    json_error_t error;
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!v)
        fail_msg("%.*s: %s", (int)b->len, b->data, error.text);
    json_decref(v);
    assert_null(memchr(b->data, '\n', b->len));
    sl_buf_putc(b, '\0');
    assert_string_equal(b->data, expected);
    sl_buf_done(b);
    sl_buf_init(b, 1 << 20);
}

static struct sl_buf buffer(void)
{
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    return b;
}

static const uint32_t ids[] = {1, 4, 5};

static struct sl_result result(void)
{
    return (struct sl_result){.id = "gen-1",
                              .model = "m",
                              .text = TEXT("Hel\xc3\xa4"),
                              .seed = INT64_MAX,
                              .finish = SL_FINISH_LENGTH,
                              .usage = {10, 3, 7},
                              .timings = {1500, 2000000, 500000, 6, 7, 13}};
}

#define TIMINGS                                                                                    \
    "\"timings\":{\"queue_ms\":1.500,\"prefill_ms\":2000.000,\"decode_ms\":500.000,"               \
    "\"prefill_tps\":3.000,\"decode_tps\":14.000,\"computed_tokens\":13}"
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":10,\"cached_tokens\":3,\"completion_tokens\":7,"                 \
    "\"total_tokens\":17}"

static void generate_plain(void **state)
{
    (void)state;
    struct sl_buf b = buffer();
    struct sl_result r = result();
    sl_write_generate(&b, &r, &tiny_vocab);
    check(&b, "{\"id\":\"gen-1\",\"model\":\"m\",\"session\":null,\"version\":null,"
              "\"text\":\"Hel\xc3\xa4\",\"seed\":9223372036854775807,\"finish_reason\":\"length\","
              "\"stop_sequence\":null," USAGE "," TIMINGS "}");
    sl_buf_done(&b);
}

#define LOGPROBS                                                                                   \
    "\"logprobs\":[{\"token_id\":1,\"text\":\"Hel\",\"logprob\":-0.5,\"top\":["                    \
    "{\"token_id\":1,\"text\":\"Hel\",\"logprob\":-0.5},"                                          \
    "{\"token_id\":3,\"text\":\" \\\"\",\"logprob\":-1.25}]},"                                     \
    "{\"token_id\":4,\"text\":\"\xef\xbf\xbd\",\"logprob\":-2,\"top\":["                           \
    "{\"token_id\":0,\"text\":\"\",\"logprob\":-0.125},"                                           \
    "{\"token_id\":6,\"text\":\"\\n\",\"logprob\":-4}]}]"

static void generate_everything(void **state)
{
    (void)state;
    struct sl_buf b = buffer();
    struct sl_result r = result();
    r.session = "s";
    r.version = 12;
    r.finish = SL_FINISH_STOP;
    r.stop_sequence = (struct sl_text)TEXT("\n\nUser:");
    r.tokens = ids;
    r.n_tokens = 3;
    r.logprobs = tiny_logprobs;
    r.n_logprobs = 2;
    r.n_top = 2;
    r.state = (struct sl_text)TEXT("AAAA");
    sl_write_generate(&b, &r, &tiny_vocab);
    check(&b, "{\"id\":\"gen-1\",\"model\":\"m\",\"session\":\"s\",\"version\":12,"
              "\"text\":\"Hel\xc3\xa4\",\"seed\":9223372036854775807,\"finish_reason\":\"stop\","
              "\"stop_sequence\":\"\\n\\nUser:\",\"tokens\":[1,4,5]," LOGPROBS "," USAGE "," TIMINGS
              ",\"state\":\"AAAA\"}");
    r.timings = (struct sl_timings){0};
    r.n_tokens = 0;
    r.n_logprobs = 0;
    r.state.s = NULL;
    sl_write_generate_final(&b, &r, false, &tiny_vocab);
    check(&b, "{\"id\":\"gen-1\",\"model\":\"m\",\"session\":\"s\",\"version\":12,"
              "\"text\":\"Hel\xc3\xa4\",\"seed\":9223372036854775807,\"finish_reason\":\"stop\","
              "\"stop_sequence\":\"\\n\\nUser:\",\"tokens\":[],\"logprobs\":[],"
              "\"timings\":{\"queue_ms\":0.000,\"prefill_ms\":0.000,\"decode_ms\":0.000,"
              "\"prefill_tps\":0.000,\"decode_tps\":0.000,\"computed_tokens\":0}}");
    sl_buf_done(&b);
}

static void finish_words(void **state)
{
    (void)state;
    assert_null(sl_proto_finish(SL_FINISH_NONE));
    assert_string_equal(sl_proto_finish(SL_FINISH_STOP), "stop");
    assert_string_equal(sl_proto_finish(SL_FINISH_LENGTH), "length");
    assert_string_equal(sl_proto_finish(SL_FINISH_EOS), "eos");
    assert_string_equal(sl_proto_finish(SL_FINISH_CANCELLED), "cancelled");
    assert_string_equal(sl_proto_finish(SL_FINISH_PAUSED), "paused");
    assert_string_equal(sl_proto_finish(SL_FINISH_TIMEOUT), "timeout");
    assert_null(sl_proto_finish((enum sl_finish)99));
}

static void generate_events(void **state)
{
    (void)state;
    struct sl_buf b = buffer();
    struct sl_delta d = {.id = "gen-1", .model = "m", .text = TEXT("a\"\n")};
    sl_write_generate_event(&b, &d, &tiny_vocab);
    check(&b, "{\"id\":\"gen-1\",\"text\":\"a\\\"\\n\"}");
    d.text = (struct sl_text)TEXT("");
    d.tokens = ids;
    d.n_tokens = 1;
    d.logprobs = tiny_logprobs;
    d.n_logprobs = 1;
    d.n_top = 0;
    sl_write_generate_event(&b, &d, &tiny_vocab);
    check(&b, "{\"id\":\"gen-1\",\"text\":\"\",\"tokens\":[1],\"logprobs\":[{\"token_id\":1,"
              "\"text\":\"Hel\",\"logprob\":-0.5,\"top\":[]}]}");
    sl_buf_done(&b);
}

static void errors(void **state)
{
    (void)state;
    struct sl_buf b = buffer();
    struct sl_error err;
    (void)sl_fail_param(&err, SL_E_INVALID_VALUE, "stop[3]", "stop[3] must not be \"%s\"", "x");
    sl_write_error(&b, &err);
    check(&b, "{\"error\":{\"message\":\"stop[3] must not be \\\"x\\\"\",\"type\":"
              "\"invalid_request_error\",\"param\":\"stop[3]\",\"code\":\"invalid_value\"}}");
    err = (struct sl_error){.code = SL_E_SESSION_BUSY};
    sl_write_error(&b, &err);
    check(&b, "{\"error\":{\"message\":\"a turn is running on it\",\"type\":"
              "\"invalid_request_error\",\"param\":null,\"code\":\"session_busy\"}}");
    sl_buf_done(&b);
}

#define SESSION_A                                                                                  \
    "{\"id\":\"a\",\"object\":\"session\",\"model\":\"m\",\"version\":3,\"tokens_seen\":100,"      \
    "\"residency\":\"memory\",\"busy\":true,\"bytes\":2048,\"kept_bytes\":7,"                      \
    "\"created_at\":1700000000,"                                                                   \
    "\"used_at\":1700000001,\"expires_at\":1700003601,\"ttl_s\":3600,\"metadata\":{\"k\":[1]}}"
#define SESSION_B                                                                                  \
    "{\"id\":\"b\",\"object\":\"session\",\"model\":\"m\",\"version\":0,\"tokens_seen\":0,"        \
    "\"residency\":\"store\",\"busy\":false,\"bytes\":0,\"kept_bytes\":0,\"created_at\":1,\"used_" \
    "at\":1,"                                                                                      \
    "\"expires_at\":null,\"ttl_s\":0,\"metadata\":{}}"

static void checkpoints(void **state)
{
    (void)state;
    static const struct sl_checkpoint_view v[] = {{0, 0, 9}, {4, 100, 10}};
    static const struct sl_checkpoint_name names[] = {{4, "a"}, {4, "b"}};
    struct sl_buf b = buffer();
    sl_write_checkpoints(&b, "it", v, 2, names, 2);
    check(&b, "{\"object\":\"list\",\"session\":\"it\",\"data\":["
              "{\"object\":\"checkpoint\",\"version\":0,\"tokens_seen\":0,\"at\":9,"
              "\"current\":false,\"names\":[]},"
              "{\"object\":\"checkpoint\",\"version\":4,\"tokens_seen\":100,\"at\":10,"
              "\"current\":true,\"names\":[\"a\",\"b\"]}]}");
    sl_write_checkpoint(&b, "it", "a", &v[1]);
    check(&b, "{\"object\":\"checkpoint\",\"session\":\"it\",\"name\":\"a\",\"version\":4,"
              "\"tokens_seen\":100,\"at\":10}");
    sl_write_checkpoint(&b, "it", "a", NULL);
    check(&b, "{\"object\":\"checkpoint\",\"session\":\"it\",\"name\":\"a\",\"deleted\":true}");
    sl_buf_done(&b);
}

static void sessions(void **state)
{
    (void)state;
    static const struct sl_session_view a = {.id = "a",
                                             .model = "m",
                                             .version = 3,
                                             .tokens_seen = 100,
                                             .in_memory = true,
                                             .busy = true,
                                             .bytes = 2048,
                                             .kept_bytes = 7,
                                             .created_at = 1700000000,
                                             .used_at = 1700000001,
                                             .expires_at = 1700003601,
                                             .ttl_s = 3600,
                                             .metadata = TEXT("{\"k\":[1]}")};
    static const struct sl_session_view s = {
        .id = "b", .model = "m", .created_at = 1, .used_at = 1};
    struct sl_buf b = buffer();
    sl_write_session(&b, &a);
    check(&b, SESSION_A);
    sl_write_session(&b, &s);
    check(&b, SESSION_B);
    sl_write_session_list_begin(&b);
    sl_write_session_list_item(&b, 0, &a);
    sl_write_session_list_item(&b, 1, &s);
    sl_write_session_list_end(&b, true, "b");
    check(&b, "{\"object\":\"list\",\"data\":[" SESSION_A "," SESSION_B
              "],\"has_more\":true,\"last_id\":\"b\"}");
    sl_write_session_list_begin(&b);
    sl_write_session_list_end(&b, false, NULL);
    check(&b, "{\"object\":\"list\",\"data\":[],\"has_more\":false,\"last_id\":null}");
    sl_write_session_deleted(&b, "a");
    check(&b, "{\"id\":\"a\",\"object\":\"session\",\"deleted\":true}");
    sl_write_session_cancelled(&b, "a", false);
    check(&b, "{\"id\":\"a\",\"object\":\"session\",\"cancelled\":false}");
    sl_buf_done(&b);
}

#define MODEL                                                                                      \
    "\"object\":\"model\",\"created\":5,\"owned_by\":\"slate\",\"arch\":\"rwkv7\","                \
    "\"weights\":\"bf16\",\"kernels\":\"ref\",\"parameters\":9000000000,\"n_layers\":12,"          \
    "\"d_model\":768,\"vocab_size\":65536,\"state_bytes\":2432,"                                   \
    "\"max_tokens\":null,\"fingerprint\":\"00010203040506070809fafbfcfdfeff\",\"tokenizer\":"      \
    "\"bytes\","                                                                                   \
    "\"chat_template\":\"rwkv\",\"initial_states\":[\"poet\",\"b.2\"]}"

static void models(void **state)
{
    (void)state;
    static const struct sl_model_info info = {
        .arch = "rwkv7",
        .name = "n",
        .kernels = "ref",
        .n_layers = 12,
        .d_model = 768,
        .vocab_size = 65536,
        .weights = SL_DTYPE_BF16,
        .n_params = 9000000000,
        .state_bytes = 2432,
        .fingerprint = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff}};
    static const char *const names[] = {"poet", "b.2"};
    static const struct sl_model_view m[] = {{"one", 5, &info, "bytes", "rwkv", names, 2},
                                             {"two", 5, &info, "bytes", "rwkv", names, 2}};
    struct sl_buf b = buffer();
    sl_write_model(&b, m);
    check(&b, "{\"id\":\"one\"," MODEL);
    sl_write_model_list(&b, m, 2);
    check(&b,
          "{\"object\":\"list\",\"data\":[{\"id\":\"one\"," MODEL ",{\"id\":\"two\"," MODEL "]}");
    struct sl_model_info with_end = info;
    with_end.max_tokens = 512;
    sl_write_model(&b, &(struct sl_model_view){"end", 5, &with_end, "bytes", "rwkv", NULL, 0});
    sl_buf_putc(&b, '\0');
    assert_non_null(strstr(b.data, "\"max_tokens\":512,"));
    sl_buf_done(&b);
}

static void the_rest(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {0, UINT32_MAX};
    struct sl_buf b = buffer();
    sl_write_tokenized(&b, tokens, 2);
    check(&b, "{\"tokens\":[0,4294967295],\"count\":2}");
    sl_write_tokenized(&b, NULL, 0);
    check(&b, "{\"tokens\":[],\"count\":0}");
    sl_write_detokenized(&b, "a\0b", 3);
    check(&b, "{\"text\":\"a\\u0000b\"}");
    sl_write_status(&b, "ok");
    check(&b, "{\"status\":\"ok\"}");
    sl_buf_done(&b);
}

/* A full buffer or memory that ends in the middle is one code at the end, whatever was written. */
static void failures_are_sticky(void **state)
{
    (void)state;
    struct sl_result r = result();
    r.logprobs = tiny_logprobs;
    r.n_logprobs = 3;
    r.n_top = 2;
    struct sl_buf b = buffer();
    sl_write_generate(&b, &r, &tiny_vocab);
    size_t n = b.len;
    sl_buf_done(&b);
    for (size_t max = 0; max <= n; max++) {
        sl_buf_init(&b, max);
        sl_write_generate(&b, &r, &tiny_vocab);
        assert_int_equal(sl_buf_code(&b, NULL), max < n ? SL_E_TOO_LARGE : SL_OK);
        assert_true(b.len <= max);
        sl_buf_done(&b);
    }
    enum sl_code c = SL_E_NO_MEMORY;
    for (int64_t i = 0; c != SL_OK; i++) {
        sl_buf_init(&b, 1 << 20);
        sl_mem_fail_after(i);
        sl_write_generate(&b, &r, &tiny_vocab);
        sl_mem_fail_after(-1);
        c = sl_buf_code(&b, NULL);
        assert_true(c == SL_OK ? i >= 2 : c == SL_E_NO_MEMORY);
        sl_buf_done(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_plain), cmocka_unit_test(generate_everything),
        cmocka_unit_test(finish_words),   cmocka_unit_test(generate_events),
        cmocka_unit_test(errors),         cmocka_unit_test(sessions),
        cmocka_unit_test(checkpoints),    cmocka_unit_test(models),
        cmocka_unit_test(the_rest),       cmocka_unit_test(failures_are_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
