/* rewind_test.c: POST …/rewind and GET …/checkpoints, over a store in memory and over `dir:`.
 *
 * What a session was at a version is written down while it is there: the tensors and what is
 * pending, from its snapshot, and the answer to the turn that followed. After a rewind all of it
 * must be the same again, to the byte, however it got there: from a slot, from an earlier snapshot
 * with the turns since, out of the store after kill -9, from a session that is not in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/pictures.h"

enum { KEEP = 4, TURNS = 9 };

static struct node node;

static int abandon(void **state)
{
    (void)state;
    node_abandon(&node);
    return 0;
}

/* --- what a session is ------------------------------------------------------------------------ */

/* What was seen of one version: how it looks, and the turn that began there. */
struct was {
    struct picture picture;
    struct gen next;
    bool has_next;
};

static struct was was[64];

static void forget(void)
{
    for (size_t i = 0; i < sizeof was / sizeof *was; i++) {
        picture_done(&was[i].picture);
        if (was[i].has_next)
            gen_done(&was[i].next);
    }
    memset(was, 0, sizeof was);
}

static const char *prompt_of(size_t turn)
{
    static char text[32];
    snprintf(text, sizeof text, " and turn %zu", turn);
    return text;
}

/* Turns 1 … TURNS, each from what was written down before it. */
static void live(struct client *c, const char *id)
{
    was[0].picture = picture_of(c, id);
    for (size_t t = 1; t <= TURNS; t++) {
        turn_of(c, &was[t - 1].next, id, prompt_of(t), (unsigned)t);
        was[t - 1].has_next = true;
        assert_int_equal(session_version(c, id), t);
        was[t].picture = picture_of(c, id);
    }
}

static struct reply *rewind_to(struct client *c, const char *id, size_t version)
{
    return post(c, session_path(id, "/rewind"), "{'version':%zu}", version);
}

/* It is as it was at `as`, and goes on as it did; `at`: its version. */
static void must_be_as(struct client *c, const char *id, size_t as, int64_t at)
{
    struct picture now = picture_of(c, id);
    picture_same(&now, &was[as].picture);
    picture_done(&now);
    assert_int_equal(session_version(c, id), at);
}

static void must_go_on_as(struct client *c, const char *id, size_t as, int64_t at)
{
    struct gen g;
    must_be_as(c, id, as, at);
    turn_of(c, &g, id, prompt_of(as + 1), (unsigned)as + 1);
    output_same(&g.o, &was[as].next.o);
    gen_done(&g);
    must_be_as(c, id, as + 1, at + 1);
}

static void rewind_as(struct client *c, const char *id, size_t version, int64_t *at)
{
    struct reply *r = expect(rewind_to(c, id, version), 200);
    assert_int_equal(int_at(r->json, "rewound_to"), version);
    assert_int_equal(int_at(r->json, "version"), ++*at);
    reply_free(r);
}

static void start(const char *store, const char *const *more)
{
    const char *options[12] = {"--keep-turns=4", "--sessions-in-memory=4"};
    size_t n = 2;
    for (; more && *more; more++)
        options[n++] = *more;
    node_init(&node, "rewind", options);
    if (store)
        snprintf(node.store, sizeof node.store, "%s", store);
    node_start(&node);
}

static const char *made(struct client *c)
{
    reply_free(expect(post(c, "/v1/sessions", "{'id':'it','metadata':{'a':1},'ttl_s':500}"), 201));
    return "it";
}

/* --- the same again --------------------------------------------------------------------------- */

/* Each version that is kept, the rewound ones too. */
static void all_ways(struct client *c, const char *id)
{
    int64_t at = TURNS;
    live(c, id);
    rewind_as(c, id, TURNS - KEEP, &at);
    must_go_on_as(c, id, TURNS - KEEP, at++);
    rewind_as(c, id, TURNS - 1, &at);
    must_go_on_as(c, id, TURNS - 1, at++);
    rewind_as(c, id, TURNS, &at); /* what was there before the first one */
    must_be_as(c, id, TURNS, at);
    rewind_as(c, id, (size_t)at, &at); /* as it is: only the version is another */
    must_be_as(c, id, TURNS, at);
    struct reply *r = expect(session_get(c, id), 200);
    assert_int_equal(int_at(r->json, "ttl_s"), 500);
    assert_int_equal(int_at(r->json, "metadata.a"), 1);
    reply_free(r);
}

static void test_memory(void **state)
{
    (void)state;
    start("memory", NULL);
    all_ways(node.a.client, made(node.a.client));
    node_done(&node);
    forget();
}

static void test_dir(void **state)
{
    (void)state;
    start(NULL, NULL);
    all_ways(node.a.client, made(node.a.client));
    node_done(&node);
    forget();
}

/* A snapshot with every turn, and the log rewritten meanwhile. */
static void test_dir_with_snapshots(void **state)
{
    (void)state;
    start(NULL, (const char *const[]){"--replay-limit=1", NULL});
    all_ways(node.a.client, made(node.a.client));
    node_done(&node);
    forget();
}

/* --- out of the store ------------------------------------------------------------------------- */

static void test_after_a_kill(void **state)
{
    (void)state;
    int64_t at = TURNS;
    start(NULL, NULL);
    live(node.a.client, made(node.a.client));
    node_kill(&node);
    node_start(&node);
    assert_false(session_in_memory(node.a.client, "it"));
    rewind_as(node.a.client, "it", TURNS - 3, &at);
    node_kill(&node); /* it was answered: it is there */
    node_start(&node);
    must_go_on_as(node.a.client, "it", TURNS - 3, at++);
    node_kill(&node);
    node_start(&node);
    rewind_as(node.a.client, "it", TURNS, &at);
    must_be_as(node.a.client, "it", TURNS, at);
    node_done(&node);
    forget();
}

static void test_out_of_memory_and_back(void **state)
{
    (void)state;
    int64_t at = TURNS;
    start(NULL, NULL);
    struct client *c = node.a.client;
    live(c, made(c));
    reply_free(expect(session_post(c, "it", "/pause"), 200));
    rewind_as(c, "it", TURNS - 2, &at);
    assert_false(session_in_memory(c, "it")); /* it need not be, for that */
    must_go_on_as(c, "it", TURNS - 2, at++);
    reply_free(expect(session_post(c, "it", "/pause"), 200));
    reply_free(expect(session_post(c, "it", "/resume"), 200));
    rewind_as(c, "it", TURNS, &at);
    must_be_as(c, "it", TURNS, at);
    node_done(&node);
    forget();
}

/* --- a turn that was paused ------------------------------------------------------------------- */

static void paused_turn(const char *store)
{
    start(store, NULL);
    struct client *c = node.a.client;
    struct gen g, whole, again;
    made(c);
    turn_of(c, &g, "it", "Once", 1);
    gen_done(&g);
    struct call *k = stream_start(
        c, "'session':'it','prompt':' upon','max_tokens':4000,'seed':3,'temperature':1,"
           "'ignore_eos':true,'return_tokens':true");
    stream_until(k, 2);
    struct call *pause = pause_start(c, "it");
    reply_free(call_finish(k));
    reply_free(expect(call_finish(pause), 200));
    assert_int_equal(session_version(c, "it"), 2);
    struct picture paused = picture_of(c, "it");
    generate(c, &whole, "'session':'it','resume':true,'max_time_ms':300");
    gen_done(&whole);
    reply_free(expect(rewind_to(c, "it", 2), 200));
    struct picture back = picture_of(c, "it");
    picture_same(&back, &paused);
    reply_free(expect(rewind_to(c, "it", 1), 200));
    expect_error(post(c, "/v1/generate", "{'session':'it','resume':true}"), 409, "nothing_paused",
                 "resume");
    reply_free(expect(rewind_to(c, "it", 2), 200));
    generate(c, &again, "'session':'it','resume':true,'max_time_ms':300");
    gen_done(&again);
    picture_done(&paused);
    picture_done(&back);
    node_done(&node);
}

static void test_paused_turn(void **state)
{
    (void)state;
    paused_turn("memory");
    paused_turn(NULL);
}

/* --- what does not change --------------------------------------------------------------------- */

/* A key that was answered is answered again: what was taken back does not run a second time. */
static void test_idempotency(void **state)
{
    (void)state;
    start(NULL, NULL);
    struct client *c = node.a.client;
    static const char body[] = "{\"session\":\"it\",\"prompt\":\"one\",\"max_tokens\":4}";
    made(c);
    struct reply *first = expect(
        request(c, "POST", "/v1/generate", "Idempotency-Key: k1", body, sizeof body - 1), 200);
    reply_free(expect(rewind_to(c, "it", 0), 200));
    struct reply *again = expect(
        request(c, "POST", "/v1/generate", "Idempotency-Key: k1", body, sizeof body - 1), 200);
    assert_string_equal(first->body, again->body);
    assert_int_equal(session_version(c, "it"), 2);
    reply_free(first);
    reply_free(again);
    node_done(&node);
}

/* A fork has its own past, which begins with it. */
static void test_forks(void **state)
{
    (void)state;
    start(NULL, NULL);
    struct client *c = node.a.client;
    int64_t at = TURNS;
    live(c, made(c));
    reply_free(expect(post(c, session_path("it", "/fork"), "{'id':'other'}"), 201));
    rewind_as(c, "it", TURNS - 1, &at);
    must_be_as(c, "other", TURNS, TURNS);
    expect_error(rewind_to(c, "other", TURNS - 1), 404, "checkpoint_not_found", "version");
    must_go_on_as(c, "it", TURNS - 1, at);
    node_done(&node);
    forget();
}

static void test_if_match(void **state)
{
    (void)state;
    start("memory", NULL);
    struct client *c = node.a.client;
    made(c);
    struct gen g;
    turn_of(c, &g, "it", "Once", 1);
    gen_done(&g);
    struct reply *r = expect(session_get(c, "it"), 200);
    char line[160];
    snprintf(line, sizeof line, "If-Match: %s", reply_header(r, "ETag"));
    reply_free(r);
    static const char body[] = "{\"version\":0}";
    reply_free(expect(
        request(c, "POST", session_path("it", "/rewind"), line, body, sizeof body - 1), 200));
    expect_error(request(c, "POST", session_path("it", "/rewind"), line, body, sizeof body - 1),
                 412, "version_mismatch", "If-Match");
    node_done(&node);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void must_say(struct reply *r, const char *text)
{
    if (!strstr(r->body, text))
        fail_msg("%s does not say '%s'", r->body, text);
    expect_error(r, 404, "checkpoint_not_found", "version");
}

static void refused(const char *store)
{
    start(store, NULL);
    struct client *c = node.a.client;
    made(c);
    live(c, "it");
    for (int i = 0; i < KEEP + 4; i++) { /* the oldest snapshot is gone by then, too */
        struct gen g;
        turn_of(c, &g, "it", " more", 1);
        gen_done(&g);
        reply_free(expect(session_post(c, "it", "/pause"), 200));
    }
    must_say(rewind_to(c, "it", 2),
             "session 'it' is not kept at version 2; kept are (--keep-turns)");
    must_say(rewind_to(c, "it", 100), "to 17");
    assert_int_equal(session_version(c, "it"), 17); /* as it was */
    expect_error(post(c, session_path("it", "/rewind"), "{}"), 400, "missing_field", "version");
    expect_error(post(c, session_path("it", "/rewind"), "{'version':-1}"), 400, "invalid_value",
                 "version");
    expect_error(post(c, session_path("it", "/rewind"), "{'version':'1'}"), 400, "invalid_type",
                 "version");
    expect_error(rewind_to(c, "nobody", 1), 404, "session_not_found", "session");
    reply_free(expect(del(c, session_path("it", "")), 200));
    made(c); /* another life: nothing of the one before */
    expect_error(rewind_to(c, "it", 17), 404, "checkpoint_not_found", "version");
    node_done(&node);
    forget();
}

static void test_refused(void **state)
{
    (void)state;
    refused("memory");
    refused(NULL);
}

static void test_busy(void **state)
{
    (void)state;
    start("memory", NULL);
    struct client *c = node.a.client;
    made(c);
    struct call *k = stream_start(c, "'session':'it','prompt':'Once','max_tokens':100000,"
                                     "'ignore_eos':true,'return_tokens':true");
    stream_until(k, 1);
    expect_error(rewind_to(c, "it", 0), 409, "session_busy", "session");
    reply_free(expect(session_post(c, "it", "/cancel"), 200));
    reply_free(call_finish(k));
    node_done(&node);
}

/* Without --keep-turns there is what it is at, and nothing else. */
static void test_nothing_kept(void **state)
{
    (void)state;
    node_init(&node, "rewind", (const char *const[]){"--sessions-in-memory=4", NULL});
    node_start(&node);
    struct client *c = node.a.client;
    struct gen g;
    made(c);
    turn_of(c, &g, "it", "Once", 1);
    gen_done(&g);
    reply_free(expect(session_post(c, "it", "/pause"), 200));
    must_say(rewind_to(c, "it", 0), "kept are (--keep-turns): 1");
    struct reply *r = expect(get(c, session_path("it", "/checkpoints")), 200);
    assert_int_equal(json_array_size(json_object_get(r->json, "data")), 1);
    reply_free(r);
    node_done(&node);
}

/* --- the list --------------------------------------------------------------------------------- */

static void listed(const char *store)
{
    start(store, NULL);
    struct client *c = node.a.client;
    made(c);
    live(c, "it");
    struct reply *r = expect(get(c, session_path("it", "/checkpoints")), 200);
    const json_t *data = json_object_get(r->json, "data"), *v;
    size_t i, n = json_array_size(data);
    int64_t seen = -1, last = -1;
    assert_true(n > KEEP);
    json_array_foreach(data, i, v)
    {
        int64_t version = json_integer_value(json_object_get(v, "version"));
        int64_t tokens = json_integer_value(json_object_get(v, "tokens_seen"));
        assert_true(version > last && tokens > seen);
        assert_int_equal(json_is_true(json_object_get(v, "current")), i + 1 == n);
        last = version;
        seen = tokens;
    }
    assert_int_equal(last, TURNS);
    reply_free(r);
    r = expect(session_get(c, "it"), 200);
    assert_int_equal(int_at(r->json, "tokens_seen"), seen);
    reply_free(r);
    node_done(&node);
    forget();
}

static void test_list(void **state)
{
    (void)state;
    listed("memory");
    listed(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_dir),
        cmocka_unit_test(test_dir_with_snapshots),
        cmocka_unit_test(test_after_a_kill),
        cmocka_unit_test(test_out_of_memory_and_back),
        cmocka_unit_test(test_paused_turn),
        cmocka_unit_test(test_idempotency),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_if_match),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_nothing_kept),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, abandon);
}
