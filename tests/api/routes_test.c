/* routes_test.c: what every route has in common, and those that are no turns: models, probes,
 * metrics, HEAD, wrong methods and paths, ids of requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/api.h"

static struct api tiny;

static int start(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&tiny);
    return 0;
}

static void test_models(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r = expect(get(c, "/v1/models"), 200);
    assert_string_equal(str_at(r->json, "object"), "list");
    assert_int_equal(len_at(r->json, "data"), 1);
    assert_string_equal(str_at(r->json, "data.0.id"), "slate-tiny");
    assert_string_equal(str_at(r->json, "data.0.object"), "model");
    assert_string_equal(str_at(r->json, "data.0.arch"), "rwkv7");
    assert_int_equal(int_at(r->json, "data.0.n_layers"), 4);
    assert_int_equal(int_at(r->json, "data.0.d_model"), 192);
    assert_int_equal(int_at(r->json, "data.0.vocab_size"), 2048);
    assert_string_equal(str_at(r->json, "data.0.tokenizer"), "rwkv_world");
    struct reply *one = expect(get(c, "/v1/models/slate-tiny"), 200);
    assert_true(json_equal(one->json, at(r->json, "data.0")));
    reply_free(one);
    reply_free(r);
    expect_error(get(c, "/v1/models/other"), 404, "model_not_found", "model");
}

static void test_probes(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r = expect(get(c, "/livez"), 200);
    assert_string_equal(str_at(r->json, "status"), "ok");
    reply_free(r);
    r = expect(get(c, "/readyz"), 200);
    assert_string_equal(str_at(r->json, "status"), "ready");
    reply_free(r);
    /* A balancer asks by another name. */
    reply_free(expect(request(c, "GET", "/readyz", "Host: slate.internal:80", NULL, 0), 200));
}

/* The figures move with the work. */
static void test_metrics(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    double turns = metric(c, "slate_turns_total"), in = metric(c, "slate_prompt_tokens_total"),
           out = metric(c, "slate_completion_tokens_total");
    struct gen g;
    generate(c, &g, "'prompt':[300,301,302],'max_tokens':7,'ignore_eos':true");
    gen_done(&g);
    assert_true(metric(c, "slate_turns_total") == turns + 1);
    assert_true(metric(c, "slate_prompt_tokens_total") == in + 4);
    assert_true(metric(c, "slate_completion_tokens_total") == out + 7);
    assert_true(metric(c, "slate_requests_running") == 0);
    assert_true(metric(c, "slate_slots_used") == 0);
    assert_true(metric(c, "slate_ready") == 1);
    struct reply *r = expect(get(c, "/metrics"), 200);
    assert_non_null(strstr(r->body, "# TYPE slate_turns_total counter"));
    assert_non_null(
        strstr(r->body, "gen_ai_server_time_to_first_token_seconds_bucket{le=\"+Inf\"}"));
    assert_non_null(strstr(r->body, "route=\"/v1/generate\""));
    reply_free(r);
}

/* HEAD is GET without the body. */
static void test_head(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    const char *const paths[] = {"/v1/models", "/livez", "/readyz", "/v1/sessions",
                                 "/v1/models/slate-tiny"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply *g = expect(get(c, paths[i]), 200),
                     *h = expect(request(c, "HEAD", paths[i], NULL, NULL, 0), 200);
        assert_int_equal(h->n_body, 0);
        assert_string_equal(reply_header(h, "Content-Length"), reply_header(g, "Content-Length"));
        assert_string_equal(reply_header(h, "Content-Type"), reply_header(g, "Content-Type"));
        reply_free(g);
        reply_free(h);
    }
    reply_free(expect(request(c, "HEAD", "/v1/sessions/none", NULL, NULL, 0), 404));
}

static void test_wrong_methods(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *allow;
    } row[] = {
        {"GET", "/v1/generate", "POST"},
        {"DELETE", "/v1/generate", "POST"},
        {"HEAD", "/v1/generate", "POST"},
        {"PUT", "/v1/sessions", "GET, HEAD, POST"},
        {"POST", "/v1/sessions/x", "GET, HEAD, PATCH, DELETE"},
        {"GET", "/v1/sessions/x/fork", "POST"},
        {"POST", "/v1/models", "GET, HEAD"},
        {"POST", "/livez", "GET, HEAD"},
        {"PATCH", "/metrics", "GET, HEAD"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct reply *r =
            expect(request(tiny.client, row[i].method, row[i].path, NULL, NULL, 0), 405);
        const char *allow = reply_header(r, "Allow");
        assert_non_null(allow);
        for (const char *p = row[i].allow; *p;
             p += strcspn(p, ",") + strspn(p + strcspn(p, ","), ", ")) {
            char one[16];
            snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
            assert_non_null(strstr(allow, one));
        }
        if (strcmp(row[i].method, "HEAD"))
            expect_error(r, 405, "method_not_allowed", NULL);
        else
            reply_free(r);
    }
}

static void test_unknown_paths(void **state)
{
    (void)state;
    static const char *const paths[] = {"/",
                                        "/v1",
                                        "/v1/",
                                        "/v1/generate/",
                                        "/v1//generate",
                                        "/v2/generate",
                                        "/V1/generate",
                                        "/v1/sessions/",
                                        "/v1/sessions/a/b",
                                        "/v1/sessions/a/fork/b",
                                        "/v1/./generate",
                                        "/v1/../v1/generate",
                                        "/../../etc/passwd",
                                        "/v1/sessions/..%2f..%2fetc/x/y",
                                        "/nothing?a=b"};
    static const char *const methods[] = {"GET", "POST", "DELETE"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        expect_error(request(tiny.client, methods[i % 3], paths[i], NULL, NULL, 0), 404,
                     "not_found", NULL);
    expect_error(get(tiny.client, "/v1/sessions/%zz"), 400, "bad_request", NULL);
    expect_error(get(tiny.client, "/v1/sessions/%00"), 400, "bad_request", NULL);
    expect_error(get(tiny.client, "/v1/sessions/%ff"), 400, "bad_request", NULL);
    /* A name that a session cannot have. */
    expect_error(get(tiny.client, "/v1/sessions/a%2Fb"), 400, "invalid_value", "session");
}

static void test_request_id(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r = expect(request(c, "GET", "/livez", "X-Request-Id: my-id.7", NULL, 0), 200);
    assert_string_equal(reply_header(r, "X-Request-Id"), "my-id.7");
    reply_free(r);
    struct reply *x = expect(get(c, "/livez"), 200), *y = expect(get(c, "/livez"), 200);
    assert_non_null(reply_header(x, "X-Request-Id"));
    assert_string_not_equal(reply_header(x, "X-Request-Id"), reply_header(y, "X-Request-Id"));
    reply_free(x);
    reply_free(y);
    /* On errors and streams too. */
    r = expect(request(c, "GET", "/none", "X-Request-Id: e", NULL, 0), 404);
    assert_string_equal(reply_header(r, "X-Request-Id"), "e");
    reply_free(r);
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":2,\"stream\":true}";
    r = expect(request(c, "POST", "/v1/generate", "X-Request-Id: s", body, strlen(body)), 200);
    assert_string_equal(reply_header(r, "X-Request-Id"), "s");
    assert_string_equal(reply_header(r, "Cache-Control"), "no-store");
    assert_string_equal(reply_header(r, "Content-Type"), "text/event-stream; charset=utf-8");
    reply_free(r);
}

/* Where it is not obeyed that is said: without a session there is nowhere to keep the answer, and
 * what makes something is made twice by a retry. */
static void test_idempotency_key(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":2}";
    expect_error(
        request(tiny.client, "POST", "/v1/generate", "Idempotency-Key: k", body, strlen(body)), 400,
        "invalid_value", "Idempotency-Key");
    reply_free(expect(post(tiny.client, "/v1/sessions", "{'id':'idem'}"), 201));
    static const char *const makes[][2] = {{"/v1/sessions", "{}"},
                                           {"/v1/sessions/idem/fork", "{}"},
                                           {"/v1/sessions/idem/rewind", "{\"version\":0}"},
                                           {"/v1/sessions/idem/rebuild", ""}};
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++)
        expect_error(request(tiny.client, "POST", makes[i][0], "Idempotency-Key: k", makes[i][1],
                             strlen(makes[i][1])),
                     400, "unsupported", "Idempotency-Key");
    reply_free(expect(del(tiny.client, "/v1/sessions/idem"), 200));
}

/* Routes that read nothing of a body still take no other one. */
static void test_empty_bodies(void **state)
{
    (void)state;
    static const char *const routes[] = {"pause", "resume", "cancel", "rebuild"};
    static const char *const bad[] = {"nonsense", "[]", "\"x\""};
    reply_free(expect(post(tiny.client, "/v1/sessions", "{'id':'mt'}"), 201));
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/sessions/mt/%s", routes[i]);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            reply_free(
                expect(request(tiny.client, "POST", path, NULL, bad[k], strlen(bad[k])), 400));
        if (strcmp(routes[i], "rebuild") != 0) { /* that needs a transcript */
            reply_free(expect(request(tiny.client, "POST", path, NULL, "{\"a\":1}", 7), 200));
            reply_free(expect(request(tiny.client, "POST", path, NULL, NULL, 0), 200));
        }
    }
    reply_free(expect(del(tiny.client, "/v1/sessions/mt"), 200));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_probes),
        cmocka_unit_test(test_metrics),       cmocka_unit_test(test_head),
        cmocka_unit_test(test_wrong_methods), cmocka_unit_test(test_unknown_paths),
        cmocka_unit_test(test_request_id),    cmocka_unit_test(test_idempotency_key),
        cmocka_unit_test(test_empty_bodies),
    };
    return cmocka_run_group_tests_name("routes", tests, start, stop);
}
