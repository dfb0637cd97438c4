/* quotas_bytes_test.c: how many bytes a tenant's sessions may take, with every kind of store:
 * states, metadata, kept answers, transcripts that are uploaded or forked, to the last byte; and
 * that what is used is the same after a restart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/buf.h"
#include "tests/support/edited.h"
#include "tests/support/quotas.h"

static int64_t state_bytes(void)
{
    struct reply *r = expect(post(quotas.api.client, "/v1/sessions", "{'id':'probe'}"), 201);
    int64_t n = int_at(r->json, "bytes");
    reply_free(r);
    gone("probe");
    return n;
}

/* {"a":"000…"} of n bytes. */
static const char *metadata(size_t n)
{
    static char ring[4][2048];
    static unsigned turn;
    char *dst = ring[turn++ % 4];
    assert_true(n > 8 && n < sizeof ring[0]);
    snprintf(dst, sizeof ring[0], "{\"a\":\"%0*d\"}", (int)n - 8, 0);
    return dst;
}

static struct reply *keyed(const char *id, const char *key)
{
    char body[200], extra[100];
    int n = snprintf(body, sizeof body,
                     "{\"session\":\"%s\",\"prompt\":\"k\",\"max_tokens\":2,\"seed\":1}", id);
    snprintf(extra, sizeof extra, "Idempotency-Key: %s", key);
    return request(quotas.api.client, "POST", "/v1/generate", extra, body, (size_t)n);
}

static void test_bytes(void **state)
{
    (void)state;
    quotas_start("bytes=1GiB");
    struct client *c = quotas.api.client;
    int64_t state_n = state_bytes();
    set_quota("bytes", 2 * state_n + 1000);
    made(post(c, "/v1/sessions", "{'id':'b1','metadata':%s}", metadata(300)));
    over(post(c, "/v1/sessions", "{'id':'b2','metadata':%s}", metadata(701)), "bytes", 0);
    made(post(c, "/v1/sessions", "{'id':'b2','prompt':'a','metadata':%s}", metadata(300)));
    over(post(c, "/v1/sessions", "{'id':'b3'}"), "bytes", 0);
    over(post(c, session_path("b1", "/fork"), "{'id':'b3'}"), "bytes", 0);
    /* To the last byte; and what was refused has changed nothing. */
    over(patch(c, session_path("b1", ""), "{'metadata':%s}", metadata(701)), "bytes", 0);
    struct reply *r = expect(get(c, session_path("b1", "")), 200);
    assert_int_equal(strlen(str_at(r->json, "metadata.a")), 300 - 8);
    reply_free(r);
    reply_free(expect(patch(c, session_path("b1", ""), "{'metadata':%s}", metadata(700)), 200));
    reply_free(expect(patch(c, session_path("b1", ""), "{'ttl_s':1000}"), 200));
    /* A turn whose answer is kept needs room for it; one without does not. */
    over(keyed("b2", "first"), "bytes", 0);
    assert_int_equal(session_version(c, "b2"), 1);
    reply_free(
        expect(post(c, "/v1/generate", "{'session':'b2','prompt':'x','max_tokens':2}"), 200));
    reply_free(expect(patch(c, session_path("b1", ""), "{'metadata':{}}"), 200));
    r = expect(keyed("b2", "first"), 200);
    struct reply *again = expect(keyed("b2", "first"), 200);
    assert_string_equal(r->body, again->body);
    reply_free(r);
    reply_free(again);
    assert_int_equal(session_version(c, "b2"), 3);
    over(patch(c, session_path("b1", ""), "{'metadata':%s}", metadata(700)), "bytes", 0);
    /* A deletion gives all of it back. */
    gone("b2");
    made(post(c, "/v1/sessions", "{'id':'b3','metadata':%s}", metadata(700)));
    /* What a quota is lowered below stays, and nothing comes to it. */
    set_quota("bytes", state_n);
    over(patch(c, session_path("b1", ""), "{'metadata':%s}", metadata(100)), "bytes", 0);
    reply_free(expect(patch(c, session_path("b3", ""), "{'metadata':{}}"), 200));
    reply_free(
        expect(post(c, "/v1/generate", "{'session':'b3','prompt':'x','max_tokens':2}"), 200));
    assert_int_equal(listed(), 2);
    if (!strcmp(quotas.kind, "redis")) {
        redisReply *use = redis_ask(&quotas.redis, "HGET slate1:use a");
        assert_int_equal(strtoll(use->str, NULL, 10), 2 * state_n + 4);
        freeReplyObject(use);
    } else {
        assert_true(figure("slate_tenant_bytes{tenant=\"a\"}") == (double)(2 * state_n + 4));
    }
    gone("b1");
    gone("b3");
    if (!strcmp(quotas.kind, "redis")) {
        redisReply *use = redis_ask(&quotas.redis, "EXISTS slate1:use");
        assert_int_equal(use->integer, 0);
        freeReplyObject(use);
    } else {
        assert_true(figure("slate_tenant_bytes{tenant=\"a\"}") == 0);
    }
}

/* --- transcripts -------------------------------------------------------------------------------*/

enum { TRANSCRIPT = 100000 };

/* A session's snapshot with a transcript of so many tokens that ends as its own, and with the
 * number of tokens that a client says. */
static struct bytes with_transcript(const struct bytes *b, uint32_t last, const char *seen)
{
    struct sl_buf text;
    uint32_t *ids = sl_calloc(TRANSCRIPT, sizeof *ids);
    assert_non_null(ids);
    unsigned char *end = (unsigned char *)(ids + TRANSCRIPT - 1);
    for (int i = 0; i < 4; i++)
        end[i] = (unsigned char)(last >> 8 * i);
    sl_buf_init(&text, 16 << 20);
    sl_buf_put_base64(&text, ids, TRANSCRIPT * sizeof *ids);
    sl_buf_putc(&text, '\0');
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    struct bytes half = with_metadata(b, "session.tokens_seen", seen);
    struct bytes r = with_metadata(&half, "transcript", text.data);
    sl_free(half.p);
    sl_free(ids);
    sl_buf_done(&text);
    return r;
}

#define AT_NAME "{'id':'bigger','checkpoint':'here'}"

/* A fork at a checkpoint brings one as well. */
static void test_forked_transcript(void **state)
{
    (void)state;
    quotas.options[0] = "--keep-transcript";
    quotas_start("bytes=1GiB");
    struct client *c = quotas.api.client;
    int64_t state_n = state_bytes();
    made(post(c, "/v1/sessions", "{'id':'small','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "small", ""), e = with_transcript(&b, 'c', NULL);
    reply_free(expect(snapshot_put(c, "big", e.p, e.n, NULL), 201));
    reply_free(expect(post(c, session_path("big", "/checkpoints"), "{'name':'here'}"), 201));
    int64_t used = (int64_t)figure("slate_tenant_bytes{tenant=\"a\"}");
    set_quota("bytes", used + state_n + 2 * (int64_t)TRANSCRIPT); /* of the 4 bytes of each */
    over(post(c, session_path("big", "/fork"), AT_NAME), "bytes", 0);
    expect_error(get(c, session_path("bigger", "")), 404, "session_not_found", "session");
    set_quota("bytes", used + state_n + 5 * (int64_t)TRANSCRIPT);
    made(post(c, session_path("big", "/fork"), AT_NAME));
    sl_free(b.p);
    sl_free(e.p);
}

/* An uploaded transcript counts as what it is, whatever its snapshot says of it. */
static void test_transcripts(void **state)
{
    (void)state;
    static const char *const seen[] = {"100000", NULL, "3000000", "1"};
    quotas.options[0] = "--keep-transcript";
    quotas_start("bytes=1GiB");
    struct client *c = quotas.api.client;
    int64_t state_n = state_bytes();
    assert_true(state_n < TRANSCRIPT);
    made(post(c, "/v1/sessions", "{'id':'small','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "small", ""), e;
    set_quota("bytes", 3 * state_n + 6 * (int64_t)TRANSCRIPT);
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        struct call *k[4];
        size_t n_made = 0;
        e = with_transcript(&b, 'c', seen[i]);
        struct reply *r = expect(snapshot_put(c, "big", e.p, e.n, NULL), 201);
        assert_int_equal(int_at(r->json, "tokens_seen"), TRANSCRIPT);
        assert_int_equal(int_at(r->json, "kept_bytes"), 4 * TRANSCRIPT);
        reply_free(r);
        over(snapshot_put(c, "bigger", e.p, e.n, NULL), "bytes", 0);
        over(snapshot_put(c, "small", e.p, e.n, "If-Match: *"), "bytes", 0);
        over(post(c, session_path("big", "/fork"), "{'id':'bigger'}"), "bytes", 0);
        expect_error(get(c, session_path("bigger", "")), 404, "session_not_found", "session");
        assert_int_equal(session_version(c, "small"), 1);
        gone("big");
        for (int j = 0; j < 4; j++) {
            char path[40];
            snprintf(path, sizeof path, "/v1/sessions/big%d/snapshot", j);
            k[j] = call_start(c, "PUT", path, NULL, e.p, e.n);
        }
        for (int j = 0; j < 4; j++)
            n_made += made_or_over(call_finish(k[j]), "bytes");
        assert_int_equal(n_made, 1);
        for (int j = 0; j < 4; j++)
            reply_free(del(c, session_path((char[]){'b', 'i', 'g', (char)('0' + j), 0}, "")));
        assert_int_equal(listed(), 1);
        sl_free(e.p);
    }
    sl_free(b.p);
}

/* --- named checkpoints -------------------------------------------------------------------------*/

/* As it is counted where the store is. */
static int64_t bytes_used(void)
{
    if (strcmp(quotas.kind, "redis") != 0)
        return (int64_t)figure("slate_tenant_bytes{tenant=\"a\"}");
    redisReply *r = redis_ask(&quotas.redis, "HGET slate1:use a");
    int64_t n = r->str ? strtoll(r->str, NULL, 10) : 0;
    freeReplyObject(r);
    return n;
}

/* Whatever is kept without a name as well: each has to find room, and none takes more than there
 * is. */
static void test_names(void **state)
{
    enum { NAMES = 8 };
    (void)state;
    quotas.options[0] = "--keep-turns=2";
    quotas.options[1] = "--replay-limit=1"; /* so that snapshots are kept */
    quotas_start("bytes=1GiB");
    struct client *c = quotas.api.client;
    int64_t state_n = state_bytes();
    made(post(c, "/v1/sessions", "{'id':'s','prompt':'abc'}"));
    for (unsigned i = 0; i < 3; i++)
        reply_free(expect(
            post(c, "/v1/generate", "{'session':'s','prompt':'x','max_tokens':1,'seed':1}"), 200));
    if (strcmp(quotas.kind, "memory") != 0) /* no snapshot is still on its way then */
        reply_free(expect(post(c, session_path("s", "/pause"), "{}"), 200));
    int64_t used = bytes_used(), quota = used + state_n / 2;
    set_quota("bytes", quota);
    over(post(c, session_path("s", "/checkpoints"), "{'name':'c'}"), "bytes", 0);
    assert_true(bytes_used() == used);
    quota = used + 2 * state_n + state_n / 2;
    set_quota("bytes", quota);
    size_t n_made = 0;
    for (unsigned i = 0; i < NAMES; i++) {
        n_made +=
            made_or_over(post(c, session_path("s", "/checkpoints"), "{'name':'c%u'}", i), "bytes");
        assert_true(bytes_used() <= quota);
    }
    assert_in_range(n_made, 2, 5);
    gone("s");
    assert_true(bytes_used() == 0);
}

/* --- after a restart ---------------------------------------------------------------------------*/

static void test_restart(void **state)
{
    (void)state;
    static const char n_name[] = "slate_tenant_sessions{tenant=\"a\"}";
    static const char bytes_name[] = "slate_tenant_bytes{tenant=\"a\"}";
    quotas_start("sessions=4 bytes=1GiB");
    struct client *c = quotas.api.client;
    made(post(c, "/v1/sessions", "{'id':'d1','prompt':'a','metadata':%s}", metadata(100)));
    made(post(c, "/v1/sessions", "{'id':'d2','metadata':%s}", metadata(50)));
    made(post(c, session_path("d1", "/fork"), "{'id':'d3'}"));
    made(post(c, "/v1/sessions", "{'id':'d4'}"));
    for (int i = 0; i < 6; i++) { /* the first two are not kept any more */
        char key[20];
        snprintf(key, sizeof key, "%.*s", i + 3, "a-key-of-some-length");
        reply_free(expect(keyed("d1", key), 200));
    }
    reply_free(expect(session_post(c, "d1", "/pause"), 200));
    reply_free(expect(keyed("d1", "one-more"), 200));
    reply_free(expect(patch(c, session_path("d2", ""), "{'metadata':%s}", metadata(33)), 200));
    gone("d4");
    double n = figure(n_name), bytes = figure(bytes_name);
    assert_true(n == 3);
    for (int i = 0; i < 2; i++) {
        if (i)
            node_stop(&quotas.node);
        else
            node_kill(&quotas.node);
        quotas_start_again();
        c = quotas.api.client;
        assert_true(figure(n_name) == n);
        assert_true(figure(bytes_name) == bytes);
    }
    made(post(c, "/v1/sessions", "{'id':'d5'}"));
    over(post(c, "/v1/sessions", "{'id':'d6'}"), "sessions", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bytes, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_bytes, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_bytes, with_redis, quotas_stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_redis, quotas_stop),
        cmocka_unit_test_setup_teardown(test_forked_transcript, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_forked_transcript, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_names, with_memory, quotas_stop),
        cmocka_unit_test_setup_teardown(test_names, with_dir, quotas_stop),
        cmocka_unit_test_setup_teardown(test_names, with_redis, quotas_stop),
        cmocka_unit_test_setup_teardown(test_restart, with_dir, quotas_stop),
    };
    return cmocka_run_group_tests_name("quotas of bytes", tests, NULL, NULL);
}
