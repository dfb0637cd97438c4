/* sequences_test.c: thousands of calls in an order drawn by chance, beside a small model of what
 * must hold: which sessions there are, their incarnations, versions, metadata and
 * residency, what each has been told and has said (histories.h), which errors are told.
 *
 * Those of steps.h, with SIGTERM and `kill -9` while turns are under way. On memory, `dir:` and
 * Redis; several servers on one Redis: cluster/sequences_fleet_test.c.
 *
 * `sequences_test SECONDS SEED STORE` runs one store for so long; the seed is printed. What is
 * drawn depends on the seed and on what has happened so far: where a failure hangs on the moment,
 * the seed may have to be run more than once. SLATE_TEST_VERBOSE=1 prints each step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/redis.h"
#include "tests/support/steps.h"

static struct api oracle;
static struct redis redis;
static void do_restart(struct session *s);

static const struct step restart = {"restart", do_restart, 4};
static struct steps how = {.seconds = 6, .more = &restart, .n_more = 1};

/* --- restarts ----------------------------------------------------------------------------------*/

/* Turns are under way; a kill loses their answers, a drain pauses them or lets them end. */
static void do_restart(struct session *s)
{
    struct flight f[4];
    int sig = draw(2) ? SIGKILL : SIGTERM;
    (void)s;
    if (modelled.forgets)
        return;
    size_t n = begin_turns(f, draw(5));
    if (n)
        stream_until(f[0].call, draw(6));
    node_signal(&modelled.node, sig);
    for (size_t i = 0; i < n; i++) {
        struct reply *r = call_finish(f[i].call);
        if (is_answer(r))
            turn_answered(&f[i], r);
        else if (sig == SIGTERM && r->whole && r->status == 503)
            ; /* it came too late */
        else
            f[i].lost = true;
        reply_free(r);
    }
    node_wait(&modelled.node, sig);
    node_start(&modelled.node);
    client_unrecorded(modelled_client());
    modelled.n_restarts++;
    resolve_lost(f, n);
    check_all();
}

static void up(const char *name, const char *store)
{
    modelled.forgets = !strcmp(store, "memory");
    node_init(&modelled.node, name,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                    modelled.forgets ? "--sessions-in-memory=14"
                                                     : "--sessions-in-memory=6",
                                    "--replay-limit=60", "--lease=3s", "--store-timeout=1s",
                                    "--drain-timeout=50ms", "--keep-turns=3", NULL});
    if (strcmp(store, "dir") != 0)
        snprintf(modelled.node.store, sizeof modelled.node.store, "%s", store);
    node_start(&modelled.node);
    client_unrecorded(modelled_client());
    api_start(&oracle, (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                             "--sessions-in-memory=64", NULL});
    client_unrecorded(oracle.client);
    histories_init(&modelled.histories, oracle.client);
}

static void on_memory(void **state)
{
    (void)state;
    up("memory", "memory");
    steps_run(&how, "memory");
}

static void on_dir(void **state)
{
    (void)state;
    up("dir", "dir");
    steps_run(&how, "dir");
}

static void on_redis(void **state)
{
    (void)state;
    redis_init(&redis, "sequences", NULL);
    up("redis", redis.spec);
    steps_run(&how, "redis");
}

static int down(void **state)
{
    (void)state;
    steps_done();
    node_abandon(&modelled.node);
    if (oracle.server)
        api_stop(&oracle);
    oracle = (struct api){0};
    if (redis.pid)
        redis_done(&redis);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(on_memory, down),
        cmocka_unit_test_teardown(on_dir, down),
        cmocka_unit_test_teardown(on_redis, down),
    };
    steps_args(&how, argc, argv);
    return cmocka_run_group_tests_name("sequences", tests, NULL, NULL);
}
