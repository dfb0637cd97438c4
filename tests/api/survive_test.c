/* survive_test.c: sessions outlive memory and processes (issue 3, points 3 and 4): restarts,
 * paging, pause and resume, what waits, forks and deletions of what is in the store.
 *
 * Two sessions are the same when their next turn is (turn_of: sampled, with penalties and log
 * probabilities). So what went through the store is compared with a twin that did not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"

static struct node node;

static struct client *client(void)
{
    return node.a.client;
}

static void up(const char *name, const char *const *options)
{
    node_init(&node, name, options);
    node_start(&node);
}

/* A session that has read a prompt and said something. */
static void make(const char *id, const char *prompt)
{
    struct gen g;
    reply_free(
        expect(post(client(), "/v1/sessions", "{'id':'%s','prompt':'Once upon a time'}", id), 201));
    turn_of(client(), &g, id, prompt, 3);
    gen_done(&g);
}

static void same_next(const char *a, const char *b, const char *prompt)
{
    struct gen x, y;
    turn_of(client(), &x, a, prompt, 11);
    turn_of(client(), &y, b, prompt, 11);
    output_same(&x.o, &y.o);
    gen_done(&x);
    gen_done(&y);
}

static int64_t computed(const struct gen *g)
{
    return int_at(g->r->json, "timings.computed_tokens");
}

/* --- restarts ----------------------------------------------------------------------------------*/

/* The list, without what a restart may change. */
static json_t *listing(void)
{
    struct reply *r = expect(get(client(), "/v1/sessions"), 200);
    json_t *list = json_incref(json_object_get(r->json, "data")), *s;
    size_t i;
    json_array_foreach(list, i, s) json_object_del(s, "residency");
    reply_free(r);
    return list;
}

static void restarts_keep_sessions(void **state)
{
    (void)state;
    char etag[4][128];
    const char *id[] = {"a", "b", "c", "d"};
    up("restart", (const char *const[]){"--sessions-in-memory=8", NULL});
    make("a", " there was");
    make("b", " a small");
    reply_free(expect(post(client(), "/v1/sessions",
                           "{'id':'c','ttl_s':3600,'metadata':{'who':'\xC3\xA9\\n','n':[1,2.5]}}"),
                      201));
    reply_free(
        expect(post(client(), "/v1/sessions", "{'id':'d','prompt':[5,6,7],'ttl_s':50}"), 201));
    reply_free(expect(patch(client(), "/v1/sessions/d", "{'ttl_s':5000,'metadata':{'x':1}}"), 200));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'e','prompt':'x'}"), 201));
    reply_free(expect(del(client(), "/v1/sessions/e"), 200));
    for (int round = 0; round < 4; round++) {
        json_t *before = listing();
        assert_int_equal(json_array_size(before), 4);
        for (int i = 0; i < 4; i++) {
            struct reply *r = session_get(client(), id[i]);
            snprintf(etag[i], sizeof etag[i], "%s", reply_header(r, "ETag"));
            reply_free(r);
        }
        if (round % 2)
            node_kill(&node);
        else
            node_stop(&node);
        node_start(&node);
        json_t *after = listing();
        assert_true(json_equal(before, after));
        for (int i = 0; i < 4; i++) {
            struct reply *r = session_get(client(), id[i]);
            assert_string_equal(reply_header(r, "ETag"), etag[i]);
            assert_string_equal(str_at(r->json, "residency"), "store");
            reply_free(r);
        }
        json_decref(before);
        json_decref(after);
    }
    expect_error(get(client(), "/v1/sessions/e"), 404, "session_not_found", "session");
    node_done(&node);
}

/* Other bits from here on: it goes on all the same, and the log says so, once. */
static void other_weights(void **state)
{
    static const char said[] = "sessions in the store are of other --weights or --numerics";
    (void)state;
    up("weights", (const char *const[]){"--log-level=warn", "--weights=f32", NULL});
    make("a", " there was");
    make("b", " there was");
    node_stop(&node);
    node.options[node.n_options - 1] = "--weights=bf16";
    node_start(&node);
    struct gen g;
    turn_of(client(), &g, "a", " and", 4);
    gen_done(&g);
    server_wait_log(node.a.server, said);
    turn_of(client(), &g, "b", " and", 4);
    gen_done(&g);
    const char *first = strstr(node.a.server->log, said);
    assert_null(strstr(first + 1, said));
    node_done(&node);
}

/* After a kill nothing was touched that is not loaded: the drain must not need it. */
static void a_drain_after_a_kill(void **state)
{
    (void)state;
    up("drained", (const char *const[]){"--sessions-in-memory=8", NULL});
    make("a", " there was");
    node_kill(&node);
    node_start(&node);
    reply_free(expect(patch(client(), "/v1/sessions/a", "{'metadata':{'x':1}}"), 200));
    node_stop(&node);
    node_start(&node);
    struct reply *r = session_get(client(), "a");
    assert_int_equal(int_at(r->json, "metadata.x"), 1);
    assert_int_equal(int_at(r->json, "version"), 2);
    reply_free(r);
    node_done(&node);
}

static void durability_drain(void **state)
{
    (void)state;
    up("lazy", (const char *const[]){"--sessions-in-memory=8", "--durability=drain", NULL});
    make("a", " there was");
    make("b", " there was");
    make("c", " there was");
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'new','metadata':{'x':1}}"), 201));
    reply_free(expect(post(client(), "/v1/sessions/a/fork", "{'id':'f'}"), 201));
    node_stop(&node);
    node_start(&node);
    same_next("a", "f", " and");
    reply_free(expect(patch(client(), "/v1/sessions/new", "{'metadata':{'x':2}}"), 200));
    reply_free(expect(del(client(), "/v1/sessions/f"), 200));
    node_stop(&node);
    node_start(&node);
    struct reply *r = session_get(client(), "new");
    assert_int_equal(int_at(r->json, "metadata.x"), 2);
    reply_free(r);
    expect_error(get(client(), "/v1/sessions/f"), 404, "session_not_found", "session");
    assert_int_equal(session_version(client(), "a"), 3);
    /* A crash may lose what is newer than the last drain, and nothing else. */
    struct gen g;
    turn_of(client(), &g, "b", " and", 11);
    gen_done(&g);
    node_kill(&node);
    node_start(&node);
    assert_int_equal(session_version(client(), "b"), 2);
    same_next("b", "c", " and");
    /* But not what came before a pause, also of what was put away already. */
    for (int x = 3; x < 5; x++) {
        reply_free(expect(patch(client(), "/v1/sessions/new", "{'metadata':{'x':%d}}", x), 200));
        reply_free(expect(session_post(client(), "new", "/pause"), 200));
    }
    node_kill(&node);
    node_start(&node);
    r = session_get(client(), "new");
    assert_int_equal(int_at(r->json, "metadata.x"), 4);
    reply_free(r);
    node_done(&node);
}

/* --- in memory, in the store -------------------------------------------------------------------*/

static void pause_and_resume(void **state)
{
    (void)state;
    struct reply *r;
    up("pause", (const char *const[]){"--sessions-in-memory=8", NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'empty'}"), 201));
    make("a", " there was");
    make("twin", " there was");
    for (int i = 0; i < 2; i++) {
        r = expect(session_post(client(), "a", "/pause"), 200);
        assert_string_equal(str_at(r->json, "residency"), "store");
        reply_free(r);
    }
    r = expect(session_post(client(), "a", "/resume"), 200);
    assert_string_equal(str_at(r->json, "residency"), "memory");
    reply_free(r);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    same_next("a", "twin", " and"); /* it comes back by itself */
    r = expect(session_post(client(), "empty", "/pause"), 200);
    assert_string_equal(str_at(r->json, "residency"), "store");
    reply_free(r);
    struct gen g;
    turn_of(client(), &g, "empty", "x", 1);
    gen_done(&g);
    expect_error(session_post(client(), "nobody", "/pause"), 404, "session_not_found", "session");
    node_done(&node);
}

/* The engine's count of tokens read. */
static double prefilled(void)
{
    return metric(client(), "slate_engine_prefill_tokens_total");
}

static void only_new_tokens_are_computed(void **state)
{
    (void)state;
    struct gen stayed, came;
    up("computed", (const char *const[]){"--sessions-in-memory=8", NULL});
    make("a", " there was");
    make("twin", " there was");
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    turn_of(client(), &stayed, "twin", " and then they went home", 5);
    turn_of(client(), &came, "a", " and then they went home", 5);
    int64_t n_new = int_at(came.r->json, "usage.prompt_tokens");
    assert_true(n_new > 1);
    /* Pending, prompt, and what was generated but the last. */
    assert_int_equal(computed(&stayed), 1 + n_new + 11);
    assert_int_equal(computed(&came), computed(&stayed));
    output_same(&came.o, &stayed.o);
    gen_done(&stayed);
    gen_done(&came);
    /* The same across a restart that drained; after a kill the turns are read again, once. */
    node_stop(&node);
    node_start(&node);
    double before = prefilled();
    turn_of(client(), &came, "a", " x", 6);
    n_new = int_at(came.r->json, "usage.prompt_tokens");
    assert_int_equal(computed(&came), 1 + n_new + 11);
    assert_true(prefilled() - before == (double)(1 + n_new));
    gen_done(&came);
    node_kill(&node);
    node_start(&node);
    turn_of(client(), &came, "a", " x", 7);
    assert_int_equal(computed(&came), 1 + n_new + 12 + n_new + 11);
    gen_done(&came);
    turn_of(client(), &came, "a", " x", 7);
    assert_int_equal(computed(&came), 1 + n_new + 11);
    gen_done(&came);
    node_done(&node);
}

/* What has to be read again is not what a client sent. */
static void a_long_replay_is_admitted(void **state)
{
    (void)state;
    struct gen g;
    up("replay", (const char *const[]){"--sessions-in-memory=8", "--max-queued-prefill=30",
                                       "--replay-limit=100000", NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a'}"), 201));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'twin'}"), 201));
    for (unsigned i = 0; i < 4; i++) {
        turn_of(client(), &g, "a", "Once upon a time there was a cat", i);
        gen_done(&g);
        turn_of(client(), &g, "twin", "Once upon a time there was a cat", i);
        gen_done(&g);
    }
    reply_free(expect(session_post(client(), "twin", "/pause"), 200));
    node_kill(&node);
    node_start(&node);
    same_next("a", "twin", "Once upon a time");
    node_done(&node);
}

static void a_fork_of_what_is_in_the_store(void **state)
{
    (void)state;
    up("fork", (const char *const[]){"--sessions-in-memory=3", NULL});
    make("a", " there was");
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    struct reply *r = expect(post(client(), "/v1/sessions/a/fork", "{'id':'b'}"), 201);
    assert_int_equal(int_at(r->json, "version"), 2);
    reply_free(r);
    node_kill(&node);
    node_start(&node);
    same_next("a", "b", " and");
    /* More forks at once than places: nobody waits for ever. */
    struct call *k[8];
    for (int i = 0; i < 8; i++)
        k[i] = call_post(client(), "/v1/sessions/a/fork", "{'id':'f%d'}", i);
    for (int i = 0; i < 8; i++)
        reply_free(expect(call_finish(k[i]), 201));
    for (int i = 0; i < 8; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/sessions/f%d/fork", i);
        k[i] = call_post(client(), path, "{'id':'g%d'}", i);
    }
    for (int i = 0; i < 8; i++)
        reply_free(expect(call_finish(k[i]), 201));
    same_next("f3", "g3", " but");
    same_next("g0", "g7", " but");
    node_done(&node);
}

/* --- what is paused, what waits ----------------------------------------------------------------*/

static void nothing_to_resume(void **state)
{
    (void)state;
    up("nothing", (const char *const[]){"--sessions-in-memory=8", NULL});
    make("a", " there was");
    expect_error(post(client(), "/v1/generate", "{'session':'a','resume':true}"), 409,
                 "nothing_paused", "resume");
    expect_error(post(client(), "/v1/generate", "{'resume':true}"), 400, "missing_field",
                 "session");
    /* Another turn drops what was paused. */
    struct call *k =
        stream_start(client(), "'session':'a','prompt':'','max_tokens':100000,'ignore_eos':true,"
                               "'return_tokens':true");
    stream_until(k, 3);
    struct call *pause = pause_start(client(), "a");
    struct reply *r = expect(call_finish(k), 200);
    assert_string_equal(str_at(r->events[r->n_events - 1], "finish_reason"), "paused");
    reply_free(r);
    reply_free(expect(call_finish(pause), 200));
    int64_t version = session_version(client(), "a");
    struct gen g;
    turn_of(client(), &g, "a", " so", 1);
    gen_done(&g);
    assert_int_equal(session_version(client(), "a"), version + 1);
    for (int i = 0; i < 2; i++) {
        expect_error(post(client(), "/v1/generate", "{'session':'a','resume':true}"), 409,
                     "nothing_paused", "resume");
        node_kill(&node);
        node_start(&node);
    }
    node_done(&node);
}

#define LONG "'max_tokens':100000,'ignore_eos':true,'return_tokens':true"

static void cancelled_and_paused_while_they_wait(void **state)
{
    (void)state;
    struct reply *r;
    struct gen g;
    up("wait", (const char *const[]){"--sessions-in-memory=8", "--max-running=1", NULL});
    make("a", " there was");
    make("b", " there was");
    make("c", " there was");
    make("twin", " there was");
    reply_free(expect(session_post(client(), "b", "/pause"), 200));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'new'}"), 201));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'new-twin'}"), 201));
    struct call *a = stream_start(client(), "'session':'a','prompt':''," LONG);
    stream_until(a, 2);
    struct call *b = turn_start(client(), "b", " and", 4),
                *c = turn_start(client(), "c", " and", 4),
                *n = turn_start(client(), "new", "Once", 5);
    until_metric(client(), "slate_requests_queued", 3);
    /* b never ran: nothing was committed. */
    r = expect(session_post(client(), "b", "/cancel"), 200);
    assert_true(bool_at(r->json, "cancelled"));
    reply_free(r);
    generate_finish(b, &g);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "cancelled");
    assert_int_equal(g.o.n_tokens, 0);
    gen_done(&g);
    assert_int_equal(session_version(client(), "b"), 2);
    /* c is paused before it has begun: its prompt is kept, and it goes on from there. */
    /* At once: a still has the only place. */
    reply_free(expect(session_post(client(), "c", "/pause"), 200));
    generate_finish(c, &g);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "paused");
    assert_int_equal(g.o.n_tokens, 0);
    gen_done(&g);
    /* The same of a session that has no state yet. */
    reply_free(expect(session_post(client(), "new", "/pause"), 200));
    generate_finish(n, &g);
    assert_string_equal(str_at(g.r->json, "finish_reason"), "paused");
    gen_done(&g);
    assert_false(call_reply(a)->over);
    assert_true(metric(client(), "slate_requests_running") == 1);
    reply_free(expect(session_post(client(), "a", "/cancel"), 200));
    reply_free(expect(call_finish(a), 200));
    node_kill(&node);
    node_start(&node);
    struct gen whole, rest;
    turn_of(client(), &whole, "twin", " and", 4);
    generate(client(), &rest, "'session':'c','resume':true,'return_tokens':true");
    output_same(&rest.o, &whole.o);
    gen_done(&rest);
    gen_done(&whole);
    same_next("c", "twin", " but");
    turn_of(client(), &whole, "new-twin", "Once", 5);
    generate(client(), &rest, "'session':'new','resume':true,'return_tokens':true");
    output_same(&rest.o, &whole.o);
    gen_done(&rest);
    gen_done(&whole);
    same_next("new", "new-twin", " but");
    node_done(&node);
}

/* A paused turn wants more than the server that it was moved to allows: it stays, and is refused.
 * One that wanted as many as are allowed goes on. */
static void a_lower_limit(void **state)
{
    (void)state;
    struct gen g;
    up("limit", (const char *const[]){"--sessions-in-memory=8", "--max-tokens-limit=200000", NULL});
    make("a", " there was");
    struct call *k = stream_start(client(), "'session':'a','prompt':''," LONG);
    stream_until(k, 2);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    reply_free(expect(call_finish(k), 200));
    make("b", " there was");
    k = stream_start(client(), "'session':'b','prompt':'','max_tokens':-1,'temperature':0,"
                               "'ignore_eos':true,'return_tokens':true");
    stream_until(k, 2);
    reply_free(expect(session_post(client(), "b", "/pause"), 200));
    reply_free(expect(call_finish(k), 200));
    node_stop(&node);
    for (size_t i = 0; i < node.n_options; i++)
        if (!strncmp(node.options[i], "--max-tokens-limit", 18))
            node.options[i] = "--max-tokens-limit=1000";
    node_start(&node);
    int64_t version = session_version(client(), "a");
    expect_error(post(client(), "/v1/generate", "{'session':'a','resume':true}"), 400,
                 "invalid_value", "resume");
    assert_int_equal(session_version(client(), "a"), version);
    struct reply *r = expect(post(client(), "/v1/generate", "{'session':'b','resume':true}"), 200);
    assert_string_equal(str_at(r->json, "finish_reason"), "length");
    assert_int_equal(int_at(r->json, "usage.completion_tokens"), 1000);
    reply_free(r);
    /* Something else may still be said to it. */
    turn_of(client(), &g, "a", " and", 4);
    gen_done(&g);
    node_done(&node);
}

/* The id of one whose time is over is free at once, with nothing of the old one behind it. */
static void an_expired_name_is_free(void **state)
{
    (void)state;
    up("ttl", (const char *const[]){"--sessions-in-memory=8", NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a','ttl_s':1,'prompt':'x'}"), 201));
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 200; status != 404;) {
        struct reply *r = get(client(), "/v1/sessions/a");
        status = r->status;
        assert_true(client_now_ms() < deadline && (status == 200 || status == 404));
        reply_free(r);
    }
    struct reply *r = expect(post(client(), "/v1/sessions", "{'id':'a'}"), 201);
    assert_int_equal(int_at(r->json, "version"), 0);
    reply_free(r);
    node_kill(&node);
    node_start(&node);
    assert_int_equal(session_version(client(), "a"), 0);
    node_done(&node);
}

/* Deleted while something brings it from the store, or has it written there. */
static void deleted_while_it_is_loaded(void **state)
{
    (void)state;
    enum { N = 24 };
    struct call *k[3 * N];
    char id[32];
    up("gone", (const char *const[]){"--sessions-in-memory=4", NULL});
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "s%d", i);
        reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s','prompt':'x'}", id), 201));
    }
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "s%d", i);
        const char *what[] = {"/snapshot", "/pause", "/resume"};
        bool reads = i % 3 == 0;
        k[3 * i] = call_start(client(), reads ? "GET" : "POST", session_path(id, what[i % 3]), NULL,
                              NULL, 0);
        k[3 * i + 1] = call_start(client(), "DELETE", session_path(id, ""), NULL, NULL, 0);
        k[3 * i + 2] = call_start(client(), "GET", session_path(id, "/snapshot"), NULL, NULL, 0);
    }
    for (int i = 0; i < N; i++) {
        struct reply *first = call_finish(k[3 * i]), *gone = call_finish(k[3 * i + 1]);
        struct reply *last = call_finish(k[3 * i + 2]);
        assert_true(first->status == 200 || first->status == 404 || first->status == 409);
        assert_true(last->status == 200 || last->status == 404);
        assert_true(gone->status == 200 || gone->status == 409); /* a pause has the lease */
        snprintf(id, sizeof id, "s%d", i);
        if (gone->status == 200)
            expect_error(get(client(), session_path(id, "")), 404, "session_not_found", "session");
        else
            reply_free(session_get(client(), id));
        reply_free(first);
        reply_free(gone);
        reply_free(last);
    }
    node_done(&node);
}

/* After a failure: what the server says of it. */
static int after(void **state)
{
    (void)state;
    node_abandon(&node);
    return 0;
}

#define TEST(f) cmocka_unit_test_teardown(f, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(restarts_keep_sessions),
        TEST(other_weights),
        TEST(a_drain_after_a_kill),
        TEST(durability_drain),
        TEST(pause_and_resume),
        TEST(only_new_tokens_are_computed),
        TEST(a_long_replay_is_admitted),
        TEST(a_fork_of_what_is_in_the_store),
        TEST(nothing_to_resume),
        TEST(cancelled_and_paused_while_they_wait),
        TEST(a_lower_limit),
        TEST(an_expired_name_is_free),
        TEST(deleted_while_it_is_loaded),
    };
    return cmocka_run_group_tests_name("survive", tests, NULL, NULL);
}
