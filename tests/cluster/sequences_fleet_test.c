/* sequences_fleet_test.c: the calls of steps.h in an order drawn by chance, each of another node of
 * three that share a Redis: what the model says of one server must hold for all of them together.
 *
 * Besides: nodes that are killed or told to end while turns are under way; a DELETE at one node
 * while another saves, changes or reads; reads while a turn ends elsewhere; a node that sleeps
 * (SIGSTOP) past its lease in the middle of a turn or a change, while others go on with the
 * session, or delete it and make another one of its name.
 *
 * `sequences_fleet_test SECONDS SEED`; the seed is printed (see sequences_test.c). Nothing sleeps
 * but those nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/steps.h"

static struct fleet fleet;
static struct api oracle;

static unsigned node_of(const struct client *c)
{
    unsigned i = 0;
    while (fleet_at(&fleet, i) != c)
        assert_true(++i < FLEET_NODES);
    return i;
}

static bool may_go(void)
{
    return count_sessions() > 4;
}

/* Every node says the same of it. */
static void check_everywhere(struct session *s)
{
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        struct client *c = fleet_at(&fleet, i);
        if (s->exists)
            assert_int_equal(session_version(c, s->id), s->version);
        else
            expect_error(get(c, session_path(s->id, "")), 404, "session_not_found", "session");
    }
}

/* --- nodes that go -----------------------------------------------------------------------------*/

static void do_restart(struct session *s)
{
    struct flight f[4];
    unsigned node = (unsigned)draw(FLEET_NODES);
    struct client *goes = fleet_at(&fleet, node);
    int sig = draw(2) ? SIGKILL : SIGTERM;
    (void)s;
    size_t n = begin_turns(f, draw(5));
    if (n)
        stream_until(f[0].call, draw(6));
    fleet_node_signal(&fleet, node, sig);
    for (size_t i = 0; i < n; i++) {
        struct reply *r = call_finish(f[i].call);
        if (is_answer(r))
            turn_answered(&f[i], r);
        else if (f[i].client != goes)
            fail_msg("a turn on a node that is there: %.300s", r->body);
        else
            f[i].lost = sig == SIGKILL || r->status != 503; /* else it came too late */
        reply_free(r);
    }
    fleet_node_end(&fleet, node, 0);
    fleet_node_start(&fleet, node);
    modelled.n_restarts++;
    resolve_lost(f, n);
    check_all();
}

/* --- two at once -------------------------------------------------------------------------------*/

static void is_refused_or_gone(struct reply *r)
{
    assert_true(r->status == 404 || r->status == 409);
    reply_free(r);
}

/* What another node does with it, or has begun to, does not bring it back. */
static void do_delete_meanwhile(struct session *s)
{
    if (!may_go())
        return;
    struct client *c = modelled_client();
    char body[64];
    uint64_t what = draw(4);
    int n = snprintf(body, sizeof body, "{\"metadata\":{\"n\":%lld}}", (long long)s->metadata + 1);
    struct call *k =
        what == 0   ? pause_start(c, s->id)
        : what == 1 ? call_start(c, "PATCH", session_path(s->id, ""), NULL, body, (size_t)n)
        : what == 2 ? call_start(c, "GET", session_path(s->id, "/snapshot"), NULL, NULL, 0)
                    : NULL;
    if (what == 3) { /* a save that nobody waits for */
        struct flight f = begin_turn(s, false, NULL);
        finish_turn(&f);
    }
    struct reply *gone = del(modelled_client(), session_path(s->id, ""));
    struct reply *r = k ? call_finish(k) : NULL;
    bool done = r && r->status == 200;
    if (gone->status == 200)
        is_gone(s);
    else if (done || !k)
        assert_string_equal(str_at(gone->json, "error.code"), "session_busy");
    else
        fail_msg("both were refused: %s", gone->body);
    if (done && what == 1 && s->exists)
        s->metadata++;
    if (r && !done)
        is_refused_or_gone(r);
    else
        reply_free(r);
    reply_free(gone);
    modelled_rest();
    check_everywhere(s);
}

/* A read shows the session before the turn or after it, and nothing between. */
static void do_read_meanwhile(struct session *s)
{
    int64_t before = s->version;
    struct flight f = begin_turn(s, draw(2), NULL);
    stream_until(f.call, draw(3));
    struct bytes b = snapshot_get(modelled_client(), s->id, "");
    int64_t version = session_version(modelled_client(), s->id);
    finish_turn(&f);
    if (strcmp(b.etag, etag_of(s, before)) != 0 && strcmp(b.etag, etag_of(s, before + 1)) != 0)
        fail_msg("session %s, on its way to version %lld, is shown as %s", s->id,
                 (long long)before + 1, b.etag);
    assert_in_range(version, before, s->version);
    sl_free(b.p);
}

/* --- a node that sleeps ------------------------------------------------------------------------*/

static void falls_asleep(struct client *c)
{
    fleet_node_signal(&fleet, node_of(c), SIGSTOP);
    modelled.away = c;
}

static void wakes_up(void)
{
    fleet_node_signal(&fleet, node_of(modelled.away), SIGCONT);
    modelled.away = NULL;
}

static void create_anew(struct session *s)
{
    reply_free(expect(del(modelled_client(), session_path(s->id, "")), 200));
    is_gone(s);
    struct reply *r = expect(post(modelled_client(), "/v1/sessions", "{'id':'%s'}", s->id), 201);
    is_new(s, r);
    note_version(s);
    reply_free(r);
}

static void one_turn(struct session *s)
{
    struct flight f = begin_turn(s, draw(2), NULL);
    finish_turn(&f);
}

/* Another life of its name, a turn, or nothing. */
static void others_act(struct session *s, uint64_t what)
{
    if (what == 0)
        create_anew(s);
    if (what < 2)
        one_turn(s);
}

static void is_told_why(const char *code, bool other_life)
{
    if (strcmp(code, "lease_lost") != 0 && strcmp(code, "commit_unknown") != 0 &&
        (!other_life || strcmp(code, "version_mismatch") != 0))
        fail_msg("who slept is told %s", code);
}

/* What others do then is after the turn, where it has counted before they could, or instead of it.
 */
static void do_sleep_in_a_turn(struct session *s)
{
    int64_t before = s->version;
    uint64_t what = draw(3);
    struct flight f = begin_turn(s, true, NULL);
    struct client *sleeper = f.client;
    stream_until(f.call, 1 + draw(4));
    falls_asleep(sleeper);
    f.client = NULL;
    resolve_turn(&f); /* its lease is over */
    bool counted = s->version > before;
    others_act(s, what);
    wakes_up();
    f.client = sleeper;
    struct reply *r = call_finish(f.call);
    bool answered = is_answer(r);
    if (answered && !counted && what < 2)
        fail_msg("a turn on %s was answered although others had the session meanwhile", s->id);
    if (!answered && r->n_events)
        is_told_why(str_at(r->events[r->n_events - 1], "error.code"), what == 0);
    if (answered && !counted)
        turn_answered(&f, r);
    else if (!counted && what == 2)
        resolve_turn(&f);
    reply_free(r);
    reply_free(session_get(sleeper, s->id));
    modelled_rest();
    check_everywhere(s);
}

static bool looked_at(const struct reply *r, void *arg)
{
    unsigned *n = arg;
    (void)r;
    return !*n || !--*n;
}

static int64_t metadata_of(const struct session *s)
{
    struct reply *r = session_get(modelled_client(), s->id);
    int64_t n = at(r->json, "metadata.n") ? int_at(r->json, "metadata.n") : 0;
    reply_free(r);
    return n;
}

static bool is_refusal(const struct reply *r)
{
    return r->status == 409 || r->status == 503 || r->status == 504;
}

/* A PATCH is done before or after what others do, or is refused and not done; or nobody
 * knows (504). */
static void do_sleep_in_a_change(struct session *s)
{
    char body[64];
    struct client *c = modelled_client();
    unsigned n_looks = 1 + (unsigned)draw(4);
    int n = snprintf(body, sizeof body, "{\"metadata\":{\"n\":%lld}}", (long long)s->metadata + 1);
    struct call *k = call_start(c, "PATCH", session_path(s->id, ""), NULL, body, (size_t)n);
    call_until(k, looked_at, &n_looks);
    falls_asleep(c);
    until_free(modelled_client(), s->id);
    one_turn(s);
    wakes_up();
    struct reply *r = call_finish(k);
    modelled_rest();
    if (r->status == 200 || (r->status == 504 && metadata_of(s) == s->metadata + 1))
        s->metadata++;
    else if (!is_refusal(r))
        fail_msg("a change that slept is answered with %ld, %.300s", r->status, r->body);
    reply_free(r);
    check_everywhere(s);
}

/* --- all of it ---------------------------------------------------------------------------------*/

static const struct step own[] = {
    {"restart", do_restart, 3},
    {"delete meanwhile", do_delete_meanwhile, 6},
    {"read meanwhile", do_read_meanwhile, 6},
    {"sleep in a turn", do_sleep_in_a_turn, 3},
    {"sleep in a change", do_sleep_in_a_change, 2},
};
static struct steps how = {.seconds = 12, .more = own, .n_more = sizeof own / sizeof *own};

static void on_a_fleet(void **state)
{
    (void)state;
    steps_run(&how, "a fleet");
}

static int up(void **state)
{
    (void)state;
    api_start(&oracle, (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                             "--sessions-in-memory=64", NULL});
    client_unrecorded(oracle.client);
    histories_init(&modelled.histories, oracle.client);
    fleet_start(&fleet, "sequences",
                (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                      "--sessions-in-memory=6", "--replay-limit=60",
                                      "--drain-timeout=50ms", "--keep-turns=3", "--lease=6s",
                                      "--store-timeout=2s", NULL});
    modelled.fleet = &fleet;
    return 0;
}

static int down(void **state)
{
    (void)state;
    if (modelled.away)
        wakes_up();
    steps_done();
    fleet_abandon(&fleet);
    api_stop(&oracle);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_a_fleet)};
    steps_args(&how, argc, argv);
    return cmocka_run_group_tests_name("sequences_fleet", tests, up, down);
}
