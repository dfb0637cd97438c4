/* fleet_older_test.c: a Redis that came back older than it was (what a crash with appendfsync
 * everysec leaves, or a backup) while its servers went on: they have versions in memory that it
 * never had, and the same numbers come a second time. Nobody goes on from such a memory, and nobody
 * writes it down.
 *
 * What a session says is compared with a mirror (fleet.h), which has only what Redis kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/fleet.h"
#include "tests/support/node.h"

static struct twin t;

/* The node that remembers what was lost, the one whose commits come after it, and a third. */
enum { REMEMBERS, GOES_ON, OTHER };

static const char lost[] = "I have a dog, and his name is Rex.", kept[] = "The cat is called Tom.";

/* In the fleet alone: it will be lost. */
static void lost_turn(const char *id, unsigned seed)
{
    struct gen g;
    turn_of(fleet_at(&t.fleet, REMEMBERS), &g, id, lost, seed);
    gen_done(&g);
}

static void begin(const char *id)
{
    twin_create(&t, id);
    twin_turn(&t, id, REMEMBERS, "Once", 1);
}

/* --- what is in memory -------------------------------------------------------------------------*/

/* The answer to a turn with a key, and whether it was kept from an earlier one. */
static struct reply *keyed_turn(struct client *c, const char *prompt, bool again)
{
    char body[200];
    int n = snprintf(body, sizeof body,
                     "{\"session\":\"keyed\",\"prompt\":\"%s\",\"temperature\":0,"
                     "\"max_tokens\":12,\"return_tokens\":true}",
                     prompt);
    struct reply *r =
        expect(request(c, "POST", "/v1/generate", "Idempotency-Key: k", body, (size_t)n), 200);
    assert_int_equal(reply_header(r, "Idempotent-Replayed") != NULL, again);
    return r;
}

static void keyed_same(struct client *a, struct client *b, const char *prompt)
{
    struct gen got = {.r = keyed_turn(a, prompt, false)},
               want = {.r = keyed_turn(b, prompt, false)};
    output_of(got.r, &got.o);
    output_of(want.r, &want.o);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
}

static void fork_both(unsigned node, const char *from, const char *id)
{
    struct client *all[] = {fleet_at(&t.fleet, node), t.mirror.client};
    for (size_t i = 0; i < 2; i++)
        reply_free(expect(post(all[i], session_path(from, "/fork"), "{'id':'%s'}", id), 201));
}

/* What the node gives as the session's snapshot, made another one elsewhere. */
static void copy_snapshot(const char *from, const char *id)
{
    struct bytes b = snapshot_get(fleet_at(&t.fleet, REMEMBERS), from, "");
    reply_free(expect(snapshot_put(fleet_at(&t.fleet, OTHER), id, b.p, b.n, NULL), 201));
    sl_free(b.p);
    reply_free(expect(post(t.mirror.client, session_path(from, "/fork"), "{'id':'%s'}", id), 201));
}

static void rewind_both(const char *id, int version)
{
    struct client *all[] = {fleet_at(&t.fleet, REMEMBERS), t.mirror.client};
    for (size_t i = 0; i < 2; i++)
        reply_free(
            expect(post(all[i], session_path(id, "/rewind"), "{'version':%d}", version), 200));
}

static void memories_of_a_lost_version(void **state)
{
    (void)state;
    static const char *const ids[] = {"turn", "fork", "copy", "back", "keyed", "further"};
    enum { N = sizeof ids / sizeof *ids };
    for (unsigned i = 0; i < N; i++)
        begin(ids[i]);
    begin("runs");
    redis_keep_copy(&t.fleet.redis);
    for (unsigned i = 0; i < N; i++)
        if (strcmp(ids[i], "keyed") != 0)
            lost_turn(ids[i], 2);
    reply_free(keyed_turn(fleet_at(&t.fleet, REMEMBERS), lost, false));
    lost_turn("further", 3);
    struct call *k =
        stream_start(fleet_at(&t.fleet, REMEMBERS), "'session':'runs','prompt':'Tell','seed':2,"
                                                    "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);

    fleet_redis_is_older(&t.fleet);
    for (unsigned i = 0; i < N; i++)
        if (strcmp(ids[i], "keyed") != 0)
            twin_turn(&t, ids[i], GOES_ON, kept, 2);
    keyed_same(fleet_at(&t.fleet, GOES_ON), t.mirror.client, kept);
    struct reply *r = expect(call_finish(k), 200); /* its lease was lost, too */
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    twin_turn(&t, "runs", GOES_ON, kept, 2);

    twin_turn(&t, "turn", REMEMBERS, "What do I have?", 3);
    twin_turn(&t, "turn", OTHER, "And what is it called?", 4);
    fork_both(REMEMBERS, "fork", "fork--b");
    twin_turn(&t, "fork--b", REMEMBERS, "What do I have?", 3);
    copy_snapshot("copy", "copy--b");
    twin_turn(&t, "copy--b", REMEMBERS, "What do I have?", 3);
    rewind_both("back", 1);
    twin_turn(&t, "back", REMEMBERS, "What do I have?", 3);
    /* As far as the memory, in its number, by two turns. */
    twin_turn(&t, "further", GOES_ON, "Tom is old.", 3);
    twin_turn(&t, "further", REMEMBERS, "What do I have?", 4);
    twin_turn(&t, "runs", REMEMBERS, "What do I have?", 3);
    /* An answer that was lost with its turn is none that is kept; the one that came after it is. */
    reply_free(keyed_turn(fleet_at(&t.fleet, REMEMBERS), kept, true));
    twin_turn(&t, "keyed", REMEMBERS, "What do I have?", 3);
}

/* --- what is written down ----------------------------------------------------------------------*/

static char *stored(const char *id, const char *field)
{
    redisReply *r = redis_ask(&t.fleet.redis, "HGET slate1:{default/%s} %s", id, field);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    char *text = strdup(r->str);
    freeReplyObject(r);
    return text;
}

/* Two have a place, of which a stream has one: when another one gets the other, what was in it has
 * left, and was written down before where it could be. */
static void makes_room(unsigned node)
{
    struct client *c = fleet_at(&t.fleet, node);
    struct gen g;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'stays'}"), 201));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'comes'}"), 201));
    struct call *k = stream_start(c, "'session':'stays','prompt':'Tell','seed':1,"
                                     "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    turn_of(c, &g, "comes", "Once", 1);
    gen_done(&g);
    reply_free(expect(session_post(c, "stays", "/cancel"), 200));
    reply_free(expect(call_finish(k), 200));
    reply_free(expect(del(c, "/v1/sessions/stays"), 200));
    reply_free(expect(del(c, "/v1/sessions/comes"), 200));
}

/* What a node writes down when it makes room; n: turns after the one that was lost. */
static void room_is_made(const char *id, unsigned n, bool is_lost)
{
    begin(id);
    redis_keep_copy(&t.fleet.redis);
    if (is_lost) {
        lost_turn(id, 2);
        fleet_redis_is_older(&t.fleet);
    } else {
        twin_turn(&t, id, REMEMBERS, kept, 2);
    }
    for (unsigned i = 0; i < n; i++)
        twin_turn(&t, id, GOES_ON, kept, 2 + i);
    char *before = stored(id, "sv");
    makes_room(REMEMBERS);
    char *after = stored(id, "sv");
    assert_int_equal(strcmp(before, after) == 0, is_lost);
    free(before);
    free(after);
    twin_turn(&t, id, OTHER, "What do I have?", 10);
    twin_turn(&t, id, REMEMBERS, "What is it called?", 11);
}

static void what_makes_room_is_written_where_it_is_true(void **state)
{
    (void)state;
    room_is_made("last", 1, true);
    room_is_made("earlier", 3, true);
    room_is_made("true", 0, false);
    room_is_made("true-still", 2, false);
}

static int start(void **state)
{
    (void)state;
    twin_start(&t, "older", (const char *const[]){"--keep-turns=4", NULL});
    return 0;
}

/* Nothing is written down but what makes room, however slow the machine. */
static int start_with_two(void **state)
{
    (void)state;
    twin_start(&t, "older",
               (const char *const[]){"--sessions-in-memory=2", "--replay-limit=100000", NULL});
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
    const struct CMUnitTest memories[] = {cmocka_unit_test(memories_of_a_lost_version)};
    const struct CMUnitTest writes[] = {
        cmocka_unit_test(what_makes_room_is_written_where_it_is_true)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests_name("memories", memories, start, stop);
    return failed + cmocka_run_group_tests_name("writes", writes, start_with_two, stop);
}
