/* fleet_trouble_test.c: a fleet whose Redis is restarted, slow, full, a replica, out of reach,
 * empty all at once, or holds something else: turns fail with a 503 that says so, and service comes
 * back by itself; what Redis has lost is lost, and no memory of it gets into what comes after.
 *
 * What a session says is compared with a mirror (fleet.h). Nothing sleeps. */
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
#include "tests/support/fleet.h"
#include "tests/support/node.h"

static struct twin t;

/* --- trouble with Redis ------------------------------------------------------------------------*/

static struct call *plain_turn(unsigned node, unsigned seed)
{
    return turn_start(fleet_at(&t.fleet, node), "trouble", "Once", seed);
}

/* A turn is refused with that, and the session is as it was. Gives the message (16 calls long). */
static void is_refused(unsigned node, const char *code, const char *text)
{
    struct reply *r = expect(call_finish(plain_turn(node, 99)), 503);
    const char *message = str_at(r->json, "error.message");
    if (strcmp(str_at(r->json, "error.code"), code) != 0 || !strstr(message, text))
        fail_msg("'%s' instead of %s, '%s'", message, code, text);
    assert_non_null(reply_header(r, "Retry-After"));
    reply_free(r);
}

/* Service comes back by itself; then the session is the mirror's. */
static void comes_back(unsigned seed)
{
    struct gen got, want;
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        struct reply *r;
        for (;;) {
            r = call_finish(plain_turn(i, seed + i));
            if (r->status == 200)
                break;
            assert_true(r->status == 503 || r->status == 409); /* a lease that was not given back */
            reply_free(r);
            if (client_now_ms() > deadline)
                fail_msg("no service on node %u any more", i);
        }
        got.r = r;
        output_of(r, &got.o);
        turn_of(t.mirror.client, &want, "trouble", "Once", seed + i);
        output_same(&got.o, &want.o);
        assert_int_equal(int_at(got.r->json, "version"), int_at(want.r->json, "version"));
        gen_done(&got);
        gen_done(&want);
    }
}

static void redis_is_restarted(void **state)
{
    (void)state;
    twin_create(&t, "trouble");
    comes_back(1);
    redis_end(&t.fleet.redis, SIGTERM);
    is_refused(0, "store_unavailable", "the store is not there");
    expect_error(get(fleet_at(&t.fleet, 1), "/v1/sessions"), 503, "store_unavailable", NULL);
    expect_error(get(fleet_at(&t.fleet, 1), "/v1/sessions/trouble"), 503, "store_unavailable",
                 NULL);
    expect_error(post(fleet_at(&t.fleet, 2), "/v1/sessions", "{'id':'none'}"), 503,
                 "store_unavailable", NULL);
    reply_free(expect(
        post(fleet_at(&t.fleet, 2), "/v1/generate", "{'prompt':'no session','max_tokens':1}"),
        200));
    redis_start(&t.fleet.redis);
    comes_back(10);
    redis_end(&t.fleet.redis, SIGKILL); /* what it acknowledged is there */
    redis_start(&t.fleet.redis);
    comes_back(20);
    /* It forgets its scripts. */
    redis_do(&t.fleet.redis, "SCRIPT FLUSH");
    comes_back(30);
}

/* A turn outlives an outage that is shorter than its lease. */
static void a_turn_outlives_a_restart(void **state)
{
    (void)state;
    struct call *k =
        stream_start(fleet_at(&t.fleet, 0), "'session':'trouble','prompt':'Tell','seed':40,"
                                            "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    redis_end(&t.fleet.redis, SIGTERM);
    call_until_events(k, 50);
    redis_start(&t.fleet.redis);
    for (unsigned i = 0; i < FLEET_NODES; i++)
        until_metric(fleet_at(&t.fleet, i), "slate_store_read_only", 0);
    struct reply *c = expect(session_post(fleet_at(&t.fleet, 0), "trouble", "/cancel"), 200);
    reply_free(c);
    struct reply *r = expect(call_finish(k), 200);
    assert_true(r->done);
    const json_t *last = r->events[r->n_events - 1];
    assert_string_equal(str_at(last, "finish_reason"), "cancelled");
    int64_t version = int_at(last, "version");
    reply_free(r);
    for (unsigned i = 0; i < FLEET_NODES; i++)
        assert_int_equal(session_version(fleet_at(&t.fleet, i), "trouble"), version);
    /* The mirror knows nothing of it. */
    reply_free(expect(del(fleet_at(&t.fleet, 1), "/v1/sessions/trouble"), 200));
    reply_free(expect(del(t.mirror.client, "/v1/sessions/trouble"), 200));
    twin_create(&t, "trouble");
    comes_back(50);
}

/* It is there, and says nothing: the answers come late, or never. */
static void redis_is_slow(void **state)
{
    (void)state;
    redisContext *c = redis_say(&t.fleet.redis, "DEBUG SLEEP %s", "0.5"); /* less than the limit */
    reply_free(expect(call_finish(plain_turn(0, 60)), 200));
    struct gen g;
    turn_of(t.mirror.client, &g, "trouble", "Once", 60);
    gen_done(&g);
    redisFree(c);
    c = redis_say(&t.fleet.redis, "DEBUG SLEEP %s", "2.5");
    is_refused(0, "store_unavailable", "does not answer");
    comes_back(70);
    redisFree(c);
    redis_do(&t.fleet.redis, "CLIENT PAUSE %d ALL", 2500);
    is_refused(1, "store_unavailable", "does not answer");
    comes_back(80);
    redis_signal(&t.fleet.redis, SIGSTOP);
    is_refused(2, "store_unavailable", "does not answer");
    redis_signal(&t.fleet.redis, SIGCONT);
    comes_back(90);
}

static struct call *endless_stream(unsigned node)
{
    return stream_start(fleet_at(&t.fleet, node), "'session':'long','prompt':'Tell','seed':40,"
                                                  "'max_tokens':1000000,'ignore_eos':true");
}

/* Takes in the stream's events for so long. */
static void stream_for(struct call *k, int64_t ms)
{
    int64_t end = client_now_ms() + ms;
    for (size_t n = call_reply(k)->n_events + 1; client_now_ms() < end; n++) {
        call_until_events(k, n);
        assert_true(call_reply(k)->n_events >= n);
    }
}

/* A turn ends while its lease is being renewed: the turns after it are renewed all the same. */
static void a_renewal_is_its_own_turns(void **state)
{
    (void)state;
    struct client *c = fleet_at(&t.fleet, 0);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'long','prompt':'Once'}"), 201));
    struct call *k = endless_stream(0);
    call_until_events(k, 2);
    redis_signal(&t.fleet.redis, SIGSTOP);
    stream_for(k, FLEET_LEASE_MS / 2 + 100); /* asked for after a third, and not given up by then */
    call_abort(k);
    until_metric(c, "slate_requests_running", 0);
    redis_signal(&t.fleet.redis, SIGCONT);
    until_metric(c, "slate_store_read_only", 0);
    k = endless_stream(0);
    call_until_events(k, 1);
    stream_for(k, 2 * FLEET_LEASE_MS);
    reply_free(expect(session_post(c, "long", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_string_equal(str_at(r->events[r->n_events - 1], "finish_reason"), "cancelled");
    reply_free(r);
    reply_free(expect(del(c, "/v1/sessions/long"), 200));
}

static void redis_takes_no_writes(void **state)
{
    (void)state;
    reply_free(expect(post(fleet_at(&t.fleet, 0), "/v1/sessions", "{'id':'spare'}"), 201));
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 1");
    is_refused(0, "store_full", "it has no memory left");
    expect_error(post(fleet_at(&t.fleet, 1), "/v1/sessions", "{'id':'none'}"), 503, "store_full",
                 NULL);
    reply_free(session_get(fleet_at(&t.fleet, 2), "trouble")); /* is still read */
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 0");
    comes_back(100);
    /* Full while a turn runs: it is not committed, and says so. */
    struct call *k =
        stream_start(fleet_at(&t.fleet, 0), "'session':'trouble','prompt':'Tell','seed':5,"
                                            "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 1");
    reply_free(expect(session_post(fleet_at(&t.fleet, 0), "trouble", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "store_full");
    reply_free(r);
    reply_free(expect(del(fleet_at(&t.fleet, 1), "/v1/sessions/spare"), 200)); /* makes room */
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 0");
    comes_back(110);
    redis_do(&t.fleet.redis, "REPLICAOF 127.0.0.1 1");
    is_refused(0, "store_unavailable", "read-only replica");
    redis_do(&t.fleet.redis, "REPLICAOF NO ONE");
    comes_back(120);
}

static struct twin far;
static bool far_is_up; /* its namespaces outlive the test where nobody removes them */

/* Each node in a network namespace of its own. That they cannot reach each other hinders nothing;
 * one that is cut off from Redis says so, loses its turns, and is missed by nobody; nothing is
 * lost, and when the wire is mended it serves again by itself. */
static void nodes_are_cut_off(void **state)
{
    struct gen got, want;
    (void)state;
    if (!twin_start_apart(&far, "far", (const char *const[]){"--replay-limit=60", NULL})) {
        print_message("skipped: network namespaces, which take root\n");
        skip();
    }
    far_is_up = true;
    struct client *cut = fleet_at(&far.fleet, 0), *other = fleet_at(&far.fleet, 1);
    twin_create(&far, "walk");
    twin_create(&far, "runs");
    for (unsigned i = 0; i < 6; i++)
        twin_turn(&far, "walk", i, "And then?", i);
    twin_turn(&far, "runs", 1, "Once", 1);
    struct call *k = stream_start(cut, "'session':'runs','prompt':'Tell','seed':2,"
                                       "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    fleet_cut(&far.fleet, 0, true);
    twin_turn(&far, "walk", 1, "Are you there?", 20); /* it had no turn there: at once */
    expect_error(post(cut, "/v1/generate", "{'session':'walk','prompt':'x'}"), 503,
                 "store_unavailable", NULL);
    expect_error(get(cut, "/v1/sessions"), 503, "store_unavailable", NULL);
    struct reply *r = expect(session_post(other, "runs", "/cancel"), 200); /* with its lease */
    assert_true(bool_at(r->json, "cancelled"));
    reply_free(r);
    turn_of(other, &got, "runs", "And?", 3);
    turn_of(far.mirror.client, &want, "runs", "And?", 3);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
    r = expect(call_finish(k), 200); /* it could not be renewed */
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    fleet_cut(&far.fleet, 0, false);
    until_metric(cut, "slate_store_read_only", 0);
    for (unsigned i = 0; i < 6; i++) {
        twin_turn(&far, "walk", i, "Go on.", 30 + i);
        twin_turn(&far, "runs", i + 1, "Go on.", 40 + i);
    }
    fleet_cut(&far.fleet, 1, true); /* shorter than a lease: its turn goes on */
    fleet_cut(&far.fleet, 1, false);
    twin_turn(&far, "walk", 1, "Still?", 50);
    twin_abandon(&far);
    far_is_up = false;
}

/* A key that somebody wrote over, or a byte of a snapshot: named, and nobody else is touched. */
static void redis_holds_something_else(void **state)
{
    (void)state;
    struct client *node = fleet_at(&t.fleet, 1);
    double failures = metric(node, "slate_store_failures_total"),
           damaged = metric(node, "slate_store_damaged_total");
    twin_create(&t, "odd");
    redis_do(&t.fleet.redis, "DEL slate1:{default/odd}");
    redis_do(&t.fleet.redis, "SET slate1:{default/odd} text");
    expect_error(post(node, "/v1/generate", "{'session':'odd','prompt':'x'}"), 500, "store_corrupt",
                 NULL);
    redis_do(&t.fleet.redis, "DEL slate1:{default/odd}");
    redis_do(&t.fleet.redis, "HSET slate1:{default/odd} inc 12");
    expect_error(get(node, "/v1/sessions/odd"), 500, "store_corrupt", NULL);
    assert_true(metric(node, "slate_store_failures_total") == failures);
    assert_true(metric(node, "slate_store_damaged_total") == damaged + 2);
    redis_do(&t.fleet.redis, "DEL slate1:{default/odd}");
    expect_error(get(node, "/v1/sessions/odd"), 404, "session_not_found", "session");
    comes_back(130);
}

/* --- a Redis that has lost everything ----------------------------------------------------------*/

/* UNASKED: what nodes have in memory of it is still there when its next life begins. */
enum { LOST = 6, UNASKED = 5, TURNS = 3 };

static const char *lost_name(unsigned i)
{
    static char ring[4][16];
    static unsigned turn;
    char *dst = ring[turn++ % 4];
    snprintf(dst, sizeof ring[0], "lost%u", i);
    return dst;
}

/* As if it had never been there, whatever that node has in memory. */
static void is_unknown(unsigned node, const char *id)
{
    struct client *c = fleet_at(&t.fleet, node);
    static const char not_found[] = "session_not_found";
    expect_error(get(c, session_path(id, "")), 404, not_found, "session");
    expect_error(post(c, "/v1/generate", "{'session':'%s','prompt':'x'}", id), 404, not_found,
                 "session");
    expect_error(post(c, session_path(id, "/fork"), "{'id':'fork'}"), 404, not_found, "session");
    expect_error(get(c, session_path(id, "/snapshot")), 404, not_found, "session");
    expect_error(session_post(c, id, "/pause"), 404, not_found, "session");
    expect_error(patch(c, session_path(id, ""), "{'ttl_s':9}"), 404, not_found, "session");
    expect_error(del(c, session_path(id, "")), 404, not_found, "session");
}

static void there_are(size_t n)
{
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        struct reply *r = expect(get(fleet_at(&t.fleet, i), "/v1/sessions?limit=100"), 200);
        assert_int_equal(len_at(r->json, "data"), n);
        reply_free(r);
    }
}

static struct reply *keyed_turn(unsigned node)
{
    static const char body[] = "{\"session\":\"lost0\",\"prompt\":\"Once\",\"max_tokens\":4}";
    return expect(request(fleet_at(&t.fleet, node), "POST", "/v1/generate", "Idempotency-Key: lost",
                          body, sizeof body - 1),
                  200);
}

static void begin_life(unsigned i, unsigned node)
{
    struct client *all[] = {fleet_at(&t.fleet, node), t.mirror.client};
    for (size_t k = 0; k < 2; k++)
        reply_free(expect(post(all[k], "/v1/sessions", "{'id':'%s'}", lost_name(i)), 201));
}

/* Under the same names, on other nodes; as far as the old ones had come, and further. */
static void begin_other_lives(const char *old_etag)
{
    char line[200];
    for (unsigned i = 0; i < LOST; i++) {
        reply_free(expect(del(t.mirror.client, session_path(lost_name(i), "")), 200));
        begin_life(i, i);
    }
    struct reply *r = keyed_turn(0); /* of this life it is the first with that key */
    assert_null(reply_header(r, "Idempotent-Replayed"));
    assert_int_equal(int_at(r->json, "version"), 1);
    reply_free(r);
    snprintf(line, sizeof line, "If-Match: %s", old_etag);
    expect_error(request(fleet_at(&t.fleet, 1), "PATCH", "/v1/sessions/lost0", line, "{}", 2), 412,
                 "version_mismatch", "If-Match");
    struct client *remembers = fleet_at(&t.fleet, 1);
    expect_error(call_finish(turn_start(remembers, lost_name(UNASKED), "Once", 1)), 409,
                 "session_busy", "session");
    for (unsigned turn = 0; turn < 2 * TURNS; turn++)
        for (unsigned i = 1; i < LOST; i++)
            twin_turn(&t, lost_name(i), 2 * turn + i, "Another life.", 700 + turn);
}

/* All nodes have all of them in memory, at the last version or an earlier one; a turn runs. */
static void is_lost(void (*lose)(void))
{
    char etag[120];
    for (unsigned i = 0; i < LOST; i++) {
        begin_life(i, i + 1);
        for (unsigned turn = 0; turn < TURNS; turn++)
            twin_turn(&t, lost_name(i), turn + i, "Once", 600 + turn);
    }
    reply_free(keyed_turn(0));
    struct reply *r = session_get(fleet_at(&t.fleet, 1), "lost0");
    snprintf(etag, sizeof etag, "%s", reply_header(r, "ETag"));
    reply_free(r);
    there_are(LOST);
    struct call *k = stream_start(fleet_at(&t.fleet, 2), "'session':'lost1','prompt':'Tell',"
                                                         "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    lose();
    for (unsigned node = 0; node < FLEET_NODES; node++)
        for (unsigned i = 0; i < LOST; i++)
            if (i != UNASKED && (i != 1 || node != 2))
                is_unknown(node, lost_name(i));
    r = expect(call_finish(k), 200);
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    is_unknown(2, "lost1");
    /* Nor does a node write them when it ends. */
    assert_int_equal(fleet_node_end(&t.fleet, 0, SIGTERM), 0);
    fleet_node_start(&t.fleet, 0);
    there_are(0);
    begin_other_lives(etag);
    there_are(LOST);
    for (unsigned i = 0; i < LOST; i++) {
        reply_free(expect(del(fleet_at(&t.fleet, i), session_path(lost_name(i), "")), 200));
        reply_free(expect(del(t.mirror.client, session_path(lost_name(i), "")), 200));
        for (unsigned node = 0; node < FLEET_NODES; node++)
            is_unknown(node, lost_name(i));
    }
}

static void flush(void)
{
    redis_do(&t.fleet.redis, "FLUSHALL");
}

static void restart_empty(void)
{
    fleet_kill_redis(&t.fleet);
    fleet_redis_is_back(&t.fleet, true);
}

static void what_redis_has_lost_is_lost(void **state)
{
    (void)state;
    is_lost(flush);
    is_lost(restart_empty);
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* --- a limit that all servers share ------------------------------------------------------------*/

/* What a server has only heard of, and others have deleted, is not in the store's limit. */
static void the_limit_is_the_stores(void **state)
{
    (void)state;
    struct client *c = fleet_at(&t.fleet, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            reply_free(expect(post(c, "/v1/sessions", "{'id':'s%d'}", 3 * round + i), 201));
        expect_error(post(c, "/v1/sessions", "{'id':'more'}"), 503, "sessions_full", NULL);
        for (int i = 0; i < 3; i++) {
            char id[24];
            snprintf(id, sizeof id, "s%d", 3 * round + i);
            reply_free(expect(del(fleet_at(&t.fleet, 1), session_path(id, "")), 200));
        }
    }
}

static int start_with_few(void **state)
{
    (void)state;
    twin_start(&t, "few", (const char *const[]){"--max-sessions=3", NULL});
    return 0;
}

static int start(void **state)
{
    (void)state;
    twin_start(&t, "trouble", (const char *const[]){"--replay-limit=60", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    if (far_is_up)
        twin_abandon(&far);
    twin_abandon(&t);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest few[] = {cmocka_unit_test(the_limit_is_the_stores)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(redis_is_restarted),
        cmocka_unit_test(a_turn_outlives_a_restart),
        cmocka_unit_test(redis_is_slow),
        cmocka_unit_test(a_renewal_is_its_own_turns),
        cmocka_unit_test(redis_takes_no_writes),
        cmocka_unit_test(nodes_are_cut_off),
        cmocka_unit_test(redis_holds_something_else),
    };
    const struct CMUnitTest lost[] = {cmocka_unit_test(what_redis_has_lost_is_lost)};
    if (argc > 1) /* these alone: "redis_*" */
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests_name("few", few, start_with_few, stop);
    failed += cmocka_run_group_tests_name("lost", lost, start, stop);
    return failed + cmocka_run_group_tests_name("fleet_trouble", tests, start, stop);
}
