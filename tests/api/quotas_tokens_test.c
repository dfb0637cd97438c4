/* quotas_tokens_test.c: how many tokens a minute a tenant's turns may take: a turn takes what it
 * could need when it begins and gives back what it did not use; what is pending in an upload, a
 * fork or a way back is taken as any prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/buf.h"
#include "tests/support/edited.h"
#include "tests/support/quotas.h"

enum { AT_ONCE = 48 };

static int with_one_running(void **state)
{
    quotas.options[0] = "--max-running=1"; /* and the others wait */
    return with_memory(state);
}

static double tokens(void)
{
    return figure("slate_tenant_tokens{tenant=\"a\"}");
}

static void test_tokens(void **state)
{
    (void)state;
    quotas_start("tokens-per-minute=60000");
    struct client *c = quotas.api.client;
    /* A client that goes has used what was computed, and gets the rest back. */
    struct call *k =
        stream_start(c, "'prompt':'x','max_tokens':50000,'ignore_eos':true,'return_tokens':true");
    stream_until(k, 2);
    assert_true(tokens() == 50001);
    call_abort(k);
    until_figure("slate_tenant_requests_running{tenant=\"a\"}", 0);
    double used = tokens();
    assert_true(used >= 3 && used < 40000);
    set_quota("tokens-per-minute", 600);
    double before = used;
    int64_t begin = client_now_ms();
    /* What is used is what its usage says. */
    struct reply *r = expect(
        post(c, "/v1/generate", "{'prompt':'0123456789','max_tokens':90,'ignore_eos':true}"), 200);
    used += (double)int_at(r->json, "usage.total_tokens");
    assert_true(used >= before + 100 && tokens() == used);
    reply_free(r);
    /* What never ran has used nothing. */
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':600}"), "tokens-per-minute", 0);
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':590}"), "tokens-per-minute", 60);
    /* -1 is no number that no quota could hold. */
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':-1}"), "tokens-per-minute", 60);
    over(post(c, "/v1/completions", "{'prompt':'x','max_tokens':590}"), "tokens-per-minute", 60);
    over(post(c, "/v1/chat/completions",
              "{'messages':[{'role':'user','content':'a'}],'max_tokens':580}"),
         "tokens-per-minute", 60);
    char *prompt = sl_calloc(1, 591);
    assert_non_null(prompt);
    memset(prompt, 'p', 590);
    over(post(c, "/v1/sessions", "{'id':'t1','prompt':'%s'}", prompt), "tokens-per-minute", 60);
    sl_free(prompt);
    expect_error(get(c, session_path("t1", "")), 404, "session_not_found", "session");
    assert_true(tokens() == used);
    client_header(c, KEY_B);
    reply_free(expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':590}"), 200));
    client_header(c, KEY_A);
    /* Whatever comes at once: no more than there were, and what has flowed in. */
    struct call *many[AT_ONCE];
    size_t n_refused = 0;
    for (size_t i = 0; i < AT_ONCE; i++)
        many[i] = call_post(c, "/v1/generate", "{'prompt':'x','max_tokens':29,'ignore_eos':true}");
    for (size_t i = 0; i < AT_ONCE; i++) {
        r = call_finish(many[i]);
        n_refused += r->status == 429;
        if (r->status == 429)
            over(r, "tokens-per-minute", 60);
        else
            reply_free(expect(r, 200));
    }
    assert_true(n_refused > 0);
    assert_true(tokens() - before <= 600 + 10 * ((double)(client_now_ms() - begin) / 1000 + 1));
}

/* --- what is pending ---------------------------------------------------------------------------*/

/* A snapshot of a session with a paused prompt of n tokens that nobody has read. */
static struct bytes snapshot_of_paused(size_t n)
{
    struct client *c = quotas.api.client;
    char *prompt = sl_calloc(1, n + 1);
    assert_non_null(prompt);
    memset(prompt, 'p', n);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'long'}"), 201));
    client_header(c, KEY_B);
    struct call *first =
        stream_start(c, "'prompt':'x','max_tokens':1000000,'ignore_eos':true,'return_tokens':true");
    stream_until(first, 1);
    client_header(c, KEY_A);
    struct call *k = generate_start(c, "'session':'long','prompt':'%s','max_tokens':1", prompt);
    client_header(c, KEY_FIGURES);
    until_metric(c, "slate_requests_queued", 1);
    client_header(c, KEY_A);
    reply_free(expect(session_post(c, "long", "/pause"), 200));
    reply_free(expect(call_finish(k), 200));
    call_abort(first);
    sl_free(prompt);
    return snapshot_get(c, "long", "");
}

/* What a client uploads as pending is read for it as any prompt: it is taken once, when it comes,
 * and given back where it does not become a session. */
static void test_pending_tokens(void **state)
{
    (void)state;
    enum { N = 500 };
    quotas_start("tokens-per-minute=60000");
    struct client *c = quotas.api.client;
    struct bytes b = snapshot_of_paused(N);
    double used = tokens();
    assert_true(used == N);
    reply_free(expect(snapshot_put(c, "copy", b.p, b.n, NULL), 201));
    assert_true(tokens() == (used += N - 1));
    reply_free(expect(post(c, "/v1/generate", "{'session':'copy','resume':true}"), 200));
    reply_free(expect(post(c, "/v1/generate", "{'session':'long','resume':true}"), 200));
    assert_true(tokens() == (used += 2));
    struct sl_buf text;
    sl_buf_init(&text, 64 << 20);
    sl_buf_put_base64(&text, b.p, b.n);
    sl_buf_put(&text, "", 1);
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    reply_free(
        expect(post(c, "/v1/generate", "{'initial_state':'%s','resume':true}", text.data), 200));
    assert_true(tokens() == (used += N));
    set_quota("tokens-per-minute", N / 2);
    over(snapshot_put(c, "more", b.p, b.n, NULL), "tokens-per-minute", 0);
    over(post(c, "/v1/generate", "{'initial_state':'%s','resume':true}", text.data),
         "tokens-per-minute", 0);
    expect_error(get(c, session_path("more", "")), 404, "session_not_found", "session");
    assert_true(tokens() == used);
    sl_buf_done(&text);
    sl_free(b.p);
}

static void two_tokens(const char *id, double *used)
{
    reply_free(expect(post(quotas.api.client, "/v1/generate",
                           "{'session':'%s','prompt':'x','max_tokens':1,'ignore_eos':true}", id),
                      200));
    assert_true(tokens() == (*used += 2));
}

/* What is pending is taken again with each session that is made of it, and with each way back. */
static void test_forked_tokens(void **state)
{
    (void)state;
    enum { N = 500 };
    char text[8 * N] = "{\"pending\":[97";
    quotas.options[0] = "--keep-turns=4";
    quotas_start("tokens-per-minute=60000");
    struct client *c = quotas.api.client;
    made(post(c, "/v1/sessions", "{'id':'base','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "base", "");
    for (int i = 1; i < N; i++)
        memcpy(text + strlen(text), i < N - 1 ? ",97" : ",97]}", i < N - 1 ? 4 : 6);
    struct bytes e = with_metadata(&b, "continuation", text);
    double used = tokens();
    made(snapshot_put(c, "src", e.p, e.n, NULL));
    made(snapshot_put(c, "kept", e.p, e.n, NULL));
    assert_true(tokens() == (used += 2 * (N - 1)));
    made(post(c, session_path("src", "/fork"), "{'id':'f'}"));
    made(post(c, "/v1/sessions", "{'id':'g','from':'src'}"));
    assert_true(tokens() == (used += 2 * (N - 1)));
    two_tokens("f", &used);
    two_tokens("src", &used);
    made(post(c, session_path("f", "/fork"), "{'id':'one'}"));
    assert_true(tokens() == used);
    reply_free(expect(post(c, session_path("src", "/rewind"), "{'version':1}"), 200));
    made(post(c, session_path("src", "/fork"), "{'id':'past','version':1}"));
    assert_true(tokens() == (used += 2 * (N - 1)));
    reply_free(expect(post(c, session_path("src", "/rewind"), "{'version':2}"), 200));
    assert_true(tokens() == used); /* a turn that is stored is read again for nothing */
    set_quota("tokens-per-minute", N / 2);
    over(post(c, session_path("kept", "/fork"), "{'id':'no'}"), "tokens-per-minute", 0);
    over(post(c, session_path("src", "/fork"), "{'id':'no','version':1}"), "tokens-per-minute", 0);
    over(post(c, session_path("src", "/rewind"), "{'version':1}"), "tokens-per-minute", 0);
    expect_error(get(c, session_path("no", "")), 404, "session_not_found", "session");
    assert_int_equal(session_version(c, "src"), 4);
    assert_true(tokens() == used);
    if (!strcmp(quotas.kind, "dir")) { /* what is to be read again for a restart is free, too */
        node_kill(&quotas.node);
        quotas_start_again();
        c = quotas.api.client;
        made(post(c, session_path("f", "/fork"), "{'id':'two'}"));
        assert_true(tokens() == 0);
        over(post(c, session_path("kept", "/fork"), "{'id':'no'}"), "tokens-per-minute", 0);
    }
    sl_free(b.p);
    sl_free(e.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tokens, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_pending_tokens, with_one_running, quotas_stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_redis, quotas_stop),
    };
    return cmocka_run_group_tests_name("quotas of tokens", tests, NULL, NULL);
}
