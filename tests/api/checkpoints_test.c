/* checkpoints_test.c: names for versions of a session: POST, GET and DELETE …/checkpoints, back to
 * one of them, and forks there, over each kind of store.
 *
 * What the session was when it was named is written down: its snapshot's tensors and what is
 * pending, and the turn that followed. However much comes after it, it must be the same again, to
 * the byte; and when the name goes, what was kept for it must go, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/pictures.h"
#include "tests/support/redis.h"

static struct node node;
static struct redis redis;

static const char *const kinds[] = {"memory", "dir", "redis"};
enum { KINDS = 3 };

static int abandon(void **state)
{
    (void)state;
    node_abandon(&node);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){0};
    return 0;
}

static struct client *start(const char *kind, const char *const *more)
{
    const char *options[16] = {"--tokenizer=bytes", "--model", seeded_bytes_model(),
                               "--sessions-in-memory=6", "--session-ttl=0s"};
    size_t n = 5;
    for (; more && *more; more++)
        options[n++] = *more;
    node_init(&node, "checkpoints", options);
    if (!strcmp(kind, "redis"))
        redis_init(&redis, "checkpoints", NULL);
    if (strcmp(kind, "dir") != 0)
        snprintf(node.store, sizeof node.store, "%s", redis.pid ? redis.spec : kind);
    node_start(&node);
    return node.a.client;
}

static void stop(void)
{
    node_done(&node);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){0};
}

static bool survives(const char *kind)
{
    return strcmp(kind, "memory") != 0;
}

static void make(struct client *c, const char *id)
{
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", id), 201));
}

/* So many turns; after each second one a snapshot of it is written, where there is a store. */
static void live(struct client *c, const char *id, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct gen g;
        turn_of(c, &g, id, " on and on", i + 7);
        gen_done(&g);
        if (i % 2)
            reply_free(expect(session_post(c, id, "/pause"), 200));
    }
}

static struct reply *name_it(struct client *c, const char *id, const char *name)
{
    return post(c, session_path(id, "/checkpoints"), "{'name':'%s'}", name);
}

static struct reply *unname(struct client *c, const char *id, const char *name)
{
    char rest[200];
    snprintf(rest, sizeof rest, "/checkpoints/%s", name);
    return del(c, session_path(id, rest));
}

static struct reply *rewind_to(struct client *c, const char *id, const char *name)
{
    return post(c, session_path(id, "/rewind"), "{'checkpoint':'%s'}", name);
}

static int64_t kept_bytes(struct client *c, const char *id)
{
    struct reply *r = expect(session_get(c, id), 200);
    int64_t n = int_at(r->json, "kept_bytes");
    reply_free(r);
    return n;
}

static int64_t state_bytes(struct client *c, const char *id)
{
    struct reply *r = expect(session_get(c, id), 200);
    int64_t n = int_at(r->json, "bytes");
    reply_free(r);
    return n;
}

/* How many names the list shows for a version; -1: the version is not there. */
static int names_at(struct client *c, const char *id, int64_t version)
{
    struct reply *r = expect(get(c, session_path(id, "/checkpoints")), 200);
    const json_t *v;
    size_t i;
    int n = -1;
    json_array_foreach(json_object_get(r->json, "data"), i, v)
    {
        if (json_integer_value(json_object_get(v, "version")) == version)
            n = (int)json_array_size(json_object_get(v, "names"));
    }
    reply_free(r);
    return n;
}

/* --- a moment, written down ------------------------------------------------------------------- */

struct moment {
    struct picture picture;
    struct gen next;
    int64_t version;
};

/* Names it, and plays the turn that follows. */
static struct moment mark(struct client *c, const char *id, const char *name)
{
    struct moment m = {.picture = picture_of(c, id), .version = session_version(c, id)};
    struct reply *r = expect(name_it(c, id, name), 201);
    assert_string_equal(str_at(r->json, "name"), name);
    assert_string_equal(str_at(r->json, "session"), id);
    assert_int_equal(int_at(r->json, "version"), m.version);
    assert_int_equal(session_version(c, id), m.version); /* nothing has changed */
    reply_free(r);
    turn_of(c, &m.next, id, " what then", 99);
    return m;
}

static void moment_done(struct moment *m)
{
    picture_done(&m->picture);
    gen_done(&m->next);
}

static void must_be_as(struct client *c, const char *id, const struct moment *m)
{
    struct picture now = picture_of(c, id);
    picture_same(&now, &m->picture);
    picture_done(&now);
}

static void must_go_on_as(struct client *c, const char *id, const struct moment *m)
{
    struct gen g;
    must_be_as(c, id, m);
    turn_of(c, &g, id, " what then", 99);
    output_same(&g.o, &m->next.o);
    gen_done(&g);
}

static void back_to(struct client *c, const char *id, const char *name, const struct moment *m)
{
    int64_t at = session_version(c, id);
    struct reply *r = expect(rewind_to(c, id, name), 200);
    assert_int_equal(int_at(r->json, "rewound_to"), m->version);
    assert_int_equal(int_at(r->json, "version"), at + 1);
    reply_free(r);
    must_go_on_as(c, id, m);
}

/* --- kept ------------------------------------------------------------------------------------- */

/* Nothing else is kept: --keep-turns is 0, or 2. */
static void kept_on(const char *kind, const char *keep)
{
    struct client *c = start(kind, (const char *const[]){keep, NULL});
    make(c, "it");
    live(c, "it", 3);
    struct moment a = mark(c, "it", "a");
    live(c, "it", 5);
    struct moment b = mark(c, "it", "b");
    live(c, "it", 9);
    back_to(c, "it", "a", &a);
    live(c, "it", 7);
    back_to(c, "it", "b", &b);
    back_to(c, "it", "a", &a);
    assert_int_equal(names_at(c, "it", a.version), 1);
    assert_int_equal(names_at(c, "it", b.version), 1);
    if (survives(kind)) {
        node_kill(&node);
        node_start(&node);
        c = node.a.client;
        back_to(c, "it", "b", &b);
        node_stop(&node);
        node_start(&node);
        c = node.a.client;
        back_to(c, "it", "a", &a);
    }
    reply_free(expect(unname(c, "it", "a"), 200));
    live(c, "it", 6);
    if (survives(kind)) {
        node_kill(&node);
        node_start(&node);
        c = node.a.client;
    }
    expect_error(rewind_to(c, "it", "a"), 404, "checkpoint_not_found", "checkpoint");
    assert_int_equal(names_at(c, "it", a.version), -1);
    back_to(c, "it", "b", &b);
    moment_done(&a);
    moment_done(&b);
    stop();
}

static void test_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        kept_on(kinds[i], "--keep-turns=0");
        kept_on(kinds[i], "--keep-turns=2");
    }
}

/* An empty session can be named, too. */
static void test_the_beginning(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct client *c = start(kinds[i], NULL);
        make(c, "it");
        struct moment m = mark(c, "it", "begin");
        assert_int_equal(m.version, 0);
        live(c, "it", 4);
        back_to(c, "it", "begin", &m);
        reply_free(expect(
            post(c, session_path("it", "/fork"), "{'id':'again','checkpoint':'begin'}"), 201));
        assert_int_equal(session_version(c, "again"), 0);
        must_go_on_as(c, "again", &m);
        moment_done(&m);
        stop();
    }
}

/* One of those that --keep-turns keeps gets a name, and outlives them. */
static void test_an_earlier_version(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct client *c = start(kinds[i], (const char *const[]){"--keep-turns=4", NULL});
        make(c, "it");
        live(c, "it", 3);
        struct moment m = {.picture = picture_of(c, "it"), .version = 3};
        turn_of(c, &m.next, "it", " what then", 99);
        live(c, "it", 2);
        struct reply *r = expect(
            post(c, session_path("it", "/checkpoints"), "{'name':'third','version':3}"), 201);
        assert_int_equal(int_at(r->json, "version"), 3);
        reply_free(r);
        live(c, "it", 12);
        assert_int_equal(names_at(c, "it", 3), 1);
        expect_error(post(c, session_path("it", "/checkpoints"), "{'name':'x','version':5}"), 404,
                     "checkpoint_not_found", "version");
        expect_error(post(c, session_path("it", "/checkpoints"), "{'name':'x','version':900}"), 404,
                     "checkpoint_not_found", "version");
        back_to(c, "it", "third", &m);
        moment_done(&m);
        stop();
    }
}

/* --- forks ------------------------------------------------------------------------------------ */

static void fork_as(struct client *c, const char *id, const char *at, const struct moment *m)
{
    struct reply *r = expect(
        post(c, session_path("it", "/fork"), "{'id':'%s',%s,'metadata':{'k':2}}", id, at), 201);
    assert_int_equal(int_at(r->json, "version"), m->version);
    assert_int_equal(int_at(r->json, "metadata.k"), 2);
    reply_free(r);
    must_go_on_as(c, id, m);
}

static void test_forks(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        char at[40];
        struct client *c = start(kinds[i], (const char *const[]){"--keep-transcript", NULL});
        make(c, "it");
        live(c, "it", 3);
        struct moment m = mark(c, "it", "a");
        live(c, "it", 5);
        int64_t version = session_version(c, "it");
        fork_as(c, "f1", "\"checkpoint\":\"a\"", &m);
        snprintf(at, sizeof at, "\"version\":%d", (int)m.version);
        fork_as(c, "f2", at, &m);
        expect_error(post(c, session_path("it", "/fork"), "{'id':'f1','checkpoint':'a'}"), 409,
                     "session_exists", "id");
        expect_error(post(c, session_path("it", "/fork"), "{'checkpoint':'b'}"), 404,
                     "checkpoint_not_found", "checkpoint");
        expect_error(post(c, session_path("it", "/fork"), "{'version':1}"), 404,
                     "checkpoint_not_found", "version");
        expect_error(post(c, session_path("it", "/fork"), "{'version':0}"), 404,
                     "checkpoint_not_found", "version");
        expect_error(post(c, session_path("it", "/fork"), "{'version':1,'checkpoint':'a'}"), 400,
                     "invalid_value", "checkpoint");
        struct call *k = stream_start(c, "'session':'it','prompt':'x','max_tokens':100000,"
                                         "'ignore_eos':true,'return_tokens':true");
        stream_until(k, 1); /* also of one that is busy */
        fork_as(c, "f3", "\"checkpoint\":\"a\"", &m);
        reply_free(expect(session_post(c, "it", "/cancel"), 200));
        reply_free(call_finish(k));
        assert_int_equal(session_version(c, "it"), version + 1);
        reply_free(expect(del(c, session_path("it", "")), 200)); /* they need nothing of it */
        if (survives(kinds[i])) {
            node_kill(&node);
            node_start(&node);
            c = node.a.client;
        }
        expect_error(rewind_to(c, "f1", "a"), 404, "checkpoint_not_found", "checkpoint");
        live(c, "f2", 1); /* so that its turns have been read again */
        struct moment again = mark(c, "f2", "a");
        back_to(c, "f2", "a", &again);
        reply_free(expect(session_post(c, "f3", "/rebuild"), 200)); /* its transcript is whole */
        moment_done(&again);
        moment_done(&m);
        stop();
    }
}

/* --- bytes ------------------------------------------------------------------------------------ */

static void until_gone(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 200; status != 404;) {
        struct reply *r = get(c, session_path(id, ""));
        status = r->status;
        reply_free(r);
        assert_true(client_now_ms() < deadline);
    }
}

/* What is kept is counted, is refused where it is too much, and is given back. */
static void bytes_of(const char *kind)
{
    char quota[64];
    struct client *c = start(kind, NULL);
    make(c, "it");
    int64_t state = state_bytes(c, "it");
    assert_int_equal(kept_bytes(c, "it"), 0);
    stop();
    snprintf(quota, sizeof quota, "--tenant-bytes=%lld", (long long)(3 * state + state / 2));
    c = start(kind, (const char *const[]){quota, NULL});
    make(c, "it");
    live(c, "it", 2);
    reply_free(expect(name_it(c, "it", "a"), 201));
    assert_int_equal(kept_bytes(c, "it"), state);
    reply_free(expect(name_it(c, "it", "a"), 201)); /* it has it */
    assert_int_equal(kept_bytes(c, "it"), state);
    reply_free(expect(name_it(c, "it", "b"), 201));
    expect_error(name_it(c, "it", "c"), 429, "quota_exceeded", "bytes");
    expect_error(post(c, "/v1/sessions", "{'id':'more'}"), 429, "quota_exceeded", "bytes");
    assert_int_equal(kept_bytes(c, "it"), 2 * state);
    assert_int_equal(names_at(c, "it", 2), 2);
    if (survives(kind)) {
        node_kill(&node);
        node_start(&node);
        c = node.a.client;
        assert_int_equal(kept_bytes(c, "it"), 2 * state);
        expect_error(name_it(c, "it", "c"), 429, "quota_exceeded", "bytes");
    }
    reply_free(expect(unname(c, "it", "a"), 200));
    make(c, "more");
    expect_error(name_it(c, "more", "c"), 429, "quota_exceeded", "bytes");
    live(c, "it", 3); /* which leaves an earlier snapshot for the other name */
    assert_in_range(kept_bytes(c, "it"), state, state + 4096);
    reply_free(expect(unname(c, "it", "b"), 200));
    assert_int_equal(kept_bytes(c, "it"), 0);
    reply_free(expect(name_it(c, "it", "a"), 201));
    reply_free(expect(del(c, session_path("it", "")), 200));
    make(c, "it");
    make(c, "third");
    expect_error(post(c, "/v1/sessions", "{'id':'fourth'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(del(c, session_path("third", "")), 200));
    reply_free(expect(name_it(c, "it", "z"), 201));
    expect_error(post(c, "/v1/sessions", "{'id':'fourth'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(patch(c, session_path("it", ""), "{'ttl_s':1}"), 200));
    until_gone(c, "it"); /* when its time is over all of it is given back, too */
    make(c, "fourth");
    make(c, "fifth");
    expect_error(post(c, "/v1/sessions", "{'id':'sixth'}"), 429, "quota_exceeded", "bytes");
    stop();
}

static void test_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++)
        bytes_of(kinds[i]);
}

/* What --keep-turns and --keep-transcript keep counts, and refuses no turn; then nothing new. */
static void options_of(const char *kind)
{
    char quota[64];
    struct client *c = start(kind, NULL);
    make(c, "it");
    int64_t state = state_bytes(c, "it"), before = 0;
    stop();
    snprintf(quota, sizeof quota, "--tenant-bytes=%lld", (long long)(2 * state + state / 2));
    c = start(kind, (const char *const[]){quota, "--keep-turns=3", "--keep-transcript", NULL});
    make(c, "it");
    make(c, "other");
    live(c, "it", 2);
    struct reply *r = expect(session_get(c, "it"), 200);
    before = int_at(r->json, "kept_bytes");
    assert_true(before >= 4 * int_at(r->json, "tokens_seen"));
    reply_free(r);
    live(c, "it", 8);
    assert_true(kept_bytes(c, "it") > before && kept_bytes(c, "it") >= 2 * state);
    reply_free(expect(del(c, session_path("other", "")), 200));
    expect_error(post(c, "/v1/sessions", "{'id':'other'}"), 429, "quota_exceeded", "bytes");
    reply_free(expect(del(c, session_path("it", "")), 200));
    make(c, "it");
    make(c, "other");
    stop();
}

static void test_what_options_keep(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++)
        options_of(kinds[i]);
}

static void test_metrics(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct client *c = start(kinds[i], NULL);
        make(c, "it");
        live(c, "it", 1);
        assert_int_equal(metric(c, "slate_sessions_kept_bytes"), 0);
        reply_free(expect(name_it(c, "it", "a"), 201));
        make(c, "other");
        reply_free(expect(name_it(c, "other", "a"), 201));
        double two = (double)(2 * state_bytes(c, "it"));
        until_metric(c, "slate_sessions_kept_bytes", two); /* of Redis they come with its sweeps */
        if (survives(kinds[i])) {
            node_kill(&node);
            node_start(&node);
            c = node.a.client;
            until_metric(c, "slate_sessions_kept_bytes", two);
        }
        reply_free(expect(unname(c, "it", "a"), 200));
        reply_free(expect(del(c, session_path("other", "")), 200));
        until_metric(c, "slate_sessions_kept_bytes", 0);
        stop();
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refused_on(const char *kind)
{
    struct client *c = start(kind, (const char *const[]){"--max-checkpoints=2", NULL});
    const char *path = session_path("it", "/checkpoints");
    make(c, "it");
    live(c, "it", 1);
    reply_free(expect(name_it(c, "it", "a"), 201));
    live(c, "it", 1);
    struct reply *r = name_it(c, "it", "a");
    assert_non_null(strstr(r->body, "has a checkpoint 'a' already, of version 1"));
    expect_error(r, 409, "checkpoint_exists", "name");
    reply_free(expect(post(c, path, "{'name':'a','version':1}"), 201)); /* it stands for that */
    reply_free(expect(name_it(c, "it", "b"), 201));
    r = name_it(c, "it", "c");
    assert_non_null(strstr(r->body, "has 2 named checkpoints, which is the limit"));
    expect_error(r, 409, "checkpoints_full", "name");
    reply_free(expect(name_it(c, "it", "b"), 201));
    expect_error(post(c, path, "{}"), 400, "missing_field", "name");
    expect_error(post(c, path, "{'name':7}"), 400, "invalid_type", "name");
    expect_error(post(c, path, "{'name':''}"), 400, "invalid_value", "name");
    expect_error(post(c, path, "{'name':'.a'}"), 400, "invalid_value", "name");
    expect_error(post(c, path, "{'name':'a b'}"), 400, "invalid_value", "name");
    expect_error(post(c, path, "{'name':'%0129d'}", 1), 400, "invalid_value", "name");
    expect_error(post(c, path, "{'name':'x','version':-1}"), 400, "invalid_value", "version");
    expect_error(unname(c, "it", "c"), 404, "checkpoint_not_found", "checkpoint");
    expect_error(unname(c, "it", ".c"), 400, "invalid_value", "name");
    expect_error(rewind_to(c, "it", "c"), 404, "checkpoint_not_found", "checkpoint");
    expect_error(rewind_to(c, "it", "c/d"), 400, "invalid_value", "checkpoint");
    expect_error(post(c, session_path("it", "/rewind"), "{'version':1,'checkpoint':'a'}"), 400,
                 "invalid_value", "checkpoint");
    expect_error(name_it(c, "nobody", "a"), 404, "session_not_found", "session");
    expect_error(unname(c, "nobody", "a"), 404, "session_not_found", "session");
    reply_free(expect(unname(c, "it", "a"), 200));
    reply_free(expect(name_it(c, "it", "c"), 201));
    reply_free(expect(del(c, session_path("it", "")), 200));
    make(c, "it"); /* another life */
    assert_int_equal(names_at(c, "it", 0), 0);
    expect_error(unname(c, "it", "b"), 404, "checkpoint_not_found", "checkpoint");
    struct call *k = stream_start(c, "'session':'it','prompt':'x','max_tokens':100000,"
                                     "'ignore_eos':true,'return_tokens':true");
    stream_until(k, 1);
    expect_error(name_it(c, "it", "a"), 409, "session_busy", "session");
    expect_error(unname(c, "it", "a"), 409, "session_busy", "session");
    reply_free(expect(session_post(c, "it", "/cancel"), 200));
    reply_free(call_finish(k));
    stop();
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++)
        refused_on(kinds[i]);
}

static void test_if_match(void **state)
{
    (void)state;
    struct client *c = start("dir", NULL);
    char line[160];
    make(c, "it");
    live(c, "it", 1);
    struct reply *r = expect(session_get(c, "it"), 200);
    snprintf(line, sizeof line, "If-Match: %s", reply_header(r, "ETag"));
    reply_free(r);
    static const char body[] = "{\"name\":\"a\"}";
    const char *path = session_path("it", "/checkpoints");
    reply_free(expect(request(c, "POST", path, line, body, sizeof body - 1), 201));
    live(c, "it", 1);
    expect_error(request(c, "POST", path, line, body, sizeof body - 1), 412, "version_mismatch",
                 "If-Match");
    expect_error(request(c, "DELETE", session_path("it", "/checkpoints/a"), line, NULL, 0), 412,
                 "version_mismatch", "If-Match");
    stop();
}

/* With --durability drain what is named is written, whatever else is not. */
static void test_drain(void **state)
{
    (void)state;
    struct client *c = start("dir", (const char *const[]){"--durability=drain", NULL});
    make(c, "it");
    live(c, "it", 1);
    struct moment m = mark(c, "it", "a");
    live(c, "it", 1);
    node_kill(&node);
    node_start(&node);
    c = node.a.client;
    assert_int_equal(session_version(c, "it"), m.version);
    live(c, "it", 4);
    back_to(c, "it", "a", &m);
    live(c, "it", 1);
    reply_free(expect(post(c, session_path("it", "/fork"), "{'id':'f','checkpoint':'a'}"), 201));
    must_go_on_as(c, "f", &m);
    reply_free(expect(unname(c, "it", "a"), 200));
    expect_error(rewind_to(c, "it", "a"), 404, "checkpoint_not_found", "checkpoint");
    struct gen g; /* what is not in the store yet is listed, and can be meant */
    turn_of(c, &g, "it", " and more", 5);
    gen_done(&g);
    struct picture now = picture_of(c, "it");
    int64_t at = session_version(c, "it");
    assert_int_equal(names_at(c, "it", at), 0);
    reply_free(expect(post(c, session_path("it", "/rewind"), "{'version':%d}", (int)at), 200));
    struct picture then = picture_of(c, "it");
    picture_same(&now, &then);
    assert_int_equal(session_version(c, "it"), at + 1);
    picture_done(&now);
    picture_done(&then);
    moment_done(&m);
    stop();
}

/* A key that was answered before is answered again, and does not run a second time. */
static void test_idempotency(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct client *c = start(kinds[i], NULL);
        static const char body[] = "{\"session\":\"it\",\"prompt\":\"one\",\"max_tokens\":4}";
        make(c, "it");
        reply_free(expect(name_it(c, "it", "a"), 201));
        struct reply *first = expect(
            request(c, "POST", "/v1/generate", "Idempotency-Key: k1", body, sizeof body - 1), 200);
        reply_free(expect(rewind_to(c, "it", "a"), 200));
        struct reply *again = expect(
            request(c, "POST", "/v1/generate", "Idempotency-Key: k1", body, sizeof body - 1), 200);
        assert_string_equal(first->body, again->body);
        assert_int_equal(session_version(c, "it"), 2);
        reply_free(first);
        reply_free(again);
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_the_beginning),
        cmocka_unit_test(test_an_earlier_version),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_what_options_keep),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_if_match),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_idempotency),
    };
    return cmocka_run_group_tests(tests, NULL, abandon);
}
