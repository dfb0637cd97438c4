/* openai_test.c: /v1/completions and /v1/chat/completions in OpenAI's shapes, over the same turns
 * as /v1/generate (whose text is the truth here). The official client runs in tests/browser. */
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

#define STORY "Once upon a time there was a little"
#define CHAT "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

static struct api tiny, bytes;

static int start(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){NULL});
    api_start(&bytes,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&tiny);
    api_stop(&bytes);
    return 0;
}

static bool starts_with(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

/* The texts of a stream's chunks put together; checks what every chunk has. sl_free(). */
static char *stream_text(const struct reply *r, const char *object, const char *text_path,
                         bool usage_chunk)
{
    size_t n = 0, n_finish = 0, n_choices = r->n_events - (usage_chunk ? 1 : 0);
    char *text = sl_calloc(1, r->n_body + 1);
    assert_non_null(text);
    assert_true(r->done && r->n_events >= 2);
    for (size_t i = 0; i < r->n_events; i++) {
        const json_t *e = r->events[i];
        assert_string_equal(str_at(e, "object"), object);
        assert_string_equal(str_at(e, "id"), str_at(r->events[0], "id"));
        assert_int_equal(int_at(e, "created"), int_at(r->events[0], "created"));
        assert_string_equal(str_at(e, "model"), "slate-tiny");
        if (i == n_choices) {
            assert_int_equal(len_at(e, "choices"), 0);
            continue;
        }
        assert_int_equal(len_at(e, "choices"), 1);
        assert_int_equal(int_at(e, "choices.0.index"), 0);
        if (usage_chunk)
            assert_true(json_is_null(at(e, "usage")));
        else
            assert_null(at(e, "usage"));
        const char *piece = json_string_value(at(e, text_path));
        if (piece) {
            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
        }
        n_finish += json_is_string(at(e, "choices.0.finish_reason"));
        assert_true(!json_is_string(at(e, "choices.0.finish_reason")) || i + 1 == n_choices);
    }
    assert_int_equal(n_finish, 1);
    return text;
}

/* --- completions -------------------------------------------------------------------------------*/

static void test_completion(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate(c, &g, "'prompt':'" STORY "','max_tokens':20,'temperature':0,'ignore_eos':true");
    struct reply *r = expect(post(c, COMPLETIONS,
                                  "{'model':'slate-tiny','prompt':'" STORY "','max_tokens':20,"
                                  "'temperature':0,'ignore_eos':true}"),
                             200);
    assert_true(starts_with(str_at(r->json, "id"), "cmpl-"));
    assert_string_equal(str_at(r->json, "object"), "text_completion");
    assert_string_equal(str_at(r->json, "choices.0.text"), g.o.text);
    assert_string_equal(str_at(r->json, "choices.0.finish_reason"), "length");
    assert_true(json_is_null(at(r->json, "choices.0.logprobs")));
    assert_int_equal(int_at(r->json, "usage.completion_tokens"), 20);
    assert_int_equal(int_at(r->json, "usage.prompt_tokens"),
                     int_at(g.r->json, "usage.prompt_tokens"));
    assert_int_equal(int_at(r->json, "usage.total_tokens"),
                     int_at(g.r->json, "usage.total_tokens"));
    struct reply *s = expect(post(c, COMPLETIONS,
                                  "{'prompt':['" STORY "'],'max_tokens':20,'temperature':0,"
                                  "'ignore_eos':true,'stream':true}"),
                             200);
    assert_string_equal(reply_header(s, "Content-Type"), "text/event-stream; charset=utf-8");
    char *text = stream_text(s, "text_completion", "choices.0.text", false);
    assert_string_equal(text, g.o.text);
    sl_free(text);
    reply_free(s);
    reply_free(r);
    gen_done(&g);
}

static void test_completion_defaults(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r = expect(post(c, COMPLETIONS, "{'prompt':'a','ignore_eos':true}"), 200);
    assert_int_equal(int_at(r->json, "usage.completion_tokens"), 16); /* as OpenAI has it */
    reply_free(r);
    r = expect(post(c, COMPLETIONS, "{'prompt':[300,301],'max_tokens':0}"), 200);
    assert_string_equal(str_at(r->json, "choices.0.text"), "");
    reply_free(r);
    r = expect(post(c, COMPLETIONS, "{'prompt':[[300,301]],'max_tokens':1}"), 200);
    assert_int_equal(int_at(r->json, "usage.prompt_tokens"), 3);
    reply_free(r);
}

static void test_completion_stop(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate(c, &g, "'prompt':'" STORY "','max_tokens':40,'temperature':0,'stop':['a','e']");
    assert_string_equal(str_at(g.r->json, "finish_reason"), "stop");
    struct reply *r = expect(post(c, COMPLETIONS,
                                  "{'prompt':'" STORY "','max_tokens':40,'temperature':0,"
                                  "'stop':['a','e']}"),
                             200);
    assert_string_equal(str_at(r->json, "choices.0.finish_reason"), "stop");
    assert_string_equal(str_at(r->json, "choices.0.text"), g.o.text);
    reply_free(r);
    r = expect(post(c, COMPLETIONS, "{'prompt':'a','logit_bias':{'0':100}}"), 200);
    assert_string_equal(str_at(r->json, "choices.0.finish_reason"), "stop"); /* the end token */
    reply_free(r);
    gen_done(&g);
}

static void test_usage_chunk(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *object, *text;
    } row[] = {
        {COMPLETIONS, "'prompt':'a'", "text_completion", "choices.0.text"},
        {CHAT, "'messages':[{'role':'user','content':'a'}]", "chat.completion.chunk",
         "choices.0.delta.content"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct reply *r =
            expect(post(tiny.client, row[i].path,
                        "{%s,'max_tokens':5,'stream':true,'stream_options':{'include_usage':true}}",
                        quoted(row[i].body)),
                   200);
        sl_free(stream_text(r, row[i].object, row[i].text, true));
        const json_t *last = r->events[r->n_events - 1];
        assert_int_equal(int_at(last, "usage.total_tokens"),
                         int_at(last, "usage.prompt_tokens") +
                             int_at(last, "usage.completion_tokens"));
        reply_free(r);
        r = expect(
            post(tiny.client, row[i].path,
                 "{%s,'max_tokens':5,'stream':true,'stream_options':{'include_usage':false}}",
                 quoted(row[i].body)),
            200);
        sl_free(stream_text(r, row[i].object, row[i].text, false));
        reply_free(r);
    }
}

static void test_completion_logprobs(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate(c, &g,
             "'prompt':'" STORY "','max_tokens':12,'temperature':0,'ignore_eos':true,'logprobs':3");
    struct reply *r = expect(post(c, COMPLETIONS,
                                  "{'prompt':'" STORY "','max_tokens':12,'temperature':0,"
                                  "'ignore_eos':true,'logprobs':3}"),
                             200);
    const json_t *l = at(r->json, "choices.0.logprobs");
    assert_int_equal(len_at(l, "tokens"), 12);
    assert_int_equal(len_at(l, "token_logprobs"), 12);
    assert_int_equal(len_at(l, "top_logprobs"), 12);
    assert_int_equal(len_at(l, "text_offset"), 12);
    size_t offset = 0;
    for (size_t i = 0; i < 12; i++) {
        const json_t *mine = json_array_get(g.o.logprobs, i),
                     *top = json_array_get(at(l, "top_logprobs"), i);
        const char *token = json_string_value(json_array_get(at(l, "tokens"), i));
        assert_string_equal(token, str_at(mine, "text"));
        assert_true(json_equal(json_array_get(at(l, "token_logprobs"), i), at(mine, "logprob")));
        assert_int_equal(json_integer_value(json_array_get(at(l, "text_offset"), i)), offset);
        offset += strlen(token);
        assert_int_equal(json_object_size(top), 3);
        for (size_t k = 0; k < 3; k++) {
            const json_t *t = json_array_get(at(mine, "top"), k);
            assert_true(json_equal(json_object_get(top, str_at(t, "text")), at(t, "logprob")));
        }
    }
    reply_free(r);
    /* Tokens that are no text by themselves never share a name. */
    r = expect(post(bytes.client, COMPLETIONS,
                    "{'prompt':'a','max_tokens':4,'temperature':0,'logprobs':20,"
                    "'logit_bias':{'200':100}}"),
               200);
    l = at(r->json, "choices.0.logprobs");
    assert_string_equal(json_string_value(json_array_get(at(l, "tokens"), 0)), "bytes:\\xc8");
    for (size_t i = 0; i < 4; i++)
        assert_true(json_object_size(json_array_get(at(l, "top_logprobs"), i)) >= 20);
    reply_free(r);
    gen_done(&g);
}

/* --- chat --------------------------------------------------------------------------------------*/

static void test_chat(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate(c, &g,
             "'messages':[{'role':'user','content':'my name is Kate'}],'max_tokens':40,"
             "'temperature':0");
    struct reply *r = expect(post(c, CHAT,
                                  "{'messages':[{'role':'user','content':'my name is Kate'}],"
                                  "'max_tokens':40,'temperature':0}"),
                             200);
    assert_true(starts_with(str_at(r->json, "id"), "chatcmpl-"));
    assert_string_equal(str_at(r->json, "object"), "chat.completion");
    assert_string_equal(str_at(r->json, "choices.0.message.role"), "assistant");
    assert_string_equal(str_at(r->json, "choices.0.message.content"), g.o.text);
    assert_true(json_is_null(at(r->json, "choices.0.message.refusal")));
    assert_string_equal(str_at(r->json, "choices.0.finish_reason"),
                        !strcmp(str_at(g.r->json, "finish_reason"), "length") ? "length" : "stop");
    reply_free(r);
    r = expect(post(c, CHAT,
                    "{'messages':[{'role':'user','content':'my name is Kate'}],"
                    "'max_completion_tokens':40,'max_tokens':1,'temperature':0,'stream':true}"),
               200);
    char *text = stream_text(r, "chat.completion.chunk", "choices.0.delta.content", false);
    assert_string_equal(text, g.o.text);
    assert_string_equal(str_at(r->events[0], "choices.0.delta.role"), "assistant");
    assert_string_equal(str_at(r->events[0], "choices.0.delta.content"), "");
    assert_int_equal(json_object_size(at(r->events[r->n_events - 1], "choices.0.delta")), 0);
    sl_free(text);
    reply_free(r);
    gen_done(&g);
}

/* Everything that clients send as a matter of course: nulls, parts, other people's fields. */
static void test_chat_what_clients_send(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *plain = expect(
        post(c, CHAT,
             "{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'hi'}],"
             "'temperature':0,'max_tokens':20}"),
        200);
    static const char *const same[] = {
        "'messages':[{'role':'developer','content':'Be kind.'},"
        "{'role':'user','content':[{'type':'text','text':'hi'}]}]",
        "'messages':[{'role':'system','content':[{'type':'text','text':'Be kind.'}],'name':'x'},"
        "{'role':'user','content':'hi','name':null}],'stop':null,'n':null,'stream':null,"
        "'stream_options':null,'tools':null,'tool_choice':null,'logprobs':null,'top_logprobs':null,"
        "'logit_bias':null,'user':null,'response_format':null,'seed':null,'top_p':null,"
        "'presence_penalty':null,'frequency_penalty':null,'max_completion_tokens':null",
        "'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'hi'}],'n':1,"
        "'tools':[],'tool_choice':'none','user':'me','store':false,'metadata':{},"
        "'parallel_tool_calls':true,'service_tier':'auto','response_format':{'type':'text'},"
        "'logprobs':false,'modalities':['text']",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct reply *r =
            expect(post(c, CHAT, "{%s,'temperature':0,'max_tokens':20}", quoted(same[i])), 200);
        assert_true(json_equal(at(r->json, "choices"), at(plain->json, "choices")));
        reply_free(r);
    }
    reply_free(plain);
    /* An assistant's earlier message may have no content. */
    reply_free(expect(post(c, CHAT,
                           "{'messages':[{'role':'user','content':'a'},{'role':'assistant',"
                           "'content':null},{'role':'user','content':'b'}],'max_tokens':1}"),
                      200));
}

static void test_chat_logprobs(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    generate(c, &g,
             "'messages':[{'role':'user','content':'hi'}],'max_tokens':6,'temperature':0,"
             "'logprobs':2,'return_tokens':true,'ignore_eos':true");
    struct reply *r = expect(post(c, CHAT,
                                  "{'messages':[{'role':'user','content':'hi'}],'max_tokens':6,"
                                  "'temperature':0,'logprobs':true,'top_logprobs':2,"
                                  "'ignore_eos':true}"),
                             200);
    const json_t *l = at(r->json, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(l), g.o.n_tokens);
    for (size_t i = 0; i < json_array_size(l); i++) {
        const json_t *e = json_array_get(l, i), *mine = json_array_get(g.o.logprobs, i);
        assert_string_equal(str_at(e, "token"), str_at(mine, "text"));
        assert_true(json_equal(at(e, "logprob"), at(mine, "logprob")));
        assert_int_equal(len_at(e, "bytes"), strlen(str_at(e, "token")));
        assert_int_equal(int_at(e, "bytes.0"), (unsigned char)str_at(e, "token")[0]);
        assert_int_equal(len_at(e, "top_logprobs"), 2);
        assert_string_equal(str_at(e, "top_logprobs.1.token"), str_at(mine, "top.1.text"));
    }
    reply_free(r);
    gen_done(&g);
}

/* --- sessions as an extra field ----------------------------------------------------------------*/

static void test_sessions(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = new_session(c), *b = new_session(c);
    struct gen g;
    struct reply *r = expect(post(c, CHAT,
                                  "{'session':'%s','messages':[{'role':'user','content':"
                                  "'my name is Kate'}],'max_tokens':30,'temperature':0}",
                                  a),
                             200);
    assert_string_equal(reply_header(r, "X-Slate-Session"), a);
    generate(c, &g,
             "'session':'%s','messages':[{'role':'user','content':'my name is Kate'}],"
             "'max_tokens':30,'temperature':0",
             b);
    assert_string_equal(str_at(r->json, "choices.0.message.content"), g.o.text);
    reply_free(r);
    gen_done(&g);
    r = expect(
        post(c, COMPLETIONS, "{'session':'%s','prompt':'','max_tokens':8,'temperature':0}", a),
        200);
    generate(c, &g, "'session':'%s','prompt':'','max_tokens':8,'temperature':0", b);
    assert_string_equal(str_at(r->json, "choices.0.text"), g.o.text);
    reply_free(r);
    gen_done(&g);
}

/* --- errors ------------------------------------------------------------------------------------*/

static void test_errors(void **state)
{
    (void)state;
#define HI "'messages':[{'role':'user','content':'hi'}]"
    static const struct {
        const char *path, *body;
        int status;
        const char *code, *param;
    } row[] = {
        {CHAT, "{}", 400, "missing_field", "messages"},
        {CHAT, "{'messages':[]}", 400, "invalid_value", "messages"},
        {CHAT, "{'messages':'hi'}", 400, "invalid_type", "messages"},
        {CHAT, "{" HI ",'model':'gpt-4o'}", 404, "model_not_found", "model"},
        {CHAT, "{" HI ",'n':2}", 400, "unsupported", "n"},
        {CHAT, "{" HI ",'tools':[{'type':'function'}]}", 400, "unsupported", "tools"},
        {CHAT, "{" HI ",'response_format':{'type':'json_object'}}", 400, "unsupported",
         "response_format"},
        {CHAT, "{" HI ",'top_logprobs':2}", 400, "invalid_value", "top_logprobs"},
        {CHAT, "{" HI ",'max_completion_tokens':-2}", 400, "invalid_value",
         "max_completion_tokens"},
        {CHAT, "{" HI ",'temperature':'hot'}", 400, "invalid_type", "temperature"},
        {CHAT, "{'messages':[{'role':'tool','content':'x'}]}", 400, "invalid_value",
         "messages[0].role"},
        {CHAT, "{'messages':[{'role':'assistant','tool_calls':[{}]}]}", 400, "unsupported",
         "messages[0].tool_calls"},
        {CHAT, "{" HI ",'session':'nobody'}", 404, "session_not_found", "session"},
        {COMPLETIONS, "{}", 400, "missing_field", "prompt"},
        {COMPLETIONS, "{'prompt':['a','b']}", 400, "unsupported", "prompt"},
        {COMPLETIONS, "{'prompt':'a','n':3}", 400, "unsupported", "n"},
        {COMPLETIONS, "{'prompt':'a','best_of':2}", 400, "unsupported", "best_of"},
        {COMPLETIONS, "{'prompt':'a','echo':true}", 400, "unsupported", "echo"},
        {COMPLETIONS, "{'prompt':'a','suffix':'z'}", 400, "unsupported", "suffix"},
        {COMPLETIONS, "{'prompt':'a','model':'davinci'}", 404, "model_not_found", "model"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char body[400];
        snprintf(body, sizeof body, "%s", quoted(row[i].body));
        expect_error(request(tiny.client, "POST", row[i].path, NULL, body, strlen(body)),
                     row[i].status, row[i].code, row[i].param);
        /* An error before the first token is no stream, also where one was asked for. */
        body[strlen(body) - 1] = '\0';
        char streamed[440];
        snprintf(streamed, sizeof streamed, "%s%s\"stream\":true}", body,
                 strlen(body) > 1 ? "," : "");
        expect_error(request(tiny.client, "POST", row[i].path, NULL, streamed, strlen(streamed)),
                     row[i].status, row[i].code, row[i].param);
    }
}

/* --- answers that are too long -----------------------------------------------------------------*/

/* What could be longer than an answer that is told at once is refused before a token was computed,
 * and says what fits; that much is taken, and any number as a stream. -1 is what fits. */
static void test_what_cannot_be_told_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *path, *fields;
    } row[] = {
        {"/v1/generate", "'prompt':'a','logprobs':20"},
        {COMPLETIONS, "'prompt':'a','logprobs':20"},
        {CHAT, "'messages':[{'role':'user','content':'a'}],'logprobs':true,'top_logprobs':20"},
    };
    struct client *c = tiny.client;
    for (size_t i = 0; i < 3; i++) {
        double steps = metric(c, "slate_engine_steps_total");
        char body[512];
        snprintf(body, sizeof body, "%s,'session':'%s','ignore_eos':true", row[i].fields,
                 new_session(c));
        struct reply *r =
            post(c, row[i].path, "{%s,'max_tokens':1048576,'max_time_ms':1}", quoted(body));
        const char *fits = strstr(r->body, "max_tokens up to ");
        assert_non_null(fits);
        assert_non_null(strstr(r->body, "stream: true"));
        unsigned long most = strtoul(fits + strlen("max_tokens up to "), NULL, 10);
        assert_in_range(most, 10000, 1000000);
        expect_error(r, 400, "invalid_value", "max_tokens");
        assert_true(metric(c, "slate_engine_steps_total") == steps);
        expect_error(
            post(c, row[i].path, "{%s,'max_tokens':%lu,'max_time_ms':1}", quoted(body), most + 1),
            400, "invalid_value", "max_tokens");
        reply_free(expect(
            post(c, row[i].path, "{%s,'max_tokens':%lu,'max_time_ms':1}", quoted(body), most),
            200));
        reply_free(expect(
            post(c, row[i].path, "{%s,'max_tokens':-1,'max_time_ms':1}", quoted(body)), 200));
        reply_free(
            expect(post(c, row[i].path, "{%s,'max_tokens':1048576,'max_time_ms':1,'stream':true}",
                        quoted(body)),
                   200));
    }
    /* Text alone fits, however many tokens are allowed. */
    struct reply *r = expect(post(c, "/v1/generate",
                                  "{'prompt':'a','max_tokens':-1,"
                                  "'return_tokens':true,'max_time_ms':1}"),
                             200);
    reply_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_completion_defaults),
        cmocka_unit_test(test_completion_stop),
        cmocka_unit_test(test_usage_chunk),
        cmocka_unit_test(test_completion_logprobs),
        cmocka_unit_test(test_what_cannot_be_told_at_once),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_what_clients_send),
        cmocka_unit_test(test_chat_logprobs),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests_name("openai", tests, start, stop);
}
