/* quotas_test.c: what tenants may use, with every kind of store: what is over a quota is a 429 that
 * names it, whatever comes at once; what is given back can be used again; after a restart, and over
 * several servers, it is the same. And times to live. */
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
#include "tests/support/key_file.h"
#include "tests/support/redis.h"

#define KEY_A "Authorization: Bearer key-of-tenant-a"
#define KEY_B "Authorization: Bearer key-of-tenant-b"
#define KEY_FIGURES "Authorization: Bearer key-for-figures"

enum { AT_ONCE = 12 };

static struct api api;
static struct node node;
static struct redis redis;
static const char *kind;   /* of the store */
static const char *option; /* one more of the server; NULL: none */

/* --- servers -----------------------------------------------------------------------------------*/

/* `line`: what tenant a may use. */
static void write_keys(const char *line)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     "key-of-tenant-a a user\nkey-of-tenant-b b user\nkey-for-figures ops metrics\n"
                     "quota a %s\n",
                     line);
    assert_in_range(n, 1, sizeof text - 1);
    key_file_put(text, (size_t)n);
}

static void start(const char *line)
{
    write_keys(line);
    const char *options[] = {"--tokenizer=bytes",
                             "--model",
                             seeded_bytes_model(),
                             "--api-keys",
                             key_file,
                             "--max-queued-prefill=1000",
                             "--lease=3s",
                             "--store-timeout=1s",
                             option,
                             NULL,
                             NULL};
    enum { FREE = 8 };
    char store[100];
    if (!strcmp(kind, "dir")) {
        node_init(&node, "quotas", options);
        node_start(&node);
        api = node.a;
    } else {
        if (!strcmp(kind, "redis")) {
            redis_init(&redis, "quotas", NULL);
            snprintf(store, sizeof store, "--store=%s", redis.spec);
            options[option ? FREE + 1 : FREE] = store;
        }
        api_start(&api, options);
    }
    client_header(api.client, KEY_A);
}

static int stop(void **state)
{
    (void)state;
    if (!strcmp(kind, "dir"))
        node_done(&node);
    else if (api.server)
        api_stop(&api);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){0};
    api = (struct api){0};
    option = NULL;
    key_file_remove();
    return 0;
}

static int with_memory(void **state)
{
    (void)state;
    kind = "memory";
    return 0;
}

static int with_one_running(void **state)
{
    option = "--max-running=1"; /* and the others wait */
    return with_memory(state);
}

static int with_dir(void **state)
{
    (void)state;
    kind = "dir";
    return 0;
}

static int with_redis(void **state)
{
    (void)state;
    kind = "redis";
    return 0;
}

/* --- what is said ------------------------------------------------------------------------------*/

/* 429, with the quota's name; retry: must there be a Retry-After, and how long at most? */
static void over_(struct reply *r, const char *quota, long retry, int line)
{
    const char *after = reply_header(r, "Retry-After");
    if (retry ? !after || strtol(after, NULL, 10) < 1 || strtol(after, NULL, 10) > retry
              : after != NULL)
        fail_msg("line %d: Retry-After: %s\n%s", line, after ? after : "none", r->body);
    expect_error_at(r, 429, "quota_exceeded", quota, __FILE__, line);
}
#define over(r, quota, retry) over_((r), (quota), (retry), __LINE__)

static double figure(const char *name)
{
    struct client *c = client_open(api.server->base);
    client_header(c, KEY_FIGURES);
    double v = metric(c, name);
    client_close(c);
    return v;
}

static void until_figure(const char *name, double value)
{
    struct client *c = client_open(api.server->base);
    client_header(c, KEY_FIGURES);
    until_metric(c, name, value);
    client_close(c);
}

static void made(struct reply *r)
{
    reply_free(expect(r, 201));
}

static void gone(const char *id)
{
    reply_free(expect(del(api.client, session_path(id, "")), 200));
}

static size_t listed(void)
{
    struct reply *r = expect(get(api.client, "/v1/sessions"), 200);
    size_t n = len_at(r->json, "data");
    reply_free(r);
    return n;
}

/* Asks until it is made: what has expired makes room, if not at once. */
static void until_made(const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (;;) {
        struct reply *r = post(api.client, "/v1/sessions", "{'id':'%s'}", id);
        long status = r->status;
        if (status != 201)
            over(r, "sessions", 0);
        else
            reply_free(r);
        if (status == 201)
            return;
        if (client_now_ms() > deadline)
            fail_msg("nothing expires");
    }
}

/* A prompt that is refused only when the turn has begun. */
static const char *too_long(void)
{
    static char text[1101];
    memset(text, 'l', sizeof text - 1);
    return text;
}

/* --- sessions ----------------------------------------------------------------------------------*/

static void test_sessions(void **state)
{
    (void)state;
    start("sessions=3");
    struct client *c = api.client;
    made(post(c, "/v1/sessions", "{'id':'s1','prompt':'Once'}"));
    struct bytes b = snapshot_get(c, "s1", "");
    made(post(c, session_path("s1", "/fork"), "{'id':'s2'}"));
    made(snapshot_put(c, "s3", b.p, b.n, NULL));
    over(post(c, "/v1/sessions", "{'id':'s4'}"), "sessions", 0);
    over(post(c, "/v1/sessions", "{'id':'s4','prompt':'a'}"), "sessions", 0);
    over(post(c, "/v1/sessions", "{'id':'s4','from':'s1'}"), "sessions", 0);
    over(post(c, session_path("s1", "/fork"), "{'id':'s4'}"), "sessions", 0);
    over(snapshot_put(c, "s4", b.p, b.n, NULL), "sessions", 0);
    expect_error(get(c, session_path("s4", "")), 404, "session_not_found", "session");
    assert_int_equal(listed(), 3);
    /* What is there goes on, another tenant is not concerned, and what keeps nothing is free. */
    reply_free(
        expect(post(c, "/v1/generate", "{'session':'s1','prompt':'x','max_tokens':2}"), 200));
    reply_free(expect(snapshot_put(c, "s3", b.p, b.n, "If-Match: *"), 200));
    reply_free(
        expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2,'return_state':true}"), 200));
    client_header(c, KEY_B);
    for (int i = 0; i < 4; i++)
        made(post(c, "/v1/sessions", "{}"));
    client_header(c, KEY_A);
    /* A deletion gives one back, a failure does not take one. */
    gone("s2");
    expect_error(post(c, "/v1/sessions", "{'id':'s4','prompt':'%s'}", too_long()), 413, "too_large",
                 "prompt");
    expect_error(snapshot_put(c, "s4", b.p, b.n / 2, NULL), 422, "snapshot_corrupt", NULL);
    expect_error(post(c, "/v1/sessions", "{'id':'s1'}"), 409, "session_exists", "id");
    made(post(c, "/v1/sessions", "{'id':'s4'}"));
    over(post(c, "/v1/sessions", "{'id':'s5'}"), "sessions", 0);
    /* And so does the end of one's time. */
    reply_free(expect(patch(c, session_path("s4", ""), "{'ttl_s':1}"), 200));
    until_made("s5");
    expect_error(get(c, session_path("s4", "")), 404, "session_not_found", "session");
    over(post(c, "/v1/sessions", "{'id':'s6'}"), "sessions", 0);
    assert_true(figure("slate_tenant_refused_total{tenant=\"a\",quota=\"sessions\"}") >= 8);
    sl_free(b.p);
}

static void test_sessions_at_once(void **state)
{
    (void)state;
    start("sessions=5");
    struct client *c = api.client;
    struct call *k[AT_ONCE];
    for (int round = 0; round < 3; round++) {
        size_t n_made = 0;
        for (int i = 0; i < AT_ONCE; i++)
            k[i] = call_post(c, "/v1/sessions",
                             i % 2 ? "{'id':'r%d','prompt':'a'}" : "{'id':'r%d'}", i);
        for (int i = 0; i < AT_ONCE; i++) {
            struct reply *r = call_finish(k[i]);
            n_made += r->status == 201;
            if (r->status == 201)
                reply_free(r);
            else
                over(r, "sessions", 0);
        }
        assert_int_equal(n_made, 5);
        assert_int_equal(listed(), 5);
        for (int i = 0; i < AT_ONCE; i++)
            reply_free(del(c, session_path((char[]){'r', (char)('0' + i), '\0'}, "")));
        reply_free(del(c, session_path("r10", "")));
        reply_free(del(c, session_path("r11", "")));
        assert_int_equal(listed(), 0);
    }
}

/* --- bytes -------------------------------------------------------------------------------------*/

static int64_t state_bytes(void)
{
    struct reply *r = expect(post(api.client, "/v1/sessions", "{'id':'probe'}"), 201);
    int64_t n = int_at(r->json, "bytes");
    reply_free(r);
    gone("probe");
    return n;
}

/* The key file says so from now on, and the server has read it. */
static void set_quota(const char *name, long long n)
{
    char line[80], metric_name[100];
    snprintf(line, sizeof line, "%s=%lld", name, n);
    write_keys(line);
    assert_int_equal(kill(api.server->pid, SIGHUP), 0);
    snprintf(metric_name, sizeof metric_name, "slate_tenant_quota{tenant=\"a\",quota=\"%s\"}",
             name);
    until_figure(metric_name, (double)n);
}

/* {"a":"xxx…"} of n bytes. */
static const char *metadata(size_t n)
{
    static char ring[4][2048];
    static unsigned turn;
    char *dst = ring[turn++ % 4];
    assert_true(n >= 8 && n < sizeof ring[0]);
    memset(dst, 'x', n);
    memcpy(dst, "{\"a\":\"", 6);
    memcpy(dst + n - 2, "\"}", 3);
    return dst;
}

static struct reply *keyed(const char *id, const char *key)
{
    char body[200], extra[100];
    int n = snprintf(body, sizeof body,
                     "{\"session\":\"%s\",\"prompt\":\"k\",\"max_tokens\":2,\"seed\":1}", id);
    snprintf(extra, sizeof extra, "Idempotency-Key: %s", key);
    return request(api.client, "POST", "/v1/generate", extra, body, (size_t)n);
}

static void test_bytes(void **state)
{
    (void)state;
    start("bytes=1GiB");
    struct client *c = api.client;
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
    if (!strcmp(kind, "redis")) {
        redisReply *use = redis_ask(&redis, "HGET slate1:use a");
        assert_int_equal(strtoll(use->str, NULL, 10), 2 * state_n + 4);
        freeReplyObject(use);
    } else {
        assert_true(figure("slate_tenant_bytes{tenant=\"a\"}") == (double)(2 * state_n + 4));
    }
    gone("b1");
    gone("b3");
    if (!strcmp(kind, "redis")) {
        redisReply *use = redis_ask(&redis, "EXISTS slate1:use");
        assert_int_equal(use->integer, 0);
        freeReplyObject(use);
    } else {
        assert_true(figure("slate_tenant_bytes{tenant=\"a\"}") == 0);
    }
}

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
    option = "--keep-transcript";
    start("bytes=1GiB");
    struct client *c = api.client;
    int64_t state_n = state_bytes();
    made(post(c, "/v1/sessions", "{'id':'small','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "small", ""), e = with_transcript(&b, 'c', NULL);
    reply_free(expect(snapshot_put(c, "big", e.p, e.n, NULL), 201));
    reply_free(expect(post(c, session_path("big", "/checkpoints"), "{'name':'here'}"), 201));
    int64_t used = (int64_t)figure("slate_tenant_bytes{tenant=\"a\"}");
    set_quota("bytes", used + state_n + 2 * TRANSCRIPT); /* of the 4 bytes of each */
    over(post(c, session_path("big", "/fork"), AT_NAME), "bytes", 0);
    expect_error(get(c, session_path("bigger", "")), 404, "session_not_found", "session");
    set_quota("bytes", used + state_n + 5 * TRANSCRIPT);
    made(post(c, session_path("big", "/fork"), AT_NAME));
    sl_free(b.p);
    sl_free(e.p);
}

/* An uploaded transcript counts as what it is, whatever its snapshot says of it. */
static void test_transcripts(void **state)
{
    (void)state;
    static const char *const seen[] = {"100000", NULL, "3000000", "1"};
    option = "--keep-transcript";
    start("bytes=1GiB");
    struct client *c = api.client;
    int64_t state_n = state_bytes();
    assert_true(state_n < TRANSCRIPT);
    made(post(c, "/v1/sessions", "{'id':'small','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "small", ""), e;
    set_quota("bytes", 3 * state_n + 6 * TRANSCRIPT);
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
        for (int j = 0; j < 4; j++) {
            r = call_finish(k[j]);
            n_made += r->status == 201;
            if (r->status == 201)
                reply_free(r);
            else
                over(r, "bytes", 0);
        }
        assert_int_equal(n_made, 1);
        for (int j = 0; j < 4; j++)
            reply_free(del(c, session_path((char[]){'b', 'i', 'g', (char)('0' + j), 0}, "")));
        assert_int_equal(listed(), 1);
        sl_free(e.p);
    }
    sl_free(b.p);
}

/* --- turns -------------------------------------------------------------------------------------*/

static bool has_status(const struct reply *r, void *arg)
{
    (void)arg;
    return r->status != 0;
}

static struct call *endless(void)
{
    return stream_start(api.client, "'prompt':'Tell','max_tokens':1000000,'ignore_eos':true");
}

static void test_running(void **state)
{
    (void)state;
    start("running=2");
    struct client *c = api.client;
    struct call *k[6];
    int n_running = 0;
    made(post(c, "/v1/sessions", "{'id':'r1'}"));
    for (int i = 0; i < 6; i++)
        k[i] = endless();
    for (int i = 0; i < 6; i++) {
        call_until(k[i], has_status, NULL);
        n_running += call_reply(k[i])->status == 200;
        if (call_reply(k[i])->status == 200)
            continue;
        over(call_finish(k[i]), "running", 1);
        k[i] = NULL;
    }
    assert_int_equal(n_running, 2);
    over(post(c, "/v1/generate", "{'session':'r1','prompt':'x','max_tokens':2}"), "running", 1);
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2,'return_state':true}"), "running",
         1);
    over(post(c, "/v1/completions", "{'prompt':'x','max_tokens':2}"), "running", 1);
    over(post(c, "/v1/chat/completions", "{'messages':[{'role':'user','content':'a'}]}"), "running",
         1);
    over(post(c, "/v1/sessions", "{'id':'r2','prompt':'x'}"), "running", 1);
    expect_error(get(c, session_path("r2", "")), 404, "session_not_found", "session");
    made(post(c, "/v1/sessions", "{'id':'r2'}")); /* runs nothing */
    client_header(c, KEY_B);
    reply_free(expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':2}"), 200));
    client_header(c, KEY_A);
    for (int i = 0; i < 6; i++)
        if (k[i])
            call_abort(k[i]);
    until_figure("slate_tenant_requests_running{tenant=\"a\"}", 0);
    for (int i = 0; i < 4; i++) /* each is given back at its end */
        reply_free(
            expect(post(c, "/v1/generate", "{'session':'r1','prompt':'x','max_tokens':2}"), 200));
    for (int i = 0; i < 4; i++)
        expect_error(post(c, "/v1/generate", "{'session':'r1','prompt':'%s'}", too_long()), 413,
                     "too_large", "prompt");
    assert_true(figure("slate_tenant_requests_running{tenant=\"a\"}") == 0);
}

static double tokens(void)
{
    return figure("slate_tenant_tokens{tenant=\"a\"}");
}

static void test_tokens(void **state)
{
    (void)state;
    start("tokens-per-minute=60000");
    struct client *c = api.client;
    /* A client that goes has used what was computed, and gets the rest back. */
    struct call *k =
        stream_start(c, "'prompt':'x','max_tokens':50000,'ignore_eos':true,'return_tokens':true");
    stream_until(k, 2);
    assert_true(tokens() == 50001);
    call_abort(k);
    until_figure("slate_tenant_requests_running{tenant=\"a\"}", 0);
    double used = tokens();
    assert_true(used >= 3 && used < 40000);
    set_quota("tokens-per-minute", 600);
    double before = used;
    int64_t begin = client_now_ms();
    /* What is used is what its usage says. */
    struct reply *r = expect(
        post(c, "/v1/generate", "{'prompt':'0123456789','max_tokens':90,'ignore_eos':true}"), 200);
    used += (double)int_at(r->json, "usage.total_tokens");
    assert_true(used >= before + 100 && tokens() == used);
    reply_free(r);
    /* What never ran has used nothing. */
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':600}"), "tokens-per-minute", 0);
    over(post(c, "/v1/generate", "{'prompt':'x','max_tokens':590}"), "tokens-per-minute", 60);
    over(post(c, "/v1/completions", "{'prompt':'x','max_tokens':590}"), "tokens-per-minute", 60);
    over(post(c, "/v1/chat/completions",
              "{'messages':[{'role':'user','content':'a'}],'max_tokens':580}"),
         "tokens-per-minute", 60);
    char *prompt = sl_calloc(1, 591);
    assert_non_null(prompt);
    memset(prompt, 'p', 590);
    over(post(c, "/v1/sessions", "{'id':'t1','prompt':'%s'}", prompt), "tokens-per-minute", 60);
    sl_free(prompt);
    expect_error(get(c, session_path("t1", "")), 404, "session_not_found", "session");
    assert_true(tokens() == used);
    client_header(c, KEY_B);
    reply_free(expect(post(c, "/v1/generate", "{'prompt':'x','max_tokens':590}"), 200));
    client_header(c, KEY_A);
    /* Whatever comes at once: no more than there were, and what has flowed in. */
    struct call *many[4 * AT_ONCE];
    size_t n_refused = 0;
    for (size_t i = 0; i < 4 * AT_ONCE; i++)
        many[i] = call_post(c, "/v1/generate", "{'prompt':'x','max_tokens':29,'ignore_eos':true}");
    for (size_t i = 0; i < 4 * AT_ONCE; i++) {
        r = call_finish(many[i]);
        n_refused += r->status == 429;
        if (r->status == 429)
            over(r, "tokens-per-minute", 60);
        else
            reply_free(expect(r, 200));
    }
    assert_true(n_refused > 0);
    assert_true(tokens() - before <= 600 + 10 * ((double)(client_now_ms() - begin) / 1000 + 1));
}

/* A snapshot of a session with a paused prompt of n tokens that nobody has read. */
static struct bytes snapshot_of_paused(size_t n)
{
    char *prompt = sl_calloc(1, n + 1);
    assert_non_null(prompt);
    memset(prompt, 'p', n);
    reply_free(expect(post(api.client, "/v1/sessions", "{'id':'long'}"), 201));
    client_header(api.client, KEY_B);
    struct call *first = stream_start(
        api.client, "'prompt':'x','max_tokens':1000000,'ignore_eos':true,'return_tokens':true");
    stream_until(first, 1);
    client_header(api.client, KEY_A);
    struct call *k =
        generate_start(api.client, "'session':'long','prompt':'%s','max_tokens':1", prompt);
    client_header(api.client, KEY_FIGURES);
    until_metric(api.client, "slate_requests_queued", 1);
    client_header(api.client, KEY_A);
    reply_free(expect(session_post(api.client, "long", "/pause"), 200));
    reply_free(expect(call_finish(k), 200));
    call_abort(first);
    sl_free(prompt);
    return snapshot_get(api.client, "long", "");
}

/* What a client uploads as pending is read for it as any prompt: it is taken once, when it comes,
 * and given back where it does not become a session. */
static void test_pending_tokens(void **state)
{
    (void)state;
    enum { N = 500 };
    start("tokens-per-minute=60000");
    struct client *c = api.client;
    struct bytes b = snapshot_of_paused(N);
    double used = tokens();
    assert_true(used == N);
    reply_free(expect(snapshot_put(c, "copy", b.p, b.n, NULL), 201));
    assert_true(tokens() == (used += N - 1));
    reply_free(expect(post(c, "/v1/generate", "{'session':'copy','resume':true}"), 200));
    reply_free(expect(post(c, "/v1/generate", "{'session':'long','resume':true}"), 200));
    assert_true(tokens() == (used += 2));
    struct sl_buf text;
    sl_buf_init(&text, 64 << 20);
    sl_buf_put_base64(&text, b.p, b.n);
    sl_buf_put(&text, "", 1);
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    reply_free(
        expect(post(c, "/v1/generate", "{'initial_state':'%s','resume':true}", text.data), 200));
    assert_true(tokens() == (used += N));
    set_quota("tokens-per-minute", N / 2);
    over(snapshot_put(c, "more", b.p, b.n, NULL), "tokens-per-minute", 0);
    over(post(c, "/v1/generate", "{'initial_state':'%s','resume':true}", text.data),
         "tokens-per-minute", 0);
    expect_error(get(c, session_path("more", "")), 404, "session_not_found", "session");
    assert_true(tokens() == used);
    sl_buf_done(&text);
    sl_free(b.p);
}

static void two_tokens(const char *id, double *used)
{
    reply_free(expect(post(api.client, "/v1/generate",
                           "{'session':'%s','prompt':'x','max_tokens':1,'ignore_eos':true}", id),
                      200));
    assert_true(tokens() == (*used += 2));
}

/* What is pending is taken again with each session that is made of it, and with each way back. */
static void test_forked_tokens(void **state)
{
    (void)state;
    enum { N = 500 };
    char text[8 * N] = "{\"pending\":[97";
    option = "--keep-turns=4";
    start("tokens-per-minute=60000");
    struct client *c = api.client;
    made(post(c, "/v1/sessions", "{'id':'base','prompt':'abc'}"));
    struct bytes b = snapshot_get(c, "base", "");
    for (int i = 1; i < N; i++)
        memcpy(text + strlen(text), i < N - 1 ? ",97" : ",97]}", i < N - 1 ? 4 : 6);
    struct bytes e = with_metadata(&b, "continuation", text);
    double used = tokens();
    made(snapshot_put(c, "src", e.p, e.n, NULL));
    made(snapshot_put(c, "kept", e.p, e.n, NULL));
    assert_true(tokens() == (used += 2 * (N - 1)));
    made(post(c, session_path("src", "/fork"), "{'id':'f'}"));
    made(post(c, "/v1/sessions", "{'id':'g','from':'src'}"));
    assert_true(tokens() == (used += 2 * (N - 1)));
    two_tokens("f", &used);
    two_tokens("src", &used);
    made(post(c, session_path("f", "/fork"), "{'id':'one'}"));
    assert_true(tokens() == used);
    reply_free(expect(post(c, session_path("src", "/rewind"), "{'version':1}"), 200));
    made(post(c, session_path("src", "/fork"), "{'id':'past','version':1}"));
    assert_true(tokens() == (used += 2 * (N - 1)));
    reply_free(expect(post(c, session_path("src", "/rewind"), "{'version':2}"), 200));
    assert_true(tokens() == used); /* a turn that is stored is read again for nothing */
    set_quota("tokens-per-minute", N / 2);
    over(post(c, session_path("kept", "/fork"), "{'id':'no'}"), "tokens-per-minute", 0);
    over(post(c, session_path("src", "/fork"), "{'id':'no','version':1}"), "tokens-per-minute", 0);
    over(post(c, session_path("src", "/rewind"), "{'version':1}"), "tokens-per-minute", 0);
    expect_error(get(c, session_path("no", "")), 404, "session_not_found", "session");
    assert_int_equal(session_version(c, "src"), 4);
    assert_true(tokens() == used);
    if (!strcmp(kind, "dir")) { /* what is to be read again for a restart is free, too */
        node_kill(&node);
        node_start(&node);
        api = node.a;
        client_header(api.client, KEY_A);
        made(post(api.client, session_path("f", "/fork"), "{'id':'two'}"));
        assert_true(tokens() == 0);
        over(post(api.client, session_path("kept", "/fork"), "{'id':'no'}"), "tokens-per-minute",
             0);
    }
    sl_free(b.p);
    sl_free(e.p);
}

/* --- after a restart, and over several servers -------------------------------------------------*/

static void test_restart(void **state)
{
    (void)state;
    static const char n_name[] = "slate_tenant_sessions{tenant=\"a\"}";
    static const char bytes_name[] = "slate_tenant_bytes{tenant=\"a\"}";
    start("sessions=4 bytes=1GiB");
    struct client *c = api.client;
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
            node_stop(&node);
        else
            node_kill(&node);
        node_start(&node);
        api = node.a;
        c = api.client;
        client_header(c, KEY_A);
        assert_true(figure(n_name) == n);
        assert_true(figure(bytes_name) == bytes);
    }
    made(post(c, "/v1/sessions", "{'id':'d5'}"));
    over(post(c, "/v1/sessions", "{'id':'d6'}"), "sessions", 0);
}

static void test_fleet(void **state)
{
    (void)state;
    start("sessions=5");
    char store[100];
    struct api other;
    snprintf(store, sizeof store, "--store=%s", redis.spec);
    api_start(&other, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                            "--api-keys", key_file, "--lease=3s",
                                            "--store-timeout=1s", store, NULL});
    client_header(other.client, KEY_A);
    struct call *k[2][AT_ONCE];
    size_t n_made = 0;
    for (int i = 0; i < AT_ONCE; i++)
        for (int j = 0; j < 2; j++)
            k[j][i] = call_post(j ? other.client : api.client, "/v1/sessions",
                                i % 2 ? "{'id':'f%d-%d','prompt':'a'}" : "{'id':'f%d-%d'}", i, j);
    for (int i = 0; i < AT_ONCE; i++) {
        for (int j = 0; j < 2; j++) {
            struct reply *r = call_finish(k[j][i]);
            n_made += r->status == 201;
            if (r->status == 201)
                reply_free(r);
            else
                over(r, "sessions", 0);
        }
    }
    assert_int_equal(n_made, 5);
    assert_int_equal(listed(), 5);
    /* One that ends there makes room here. */
    struct reply *r = expect(get(api.client, "/v1/sessions?limit=1"), 200);
    char id[40];
    snprintf(id, sizeof id, "%s", str_at(r->json, "data.0.id"));
    reply_free(r);
    reply_free(expect(patch(other.client, session_path(id, ""), "{'ttl_s':1}"), 200));
    until_made("late");
    assert_int_equal(listed(), 5);
    api_stop(&other);
}

/* --- times to live -----------------------------------------------------------------------------*/

static void until_missing(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 200; status != 404;) {
        struct reply *r = get(c, session_path(id, ""));
        status = r->status;
        if (status == 404)
            expect_error(r, 404, "session_not_found", "session");
        else
            reply_free(expect(r, 200));
        if (client_now_ms() > deadline)
            fail_msg("%s does not expire", id);
    }
}

static int64_t ttl(struct reply *r, long status)
{
    expect(r, status);
    int64_t v = int_at(r->json, "ttl_s");
    reply_free(r);
    return v;
}

static bool is_time(const struct reply *r, void *arg)
{
    (void)r;
    return client_now_ms() >= *(const int64_t *)arg;
}

/* The default, and that no turn is cut. */
static void ttl_in(const char *store)
{
    struct api t;
    const char *options[] = {"--tokenizer=bytes",
                             "--model",
                             seeded_bytes_model(),
                             "--session-ttl=900ms",
                             "--lease=3s",
                             "--store-timeout=1s",
                             NULL,
                             NULL};
    options[6] = store;
    api_start(&t, options);
    struct client *c = t.client;
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'own','ttl_s':0,'prompt':'a'}"), 201), 0);
    struct bytes b = snapshot_get(c, "own", "");
    assert_int_equal(ttl(snapshot_put(c, "put", b.p, b.n, NULL), 201), 1);
    assert_int_equal(ttl(post(c, session_path("own", "/fork"), "{'id':'fork'}"), 201), 0);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'dflt'}"), 201), 1);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'busy'}"), 201), 1);
    struct call *k =
        stream_start(c, "'session':'busy','prompt':'Tell','max_tokens':1000000,'ignore_eos':true");
    int64_t until = client_now_ms() + 2500;
    call_until(k, is_time, &until);
    assert_false(call_reply(k)->over);
    until_missing(c, "dflt");
    until_missing(c, "put");
    reply_free(expect(session_post(c, "busy", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_int_equal(int_at(r->events[r->n_events - 1], "version"), 1); /* it was committed */
    reply_free(r);
    until_missing(c, "busy");
    until_metric(c, "slate_sessions_expired_total", 3); /* removed, not only hidden */
    until_metric(c, "slate_sessions", 2);
    /* Its name is free, and what it was is not to be had any more. */
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'busy','ttl_s':0}"), 201), 0);
    assert_int_equal(session_version(c, "busy"), 0);
    expect_error(post(c, "/v1/generate", "{'session':'put','prompt':'a'}"), 404,
                 "session_not_found", "session");
    sl_free(b.p);
    api_stop(&t);
}

static void test_ttl_memory(void **state)
{
    (void)state;
    ttl_in("--store=memory");
}

static void test_ttl_redis(void **state)
{
    (void)state;
    char store[100];
    kind = "redis";
    redis_init(&redis, "ttl", NULL);
    snprintf(store, sizeof store, "--store=%s", redis.spec);
    ttl_in(store);
    /* Nothing of them is left. */
    redisReply *r = redis_ask(&redis, "KEYS slate1:{default/put}*");
    assert_int_equal(r->elements, 0);
    freeReplyObject(r);
    r = redis_ask(&redis, "ZCARD slate1:all");
    assert_int_equal(r->integer, 3);
    freeReplyObject(r);
}

static void test_ttl_dir(void **state)
{
    (void)state;
    kind = "dir";
    node_init(&node, "ttl",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), NULL});
    char store[400];
    snprintf(store, sizeof store, "--store=dir:%s", node.dir);
    ttl_in(store);
    /* Times go on while nothing runs, and are the same afterwards. */
    node_start(&node);
    struct client *c = node.a.client;
    assert_true(metric(c, "slate_sessions") == 3);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'long','prompt':'a','ttl_s':5000}"), 201),
                     5000);
    assert_int_equal(ttl(post(c, "/v1/sessions", "{'id':'short','prompt':'a','ttl_s':1}"), 201), 1);
    struct reply *r = expect(get(c, session_path("long", "")), 200);
    int64_t end = int_at(r->json, "expires_at");
    reply_free(r);
    node_kill(&node);
    node_start(&node);
    c = node.a.client;
    r = expect(get(c, session_path("long", "")), 200);
    assert_int_equal(int_at(r->json, "expires_at"), end);
    reply_free(r);
    until_missing(c, "short");
    until_metric(c, "slate_sessions_expired_total", 1);
    node_kill(&node);
    node_start(&node);
    assert_true(metric(node.a.client, "slate_sessions") == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sessions, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_sessions, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_sessions, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_sessions_at_once, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_sessions_at_once, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_bytes, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_bytes, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_bytes, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_transcripts, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_running, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_tokens, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_pending_tokens, with_one_running, stop),
        cmocka_unit_test_setup_teardown(test_forked_transcript, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_forked_transcript, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_forked_tokens, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_restart, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_fleet, with_redis, stop),
        cmocka_unit_test_setup_teardown(test_ttl_memory, with_memory, stop),
        cmocka_unit_test_setup_teardown(test_ttl_dir, with_dir, stop),
        cmocka_unit_test_setup_teardown(test_ttl_redis, with_redis, stop),
    };
    return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
