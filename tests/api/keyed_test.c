/* keyed_test.c: Idempotency-Key: a retried turn is answered again instead of running twice (issue
 * 3, point 4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"

static struct node node;

static struct client *client(void)
{
    return node.a.client;
}

/* extra: more header lines, or NULL. */
static struct call *keyed_start(const char *path, const char *key, const char *extra,
                                const char *body)
{
    char lines[400];
    const char *text = quoted(body);
    /* An empty header is written with a semicolon for curl. */
    snprintf(lines, sizeof lines, "Idempotency-Key%s%s%s%s", *key ? ": " : ";", key,
             extra ? "\n" : "", extra ? extra : "");
    return call_start(client(), "POST", path, lines, text, strlen(text));
}

static struct reply *keyed(const char *key, const char *body)
{
    return call_finish(keyed_start("/v1/generate", key, NULL, body));
}

static bool is_replay(const struct reply *r)
{
    const char *v = reply_header(r, "Idempotent-Replayed");
    return v && !strcmp(v, "true");
}

static void create(const char *id)
{
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s','prompt':'Once upon'}", id), 201));
}

/* Asked again: the same bytes, the ETag of then, and nothing has moved. */
static void again(const char *key, const char *body, const struct reply *first, const char *id)
{
    int64_t version = session_version(client(), id);
    struct reply *r = expect(keyed(key, body), 200);
    assert_true(is_replay(r));
    assert_int_equal(r->n_body, first->n_body);
    assert_memory_equal(r->body, first->body, first->n_body);
    assert_string_equal(reply_header(r, "ETag"), reply_header(first, "ETag"));
    assert_int_equal(session_version(client(), id), version);
    reply_free(r);
}

#define BODY "{'session':'a','prompt':' a time','max_tokens':9,'logprobs':2,'return_tokens':true}"
#define OTHER "{'session':'a','prompt':' a time','max_tokens':8}"

static void same_key_same_answer(void **state)
{
    (void)state;
    create("a");
    struct reply *first = expect(keyed("k-1", BODY), 200);
    assert_false(is_replay(first));
    assert_int_equal(session_version(client(), "a"), 2);
    again("k-1", BODY, first, "a");
    expect_error(keyed("k-1", OTHER), 422, "idempotency_mismatch", "Idempotency-Key");
    assert_int_equal(session_version(client(), "a"), 2);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    again("k-1", BODY, first, "a");
    node_kill(&node);
    node_start(&node);
    again("k-1", BODY, first, "a");
    node_stop(&node);
    node_start(&node);
    again("k-1", BODY, first, "a");
    expect_error(keyed("k-1", OTHER), 422, "idempotency_mismatch", "Idempotency-Key");
    /* Without a seed one was drawn: a second run would have said something else. */
    struct reply *r = expect(keyed("k-2", BODY), 200);
    assert_int_not_equal(int_at(r->json, "seed"), int_at(first->json, "seed"));
    assert_in_range(int_at(r->json, "seed"), 0,
                    (INT64_C(1) << 53) - 1); /* as any reader keeps it */
    reply_free(r);
    reply_free(first);
}

static void the_last_four(void **state)
{
    (void)state;
    struct reply *first[6];
    char key[24];
    create("a");
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "k%d", i);
        first[i] = expect(keyed(key, BODY), 200);
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 2; i < 6; i++) {
            snprintf(key, sizeof key, "k%d", i);
            again(key, BODY, first[i], "a");
        }
        reply_free(expect(session_post(client(), "a", "/pause"), 200));
        node_kill(&node);
        node_start(&node);
    }
    struct reply *r = expect(keyed("k1", BODY), 200); /* forgotten: it runs */
    assert_false(is_replay(r));
    assert_int_equal(session_version(client(), "a"), 8);
    reply_free(r);
    for (int i = 0; i < 6; i++)
        reply_free(first[i]);
}

static bool has_status(const struct reply *r, void *arg)
{
    (void)arg;
    return r->status != 0;
}

static void in_flight(void **state)
{
    (void)state;
    const char *body = "{'session':'a','prompt':' a','max_tokens':100000,'ignore_eos':true,"
                       "'stream':true,'return_tokens':true}";
    create("a");
    struct call *k = keyed_start("/v1/generate", "long", NULL, body);
    stream_until(k, 2);
    expect_error(keyed("long", body), 409, "idempotency_in_flight", "Idempotency-Key");
    expect_error(keyed("other", body), 409, "session_busy", "session");
    reply_free(expect(session_post(client(), "a", "/cancel"), 200));
    struct reply *first = expect(call_finish(k), 200);
    struct output o, p;
    output_of(first, &o);
    assert_string_equal(str_at(o.final, "finish_reason"), "cancelled");
    /* The retry of a stream is a stream: everything at once, and its end. */
    struct reply *r = expect(keyed("long", body), 200);
    assert_true(is_replay(r) && r->done);
    assert_string_equal(reply_header(r, "Cache-Control"), reply_header(first, "Cache-Control"));
    output_of(r, &p);
    output_same(&o, &p);
    output_done(&o);
    output_done(&p);
    reply_free(r);
    reply_free(first);
    /* Of many at once that wait for a session in the store, one runs. */
    enum { N = 12 };
    struct call *many[N];
    size_t n_ok = 0;
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    int64_t version = session_version(client(), "a");
    for (int i = 0; i < N; i++)
        many[i] = keyed_start("/v1/generate", "many", NULL, BODY);
    for (int i = 0; i < N; i++) {
        r = call_finish(many[i]);
        n_ok += r->status == 200;
        if (r->status != 200)
            expect_error(r, 409, "idempotency_in_flight", "Idempotency-Key");
        else
            reply_free(r);
    }
    assert_true(n_ok > 0);
    assert_int_equal(session_version(client(), "a"), version + 1);
}

/* The client goes before it is answered: with `continue` the turn is there, and its answer. */
static void the_answer_was_lost(void **state)
{
    (void)state;
    const char *body = "{'session':'a','prompt':' a','max_tokens':40,'ignore_eos':true,'stream':"
                       "true,'on_disconnect':'continue','return_tokens':true}";
    create("a");
    struct call *k = keyed_start("/v1/generate", "lost", NULL, body);
    call_until(k, has_status, NULL);
    call_abort(k);
    until_free(client(), "a");
    assert_int_equal(session_version(client(), "a"), 2);
    struct reply *r = expect(keyed("lost", body), 200);
    assert_true(is_replay(r));
    assert_int_equal(stream_tokens(r), 40);
    reply_free(r);
    /* Rolled back, there is none, and the retry runs. */
    body = "{'session':'a','prompt':' a','max_tokens':100000,'ignore_eos':true,'stream':true}";
    k = keyed_start("/v1/generate", "back", NULL, body);
    call_until_events(k, 2);
    call_abort(k);
    until_free(client(), "a");
    assert_int_equal(session_version(client(), "a"), 2);
    k = keyed_start("/v1/generate", "back", NULL, body);
    call_until_events(k, 2);
    assert_false(is_replay(call_reply(k)));
    call_abort(k);
    until_free(client(), "a");
}

static void a_failed_turn_keeps_no_answer(void **state)
{
    (void)state;
    const char *bad = "{'session':'a','prompt':[1,99999999],'max_tokens':1}";
    create("a");
    expect_error(keyed("bad", bad), 400, "invalid_value", "prompt[1]");
    expect_error(keyed("bad", bad), 400, "invalid_value", "prompt[1]");
    struct reply *r = expect(keyed("bad", BODY), 200);
    assert_false(is_replay(r));
    reply_free(r);
}

/* If-Match is looked at after the key: the first try has moved the session on. */
static void with_if_match(void **state)
{
    (void)state;
    char line[160];
    create("a");
    struct reply *s = session_get(client(), "a");
    snprintf(line, sizeof line, "If-Match: %s", reply_header(s, "ETag"));
    reply_free(s);
    struct reply *first = expect(call_finish(keyed_start("/v1/generate", "m", line, BODY)), 200);
    struct reply *r = expect(call_finish(keyed_start("/v1/generate", "m", line, BODY)), 200);
    assert_true(is_replay(r));
    assert_memory_equal(r->body, first->body, first->n_body);
    assert_string_equal(reply_header(r, "ETag"), reply_header(first, "ETag"));
    reply_free(r);
    reply_free(first);
    expect_error(call_finish(keyed_start("/v1/generate", "n", line, BODY)), 412, "version_mismatch",
                 "If-Match");
}

/* Somebody else's turn came between an answer and its retry: who goes on from the answer, as it
 * says, must hear of it. */
static void others_came_between(void **state)
{
    (void)state;
    char line[160];
    create("a");
    struct reply *first = expect(keyed("mine", BODY), 200);
    reply_free(expect(post(client(), "/v1/generate", OTHER), 200));
    for (int round = 0; round < 3; round++) {
        again("mine", BODY, first, "a");
        if (round == 0)
            reply_free(expect(session_post(client(), "a", "/pause"), 200));
        else if (round == 1)
            node_kill(&node);
        if (round == 1)
            node_start(&node);
    }
    snprintf(line, sizeof line, "If-Match: %s", reply_header(first, "ETag"));
    expect_error(call_finish(keyed_start("/v1/generate", "next", line, BODY)), 412,
                 "version_mismatch", "If-Match");
    assert_int_equal(session_version(client(), "a"), 3);
    reply_free(first);
}

/* A turn that ended paused: its prompt is in the session, so the retry must not read it again. */
static void paused(void **state)
{
    (void)state;
    const char *body = "{'session':'a','prompt':' a','max_tokens':500,'ignore_eos':true,'stream':"
                       "true,'return_tokens':true,'seed':3}";
    struct parts p;
    create("a");
    create("twin");
    struct gen whole;
    generate(client(), &whole,
             "'session':'twin','prompt':' a','max_tokens':500,'ignore_eos':true,"
             "'return_tokens':true,'seed':3");
    struct call *k = keyed_start("/v1/generate", "p", NULL, body);
    stream_until(k, 3);
    node_signal(&node, SIGTERM);
    struct reply *first = expect(call_finish(k), 200);
    node_wait(&node, SIGTERM);
    node_start(&node);
    parts_init(&p);
    struct reply *r = keyed("p", body);
    assert_true(is_replay(r));
    assert_int_equal(stream_tokens(r), stream_tokens(first));
    parts_add(&p, r);
    reply_free(first);
    assert_true(parts_paused(&p));
    assert_int_equal(session_version(client(), "a"), 2);
    /* And the rest with a key of its own. */
    body = "{'session':'a','resume':true,'return_tokens':true}";
    first = expect(keyed("q", body), 200);
    again("q", body, first, "a");
    parts_add(&p, first);
    output_same(&p.all, &whole.o);
    parts_done(&p);
    gen_done(&whole);
}

static void other_dialects(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
    } row[] = {
        {"/v1/completions", "{'session':'a','prompt':' a','max_tokens':5}"},
        {"/v1/chat/completions",
         "{'session':'a','messages':[{'role':'user','content':'hi'}],'max_tokens':5}"},
    };
    create("a");
    for (size_t i = 0; i < 2; i++) {
        struct reply *first =
            expect(call_finish(keyed_start(row[i].path, "d", NULL, row[i].body)), 200);
        struct reply *r =
            expect(call_finish(keyed_start(row[i].path, "d", NULL, row[i].body)), 200);
        assert_true(is_replay(r) && !is_replay(first));
        assert_string_equal(r->body, first->body);
        assert_string_equal(reply_header(r, "ETag"), reply_header(first, "ETag"));
        reply_free(r);
        reply_free(first);
        /* Another route answers in another form. */
        expect_error(call_finish(keyed_start("/v1/generate", "d", NULL, row[i].body)), 422,
                     "idempotency_mismatch", "Idempotency-Key");
        reply_free(expect(del(client(), "/v1/sessions/a"), 200));
        create("a");
    }
    struct call *k = keyed_start("/v1/completions", "d", NULL,
                                 "{'session':'a','prompt':'x','max_tokens':1,'stream':true}");
    expect_error(call_finish(k), 400, "unsupported", "Idempotency-Key");
    expect_error(keyed("d", "{'prompt':'x','max_tokens':1}"), 400, "invalid_value",
                 "Idempotency-Key");
    expect_error(keyed("sp ace", BODY), 400, "invalid_value", "Idempotency-Key");
    expect_error(keyed("", BODY), 400, "invalid_value", "Idempotency-Key");
    char key[300];
    memset(key, 'k', 256);
    key[256] = '\0';
    expect_error(keyed(key, BODY), 400, "invalid_value", "Idempotency-Key");
}

/* An answer of more than a mebibyte is kept, too; what could be longer than what is kept is refused
 * before a token was computed, and the message says what fits. */
static void long_answers(void **state)
{
    (void)state;
    static const char body[] = "{'session':'a','prompt':' a time','max_tokens':%s,'logprobs':20,"
                               "'return_tokens':true,'ignore_eos':true}";
    char text[200];
    create("a");
    snprintf(text, sizeof text, body, "1000");
    struct reply *first = expect(keyed("long-1", text), 200);
    assert_true(first->n_body > 1 << 20);
    again("long-1", text, first, "a");
    reply_free(first);
    int64_t version = session_version(client(), "a");
    double steps = metric(client(), "slate_engine_steps_total");
    snprintf(text, sizeof text, body, "50000");
    struct reply *r = keyed("long-2", text);
    const char *fits = strstr(r->body, "max_tokens up to ");
    assert_non_null(fits);
    unsigned long most = strtoul(fits + strlen("max_tokens up to "), NULL, 10);
    assert_true(most >= 1000 && most < 50000);
    expect_error(r, 400, "invalid_value", "max_tokens");
    assert_true(metric(client(), "slate_engine_steps_total") == steps);
    assert_int_equal(session_version(client(), "a"), version);
}

/* A turn of max_tokens as a stream, paused. */
static void pause_stream(const char *id, const char *max_tokens)
{
    create(id);
    struct call *k = stream_start(client(),
                                  "'session':'%s','prompt':' a time','max_tokens':%s,"
                                  "'logprobs':20,'return_tokens':true,'ignore_eos':true",
                                  id, max_tokens);
    stream_until(k, 3);
    struct call *pause = pause_start(client(), id);
    reply_free(expect(call_finish(k), 200));
    reply_free(expect(call_finish(pause), 200));
}

/* -1 is as many as fit, under a key, too; and so is what is left of such a turn when it is resumed.
 * One with a number that does not fit is refused with what it takes to resume it. */
static void as_many_as_fit(void **state)
{
    (void)state;
    static const char body[] = "{'session':'a','prompt':' a time','max_tokens':-1,'logprobs':20,"
                               "'max_time_ms':50,'ignore_eos':true}";
    create("a");
    struct reply *first = expect(keyed("most", body), 200);
    assert_string_equal(str_at(first->json, "finish_reason"), "timeout");
    again("most", body, first, "a");
    reply_free(first);
    pause_stream("b", "-1");
    reply_free(expect(keyed("rest", "{'session':'b','resume':true,'max_time_ms':50}"), 200));
    pause_stream("c", "1000000");
    int64_t version = session_version(client(), "c");
    struct reply *r = keyed("no", "{'session':'c','resume':true,'max_time_ms':50}");
    assert_non_null(strstr(r->body, "with stream: true and without an Idempotency-Key"));
    expect_error(r, 400, "invalid_value", "resume");
    assert_int_equal(session_version(client(), "c"), version);
    reply_free(expect(post(client(), "/v1/generate",
                           "{'session':'c','resume':true,'max_time_ms':50,'stream':true}"),
                      200));
}

/* A server of the test's own, with these options; the other one waits. */
static struct node waiting;

static void begin_lazy(const char *const *options)
{
    waiting = node;
    node_init(&node, "lazy", options);
    node_start(&node);
}

static void end_lazy(void)
{
    node_done(&node);
    node = waiting;
}

/* Where turns are not written one by one their answers are written with them: at a pause, an
 * eviction, a rewind, the end. */
static void durability_drain(void **state)
{
    (void)state;
    begin_lazy((const char *const[]){"--sessions-in-memory=2", "--durability=drain", NULL});
    create("a");
    struct reply *first = expect(keyed("k", BODY), 200);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    again("k", BODY, first, "a");
    create("b");
    create("c");
    create("d");
    again("k", BODY, first, "a");
    node_stop(&node);
    node_start(&node);
    again("k", BODY, first, "a");
    struct reply *second = expect(keyed("k-2", BODY), 200); /* it is not paused now */
    again("k", BODY, first, "a");
    node_stop(&node);
    node_start(&node);
    again("k", BODY, first, "a");
    again("k-2", BODY, second, "a");
    reply_free(second);
    second = expect(keyed("k-3", BODY), 200);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    node_kill(&node);
    node_start(&node);
    again("k", BODY, first, "a");
    again("k-3", BODY, second, "a");
    reply_free(second);
    /* The rewind has stored what the session is at. */
    reply_free(expect(post(client(), "/v1/sessions/a/checkpoints", "{'name':'then'}"), 201));
    second = expect(keyed("k-4", BODY), 200);
    reply_free(expect(post(client(), "/v1/sessions/a/rewind", "{'checkpoint':'then'}"), 200));
    again("k-4", BODY, second, "a");
    node_stop(&node);
    node_start(&node);
    again("k", BODY, first, "a");
    again("k-4", BODY, second, "a");
    reply_free(second);
    reply_free(first);
    end_lazy();
}

static uint64_t log_bytes(void)
{
    char path[320];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/log", node.dir);
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

/* With sessions that have much metadata, until the log is longer than a snapshot: then a limit of
 * files stops the log alone. */
static void lengthen_the_log(void)
{
    enum { ENOUGH = 200 };
    static char text[16000];
    char id[16];
    struct bytes b = snapshot_get(client(), "a", "");
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; log_bytes() < 2 * b.n; i++) {
        assert_true(i < ENOUGH);
        (void)snprintf(id, sizeof id, "p%d", i);
        reply_free(expect(post(client(), "/v1/sessions",
                               "{'id':'%s','prompt':'a','metadata':{'x':'%s'}}", id, text),
                          201));
        reply_free(expect(session_post(client(), id, "/pause"), 200));
    }
    sl_free(b.p);
}

/* The snapshot could be written, the first of two answers behind it not: that is told, and both are
 * tried again. */
static void an_answer_that_is_not_stored(void **state)
{
    enum { FOR_MORE = 4096 }; /* a head and a short answer, and not the long one */
    static const char *const longer =
        "{'session':'a','prompt':' a time','max_tokens':60,'ignore_eos':true,'logprobs':5}";
    (void)state;
    begin_lazy((const char *const[]){"--durability=drain", NULL});
    create("a");
    lengthen_the_log();
    struct reply *first = expect(keyed("k", longer), 200), *second = expect(keyed("l", OTHER), 200);
    assert_true(first->n_body > FOR_MORE && second->n_body < FOR_MORE / 2);
    node_limit_files(&node, log_bytes() + FOR_MORE);
    for (int i = 0; i < 2; i++)
        expect_error(session_post(client(), "a", "/pause"), 503, "store_full", NULL);
    node_limit_files(&node, 0);
    reply_free(expect(session_post(client(), "a", "/pause"), 200));
    node_kill(&node);
    node_start(&node);
    again("k", longer, first, "a");
    again("l", OTHER, second, "a");
    reply_free(first);
    reply_free(second);
    end_lazy();
}

static int start(void **state)
{
    (void)state;
    node_init(&node, "node",
              (const char *const[]){"--sessions-in-memory=6", "--drain-timeout=0s", NULL});
    node_start(&node);
    return 0;
}

static int clean(void **state)
{
    static const char *const id[] = {"a", "twin"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        reply_free(del(client(), session_path(id[i], "")));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    node_done(&node);
    return 0;
}

#define TEST(f) cmocka_unit_test_teardown(f, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(same_key_same_answer),
        TEST(the_last_four),
        TEST(in_flight),
        TEST(the_answer_was_lost),
        TEST(a_failed_turn_keeps_no_answer),
        TEST(with_if_match),
        TEST(others_came_between),
        TEST(paused),
        TEST(other_dialects),
        TEST(long_answers),
        TEST(as_many_as_fit),
        TEST(durability_drain),
        TEST(an_answer_that_is_not_stored),
    };
    return cmocka_run_group_tests_name("keyed", tests, start, stop);
}
