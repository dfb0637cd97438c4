/* sessions_test.c: the routes of /v1/sessions: making, listing, changing, forking, deleting; names,
 * versions, incarnations, time to live. What turns do on them: turns_test.c; tenants and room:
 * tenants_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

static struct api tiny;

static int start_tiny(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){"--sessions-in-memory=100", NULL});
    return 0;
}

static int stop_tiny(void **state)
{
    (void)state;
    api_stop(&tiny);
    return 0;
}

static const char *path_of(const char *id, const char *rest)
{
    static char ring[16][300];
    static unsigned turn;
    char *dst = ring[turn++ % 16];
    snprintf(dst, sizeof ring[0], "/v1/sessions/%s%s", id, rest);
    return dst;
}

/* --- making ------------------------------------------------------------------------------------*/

static void test_create(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r =
        expect(post(c, "/v1/sessions", "{'id':'make-1','metadata':{'a':[1,null]}}"), 201);
    assert_string_equal(str_at(r->json, "id"), "make-1");
    assert_int_equal(int_at(r->json, "version"), 0);
    assert_int_equal(int_at(r->json, "tokens_seen"), 0);
    assert_string_equal(str_at(r->json, "residency"), "memory");
    assert_false(bool_at(r->json, "busy"));
    assert_true(int_at(r->json, "bytes") > 100000); /* 4 layers, 3 heads of 64 × 64 floats */
    assert_int_equal(int_at(r->json, "metadata.a.0"), 1);
    assert_int_equal(int_at(r->json, "ttl_s"), 0);
    assert_true(json_is_null(at(r->json, "expires_at")));
    assert_string_equal(reply_header(r, "X-Slate-Session"), "make-1");
    assert_string_equal(reply_header(r, "Location"), "/v1/sessions/make-1");
    struct reply *again = session_get(c, "make-1");
    assert_true(json_equal(r->json, again->json));
    assert_string_equal(reply_header(r, "ETag"), reply_header(again, "ETag"));
    reply_free(again);
    reply_free(r);
    expect_error(post(c, "/v1/sessions", "{'id':'make-1'}"), 409, "session_exists", "id");
    /* Without a body, and with a name of the server's own: 128 random bits. */
    r = expect(request(c, "POST", "/v1/sessions", NULL, NULL, 0), 201);
    assert_true(strlen(str_at(r->json, "id")) >= 32);
    reply_free(r);
    assert_string_not_equal(new_session(c), new_session(c));
}

static void test_create_reads(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct reply *r =
        expect(post(c, "/v1/sessions",
                    "{'id':'reads','messages':[{'role':'system','content':'Be kind.'},"
                    "{'role':'user','content':'hi'}]}"),
               201);
    int64_t n = int_at(r->json, "tokens_seen");
    assert_int_equal(int_at(r->json, "version"), 1);
    reply_free(r);
    r = expect(post(c, "/v1/tokenize", "{'text':'System: Be kind.\\n\\nUser: hi'}"), 200);
    assert_int_equal(int_at(r->json, "count") + 1, n); /* and the begin token */
    reply_free(r);
    /* What cannot be read leaves no session behind. */
    expect_error(post(c, "/v1/sessions", "{'id':'half','prompt':[99999]}"), 400, "invalid_value",
                 "prompt[0]");
    expect_error(get(c, path_of("half", "")), 404, "session_not_found", "session");
    expect_error(post(c, "/v1/sessions", "{'id':'half','prompt':'a','model':'x'}"), 404,
                 "model_not_found", "model");
    expect_error(get(c, path_of("half", "")), 404, "session_not_found", "session");
}

static void test_create_from(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    reply_free(expect(post(c, "/v1/sessions",
                           "{'id':'from-a','prompt':'once','metadata':{'k':1},"
                           "'ttl_s':500}"),
                      201));
    struct reply *r = expect(post(c, "/v1/sessions", "{'id':'from-b','from':'from-a'}"), 201);
    assert_int_equal(int_at(r->json, "version"), 1);
    assert_int_equal(int_at(r->json, "metadata.k"), 1);
    assert_int_equal(int_at(r->json, "ttl_s"), 500);
    int64_t n = int_at(r->json, "tokens_seen");
    reply_free(r);
    /* And reading more in the same request. */
    r = expect(post(c, "/v1/sessions",
                    "{'from':'from-a','prompt':[400,401],'ttl_s':0,"
                    "'metadata':{}}"),
               201);
    assert_int_equal(int_at(r->json, "version"), 2);
    assert_int_equal(int_at(r->json, "tokens_seen"), n + 2);
    assert_int_equal(int_at(r->json, "ttl_s"), 0);
    assert_int_equal(json_object_size(at(r->json, "metadata")), 0);
    reply_free(r);
    expect_error(post(c, "/v1/sessions", "{'from':'nobody'}"), 404, "session_not_found", "session");
    expect_error(post(c, "/v1/sessions", "{'from':{'snapshot':'AAAA'}}"), 422, "snapshot_corrupt",
                 NULL);
}

static void test_names(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    char longest[130];
    memset(longest, 'x', 129);
    longest[128] = '\0';
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", longest), 201));
    reply_free(expect(del(c, path_of(longest, "")), 200));
    longest[128] = 'x';
    longest[129] = '\0';
    const char *const bad[] = {"",          ".",         ".a",   "a/b", "a b",
                               "a\\u0000b", "h\xC3\xA9", "a%2e", "..",  longest};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect_error(post(c, "/v1/sessions", "{'id':'%s'}", bad[i]), 400, "invalid_value", "id");
        expect_error(post(c, "/v1/generate", "{'prompt':'a','session':'%s'}", bad[i]), 400,
                     "invalid_value", "session");
    }
    reply_free(expect(post(c, "/v1/sessions", "{'id':'A.b_C-0..9'}"), 201));
    reply_free(expect(get(c, "/v1/sessions/A%2Eb_C-0..9"), 200));
    reply_free(expect(del(c, path_of("A.b_C-0..9", "")), 200));
}

/* --- promise 5: what is lost is not silent -----------------------------------------------------*/

static void test_unknown_is_never_made(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    for (int round = 0; round < 2; round++) {
        expect_error(post(c, "/v1/generate", "{'session':'ghost','prompt':'a'}"), 404,
                     "session_not_found", "session");
        expect_error(post(c, "/v1/completions", "{'session':'ghost','prompt':'a'}"), 404,
                     "session_not_found", "session");
        expect_error(
            request(c, "POST", "/v1/generate", "X-Slate-Session: ghost", "{\"prompt\":\"a\"}", 14),
            404, "session_not_found", "session");
        expect_error(get(c, path_of("ghost", "")), 404, "session_not_found", "session");
        expect_error(patch(c, path_of("ghost", ""), "{'ttl_s':1}"), 404, "session_not_found",
                     "session");
        expect_error(del(c, path_of("ghost", "")), 404, "session_not_found", "session");
        expect_error(post(c, path_of("ghost", "/fork"), "{}"), 404, "session_not_found", "session");
        expect_error(post(c, path_of("ghost", "/cancel"), "{}"), 404, "session_not_found",
                     "session");
    }
}

static struct reply *with_match(struct client *c, const char *method, const char *path,
                                const char *etag, const char *body)
{
    char header[500];
    snprintf(header, sizeof header, "If-Match: %s", etag);
    return request(c, method, path, header, body, body ? strlen(body) : 0);
}

static void test_versions(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    static const char turn[] = "{\"session\":\"v\",\"prompt\":\"a\",\"max_tokens\":0}";
    struct reply *r = expect(post(c, "/v1/sessions", "{'id':'v'}"), 201);
    char zero[200], one[200];
    snprintf(zero, sizeof zero, "%s", reply_header(r, "ETag"));
    assert_true(zero[0] == '"' && zero[strlen(zero) - 1] == '"');
    reply_free(r);
    r = expect(with_match(c, "POST", "/v1/generate", zero, turn), 200);
    snprintf(one, sizeof one, "%s", reply_header(r, "ETag"));
    assert_string_not_equal(one, zero);
    assert_int_equal(int_at(r->json, "version"), 1);
    reply_free(r);
    /* A retry of what was done is refused; with the new one, with any of a list, with * it goes. */
    expect_error(with_match(c, "POST", "/v1/generate", zero, turn), 412, "version_mismatch",
                 "If-Match");
    char list[420];
    snprintf(list, sizeof list, "%s, %s", zero, one);
    reply_free(expect(with_match(c, "GET", path_of("v", ""), list, NULL), 200));
    reply_free(expect(with_match(c, "GET", path_of("v", ""), "*", NULL), 200));
    expect_error(with_match(c, "GET", path_of("v", ""), zero, NULL), 412, "version_mismatch",
                 "If-Match");
    expect_error(with_match(c, "PATCH", path_of("v", ""), zero, "{\"ttl_s\":9}"), 412,
                 "version_mismatch", "If-Match");
    expect_error(with_match(c, "POST", path_of("v", "/fork"), zero, "{}"), 412, "version_mismatch",
                 "If-Match");
    expect_error(with_match(c, "DELETE", path_of("v", ""), zero, NULL), 412, "version_mismatch",
                 "If-Match");
    char weak[220];
    snprintf(weak, sizeof weak, "W/%s", one);
    expect_error(with_match(c, "DELETE", path_of("v", ""), weak, NULL), 412, "version_mismatch",
                 "If-Match");
    /* Metadata is no version of the memory. */
    r = expect(with_match(c, "PATCH", path_of("v", ""), one, "{\"metadata\":{\"x\":1}}"), 200);
    assert_string_equal(reply_header(r, "ETag"), one);
    reply_free(r);
    expect_error(with_match(c, "POST", "/v1/generate", one, "{\"prompt\":\"a\"}"), 400,
                 "invalid_value", "If-Match");

    /* Deleted and made anew it is another one, at the same version too. */
    reply_free(expect(with_match(c, "DELETE", path_of("v", ""), one, NULL), 200));
    expect_error(get(c, path_of("v", "")), 404, "session_not_found", "session");
    r = expect(post(c, "/v1/sessions", "{'id':'v','prompt':'a'}"), 201);
    assert_int_equal(int_at(r->json, "version"), 1);
    assert_string_not_equal(reply_header(r, "ETag"), one);
    reply_free(r);
    expect_error(with_match(c, "POST", "/v1/generate", one, turn), 412, "version_mismatch",
                 "If-Match");
    expect_error(with_match(c, "DELETE", path_of("v", ""), one, NULL), 412, "version_mismatch",
                 "If-Match");
    reply_free(expect(del(c, path_of("v", "")), 200));
}

static void test_header_names_the_session(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'hd'}"), 201));
    static const char by_header[] = "{\"prompt\":\"a\",\"max_tokens\":0}";
    static const char by_both[] = "{\"session\":\"hd\",\"prompt\":\"a\",\"max_tokens\":0}";
    struct reply *r = expect(
        request(c, "POST", "/v1/generate", "X-Slate-Session: hd", by_header, strlen(by_header)),
        200);
    assert_string_equal(str_at(r->json, "session"), "hd");
    assert_string_equal(reply_header(r, "X-Slate-Session"), "hd");
    reply_free(r);
    r = expect(
        request(c, "POST", "/v1/generate", "x-slate-session:  hd ", by_both, strlen(by_both)), 200);
    assert_int_equal(int_at(r->json, "version"), 2);
    reply_free(r);
    expect_error(
        request(c, "POST", "/v1/generate", "X-Slate-Session: other", by_both, strlen(by_both)), 400,
        "invalid_value", "session");
    expect_error(request(c, "GET", path_of("hd", ""), "X-Slate-Session: other", NULL, 0), 400,
                 "invalid_value", "session");
    expect_error(request(c, "DELETE", path_of("hd", ""), "X-Slate-Session: other", NULL, 0), 400,
                 "invalid_value", "session");
    expect_error(
        request(c, "POST", "/v1/generate", "X-Slate-Session: .bad", by_header, strlen(by_header)),
        400, "invalid_value", "X-Slate-Session");
    /* Making one where a balancer's header says its name. */
    r = expect(request(c, "POST", "/v1/sessions", "X-Slate-Session: hd-2", "{}", 2), 201);
    assert_string_equal(str_at(r->json, "id"), "hd-2");
    reply_free(r);
    expect_error(
        request(c, "POST", "/v1/sessions", "X-Slate-Session: hd-3", "{\"id\":\"hd-4\"}", 13), 400,
        "invalid_value", "id");
    /* Errors that belong to a session say so too. */
    static const struct {
        const char *method, *path, *body;
        int status;
    } row[] = {
        {"POST", "/v1/generate", "{\"session\":\"hd\",\"resume\":true}", 409},
        {"POST", "/v1/sessions/hd/rewind", "{\"version\":77}", 404},
        {"POST", "/v1/sessions/hd/fork", "{\"id\":\".bad\"}", 400},
        {"PATCH", "/v1/sessions/hd", "{\"ttl_s\":-1}", 400},
        {"DELETE", "/v1/sessions/hd/checkpoints/none", "", 404},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        r = request(c, row[i].method, row[i].path, NULL, row[i].body, strlen(row[i].body));
        if (r->status != row[i].status || !reply_header(r, "X-Slate-Session"))
            fail_msg("%s %s: %d %s", row[i].method, row[i].path, (int)r->status, r->body);
        assert_string_equal(reply_header(r, "X-Slate-Session"), "hd");
        reply_free(r);
    }
}

/* --- list --------------------------------------------------------------------------------------*/

static void test_list(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    static const char *const ids[] = {"ls-b",  "ls-a", "ls-a.1", "ls-B",
                                      "ls-10", "ls-9", "ls--",   "ls-_"};
    static const char *const sorted[] = {"ls--", "ls-10", "ls-9",   "ls-B",
                                         "ls-_", "ls-a",  "ls-a.1", "ls-b"}; /* in byte order */
    for (size_t i = 0; i < 8; i++)
        reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", ids[i]), 201));
    struct reply *r = expect(get(c, "/v1/sessions?prefix=ls-"), 200);
    assert_int_equal(len_at(r->json, "data"), 8);
    assert_false(bool_at(r->json, "has_more"));
    for (size_t i = 0; i < 8; i++)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(at(r->json, "data"), i), "id")),
            sorted[i]);
    /* An item is what GET says of it. */
    struct reply *one = session_get(c, sorted[5]);
    assert_true(json_equal(at(r->json, "data.5"), one->json));
    reply_free(one);
    reply_free(r);
    /* Page by page, with every size of page. */
    for (size_t limit = 1; limit <= 9; limit++) {
        char path[200], after[160] = "";
        size_t n = 0;
        for (bool more = true; more;) {
            snprintf(path, sizeof path, "/v1/sessions?limit=%zu&prefix=ls-%s%s", limit,
                     *after ? "&after=" : "", after);
            r = expect(get(c, path), 200);
            size_t here = len_at(r->json, "data");
            more = bool_at(r->json, "has_more");
            assert_true(here <= limit && (!more || here == limit));
            for (size_t i = 0; i < here; i++)
                assert_string_equal(json_string_value(json_object_get(
                                        json_array_get(at(r->json, "data"), i), "id")),
                                    sorted[n++]);
            snprintf(after, sizeof after, "%s", here ? str_at(r->json, "last_id") : "");
            reply_free(r);
        }
        assert_int_equal(n, 8);
    }
    r = expect(get(c, "/v1/sessions?prefix=ls-a"), 200);
    assert_int_equal(len_at(r->json, "data"), 2);
    reply_free(r);
    r = expect(get(c, "/v1/sessions?prefix=ls-a&after=ls-a.1"), 200);
    assert_int_equal(len_at(r->json, "data"), 0);
    assert_true(json_is_null(at(r->json, "last_id")));
    reply_free(r);
    r = expect(get(c, "/v1/sessions?prefix=ls&after=ls-a0"), 200); /* one that is not there */
    assert_int_equal(len_at(r->json, "data"), 1);
    reply_free(r);
    static const char *const bad[] = {"limit=0", "limit=-1", "limit=1001",
                                      "limit=x", "limit=",   "limit=1e2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[80];
        snprintf(path, sizeof path, "/v1/sessions?%s", bad[i]);
        expect_error(get(c, path), 400, "invalid_value", "limit");
    }
    for (size_t i = 0; i < 8; i++)
        reply_free(expect(del(c, path_of(ids[i], "")), 200));
}

/* --- changing ----------------------------------------------------------------------------------*/

static void test_patch(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'pt','metadata':{'a':1,'b':2}}"), 201));
    struct reply *r = expect(patch(c, path_of("pt", ""), "{'ttl_s':1000}"), 200);
    assert_int_equal(int_at(r->json, "ttl_s"), 1000);
    assert_int_equal(int_at(r->json, "expires_at"), int_at(r->json, "used_at") + 1000);
    assert_int_equal(int_at(r->json, "metadata.b"), 2);
    reply_free(r);
    r = expect(patch(c, path_of("pt", ""), "{'metadata':{'c':'\\u20ac\\u0000'},'ttl_s':null}"),
               200);
    assert_int_equal(int_at(r->json, "ttl_s"), 1000); /* null is absent */
    assert_null(at(r->json, "metadata.a"));           /* it replaces the old one whole */
    assert_int_equal(json_string_length(at(r->json, "metadata.c")), 4);
    reply_free(r);
    r = expect(patch(c, path_of("pt", ""), "{'ttl_s':0}"), 200);
    assert_true(json_is_null(at(r->json, "expires_at")));
    reply_free(r);
    expect_error(patch(c, path_of("pt", ""), "{}"), 400, "missing_field", "ttl_s");
    expect_error(patch(c, path_of("pt", ""), "{'ttl_s':-1}"), 400, "invalid_value", "ttl_s");
    expect_error(patch(c, path_of("pt", ""), "{'metadata':[]}"), 400, "invalid_type", "metadata");
    expect_error(patch(c, path_of("pt", ""), "{'metadata':{'a':9223372036854775808}}"), 400,
                 "invalid_value", "metadata");
    char *big = sl_malloc(20001);
    assert_non_null(big);
    memset(big, 'x', 20000);
    big[20000] = '\0';
    expect_error(patch(c, path_of("pt", ""), "{'metadata':{'a':'%s'}}", big), 413, "too_large",
                 "metadata");
    sl_free(big);
    r = session_get(c, "pt");
    assert_int_equal(json_object_size(at(r->json, "metadata")), 1);
    reply_free(r);
    reply_free(expect(del(c, path_of("pt", "")), 200));
}

static void test_fork(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    reply_free(expect(post(c, "/v1/sessions",
                           "{'id':'fk','prompt':'once upon','metadata':{'a':1},"
                           "'ttl_s':777}"),
                      201));
    struct reply *r = expect(post(c, path_of("fk", "/fork"), "{'id':'fk-2'}"), 201);
    assert_string_equal(str_at(r->json, "id"), "fk-2");
    assert_int_equal(int_at(r->json, "metadata.a"), 1);
    assert_int_equal(int_at(r->json, "ttl_s"), 777);
    assert_int_equal(int_at(r->json, "version"), 1);
    struct reply *from = session_get(c, "fk");
    assert_int_equal(int_at(r->json, "tokens_seen"), int_at(from->json, "tokens_seen"));
    assert_string_not_equal(reply_header(r, "ETag"), reply_header(from, "ETag"));
    reply_free(from);
    reply_free(r);
    r = expect(post(c, path_of("fk", "/fork"), "{'ttl_s':0,'metadata':{'z':2}}"), 201);
    assert_int_equal(int_at(r->json, "metadata.z"), 2);
    assert_int_equal(int_at(r->json, "ttl_s"), 0);
    reply_free(r);
    expect_error(post(c, path_of("fk", "/fork"), "{'id':'fk-2'}"), 409, "session_exists", "id");
    /* Each lives on its own; a fork outlives what it came from. */
    struct gen g, h;
    generate(c, &g, "'session':'fk','prompt':' a time','max_tokens':8,'temperature':0");
    r = session_get(c, "fk-2");
    assert_int_equal(int_at(r->json, "version"), 1);
    reply_free(r);
    reply_free(expect(del(c, path_of("fk", "")), 200));
    generate(c, &h, "'session':'fk-2','prompt':' a time','max_tokens':8,'temperature':0");
    assert_string_equal(g.o.text, h.o.text);
    gen_done(&g);
    gen_done(&h);
}

/* --- time to live ------------------------------------------------------------------------------*/

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

static void test_expiry(void **state)
{
    (void)state;
    struct client *c = tiny.client;
    struct timespec t;
    do { /* late in a second */
        reply_free(expect(get(c, "/livez"), 200));
        clock_gettime(CLOCK_REALTIME, &t);
    } while (t.tv_nsec < 900000000);
    int64_t made = client_now_ms();
    struct reply *r = expect(post(c, "/v1/sessions", "{'id':'ttl','prompt':'a','ttl_s':1}"), 201);
    char etag[100];
    snprintf(etag, sizeof etag, "%s", reply_header(r, "ETag"));
    assert_int_equal(int_at(r->json, "expires_at"), int_at(r->json, "used_at") + 1);
    reply_free(r);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'stays'}"), 201));
    until_gone(c, "ttl");
    assert_true(client_now_ms() - made >= 1000); /* whatever part of a second had gone by */
    expect_error(get(c, path_of("ttl", "")), 404, "session_not_found", "session");
    expect_error(post(c, "/v1/generate", "{'session':'ttl','prompt':'a'}"), 404,
                 "session_not_found", "session");
    reply_free(expect(get(c, path_of("stays", "")), 200));
    r = expect(post(c, "/v1/sessions", "{'id':'ttl'}"), 201); /* the name is free again */
    assert_string_not_equal(reply_header(r, "ETag"), etag);
    assert_int_equal(int_at(r->json, "version"), 0);
    reply_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_create_reads),
        cmocka_unit_test(test_create_from),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown_is_never_made),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_header_names_the_session),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_patch),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_expiry),
    };
    return cmocka_run_group_tests_name("sessions", tests, start_tiny, stop_tiny);
}
