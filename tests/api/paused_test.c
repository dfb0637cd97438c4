/* paused_test.c: a turn on a session with a paused one, that does not finish it: it goes on from
 * what the client has seen (promise 4). What was chosen and held back, for a stop candidate that
 * was open at the pause, is in no answer, and so in no state.
 *
 * One token is forced, and the stop begins with it, so that the last ones of a pause are held. The
 * reference is a session that was given the same prompt, said what was shown, and ended there. */
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
#include "proto/buf.h"
#include "tests/support/edited.h"
#include "tests/support/pictures.h"
#include "tests/support/redis.h"

#define FORCED "'logit_bias':{'81':100},'temperature':0,'seed':1,'ignore_eos':true" /* Q */

enum { MORE = 500 }; /* tokens of a turn that a pause meets */

static struct node node;
static struct redis redis;

static struct client *client(void)
{
    return node.a.client;
}

/* store NULL: a folder. */
static void up(const char *store)
{
    node_init(&node, "paused",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                    "--sessions-in-memory=16", "--keep-turns=8",
                                    "--keep-transcript", "--max-tokens-limit=1000000", NULL});
    if (store)
        snprintf(node.store, sizeof node.store, "%s", store);
    node_start(&node);
}

static int clean(void **state)
{
    (void)state;
    node_abandon(&node);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){.pid = 0};
    return 0;
}

static void new_named(const char *id)
{
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s'}", id), 201));
}

/* Paused with the last n_held of its Qs held back; gives how many were shown. */
static size_t make_paused(const char *id, const char *stop, size_t n_held)
{
    struct parts p;
    char held[32];
    parts_init(&p);
    new_named(id);
    struct call *k = stream_start(client(),
                                  "'session':'%s','prompt':'Once','max_tokens':1000000,"
                                  "'stop':['%s'],'return_tokens':true," FORCED,
                                  id, stop);
    stream_until(k, 3);
    struct call *pause = pause_start(client(), id);
    parts_add(&p, call_finish(k));
    reply_free(expect(call_finish(pause), 200));
    assert_true(parts_paused(&p));
    struct picture now = picture_of(client(), id);
    snprintf(held, sizeof held, "\\\"held\\\":%zu", n_held);
    assert_non_null(memmem(now.continuation, now.n_continuation, held, strlen(held)));
    picture_done(&now);
    size_t n_shown = p.all.n_tokens;
    assert_true(n_shown >= 3);
    parts_done(&p);
    return n_shown;
}

/* A session that has said as much as was shown. */
static void make_reference(const char *id, size_t n_shown)
{
    struct gen g;
    new_named(id);
    generate(client(), &g, "'session':'%s','prompt':'Once','max_tokens':%zu," FORCED, id, n_shown);
    gen_done(&g);
}

static void reads(const char *id, const char *prompt)
{
    struct gen g;
    generate(client(), &g, "'session':'%s','prompt':'%s','max_tokens':0", id, prompt);
    gen_done(&g);
}

static int64_t seen(const char *id)
{
    struct reply *r = session_get(client(), id);
    int64_t n = int_at(r->json, "tokens_seen");
    reply_free(r);
    return n;
}

/* State, pending tokens, ring. */
static void are_same(const char *a, const char *b)
{
    struct picture x = picture_of(client(), a), y = picture_of(client(), b);
    assert_int_equal(seen(a), seen(b));
    picture_same(&x, &y);
    picture_done(&x);
    picture_done(&y);
}

/* A turn in which penalties count what was said before; paused on the way, or not. */
static void tells_more(const char *id, bool pause, struct parts *p)
{
    parts_init(p);
    struct call *k =
        stream_start(client(),
                     "'session':'%s','prompt':'y','max_tokens':%d,'seed':7,'temperature':1,"
                     "'penalty_last_n':64,'frequency_penalty':0.9,'ignore_eos':true,"
                     "'return_tokens':true",
                     id, MORE);
    if (pause) {
        stream_until(k, 2);
        struct call *pausing = pause_start(client(), id);
        parts_add(p, call_finish(k));
        reply_free(expect(call_finish(pausing), 200));
        assert_true(parts_paused(p));
        k = stream_start(client(), "'session':'%s','resume':true,'return_tokens':true", id);
    }
    parts_add(p, call_finish(k));
    assert_int_equal(p->all.n_tokens, MORE);
}

static void tell_the_same(const char *a, bool pause, const char *b)
{
    struct parts x, y;
    tells_more(a, pause, &x);
    tells_more(b, false, &y);
    assert_memory_equal(x.all.tokens, y.all.tokens, MORE * sizeof *x.all.tokens);
    parts_done(&x);
    parts_done(&y);
}

static struct reply *forked(const char *from, const char *id)
{
    return expect(post(client(), session_path(from, "/fork"), "{'id':'%s'}", id), 201);
}

static void rewinds(const char *id, int64_t version)
{
    reply_free(expect(
        post(client(), session_path(id, "/rewind"), "{'version':%lld}", (long long)version), 200));
}

/* --- what the next turn goes on from -----------------------------------------------------------*/

static void goes_on_from_what_was_shown(const char *stop, size_t n_held)
{
    size_t n = make_paused("it", stop, n_held);
    make_reference("ref", n);
    reply_free(forked("it", "fork"));
    reply_free(forked("it", "more"));
    reply_free(forked("it", "parts"));
    struct bytes b = snapshot_get(client(), "it", "");
    reply_free(expect(snapshot_put(client(), "moved", b.p, b.n, NULL), 201));
    sl_free(b.p);
    reads("ref", "y");
    static const char *const ids[] = {"it", "fork", "moved"};
    for (size_t i = 0; i < 3; i++) {
        reads(ids[i], "y");
        are_same(ids[i], "ref");
        expect_error(post(client(), "/v1/generate", "{'session':'%s','resume':true}", ids[i]), 409,
                     "nothing_paused", "resume");
    }
    /* What it generates, too; the penalties do not count what nobody saw. */
    make_reference("other", n);
    make_reference("again", n);
    tell_the_same("more", false, "other");
    tell_the_same("parts", true, "again");
    are_same("more", "other");
    are_same("parts", "again");
    /* The begin of it can be had again, and finished. */
    rewinds("it", 1);
    reads("it", "");
    make_reference("empty", n);
    reads("empty", "");
    are_same("it", "empty");
    rewinds("it", 1);
    struct gen g;
    generate(client(), &g, "'session':'it','resume':true,'max_time_ms':100,'return_tokens':true");
    assert_true(g.o.n_tokens > n_held);
    gen_done(&g);
    /* What was kept of it leads there, too. */
    reply_free(expect(session_post(client(), "fork", "/rebuild"), 200));
    are_same("fork", "ref");
}

static void in_memory(void **state)
{
    (void)state;
    up("memory");
    goes_on_from_what_was_shown("QZ", 1);
    node_done(&node);
    up("memory");
    goes_on_from_what_was_shown("QQQQZ", 4);
    node_done(&node);
}

/* --- through a store ---------------------------------------------------------------------------*/

/* Killed after the turn, whose record in the log says what was dropped. */
static void comes_back(void)
{
    size_t n = make_paused("it", "QQZ", 2);
    make_reference("ref", n);
    reply_free(forked("it", "said"));
    reads("it", "y");
    reads("ref", "y");
    are_same("it", "ref");
    make_reference("other", n);
    tell_the_same("said", false, "other");
    for (int i = 0; i < 2; i++) {
        node_kill(&node);
        node_start(&node);
        if (i) {
            reply_free(expect(session_post(client(), "it", "/rebuild"), 200));
            reply_free(expect(session_post(client(), "said", "/rebuild"), 200));
        }
        assert_int_equal(seen("it"), seen("ref"));
        reads("it", "z");
        reads("ref", "z");
        are_same("it", "ref");
        tell_the_same("said", false, "other");
        are_same("said", "other");
    }
}

static void in_a_folder(void **state)
{
    (void)state;
    up(NULL);
    goes_on_from_what_was_shown("QZ", 1);
    node_done(&node);
    up(NULL);
    comes_back();
    node_done(&node);
}

static void in_redis(void **state)
{
    (void)state;
    redis_init(&redis, "paused", NULL);
    up(redis.spec);
    goes_on_from_what_was_shown("QZ", 1);
    node_done(&node);
    redis_done(&redis);
    redis_init(&redis, "paused", NULL);
    up(redis.spec);
    comes_back();
    node_done(&node);
}

/* --- a turn that ends before it has read anything ----------------------------------------------*/

/* It is paused itself in the line: what was held is gone, and its prompt is pending; or it is taken
 * back: then everything is as before. */
static void unread(void **state)
{
    (void)state;
    node_init(&node, "paused",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_slow_model(),
                                    "--sessions-in-memory=16", "--max-running=1",
                                    "--max-tokens-limit=1000000", NULL});
    node_start(&node);
    size_t n = make_paused("it", "QZ", 1);
    make_reference("ref", n);
    struct call *busy = stream_start(
        client(), "'prompt':'a','max_tokens':1000000,'ignore_eos':true,'return_tokens':true");
    stream_until(busy, 1);
    struct picture before = picture_of(client(), "it");
    struct call *gone = generate_start(client(), "'session':'it','prompt':'x','max_tokens':0");
    until_metric(client(), "slate_requests_queued", 1);
    call_abort(gone);
    until_free(client(), "it");
    struct picture after = picture_of(client(), "it");
    picture_same(&before, &after);
    picture_done(&before);
    picture_done(&after);
    struct call *k = generate_start(client(), "'session':'it','prompt':'y','max_tokens':0");
    until_metric(client(), "slate_requests_queued", 1);
    struct call *pause = pause_start(client(), "it");
    struct reply *r = expect(call_finish(k), 200);
    assert_string_equal(str_at(r->json, "finish_reason"), "paused");
    reply_free(r);
    reply_free(expect(call_finish(pause), 200));
    call_abort(busy);
    reads("ref", "y");
    assert_int_equal(seen("it"), seen("ref"));
    node_kill(&node);
    node_start(&node);
    reads("it", "z");
    reads("ref", "z");
    are_same("it", "ref");
    node_done(&node);
}

/* --- edited ones ------------------------------------------------------------------------------ */

static void edit(struct bytes *b, const char *key, const char *value)
{
    struct bytes was = *b;
    *b = with_metadata(&was, key, value);
    sl_free(was.p);
}

/* A new session of a snapshot of "base" whose paused turn has so many tokens pending and held; it
 * tells how many it has seen, or not. */
static void put_held(const char *id, size_t n_pending, size_t n_held, bool tells)
{
    struct bytes base = snapshot_get(client(), "base", "");
    struct sl_buf text, seen;
    sl_buf_init(&text, 16 << 20);
    sl_buf_init(&seen, 32);
    for (size_t i = 0; i < n_pending; i++)
        sl_buf_puts(&text, i ? ",81" : "{\"pending\":[81");
    sl_buf_printf(&text, "],\"paused\":{\"seed\":1,\"draws\":0,\"max_tokens\":%zu,\"held\":%zu}}%c",
                  n_held + 1, n_held, '\0');
    sl_buf_printf(&seen, "%zu%c", n_pending, '\0');
    edit(&base, "transcript", NULL);
    edit(&base, "continuation", text.data);
    edit(&base, "session.tokens_seen", tells ? seen.data : NULL);
    reply_free(expect(snapshot_put(client(), id, base.p, base.n, NULL), 201));
    sl_buf_done(&text);
    sl_buf_done(&seen);
    sl_free(base.p);
}

/* More than stop strings can hold, as tokens without a text can: the session goes on, also when it
 * is read from the store. */
static void many_held(void **state)
{
    (void)state;
    up(NULL);
    new_named("base");
    reads("base", "Once");
    put_held("many", 70010, 70000, true);
    put_held("few", 10, 0, true);
    reads("many", "x");
    reads("few", "x");
    assert_int_equal(seen("many"), 11);
    are_same("many", "few");
    node_kill(&node);
    node_start(&node);
    reads("many", "y");
    reads("few", "y");
    assert_int_equal(seen("many"), 12);
    are_same("many", "few");
    node_done(&node);
}

/* A snapshot need not tell how many tokens its session has seen: those that it has pending, then.
 */
static void untold(void **state)
{
    (void)state;
    up(NULL);
    new_named("base");
    reads("base", "Once");
    put_held("told", 6, 5, true);
    put_held("untold", 6, 5, false);
    put_held("resumed", 6, 5, false);
    reads("told", "x");
    reads("untold", "x");
    assert_int_equal(seen("untold"), 2);
    reply_free(expect(post(client(), "/v1/generate", "{'session':'resumed','resume':true}"), 200));
    assert_int_equal(seen("resumed"), 7);
    are_same("told", "untold");
    reply_free(expect(session_post(client(), "untold", "/pause"), 200));
    node_kill(&node);
    node_start(&node);
    reads("told", "y");
    reads("untold", "y");
    are_same("told", "untold");
    node_done(&node);
}

#define TEST(f) cmocka_unit_test_teardown(f, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(in_memory), TEST(in_a_folder), TEST(in_redis),
                                       TEST(unread),    TEST(many_held),   TEST(untold)};
    return cmocka_run_group_tests_name("paused", tests, NULL, NULL);
}
