/* tenants_test.c: sessions of several tenants beside each other, and sessions without room. No
 * answer tells a tenant whether a session that it does not have is another's or nobody's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/key_file.h"
#include "tests/support/node.h"
#include "tests/support/redis.h"

static struct api keyed, small;
static struct node node;
static struct redis redis;

static const char *path_of(const char *id, const char *rest)
{
    static char ring[16][300];
    static unsigned turn;
    char *dst = ring[turn++ % 16];
    snprintf(dst, sizeof ring[0], "/v1/sessions/%s%s", id, rest);
    return dst;
}

static void until_gone(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions?prefix=%s", id);
    for (size_t n = 1; n;) {
        struct reply *r = expect(get(c, path), 200);
        n = len_at(r->json, "data");
        reply_free(r);
        if (client_now_ms() > deadline)
            fail_msg("%s does not expire", id);
    }
}

/* --- tenants -----------------------------------------------------------------------------------*/

#define KEY_A "Authorization: Bearer key-of-tenant-a"
#define KEY_A2 "Authorization: Bearer second-key-of-a"
#define KEY_B "Authorization: Bearer key-of-tenant-b"

static void write_keys(const char *more)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     "# two tenants\n"
                     "key-of-tenant-a a user\n"
                     "second-key-of-a a user\n"
                     "key-of-tenant-b b user\n"
                     "key-for-figures ops metrics,admin\n%s",
                     more);
    assert_in_range(n, 1, sizeof text - 1);
    key_file_put(text, (size_t)n);
}

static int start_keyed(void **state)
{
    (void)state;
    write_keys("");
    api_start(&keyed, (const char *const[]){"--api-keys", key_file, NULL});
    return 0;
}

static int stop_keyed(void **state)
{
    (void)state;
    api_stop(&keyed);
    key_file_remove();
    return 0;
}

static void test_tenants(void **state)
{
    (void)state;
    struct client *c = keyed.client;
    client_header(c, KEY_A);
    struct reply *r = expect(post(c, "/v1/sessions", "{'id':'mine','prompt':'a'}"), 201);
    char etag[100];
    snprintf(etag, sizeof etag, "%s", reply_header(r, "ETag"));
    reply_free(r);
    client_header(c, KEY_B);
    expect_error(get(c, path_of("mine", "")), 404, "session_not_found", "session");
    expect_error(post(c, "/v1/generate", "{'session':'mine','prompt':'a'}"), 404,
                 "session_not_found", "session");
    expect_error(post(c, "/v1/sessions", "{'from':'mine'}"), 404, "session_not_found", "session");
    expect_error(post(c, path_of("mine", "/fork"), "{}"), 404, "session_not_found", "session");
    expect_error(post(c, path_of("mine", "/cancel"), "{}"), 404, "session_not_found", "session");
    expect_error(del(c, path_of("mine", "")), 404, "session_not_found", "session");
    r = expect(get(c, "/v1/sessions"), 200);
    assert_int_equal(len_at(r->json, "data"), 0);
    reply_free(r);
    r = expect(post(c, "/v1/sessions", "{'id':'mine'}"), 201); /* its own of that name */
    assert_string_not_equal(reply_header(r, "ETag"), etag);
    reply_free(r);
    client_header(c, KEY_A2); /* another key of the same tenant */
    r = expect(get(c, path_of("mine", "")), 200);
    assert_int_equal(int_at(r->json, "version"), 1);
    assert_string_equal(reply_header(r, "ETag"), etag);
    reply_free(r);
    client_header(c, KEY_B);
    reply_free(expect(del(c, path_of("mine", "")), 200));
    client_header(c, KEY_A);
    reply_free(expect(get(c, path_of("mine", "")), 200));
    /* Without a key, with a wrong one, without the role. */
    client_header(c, NULL);
    expect_error(get(c, path_of("mine", "")), 401, "invalid_api_key", NULL);
    expect_error(post(c, "/v1/generate", "{'session':'mine','prompt':'a'}"), 401, "invalid_api_key",
                 NULL);
    client_header(c, "Authorization: Bearer key-of-tenant-c");
    expect_error(get(c, "/v1/models"), 401, "invalid_api_key", NULL);
    client_header(c, "Authorization: Bearer key-for-figures");
    expect_error(get(c, path_of("mine", "")), 403, "forbidden", NULL);
    reply_free(expect(get(c, "/metrics"), 200));
    client_header(c, KEY_A);
    expect_error(get(c, "/metrics"), 403, "forbidden", NULL);
    expect_error(post(c, "/v1/admin/drain", "{}"), 403, "forbidden", NULL);
    client_header(c, NULL);
    reply_free(expect(get(c, "/livez"), 200));
    reply_free(expect(get(c, "/readyz"), 200));
}

/* --- another's, or nobody's --------------------------------------------------------------------*/

/* Two names of one length: the first is tenant a's, the second nobody's. */
#define THEIRS "theirs-1"
#define NOBODYS "nobodys1"

/* What a reply says, without what differs between any two: ids, the time. To be freed. */
static char *said(const struct reply *r, const char *id)
{
    size_t n = 0;
    char *text = NULL;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    fprintf(f, "%ld\n", r->status);
    for (const char *p = r->headers, *end; (end = strstr(p, "\r\n")) && end > p; p = end + 2)
        if (strncmp(p, "X-Request-Id:", 13) != 0 && strncmp(p, "Date:", 5) != 0)
            fprintf(f, "%.*s\n", (int)(end - p), p);
    fwrite(r->body, 1, r->n_body, f);
    assert_int_equal(fclose(f), 0);
    for (char *p; (p = strstr(text, id));)
        memcpy(p, "--------", strlen(id));
    return text;
}

struct ask {
    const char *method, *path, *extra, *body; /* % in path, extra and body is the id */
    bool makes;                               /* then only the status says something */
};

/* The text with the id for each %. */
static const char *filled(char dst[300], const char *text, const char *id)
{
    size_t n = 0;
    for (const char *p = text ? text : ""; *p; p++) {
        size_t k = *p == '%' ? strlen(id) : 1;
        assert_true(n + k < 300);
        memcpy(dst + n, *p == '%' ? id : p, k);
        n += k;
    }
    dst[n] = '\0';
    return text ? dst : NULL;
}

static struct reply *ask(struct client *c, const struct ask *q, const char *id)
{
    char path[300], extra[300], body[300];
    filled(path, q->path, id);
    const char *text = filled(body, q->body ? quoted(q->body) : NULL, id);
    return request(c, q->method, path, filled(extra, q->extra, id), text, text ? strlen(text) : 0);
}

static void cannot_tell(struct client *c, const char *when)
{
    static const struct ask asks[] = {
        {"GET", "/v1/sessions/%", NULL, NULL, false},
        {"HEAD", "/v1/sessions/%", NULL, NULL, false},
        {"PATCH", "/v1/sessions/%", NULL, "{'ttl_s':1}", false},
        {"PATCH", "/v1/sessions/%", "If-Match: *", "{'ttl_s':1}", false},
        {"DELETE", "/v1/sessions/%", NULL, NULL, false},
        {"DELETE", "/v1/sessions/%", "If-Match: *", NULL, false},
        {"POST", "/v1/sessions/%/fork", NULL, "{}", false},
        {"POST", "/v1/sessions/%/fork", NULL, "{'id':'%'}", false},
        {"POST", "/v1/sessions/%/pause", NULL, "{}", false},
        {"POST", "/v1/sessions/%/resume", NULL, "{}", false},
        {"POST", "/v1/sessions/%/cancel", NULL, "{}", false},
        {"POST", "/v1/sessions/%/rewind", NULL, "{'turns':1}", false},
        {"POST", "/v1/sessions/%/checkpoints", NULL, "{'name':'x'}", false},
        {"GET", "/v1/sessions/%/checkpoints", NULL, NULL, false},
        {"DELETE", "/v1/sessions/%/checkpoints/x", NULL, NULL, false},
        {"POST", "/v1/sessions/%/rebuild", NULL, "{}", false},
        {"GET", "/v1/sessions/%/snapshot", NULL, NULL, false},
        {"GET", "/v1/sessions/%/snapshot?dtype=int8", NULL, NULL, false},
        {"PUT", "/v1/sessions/%/snapshot", "If-Match: *\nContent-Type: application/octet-stream",
         "nothing", false},
        {"PUT", "/v1/sessions/%/snapshot", "Content-Type: application/octet-stream", "nothing",
         false},
        {"GET", "/v1/sessions/%/memory", NULL, NULL, false},
        {"POST", "/v1/generate", NULL, "{'session':'%','prompt':'a'}", false},
        {"POST", "/v1/generate", NULL, "{'session':'%','prompt':'a','stream':true}", false},
        {"POST", "/v1/generate", NULL, "{'session':'%','resume':true}", false},
        {"POST", "/v1/generate", "X-Slate-Session: %", "{'prompt':'a'}", false},
        {"POST", "/v1/generate", "If-Match: *", "{'session':'%','prompt':'a'}", false},
        /* the key and the body that tenant a has an answer for */
        {"POST", "/v1/generate", "Idempotency-Key: again",
         "{'session':'%','prompt':'k','max_tokens':2}", false},
        {"POST", "/v1/generate", "Idempotency-Key: again", "{'session':'%','prompt':'other'}",
         false},
        {"POST", "/v1/completions", NULL, "{'session':'%','prompt':'a'}", false},
        {"POST", "/v1/chat/completions", NULL,
         "{'session':'%','messages':[{'role':'user','content':'a'}]}", false},
        {"POST", "/v1/sessions", NULL, "{'from':'%'}", false},
        {"POST", "/v1/sessions", NULL, "{'from':'%','id':'%'}", false},
        {"POST", "/v1/sessions", NULL, "{'from':{'session':'%','checkpoint':'x'}}", false},
        {"POST", "/v1/sessions", NULL, "{'from':{'session':'%','version':900}}", false},
        {"GET", "/v1/sessions?prefix=%", NULL, NULL, false},
        {"GET", "/v1/sessions?after=%", NULL, NULL, false},
        {"POST", "/v1/sessions", NULL, "{'id':'%'}", true},
        {"POST", "/v1/sessions", NULL, "{'id':'%','prompt':'a'}", true},
        {"POST", "/v1/sessions", "X-Slate-Session: %", "{}", true},
    };
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        const struct ask *q = &asks[i];
        struct reply *theirs = ask(c, q, THEIRS), *nobodys = ask(c, q, NOBODYS);
        char *a = said(theirs, THEIRS), *b = said(nobodys, NOBODYS);
        if (q->makes ? theirs->status != 201 || nobodys->status != 201 : strcmp(a, b) != 0)
            fail_msg("%s: %s %s %s\n%s\n\n%s", when, q->method, q->path, q->body ? q->body : "", a,
                     b);
        free(a);
        free(b);
        reply_free(theirs);
        reply_free(nobodys);
        if (q->makes) {
            reply_free(expect(del(c, path_of(THEIRS, "")), 200));
            reply_free(expect(del(c, path_of(NOBODYS, "")), 200));
        }
    }
}

/* Without room for one more it is refused for that, whoever has the name. */
static void cannot_tell_without_room(struct client *c)
{
    static const struct ask make = {"POST", "/v1/sessions", NULL, "{'id':'%'}", false};
    reply_free(expect(post(c, "/v1/sessions", "{'id':'one'}"), 201));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'two'}"), 201));
    struct reply *theirs = ask(c, &make, THEIRS), *nobodys = ask(c, &make, NOBODYS);
    char *a = said(theirs, THEIRS), *b = said(nobodys, NOBODYS);
    assert_int_equal(theirs->status, 429);
    assert_string_equal(a, b);
    free(a);
    free(b);
    reply_free(theirs);
    reply_free(nobodys);
    reply_free(expect(del(c, path_of("one", "")), 200));
    reply_free(expect(del(c, path_of("two", "")), 200));
}

/* In everything that their session can be. */
static void theirs_or_nobodys(const char *store)
{
    struct api t;
    write_keys("quota b sessions=2\n");
    api_start(&t, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                        "--api-keys", key_file, "--lease=3s", "--store-timeout=1s",
                                        store, NULL});
    struct client *a = t.client, *b = client_open(t.server->base);
    client_header(a, KEY_A);
    client_header(b, KEY_B);
    cannot_tell(b, "before there is one");
    reply_free(expect(post(a, "/v1/sessions", "{'id':'" THEIRS "'}"), 201));
    cannot_tell(b, "an empty one");
    static const char body[] = "{\"session\":\"" THEIRS "\",\"prompt\":\"k\",\"max_tokens\":2}";
    reply_free(expect(
        request(a, "POST", "/v1/generate", "Idempotency-Key: again", body, sizeof body - 1), 200));
    cannot_tell(b, "one with an answer that is kept");
    struct call *k = stream_start(
        a, "'session':'" THEIRS
           "','prompt':'a','max_tokens':1000000,'ignore_eos':true,'return_tokens':true");
    stream_until(k, 1);
    cannot_tell(b, "a busy one");
    reply_free(expect(session_post(a, THEIRS, "/pause"), 200));
    reply_free(expect(call_finish(k), 200));
    cannot_tell(b, "one that is paused, and out of memory");
    cannot_tell_without_room(b);
    struct reply *r = expect(get(a, path_of(THEIRS, "")), 200); /* and it is as it was */
    assert_int_equal(int_at(r->json, "version"), 2);
    assert_int_equal(int_at(r->json, "ttl_s"), 0);
    reply_free(r);
    reply_free(expect(post(a, "/v1/generate", "{'session':'" THEIRS "','prompt':'a'}"), 200));
    r = expect(get(a, "/v1/sessions"), 200);
    assert_int_equal(len_at(r->json, "data"), 1);
    reply_free(r);
    reply_free(expect(del(a, path_of(THEIRS, "")), 200));
    cannot_tell(b, "one that was deleted");
    client_close(b);
    api_stop(&t);
    key_file_remove();
}

static void test_cannot_tell_memory(void **state)
{
    (void)state;
    theirs_or_nobodys("--store=memory");
}

static void test_cannot_tell_dir(void **state)
{
    (void)state;
    char store[400];
    node_init(&node, "tell", (const char *const[]){NULL});
    snprintf(store, sizeof store, "--store=dir:%s", node.dir);
    theirs_or_nobodys(store);
    node_done(&node);
}

static void test_cannot_tell_redis(void **state)
{
    (void)state;
    char store[100];
    redis_init(&redis, "tell", NULL);
    snprintf(store, sizeof store, "--store=%s", redis.spec);
    theirs_or_nobodys(store);
}

static int stop_redis(void **state)
{
    (void)state;
    if (redis.pid)
        redis_done(&redis);
    return 0;
}

/* --- room --------------------------------------------------------------------------------------*/

static int start_small(void **state)
{
    (void)state;
    api_start(&small, (const char *const[]){"--sessions-in-memory=3", "--max-running=1", NULL});
    return 0;
}

static int stop_small(void **state)
{
    (void)state;
    api_stop(&small);
    return 0;
}

static void expect_full(struct reply *r)
{
    const char *after = reply_header(r, "Retry-After");
    assert_non_null(after);
    assert_true(strtol(after, NULL, 10) >= 1);
    expect_error(r, 503, "sessions_full", NULL);
}

static void test_full(void **state)
{
    (void)state;
    struct client *c = small.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'a','prompt':'once'}"), 201));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'b','prompt':'upon'}"), 201));
    reply_free(expect(post(c, path_of("b", "/fork"), "{'id':'c'}"), 201));
    expect_full(post(c, "/v1/sessions", "{}"));
    expect_full(post(c, "/v1/sessions", "{'prompt':'x'}"));
    expect_full(post(c, path_of("b", "/fork"), "{}"));
    expect_full(post(c, "/v1/sessions", "{'from':'b'}"));
    /* Those that are there go on, and so does what keeps nothing. */
    for (int i = 0; i < 4; i++) {
        struct gen g;
        generate(c, &g, "'session':'c','prompt':' a','max_tokens':2,'temperature':0");
        gen_done(&g);
        generate(c, &g, "'prompt':' a','max_tokens':2,'temperature':0");
        gen_done(&g);
    }
    reply_free(expect(del(c, path_of("c", "")), 200));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'d','prompt':'x'}"), 201));
    /* Room that an expired one leaves is found. */
    reply_free(expect(patch(c, path_of("a", ""), "{'ttl_s':1}"), 200));
    until_gone(c, "a");
    reply_free(expect(post(c, "/v1/sessions", "{'id':'e','prompt':'x'}"), 201));
    expect_full(post(c, "/v1/sessions", "{'id':'f'}"));
    assert_true(metric(c, "slate_sessions") == 3);
}

static int start_few(void **state)
{
    (void)state;
    api_start(&small, (const char *const[]){"--sessions-in-memory=3", "--max-sessions=2", NULL});
    return 0;
}

/* Where they are in memory only the number that was asked for is kept, too. */
static void test_fewer_than_there_is_memory_for(void **state)
{
    (void)state;
    struct client *c = small.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'a','prompt':'once'}"), 201));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'b'}"), 201));
    struct reply *r = post(c, "/v1/sessions", "{'id':'c'}");
    assert_non_null(strstr(str_at(r->json, "error.message"), "2 sessions"));
    assert_non_null(strstr(str_at(r->json, "error.message"), "(--max-sessions)"));
    expect_full(r);
    reply_free(expect(del(c, path_of("a", "")), 200));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'c'}"), 201));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tenants, start_keyed, stop_keyed),
        cmocka_unit_test(test_cannot_tell_memory),
        cmocka_unit_test(test_cannot_tell_dir),
        cmocka_unit_test_teardown(test_cannot_tell_redis, stop_redis),
        cmocka_unit_test_setup_teardown(test_full, start_small, stop_small),
        cmocka_unit_test_setup_teardown(test_fewer_than_there_is_memory_for, start_few, stop_small),
    };
    return cmocka_run_group_tests_name("tenants", tests, NULL, NULL);
}
