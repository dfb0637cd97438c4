/* fleet_test.c: three servers that share a Redis: any of them serves any session, as one server
 * would, and one at a time.
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
#include "tests/support/pictures.h"

static struct twin t;

/* --- one conversation, many servers ------------------------------------------------------------*/

static void turns_on_changing_nodes(void **state)
{
    (void)state;
    twin_create(&t, "walk");
    for (unsigned i = 0; i < 24; i++)
        twin_turn(&t, "walk", i % 5 + i / 7, "And then?", 100 + i);
    /* What a node still has in memory of an older version is not used. */
    for (unsigned i = 0; i < 6; i++)
        twin_turn(&t, "walk", 2 - i % 2, "Go on.", 200 + i);
    struct bytes a = snapshot_get(fleet_at(&t.fleet, 0), "walk", ""),
                 b = snapshot_get(fleet_at(&t.fleet, 1), "walk", "");
    assert_string_equal(a.etag, b.etag);
    sl_free(a.p);
    sl_free(b.p);
}

/* Paused here, finished there; forked there, and both go on. */
static void pauses_and_forks_move(void **state)
{
    struct gen got, want;
    (void)state;
    twin_create(&t, "pause");
    twin_turn(&t, "pause", 1, "Once", 1);
    struct call *k =
        stream_start(fleet_at(&t.fleet, 0), "'session':'pause','prompt':'Tell me','seed':5,"
                                            "'max_tokens':4000,'ignore_eos':true,"
                                            "'return_tokens':true");
    stream_until(k, 20);
    struct call *p = pause_start(fleet_at(&t.fleet, 0), "pause");
    struct parts parts;
    parts_init(&parts);
    parts_add(&parts, call_finish(k));
    reply_free(expect(call_finish(p), 200));
    assert_true(parts_paused(&parts));
    parts_add(&parts,
              call_finish(stream_start(fleet_at(&t.fleet, 2), "'session':'pause','resume':true,"
                                                              "'return_tokens':true")));
    generate(t.mirror.client, &want,
             "'session':'pause','prompt':'Tell me','seed':5,'max_tokens':4000,'ignore_eos':true,"
             "'return_tokens':true");
    assert_string_equal(parts.all.text, want.o.text);
    gen_done(&want);
    parts_done(&parts);
    struct client *all[] = {fleet_at(&t.fleet, 1), t.mirror.client};
    for (size_t i = 0; i < 2; i++)
        reply_free(expect(post(all[i], "/v1/sessions/pause/fork", "{'id':'pause--b'}"), 201));
    twin_turn(&t, "pause--b", 0, "What then?", 9);
    twin_turn(&t, "pause", 2, "What then?", 10);
    twin_turn(&t, "pause--b", 2, "And?", 11);
    (void)got;
}

static void changes_are_seen_everywhere(void **state)
{
    (void)state;
    twin_create(&t, "seen");
    twin_turn(&t, "seen", 1, "Once", 3);
    reply_free(
        expect(patch(fleet_at(&t.fleet, 2), "/v1/sessions/seen", "{'metadata':{'a':1}}"), 200));
    struct reply *r = session_get(fleet_at(&t.fleet, 0), "seen");
    assert_int_equal(int_at(r->json, "metadata.a"), 1);
    assert_int_equal(int_at(r->json, "version"), 1);
    const char *etag = reply_header(r, "ETag");
    char lines[200];
    snprintf(lines, sizeof lines, "If-Match: %s", etag);
    reply_free(r);
    twin_turn(&t, "seen", 2, "More", 4);
    /* Node 0 is asked with an ETag that is over, although it has seen no later one. */
    expect_error(request(fleet_at(&t.fleet, 0), "PATCH", "/v1/sessions/seen", lines, "{}", 2), 412,
                 "version_mismatch", "If-Match");
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        r = expect(get(fleet_at(&t.fleet, i), "/v1/sessions?prefix=see"), 200);
        assert_int_equal(len_at(r->json, "data"), 1);
        assert_int_equal(int_at(r->json, "data.0.version"), 2);
        reply_free(r);
    }
    expect_error(post(fleet_at(&t.fleet, 1), "/v1/sessions", "{'id':'seen'}"), 409,
                 "session_exists", "id");
    reply_free(expect(del(fleet_at(&t.fleet, 0), "/v1/sessions/seen"), 200));
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        expect_error(post(fleet_at(&t.fleet, i), "/v1/generate",
                          "{'session':'seen','prompt':'Are you there?'}"),
                     404, "session_not_found", "session");
        expect_error(get(fleet_at(&t.fleet, i), "/v1/sessions/seen"), 404, "session_not_found",
                     "session");
    }
    /* A new life under the old name is another one, also where the old one is remembered. */
    reply_free(expect(post(fleet_at(&t.fleet, 2), "/v1/sessions", "{'id':'seen'}"), 201));
    struct gen g;
    turn_of(fleet_at(&t.fleet, 1), &g, "seen", "Once", 3);
    assert_int_equal(int_at(g.r->json, "version"), 1);
    gen_done(&g);
    /* Also where nobody has asked meanwhile: such a turn is told to come again, once. */
    reply_free(expect(del(fleet_at(&t.fleet, 0), "/v1/sessions/seen"), 200));
    reply_free(expect(post(fleet_at(&t.fleet, 2), "/v1/sessions", "{'id':'seen'}"), 201));
    expect_error(call_finish(turn_start(fleet_at(&t.fleet, 1), "seen", "Once", 3)), 409,
                 "session_busy", "session");
    turn_of(fleet_at(&t.fleet, 1), &g, "seen", "Once", 3);
    assert_int_equal(int_at(g.r->json, "version"), 1);
    gen_done(&g);
}

/* Back to the same version in both, through any node; what follows is the same. */
static void rewind_both(const char *id, unsigned node, int version)
{
    struct client *all[] = {fleet_at(&t.fleet, node), t.mirror.client};
    for (size_t i = 0; i < 2; i++) {
        struct reply *r =
            expect(post(all[i], session_path(id, "/rewind"), "{'version':%d}", version), 200);
        assert_int_equal(int_at(r->json, "rewound_to"), version);
        reply_free(r);
    }
}

static void rewinds_on_changing_nodes(void **state)
{
    (void)state;
    twin_create(&t, "back");
    for (unsigned i = 0; i < 8; i++)
        twin_turn(&t, "back", i, "And then?", 300 + i);
    rewind_both("back", 1, 5); /* node 1 saw version 8 last */
    twin_turn(&t, "back", 0, "Another way.", 400);
    twin_turn(&t, "back", 2, "And on.", 401);
    rewind_both("back", 2, 8); /* what was there before */
    twin_turn(&t, "back", 1, "As if nothing had been.", 402);
    reply_free(expect(session_post(fleet_at(&t.fleet, 0), "back", "/pause"), 200));
    rewind_both("back", 0, 10);
    struct picture a = picture_of(fleet_at(&t.fleet, 2), "back"),
                   b = picture_of(t.mirror.client, "back");
    picture_same(&a, &b);
    picture_done(&b);
    expect_error(post(fleet_at(&t.fleet, 1), session_path("back", "/rewind"), "{'version':900}"),
                 404, "checkpoint_not_found", "version");
    /* Its transcript is that of version 10, by whichever nodes it was said. */
    reply_free(expect(session_post(fleet_at(&t.fleet, 1), "back", "/rebuild"), 200));
    b = picture_of(fleet_at(&t.fleet, 0), "back");
    picture_same(&a, &b);
    picture_done(&a);
    picture_done(&b);
}

/* The same of both, through any node: a name, back to it, a fork there, the name's end. */
static void both(unsigned node, const char *id, const char *action, const char *body, int status)
{
    struct client *all[] = {fleet_at(&t.fleet, node), t.mirror.client};
    for (size_t i = 0; i < 2; i++)
        reply_free(expect(post(all[i], session_path(id, action), "%s", body), status));
}

static void names_on_changing_nodes(void **state)
{
    (void)state;
    twin_create(&t, "named");
    for (unsigned i = 0; i < 3; i++)
        twin_turn(&t, "named", i, "And then?", 500 + i);
    both(1, "named", "/checkpoints", "{\"name\":\"third\"}", 201);
    for (unsigned i = 0; i < 14; i++) { /* far more than --keep-turns */
        twin_turn(&t, "named", i, "On and on.", 510 + i);
        if (i % 3 == 1)
            reply_free(
                expect(session_post(fleet_at(&t.fleet, i % FLEET_NODES), "named", "/pause"), 200));
    }
    expect_error(
        post(fleet_at(&t.fleet, 0), session_path("named", "/checkpoints"), "{'name':'third'}"), 409,
        "checkpoint_exists", "name");
    both(2, "named", "/rewind", "{\"checkpoint\":\"third\"}", 200);
    twin_turn(&t, "named", 0, "Another way.", 530);
    both(1, "named", "/fork", "{\"id\":\"aside\",\"checkpoint\":\"third\"}", 201);
    twin_turn(&t, "aside", 2, "Aside.", 531);
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        struct reply *r = expect(session_get(fleet_at(&t.fleet, i), "named"), 200);
        assert_true(int_at(r->json, "kept_bytes") >= int_at(r->json, "bytes"));
        reply_free(r);
    }
    reply_free(
        expect(del(fleet_at(&t.fleet, 0), session_path("named", "/checkpoints/third")), 200));
    expect_error(
        post(fleet_at(&t.fleet, 1), session_path("named", "/rewind"), "{'checkpoint':'third'}"),
        404, "checkpoint_not_found", "checkpoint");
    twin_turn(&t, "named", 1, "And on.", 532);
}

/* --- keys and leases ---------------------------------------------------------------------------*/

#define KEYED_BODY "{\"session\":\"keyed\",\"prompt\":\"Once\",\"seed\":7,\"max_tokens\":8}"

static struct call *keyed_start(struct client *c, const char *key, const char *body)
{
    char lines[80];
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", key);
    return call_start(c, "POST", "/v1/generate", lines, body, strlen(body));
}

static void keys_count_on_every_node(void **state)
{
    (void)state;
    reply_free(expect(post(fleet_at(&t.fleet, 0), "/v1/sessions", "{'id':'keyed'}"), 201));
    struct reply *first =
        expect(call_finish(keyed_start(fleet_at(&t.fleet, 0), "k-1", KEYED_BODY)), 200);
    assert_null(reply_header(first, "Idempotent-Replayed"));
    for (unsigned i = 0; i < 2 * FLEET_NODES; i++) {
        struct reply *r =
            expect(call_finish(keyed_start(fleet_at(&t.fleet, i), "k-1", KEYED_BODY)), 200);
        assert_non_null(reply_header(r, "Idempotent-Replayed"));
        assert_string_equal(r->body, first->body);
        reply_free(r);
    }
    reply_free(first);
    expect_error(
        call_finish(keyed_start(fleet_at(&t.fleet, 1), "k-1",
                                "{\"session\":\"keyed\",\"prompt\":\"x\",\"max_tokens\":8}")),
        422, "idempotency_mismatch", "Idempotency-Key");
    assert_int_equal(session_version(fleet_at(&t.fleet, 2), "keyed"), 1);
    /* Both at once on two nodes: one runs, the other is told so or is answered again. */
    for (unsigned i = 0; i < 12; i++) {
        char key[16];
        snprintf(key, sizeof key, "k-2-%u", i);
        struct call *a = keyed_start(fleet_at(&t.fleet, i), key, KEYED_BODY),
                    *b = keyed_start(fleet_at(&t.fleet, i + 1), key, KEYED_BODY);
        struct reply *ra = call_finish(a), *rb = call_finish(b);
        struct reply *r[2] = {ra, rb};
        unsigned ok = 0;
        for (size_t n = 0; n < 2; n++) {
            ok += r[n]->status == 200;
            if (r[n]->status == 200)
                reply_free(r[n]);
            else if (!strcmp(str_at(r[n]->json, "error.code"), "session_busy"))
                expect_error(r[n], 409, "session_busy", "session");
            else
                expect_error(r[n], 409, "idempotency_in_flight", "Idempotency-Key");
        }
        assert_true(ok >= 1);
        assert_int_equal(session_version(fleet_at(&t.fleet, i + 2), "keyed"), 2 + i);
    }
}

#define LONG_KEYED                                                                                 \
    "{\"session\":\"busy\",\"prompt\":\"Once\",\"max_tokens\":20000,\"ignore_eos\":true,"          \
    "\"stream\":true}"
#define ENDLESS "\"prompt\":\"Once\",\"max_tokens\":1000000,\"ignore_eos\":true,\"stream\":true"

static void one_turn_at_a_time_in_all_of_it(void **state)
{
    (void)state;
    reply_free(expect(post(fleet_at(&t.fleet, 0), "/v1/sessions", "{'id':'busy'}"), 201));
    struct call *k = keyed_start(fleet_at(&t.fleet, 0), "long", LONG_KEYED);
    call_until_events(k, 1);
    expect_error(call_finish(keyed_start(fleet_at(&t.fleet, 1), "long", LONG_KEYED)), 409,
                 "idempotency_in_flight", "Idempotency-Key");
    call_abort(k);
    until_free(fleet_at(&t.fleet, 1), "busy");
    static const char body[] = "{\"session\":\"busy\"," ENDLESS "}";
    k = call_start(fleet_at(&t.fleet, 0), "POST", "/v1/generate", NULL, body, sizeof body - 1);
    call_until_events(k, 1);
    for (unsigned i = 1; i < FLEET_NODES; i++) {
        struct client *c = fleet_at(&t.fleet, i);
        expect_error(post(c, "/v1/generate", "{'session':'busy','prompt':'x'}"), 409,
                     "session_busy", "session");
        expect_error(del(c, "/v1/sessions/busy"), 409, "session_busy", "session");
        expect_error(patch(c, "/v1/sessions/busy", "{'ttl_s':9}"), 409, "session_busy", "session");
        assert_true(session_busy(c, "busy"));
        struct reply *r = session_get(c, "busy"); /* the last commit is shown, and can be forked */
        assert_int_equal(int_at(r->json, "version"), 0);
        reply_free(r);
        reply_free(expect(post(c, "/v1/sessions/busy/fork", "{}"), 201));
    }
    /* Longer than a lease: it is renewed. */
    int64_t begun = client_now_ms();
    for (size_t n = 2; client_now_ms() < begun + FLEET_LEASE_MS + FLEET_LEASE_MS / 2; n += 10)
        call_until_events(k, n);
    const struct reply *so_far = call_reply(k);
    if (so_far->over)
        fail_msg("the stream has ended: %s", so_far->body + so_far->n_body - 300);
    expect_error(post(fleet_at(&t.fleet, 1), "/v1/generate", "{'session':'busy','prompt':'x'}"),
                 409, "session_busy", "session");
    reply_free(expect(session_post(fleet_at(&t.fleet, 0), "busy", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_true(r->done);
    reply_free(r);
    /* It is free at once, everywhere. */
    reply_free(expect(post(fleet_at(&t.fleet, 1), "/v1/generate",
                           "{'session':'busy','prompt':'x','max_tokens':1}"),
                      200));
    assert_int_equal(session_version(fleet_at(&t.fleet, 2), "busy"), 2);
}

/* --- the end of a turn on another node -----------------------------------------------------------
 */

static void expect_cancelled(struct client *c, const char *id, bool ran)
{
    struct reply *r = expect(session_post(c, id, "/cancel"), 200);
    assert_int_equal(bool_at(r->json, "cancelled"), ran);
    reply_free(r);
}

/* What it gave is committed, everywhere, when the answer comes. */
static void a_turn_is_cancelled_from_any_node(void **state)
{
    (void)state;
    reply_free(expect(post(fleet_at(&t.fleet, 0), "/v1/sessions", "{'id':'end'}"), 201));
    for (unsigned i = 0; i < 2 * FLEET_NODES; i++) {
        struct client *runs = fleet_at(&t.fleet, i), *asked = fleet_at(&t.fleet, i + 1 + i / 3);
        struct call *k = stream_start(runs, "'session':'end','prompt':'Tell','seed':3,"
                                            "'max_tokens':1000000,'ignore_eos':true");
        call_until_events(k, 3);
        expect_cancelled(asked, "end", true);
        assert_false(session_busy(asked, "end"));
        assert_int_equal(session_version(fleet_at(&t.fleet, i + 2), "end"), i + 1);
        struct reply *r = expect(call_finish(k), 200);
        assert_true(r->done);
        assert_string_equal(str_at(r->events[r->n_events - 1], "finish_reason"), "cancelled");
        reply_free(r);
        expect_cancelled(asked, "end", false);
    }
}

/* Byte for byte: paused by one, stored, and finished by a third. A fast machine may be through
 * before it hears of the second pause. */
static void a_turn_is_paused_from_any_node(void **state)
{
#define TELL "'session':'rest','prompt':'Tell me','seed':6,'max_tokens':100000,'ignore_eos':true"
    struct gen want;
    struct parts parts;
    (void)state;
    twin_create(&t, "rest");
    parts_init(&parts);
    struct call *k = stream_start(fleet_at(&t.fleet, 0), TELL ",'return_tokens':true");
    for (unsigned i = 0; i < 3 && k; i++) {
        stream_until(k, 15);
        struct reply *r = expect(session_post(fleet_at(&t.fleet, i + 1), "rest", "/pause"), 200);
        assert_int_equal(int_at(r->json, "version"), i + 1);
        assert_false(bool_at(r->json, "busy"));
        reply_free(r);
        parts_add(&parts, call_finish(k));
        k = NULL;
        if (parts_paused(&parts))
            k = stream_start(fleet_at(&t.fleet, i + 1),
                             "'session':'rest','resume':true,'return_tokens':true");
    }
    assert_true(parts.n > 1 || k);
    if (k)
        parts_add(&parts, call_finish(k));
    assert_string_equal(str_at(parts.all.final, "finish_reason"), "length");
    generate(t.mirror.client, &want, TELL ",'return_tokens':true");
    assert_string_equal(parts.all.text, want.o.text);
    gen_done(&want);
    parts_done(&parts);
#undef TELL
}

/* Its node is asleep: the answer comes when the lease is over, and the turn has not counted. */
static void a_turn_whose_node_is_gone_is_over_with_its_lease(void **state)
{
    (void)state;
    twin_create(&t, "gone");
    twin_turn(&t, "gone", 1, "Once", 1);
    struct call *k = stream_start(fleet_at(&t.fleet, 0), "'session':'gone','prompt':'Tell',"
                                                         "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 3);
    fleet_node_signal(&t.fleet, 0, SIGSTOP);
    int64_t begun = client_now_ms();
    expect_cancelled(fleet_at(&t.fleet, 1), "gone", true);
    assert_true(client_now_ms() - begun > FLEET_LEASE_MS / 2);
    assert_int_equal(session_version(fleet_at(&t.fleet, 2), "gone"), 1);
    /* What was asked of that turn is not asked of the next one. */
    struct call *next = turn_start(fleet_at(&t.fleet, 2), "gone", "And?", 2);
    fleet_node_signal(&t.fleet, 0, SIGCONT);
    struct gen got, want;
    generate_finish(next, &got);
    turn_of(t.mirror.client, &want, "gone", "And?", 2);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
    struct reply *r = expect(call_finish(k), 200);
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    twin_turn(&t, "gone", 0, "Go on.", 3);
}

/* --- a lease that is lost ------------------------------------------------------------------------
 */

/* The retry of one that is refused as busy, until it is not. Gives the milliseconds. */
static int64_t turn_when_free(struct client *c, const char *id, const char *prompt, unsigned seed,
                              struct gen *ret)
{
    int64_t begun = client_now_ms();
    for (;;) {
        struct reply *r = call_finish(turn_start(c, id, prompt, seed));
        if (r->status == 200) {
            ret->r = r;
            output_of(r, &ret->o);
            return client_now_ms() - begun;
        }
        expect_error(r, 409, "session_busy", "session");
        if (client_now_ms() > begun + 2 * FLEET_LEASE_MS)
            fail_msg("session %s stays busy", id);
    }
}

/* A server that sleeps through the end of its lease changes nothing afterwards. */
static void who_sleeps_loses_the_lease(void **state)
{
    struct gen got, want;
    (void)state;
    twin_create(&t, "asleep");
    twin_turn(&t, "asleep", 0, "Once", 1);
    struct call *k =
        stream_start(fleet_at(&t.fleet, 0), "'session':'asleep','prompt':'Tell','seed':2,"
                                            "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 3);
    fleet_node_signal(&t.fleet, 0, SIGSTOP);
    int64_t ms = turn_when_free(fleet_at(&t.fleet, 1), "asleep", "And then?", 3, &got);
    assert_true(ms > FLEET_LEASE_MS / 2); /* it was held until then */
    fleet_node_signal(&t.fleet, 0, SIGCONT);
    struct reply *r = expect(call_finish(k), 200); /* the stream had begun */
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    turn_of(t.mirror.client, &want, "asleep", "And then?", 3);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
    for (unsigned i = 0; i < 4; i++) /* the sleeper, too, goes on from what counts */
        twin_turn(&t, "asleep", i, "Go on.", 10 + i);
}

/* --- what a move costs --------------------------------------------------------------------------
 */

/* Turns that land on another node each time do not read again all that the others have read. */
static void a_move_reads_little_again(void **state)
{
    enum { TURNS = 60, FEW = 4 };
    (void)state;
    twin_create(&t, "moves");
    for (unsigned i = 0; i < TURNS; i++)
        twin_turn(&t, "moves", i, "And then?", 100 + i);
    struct reply *r = session_get(fleet_at(&t.fleet, 0), "moves");
    long seen = int_at(r->json, "tokens_seen");
    reply_free(r);
    double reread = fleet_metric(&t.fleet, "slate_session_reread_tokens_total");
    printf("%u turns on changing nodes: %ld tokens, %.0f read again\n", TURNS, seen, reread);
    assert_true(reread > 0); /* the first move found no snapshot */
    assert_true(reread < (double)seen * FEW);
}

/* A snapshot may be written while tokens after the one before are still to be read: they count for
 * whoever reads them. */
static void what_is_unread_counts_for_its_reader(void **state)
{
    enum { TURNS = 6 };
    static const char reread[] = "slate_session_reread_tokens_total",
                      saves[] = "slate_session_saves_total";
    struct client *shows = fleet_at(&t.fleet, 1), *reads = fleet_at(&t.fleet, 2),
                  *goes_on = fleet_at(&t.fleet, 0);
    (void)state;
    twin_create(&t, "unread");
    for (unsigned i = 0; i < TURNS; i++)
        twin_turn(&t, "unread", 0, "And then?", 300 + i);
    struct reply *r = session_get(shows, "unread");
    long seen = int_at(r->json, "tokens_seen");
    reply_free(r);
    sl_free(snapshot_get(shows, "unread", "").p);
    reply_free(expect(session_post(shows, "unread", "/pause"), 200)); /* it is written there */
    double before = metric(reads, reread), written = metric(reads, saves);
    twin_turn(&t, "unread", 2, "And then?", 400);
    assert_true(metric(reads, reread) - before > (double)seen / 2);
    for (int64_t begun = client_now_ms(); metric(reads, saves) == written;)
        if (client_now_ms() > begun + 10000)
            fail_msg("who has read them writes no snapshot");
    before = metric(goes_on, reread);
    twin_turn(&t, "unread", 0, "And then?", 401);
    assert_true(metric(goes_on, reread) - before < (double)seen / 2);
}

/* --- all of it ---------------------------------------------------------------------------------*/

static int start(void **state)
{
    (void)state;
    twin_start(&t, "fleet",
               (const char *const[]){"--sessions-in-memory=16", "--replay-limit=60",
                                     "--keep-turns=8", "--keep-transcript", NULL});
    return 0;
}

static int start_with_long_replays(void **state)
{
    (void)state;
    twin_start(&t, "moving", (const char *const[]){"--replay-limit=10000", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    twin_abandon(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_on_changing_nodes),
        cmocka_unit_test(pauses_and_forks_move),
        cmocka_unit_test(changes_are_seen_everywhere),
        cmocka_unit_test(rewinds_on_changing_nodes),
        cmocka_unit_test(names_on_changing_nodes),
        cmocka_unit_test(keys_count_on_every_node),
        cmocka_unit_test(one_turn_at_a_time_in_all_of_it),
        cmocka_unit_test(a_turn_is_cancelled_from_any_node),
        cmocka_unit_test(a_turn_is_paused_from_any_node),
        cmocka_unit_test(a_turn_whose_node_is_gone_is_over_with_its_lease),
        cmocka_unit_test(who_sleeps_loses_the_lease),
    };
    const struct CMUnitTest moving[] = {cmocka_unit_test(a_move_reads_little_again),
                                        cmocka_unit_test(what_is_unread_counts_for_its_reader)};
    int failed = cmocka_run_group_tests_name("fleet", tests, start, stop);
    return failed + cmocka_run_group_tests_name("moving", moving, start_with_long_replays, stop);
}
