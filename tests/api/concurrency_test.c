/* concurrency_test.c: many clients at once: the same text as alone (promise 2, seen from outside),
 * places that are freed when a client goes, admission limits, slow readers, the drain. */
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
#include "tests/support/api.h"
#include "tests/support/redis.h"
#include "tests/support/server.h"

#define ENDLESS "'ignore_eos':true,'temperature':0,'max_tokens':1000000"

static struct api a;

static void start(const char *const *options)
{
    api_start(&a, options);
}

static int stop(void **state)
{
    (void)state;
    if (a.server)
        api_stop(&a);
    return 0;
}

/* Ids that are no text, different for each i. */
static char *prompt_of(uint32_t i, size_t n)
{
    uint32_t *ids = sl_malloc(n * sizeof *ids);
    assert_non_null(ids);
    for (size_t k = 0; k < n; k++)
        ids[k] = (uint32_t)(257 + (i * 131 + k * 17) % 1700);
    char *text = ids_json(ids, n);
    sl_free(ids);
    return text;
}

static struct gen finished(struct call *k)
{
    struct gen g;
    generate_finish(k, &g);
    return g;
}

/* --- promise 2 ---------------------------------------------------------------------------------*/

enum { N_STREAMS = 32 };

static struct call *nth(struct client *c, unsigned i)
{
    static const char *const how[] = {"'temperature':0", "'temperature':1,'top_p':0.9",
                                      "'temperature':0.7,'top_k':50,'frequency_penalty':0.3",
                                      "'temperature':1.2,'stop':[' the ','. ']"};
    char *prompt = prompt_of(i, 1 + i * 7 % 90);
    struct call *k =
        generate_start(c,
                       "'prompt':%s,'max_tokens':%u,'seed':%u,'stream':%s,'logprobs':3,"
                       "'return_tokens':true,'ignore_eos':true,%s",
                       prompt, 20 + i % 9, i, i % 3 ? "true" : "false", quoted(how[i % 4]));
    sl_free(prompt);
    return k;
}

static void check_same_as_alone(const char *const *options)
{
    struct gen alone[N_STREAMS];
    struct call *k[N_STREAMS];
    start(options);
    for (unsigned i = 0; i < N_STREAMS; i++)
        alone[i] = finished(nth(a.client, i));
    double rows = metric(a.client, "slate_engine_decode_tokens_total"),
           steps = metric(a.client, "slate_engine_steps_total");
    for (unsigned i = 0; i < N_STREAMS; i++)
        k[i] = nth(a.client, i);
    for (unsigned i = N_STREAMS; i-- > 0;) {
        struct gen g = finished(k[i]);
        output_same(&alone[i].o, &g.o);
        gen_done(&g);
        gen_done(&alone[i]);
    }
    /* They did run together: more rows than steps. */
    rows = metric(a.client, "slate_engine_decode_tokens_total") - rows;
    steps = metric(a.client, "slate_engine_steps_total") - steps;
    assert_true(rows > 1.5 * steps);
}

static void test_same_as_alone(void **state)
{
    (void)state;
    check_same_as_alone((const char *const[]){"--max-running=32", "--threads=2", NULL});
}

static void test_same_as_alone_with_few_places(void **state)
{
    (void)state;
    check_same_as_alone((const char *const[]){"--max-running=5", "--max-waiting=64", NULL});
}

/* The same stream on servers with other numbers of threads and places. */
static void test_same_on_every_server(void **state)
{
    (void)state;
    struct gen first = {0};
    static const char *const threads[] = {"--threads=1", "--threads=2", "--threads=3"};
    for (size_t i = 0; i < 3; i++) {
        start((const char *const[]){threads[i], NULL});
        struct call *beside = NULL;
        if (i) {
            char *prompt = prompt_of(99, 500 * i);
            beside = generate_start(a.client, "'prompt':%s," ENDLESS ",'stream':true", prompt);
            sl_free(prompt);
        }
        struct gen g = finished(nth(a.client, 6));
        if (i) {
            output_same(&first.o, &g.o);
            gen_done(&g);
            call_abort(beside);
        } else {
            first = g;
        }
        api_stop(&a);
    }
    gen_done(&first);
}

/* --- clients that go away ----------------------------------------------------------------------*/

static struct call *endless(struct client *c)
{
    return generate_start(c, "'prompt':'a'," ENDLESS ",'stream':true");
}

static void test_gone_frees_its_place(void **state)
{
    (void)state;
    start((const char *const[]){"--max-running=1", "--max-waiting=3", "--max-tokens-limit=1000000",
                                NULL});
    struct client *c = a.client;
    struct call *first = endless(c), *queued[3];
    call_until_events(first, 1);
    for (int i = 0; i < 3; i++)
        queued[i] = endless(c);
    until_metric(c, "slate_requests_queued", 3);
    call_abort(queued[1]); /* while queued */
    until_metric(c, "slate_requests_queued", 2);
    call_abort(first); /* while it runs: the next one comes in */
    call_until_events(queued[0], 1);
    until_metric(c, "slate_requests_queued", 1);
    assert_true(metric(c, "slate_requests_running") == 1);
    call_abort(queued[2]);
    call_abort(queued[0]);
    until_metric(c, "slate_requests_running", 0);
    until_metric(c, "slate_requests_queued", 0);
    until_metric(c, "slate_slots_used", 0);
    assert_true(metric(c, "slate_turns_aborted_total") == 4);
    struct gen g;
    generate(c, &g, "'prompt':'a','max_tokens':1");
    gen_done(&g);
}

/* A session at rest has one slot; in a turn three times its state, and not more. */
static void test_slots_of_a_turn(void **state)
{
    (void)state;
    enum { N = 3 };
    struct call *k[N];
    start((const char *const[]){"--max-tokens-limit=1000000", NULL});
    struct client *c = a.client;
    for (int i = 0; i < N; i++)
        reply_free(expect(post(c, "/v1/sessions", "{'id':'s%d','prompt':'a'}", i), 201));
    until_metric(c, "slate_slots_used", N);
    for (int i = 0; i < N; i++) {
        k[i] = generate_start(c, "'session':'s%d','prompt':'b'," ENDLESS ",'stream':true", i);
        call_until_events(k[i], 20);
    }
    assert_true(metric(c, "slate_slots_used") == 3 * N);
    for (int i = 0; i < N; i++)
        call_abort(k[i]);
    until_metric(c, "slate_slots_used", N);
}

/* While its prompt is read, whole or as a stream. */
static void test_gone_in_prefill(void **state)
{
    (void)state;
    enum { N = 200000 };
    start((const char *const[]){"--max-running=1", "--max-queued-prefill=1000000", NULL});
    struct client *c = a.client;
    char *prompt = prompt_of(3, N);
    for (int i = 0; i < 2; i++) {
        struct call *k = generate_start(c, "'prompt':%s,'max_tokens':1,'stream':%s", prompt,
                                        i ? "true" : "false");
        until_metric(c, "slate_requests_running", 1);
        call_abort(k);
        until_metric(c, "slate_requests_running", 0);
        assert_true(metric(c, "slate_queued_prefill_tokens") == 0);
    }
    assert_true(metric(c, "slate_engine_prefill_tokens_total") < N);
    sl_free(prompt);
}

/* Also as a session's first prompt: nothing is left. */
static void test_gone_while_a_session_is_made(void **state)
{
    (void)state;
    start((const char *const[]){"--max-queued-prefill=1000000", NULL});
    struct client *c = a.client;
    char *prompt = prompt_of(4, 200000);
    struct call *k = call_post(c, "/v1/sessions", "{'id':'half','prompt':%s}", prompt);
    until_metric(c, "slate_requests_running", 1);
    expect_error(post(c, "/v1/generate", "{'session':'half','prompt':'a'}"), 409, "session_busy",
                 "session");
    call_abort(k);
    until_metric(c, "slate_sessions", 0);
    expect_error(get(c, "/v1/sessions/half"), 404, "session_not_found", "session");
    sl_free(prompt);
}

/* --- admission ---------------------------------------------------------------------------------*/

static void expect_full(struct reply *r)
{
    const char *after = reply_header(r, "Retry-After");
    assert_non_null(after);
    assert_true(strtol(after, NULL, 10) >= 1);
    expect_error(r, 503, "server_full", NULL);
}

static void test_max_waiting(void **state)
{
    (void)state;
    start((const char *const[]){"--max-running=2", "--max-waiting=1", "--max-tokens-limit=1000000",
                                NULL});
    struct client *c = a.client;
    struct call *k[3];
    for (int i = 0; i < 3; i++)
        k[i] = endless(c);
    until_metric(c, "slate_requests_running", 2);
    until_metric(c, "slate_requests_queued", 1);
    expect_full(post(c, "/v1/generate", "{'prompt':'a'}"));
    expect_full(post(c, "/v1/generate", "{'prompt':'a','stream':true}"));
    expect_full(post(c, "/v1/chat/completions", "{'messages':[{'role':'user','content':'a'}]}"));
    expect_full(post(c, "/v1/sessions", "{'id':'s','prompt':'a'}"));
    expect_error(get(c, "/v1/sessions/s"), 404, "session_not_found", "session");
    reply_free(expect(post(c, "/v1/sessions", "{'id':'s'}"), 201)); /* runs nothing */
    assert_true(metric(c, "slate_turns_refused_total") == 4);
    call_abort(k[2]);
    until_metric(c, "slate_requests_queued", 0);
    struct call *next = endless(c); /* and there is room again */
    until_metric(c, "slate_requests_queued", 1);
    call_abort(k[0]);
    call_until_events(next, 1);
    call_abort(next);
    call_abort(k[1]);
}

/* Of n turns one is answered, and the others are refused. */
static void one_is_read(struct call *const *k, size_t n)
{
    size_t n_read = 0;
    for (size_t i = 0; i < n; i++) {
        struct reply *r = call_finish(k[i]);
        n_read += r->status == 200;
        if (r->status == 200)
            reply_free(r);
        else
            expect_full(r);
    }
    assert_int_equal(n_read, 1);
}

/* One whose text is still being tokenised is not in the engine, and counts. */
static void test_max_waiting_of_long_texts(void **state)
{
    (void)state;
    enum { LONG = 150000, ASK = 4 };
    struct call *k[ASK];
    char *text = repeated("", " aaaaaa", LONG / 7, "");
    start((const char *const[]){"--max-running=1", "--max-waiting=0", NULL});
    for (int i = 0; i < ASK; i++)
        k[i] = generate_start(a.client, "'prompt':'%s','max_tokens':1", text);
    one_is_read(k, ASK);
    sl_free(text);
}

/* Of two long ones that are tokenised beside each other one is too much, which is known afterwards
 * only: it was refused, and is no failure. */
static void test_max_queued_prefill_of_long_texts(void **state)
{
    (void)state;
    enum { LONG = 80000, ASK = 2 };
    struct call *k[ASK];
    char *text = repeated("", " the", LONG / 4, "");
    start((const char *const[]){"--max-queued-prefill=30000", NULL});
    for (int i = 0; i < ASK; i++)
        k[i] = generate_start(a.client, "'prompt':'%s','max_tokens':1", text);
    one_is_read(k, ASK);
    assert_true(metric(a.client, "slate_turns_refused_total") == 1);
    assert_true(metric(a.client, "slate_turns_failed_total") == 0);
    sl_free(text);
}

static void test_max_queued_prefill(void **state)
{
    (void)state;
    start((const char *const[]){"--max-running=1", "--max-waiting=8", "--max-queued-prefill=1000",
                                "--max-tokens-limit=1000000", NULL});
    struct client *c = a.client;
    char *p1001 = prompt_of(1, 1000), *p600 = prompt_of(2, 600), *p399 = prompt_of(3, 399),
         *p398 = prompt_of(3, 398);
    struct call *running = endless(c);
    call_until_events(running, 1);
    until_metric(c, "slate_queued_prefill_tokens", 0); /* it has been read */
    struct call *waits = generate_start(c, "'prompt':%s,'max_tokens':1", p600);
    until_metric(c, "slate_queued_prefill_tokens", 601); /* with the begin token */
    expect_full(post(c, "/v1/generate", "{'prompt':%s,'max_tokens':1}", p399));
    struct call *fits = generate_start(c, "'prompt':%s,'max_tokens':1", p398);
    until_metric(c, "slate_queued_prefill_tokens", 1000);
    expect_full(post(c, "/v1/generate", "{'prompt':'a','max_tokens':1}"));
    /* What can never be admitted is the request's fault. */
    expect_error(post(c, "/v1/generate", "{'prompt':%s,'max_tokens':1}", p1001), 413, "too_large",
                 "prompt");
    call_abort(running);
    reply_free(expect(call_finish(waits), 200));
    reply_free(expect(call_finish(fits), 200));
    until_metric(c, "slate_queued_prefill_tokens", 0);
    sl_free(p1001);
    sl_free(p600);
    sl_free(p399);
    sl_free(p398);
}

/* One that waits longer than it may. */
static void test_timeout_in_the_queue(void **state)
{
    (void)state;
    start((const char *const[]){"--max-running=1", "--max-tokens-limit=1000000", NULL});
    struct client *c = a.client;
    struct call *running = endless(c);
    call_until_events(running, 1);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'w'}"), 201));
    struct gen g;
    generate(c, &g, "'session':'w','prompt':'a','max_tokens':5,'max_time_ms':30");
    assert_string_equal(str_at(g.r->json, "finish_reason"), "timeout");
    assert_string_equal(g.o.text, "");
    assert_int_equal(int_at(g.r->json, "version"), 0);
    gen_done(&g);
    assert_false(call_reply(running)->over);
    call_abort(running);
}

static const char *const timings[] = {"timings.queue_ms", "timings.prefill_ms",
                                      "timings.decode_ms"};

/* A turn of as long as it may be, whose session is not there before so much time has passed. */
static void turn_after(struct redis *redis, int64_t late_ms, int max_time_ms, struct gen *ret)
{
    redis_signal(redis, SIGSTOP);
    struct call *k = generate_start(
        a.client, "'session':'w','prompt':'a'," ENDLESS ",'max_time_ms':%d", max_time_ms);
    for (int64_t end = client_now_ms() + late_ms; client_now_ms() < end;)
        reply_free(expect(get(a.client, "/livez"), 200));
    redis_signal(redis, SIGCONT);
    *ret = finished(k);
    assert_string_equal(str_at(ret->r->json, "finish_reason"), "timeout");
}

/* The time is the request's: what its session takes to come is not there for the engine. */
static void test_timeout_counts_from_start(void **state)
{
    (void)state;
    enum { LATE_MS = 1200, MAX_MS = 1600 };
    struct redis redis;
    struct gen g;
    double engine_ms = 0;
    redis_init(&redis, "timeout", NULL);
    start((const char *const[]){"--store", redis.spec, "--max-tokens-limit=1000000", NULL});
    reply_free(expect(post(a.client, "/v1/sessions", "{'id':'w'}"), 201));
    turn_after(&redis, LATE_MS, 100, &g); /* none is left */
    assert_int_equal(int_at(g.r->json, "timings.computed_tokens"), 0);
    assert_int_equal(int_at(g.r->json, "version"), 0);
    gen_done(&g);
    turn_after(&redis, LATE_MS, MAX_MS, &g);
    for (size_t i = 0; i < sizeof timings / sizeof *timings; i++)
        engine_ms += num_at(g.r->json, timings[i]);
    assert_true(engine_ms < LATE_MS);
    gen_done(&g);
    api_stop(&a);
    a = (struct api){0};
    redis_done(&redis);
}

/* --- fairness ----------------------------------------------------------------------------------*/

/* A stream beside a long prompt goes on: it gets tokens while the prompt is read. */
static void test_a_long_prompt_stalls_nobody(void **state)
{
    (void)state;
    start(
        (const char *const[]){"--max-tokens-limit=1000000", "--max-queued-prefill=1000000", NULL});
    struct client *c = a.client;
    char *prompt = prompt_of(5, 8000);
    struct call *stream = endless(c);
    call_until_events(stream, 1);
    double decoded = metric(c, "slate_engine_decode_tokens_total");
    struct call *k = generate_start(c, "'prompt':%s,'max_tokens':1", prompt);
    reply_free(expect(call_finish(k), 200));
    decoded = metric(c, "slate_engine_decode_tokens_total") - decoded;
    assert_true(decoded > 8000 / 512);
    call_abort(stream);
    sl_free(prompt);
}

/* A reader that reads nothing costs the others nothing, and gets all of it in the end. */
static void test_slow_reader(void **state)
{
    (void)state;
    enum { N = 6000 }; /* more than kernels hold: some 7 MB */
    start((const char *const[]){"--write-high=64KiB", "--write-low=16KiB", "--tokenizer=bytes",
                                "--model", seeded_bytes_model(), NULL});
    struct client *slow = client_open(a.server->base), *c = a.client;
    client_small_buffers(slow);
    struct call *k = generate_start(
        slow,
        "'prompt':'once','seed':4,'ignore_eos':true,'max_tokens':%d,'stream':true,'logprobs':20,"
        "'return_tokens':true",
        N);
    call_until_events(k, 1);
    /* From here on nobody reads it. Its turn goes on to the end, which is not told to it. */
    for (int i = 0; i < 20; i++) {
        struct gen g;
        generate(c, &g, "'prompt':'b','max_tokens':20,'ignore_eos':true,'seed':%d", i);
        gen_done(&g);
    }
    until_metric(c, "slate_requests_running", 0);
    assert_true(metric(c, "slate_http_requests_in_flight") >= 2); /* it and the scrape itself */
    assert_false(call_reply(k)->over);
    assert_true(call_reply(k)->n_events < N / 2);
    /* What was not taken lies as tokens in the turn, not as text in buffers. */
    struct gen g = finished(k), whole;
    generate(c, &whole,
             "'prompt':'once','seed':4,'ignore_eos':true,'max_tokens':%d,'logprobs':20,"
             "'return_tokens':true",
             N);
    output_same(&whole.o, &g.o);
    gen_done(&whole);
    gen_done(&g);
    client_close(slow);
}

/* One that never reads again is cut off. */
static void test_dead_reader(void **state)
{
    (void)state;
    start((const char *const[]){"--write-timeout=300ms", "--max-tokens-limit=1000000",
                                "--write-high=64KiB", "--write-low=16KiB", NULL});
    struct client *dead = client_open(a.server->base), *c = a.client;
    client_small_buffers(dead);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'d'}"), 201));
    struct call *k =
        generate_start(dead, "'session':'d','prompt':'a'," ENDLESS ",'stream':true,'logprobs':20");
    call_until_events(k, 1);
    until_metric(c, "slate_requests_running", 0);
    until_free(c, "d");
    struct reply *r = session_get(c, "d");
    assert_int_equal(int_at(r->json, "version"), 0); /* rolled back */
    reply_free(r);
    call_abort(k);
    client_close(dead);
}

/* --- drain -------------------------------------------------------------------------------------*/

static void expect_draining(struct reply *r)
{
    assert_non_null(reply_header(r, "Retry-After"));
    expect_error(r, 503, "draining", NULL);
}

static bool is_draining(struct client *c)
{
    struct reply *r = get(c, "/readyz");
    bool yes = r->status == 503;
    if (yes)
        expect_draining(r);
    else
        reply_free(expect(r, 200));
    return yes;
}

static void until_draining(struct client *c)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    while (!is_draining(c))
        if (client_now_ms() > deadline)
            fail_msg("the drain does not begin");
}

/* SIGTERM: what was admitted goes on to its end, nothing new begins, then exit 0. */
static void test_drain(void **state)
{
    (void)state;
    start((const char *const[]){"--max-running=1", "--max-tokens-limit=1000000",
                                "--drain-timeout=10m", NULL});
    struct client *c = a.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'s','prompt':'a'}"), 201));
    struct call *running =
        generate_start(c, "'session':'s','prompt':'b'," ENDLESS ",'stream':true");
    call_until_events(running, 1);
    struct call *waiting = generate_start(c, "'prompt':'b','max_tokens':300,'ignore_eos':true,"
                                             "'stream':true");
    until_metric(c, "slate_requests_queued", 1);
    kill(a.server->pid, SIGTERM);
    until_draining(c);
    expect_draining(post(c, "/v1/generate", "{'prompt':'a'}"));
    expect_draining(post(c, "/v1/sessions", "{}"));
    expect_draining(post(c, "/v1/sessions/s/fork", "{}"));
    reply_free(expect(get(c, "/livez"), 200));
    reply_free(expect(get(c, "/v1/sessions/s"), 200)); /* reading goes on */
    assert_false(call_reply(running)->over);
    reply_free(expect(post(c, "/v1/sessions/s/cancel", "{}"), 200));
    struct gen g = finished(running);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "cancelled");
    gen_done(&g);
    g = finished(waiting);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "length");
    gen_done(&g);
    client_close(a.client);
    assert_int_equal(server_end(a.server, 0), 0);
    a.server = NULL;
}

/* The limit: what runs ends `paused`, as a proper stream. */
static void test_drain_limit(void **state)
{
    (void)state;
    start((const char *const[]){"--max-tokens-limit=1000000", "--drain-timeout=100ms", NULL});
    struct client *c = a.client;
    struct call *k = endless(c), *whole = generate_start(c, "'prompt':'a'," ENDLESS);
    call_until_events(k, 1);
    until_metric(c, "slate_requests_running", 2);
    reply_free(expect(post(c, "/v1/admin/drain", "{}"), 202));
    struct gen g = finished(k);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "paused");
    assert_true(g.o.n_text > 0);
    gen_done(&g);
    g = finished(whole);
    assert_string_equal(str_at(g.o.final, "finish_reason"), "paused");
    gen_done(&g);
    client_close(a.client);
    assert_int_equal(server_end(a.server, 0), 0);
    a.server = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_same_as_alone, stop),
        cmocka_unit_test_teardown(test_same_as_alone_with_few_places, stop),
        cmocka_unit_test_teardown(test_same_on_every_server, stop),
        cmocka_unit_test_teardown(test_gone_frees_its_place, stop),
        cmocka_unit_test_teardown(test_slots_of_a_turn, stop),
        cmocka_unit_test_teardown(test_gone_in_prefill, stop),
        cmocka_unit_test_teardown(test_gone_while_a_session_is_made, stop),
        cmocka_unit_test_teardown(test_max_waiting, stop),
        cmocka_unit_test_teardown(test_max_waiting_of_long_texts, stop),
        cmocka_unit_test_teardown(test_max_queued_prefill, stop),
        cmocka_unit_test_teardown(test_max_queued_prefill_of_long_texts, stop),
        cmocka_unit_test_teardown(test_timeout_in_the_queue, stop),
        cmocka_unit_test_teardown(test_timeout_counts_from_start, stop),
        cmocka_unit_test_teardown(test_a_long_prompt_stalls_nobody, stop),
        cmocka_unit_test_teardown(test_slow_reader, stop),
        cmocka_unit_test_teardown(test_dead_reader, stop),
        cmocka_unit_test_teardown(test_drain, stop),
        cmocka_unit_test_teardown(test_drain_limit, stop),
    };
    return cmocka_run_group_tests_name("concurrency", tests, NULL, NULL);
}
