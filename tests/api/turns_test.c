/* turns_test.c: the turn rules on sessions, over HTTP (architecture.md, Turns; promises 4 and 5).
 *
 * Two states are the same when what follows is (tests/support/probe.h). That the probe is not blind
 * has its own test: one token of difference in a long history changes what it gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/probe.h"

#define STORY "Once upon a time there was a little"

static struct api tiny, bytes;

static int start(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){"--sessions-in-memory=400", "--max-tokens-limit=1000000",
                                           "--max-queued-prefill=1000000", NULL});
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

/* A new session that has read STORY. */
static const char *at_story(struct client *c)
{
    struct gen g;
    const char *id = new_session(c);
    generate(c, &g, "'session':'%s','prompt':'" STORY "','max_tokens':0", id);
    gen_done(&g);
    return id;
}

static void test_probe_sees_one_token(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c), *b = at_story(c), *d = at_story(c);
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = 300 + 7 * i;
    probe_feed(c, a, ids, 40);
    probe_feed(c, b, ids, 40);
    ids[3] = 301;
    probe_feed(c, d, ids, 40);
    assert_true(probe_same(c, a, b));
    assert_false(probe_same(c, a, d));
}

/* --- continuing --------------------------------------------------------------------------------*/

/* Turns of n and m tokens are one of n + m: text, ids, log probabilities and what follows. */
static void test_empty_prompt_continues(void **state)
{
    (void)state;
    static const struct {
        int n, m;
    } row[] = {{1, 1}, {1, 9}, {9, 1}, {17, 23}, {0, 5}, {5, 0}};
    struct client *c = tiny.client;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct gen all, head, tail;
        int n = row[i].n, m = row[i].m;
        const char *a = at_story(c), *b = at_story(c);
        static const char how[] = "\"prompt\":\"\",\"temperature\":0,\"ignore_eos\":true,"
                                  "\"return_tokens\":true,\"logprobs\":5";
        generate(c, &all, "'session':'%s',%s,'max_tokens':%d", a, how, n + m);
        generate(c, &head, "'session':'%s',%s,'max_tokens':%d", b, how, n);
        generate(c, &tail, "'session':'%s',%s,'max_tokens':%d", b, how, m);
        assert_int_equal(all.o.n_tokens, n + m);
        assert_memory_equal(all.o.tokens, head.o.tokens, (size_t)n * sizeof(uint32_t));
        assert_memory_equal(all.o.tokens + n, tail.o.tokens, (size_t)m * sizeof(uint32_t));
        json_array_extend(head.o.logprobs, tail.o.logprobs);
        assert_true(json_equal(all.o.logprobs, head.o.logprobs));
        assert_int_equal(probe_seen(c, a), probe_seen(c, b));
        assert_true(probe_same(c, a, b));
        /* The first turn read STORY; each of the others was committed too. */
        assert_int_equal(probe_version(c, a), 2);
        assert_int_equal(probe_version(c, b), 3);
        assert_int_equal(int_at(tail.r->json, "version"), 3);
        gen_done(&all);
        gen_done(&head);
        gen_done(&tail);
    }
}

/* Reading in one turn or in several is the same, and so is reading and generating in one. */
static void test_reading(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    uint32_t ids[30];
    for (uint32_t i = 0; i < 30; i++)
        ids[i] = 500 + 11 * i;
    const char *once = new_session(c), *parts = new_session(c), *made = NULL;
    probe_feed(c, once, ids, 30);
    probe_feed(c, parts, ids, 1);
    probe_feed(c, parts, ids + 1, 19);
    probe_feed(c, parts, ids + 20, 10);
    assert_true(probe_same(c, once, parts));
    assert_int_equal(probe_seen(c, once), 31); /* and the begin token */
    assert_int_equal(probe_seen(c, parts), 31);

    char *text = ids_json(ids, 30), copy[160];
    struct reply *r = expect(post(c, "/v1/sessions", "{'prompt':%s}", text), 201);
    snprintf(copy, sizeof copy, "%s", str_at(r->json, "id"));
    made = copy;
    assert_int_equal(int_at(r->json, "version"), 1);
    assert_int_equal(int_at(r->json, "tokens_seen"), 31);
    reply_free(r);
    assert_true(probe_same(c, once, made));

    struct gen g;
    const char *both = new_session(c);
    generate(c, &g,
             "'session':'%s','prompt':%s,'max_tokens':4,'temperature':0,'return_tokens':true,"
             "'ignore_eos':true",
             both, text);
    probe_feed(c, once, g.o.tokens, 4);
    assert_true(probe_same(c, once, both));
    gen_done(&g);
    sl_free(text);
}

static void test_usage_counts_new_tokens(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *id = new_session(c);
    struct gen g;
    generate(c, &g, "'session':'%s','prompt':[300,301,302],'max_tokens':2,'ignore_eos':true", id);
    assert_int_equal(int_at(g.r->json, "usage.prompt_tokens"), 4); /* with the begin token */
    gen_done(&g);
    generate(c, &g, "'session':'%s','prompt':[303],'max_tokens':2,'ignore_eos':true", id);
    assert_int_equal(int_at(g.r->json, "usage.prompt_tokens"), 1);
    assert_int_equal(int_at(g.r->json, "usage.completion_tokens"), 2);
    gen_done(&g);
    generate(c, &g, "'session':'%s','prompt':'','max_tokens':2,'ignore_eos':true", id);
    assert_int_equal(int_at(g.r->json, "usage.prompt_tokens"), 0);
    gen_done(&g);
    assert_int_equal(probe_seen(c, id), 4 + 2 + 1 + 2 + 2);
}

static void test_empty_prompt_on_an_empty_session(void **state)
{
    (void)state;
    const char *id = new_session(bytes.client);
    expect_error(
        post(bytes.client, "/v1/generate", "{'session':'%s','prompt':'','max_tokens':1}", id), 400,
        "invalid_value", "prompt");
    assert_int_equal(probe_version(bytes.client, id), 0);
    assert_false(session_busy(bytes.client, id));
    /* The embedded model has a begin token. */
    struct gen g;
    id = new_session(tiny.client);
    generate(tiny.client, &g, "'session':'%s','prompt':'','max_tokens':0", id);
    assert_int_equal(probe_seen(tiny.client, id), 1);
    gen_done(&g);
}

/* Messages continue with the separator that a stop removed: as the same text would. */
static void test_messages_continue(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen first, second, text;
    const char *a = new_session(c), *b = new_session(c);
    generate(c, &first,
             "'session':'%s','messages':[{'role':'user','content':'my name is Kate'}],"
             "'temperature':0,'max_tokens':60",
             a);
    generate(c, &second,
             "'session':'%s','messages':[{'role':'user','content':'what is my name?'}],"
             "'temperature':0,'max_tokens':60",
             a);
    generate(c, &text,
             "'session':'%s','prompt':'User: my name is Kate\\n\\nAssistant:','stop':'\\n\\n',"
             "'temperature':0,'max_tokens':60",
             b);
    assert_string_equal(text.o.text + 1, first.o.text);
    gen_done(&text);
    generate(c, &text,
             "'session':'%s','prompt':'\\n\\nUser: what is my name?\\n\\nAssistant:',"
             "'stop':'\\n\\n','temperature':0,'max_tokens':60",
             b);
    assert_string_equal(text.o.text + 1, second.o.text);
    assert_true(probe_same(c, a, b));
    gen_done(&first);
    gen_done(&second);
    gen_done(&text);
}

/* --- promise 4: the state never remembers what the client never saw ----------------------------*/

/* A turn that ends at a stop leaves the state of a session that was fed the returned tokens. */
static void check_cut(const char *stop_fields, bool stream)
{
    struct client *c = tiny.client;
    struct gen g;
    const char *a = at_story(c), *b = at_story(c);
    static const char how[] = "\"prompt\":\" girl who\",\"temperature\":0,\"ignore_eos\":true,"
                              "\"return_tokens\":true,\"max_tokens\":64,\"logprobs\":2";
    (stream ? generate_stream : generate)(c, &g, "'session':'%s',%s,%s", a, how, stop_fields);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "stop");
    struct gen read;
    generate(c, &read, "'session':'%s','prompt':' girl who','max_tokens':0", b);
    gen_done(&read);
    if (g.o.n_tokens)
        probe_feed(c, b, g.o.tokens, g.o.n_tokens);
    assert_int_equal(probe_seen(c, a), probe_seen(c, b));
    if (!probe_same(c, a, b))
        fail_msg("after %s the state is not the one of the %zu returned tokens", stop_fields,
                 g.o.n_tokens);
    gen_done(&g);
    probe_drop(c, a);
    probe_drop(c, b);
}

static void test_stop_is_cut_from_the_state(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    const char *a = at_story(c);
    generate(c, &g,
             "'session':'%s','prompt':' girl who','temperature':0,'ignore_eos':true,"
             "'return_tokens':true,'max_tokens':64",
             a);
    assert_true(g.o.n_text > 80);
    char fields[200];
    /* Every offset in the first words, short and long: at tokens' borders, inside, across. */
    for (size_t off = 0; off < 70; off += off < 12 ? 1 : 9) {
        for (size_t len = 1; len < 20; len += 8) {
            char *one = string_json(g.o.text + off, len);
            snprintf(fields, sizeof fields, "\"stop\":%s", one);
            check_cut(fields, off % 2);
            sl_free(one);
        }
    }
    /* An open candidate that comes to nothing, and one that contains the real stop. */
    char *wrong = string_json(g.o.text + 20, 12), *inner = string_json(g.o.text + 24, 3);
    size_t n = strlen(wrong);
    snprintf(fields, sizeof fields, "\"stop\":[%.*s#\",%s]", (int)n - 1, wrong, inner);
    check_cut(fields, false);
    check_cut(fields, true);
    sl_free(wrong);
    sl_free(inner);
    for (size_t i = 0; i < 30; i += 7) {
        snprintf(fields, sizeof fields, "\"stop_tokens\":[%u]", g.o.tokens[i]);
        check_cut(fields, i % 2);
    }
    gen_done(&g);
}

/* An end token is never fed either. */
static void test_end_token_is_not_fed(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct gen g;
    const char *a = at_story(c), *b = at_story(c);
    generate(c, &g, "'session':'%s','prompt':[900,901],'max_tokens':9,'logit_bias':{'0':100}", a);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "eos");
    probe_feed(c, b, (const uint32_t[]){900, 901}, 2);
    assert_int_equal(probe_seen(c, a), probe_seen(c, b));
    assert_true(probe_same(c, a, b));
    gen_done(&g);
}

/* --- a client that goes away -------------------------------------------------------------------*/

/* A turn that runs for as long as the test likes, after a few of its events. */
static struct call *endless(struct client *c, const char *id, const char *fields, size_t events)
{
    struct call *k =
        generate_start(c,
                       "'session':'%s','prompt':' girl who','temperature':0,'ignore_eos':true,"
                       "'max_tokens':1000000,'stream':true%s",
                       id, quoted(fields));
    call_until_events(k, events);
    assert_false(call_reply(k)->over);
    assert_int_equal(call_reply(k)->status, 200);
    return k;
}

static void test_rollback(void **state)
{
    (void)state;
    static const char *const how[] = {"", ",'on_disconnect':'rollback'"};
    struct client *c = tiny.client;
    for (size_t i = 0; i < 2; i++) {
        const char *a = at_story(c), *before = probe_fork(c, a);
        call_abort(endless(c, a, how[i], 3));
        until_free(c, a);
        assert_int_equal(probe_version(c, a), 1);
        assert_int_equal(probe_seen(c, a), probe_seen(c, before));
        assert_true(probe_same(c, a, before));
    }
    until_metric(c, "slate_requests_running", 0);
}

/* What the state holds is a beginning of what would have come. */
static void check_prefix(struct client *c, const char *a, const char *before)
{
    int64_t n = probe_seen(c, a) - probe_seen(c, before);
    struct gen g, read;
    char *ids = NULL;
    generate(c, &read, "'session':'%s','prompt':' girl who','max_tokens':0", before);
    n -= int_at(read.r->json, "usage.prompt_tokens");
    assert_true(n >= 1);
    const char *copy = probe_fork(c, before);
    generate(c, &g,
             "'session':'%s','prompt':'','temperature':0,'ignore_eos':true,'max_tokens':%d,"
             "'return_tokens':true",
             copy, (int)n);
    ids = ids_json(g.o.tokens, g.o.n_tokens);
    probe_feed(c, before, g.o.tokens, g.o.n_tokens);
    assert_true(probe_same(c, a, before));
    sl_free(ids);
    gen_done(&g);
    gen_done(&read);
}

static void test_commit_on_disconnect(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c), *before = probe_fork(c, a);
    call_abort(endless(c, a, ",'on_disconnect':'commit'", 4));
    until_free(c, a);
    assert_int_equal(probe_version(c, a), 2);
    check_prefix(c, a, before);
}

/* Begins a turn and goes away while it runs; false: it was over too early. */
static bool leave(struct client *c, const char *id, int n)
{
    struct call *k = generate_start(
        c,
        "'session':'%s','prompt':' girl','temperature':0,'ignore_eos':true,'max_tokens':%d,"
        "'stream':true,'on_disconnect':'continue'",
        id, n);
    call_until_events(k, 1);
    bool runs = !call_reply(k)->over;
    call_abort(k);
    return runs;
}

static void test_continue_on_disconnect(void **state)
{
    (void)state;
    enum { N = 400 };
    struct client *c = tiny.client;
    const char *a = at_story(c), *b = probe_fork(c, a);
    while (!leave(c, a, N))
        a = probe_fork(c, b);
    until_free(c, a);
    struct gen g;
    generate(c, &g,
             "'session':'%s','prompt':' girl','temperature':0,'ignore_eos':true,'max_tokens':%d", b,
             N);
    assert_int_equal(probe_seen(c, a), probe_seen(c, b));
    assert_int_equal(probe_version(c, a), 2);
    assert_true(probe_same(c, a, b));
    gen_done(&g);
}

/* Gone while its prompt is read: nothing of it stays, whatever was asked for. */
static void test_gone_in_prefill(void **state)
{
    (void)state;
    enum { N = 150000 };
    struct client *c = tiny.client;
    uint32_t *ids = sl_malloc(N * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = 300 + i % 1000;
    char *text = ids_json(ids, N);
    static const char *const how[] = {"rollback", "commit"};
    for (size_t i = 0; i < 2; i++) {
        const char *a = at_story(c), *before = probe_fork(c, a);
        double rows = metric(c, "slate_engine_prefill_tokens_total");
        struct call *k = generate_start(
            c, "'session':'%s','prompt':%s,'max_tokens':1,'stream':true,'on_disconnect':'%s'", a,
            text, how[i]);
        until_metric(c, "slate_requests_running", 1);
        call_abort(k);
        until_free(c, a);
        rows = metric(c, "slate_engine_prefill_tokens_total") - rows;
        assert_true(rows < N / 2);
        assert_int_equal(probe_version(c, a), 1);
        assert_true(probe_same(c, a, before));
    }
    sl_free(text);
    sl_free(ids);
}

/* --- one turn at a time ------------------------------------------------------------------------*/

static void test_busy(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c), *before = probe_fork(c, a);
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s", a);
    struct call *k = endless(c, a, "", 2);
    assert_string_equal(reply_header(call_reply(k), "X-Slate-Session"), a);
    expect_error(post(c, "/v1/generate", "{'session':'%s','prompt':'x'}", a), 409, "session_busy",
                 "session");
    expect_error(post(c, "/v1/completions", "{'session':'%s','prompt':'x'}", a), 409,
                 "session_busy", "session");
    expect_error(patch(c, path, "{'ttl_s':5}"), 409, "session_busy", "session");
    expect_error(del(c, path), 409, "session_busy", "session");
    assert_true(session_busy(c, a));
    /* Reads and forks see the last commit. */
    assert_int_equal(probe_version(c, a), 1);
    assert_int_equal(probe_seen(c, a), probe_seen(c, before));
    const char *copy = probe_fork(c, a);
    assert_false(call_reply(k)->over);
    assert_true(probe_same(c, copy, before));
    call_abort(k);
    until_free(c, a);
    reply_free(expect(del(c, path), 200));
}

static void test_cancel(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c), *before = probe_fork(c, a);
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s/cancel", a);
    struct call *k = endless(c, a, ",'return_tokens':true", 5);
    struct reply *r = expect(post(c, path, "{}"), 200);
    assert_true(bool_at(r->json, "cancelled"));
    reply_free(r);
    struct gen g = {.r = expect(call_finish(k), 200)};
    output_of(g.r, &g.o);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "cancelled");
    assert_int_equal(int_at(g.o.final, "version"), 2);
    assert_int_equal(probe_version(c, a), 2);
    /* What was sent is kept. */
    struct gen read;
    generate(c, &read, "'session':'%s','prompt':' girl who','max_tokens':0", before);
    gen_done(&read);
    probe_feed(c, before, g.o.tokens, g.o.n_tokens);
    assert_true(probe_same(c, a, before));
    gen_done(&g);
    r = expect(request(c, "POST", path, NULL, NULL, 0), 200); /* nothing runs; no body */
    assert_false(bool_at(r->json, "cancelled"));
    reply_free(r);
}

/* Cancelled while it waits for nothing but its prompt. */
static void test_cancel_whole(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c);
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s/cancel", a);
    struct call *k = generate_start(c,
                                    "'session':'%s','prompt':' a','temperature':0,"
                                    "'ignore_eos':true,'max_tokens':1000000,'return_tokens':true",
                                    a);
    until_metric(c, "slate_requests_running", 1);
    reply_free(expect(post(c, path, "{}"), 200));
    struct gen g = {.r = expect(call_finish(k), 200)};
    output_of(g.r, &g.o);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "cancelled");
    gen_done(&g);
}

static void test_timeout_commits(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c), *before = probe_fork(c, a);
    for (int ms = 20; probe_version(c, a) == 1; ms *= 2) { /* until the prompt is read in time */
        struct gen g;
        assert_int_equal(probe_seen(c, a), probe_seen(c, before));
        generate(c, &g,
                 "'session':'%s','prompt':' girl who','temperature':0,'ignore_eos':true,"
                 "'max_tokens':1000000,'max_time_ms':%d",
                 a, ms);
        assert_string_equal(str_at(g.r->json, "finish_reason"), "timeout");
        gen_done(&g);
    }
    check_prefix(c, a, before);
}

/* A turn that fails leaves the session as it was. */
static void test_refused_turns_change_nothing(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *a = at_story(c);
    expect_error(post(c, "/v1/generate", "{'session':'%s','prompt':[2048]}", a), 400,
                 "invalid_value", "prompt[0]");
    expect_error(post(c, "/v1/generate", "{'session':'%s','prompt':'a','model':'x'}", a), 404,
                 "model_not_found", "model");
    assert_int_equal(probe_version(c, a), 1);
    assert_false(session_busy(c, a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_sees_one_token),
        cmocka_unit_test(test_empty_prompt_continues),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_usage_counts_new_tokens),
        cmocka_unit_test(test_empty_prompt_on_an_empty_session),
        cmocka_unit_test(test_messages_continue),
        cmocka_unit_test(test_stop_is_cut_from_the_state),
        cmocka_unit_test(test_end_token_is_not_fed),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_commit_on_disconnect),
        cmocka_unit_test(test_continue_on_disconnect),
        cmocka_unit_test(test_gone_in_prefill),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_whole),
        cmocka_unit_test(test_timeout_commits),
        cmocka_unit_test(test_refused_turns_change_nothing),
    };
    return cmocka_run_group_tests_name("turns", tests, start, stop);
}
