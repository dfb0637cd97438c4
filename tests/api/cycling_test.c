/* cycling_test.c: many sessions take turns in few places for a long time: memory stays flat, every
 * session has every turn that was acknowledged, also after a kill: its version says so, and of some
 * a mirror, which was told the same without interruption.
 *
 * First each session is made and reads a prompt, so that each has been in memory and out of it
 * once; what is kept of each is there then. From there on SECONDS of turns, round robin, RUNNING at
 * once, while memory, the log and the rate are told in twenty parts.
 *
 * `cycling_test 100000 600` (make soak): so many sessions, for so many seconds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"
#include "tests/support/process.h"

enum { RUNNING = 32, PLACES = 64, PARTS = 20, LOOKED_AT = 200, COMPARED = 24 };

static size_t n_sessions = 1500, n_seconds = 8;
static struct node node;

/* MiB of the server; 0 where they say nothing. */
static double resident_mib(void)
{
    return process_figures_count() ? (double)process_resident(node.a.server->pid) / 1048576 : 0;
}

static struct call *calls[RUNNING];

static struct call *create(struct client *c, size_t i)
{
    return call_post(c, "/v1/sessions", "{'id':'c%zu','prompt':'I am %zu.'}", i, i);
}

/* The serial-th of all turns, in its session. */
static struct call *turn(struct client *c, size_t serial)
{
    return generate_start(
        c, "'session':'c%zu','prompt':'%zu.','seed':%zu,'max_tokens':4,'ignore_eos':true",
        serial % n_sessions, serial, serial);
}

static void create_all(void)
{
    for (size_t i = 0; i < n_sessions + RUNNING; i++) {
        if (i >= RUNNING)
            reply_free(expect(call_finish(calls[i % RUNNING]), 201));
        if (i < n_sessions)
            calls[i % RUNNING] = create(node.a.client, i);
    }
}

struct part {
    double mib, log_mib, rate;
};

static void tell(size_t k, const struct part *p)
{
    print_message("  %3zu %%: %.1f MiB resident, %.1f MiB of log, %.0f turns/s\n",
                  100 * (k + 1) / PARTS, p->mib, p->log_mib, p->rate);
}

/* Turns until the time is over; returns how many. */
static size_t cycle(struct part parts[PARTS])
{
    struct client *c = node.a.client;
    int64_t begin = client_now_ms(), each = (int64_t)n_seconds * 1000 / PARTS, last = begin;
    size_t n = 0, n_last = 0, k = 0;
    for (; k < PARTS; n++) {
        if (n >= RUNNING)
            reply_free(expect(call_finish(calls[n % RUNNING]), 200));
        calls[n % RUNNING] = turn(c, n);
        int64_t now = client_now_ms();
        if (now - begin < (int64_t)(k + 1) * each)
            continue;
        parts[k].mib = resident_mib();
        parts[k].log_mib = metric(c, "slate_store_log_bytes") / 1048576;
        parts[k].rate = 1e3 * (double)(n - n_last) / (double)(now - last + 1);
        tell(k, &parts[k]);
        last = now;
        n_last = n;
        k++;
    }
    for (size_t i = 0; i < RUNNING; i++)
        reply_free(expect(call_finish(calls[i]), 200));
    return n;
}

/* Versions: the prompt, and every turn since. */
static void check_versions(size_t n_turns)
{
    for (size_t k = 0; k < LOOKED_AT; k++) {
        char id[32];
        size_t i = k * (n_sessions / LOOKED_AT);
        snprintf(id, sizeof id, "c%zu", i);
        size_t turns = n_turns / n_sessions + (i < n_turns % n_sessions);
        assert_int_equal(session_version(node.a.client, id), 1 + turns);
    }
}

/* One more turn, with everything told, here and in the mirror. */
static void check_contents(size_t n_turns)
{
    struct api mirror;
    api_start(&mirror,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), NULL});
    client_unrecorded(mirror.client);
    for (size_t k = 0; k < COMPARED; k++) {
        char id[32];
        struct gen got, want;
        size_t i = k * (n_sessions / COMPARED);
        snprintf(id, sizeof id, "c%zu", i);
        reply_free(expect(call_finish(create(mirror.client, i)), 201));
        for (size_t serial = i; serial < n_turns; serial += n_sessions)
            reply_free(expect(call_finish(turn(mirror.client, serial)), 200));
        turn_of(node.a.client, &got, id, "And then?", 7);
        turn_of(mirror.client, &want, id, "And then?", 7);
        assert_int_equal(int_at(got.r->json, "version"), int_at(want.r->json, "version"));
        output_same(&got.o, &want.o);
        gen_done(&got);
        gen_done(&want);
    }
    api_stop(&mirror);
}

static void test_cycling(void **state)
{
    (void)state;
    enum { SPARE_MIB = 4 };
    struct part parts[PARTS] = {{0}};
    node_init(&node, "cycling",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=64", NULL});
    node_start(&node);
    client_unrecorded(node.a.client);
    create_all();
    double first = resident_mib();
    print_message("%zu sessions in %d places, %.1f MiB resident\n", n_sessions, PLACES, first);
    size_t n = cycle(parts);
    check_versions(n);
    double loads = metric(node.a.client, "slate_session_loads_total");
    print_message("%zu turns, %.0f loads, %.0f evictions, %.1f MiB of log\n", n, loads,
                  metric(node.a.client, "slate_session_evictions_total"), parts[PARTS - 1].log_mib);
    assert_true(loads >= 0.9 * (double)n); /* else they did not cycle */
    assert_true(metric(node.a.client, "slate_sessions_in_memory") <= PLACES);
    /* Flat: the last quarter is where the second one was. */
    double early = 0, late = 0;
    for (size_t k = PARTS / 4; k < PARTS / 2; k++)
        early = parts[k].mib > early ? parts[k].mib : early;
    for (size_t k = PARTS - PARTS / 4; k < PARTS; k++)
        late = parts[k].mib > late ? parts[k].mib : late;
    if (late > early * 1.03 + SPARE_MIB)
        fail_msg("memory grows: %.1f MiB, then %.1f", early, late);
    node_kill(&node);
    node_start(&node);
    client_unrecorded(node.a.client);
    assert_true(metric(node.a.client, "slate_sessions") == (double)n_sessions);
    check_versions(n);
    check_contents(n);
    node_done(&node);
}

static int after(void **state)
{
    (void)state;
    node_abandon(&node);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_cycling, after)};
    if (argc > 1)
        n_sessions = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        n_seconds = strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("cycling", tests, NULL, NULL);
}
