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

#include "tests/support/checkpoints.h"
#include "tests/support/pictures.h"

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
    struct client *c = store_start(kind, (const char *const[]){keep, NULL});
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
    if (store_survives(kind)) {
        node_kill(&store_node);
        node_start(&store_node);
        c = store_node.a.client;
        back_to(c, "it", "b", &b);
        node_stop(&store_node);
        node_start(&store_node);
        c = store_node.a.client;
        back_to(c, "it", "a", &a);
    }
    reply_free(expect(unname(c, "it", "a"), 200));
    live(c, "it", 6);
    if (store_survives(kind)) {
        node_kill(&store_node);
        node_start(&store_node);
        c = store_node.a.client;
    }
    expect_error(rewind_to(c, "it", "a"), 404, "checkpoint_not_found", "checkpoint");
    assert_int_equal(names_at(c, "it", a.version), -1);
    back_to(c, "it", "b", &b);
    moment_done(&a);
    moment_done(&b);
    store_stop();
}

static void test_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        kept_on(store_kinds[i], "--keep-turns=0");
        kept_on(store_kinds[i], "--keep-turns=2");
    }
}

/* An empty session can be named, too. */
static void test_the_beginning(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        struct client *c = store_start(store_kinds[i], NULL);
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
        store_stop();
    }
}

/* One of those that --keep-turns keeps gets a name, and outlives them. */
static void test_an_earlier_version(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        struct client *c =
            store_start(store_kinds[i], (const char *const[]){"--keep-turns=4", NULL});
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
        store_stop();
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
    for (size_t i = 0; i < STORE_KINDS; i++) {
        char at[40];
        struct client *c =
            store_start(store_kinds[i], (const char *const[]){"--keep-transcript", NULL});
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
        if (store_survives(store_kinds[i])) {
            node_kill(&store_node);
            node_start(&store_node);
            c = store_node.a.client;
        }
        expect_error(rewind_to(c, "f1", "a"), 404, "checkpoint_not_found", "checkpoint");
        live(c, "f2", 1); /* so that its turns have been read again */
        struct moment again = mark(c, "f2", "a");
        back_to(c, "f2", "a", &again);
        reply_free(expect(session_post(c, "f3", "/rebuild"), 200)); /* its transcript is whole */
        moment_done(&again);
        moment_done(&m);
        store_stop();
    }
}

/* --- new sessions that begin there ------------------------------------------------------------ */

/* {from} as a fork does; with a prompt it has read that, too. */
static void begin_as(struct client *c, const char *id, const char *at, const struct moment *m)
{
    struct reply *r =
        expect(post(c, "/v1/sessions", "{'id':'%s','from':{'session':'it',%s},'metadata':{'k':2}}",
                    id, at),
               201);
    assert_int_equal(int_at(r->json, "version"), m->version);
    assert_int_equal(int_at(r->json, "metadata.k"), 2);
    assert_string_equal(reply_header(r, "X-Slate-Session"), id);
    reply_free(r);
    must_be_as(c, id, m);
    struct gen g;
    reply_free(expect(
        post(c, "/v1/sessions", "{'id':'read','from':{'session':'it',%s},'prompt':' and so'}", at),
        201));
    generate(c, &g, "'session':'%s','prompt':' and so','max_tokens':0", id);
    gen_done(&g);
    struct picture asked = picture_of(c, id), read = picture_of(c, "read");
    assert_int_equal(session_version(c, "read"), m->version + 1);
    picture_same(&asked, &read);
    picture_done(&asked);
    picture_done(&read);
    reply_free(expect(del(c, session_path("read", "")), 200));
}

static void test_new_sessions(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        char at[40];
        struct client *c =
            store_start(store_kinds[i], (const char *const[]){"--keep-turns=0", NULL});
        make(c, "it");
        live(c, "it", 3);
        struct moment m = mark(c, "it", "a");
        live(c, "it", 5);
        begin_as(c, "n1", "\"checkpoint\":\"a\"", &m);
        snprintf(at, sizeof at, "\"version\":%d", (int)m.version);
        begin_as(c, "n2", at, &m);
        static const struct {
            const char *from, *code, *param;
            int status;
        } wrong[] = {
            {"'session':'it','checkpoint':'b'", "checkpoint_not_found", "checkpoint", 404},
            {"'session':'it','version':1", "checkpoint_not_found", "version", 404},
            {"'session':'none','checkpoint':'a'", "session_not_found", "session", 404},
            {"'session':'it','version':1,'checkpoint':'a'", "invalid_value", "from.checkpoint",
             400},
            {"'initial_state_name':'none','version':0", "invalid_value", "from.version", 400},
        };
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            char body[160];
            snprintf(body, sizeof body, "{\"id\":\"n3\",\"from\":{%s}}", quoted(wrong[k].from));
            expect_error(request(c, "POST", "/v1/sessions", NULL, body, strlen(body)),
                         wrong[k].status, wrong[k].code, wrong[k].param);
            expect_error(get(c, session_path("n3", "")), 404, "session_not_found", "session");
        }
        expect_error(
            post(c, "/v1/sessions", "{'id':'n1','from':{'session':'it','checkpoint':'a'}}"), 409,
            "session_exists", "id");
        reply_free(expect(del(c, session_path("it", "")), 200)); /* they need nothing of it */
        if (store_survives(store_kinds[i])) {
            node_kill(&store_node);
            node_start(&store_node);
            c = store_node.a.client;
        }
        assert_int_equal(session_version(c, "n1"), m.version + 1);
        moment_done(&m);
        store_stop();
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refused_on(const char *kind)
{
    struct client *c = store_start(kind, (const char *const[]){"--max-checkpoints=2", NULL});
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
    store_stop();
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++)
        refused_on(store_kinds[i]);
}

static void test_if_match(void **state)
{
    (void)state;
    struct client *c = store_start("dir", NULL);
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
    store_stop();
}

/* With --durability drain what is named is written, whatever else is not. */
static void test_drain(void **state)
{
    (void)state;
    struct client *c = store_start("dir", (const char *const[]){"--durability=drain", NULL});
    make(c, "it");
    live(c, "it", 1);
    struct moment m = mark(c, "it", "a");
    live(c, "it", 1);
    node_kill(&store_node);
    node_start(&store_node);
    c = store_node.a.client;
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
    store_stop();
}

/* A key that was answered before is answered again, and does not run a second time. */
static void test_idempotency(void **state)
{
    (void)state;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        struct client *c = store_start(store_kinds[i], NULL);
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
        store_stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_the_beginning),
        cmocka_unit_test(test_an_earlier_version),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_new_sessions),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_if_match),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_idempotency),
    };
    return cmocka_run_group_tests(tests, NULL, store_abandon);
}
