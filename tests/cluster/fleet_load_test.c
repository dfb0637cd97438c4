/* fleet_load_test.c: a fleet under load of 32 sessions: servers are killed at random moments, and
 * Redis is; they are told to end one after the other behind a balancer, or gone: what was
 * acknowledged is kept, once.
 *
 * `fleet_load_test 200` (make soak) kills so often, Redis a quarter as often. Nothing sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/balancer.h"
#include "tests/support/fleet_load.h"
#include "tests/support/node.h"

static struct twin t;

enum { SEEN_MS = 1500 /* a check's interval, and some */ };

static unsigned n_kills = 20;

static void kill_one(unsigned i)
{
    fleet_node_signal(&t.fleet, i, SIGKILL);
    load_killed(i);
    fleet_node_end(&t.fleet, i, 0);
}

static void killed_at_random_moments(void **state)
{
    (void)state;
    load_begin(&t, NULL, "s");
    for (unsigned round = 0; round < n_kills; round++) {
        load_run(20 + load_draw(80));
        unsigned i = load_node();
        kill_one(i);
        load_run(20);
        fleet_node_start(&t.fleet, i);
        if (round % 4 == 3) {
            load_settle();
            load_check();
        }
    }
    load_settle();
    load_check();
    struct load_counts n = load_counts();
    print_message(
        "killed %u times: %u answers, all kept; %u turns had been applied unseen, %u were "
        "answered again; a session was unusable for %lld ms at most\n",
        n_kills, n.acknowledged, n.unseen, n.replayed, (long long)n.longest_ms);
}

/* What Redis had acknowledged is on its disk, and nothing that it is told again counts twice. */
static void redis_killed_at_random_moments(void **state)
{
    static const char again[] = "slate_store_retries_total";
    unsigned n_times = n_kills / 4;
    double before = fleet_metric(&t.fleet, again);
    (void)state;
    load_begin(&t, NULL, "r");
    for (unsigned round = 0; round < n_times; round++) {
        load_run(20 + load_draw(80));
        load_kill_redis(round % 2 ? 1 + (unsigned)load_draw(40) : 0);
        if (round % 4 >= 2) {
            load_settle();
            load_check();
        }
    }
    load_settle();
    load_check();
    struct load_counts n = load_counts();
    double retries = fleet_metric(&t.fleet, again) - before;
    print_message(
        "Redis killed %u times: %u answers, all kept; %.0f calls were repeated, %u turns "
        "refused, of %u nobody knew, %u had been applied unseen, %u were answered again\n",
        n_times, n.acknowledged, retries, n.away, n.unknown, n.unseen, n.replayed);
    assert_true(retries >= n_times && n.away + n.unknown > 0); /* it was missed */
}

/* --- behind a balancer -------------------------------------------------------------------------*/

static struct client *front;

/* Turns that outlast the time in which a node that was told to end still serves. */
enum { LONG = 3, LONG_TOKENS = 3000 };

static struct long_turn {
    char id[24];
    unsigned seed;
    struct call *call;
} long_turns[LONG];

static struct call *long_start(struct client *c, const struct long_turn *l)
{
    return stream_start(
        c,
        "'session':'%s','prompt':'Tell','seed':%u,'max_tokens':%d,'ignore_eos':true,"
        "'return_tokens':true",
        l->id, l->seed, LONG_TOKENS);
}

static void long_take(struct call *k, struct gen *ret)
{
    generate_finish(k, ret);
    assert_string_equal(str_at(ret->o.final, "finish_reason"), "length");
}

static void long_begin(const char *prefix)
{
    for (size_t i = 0; i < LONG; i++) {
        snprintf(long_turns[i].id, sizeof long_turns[i].id, "%slong%zu", prefix, i);
        twin_create(&t, long_turns[i].id);
    }
}

/* Those that are over are what the mirror says, and begin anew. */
static void long_go_on(bool anew)
{
    for (size_t i = 0; i < LONG; i++) {
        struct long_turn *l = &long_turns[i];
        struct gen got, want;
        if (l->call && (!anew || call_reply(l->call)->over)) {
            long_take(l->call, &got);
            long_take(long_start(t.mirror.client, l), &want);
            output_same(&got.o, &want.o);
            gen_done(&got);
            gen_done(&want);
            l->call = NULL;
            l->seed++;
        }
        if (!l->call && anew)
            l->call = long_start(front, l);
    }
}

/* Every node in its turn is told to end, under load, and started again. */
static void roll(const char *prefix)
{
    long_begin(prefix);
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        load_run(60);
        long_go_on(true);
        fleet_node_signal(&t.fleet, i, SIGTERM);
        while (!fleet_node_has_ended(&t.fleet, i)) {
            load_run(10);
            long_go_on(true);
        }
        assert_int_equal(fleet_node_end(&t.fleet, i, 0), 0);
        load_run(60);
        fleet_node_start(&t.fleet, i);
        long_go_on(false);
        load_settle();
        load_check();
    }
}

static void behind(enum balancer_kind kind, const char *prefix, void (*test)(const char *prefix))
{
    unsigned ports[FLEET_NODES];
    for (unsigned i = 0; i < FLEET_NODES; i++)
        ports[i] = t.fleet.node[i].port;
    struct balancer *b = balancer_start(kind, ports);
    front = client_open(balancer_base(b));
    client_unrecorded(front);
    load_begin(&t, front, prefix);
    test(prefix);
    client_close(front);
    balancer_stop(b);
}

static void a_rolling_restart_is_seen_by_nobody(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "h", roll);
}

static void nor_behind_nginx(void **state)
{
    (void)state;
    behind(BALANCER_NGINX_FLEET, "x", roll);
}

/* All are gone, and come back: they serve at once, not only when HAProxy has asked each. */
static void lose_all(const char *prefix)
{
    (void)prefix;
    for (unsigned round = 0; round < 3; round++) {
        load_run(20);
        load_settle();
        for (unsigned i = 0; i < FLEET_NODES; i++)
            fleet_node_end(&t.fleet, i, SIGKILL);
        int64_t seen_by = client_now_ms() + SEEN_MS;
        do /* until every check has failed */
            expect_error(get(front, "/v1/models"), 503, "node_away", NULL);
        while (client_now_ms() < seen_by);
        for (unsigned i = 0; i < FLEET_NODES; i++)
            fleet_node_start(&t.fleet, i);
        load_run(20);
        load_settle();
        load_check();
    }
}

static void nodes_that_come_back_serve_at_once(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "a", lose_all);
}

/* A node that is gone: its sessions are served elsewhere. */
static void lose_one(const char *prefix)
{
    (void)prefix;
    load_run(60);
    load_settle();
    fleet_node_end(&t.fleet, 1, SIGKILL);
    load_run(120);
    load_settle();
    load_check();
    fleet_node_start(&t.fleet, 1);
}

static void a_node_that_is_gone_is_not_missed(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "g", lose_one);
    behind(BALANCER_NGINX_FLEET, "n", lose_one);
}

/* Full is not away: what every node has refused for want of Redis' memory keeps nobody else from
 * them. */
static void refuse_all(const char *prefix)
{
    (void)prefix;
    load_settle();
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 1");
    for (unsigned i = 0; i < FLEET_NODES; i++)
        expect_error(post(front, "/v1/sessions", "{}"), 503, "store_full", NULL);
    reply_free(expect(get(front, "/v1/models"), 200));
    redis_do(&t.fleet.redis, "CONFIG SET maxmemory 0");
    reply_free(expect(post(front, "/v1/sessions", "{}"), 201));
}

static void nodes_that_refuse_are_not_away(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "f", refuse_all);
    behind(BALANCER_NGINX_FLEET, "m", refuse_all);
}

/* Which node has turns; FLEET_NODES: none. */
static unsigned node_at_work(void)
{
    for (unsigned i = 0; i < FLEET_NODES; i++)
        if (t.fleet.node[i].server && metric(fleet_at(&t.fleet, i), "slate_requests_running") > 0)
            return i;
    return FLEET_NODES;
}

/* One node is away, which every balancer finds out by a request; the next one that it asks has the
 * turn, and dies: nobody may say that the turn was not begun. */
static void die_with_a_turn(const char *prefix)
{
    (void)prefix;
    load_settle();
    fleet_node_end(&t.fleet, 0, SIGKILL);
    for (unsigned round = 0; round < 4; round++) { /* one in three goes to the one that is away */
        struct call *k = call_post(front, "/v1/generate",
                                   "{'prompt':'Tell','max_tokens':1000000,'ignore_eos':true}");
        unsigned i;
        while ((i = node_at_work()) == FLEET_NODES) { /* nginx itself answers that */
            reply_free(expect(get(front, "/metrics"), 403));
            assert_false(call_reply(k)->over);
        }
        fleet_node_end(&t.fleet, i, SIGKILL);
        expect_error(call_finish(k), 502, "node_failed", NULL);
        fleet_node_start(&t.fleet, i);
    }
    fleet_node_start(&t.fleet, 0);
}

static void a_turn_that_was_sent_is_not_said_to_be_unsent(void **state)
{
    (void)state;
    behind(BALANCER_NGINX_FLEET, "d", die_with_a_turn);
}

/* --- all of it ---------------------------------------------------------------------------------*/

static int start(void **state)
{
    (void)state;
    twin_start(&t, "load",
               (const char *const[]){"--sessions-in-memory=16", "--replay-limit=60", NULL});
    return 0;
}

/* With the times that a server has by itself, not those that make a test of dead ones brief: that
 * no client sees an error is no promise for a Redis that takes longer than --store-timeout. Loads
 * read several turns again, where those of the others find a snapshot of the last one. */
static int start_patient(void **state)
{
    (void)state;
    twin_start(&t, "patient",
               (const char *const[]){"--sessions-in-memory=16", "--replay-limit=50000",
                                     "--drain-delay=3s", "--lease=15s", "--store-timeout=5s",
                                     NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    twin_abandon(&t);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest balanced[] = {
        cmocka_unit_test(a_rolling_restart_is_seen_by_nobody),
        cmocka_unit_test(nor_behind_nginx),
        cmocka_unit_test(a_node_that_is_gone_is_not_missed),
        cmocka_unit_test(nodes_that_come_back_serve_at_once),
        cmocka_unit_test(nodes_that_refuse_are_not_away),
        cmocka_unit_test(a_turn_that_was_sent_is_not_said_to_be_unsent),
    };
    const struct CMUnitTest killed[] = {cmocka_unit_test(killed_at_random_moments),
                                        cmocka_unit_test(redis_killed_at_random_moments)};
    if (argc > 1)
        n_kills = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) /* what a failure printed */
        load_seed(strtoull(argv[2], NULL, 10));
    if (argc > 3) /* these alone: "a_rolling*" */
        cmocka_set_test_filter(argv[3]);
    int n_failed = cmocka_run_group_tests_name("balanced", balanced, start_patient, stop);
    return n_failed + cmocka_run_group_tests_name("killed", killed, start, stop);
}
