/* memory_test.c: GET /v1/sessions/{id}/memory: what it says is what the session's snapshot holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "tests/support/node.h"

static struct node node;

static int start(void **state)
{
    (void)state;
    node_init(&node, "memory", (const char *const[]){"--sessions-in-memory=8", NULL});
    node_start(&node);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    node_done(&node);
    return 0;
}

static void make(const char *id)
{
    reply_free(expect(post(node.a.client, "/v1/sessions",
                           "{'id':'%s','prompt':'User: my name is Kate.\\n\\nAssistant:'}", id),
                      201));
}

static struct reply *look(const char *id, const char *query)
{
    char rest[128];
    snprintf(rest, sizeof rest, "/memory%s", query);
    return get(node.a.client, session_path(id, rest));
}

static const json_t *head_at(const struct reply *r, size_t i)
{
    return json_array_get(json_object_get(r->json, "heads"), i);
}

static double number(const json_t *head, const char *key)
{
    const json_t *v = json_object_get(head, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void says_what_the_snapshot_holds(void **state)
{
    (void)state;
    make("a");
    struct bytes b = snapshot_get(node.a.client, "a", "");
    struct sl_tensors *t;
    assert_int_equal(sl_tensors_open_memory(&t, b.p, b.n, "a", NULL), SL_OK);
    struct reply *r = expect(look("a", ""), 200);
    assert_string_equal(reply_header(r, "ETag"), b.etag);
    assert_null(json_object_get(r->json, "half_life_over"));
    size_t n = json_array_size(json_object_get(r->json, "heads"));
    assert_int_equal(n, 12); /* the embedded model: 4 layers, 3 heads of 64 */
    for (size_t i = 0; i < n; i++) {
        const json_t *h = head_at(r, i);
        char name[64];
        snprintf(name, sizeof name, "layers.%zu.mixer.state", i / 3);
        const struct sl_tensor *x = sl_tensors_find(t, name);
        assert_non_null(x);
        const unsigned char *p = (const unsigned char *)x->data + i % 3 * 64 * 64 * sizeof(float);
        double sum = 0;
        for (size_t k = 0; k < (size_t)64 * 64; k++) {
            float f;
            memcpy(&f, p + k * sizeof f, sizeof f);
            sum += (double)f * (double)f;
        }
        assert_int_equal(number(h, "layer"), i / 3);
        assert_int_equal(number(h, "head"), i % 3);
        assert_int_equal(number(h, "rows"), 64);
        assert_int_equal(number(h, "cols"), 64);
        assert_true(fabs(number(h, "norm") - sqrt(sum)) < 1e-5 * sqrt(sum));
        assert_in_range(number(h, "effective_rank"), 1, 64);
        assert_null(json_object_get(h, "half_life"));
    }
    reply_free(r);
    sl_tensors_close(t);
    sl_free(b.p);
}

/* Asked for, they are there; the session and what it says next are as they were. */
static void half_lives(void **state)
{
    (void)state;
    struct gen one, two;
    make("h");
    make("same");
    struct reply *r = expect(look("h", "?half_life=40"), 200);
    assert_int_equal(int_at(r->json, "half_life_over"), 40);
    for (size_t i = 0; i < 12; i++) {
        const json_t *v = json_object_get(head_at(r, i), "half_life");
        assert_true(json_is_null(v) || json_number_value(v) > 0);
    }
    reply_free(r);
    turn_of(node.a.client, &one, "h", " hello", 3);
    turn_of(node.a.client, &two, "same", " hello", 3);
    output_same(&one.o, &two.o);
    gen_done(&one);
    gen_done(&two);
}

/* Of an empty session all is zero; of one in the store it is what it was. */
static void empty_and_stored(void **state)
{
    (void)state;
    reply_free(expect(post(node.a.client, "/v1/sessions", "{'id':'empty'}"), 201));
    struct reply *r = expect(look("empty", "?half_life=4"), 200);
    assert_true(number(head_at(r, 0), "norm") == 0);
    assert_true(number(head_at(r, 0), "effective_rank") == 0);
    reply_free(r);
    make("s");
    struct reply *before = expect(look("s", ""), 200);
    reply_free(expect(session_post(node.a.client, "s", "/pause"), 200));
    assert_false(session_in_memory(node.a.client, "s"));
    struct reply *after = expect(look("s", ""), 200);
    assert_true(
        json_equal(json_object_get(before->json, "heads"), json_object_get(after->json, "heads")));
    reply_free(before);
    reply_free(after);
}

static void refused(void **state)
{
    (void)state;
    make("r");
    expect_error(look("nobody", ""), 404, "session_not_found", "session");
    static const char *const bad[] = {"0", "-1", "x", "1025", "99999999999999999999999", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char query[64];
        snprintf(query, sizeof query, "?half_life=%s", bad[i]);
        expect_error(look("r", query), 400, "invalid_value", "half_life");
    }
    struct reply *r = request(node.a.client, "GET", session_path("r", "/memory"),
                              "If-Match: \"00000000000000000000000000000000-9\"", NULL, 0);
    expect_error(r, 412, "version_mismatch", "If-Match");
}

/* One at a time; who has to come back is told so; who goes away leaves nothing behind. */
static void many_at_once(void **state)
{
    (void)state;
    enum { N = 6 };
    struct call *k[N];
    size_t n_measured = 0;
    make("m");
    for (size_t i = 0; i < N; i++)
        k[i] = call_start(node.a.client, "GET", session_path("m", "/memory?half_life=200"), NULL,
                          NULL, 0);
    for (size_t i = 0; i < N; i++) {
        struct reply *r = call_finish(k[i]);
        n_measured += r->status == 200;
        if (r->status == 200)
            reply_free(r);
        else
            expect_error(r, 503, "server_full", NULL);
    }
    assert_in_range(n_measured, 1, N);
    k[0] = call_start(node.a.client, "GET", session_path("m", "/memory?half_life=1024"), NULL, NULL,
                      0);
    call_abort(k[0]);
    while (true) {
        struct reply *r = look("m", "");
        bool done = r->status == 200;
        reply_free(r);
        if (done)
            break;
    }
}

/* The two answers say the same. */
static void same_look(struct reply *a, struct reply *b)
{
    assert_true(json_equal(a->json, expect(b, 200)->json));
    assert_string_equal(reply_header(a, "ETag"), reply_header(b, "ETag"));
    assert_string_equal(reply_header(a, "X-Slate-Session"), reply_header(b, "X-Slate-Session"));
    reply_free(b);
}

/* Is a session being measured? Asked of one, each time something new. */
static bool is_measuring(const char *id)
{
    static unsigned n_asked;
    char query[64];
    snprintf(query, sizeof query, "?half_life=%u", ++n_asked);
    struct reply *r = look(id, query);
    bool waits = r->status == 503;
    reply_free(waits ? r : expect(r, 200));
    return waits;
}

/* While another session is measured one that was looked at before is told again. */
static void measured_once(void **state)
{
    (void)state;
    make("once");
    make("long");
    make("probe");
    struct reply *first = expect(look("once", "?half_life=30"), 200);
    bool all_the_time = false;
    for (unsigned n = 1024; !all_the_time; n--) {
        char query[64];
        snprintf(query, sizeof query, "/memory?half_life=%u", n);
        struct call *k =
            call_start(node.a.client, "GET", session_path("long", query), NULL, NULL, 0);
        bool before = is_measuring("probe");
        same_look(first, look("once", "?half_life=30"));
        struct reply *plain = expect(look("once", ""), 200);
        assert_null(json_object_get(plain->json, "half_life_over"));
        for (size_t i = 0; i < 12; i++) {
            assert_null(json_object_get(head_at(plain, i), "half_life"));
            assert_true(number(head_at(plain, i), "norm") == number(head_at(first, i), "norm"));
        }
        reply_free(plain);
        all_the_time = before && is_measuring("probe");
        reply_free(call_finish(k)); /* a 503 where the probe was first */
    }
    reply_free(first);
}

/* What was measured of a version is not told of another, or of another session of that name. */
static void measured_anew(void **state)
{
    (void)state;
    struct client *c = node.a.client;
    struct gen g;
    make("old");
    reply_free(expect(look("old", ""), 200));
    turn_of(c, &g, "old", " hello", 3);
    gen_done(&g);
    struct reply *r = expect(look("old", ""), 200);
    struct bytes b = snapshot_get(c, "old", "");
    reply_free(expect(snapshot_put(c, "twin", b.p, b.n, NULL), 201));
    sl_free(b.p);
    struct reply *twin = expect(look("twin", ""), 200);
    assert_true(
        json_equal(json_object_get(r->json, "heads"), json_object_get(twin->json, "heads")));
    assert_int_equal(int_at(r->json, "version"), session_version(c, "old"));
    reply_free(twin);
    reply_free(expect(del(c, session_path("old", "")), 200));
    reply_free(expect(post(c, "/v1/sessions", "{'id':'old'}"), 201));
    struct reply *empty = expect(look("old", ""), 200);
    assert_true(number(head_at(empty, 0), "norm") == 0);
    assert_string_not_equal(reply_header(r, "ETag"), reply_header(empty, "ETag"));
    reply_free(empty);
    reply_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_the_snapshot_holds),
        cmocka_unit_test(half_lives),
        cmocka_unit_test(empty_and_stored),
        cmocka_unit_test(refused),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(measured_once),
        cmocka_unit_test(measured_anew),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
