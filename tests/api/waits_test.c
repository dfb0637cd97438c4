/* waits_test.c: what waits for a session, its memory or a place when that ends in an unusual way:
 * it is answered, and sees nothing half made.
 *
 * Requests that must meet are sent while the server is stopped, so that it finds all of them at
 * once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"
#include "tests/support/redis.h"

static struct node node;

static struct client *client(void)
{
    return node.a.client;
}

static void up(const char *const *options)
{
    node_init(&node, "waits", options);
    node_start(&node);
}

static int clean(void **state)
{
    (void)state;
    node_abandon(&node);
    return 0;
}

static struct raw *begun(const char *method, const char *path, const char *type, size_t n_body)
{
    char head[400];
    struct raw *r = raw_open(node.a.server);
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
             method, path, type, n_body);
    raw_puts(r, head);
    return r;
}

static struct raw *sent(const char *method, const char *path, const char *body)
{
    struct raw *r = begun(method, path, "application/json", strlen(body));
    raw_puts(r, body);
    return r;
}

/* The answer; a part of its body, or NULL. */
static void answered(struct raw *r, int status, const char *part)
{
    struct raw_response *a = raw_read(r, false);
    if (a->status != status || (part && !strstr(a->body, part)))
        fail_msg("%d, not %d with %s: %s", a->status, status, part ? part : "anything", a->body);
    raw_response_free(a);
    raw_close(r);
}

/* --- the only place ------------------------------------------------------------------------------
 */

/* A turn's end, or another change's, is all that can give the place to who waits for it. */
static void the_only_place(const char *durability)
{
    up((const char *const[]){"--sessions-in-memory=1", durability, NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a'}"), 201));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'b'}"), 201));
    struct call *a = stream_start(
        client(), "'session':'a','prompt':'go','max_tokens':1000000,'ignore_eos':true");
    call_until_events(a, 2);
    struct raw *b =
        sent("POST", "/v1/generate", "{\"session\":\"b\",\"prompt\":\"x\",\"max_tokens\":2}");
    reply_free(expect(get(client(), "/v1/models"), 200)); /* it has been read by now */
    reply_free(expect(post(client(), "/v1/sessions/a/cancel", "{}"), 200));
    reply_free(call_finish(a));
    answered(b, 200, NULL);
    node_stop(&node);
    node_done(&node);
}

static void one_place_for_two(void **state)
{
    (void)state;
    the_only_place("--durability=turn");
    the_only_place("--durability=drain");
}

/* --- a session that is still being made --------------------------------------------------------*/

/* An upload is under way: nobody gets an empty session for it. */
static void being_made(void **state)
{
    (void)state;
    up((const char *const[]){NULL});
    struct gen g;
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a'}"), 201));
    generate(client(), &g, "'session':'a','prompt':'remember','max_tokens':3");
    gen_done(&g);
    struct bytes snapshot = snapshot_get(client(), "a", "");
    struct raw *put =
        begun("PUT", "/v1/sessions/b/snapshot", "application/octet-stream", snapshot.n);
    raw_send(put, snapshot.p, snapshot.n - 1);
    while (metric(client(), "slate_http_body_bytes") < (double)(snapshot.n - 1))
        ; /* there is room for all of it */
    node_signal(&node, SIGSTOP);
    raw_send(put, snapshot.p + snapshot.n - 1, 1);
    struct raw *fork = sent("POST", "/v1/sessions/b/fork", "{\"id\":\"c\"}");
    struct raw *look = sent("GET", "/v1/sessions/b", "");
    struct raw *read = sent("GET", "/v1/sessions/b/snapshot", "");
    node_signal(&node, SIGCONT);
    answered(put, 201, "\"version\":1");
    /* Each came while it was made, or when it was there. */
    struct raw *const others[] = {fork, look, read};
    static const int done[] = {201, 200, 200};
    for (size_t i = 0; i < 3; i++) {
        struct raw_response *r = raw_read(others[i], false);
        if (r->status == 409)
            assert_non_null(strstr(r->body, "session_busy"));
        else if (r->status == 404)
            assert_non_null(strstr(r->body, "session_not_found"));
        else
            assert_int_equal(r->status, done[i]);
        if (i < 2 && r->status == done[i])
            assert_non_null(strstr(r->body, "\"version\":1"));
        raw_response_free(r);
        raw_close(others[i]);
    }
    assert_int_equal(session_version(client(), "b"), 1);
    sl_free(snapshot.p);
    node_done(&node);
}

/* Its prompt is being read, somebody waits for it to be free, and then its maker goes: there is no
 * such session, and the name is free. */
static void made_with_a_long_prompt(const char *durability)
{
    enum { PROMPT = 400 * 1000 };
    up((const char *const[]){durability, NULL});
    char *body = sl_malloc(PROMPT + 64);
    assert_non_null(body);
    int n = sprintf(body, "{\"id\":\"a\",\"prompt\":\"");
    memset(body + n, 'x', PROMPT);
    strcpy(body + n + PROMPT, "\"}");
    struct raw *make = sent("POST", "/v1/sessions", body);
    until_metric(client(), "slate_requests_running", 1);
    expect_error(post(client(), "/v1/sessions/a/fork", "{'id':'b'}"), 409, "session_busy",
                 "session");
    struct raw *pause = sent("POST", "/v1/sessions/a/pause", "");
    raw_close(make);
    answered(pause, 404, "session_not_found");
    expect_error(get(client(), "/v1/sessions/a"), 404, "session_not_found", "session");
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a','prompt':'abc'}"), 201));
    node_kill(&node);
    sl_free(body);
    node_done(&node);
}

static void made_by_one_who_goes(void **state)
{
    (void)state;
    made_with_a_long_prompt("--durability=turn");
    made_with_a_long_prompt("--durability=drain");
}

/* The same while it waits in the line, with an upload over it that comes with the news: that is
 * refused, or finds nothing to replace, and is not acknowledged and then gone. */
static void replaced_when_its_maker_goes(void **state)
{
    static const char make_body[] = "{\"id\":\"a\",\"prompt\":\"remember\"}";
    char lines[300];
    (void)state;
    up((const char *const[]){"--max-running=1", NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'c','prompt':'another one'}"), 201));
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'z'}"), 201));
    struct bytes snapshot = snapshot_get(client(), "c", "?dtype=int8");
    struct call *z = stream_start(
        client(), "'session':'z','prompt':'go','max_tokens':1000000,'ignore_eos':true");
    call_until_events(z, 2);
    struct raw *make = sent("POST", "/v1/sessions", make_body);
    until_metric(client(), "slate_requests_queued", 1);
    struct reply *r = expect(get(client(), "/v1/sessions/a"), 200);
    snprintf(lines, sizeof lines,
             "PUT /v1/sessions/a/snapshot HTTP/1.1\r\nHost: 127.0.0.1\r\nIf-Match: %s\r\n"
             "Content-Type: application/octet-stream\r\nContent-Length: %zu\r\n\r\n",
             reply_header(r, "ETag"), snapshot.n);
    reply_free(r);
    struct raw *put = raw_open(node.a.server);
    raw_puts(put, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    raw_response_free(raw_read(put, false)); /* it is accepted */
    node_signal(&node, SIGSTOP);
    raw_close(make);
    raw_puts(put, lines);
    raw_send(put, snapshot.p, snapshot.n);
    node_signal(&node, SIGCONT);
    struct raw_response *a = raw_read(put, false);
    if (a->status != 404 && a->status != 409)
        fail_msg("%d: %s", a->status, a->body);
    raw_response_free(a);
    raw_close(put);
    until_metric(client(), "slate_sessions", 2);
    expect_error(get(client(), "/v1/sessions/a"), 404, "session_not_found", "session");
    reply_free(expect(post(client(), "/v1/sessions/z/cancel", "{}"), 200));
    reply_free(call_finish(z));
    sl_free(snapshot.p);
    node_done(&node);
}

/* --- a deletion that fails ---------------------------------------------------------------------*/

/* All who wait for the name are told, not the first alone; then the server ends as it should. */
static void a_deletion_fails(void **state)
{
    (void)state;
    enum { N = 3 };
    struct raw *make[N];
    up((const char *const[]){NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a'}"), 201));
    node_limit_files(&node, 1);
    node_signal(&node, SIGSTOP);
    struct raw *del = sent("DELETE", "/v1/sessions/a", "");
    for (int i = 0; i < N; i++)
        make[i] = sent("POST", "/v1/sessions", "{\"id\":\"a\"}");
    node_signal(&node, SIGCONT);
    answered(del, 503, "store_full");
    for (int i = 0; i < N; i++)
        answered(make[i], 409, "session_exists");
    node_limit_files(&node, 0);
    assert_int_equal(session_version(client(), "a"), 0);
    node_stop(&node);
    node_done(&node);
}

/* --- a fork of what gets on while it waits ----------------------------------------------------*/

/* Both places are at work when it comes. With If-Match it is a copy of that version or none. */
static void a_fork_waits(const char *if_match, int status, const char *part)
{
    char etag[200] = "";
    struct call *turn[2];
    up((const char *const[]){"--sessions-in-memory=2", "--threads=1", NULL});
    for (int i = 0; i < 2; i++) {
        const char *id = i ? "b" : "a";
        reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s'}", id), 201));
        turn[i] = stream_start(client(),
                               "'session':'%s','prompt':'go','max_tokens':1000000,"
                               "'ignore_eos':true",
                               id);
    }
    for (int i = 0; i < 2; i++)
        call_until_events(turn[i], 2);
    struct reply *r = expect(get(client(), "/v1/sessions/a"), 200);
    if (if_match)
        snprintf(etag, sizeof etag, "If-Match: %s%s\r\n", if_match,
                 *if_match == '*' ? "" : reply_header(r, "ETag"));
    reply_free(r);
    struct raw *fork = raw_open(node.a.server);
    raw_puts(fork, "POST /v1/sessions/a/fork HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    raw_puts(fork, etag);
    raw_puts(fork, "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"id\":\"c\"}");
    reply_free(expect(get(client(), "/v1/models"), 200)); /* the fork has been read by now */
    reply_free(expect(post(client(), "/v1/sessions/a/pause", "{}"), 200));
    reply_free(call_finish(turn[0]));
    reply_free(expect(post(client(), "/v1/sessions/b/pause", "{}"), 200));
    reply_free(call_finish(turn[1]));
    answered(fork, status, part);
    node_done(&node);
}

static void a_fork_of_that_version(void **state)
{
    (void)state;
    a_fork_waits(NULL, 201, "\"version\":1");
    a_fork_waits("", 409, "session_busy");
    a_fork_waits("*", 201, "\"version\":1"); /* of whichever */
}

/* --- a fork of what is being deleted ----------------------------------------------------------*/

/* The store is asked for both at once; the deletion is first. */
static void a_fork_beside_a_deletion(void **state)
{
    (void)state;
    struct redis redis;
    redis_init(&redis, "waits", NULL);
    up((const char *const[]){"--store", redis.spec, NULL});
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'a','prompt':'abc'}"), 201));
    redis_signal(&redis, SIGSTOP);
    node_signal(&node, SIGSTOP);
    struct raw *del = sent("DELETE", "/v1/sessions/a", "");
    struct raw *fork = sent("POST", "/v1/sessions", "{\"id\":\"b\",\"from\":{\"session\":\"a\"}}");
    node_signal(&node, SIGCONT);
    /* A connection after theirs: it has both by then. */
    raw_expect_ask(node.a.server, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200, "ok");
    redis_signal(&redis, SIGCONT);
    answered(del, 200, NULL);
    answered(fork, 404, "session_not_found");
    expect_error(get(client(), "/v1/sessions/b"), 404, "session_not_found", "session");
    node_done(&node);
    redis_done(&redis);
}

/* --- turns whose time is over in the line ------------------------------------------------------*/

/* They are told in time, whatever the engine is at; what waits for their places begins then. */
static void timeouts_make_room(void **state)
{
    (void)state;
    enum { N = 3, LONG = 400000 };
    struct call *k[N];
    up((const char *const[]){"--max-running=1", "--sessions-in-memory=4", NULL});
    for (int i = 0; i < N + 2; i++)
        reply_free(expect(post(client(), "/v1/sessions", "{'id':'t%d'}", i), 201));
    char *text = sl_malloc(LONG + 1);
    assert_non_null(text);
    for (size_t i = 0; i < LONG; i++)
        text[i] = "the cat sat "[i % 12];
    text[LONG] = '\0';
    struct call *reading =
        generate_start(client(), "'session':'t0','prompt':'%s','max_tokens':0", text);
    sl_free(text);
    until_metric(client(), "slate_requests_running", 1);
    for (int i = 0; i < N; i++)
        k[i] = generate_start(client(), "'session':'t%d','prompt':'a','max_time_ms':200", i + 1);
    struct call *last = generate_start(client(),
                                       "'session':'t%d','prompt':'a','max_tokens':2,"
                                       "'ignore_eos':true,'return_tokens':true",
                                       N + 1);
    for (int i = 0; i < N; i++) {
        struct gen g;
        generate_finish(k[i], &g);
        assert_string_equal(str_at(g.r->json, "finish_reason"), "timeout");
        gen_done(&g);
    }
    assert_false(call_reply(reading)->over);
    reply_free(expect(session_post(client(), "t0", "/cancel"), 200));
    reply_free(call_finish(reading));
    struct gen g;
    generate_finish(last, &g);
    assert_int_equal(g.o.n_tokens, 2);
    gen_done(&g);
    node_done(&node);
}

/* --- turns that the store has not acknowledged -------------------------------------------------*/

static struct redis shared;

static int clean_both(void **state)
{
    (void)clean(state);
    redis_done(&shared);
    return 0;
}

static struct call *endless(unsigned i)
{
    return stream_start(client(),
                        "'session':'t%u','prompt':'b','max_tokens':1000000,'ignore_eos':true,"
                        "'on_disconnect':'commit','return_tokens':true",
                        i);
}

/* So many have their leases and are in the line, with the token that was pending and one more. */
static void until_in_line(unsigned n)
{
    until_metric(client(), "slate_queued_prefill_tokens", 2 * n);
}

/* On a Redis that may stand still for a while; n sessions that have said something, in memory. */
static void up_with_talkers(const char *max_running, unsigned n)
{
    struct gen g;
    redis_init(&shared, "waits", NULL);
    node_init(&node, "waits",
              (const char *const[]){"--sessions-in-memory=64", max_running, "--store-timeout=20s",
                                    "--lease=60s", "--max-tokens-limit=1000000", NULL});
    snprintf(node.store, sizeof node.store, "%s", shared.spec);
    node_start(&node);
    for (unsigned i = 0; i < n; i++) {
        reply_free(expect(post(client(), "/v1/sessions", "{'id':'t%u'}", i), 201));
        generate(client(), &g, "'session':'t%u','prompt':'a','max_tokens':1,'ignore_eos':true", i);
        gen_done(&g);
    }
}

/* The store stands still with almost all places taken: as many turns are read as there are slots
 * for, the others wait until it goes on; then all are answered. */
static void a_store_that_stands_still(void **state)
{
    (void)state;
    enum { N = 59 };
    struct call *k[N];
    up_with_talkers("--max-running=1", N);
    struct call *first = endless(0);
    stream_until(first, 1);
    for (unsigned i = 1; i < N; i++)
        k[i] = generate_start(client(),
                              "'session':'t%u','prompt':'b','max_tokens':1,'ignore_eos':true", i);
    until_in_line(N - 1);
    redis_signal(&shared, SIGSTOP);
    call_abort(first);
    /* One that runs has two slots, and one that waits for the store has one: of three, two of those
     * leave too few for the next. */
    until_metric(client(), "slate_requests_committing", 2);
    assert_true(metric(client(), "slate_requests_running") == 0);
    assert_true(metric(client(), "slate_requests_queued") == N - 2);
    reply_free(expect(get(client(), "/livez"), 200));
    redis_signal(&shared, SIGCONT);
    for (unsigned i = 1; i < N; i++) {
        struct gen g;
        generate_finish(k[i], &g);
        gen_done(&g);
    }
    until_metric(client(), "slate_requests_committing", 0);
    reply_free(expect(get(client(), "/livez"), 200));
    node_done(&node);
    redis_done(&shared);
}

/* Nobody waits for those that wait for the store while these are no more than may run: a sync has
 * many of them, and the engine is busy meanwhile. */
static void the_engine_is_busy_meanwhile(void **state)
{
    (void)state;
    enum { RUNNING = 4, N = 2 * RUNNING };
    struct call *k[N];
    up_with_talkers("--max-running=4", N);
    for (unsigned i = 0; i < N; i++) {
        k[i] = endless(i);
        if (i < RUNNING)
            stream_until(k[i], 1);
    }
    until_in_line(RUNNING);
    redis_signal(&shared, SIGSTOP);
    for (unsigned i = 0; i < RUNNING; i++)
        call_abort(k[i]);
    until_metric(client(), "slate_requests_committing", RUNNING);
    for (unsigned i = RUNNING; i < N; i++)
        stream_until(k[i], 1);
    assert_true(metric(client(), "slate_requests_running") == RUNNING);
    assert_true(metric(client(), "slate_requests_committing") == RUNNING);
    redis_signal(&shared, SIGCONT);
    for (unsigned i = RUNNING; i < N; i++)
        call_abort(k[i]);
    for (unsigned i = 0; i < N; i++) {
        char id[8];
        snprintf(id, sizeof id, "t%u", i);
        until_free(client(), id);
        assert_int_equal(session_version(client(), id), 2);
    }
    node_done(&node);
    redis_done(&shared);
}

#define TEST(f) cmocka_unit_test_teardown(f, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_fork_of_that_version),
        TEST(a_fork_beside_a_deletion),
        TEST(one_place_for_two),
        TEST(being_made),
        TEST(made_by_one_who_goes),
        TEST(replaced_when_its_maker_goes),
        TEST(a_deletion_fails),
        TEST(timeouts_make_room),
        cmocka_unit_test_teardown(a_store_that_stands_still, clean_both),
        cmocka_unit_test_teardown(the_engine_is_busy_meanwhile, clean_both)};
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
