/* generate_test.c: POST /v1/generate without sessions: what goes in, what comes out, how it ends.
 * The embedded model and one with seeded weights on bytes. Samplers: sampling_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

static struct api tiny, bytes;

#define STORY "Once upon a time there was a little"

static int start_tiny(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){"--max-tokens-limit=200000", NULL});
    return 0;
}

static int stop_tiny(void **state)
{
    (void)state;
    api_stop(&tiny);
    return 0;
}

static int start_bytes(void **state)
{
    (void)state;
    api_start(&bytes, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                            "--model-name=first,second", NULL});
    return 0;
}

static int stop_bytes(void **state)
{
    (void)state;
    api_stop(&bytes);
    return 0;
}

/* The ids of a text, by /v1/tokenize, as JSON. */
static char *tokenized(struct client *c, const char *text, size_t *ret_n)
{
    char *quoted = string_json(text, strlen(text));
    struct reply *r = expect(post(c, "/v1/tokenize", "{'text':%s}", quoted), 200);
    *ret_n = len_at(r->json, "tokens");
    char *dumped = json_dumps(at(r->json, "tokens"), JSON_COMPACT), *ids = sl_strdup(dumped);
    free(dumped);
    sl_free(quoted);
    reply_free(r);
    return ids;
}

/* --- in and out --------------------------------------------------------------------------------*/

static void test_shape(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    size_t n_prompt;
    char *ids = tokenized(c, STORY, &n_prompt);
    struct gen g;
    generate(c, &g, "'prompt':'" STORY "','max_tokens':12,'temperature':0,'ignore_eos':true");
    const json_t *j = g.r->json;
    assert_true(strlen(str_at(j, "id")) > 8);
    assert_string_equal(str_at(j, "model"), "slate-tiny");
    assert_string_equal(str_at(j, "finish_reason"), "length");
    assert_true(g.o.n_text > 12);
    assert_int_equal(int_at(j, "usage.completion_tokens"), 12);
    /* A begin token goes first. */
    assert_int_equal(int_at(j, "usage.prompt_tokens"), n_prompt + 1);
    assert_int_equal(int_at(j, "usage.total_tokens"), n_prompt + 1 + 12);
    assert_int_equal(int_at(j, "usage.cached_tokens"), 0);
    assert_int_equal(int_at(j, "timings.computed_tokens"), n_prompt + 1 + 11);
    assert_true(num_at(j, "timings.queue_ms") >= 0 && num_at(j, "timings.prefill_ms") > 0);
    assert_true(num_at(j, "timings.decode_ms") > 0 && num_at(j, "timings.decode_tps") > 0);
    assert_true(int_at(j, "seed") >= 0);
    /* Not asked for, and nothing of a session. */
    assert_null(at(j, "tokens"));
    assert_null(at(j, "logprobs"));
    assert_true(json_is_null(at(j, "session")) && json_is_null(at(j, "version")));
    assert_null(reply_header(g.r, "X-Slate-Session"));
    assert_null(reply_header(g.r, "ETag"));
    gen_done(&g);
    sl_free(ids);
}

static void test_tokens_in(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    size_t n;
    char *ids = tokenized(c, STORY, &n);
    struct gen text, tokens;
    generate_both(c, &text, "'prompt':'" STORY "','max_tokens':24,'temperature':0,'logprobs':2");
    generate_both(c, &tokens, "'prompt':%s,'max_tokens':24,'temperature':0,'logprobs':2", ids);
    output_same(&text.o, &tokens.o);
    gen_done(&text);
    gen_done(&tokens);
    sl_free(ids);
}

/* n tokens and then m more, the first n given back as a prompt, are n + m at once. */
static void test_tokens_round_trip(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    enum { N = 17, M = 11 };
    struct gen all, head, tail;
    generate_both(c, &all,
                  "'prompt':[300,400,500],'max_tokens':%d,'temperature':0,'ignore_eos':true,"
                  "'return_tokens':true,'logprobs':3",
                  N + M);
    generate(c, &head,
             "'prompt':[300,400,500],'max_tokens':%d,'temperature':0,'ignore_eos':true,"
             "'return_tokens':true",
             N);
    assert_int_equal(all.o.n_tokens, N + M);
    assert_int_equal(head.o.n_tokens, N);
    assert_memory_equal(head.o.tokens, all.o.tokens, N * sizeof(uint32_t));
    char *ids = ids_json(head.o.tokens, N);
    generate(c, &tail,
             "'prompt':[300,400,500,%.*s,'max_tokens':%d,'temperature':0,'ignore_eos':true,"
             "'return_tokens':true,'logprobs':3",
             (int)strlen(ids + 1), ids + 1, M);
    assert_int_equal(tail.o.n_tokens, M);
    assert_memory_equal(tail.o.tokens, all.o.tokens + N, M * sizeof(uint32_t));
    for (size_t i = 0; i < M; i++)
        assert_true(
            json_equal(json_array_get(all.o.logprobs, N + i), json_array_get(tail.o.logprobs, i)));
    sl_free(ids);
    gen_done(&all);
    gen_done(&head);
    gen_done(&tail);
}

/* A stream is the whole reply in pieces, whatever is asked for. */
static void test_stream_is_whole(void **state)
{
    (void)state;
    static const char *const how[] = {
        "'temperature':0",
        "'temperature':1,'seed':7",
        "'temperature':0.8,'seed':8,'top_k':40,'top_p':0.9,'min_p':0.01,'typical_p':0.95",
        "'temperature':1.2,'seed':9,'repetition_penalty':1.2,'presence_penalty':0.3,"
        "'frequency_penalty':0.2,'penalty_decay':0.99,'penalty_last_n':64",
        "'temperature':1,'seed':10,'stop':[' the','.','\\n\\n']",
        "'temperature':1,'seed':9223372036854775807,'return_tokens':true,'logprobs':4",
        "'temperature':1,'seed':0,'return_tokens':true,'logprobs':0,'stop':'e'",
        "'temperature':0,'max_tokens':1,'return_tokens':true",
        "'temperature':0,'max_tokens':0,'return_tokens':true,'logprobs':1",
    };
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct gen a, b;
        const char *length = quoted(strstr(how[i], "max_tokens") ? "" : ",'max_tokens':40");
        const char *fields = quoted(how[i]);
        generate_both(tiny.client, &a, "'prompt':'" STORY "',%s%s", fields, length);
        generate_both(tiny.client, &b, "'prompt':'" STORY "',%s%s", fields, length);
        output_same(&a.o, &b.o);
        gen_done(&a);
        gen_done(&b);
    }
}

static void test_usage_in_streams(void **state)
{
    (void)state;
    struct gen with, without;
    generate_stream(tiny.client, &with,
                    "'prompt':'a b','max_tokens':3,'stream_options':{'include_usage':true}");
    generate_stream(tiny.client, &without, "'prompt':'a b','max_tokens':3");
    assert_int_equal(int_at(with.o.final, "usage.total_tokens"),
                     int_at(with.o.final, "usage.prompt_tokens") +
                         int_at(with.o.final, "usage.completion_tokens"));
    assert_null(at(without.o.final, "usage"));
    gen_done(&with);
    gen_done(&without);
}

/* --- stops -------------------------------------------------------------------------------------*/

/* Where the text ends: at the first byte at which a stop is complete, before the longest of them.
 */
static size_t naive_cut(const char *text, size_t n, const char *const *stops, const size_t *n_stops,
                        size_t n_list, size_t *ret_which)
{
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;
        for (size_t i = 0; i < n_list; i++) {
            if (n_stops[i] <= end && n_stops[i] > best &&
                !memcmp(text + end - n_stops[i], stops[i], n_stops[i])) {
                best = n_stops[i];
                *ret_which = i;
            }
        }
        if (best)
            return end - best;
    }
    return SIZE_MAX;
}

static void check_stops(const char *text, size_t n, const char *const *stops, const size_t *n_stops,
                        size_t n_list)
{
    char *list = sl_strdup("["), *p;
    for (size_t i = 0; i < n_list; i++) {
        char *one = string_json(stops[i], n_stops[i]);
        size_t len = strlen(list), add = strlen(one);
        p = sl_realloc(list, len + add + 2, 1);
        assert_non_null(p);
        list = p;
        memcpy(list + len, one, add);
        memcpy(list + len + add, i + 1 < n_list ? "," : "]", 2);
        sl_free(one);
    }
    size_t which = 0, cut = naive_cut(text, n, stops, n_stops, n_list, &which);
    assert_true(cut != SIZE_MAX);
    struct gen g;
    generate_both(tiny.client, &g,
                  "'prompt':'" STORY "','max_tokens':64,'temperature':0,'ignore_eos':true,"
                  "'return_tokens':true,'stop':%s",
                  list);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "stop");
    assert_int_equal(g.o.n_text, cut);
    assert_memory_equal(g.o.text, text, cut);
    const json_t *seq = at(g.r->json, "stop_sequence");
    assert_int_equal(json_string_length(seq), n_stops[which]);
    assert_memory_equal(json_string_value(seq), stops[which], n_stops[which]);
    assert_int_equal(int_at(g.r->json, "usage.completion_tokens"), g.o.n_tokens);
    /* The tokens are what the text is made of. */
    char *ids = ids_json(g.o.tokens, g.o.n_tokens);
    struct reply *r = expect(post(tiny.client, "/v1/detokenize", "{'tokens':%s}", ids), 200);
    assert_string_equal(str_at(r->json, "text"), g.o.text);
    reply_free(r);
    sl_free(ids);
    gen_done(&g);
    sl_free(list);
}

/* Every kind of place: pieces of the greedy text from offset to offset + length, one at a time and
 * in pairs that overlap or contain each other. */
static void test_stop_strings(void **state)
{
    (void)state;
    struct gen g;
    generate(tiny.client, &g,
             "'prompt':'" STORY "','max_tokens':64,'temperature':0,'ignore_eos':true");
    const char *text = g.o.text;
    size_t n = g.o.n_text;
    assert_true(n > 90);
    for (size_t off = 0; off < 24; off += 3) {
        for (size_t len = 1; len < 16; len += 4) {
            size_t lens[1] = {len};
            check_stops(text, n, (const char *const[]){text + off}, lens, 1);
        }
    }
    for (size_t off = 30; off < 80; off += 10) {
        check_stops(text, n, (const char *const[]){text + off, text + off - 3},
                    (const size_t[]){6, 12}, 2);
        check_stops(text, n, (const char *const[]){text + off, text + off + 2, text + off + 4},
                    (const size_t[]){9, 5, 9}, 3);
        check_stops(text, n, (const char *const[]){text + off, "never in it", text + off},
                    (const size_t[]){4, 11, 8}, 3);
    }
    gen_done(&g);
}

/* A text that repeats one token of two bytes: a stop of odd length begins and ends inside one. */
static void test_stop_that_overlaps_itself(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    size_t n;
    char *ids = tokenized(c, "\n\n", &n);
    assert_int_equal(n, 1); /* the vocabulary has a token for it */
    char bias[40];
    snprintf(bias, sizeof bias, "{\"%.*s\":100}", (int)strcspn(ids + 1, "]"), ids + 1);
    struct gen g;
    generate_both(c, &g, "'prompt':'x','max_tokens':5,'temperature':0,'logit_bias':%s", bias);
    assert_string_equal(g.o.text, "\n\n\n\n\n\n\n\n\n\n");
    gen_done(&g);
    static const struct {
        const char *stop, *want;
    } row[] = {
        {"'stop':'\\n'", ""},
        {"'stop':'\\n\\n\\n'", ""},
        {"'stop':['\\n\\n\\n\\n\\nx','\\n\\n\\n\\n\\n\\n\\n']", ""},
        {"'stop':['\\nx']", "\n\n\n\n\n\n\n\n\n\n"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        generate_both(c, &g, "'prompt':'x','max_tokens':5,'temperature':0,'logit_bias':%s,%s", bias,
                      quoted(row[i].stop));
        assert_string_equal(g.o.text, row[i].want);
        gen_done(&g);
    }
    sl_free(ids);
}

static void test_stop_tokens(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen all, g;
    generate(c, &all,
             "'prompt':'" STORY "','max_tokens':48,'temperature':0,'ignore_eos':true,"
             "'return_tokens':true");
    for (size_t at_token = 0; at_token < 48; at_token += 9) {
        uint32_t stop = all.o.tokens[at_token];
        size_t first = 0;
        while (all.o.tokens[first] != stop)
            first++;
        generate_both(c, &g,
                      "'prompt':'" STORY "','max_tokens':48,'temperature':0,'ignore_eos':true,"
                      "'return_tokens':true,'stop_tokens':[%u,2047]",
                      stop);
        assert_string_equal(str_at(g.r->json, "finish_reason"), "stop");
        assert_int_equal(g.o.n_tokens, first);
        assert_memory_equal(g.o.tokens, all.o.tokens, first * sizeof(uint32_t));
        assert_int_equal(int_at(g.r->json, "usage.completion_tokens"), first);
        assert_true(json_is_null(at(g.r->json, "stop_sequence")));
        gen_done(&g);
    }
    gen_done(&all);
}

/* --- other ends --------------------------------------------------------------------------------*/

static void test_max_tokens(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate_both(c, &g, "'prompt':'a','max_tokens':0,'return_tokens':true");
    assert_string_equal(g.o.text, "");
    assert_int_equal(g.o.n_tokens, 0);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "length");
    assert_int_equal(int_at(g.r->json, "usage.completion_tokens"), 0);
    gen_done(&g);
    generate_both(c, &g,
                  "'prompt':'a','max_tokens':1,'ignore_eos':true,'seed':3,"
                  "'return_tokens':true");
    assert_int_equal(g.o.n_tokens, 1);
    gen_done(&g);
    expect_error(post(c, "/v1/generate", "{'prompt':'a','max_tokens':200001}"), 400,
                 "invalid_value", "max_tokens");
}

static void test_end_token(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate_both(c, &g,
                  "'prompt':'a','max_tokens':8,'logit_bias':{'0':100},'return_tokens':true,"
                  "'logprobs':1,'seed':1");
    assert_string_equal(str_at(g.r->json, "finish_reason"), "eos");
    assert_int_equal(g.o.n_tokens, 0);
    assert_int_equal(json_array_size(g.o.logprobs), 0);
    assert_int_equal(int_at(g.r->json, "usage.completion_tokens"), 0);
    gen_done(&g);
    generate_both(c, &g,
                  "'prompt':'a','max_tokens':8,'logit_bias':{'0':100},'return_tokens':true,"
                  "'ignore_eos':true,'seed':1");
    assert_string_equal(str_at(g.r->json, "finish_reason"), "length");
    assert_int_equal(g.o.n_tokens, 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(g.o.tokens[i], 0);
    assert_string_equal(g.o.text, ""); /* its bytes are empty */
    gen_done(&g);
}

/* How much is done in a time depends on the machine: it is given more until it is something. */
static void test_max_time(void **state)
{
    (void)state;
    size_t n = 0;
    for (int ms = 20; !n; ms *= 2) {
        struct gen g;
        (ms & 32 ? generate_stream
                 : generate)(tiny.client, &g,
                             "'prompt':'a','max_tokens':200000,'ignore_eos':true,'max_time_ms':%d,"
                             "'return_tokens':true,'stream_options':{'include_usage':true}",
                             ms);
        n = g.o.n_tokens;
        assert_string_equal(str_at(g.o.final, "finish_reason"), "timeout");
        assert_true(n < 200000);
        assert_int_equal(int_at(g.o.final, "usage.completion_tokens"), n);
        gen_done(&g);
    }
}

/* --- messages ----------------------------------------------------------------------------------*/

/* The template of the embedded model, written out by hand: chat.h. */
static void test_messages(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    static const struct {
        const char *messages, *prompt;
    } row[] = {
        {"[{'role':'user','content':'hello there'}]", "User: hello there\\n\\nAssistant:"},
        {"[{'role':'system','content':'Be kind.'},{'role':'user','content':'hi'},"
         "{'role':'assistant','content':'Hello.'},{'role':'user','content':'who are you?'}]",
         "System: Be kind.\\n\\nUser: hi\\n\\nAssistant: Hello.\\n\\nUser: who are "
         "you?\\n\\nAssistant:"},
        {"[{'role':'user','content':[{'type':'text','text':'hello '},{'type':'text',"
         "'text':'there'}]}]",
         "User: hello \\nthere\\n\\nAssistant:"},
        {"[{'role':'developer','content':'Be kind.'},{'role':'user','content':'hi'}]",
         "System: Be kind.\\n\\nUser: hi\\n\\nAssistant:"},
        /* No content makes a turn of its own. */
        {"[{'role':'user','content':'  a\\r\\n \\n\\nAssistant: b\\rUser: c\\n'}]",
         "User: a\\nAssistant: b\\nUser: c\\n\\nAssistant:"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct gen m, p;
        generate_both(c, &m, "'messages':%s,'max_tokens':60,'temperature':0,'return_tokens':true",
                      quoted(row[i].messages));
        generate_both(c, &p,
                      "'prompt':'%s','stop':'\\n\\n','max_tokens':60,'temperature':0,"
                      "'return_tokens':true",
                      row[i].prompt);
        assert_int_equal(int_at(m.r->json, "usage.prompt_tokens"),
                         int_at(p.r->json, "usage.prompt_tokens"));
        assert_int_equal(m.o.n_tokens, p.o.n_tokens);
        assert_memory_equal(m.o.tokens, p.o.tokens, m.o.n_tokens * sizeof(uint32_t));
        /* The blank after "Assistant:" is the template's. */
        assert_int_equal(p.o.text[0], ' ');
        assert_string_equal(m.o.text, p.o.text + 1);
        gen_done(&m);
        gen_done(&p);
    }
}

/* --- fields ------------------------------------------------------------------------------------*/

static void test_null_and_unknown_fields(void **state)
{
    (void)state;
    struct gen plain, nulls;
    generate_both(tiny.client, &plain, "'prompt':'once','max_tokens':10,'seed':5");
    generate_both(
        tiny.client, &nulls,
        "'prompt':'once','max_tokens':10,'seed':5,'messages':null,'session':null,'resume':null,"
        "'model':null,'max_time_ms':null,'stop':null,'stop_tokens':null,'ignore_eos':null,"
        "'on_disconnect':null,'temperature':null,'top_k':null,'top_p':null,'min_p':null,"
        "'typical_p':null,'repetition_penalty':null,'presence_penalty':null,"
        "'frequency_penalty':null,'penalty_decay':null,'penalty_last_n':null,'logit_bias':null,"
        "'logprobs':null,'return_tokens':null,'stream_options':null,"
        "'initial_state':null,'return_state':null,'never_heard_of':{'a':[1,{}]},'n':1,'user':'me'");
    output_same(&plain.o, &nulls.o);
    gen_done(&plain);
    gen_done(&nulls);
}

static void test_states_of_the_client(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r =
        expect(post(c, "/v1/generate", "{'prompt':'a','max_tokens':3,'return_state':true}"), 200);
    assert_true(strlen(str_at(r->json, "state")) > 100000);
    reply_free(r);
    expect_error(post(c, "/v1/generate", "{'prompt':'a','initial_state':'AAAA'}"), 422,
                 "snapshot_corrupt", NULL);
    expect_error(post(c, "/v1/generate", "{'session':'x','prompt':'a','return_state':true}"), 404,
                 "session_not_found", "session");
}

static void test_model_names(void **state)
{
    (void)state;
    struct gen g;
    generate(tiny.client, &g, "'prompt':'a','max_tokens':1,'model':'slate-tiny'");
    gen_done(&g);
    expect_error(post(tiny.client, "/v1/generate", "{'prompt':'a','model':'gpt-4'}"), 404,
                 "model_not_found", "model");
    generate(bytes.client, &g, "'prompt':'a','max_tokens':1,'model':'second'");
    assert_string_equal(str_at(g.r->json, "model"), "first");
    gen_done(&g);
    struct reply *r = expect(get(bytes.client, "/v1/models"), 200);
    assert_int_equal(len_at(r->json, "data"), 2);
    assert_string_equal(str_at(r->json, "data.1.id"), "second");
    reply_free(r);
}

/* An empty prompt has nothing to continue, but where a begin token stands. */
static void test_empty_prompt(void **state)
{
    (void)state;
    struct gen g;
    generate_both(tiny.client, &g, "'prompt':'','max_tokens':4,'temperature':0");
    assert_int_equal(int_at(g.r->json, "usage.prompt_tokens"), 1);
    gen_done(&g);
    expect_error(post(bytes.client, "/v1/generate", "{'prompt':'','max_tokens':4}"), 400,
                 "invalid_value", "prompt");
    expect_error(post(bytes.client, "/v1/generate", "{'prompt':[],'max_tokens':4}"), 400,
                 "invalid_value", "prompt");
    expect_error(post(bytes.client, "/v1/generate", "{'max_tokens':4}"), 400, "missing_field",
                 "prompt");
}

int main(void)
{
    const struct CMUnitTest on_tiny[] = {
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_tokens_in),
        cmocka_unit_test(test_tokens_round_trip),
        cmocka_unit_test(test_stream_is_whole),
        cmocka_unit_test(test_usage_in_streams),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_that_overlaps_itself),
        cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_end_token),
        cmocka_unit_test(test_max_time),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_null_and_unknown_fields),
        cmocka_unit_test(test_states_of_the_client),
        cmocka_unit_test_setup_teardown(test_model_names, start_bytes, stop_bytes),
        cmocka_unit_test_setup_teardown(test_empty_prompt, start_bytes, stop_bytes),
    };
    return cmocka_run_group_tests_name("generate", on_tiny, start_tiny, stop_tiny);
}
