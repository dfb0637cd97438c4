/* snapshots_test.c: a session as bytes over HTTP: out of one server, into another; If-Match;
 * smaller dtypes; edited files; what is refused; sessions that the client keeps itself (issue 3,
 * points 1 and 7).
 *
 * The files are taken apart by hand: edited.h. */
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

/* Two servers of the same model that share nothing, and one of another model. */
static struct node one, two, other;

static void make(struct client *c, const char *id)
{
    struct gen g;
    reply_free(expect(
        post(c, "/v1/sessions", "{'id':'%s','metadata':{'of':1},'prompt':'Once upon'}", id), 201));
    turn_of(c, &g, id, " a time", 3);
    gen_done(&g);
}

static void same_next(struct client *c, const char *a, struct client *d, const char *b)
{
    struct gen x, y;
    turn_of(c, &x, a, " and", 11);
    turn_of(d, &y, b, " and", 11);
    output_same(&x.o, &y.o);
    gen_done(&x);
    gen_done(&y);
}

/* --- there and back ----------------------------------------------------------------------------*/

static void under_another_id_and_on_another_server(void **state)
{
    (void)state;
    struct client *c = one.a.client, *d = two.a.client;
    make(c, "a");
    struct bytes b = snapshot_get(c, "a", "");
    json_t *h = header_of(&b);
    assert_string_equal(metadata_of(h, "format"), "slate.session");
    assert_string_equal(metadata_of(h, "session.id"), "a");
    assert_string_equal(metadata_of(h, "session.version"), "2");
    json_decref(h);
    struct reply *r = expect(snapshot_put(c, "b", b.p, b.n, NULL), 201);
    assert_string_equal(reply_header(r, "Location"), "/v1/sessions/b");
    assert_string_equal(str_at(r->json, "id"), "b");
    assert_int_equal(int_at(r->json, "version"), 2);
    assert_int_equal(int_at(r->json, "metadata.of"), 1);
    assert_null(reply_header(r, "X-Slate-Snapshot-Differs"));
    assert_string_not_equal(reply_header(r, "ETag"), b.etag); /* another incarnation */
    reply_free(r);
    reply_free(expect(snapshot_put(d, "a", b.p, b.n, NULL), 201));
    node_kill(&two); /* what was answered is durable */
    node_start(&two);
    d = two.a.client;
    same_next(c, "b", d, "a");
    struct gen g;
    turn_of(c, &g, "a", " and", 11);
    assert_int_equal(session_version(d, "a"), 3);
    gen_done(&g);
    /* The same state gives the same bytes again, but for names and times. */
    struct bytes x = snapshot_get(c, "a", ""), y = snapshot_get(c, "b", "");
    h = header_of(&x);
    json_t *h2 = header_of(&y);
    assert_string_equal(metadata_of(h, "payload.xxh3"), metadata_of(h2, "payload.xxh3"));
    assert_string_equal(metadata_of(h, "continuation"), metadata_of(h2, "continuation"));
    json_decref(h);
    json_decref(h2);
    sl_free(x.p);
    sl_free(y.p);
    sl_free(b.p);
}

/* Of a turn that is under way: the last commit; what is paused goes along. */
static void of_a_busy_and_of_a_paused_one(void **state)
{
    (void)state;
    struct client *c = one.a.client, *d = two.a.client;
    make(c, "a");
    struct bytes before = snapshot_get(c, "a", "");
    struct call *k = stream_start(c, "'session':'a','prompt':' x','max_tokens':400,'seed':5,"
                                     "'ignore_eos':true,'stop':['e@','d@'],'return_tokens':true,"
                                     "'logprobs':2");
    stream_until(k, 2);
    struct bytes busy = snapshot_get(c, "a", "");
    assert_string_equal(busy.etag, before.etag);
    struct call *pause = pause_start(c, "a");
    struct parts here, there;
    parts_init(&here);
    parts_init(&there);
    parts_add(&here, call_finish(k));
    reply_free(expect(call_finish(pause), 200));
    assert_true(parts_paused(&here)); /* or this machine is too slow for its pauses */
    struct bytes paused = snapshot_get(c, "a", "");
    reply_free(expect(snapshot_put(d, "moved", paused.p, paused.n, NULL), 201));
    struct parts *p[] = {&here, &there};
    for (int i = 0; i < 2; i++)
        parts_add(p[i], call_finish(stream_start(i ? d : c,
                                                 "'session':'%s','resume':true,"
                                                 "'return_tokens':true",
                                                 i ? "moved" : "a")));
    /* `here` has the first part, too: what came after it must be the same. */
    size_t n_tokens = here.at[0];
    assert_int_equal(here.all.n_tokens - n_tokens, there.all.n_tokens);
    assert_memory_equal(here.all.tokens + n_tokens, there.all.tokens,
                        there.all.n_tokens * sizeof(uint32_t));
    same_next(c, "a", d, "moved");
    /* A paused turn that wants more than a server allows is not finished there; all else is. */
    json_t *h = header_of(&paused);
    json_t *continuation = json_loads(metadata_of(h, "continuation"), 0, NULL);
    json_object_set_new(json_object_get(continuation, "paused"), "max_tokens",
                        json_integer(1000000000));
    char *text = json_dumps(continuation, JSON_COMPACT);
    struct bytes greedy = with_metadata(&paused, "continuation", text);
    reply_free(expect(snapshot_put(d, "greedy", greedy.p, greedy.n, NULL), 201));
    struct reply *r = post(d, "/v1/generate", "{'session':'greedy','resume':true}");
    assert_non_null(strstr(r->body, "--max-tokens-limit"));
    expect_error(r, 400, "invalid_value", "resume");
    reply_free(expect(
        post(d, "/v1/generate", "{'session':'greedy','prompt':' and','max_tokens':1}"), 200));
    free(text);
    json_decref(continuation);
    json_decref(h);
    sl_free(before.p);
    sl_free(busy.p);
    sl_free(paused.p);
    sl_free(greedy.p);
    parts_done(&here);
    parts_done(&there);
}

static void if_match(void **state)
{
    (void)state;
    struct client *c = one.a.client;
    char line[160];
    make(c, "a");
    make(c, "b");
    struct gen g;
    turn_of(c, &g, "b", " but", 1);
    gen_done(&g);
    struct bytes a = snapshot_get(c, "a", ""), b = snapshot_get(c, "b", "");
    /* Over one that is there only under its ETag; with an ETag only over one that is there. */
    struct reply *there = snapshot_put(c, "a", b.p, b.n, NULL);
    assert_string_equal(reply_header(there, "ETag"), a.etag);
    expect_error(there, 409, "session_exists", "If-Match");
    snprintf(line, sizeof line, "If-Match: %s", b.etag);
    expect_error(snapshot_put(c, "a", b.p, b.n, line), 412, "version_mismatch", "If-Match");
    expect_error(snapshot_put(c, "nobody", b.p, b.n, line), 404, "session_not_found", "session");
    assert_int_equal(session_version(c, "a"), 2);
    snprintf(line, sizeof line, "If-Match: %s", a.etag);
    struct reply *r = expect(snapshot_put(c, "a", b.p, b.n, line), 200);
    assert_int_equal(int_at(r->json, "version"), 3); /* its own, one more */
    assert_int_equal(int_at(r->json, "metadata.of"), 1);
    /* The same incarnation: the ETag but for the version. */
    assert_memory_equal(reply_header(r, "ETag"), a.etag, 33);
    reply_free(r);
    node_kill(&one);
    node_start(&one);
    c = one.a.client;
    same_next(c, "a", c, "b");
    /* A reader's If-Match, too. */
    r = request(c, "GET", "/v1/sessions/a/snapshot", line, NULL, 0);
    expect_error(r, 412, "version_mismatch", "If-Match");
    sl_free(a.p);
    sl_free(b.p);
}

static void smaller_ones(void **state)
{
    (void)state;
    struct client *c = one.a.client;
    make(c, "a");
    struct bytes f32 = snapshot_get(c, "a", "?dtype=f32");
    struct bytes bf16 = snapshot_get(c, "a", "?dtype=bf16"),
                 i8 = snapshot_get(c, "a", "?dtype=int8");
    assert_true(bf16.n < f32.n * 6 / 10 && i8.n < f32.n * 4 / 10);
    reply_free(expect(snapshot_put(c, "b", bf16.p, bf16.n, NULL), 201));
    reply_free(expect(snapshot_put(c, "i", i8.p, i8.n, NULL), 201));
    /* Nearly the same memory: the first token's log probability moves little. */
    struct gen g[3];
    const char *id[] = {"a", "b", "i"};
    double lp[3];
    for (int i = 0; i < 3; i++) {
        generate(c, &g[i],
                 "'session':'%s','prompt':' and','max_tokens':1,'temperature':0,"
                 "'ignore_eos':true,'logprobs':0",
                 id[i]);
        lp[i] = num_at(g[i].r->json, "logprobs.0.logprob");
        gen_done(&g[i]);
    }
    assert_true(lp[1] != lp[0] && lp[1] - lp[0] < 0.1 && lp[0] - lp[1] < 0.1);
    assert_true(lp[2] != lp[0] && lp[2] - lp[0] < 0.5 && lp[0] - lp[2] < 0.5);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'e','prompt':'x'}"), 201));
    expect_error(get(c, "/v1/sessions/e/snapshot?dtype=f16"), 400, "invalid_value", "dtype");
    sl_free(f32.p);
    sl_free(bf16.p);
    sl_free(i8.p);
}

/* --- what a request may say -------------------------------------------------------------------*/

/* The body of a new session `m`; *ret: its metadata, as they must come back. */
static char *body_of(const char *metadata, json_t **ret)
{
    struct sl_buf b;
    size_t n;
    sl_buf_init(&b, 1 << 20);
    sl_buf_puts(&b, "{\"id\":\"m\",\"prompt\":\"Once upon\",\"metadata\":");
    sl_buf_puts(&b, metadata);
    sl_buf_put(&b, "}", 2);
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    *ret = json_loads(metadata, JSON_ALLOW_NUL, NULL);
    assert_non_null(*ret);
    return sl_buf_take(&b, &n);
}

static void must_have(struct client *c, const json_t *metadata)
{
    struct reply *r = session_get(c, "m");
    assert_true(json_equal(at(r->json, "metadata"), metadata));
    reply_free(r);
}

/* Out of memory and back, in a file and out of it, through a kill. */
static void keeps_metadata(const char *metadata)
{
    json_t *want;
    char *body = body_of(metadata, &want);
    reply_free(
        expect(request(one.a.client, "POST", "/v1/sessions", NULL, body, strlen(body)), 201));
    reply_free(expect(session_post(one.a.client, "m", "/pause"), 200));
    reply_free(expect(session_post(one.a.client, "m", "/resume"), 200));
    struct bytes b = snapshot_get(one.a.client, "m", "");
    reply_free(expect(snapshot_put(two.a.client, "m", b.p, b.n, NULL), 201));
    struct node *n[] = {&one, &two};
    for (size_t i = 0; i < 2; i++) {
        must_have(n[i]->a.client, want);
        node_kill(n[i]);
        node_start(n[i]);
        must_have(n[i]->a.client, want);
    }
    same_next(one.a.client, "m", two.a.client, "m");
    for (size_t i = 0; i < 2; i++)
        reply_free(expect(del(n[i]->a.client, "/v1/sessions/m"), 200));
    sl_free(b.p);
    sl_free(body);
    json_decref(want);
}

static void what_metadata_may_hold(void **state)
{
    (void)state;
    enum { DEEP = 2000 };
    char deep[2 * DEEP + 8] = "{\"a\":";
    memset(deep + 5, '[', DEEP);
    memset(deep + 5 + DEEP, ']', DEEP);
    memcpy(deep + 5 + 2 * DEEP, "}", 2);
    keeps_metadata("{\"a\":\"\\u0000b\",\"\\u0001\\ud83d\\ude00\":[\"\\uffff\\n\",{\"\":null}]}");
    keeps_metadata("{\"a\":[9223372036854775807,-9223372036854775808,1.7976931348623157e308,"
                   "-1e308,9.1e307,5e-324,0.1,-0.0,12345678901234567.25]}");
    keeps_metadata(deep);
}

/* A setting at the least that it may be is no float. */
static void paused_at_a_bound(void **state)
{
    (void)state;
    make(one.a.client, "a");
    struct parts p;
    parts_init(&p);
    struct call *k = stream_start(one.a.client, "'session':'a','prompt':' x','max_tokens':400,"
                                                "'ignore_eos':true,'return_tokens':true,"
                                                "'repetition_penalty':0.01");
    stream_until(k, 2);
    struct call *pause = pause_start(one.a.client, "a");
    parts_add(&p, call_finish(k));
    reply_free(expect(call_finish(pause), 200));
    assert_true(parts_paused(&p)); /* or this machine is too slow for its pauses */
    node_kill(&one);
    node_start(&one);
    parts_add(&p, call_finish(stream_start(one.a.client,
                                           "'session':'a','resume':true,'return_tokens':true")));
    assert_int_equal(p.all.n_tokens, 400);
    parts_done(&p);
}

/* --- what is refused ---------------------------------------------------------------------------*/

static void expect_edited(struct reply *r, int status)
{
    assert_string_equal(reply_header(expect(r, status), "X-Slate-Snapshot-Differs"), "edited");
    reply_free(r);
}

/* How a snapshot differs is told wherever one comes in: also where it is a part of the body. */
static void edited_in_a_body(struct client *c, const struct bytes *b)
{
    struct sl_buf text;
    sl_buf_init(&text, 64 << 20);
    sl_buf_put_base64(&text, b->p, b->n);
    sl_buf_put(&text, "", 1);
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    expect_edited(post(c, "/v1/sessions", "{'from':{'snapshot':'%s'}}", text.data), 201);
    for (int stream = 0; stream < 2; stream++)
        expect_edited(post(c, "/v1/generate",
                           "{'initial_state':'%s','prompt':' and','max_tokens':1,'stream':%s}",
                           text.data, stream ? "true" : "false"),
                      200);
    sl_buf_done(&text);
}

static void edited(void **state)
{
    (void)state;
    struct client *c = one.a.client;
    make(c, "a");
    struct bytes b = snapshot_get(c, "a", "");
    /* A byte of the data changed: the digest tells. Without a digest it is said to be edited. */
    struct bytes open = with_metadata(&b, "payload.xxh3", NULL);
    b.p[b.n - 20] ^= 1;
    expect_error(snapshot_put(c, "b", b.p, b.n, NULL), 422, "snapshot_corrupt", NULL);
    open.p[open.n - 20] ^= 1;
    expect_edited(snapshot_put(c, "b", open.p, open.n, NULL), 201);
    edited_in_a_body(c, &open);
    /* Not finite. Both also over a session that lives: its last value is the last to be checked. */
    char line[160];
    snprintf(line, sizeof line, "If-Match: %s", b.etag);
    memset(open.p + open.n - 4, 0xff, 4);
    expect_error(snapshot_put(c, "c", open.p, open.n, NULL), 422, "snapshot_corrupt", NULL);
    expect_error(snapshot_put(c, "a", open.p, open.n, line), 422, "snapshot_corrupt", NULL);
    expect_error(snapshot_put(c, "a", b.p, b.n, line), 422, "snapshot_corrupt", NULL);
    sl_free(open.p);
    b.p[b.n - 20] ^= 1;
    /* A version that nothing could follow, and metadata that no request may give. */
    open = with_metadata(&b, "session.version", "18446744073709551615");
    expect_error(snapshot_put(c, "c", open.p, open.n, NULL), 422, "snapshot_corrupt", NULL);
    sl_free(open.p);
    open = with_metadata(&b, "session.version", "4503599627370497"); /* 2^52 + 1 */
    expect_error(snapshot_put(c, "c", open.p, open.n, NULL), 422, "snapshot_corrupt", NULL);
    sl_free(open.p);
    open = with_metadata(&b, "session.version", "4503599627370496");
    reply_free(expect(snapshot_put(c, "v", open.p, open.n, NULL), 201));
    struct gen g;
    turn_of(c, &g, "v", " and", 3);
    gen_done(&g);
    reply_free(expect(session_post(c, "v", "/pause"), 200));
    reply_free(expect(session_post(c, "v", "/resume"), 200));
    sl_free(open.p);
    static char long_metadata[16384 + 8 + 1] = "{\"a\":\"";
    memset(long_metadata + 6, 'x', 16384 - 8);
    memcpy(long_metadata + 16384 - 2, "\"}", 3);
    open = with_metadata(&b, "session.metadata", long_metadata);
    reply_free(expect(snapshot_put(c, "m", open.p, open.n, NULL), 201));
    sl_free(open.p);
    memcpy(long_metadata + 16384 - 2, "x\"}", 4);
    open = with_metadata(&b, "session.metadata", long_metadata);
    expect_error(snapshot_put(c, "c", open.p, open.n, NULL), 413, "snapshot_too_large", NULL);
    sl_free(open.p);
    open = with_metadata(&b, "format_version", "2");
    expect_error(snapshot_put(c, "c", open.p, open.n, NULL), 422, "snapshot_version_unsupported",
                 NULL);
    sl_free(open.p);
    /* The live one stays as it was, whatever comes. */
    for (size_t n = 0; n < b.n; n += b.n / 13)
        expect_error(snapshot_put(c, "a", b.p, n, line), 422, "snapshot_corrupt", NULL);
    assert_int_equal(session_version(c, "a"), 2);
    struct bytes after = snapshot_get(c, "a", "");
    assert_memory_equal(after.p + after.n - 4096, b.p + b.n - 4096, 4096);
    sl_free(after.p);
    reply_free(expect(snapshot_put(c, "c", b.p, b.n, NULL), 201));
    same_next(c, "a", c, "c");
    sl_free(b.p);
}

/* Every float of the file's state; what an integer counts stays. */
static struct bytes with_floats(const struct bytes *b, float v)
{
    struct bytes r = with_metadata(b, "payload.xxh3", NULL);
    json_t *h = header_of(&r), *t;
    const char *name;
    json_object_foreach(h, name, t)
    {
        const char *dtype = json_string_value(json_object_get(t, "dtype"));
        if (!dtype || strcmp(dtype, "F32") != 0)
            continue;
        json_t *at = json_object_get(t, "data_offsets");
        size_t end = (size_t)json_integer_value(json_array_get(at, 1));
        char *data = r.p + 8 + header_length(&r);
        for (size_t i = (size_t)json_integer_value(json_array_get(at, 0)); i < end; i += sizeof v)
            memcpy(data + i, &v, sizeof v);
    }
    json_decref(h);
    return r;
}

/* Finite, and no more so after a token: what reads that and gives no logits tells it, too, and
 * leaves a session that can be written down. */
static void nearly_infinite(void **state)
{
    (void)state;
    struct client *c = one.a.client;
    make(c, "a");
    struct bytes b = snapshot_get(c, "a", ""), huge = with_floats(&b, 3e38F);
    expect_edited(snapshot_put(c, "huge", huge.p, huge.n, NULL), 201);
    int64_t version = session_version(c, "huge");
    for (int n = 0; n < 2; n++)
        expect_error(post(c, "/v1/generate", "{'session':'huge','prompt':'ab','max_tokens':%d}", n),
                     500, "model_not_finite", NULL);
    assert_int_equal(session_version(c, "huge"), version);
    reply_free(expect(session_post(c, "huge", "/pause"), 200));
    assert_false(session_in_memory(c, "huge"));
    reply_free(
        expect(post(c, "/v1/generate", "{'session':'a','prompt':'ab','max_tokens':0}"), 200));
    sl_free(b.p);
    sl_free(huge.p);
}

static void of_another_model(void **state)
{
    (void)state;
    struct client *c = one.a.client, *o = other.a.client;
    make(c, "a");
    struct bytes b = snapshot_get(c, "a", "");
    struct reply *r = snapshot_put(o, "a", b.p, b.n, NULL);
    assert_int_equal(r->status, 409);
    json_t *h = header_of(&b);
    /* By name: whose it is and who refuses it. */
    assert_non_null(strstr(r->body, metadata_of(h, "model.fingerprint")));
    json_decref(h);
    expect_error(r, 409, "snapshot_model_mismatch", NULL);
    expect_error(get(o, "/v1/sessions/a"), 404, "session_not_found", "session");
    sl_free(b.p);
}

/* --- the client keeps the memory ---------------------------------------------------------------*/

#define TURN                                                                                       \
    "'seed':%u,'max_tokens':20,'ignore_eos':true,'frequency_penalty':0.3,'penalty_last_n':30,"     \
    "'logprobs':2,'return_tokens':true"

/* Turns of one session, and the same on two servers in turn that keep nothing. */
static void stateless(void **state)
{
    (void)state;
    struct client *c[] = {one.a.client, two.a.client};
    char *kept = NULL;
    reply_free(expect(post(c[0], "/v1/sessions", "{'id':'a'}"), 201));
    double before[] = {metric(c[0], "slate_sessions"), metric(c[1], "slate_sessions")};
    for (unsigned i = 0; i < 5; i++) {
        struct gen with, without;
        const char *prompt = i ? " and then" : "Once upon a time";
        generate(c[0], &with, "'session':'a','prompt':'%s'," TURN, prompt, i);
        if (kept)
            generate(c[i % 2], &without,
                     "'initial_state':'%s','return_state':true,'prompt':'%s'," TURN, kept, prompt,
                     i);
        else
            generate_stream(c[1], &without, "'return_state':true,'prompt':'%s'," TURN, prompt, i);
        output_same(&with.o, &without.o);
        assert_int_equal(json_integer_value(at(with.o.final, "timings.computed_tokens")),
                         json_integer_value(at(without.o.final, "timings.computed_tokens")));
        sl_free(kept);
        kept = sl_strdup(str_at(without.o.final, "state"));
        assert_non_null(kept);
        gen_done(&with);
        gen_done(&without);
    }
    for (int i = 0; i < 2; i++) /* nothing is left of it there */
        assert_true(metric(c[i], "slate_sessions") == before[i]);
    /* And it can become a session, with the same bits. */
    reply_free(
        expect(post(c[1], "/v1/sessions", "{'id':'b','from':{'snapshot':'%s'}}", kept), 201));
    same_next(c[0], "a", c[1], "b");
    expect_error(post(c[0], "/v1/generate",
                      "{'session':'a','return_state':true,'prompt':'x','max_tokens':1}"),
                 400, "invalid_value", "return_state");
    expect_error(post(c[0], "/v1/generate", "{'initial_state':'AAAA','prompt':'x','max_tokens':1}"),
                 422, "snapshot_corrupt", NULL);
    expect_error(post(c[0], "/v1/generate", "{'initial_state':'%s','resume':true}", kept), 409,
                 "nothing_paused", "resume");
    sl_free(kept);
}

/* A drain pauses it as any other; the state that comes back goes on elsewhere. */
static void stateless_through_a_drain(void **state)
{
    (void)state;
    struct gen whole;
    struct parts p;
    generate(one.a.client, &whole,
             "'prompt':'Once upon',"
             "'seed':9,'max_tokens':300,'ignore_eos':true,'return_tokens':"
             "true,'stop':['e@']");
    struct call *k =
        stream_start(two.a.client, "'prompt':'Once upon','return_state':true,'seed':9,'max_tokens':"
                                   "300,'ignore_eos':true,'return_tokens':true,'stop':['e@']");
    parts_init(&p);
    stream_until(k, 5);
    node_signal(&two, SIGTERM);
    parts_add(&p, call_finish(k));
    node_wait(&two, SIGTERM);
    node_start(&two);
    assert_true(parts_paused(&p));
    parts_add(&p, post(one.a.client, "/v1/generate",
                       "{'initial_state':'%s','resume':true,'return_tokens':true}",
                       str_at(p.all.final, "state")));
    output_same(&p.all, &whole.o);
    parts_done(&p);
    gen_done(&whole);
}

/* --- all of them -------------------------------------------------------------------------------*/

static int start(void **state)
{
    (void)state;
    const char *const *options =
        (const char *const[]){"--sessions-in-memory=6", "--drain-timeout=0s", NULL};
    node_init(&one, "one", options);
    node_init(&two, "two", options);
    node_init(&other, "other",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=6", NULL});
    node_start(&one);
    node_start(&two);
    node_start(&other);
    return 0;
}

/* Sessions of a test end with it. */
static int clean(void **state)
{
    struct node *n[] = {&one, &two, &other};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct reply *r = expect(get(n[i]->a.client, "/v1/sessions"), 200);
        for (size_t k = 0; k < len_at(r->json, "data"); k++) {
            char path[32];
            snprintf(path, sizeof path, "data.%zu.id", k);
            reply_free(expect(del(n[i]->a.client, session_path(str_at(r->json, path), "")), 200));
        }
        reply_free(r);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    node_done(&one);
    node_done(&two);
    node_done(&other);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(under_another_id_and_on_another_server, clean),
        cmocka_unit_test_teardown(of_a_busy_and_of_a_paused_one, clean),
        cmocka_unit_test_teardown(if_match, clean),
        cmocka_unit_test_teardown(smaller_ones, clean),
        cmocka_unit_test_teardown(what_metadata_may_hold, clean),
        cmocka_unit_test_teardown(paused_at_a_bound, clean),
        cmocka_unit_test_teardown(edited, clean),
        cmocka_unit_test_teardown(nearly_infinite, clean),
        cmocka_unit_test_teardown(of_another_model, clean),
        cmocka_unit_test_teardown(stateless, clean),
        cmocka_unit_test_teardown(stateless_through_a_drain, clean),
    };
    return cmocka_run_group_tests_name("snapshots", tests, start, stop);
}
