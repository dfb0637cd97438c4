/* paging_test.c: more sessions than memory holds (issue 3, point 3), and everything at once.
 *
 * Round robin: 64 places serve SESSIONS sessions, RUNNING at once; each session is told something
 * of its own and asked later, when it has been out of memory several times. What it says is
 * compared with the same session on a server that has room for all. The process's memory stays
 * flat.
 *
 * `paging_test 10000` (make soak) does it with so many. */
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
#include "tests/support/process.h"

enum { RUNNING = 32, PLACES = 64, ROUNDS = 3 };

static size_t n_sessions = 600;

static struct node small, large;

/* --- round robin -------------------------------------------------------------------------------*/

static struct call *turn(struct node *n, size_t i, unsigned round)
{
    char id[32], prompt[64];
    snprintf(id, sizeof id, "s%zu", i);
    snprintf(prompt, sizeof prompt, "%zu is the number of round %u.", i * 7919 + round, round);
    return generate_start(
        n->a.client,
        "'session':'%s','prompt':'%s','seed':%zu,'max_tokens':6,'ignore_eos':true,"
        "'logprobs':1,'return_tokens':true",
        id, prompt, i);
}

static struct call *create(struct node *n, size_t i)
{
    return call_post(n->a.client, "/v1/sessions", "{'id':'s%zu','prompt':'I am %zu.'}", i, i);
}

/* One turn of every session, RUNNING at once; ret (may be NULL) takes what they said. */
static void one_round(struct node *n, unsigned round, struct gen *ret)
{
    struct call *k[RUNNING];
    for (size_t i = 0; i < n_sessions + RUNNING; i++) {
        if (i >= RUNNING) {
            struct gen g;
            generate_finish(k[i % RUNNING], &g);
            if (ret)
                ret[i - RUNNING] = g;
            else
                gen_done(&g);
        }
        if (i < n_sessions)
            k[i % RUNNING] = turn(n, i, round);
    }
}

static void all_created(struct node *n)
{
    struct call *k[RUNNING];
    for (size_t i = 0; i < n_sessions + RUNNING; i++) {
        if (i >= RUNNING)
            reply_free(expect(call_finish(k[i % RUNNING]), 201));
        if (i < n_sessions)
            k[i % RUNNING] = create(n, i);
    }
}

static void round_robin(void **state)
{
    (void)state;
    char places[64];
    snprintf(places, sizeof places, "--sessions-in-memory=%zu", n_sessions + n_sessions / 8 + 8);
    node_init(&small, "small",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=64", NULL});
    node_init(&large, "large",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--durability=drain", places, NULL});
    node_start(&small);
    node_start(&large);
    client_unrecorded(small.a.client);
    client_unrecorded(large.a.client);
    struct gen *came = sl_calloc(n_sessions, sizeof *came);
    struct gen *stayed = sl_calloc(n_sessions, sizeof *stayed);
    size_t bytes[ROUNDS];
    assert_true(came && stayed);
    all_created(&small);
    all_created(&large);
    for (unsigned round = 0; round < ROUNDS; round++) {
        one_round(&small, round, round == ROUNDS - 1 ? came : NULL);
        one_round(&large, round, round == ROUNDS - 1 ? stayed : NULL);
        bytes[round] = process_resident(small.a.server->pid);
    }
    for (size_t i = 0; i < n_sessions; i++) {
        output_same(&came[i].o, &stayed[i].o);
        /* Only its prompt and its own tokens were computed, not what it had read before. */
        assert_int_equal(int_at(came[i].r->json, "timings.computed_tokens"),
                         int_at(stayed[i].r->json, "timings.computed_tokens"));
        if (i > 0) /* else nothing was remembered */
            assert_false(came[i].o.n_tokens == came[i - 1].o.n_tokens &&
                         json_equal(came[i].o.logprobs, came[i - 1].o.logprobs));
        gen_done(&came[i]);
        gen_done(&stayed[i]);
    }
    print_message(
        "%zu sessions in %d places: %.0f loads, %.0f evictions; resident %.1f, %.1f, %.1f "
        "MiB\n",
        n_sessions, PLACES, metric(small.a.client, "slate_session_loads_total"),
        metric(small.a.client, "slate_session_evictions_total"), (double)bytes[0] / 1048576,
        (double)bytes[1] / 1048576, (double)bytes[2] / 1048576);
    assert_true(metric(small.a.client, "slate_session_loads_total") >=
                (double)(n_sessions - PLACES) * ROUNDS);
    assert_true(metric(small.a.client, "slate_sessions_in_memory") <= PLACES);
    assert_true(metric(large.a.client, "slate_session_loads_total") == 0);
    if (process_figures_count())
        assert_true(bytes[2] < bytes[1] + bytes[1] / 20 + (2u << 20));
    sl_free(came);
    sl_free(stayed);
    node_done(&large);
    /* And again after a restart: the heads are there at once, the states come when they are used.
     */
    node_kill(&small);
    node_start(&small);
    client_unrecorded(small.a.client);
    assert_true(metric(small.a.client, "slate_sessions") == (double)n_sessions);
    assert_true(metric(small.a.client, "slate_sessions_in_memory") == 0);
    assert_int_equal(session_version(small.a.client, "s1"), 1 + ROUNDS);
    node_done(&small);
}

/* --- everything at once ------------------------------------------------------------------------*/

static uint64_t random_state = 88172645463325252u;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

enum { NAMES = 24, CALLS = 24 };

static struct bytes any_snapshot;

/* One request of any kind, on a session that may be there or not, busy or not. */
static struct call *any_call(struct client *c)
{
    char id[32], path[80];
    snprintf(id, sizeof id, "n%u", (unsigned)draw(NAMES));
    switch (draw(14)) {
    case 0:
        return call_post(c, "/v1/sessions", "{'id':'%s','prompt':'Once'}", id);
    case 1:
        return call_post(c, "/v1/sessions", "{'id':'%s','metadata':{'a':1}}", id);
    case 2:
        return call_start(c, "DELETE", session_path(id, ""), NULL, NULL, 0);
    case 3:
        return call_start(c, "GET", session_path(id, "/snapshot"), NULL, NULL, 0);
    case 4:
        return call_start(c, "PUT", session_path(id, "/snapshot"),
                          draw(2) ? "Content-Type: application/vnd.safetensors"
                                  : "Content-Type: application/vnd.safetensors\nIf-Match: *",
                          any_snapshot.p, any_snapshot.n);
    case 5:
        return pause_start(c, id);
    case 6:
        return call_start(c, "POST", session_path(id, "/resume"), NULL, NULL, 0);
    case 7:
        return call_start(c, "POST", session_path(id, "/cancel"), NULL, NULL, 0);
    case 8:
        snprintf(path, sizeof path, "/v1/sessions/n%u/fork", (unsigned)draw(NAMES));
        return call_post(c, path, "{'id':'%s'}", id);
    case 9:
        snprintf(path, sizeof path, "/v1/sessions/%s", id);
        return call_start(c, "PATCH", path, NULL, "{\"metadata\":{\"b\":2}}", 20);
    case 10:
        return call_post(c, "/v1/generate", "{'session':'%s','resume':true}", id);
    case 11:
        return call_post(c, "/v1/generate",
                         "{'session':'%s','prompt':'and','max_tokens':%u,'stream':true}", id,
                         (unsigned)draw(60));
    case 12:
        return call_post(c, "/v1/generate", "{'prompt':'x','max_tokens':2,'return_state':true}");
    default:
        return call_post(c, "/v1/generate", "{'session':'%s','prompt':'so','max_tokens':%u}", id,
                         (unsigned)draw(20));
    }
}

/* Nothing of this may be answered with a 5xx but for room, or not at all. */
static void take_any(struct call *k)
{
    struct reply *r = call_finish(k);
    if (!r->whole || (r->status >= 500 && r->status != 503))
        fail_msg("%s %s: status %ld, curl %d: %s", r->method, r->path, r->status, r->curl_code,
                 r->body);
    reply_free(r);
}

static void at_once(const char *name, const char *const *options, size_t n_calls)
{
    struct call *k[CALLS] = {0};
    node_init(&small, name, options);
    for (int round = 0; round < 2; round++) {
        node_start(&small);
        client_unrecorded(small.a.client);
        if (!any_snapshot.p) {
            reply_free(
                expect(post(small.a.client, "/v1/sessions", "{'id':'any','prompt':'one'}"), 201));
            any_snapshot = snapshot_get(small.a.client, "any", "");
        }
        for (size_t i = 0; i < n_calls; i++) {
            size_t at = (size_t)draw(CALLS);
            if (k[at] && draw(8) == 0)
                call_abort(k[at]); /* the client goes */
            else if (k[at])
                take_any(k[at]);
            k[at] = any_call(small.a.client);
        }
        /* It ends in the middle of it. */
        node_signal(&small, SIGTERM);
        for (size_t i = 0; i < CALLS; i++) {
            if (k[i])
                reply_free(call_finish(k[i]));
            k[i] = NULL;
        }
        node_wait(&small, SIGTERM);
    }
    node_start(&small);
    struct reply *r = expect(get(small.a.client, "/v1/sessions"), 200);
    for (size_t i = 0; i < len_at(r->json, "data"); i++) {
        char path[32];
        snprintf(path, sizeof path, "data.%zu.id", i);
        struct bytes b = snapshot_get(small.a.client, str_at(r->json, path), "");
        sl_free(b.p);
    }
    reply_free(r);
    node_done(&small);
    sl_free(any_snapshot.p);
    any_snapshot = (struct bytes){0};
}

static void everything_at_once(void **state)
{
    (void)state;
    at_once("chaos",
            (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                  "--sessions-in-memory=4", "--max-running=3", "--replay-limit=20",
                                  "--drain-timeout=0s", NULL},
            400);
}

static void everything_at_once_drain(void **state)
{
    (void)state;
    at_once("chaos-drain",
            (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                  "--sessions-in-memory=3", "--durability=drain",
                                  "--drain-timeout=0s", NULL},
            300);
}

static int after(void **state)
{
    (void)state;
    node_abandon(&small);
    node_abandon(&large);
    return 0;
}

/* --- one that cannot go ------------------------------------------------------------------------*/

/* A paused prompt that is too long for a snapshot: it was not read, as another turn had the only
 * place in the engine. */
static void pause_too_long(struct client *c, const char *id)
{
    enum { LONG = 6000000 }; /* "97," each: more than the 16 MiB of a continuation */
    char *text = repeated("", "a", LONG, "");
    struct call *first =
        stream_start(c, "'prompt':'x','max_tokens':1000000,'ignore_eos':true,'return_tokens':true");
    stream_until(first, 1);
    struct call *k = generate_start(c, "'session':'%s','prompt':'%s','max_tokens':1", id, text);
    until_metric(c, "slate_requests_queued", 1);
    expect_error(session_post(c, id, "/pause"), 413, "snapshot_too_large", NULL);
    reply_free(expect(call_finish(k), 200));
    call_abort(first);
    until_metric(c, "slate_requests_running", 0);
    sl_free(text);
}

/* That is told to who pauses it. Others page through the places that are left, and it is not tried
 * again and again to make room by it; where all places are such, there is room for nobody. */
static void what_cannot_be_written_down_stays(void **state)
{
    (void)state;
    struct client *c;
    node_init(&small, "small",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=2", "--durability=drain",
                                    "--max-running=1", "--max-queued-prefill=8000000",
                                    "--max-tokens-limit=1000000", NULL});
    node_start(&small);
    c = small.a.client;
    client_unrecorded(c);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'long'}"), 201));
    pause_too_long(c, "long");
    double failed = metric(c, "slate_session_failures_total");
    for (size_t i = 0; i < 12; i++) {
        if (i < 4)
            reply_free(expect(call_finish(create(&small, i)), 201));
        struct gen g;
        generate_finish(turn(&small, i % 4, 0), &g);
        gen_done(&g);
    }
    assert_true(session_in_memory(c, "long"));
    assert_true(metric(c, "slate_session_failures_total") == failed);
    pause_too_long(c, "s0");
    expect_error(call_finish(turn(&small, 1, 1)), 503, "server_full", NULL);
    reply_free(expect(del(c, session_path("s0", "")), 200));
    struct gen g;
    generate_finish(turn(&small, 1, 1), &g);
    gen_done(&g);
    reply_free(expect(del(c, session_path("long", "")), 200));
    node_done(&small);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(round_robin, after),
        cmocka_unit_test_teardown(what_cannot_be_written_down_stays, after),
        cmocka_unit_test_teardown(everything_at_once, after),
        cmocka_unit_test_teardown(everything_at_once_drain, after),
    };
    if (argc > 1)
        n_sessions = strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("paging", tests, NULL, NULL);
}
