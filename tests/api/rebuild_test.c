/* rebuild_test.c: POST …/rebuild: the kept transcript of a session read again, by the model that
 * made its state and by another one; and that nothing is ever read again without being asked for.
 *
 * The reference of a rebuild by another model is a session of that model which was given the same
 * token ids as its prompt: its state must be the same to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "proto/buf.h"
#include "tests/support/edited.h"
#include "tests/support/pictures.h"
#include "tests/support/seeded.h"

enum { TURNS = 4 };

static struct node node;

static int abandon(void **state)
{
    (void)state;
    node_abandon(&node);
    return 0;
}

static const char *model_path(unsigned seed)
{
    static char path[2][512];
    struct seeded_shape shape = {.n_layers = 2,
                                 .d_model = 32,
                                 .head_size = 16,
                                 .d_ffn = 48,
                                 .vocab_size = 256,
                                 .rank_w = 4,
                                 .rank_a = 4,
                                 .rank_v = 4,
                                 .rank_g = 4,
                                 .dtype = SL_DTYPE_F32,
                                 .seed = seed};
    const char *build = getenv("SLATE_BUILD");
    struct seeded s;
    char *to = path[seed % 2];
    snprintf(to, sizeof path[0], "%s/tests/rebuild-%u.safetensors", build ? build : "build/release",
             seed);
    seeded_init(&s, &shape);
    seeded_write(&s, to);
    seeded_done(&s);
    return to;
}

/* Again, with another model or other options; the store stays. */
static void with(unsigned seed, const char *store, const char *option, const char *more)
{
    static char model[600];
    snprintf(model, sizeof model, "--model=%s", model_path(seed));
    node.n_options = 0;
    node.options[node.n_options++] = model;
    node.options[node.n_options++] = "--tokenizer=bytes";
    node.options[node.n_options++] = "--sessions-in-memory=4";
    if (option)
        node.options[node.n_options++] = option;
    if (more)
        node.options[node.n_options++] = more;
    if (store)
        snprintf(node.store, sizeof node.store, "%s", store);
    node_start(&node);
}

static void begin(unsigned seed, const char *store, const char *option, const char *more)
{
    node_init(&node, "rebuild", (const char *const[]){NULL});
    with(seed, store, option, more);
}

/* --- a conversation --------------------------------------------------------------------------- */

static uint32_t said[4096];
static size_t n_said;

static void turn(struct client *c, const char *id, const char *prompt, const char *more)
{
    struct gen g;
    generate(c, &g,
             "'session':'%s','prompt':'%s','max_tokens':9,'temperature':1,'seed':5,"
             "'ignore_eos':true,'return_tokens':true%s",
             id, prompt, more);
    for (const char *p = prompt; *p; p++)
        said[n_said++] = (unsigned char)*p;
    for (size_t i = 0; i < g.o.n_tokens; i++)
        said[n_said++] = g.o.tokens[i];
    gen_done(&g);
}

/* Its tokens are in `said`. */
static void talk(struct client *c, const char *id, bool pause)
{
    n_said = 0;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s','metadata':{'x':'\\u0000'}}", id), 201));
    for (int t = 0; t < TURNS; t++) {
        turn(c, id, t % 2 ? "yes, and" : "abc", "");
        if (pause && t == 1)
            reply_free(expect(session_post(c, id, "/pause"), 200));
    }
}

static void rebuild(struct client *c, const char *id, int64_t version)
{
    struct reply *r = expect(session_post(c, id, "/rebuild"), 200);
    assert_int_equal(int_at(r->json, "version"), version);
    assert_int_equal(int_at(r->json, "tokens_seen"), n_said);
    assert_int_equal(int_at(r->json, "replayed_tokens"), n_said - 1);
    reply_free(r);
}

/* A session of this server's model that is given what was said. */
static void must_be_as_if_given(struct client *c, const char *id)
{
    struct gen g, h;
    char *ids = ids_json(said, n_said);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'given','prompt':%s}", ids), 201));
    sl_free(ids);
    struct picture a = picture_of(c, id), b = picture_of(c, "given");
    assert_int_equal(a.n_data, b.n_data);
    assert_memory_equal(a.data, b.data, a.n_data);
    picture_done(&a);
    picture_done(&b);
    generate(c, &g,
             "'session':'%s','prompt':' so','max_tokens':20,'temperature':0,"
             "'ignore_eos':true,'return_tokens':true",
             id);
    generate(c, &h,
             "'session':'given','prompt':' so','max_tokens':20,'temperature':0,"
             "'ignore_eos':true,'return_tokens':true");
    output_same(&g.o, &h.o);
    gen_done(&g);
    gen_done(&h);
    reply_free(expect(del(c, "/v1/sessions/given"), 200));
}

/* --- the same model --------------------------------------------------------------------------- */

static void same_model(const char *store, bool pause)
{
    begin(1, store, "--keep-transcript", NULL);
    struct client *c = node.a.client;
    talk(c, "it", pause);
    struct picture before = picture_of(c, "it");
    rebuild(c, "it", TURNS + 1);
    struct picture after = picture_of(c, "it");
    picture_same(&after, &before);
    reply_free(expect(post(c, session_path("it", "/fork"), "{'id':'fork'}"), 201));
    rebuild(c, "fork", TURNS + 2);
    picture_done(&after);
    after = picture_of(c, "fork");
    picture_same(&after, &before);
    picture_done(&before);
    picture_done(&after);
    turn(c, "it", "more", "");
    rebuild(c, "it", TURNS + 3);
    must_be_as_if_given(c, "it");
    node_done(&node);
}

static void test_same_model(void **state)
{
    (void)state;
    same_model("memory", false);
    same_model(NULL, false);
    same_model(NULL, true);
}

/* A transcript is that of the version that was gone back to. */
static void after_a_rewind(const char *store)
{
    begin(1, store, "--keep-transcript", "--keep-turns=4");
    struct client *c = node.a.client;
    talk(c, "it", false);
    size_t n = n_said;
    turn(c, "it", "not this", "");
    n_said = n;
    reply_free(expect(post(c, session_path("it", "/rewind"), "{'version':%d}", TURNS), 200));
    rebuild(c, "it", TURNS + 3);
    turn(c, "it", "but this", "");
    rebuild(c, "it", TURNS + 5);
    must_be_as_if_given(c, "it");
    node_done(&node);
}

/* Turns that the store does not have: none of them, or those after a pause. */
static void unwritten(bool pause)
{
    begin(1, NULL, "--keep-transcript", "--durability=drain");
    struct client *c = node.a.client;
    talk(c, "it", false);
    if (pause)
        reply_free(expect(post(c, session_path("it", "/pause"), "{}"), 200));
    turn(c, "it", "more", "");
    struct picture before = picture_of(c, "it");
    rebuild(c, "it", TURNS + 2);
    struct picture after = picture_of(c, "it");
    picture_same(&after, &before);
    picture_done(&before);
    picture_done(&after);
    turn(c, "it", "and more", "");
    node_stop(&node);
    with(1, NULL, "--keep-transcript", "--durability=drain");
    must_be_as_if_given(node.a.client, "it");
    node_done(&node);
}

static void test_unwritten(void **state)
{
    (void)state;
    unwritten(false);
    unwritten(true);
}

static void test_after_a_rewind(void **state)
{
    (void)state;
    after_a_rewind("memory");
    after_a_rewind(NULL);
}

/* --- another model ---------------------------------------------------------------------------- */

static void must_point_to_rebuild(struct reply *r)
{
    assert_non_null(strstr(r->body, "/rebuild reads its transcript again"));
    expect_error(r, 409, "snapshot_model_mismatch", NULL);
}

/* kill: there are turns in the journal alone then, and (without a pause) no snapshot at all. */
static void another_model(bool pause, bool kill)
{
    begin(1, NULL, "--keep-transcript", NULL);
    talk(node.a.client, "it", pause);
    if (kill)
        node_kill(&node);
    else
        node_stop(&node);
    with(2, NULL, "--keep-transcript", NULL);
    struct client *c = node.a.client;
    must_point_to_rebuild(post(c, "/v1/generate", "{'session':'it','prompt':'x'}"));
    must_point_to_rebuild(get(c, session_path("it", "/snapshot")));
    assert_int_equal(session_version(c, "it"), TURNS); /* as it was */
    rebuild(c, "it", TURNS + 1);
    must_be_as_if_given(c, "it");
    node_kill(&node);
    with(2, NULL, NULL, NULL); /* it is this model's now, and stays so */
    assert_int_equal(session_version(node.a.client, "it"), TURNS + 2);
    reply_free(expect(get(node.a.client, session_path("it", "/snapshot")), 200));
    node_done(&node);
}

static void test_another_model(void **state)
{
    (void)state;
    another_model(false, false);
    another_model(true, false);
    another_model(true, true);
    another_model(false, true);
}

/* --- a damaged snapshot ----------------------------------------------------------------------- */

static char found[512];

static int on_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (kind == FTW_F && strstr(path, ".safetensors"))
        snprintf(found, sizeof found, "%s", path);
    return 0;
}

static bool find_snapshot(const char *dir, char *ret, size_t n)
{
    found[0] = '\0';
    (void)nftw(dir, on_file, 8, FTW_PHYS);
    snprintf(ret, n, "%s", found);
    return found[0] != '\0';
}

static void test_damaged_snapshot(void **state)
{
    (void)state;
    begin(1, NULL, "--keep-transcript", NULL);
    talk(node.a.client, "it", true);
    struct picture before = picture_of(node.a.client, "it");
    node_stop(&node);
    char path[512];
    assert_true(find_snapshot(node.dir, path, sizeof path));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -9, SEEK_END), 0);
    assert_int_equal(fputc(0x7e, f), 0x7e);
    assert_int_equal(fclose(f), 0);
    with(1, NULL, "--keep-transcript", NULL);
    expect_error(post(node.a.client, "/v1/generate", "{'session':'it','prompt':'x'}"), 500,
                 "store_corrupt", NULL);
    /* One session is damaged; nothing is wrong with the store. */
    server_wait_log(node.a.server,
                    "\"a session is damaged in the store\" tenant=default session=it");
    assert_true(metric(node.a.client, "slate_store_damaged_total") == 1);
    assert_true(metric(node.a.client, "slate_store_failures_total") == 0);
    rebuild(node.a.client, "it", TURNS + 1);
    struct picture after = picture_of(node.a.client, "it");
    picture_same(&after, &before);
    picture_done(&before);
    picture_done(&after);
    node_done(&node);
}

/* --- what there is no transcript of ----------------------------------------------------------- */

static void test_none(void **state)
{
    (void)state;
    begin(1, NULL, NULL, NULL);
    talk(node.a.client, "it", true);
    node_stop(&node);
    with(2, NULL, "--keep-transcript", NULL); /* too late */
    expect_error(session_post(node.a.client, "it", "/rebuild"), 409, "no_transcript", NULL);
    /* It was read, and nothing is wrong with the store. */
    assert_true(metric(node.a.client, "slate_store_failures_total") == 0);
    node_stop(&node);
    with(1, NULL, "--keep-transcript", NULL);
    expect_error(session_post(node.a.client, "it", "/rebuild"), 409, "no_transcript", NULL);
    turn(node.a.client, "it", "on", ""); /* it was not touched */
    expect_error(session_post(node.a.client, "nobody", "/rebuild"), 404, "session_not_found",
                 "session");
    node_done(&node);
    begin(1, "memory", NULL, NULL);
    talk(node.a.client, "it", false);
    expect_error(session_post(node.a.client, "it", "/rebuild"), 409, "no_transcript", NULL);
    node_done(&node);
}

/* Of a snapshot that a client brings, its own transcript. */
static void test_upload(void **state)
{
    (void)state;
    begin(1, "memory", "--keep-transcript", NULL);
    struct client *c = node.a.client;
    talk(c, "it", false);
    struct bytes b = snapshot_get(c, "it", "");
    reply_free(expect(snapshot_put(c, "up", b.p, b.n, NULL), 201));
    sl_free(b.p);
    rebuild(c, "up", TURNS + 1);
    must_be_as_if_given(c, "up");
    node_done(&node);
}

/* --- what a client has written ---------------------------------------------------------------- */

/* A snapshot with those pending tokens (NULL: without a continuation) and that transcript. */
static struct bytes with_ids(const struct bytes *b, const char *continuation, const uint32_t *ids,
                             size_t n)
{
    struct sl_buf text;
    unsigned char bytes[64];
    assert_true(4 * n <= sizeof bytes);
    for (size_t i = 0; i < 4 * n; i++)
        bytes[i] = (unsigned char)(ids[i / 4] >> 8 * (i % 4));
    sl_buf_init(&text, 1 << 10);
    sl_buf_put_base64(&text, bytes, 4 * n);
    sl_buf_putc(&text, '\0');
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    struct bytes half = with_metadata(b, "continuation", continuation);
    struct bytes r = with_metadata(&half, "transcript", text.data);
    sl_free(half.p);
    sl_buf_done(&text);
    return r;
}

#define PENDING "{\"pending\":[97,98,99]}"

static const struct {
    const char *continuation;
    uint32_t ids[4];
    size_t n;
} contradictions[] = {
    {PENDING, {0}, 0},
    {PENDING, {98, 99}, 2},
    {PENDING, {96, 97, 98, 98}, 4},
    {NULL, {97, 98, 99}, 3},
};

/* A transcript that does not end with what is pending makes no session, and changes none. */
static void contradicting_upload(const char *store)
{
    begin(1, store, "--keep-transcript", NULL);
    struct client *c = node.a.client;
    talk(c, "it", false);
    struct bytes b = snapshot_get(c, "it", ""), edited;
    char line[160];
    snprintf(line, sizeof line, "If-Match: %s", b.etag);
    for (size_t i = 0; i < sizeof contradictions / sizeof contradictions[0]; i++) {
        edited = with_ids(&b, contradictions[i].continuation, contradictions[i].ids,
                          contradictions[i].n);
        struct reply *r = snapshot_put(c, "bad", edited.p, edited.n, NULL);
        assert_non_null(strstr(r->body, "transcript"));
        expect_error(r, 422, "snapshot_corrupt", NULL);
        expect_error(session_post(c, "bad", "/rebuild"), 404, "session_not_found", "session");
        expect_error(snapshot_put(c, "it", edited.p, edited.n, line), 422, "snapshot_corrupt",
                     NULL);
        sl_free(edited.p);
    }
    edited = with_ids(&b, PENDING, (const uint32_t[]){96, 97, 98, 99}, 4);
    reply_free(expect(snapshot_put(c, "good", edited.p, edited.n, NULL), 201));
    struct reply *r = expect(session_post(c, "good", "/rebuild"), 200);
    assert_int_equal(int_at(r->json, "replayed_tokens"), 1);
    reply_free(r);
    sl_free(edited.p);
    edited = with_ids(&b, NULL, NULL, 0); /* an empty conversation */
    reply_free(expect(snapshot_put(c, "none", edited.p, edited.n, NULL), 201));
    reply_free(expect(session_post(c, "none", "/rebuild"), 200));
    sl_free(edited.p);
    sl_free(b.p);
    rebuild(c, "it", TURNS + 1);
    must_be_as_if_given(c, "it");
    node_done(&node);
}

static void test_contradicting_upload(void **state)
{
    (void)state;
    contradicting_upload("memory");
    contradicting_upload(NULL);
}

/* The metadata's digest, over those of a file that has them in order. */
static void put_digest(json_t *metadata)
{
    struct sl_digest d;
    unsigned char bytes[SL_DIGEST_BYTES];
    char hex[2 * SL_DIGEST_BYTES + 1];
    const char *key;
    json_t *v;
    sl_digest_begin(&d);
    json_object_foreach(metadata, key, v)
    {
        if (strstr(key, ".xxh3"))
            continue;
        sl_digest_add(&d, key, strlen(key) + 1);
        sl_digest_add(&d, json_string_value(v), json_string_length(v) + 1);
    }
    sl_digest_end(&d, bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    json_object_set_new(metadata, "metadata.xxh3", json_string(hex));
}

/* The stored file with another value (NULL: without), and as long as before. */
static void edit_stored(const char *path, const char *key, const char *value)
{
    struct bytes b = {.p = sl_malloc(1 << 20)};
    FILE *f = fopen(path, "r+b");
    assert_true(f && b.p);
    b.n = fread(b.p, 1, 1 << 20, f);
    size_t n = header_length(&b);
    json_t *h = header_of(&b), *m = json_object_get(h, "__metadata__");
    if (value)
        json_object_set_new(m, key, json_string(value));
    else
        json_object_del(m, key);
    put_digest(m);
    char *text = json_dumps(h, JSON_COMPACT | JSON_PRESERVE_ORDER);
    assert_in_range(strlen(text), 1, n);
    memset(b.p + 8, ' ', n);
    memcpy(b.p + 8, text, strlen(text));
    rewind(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(h);
    sl_free(b.p);
}

/* What earlier versions have let into a store is an error. */
static void contradicting_store(const char *key, const char *value)
{
    char path[512];
    begin(1, NULL, "--keep-transcript", NULL);
    talk(node.a.client, "it", true);
    reply_free(expect(session_post(node.a.client, "it", "/pause"), 200));
    node_stop(&node);
    assert_true(find_snapshot(node.dir, path, sizeof path));
    edit_stored(path, key, value);
    with(1, NULL, "--keep-transcript", NULL);
    expect_error(session_post(node.a.client, "it", "/rebuild"), 500, "store_corrupt", NULL);
    reply_free(expect(post(node.a.client, "/v1/sessions", "{'id':'next','prompt':'x'}"), 201));
    node_done(&node);
}

static void test_contradicting_store(void **state)
{
    (void)state;
    contradicting_store("transcript", "");
    contradicting_store("transcript", "AQAAAAIAAAADAAAA"); /* 1, 2, 3 */
    contradicting_store("continuation", NULL);
}

/* A drain that does not wait for a rebuild leaves the session as it was, whether the rebuild is
 * reading or waits for another turn's end; the server ends as it should. */
static void test_drained(void **state)
{
    (void)state;
    enum { LONG = 300000 };
    char *text = repeated("", "a", LONG, "");
    begin(1, NULL, "--keep-transcript", "--drain-timeout=0s");
    node.options[node.n_options++] = "--max-running=1";
    node.options[node.n_options++] = "--max-tokens-limit=1000000";
    node_stop(&node);
    node_start(&node);
    reply_free(expect(post(node.a.client, "/v1/sessions", "{'id':'it','prompt':'%s'}", text), 201));
    sl_free(text);
    struct picture before = picture_of(node.a.client, "it");
    for (int waits = 0; waits < 2; waits++) {
        struct call *first = NULL;
        if (waits) {
            first = generate_start(node.a.client, "'prompt':'a','max_tokens':1000000,"
                                                  "'ignore_eos':true");
            until_metric(node.a.client, "slate_requests_running", 1);
        }
        struct call *k = call_start(node.a.client, "POST", "/v1/sessions/it/rebuild", NULL, "", 0);
        until_metric(node.a.client, waits ? "slate_requests_queued" : "slate_requests_running", 1);
        node_signal(&node, SIGTERM);
        expect_error(call_finish(k), 503, "draining", NULL);
        if (first)
            reply_free(call_finish(first));
        node_wait(&node, SIGTERM);
        node_start(&node);
        struct picture after = picture_of(node.a.client, "it");
        assert_int_equal(session_version(node.a.client, "it"), 1);
        assert_int_equal(after.n_data, before.n_data);
        assert_memory_equal(after.data, before.data, before.n_data);
        picture_done(&after);
    }
    picture_done(&before);
    node_done(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model),
        cmocka_unit_test(test_unwritten),
        cmocka_unit_test(test_after_a_rewind),
        cmocka_unit_test(test_another_model),
        cmocka_unit_test(test_damaged_snapshot),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_drained),
        cmocka_unit_test(test_contradicting_upload),
        cmocka_unit_test(test_contradicting_store),
    };
    return cmocka_run_group_tests(tests, NULL, abandon);
}
