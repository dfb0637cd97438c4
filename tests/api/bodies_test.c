/* bodies_test.c: what a request holds of the memory for bodies (--max-body-memory), and of the JSON
 * that was read ahead, is given back when it has been understood, not when it is answered. But what
 * waits for a place in memory with a snapshot counts until it has one, or its client goes. */
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

#define BODY_BYTES "slate_http_body_bytes"

static struct api a;

static int start(void **state)
{
    (void)state;
    api_start(&a, (const char *const[]){"--max-running=1", "--max-tokens-limit=1000000", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&a);
    return 0;
}

/* {begin, a field that nobody reads and whose tree is large}: read on the thread of long work. */
static struct call *post_with_tree(const char *path, const char *begin)
{
    enum { N = 40000 };
    char *items = repeated("{}", ",{}", N - 1, "");
    struct call *k = call_post(a.client, path, "{%s,'x':[%s]}", quoted(begin), items);
    sl_free(items);
    return k;
}

/* The only place is taken: what comes now waits with all that it holds. */
static void test_a_session_whose_prompt_waits(void **state)
{
    (void)state;
    struct client *c = a.client;
    struct call *k =
        generate_start(c, "'prompt':'a','ignore_eos':true,'max_tokens':1000000,'stream':true");
    until_metric(c, "slate_requests_running", 1);
    struct call *made = post_with_tree("/v1/sessions", "'id':'made','prompt':'Once upon a time'");
    until_metric(c, "slate_requests_queued", 1);
    assert_true(metric(c, BODY_BYTES) == 0);
    assert_int_equal(call_reply(made)->status, 0);
    call_abort(k);
    reply_free(expect(call_finish(made), 201));
}

/* It is tokenised for a long time, as long work: the body goes before the answer comes. */
static void test_a_long_text(void **state)
{
    (void)state;
    enum { N = 6 << 20 };
    struct client *c = a.client;
    char *text = repeated("", "the quick brown fox ", N / 20 + 1, "");
    struct call *k = call_post(c, "/v1/tokenize", "{'text':'%s'}", text);
    while (metric(c, BODY_BYTES) < N)
        assert_int_equal(call_reply(k)->status, 0);
    while (metric(c, BODY_BYTES) > 0)
        assert_int_equal(call_reply(k)->status, 0);
    assert_int_equal(call_reply(k)->status, 0);
    reply_free(expect(call_finish(k), 200));
    sl_free(text);
}

/* --- what waits for a place in memory ----------------------------------------------------------*/

enum { LIMIT = 8 << 20, PADDING = 500000, WAITING_MAX = 64 };

static struct node full;
static struct call *in_places[2];

/* Both places are those of sessions whose turns do not end. */
static void fill_places(void)
{
    node_init(&full, "full",
              (const char *const[]){"--sessions-in-memory=2", "--max-running=2",
                                    "--max-tokens-limit=1000000", "--max-body=2MiB",
                                    "--max-upload=2MiB", "--max-body-memory=8MiB", NULL});
    node_start(&full);
    reply_free(expect(post(full.a.client, "/v1/sessions", "{'id':'stored','prompt':'x'}"), 201));
    for (int i = 0; i < 2; i++) {
        char id[2] = {(char)('a' + i), '\0'};
        reply_free(expect(post(full.a.client, "/v1/sessions", "{'id':'%s'}", id), 201));
        in_places[i] = stream_start(full.a.client,
                                    "'session':'%s','prompt':'x','max_tokens':1000000,"
                                    "'ignore_eos':true,'return_tokens':true",
                                    id);
        stream_until(in_places[i], 1);
    }
}

static void free_places(void)
{
    for (int i = 0; i < 2; i++)
        if (in_places[i])
            call_abort(in_places[i]);
    node_done(&full);
}

struct upload {
    struct bytes file;
    struct sl_buf base64;
};

/* A snapshot of more than 500 KB. */
static void upload_init(struct upload *u)
{
    struct client *c = full.a.client;
    char *padding = repeated("", "x", PADDING, "");
    struct bytes b = snapshot_get(c, "a", "");
    u->file = with_metadata(&b, "padding", padding);
    sl_buf_init(&u->base64, 2 << 20);
    sl_buf_put_base64(&u->base64, u->file.p, u->file.n);
    sl_buf_putc(&u->base64, '\0');
    assert_int_equal(sl_buf_code(&u->base64, NULL), SL_OK);
    sl_free(b.p);
    sl_free(padding);
}

static void upload_done(struct upload *u)
{
    sl_free(u->file.p);
    sl_buf_done(&u->base64);
}

/* As each route takes it; waits until it is in line, or is answered. */
static struct call *start_waiting(const char *route, const struct upload *u, int i)
{
    char path[64];
    struct call *k;
    struct client *c = full.a.client;
    double before = metric(c, "slate_sessions");
    snprintf(path, sizeof path, "/v1/sessions/put-%d/snapshot", i);
    if (!strcmp(route, "put"))
        k = call_start(c, "PUT", path, "Content-Type: application/vnd.safetensors", u->file.p,
                       u->file.n);
    else if (!strcmp(route, "create"))
        k = call_post(c, "/v1/sessions", "{'from':{'snapshot':'%s'}}", u->base64.data);
    else
        k = call_post(c, "/v1/generate", "{'initial_state':'%s','prompt':'x','max_tokens':1}",
                      u->base64.data);
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    while (!call_reply(k)->over && metric(c, "slate_sessions") <= before)
        assert_true(client_now_ms() < deadline);
    return k;
}

/* They are bounded by --max-body-memory, and those whose clients go hold nothing any more. */
static void waiting_is_bounded(const char *route)
{
    struct call *k[WAITING_MAX];
    struct upload u;
    int n = 0;
    fill_places();
    struct client *c = full.a.client;
    upload_init(&u);
    do {
        k[n] = start_waiting(route, &u, n);
        assert_in_range(metric(c, BODY_BYTES), 1, LIMIT);
    } while (!call_reply(k[n])->over && ++n < WAITING_MAX);
    assert_in_range(n, 4, LIMIT / PADDING);
    expect_error(call_finish(k[n]), 503, "server_full", NULL);
    for (int i = 1; i < n; i++)
        call_abort(k[i]);
    until_metric(c, "slate_sessions", 4);
    assert_in_range(metric(c, BODY_BYTES), PADDING, 3 * PADDING);
    call_abort(in_places[0]);
    reply_free(expect(call_finish(k[0]), strcmp(route, "generate") ? 201 : 200));
    until_metric(c, BODY_BYTES, 0);
    in_places[0] = NULL;
    upload_done(&u);
    free_places();
}

static void test_waiting_is_bounded(void **state)
{
    (void)state;
    waiting_is_bounded("create");
    waiting_is_bounded("put");
    waiting_is_bounded("generate");
}

/* One that would replace a session which is not in memory: that is as it was, also for those that
 * wait for it. */
static void test_a_replacement_that_waits(void **state)
{
    (void)state;
    struct upload u;
    fill_places();
    struct client *c = full.a.client;
    upload_init(&u);
    struct call *k =
        call_start(c, "PUT", session_path("stored", "/snapshot"),
                   "Content-Type: application/vnd.safetensors\nIf-Match: *", u.file.p, u.file.n);
    while (!session_busy(c, "stored"))
        assert_false(call_reply(k)->over);
    struct call *reads = call_start(c, "GET", session_path("stored", "/snapshot"), NULL, NULL, 0);
    assert_in_range(metric(c, BODY_BYTES), PADDING, LIMIT);
    call_abort(k);
    until_free(c, "stored");
    assert_true(metric(c, BODY_BYTES) == 0);
    assert_false(call_reply(reads)->over);
    call_abort(in_places[0]);
    in_places[0] = NULL;
    reply_free(expect(call_finish(reads), 200));
    assert_int_equal(session_version(c, "stored"), 1);
    upload_done(&u);
    free_places();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_session_whose_prompt_waits),
        cmocka_unit_test(test_a_long_text),
        cmocka_unit_test(test_waiting_is_bounded),
        cmocka_unit_test(test_a_replacement_that_waits),
    };
    return cmocka_run_group_tests_name("bodies", tests, start, stop);
}
