/* calls_test.c: one request of each route, with every call of libuv, hiredis and the system that it
 * makes (in the loop, in the pool, in libuv and hiredis themselves) failing once, each in its turn
 * and in each way that it can (intercept.h). On memory, on `dir:`, on Redis.
 *
 * What the client may see: no answer or a broken one (the connection is closed), an error of 5xx
 * that says what failed, or the answer, where it could be had all the same. What must hold
 * afterwards:
 *
 *   - the sessions that the request speaks of are as they were before, or as it leaves them: as
 *     before where it was told to have failed, as afterwards where it was told to have been done,
 *     and what the store has of them is the same (their version, metadata, tokens, and what they
 * say next);
 *   - with an Idempotency-Key the retry is answered, and the turn has happened once;
 *   - another session is the same to the byte; no turn runs, no exchange is open, all slots and
 *     descriptors are given back; under the address sanitizer nothing has leaked.
 *
 * The same with every allocation that is made for it.
 *
 * `calls_test` tries every STRIDE-th fault of those; `calls_test 1` (make soak) all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/fault/intercept.h"
#include "tests/support/api.h"
#include "tests/support/inside.h"
#include "tests/support/process.h"
#include "tests/support/redis.h"

enum { STRIDE = 13, MOST_CALLS = 500, LOOK_MAX = 2048, ALLOCATION = -1, LONG_MS = 20000 };

static unsigned stride = STRIDE;
static struct redis redis;
static char store_name[80];
static char snapshot[INSIDE_BODY_MAX]; /* the tensors of "by" */
static size_t n_snapshot;
static char moved[INSIDE_BODY_MAX]; /* of a session that is not "by" */
static size_t n_moved;
static size_t n_tried, n_failed, n_broken;

/* --- what there is -----------------------------------------------------------------------------*/

static void must(const char *method, const char *path, const char *body, int status)
{
    if (!talk(method, path, body) || inside.status != status)
        fail_msg("%s %s gave %d: %.400s", method, path, inside.status, inside.reply);
}

static void gone(const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("DELETE", path, ""));
    assert_true(inside.status == 200 || inside.status == 404);
}

/* "name":VALUE of the last reply's JSON, up to a comma or the object's end. */
static void field(const char *name, char *dst, size_t n)
{
    char key[40];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *p = strstr(inside.reply, key);
    assert_non_null(p);
    p += strlen(key);
    snprintf(dst, n, "%.*s", (int)(*p == '{' ? strcspn(p, "}") + 1 : strcspn(p, ",}")), p);
}

/* What a session is: version, tokens, metadata, a checkpoint's name, and what a copy of it says
 * next. */
static void look_at(const char *id, char *ret, size_t n)
{
    char path[64], version[32], seen[32], metadata[64], names[64], text[128];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("GET", path, ""));
    if (inside.status == 404) {
        snprintf(ret, n, "%s: none;", id);
        return;
    }
    must("GET", path, "", 200);
    /* A lease that could not be given back is ours alone until it ends by itself. */
    assert_true(strstr(inside.reply, "\"busy\":false") || !strncmp(store_name, "redis", 5));
    field("version", version, sizeof version);
    field("tokens_seen", seen, sizeof seen);
    field("metadata", metadata, sizeof metadata);
    snprintf(path, sizeof path, "/v1/sessions/%s/checkpoints", id);
    must("GET", path, "", 200);
    const char *p = strstr(inside.reply, "\"names\":[\"");
    snprintf(names, sizeof names, "%.*s", p ? (int)strcspn(p, "]") : 0, p ? p : "");
    snprintf(path, sizeof path, "/v1/sessions/%s/fork", id);
    must("POST", path, "{\"id\":\"probe\"}", 201);
    must("POST", "/v1/generate",
         "{\"session\":\"probe\",\"prompt\":\"?\",\"max_tokens\":5,\"temperature\":0,"
         "\"ignore_eos\":true,\"return_tokens\":true}",
         200);
    p = strstr(inside.reply, "\"tokens\":[");
    assert_non_null(p);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(p, "]"), p);
    gone("probe");
    snprintf(ret, n, "%s: v%s, %s tokens, %s, %s, %s;", id, version, seen, metadata, names, text);
}

static void look(char ret[LOOK_MAX])
{
    look_at("t", ret, LOOK_MAX / 2);
    look_at("new", ret + strlen(ret), LOOK_MAX / 2);
}

static bool exists(const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("GET", path, ""));
    return inside.status == 200;
}

/* Out of memory, so that the next look reads what the store has. */
static void put_away(void)
{
    if (exists("t"))
        must("POST", "/v1/sessions/t/pause", "", 200);
    if (exists("new"))
        must("POST", "/v1/sessions/new/pause", "", 200);
}

/* Of a snapshot: what stands behind its header, which tells times. */
static const char *tensors_of(const char *p, size_t *ret_n)
{
    uint64_t header;
    size_t n = *ret_n;
    assert_true(n > sizeof header);
    memcpy(&header, p, sizeof header);
    assert_true(header < n - sizeof header);
    *ret_n = n - sizeof header - (size_t)header;
    return p + sizeof header + header;
}

/* --- requests ----------------------------------------------------------------------------------*/

#define TURN "\"session\":\"t\",\"prompt\":\"ab\",\"max_tokens\":4,\"seed\":7,\"ignore_eos\":true"

struct scene {
    const char *name, *method, *path, *body;
    const char *before; /* an action on "t" first, "turn": one, "name": a name and one, or NULL */
    const char *lines;  /* header lines instead of the usual ones, or NULL */
    bool keyed;         /* retried, it must not happen twice */
    bool brings;        /* its body is the bytes of a snapshot */
};

#define JSON "Content-Type: application/json\r\n"

static const struct scene scenes[] = {
    {.name = "generate",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"logprobs\":2,\"stop\":[\"zz\"]}"},
    {.name = "stream",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"stream\":true}"},
    {.name = "generate without a seed",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":2,\"return_state\":true}"},
    {.name = "turn", .method = "POST", .path = "/v1/generate", .body = "{" TURN "}"},
    {.name = "turn, streamed",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN ",\"stream\":true}"},
    {.name = "turn with a key",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN "}",
     .lines = JSON "Idempotency-Key: k\r\n",
     .keyed = true},
    {.name = "turn of a stored session",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN "}",
     .before = "pause"},
    {.name = "stream of a stored session with a key",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN ",\"stream\":true}",
     .before = "pause",
     .lines = JSON "Idempotency-Key: k\r\n",
     .keyed = true},
    {.name = "completions",
     .method = "POST",
     .path = "/v1/completions",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":2}"},
    {.name = "chat completions of a session",
     .method = "POST",
     .path = "/v1/chat/completions",
     .body = "{\"session\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
             "\"max_tokens\":3,\"seed\":7,\"stream\":true}"},
    {.name = "create",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"prompt\":\"hello\",\"metadata\":{\"a\":1}}"},
    {.name = "create from a session",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":\"t\"}"},
    {.name = "create from a stored session",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":\"t\"}",
     .before = "pause"},
    {.name = "list", .method = "GET", .path = "/v1/sessions?limit=2"},
    {.name = "get", .method = "GET", .path = "/v1/sessions/t"},
    {.name = "memory", .method = "GET", .path = "/v1/sessions/t/memory"},
    {.name = "patch",
     .method = "PATCH",
     .path = "/v1/sessions/t",
     .body = "{\"metadata\":{\"b\":2}}"},
    {.name = "fork", .method = "POST", .path = "/v1/sessions/t/fork", .body = "{\"id\":\"new\"}"},
    {.name = "pause", .method = "POST", .path = "/v1/sessions/t/pause"},
    {.name = "resume", .method = "POST", .path = "/v1/sessions/t/resume", .before = "pause"},
    {.name = "cancel", .method = "POST", .path = "/v1/sessions/t/cancel"},
    {.name = "snapshot", .method = "GET", .path = "/v1/sessions/t/snapshot"},
    {.name = "snapshot of a stored session",
     .method = "GET",
     .path = "/v1/sessions/t/snapshot",
     .before = "pause"},
    {.name = "snapshot of bytes", .method = "GET", .path = "/v1/sessions/t/snapshot?dtype=int8"},
    {.name = "checkpoints", .method = "GET", .path = "/v1/sessions/t/checkpoints"},
    {.name = "rewind",
     .method = "POST",
     .path = "/v1/sessions/t/rewind",
     .body = "{\"version\":2}",
     .before = "turn"},
    {.name = "name",
     .method = "POST",
     .path = "/v1/sessions/t/checkpoints",
     .body = "{\"name\":\"b\"}"},
    {.name = "delete a name",
     .method = "DELETE",
     .path = "/v1/sessions/t/checkpoints/a",
     .before = "name"},
    {.name = "rewind to a name",
     .method = "POST",
     .path = "/v1/sessions/t/rewind",
     .body = "{\"checkpoint\":\"a\"}",
     .before = "name"},
    {.name = "fork at a name",
     .method = "POST",
     .path = "/v1/sessions/t/fork",
     .body = "{\"id\":\"new\",\"checkpoint\":\"a\"}",
     .before = "name"},
    {.name = "create from a name",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":{\"session\":\"t\",\"checkpoint\":\"a\"},"
             "\"prompt\":\"hello\"}",
     .before = "name"},
    {.name = "restore",
     .method = "PUT",
     .path = "/v1/sessions/new/snapshot",
     .lines = "Content-Type: application/octet-stream\r\n",
     .brings = true},
    {.name = "restore over a session",
     .method = "PUT",
     .path = "/v1/sessions/t/snapshot",
     .lines = "Content-Type: application/octet-stream\r\nIf-Match: *\r\n",
     .brings = true},
    {.name = "delete", .method = "DELETE", .path = "/v1/sessions/t"},
    {.name = "delete a stored session",
     .method = "DELETE",
     .path = "/v1/sessions/t",
     .before = "pause"},
    {.name = "models", .method = "GET", .path = "/v1/models"},
    {.name = "tokenize",
     .method = "POST",
     .path = "/v1/tokenize",
     .body = "{\"text\":\"hello there\"}"},
    {.name = "metrics", .method = "GET", .path = "/metrics"},
};

static bool ask(const struct scene *sc)
{
    const char *body = sc->body ? sc->body : "";
    if (sc->brings)
        return talk_bytes(sc->method, sc->path, sc->lines, moved, n_moved);
    return talk_bytes(sc->method, sc->path, sc->lines, body, strlen(body));
}

static void set_up(const struct scene *sc)
{
    char path[64];
    gone("t");
    gone("new");
    must("POST", "/v1/sessions/base/fork", "{\"id\":\"t\"}", 201);
    if (!sc->before)
        return;
    if (!strcmp(sc->before, "name"))
        must("POST", "/v1/sessions/t/checkpoints", "{\"name\":\"a\"}", 201);
    if (!strcmp(sc->before, "turn") || !strcmp(sc->before, "name")) {
        must("POST", "/v1/generate", "{" TURN "}", 200);
        return;
    }
    snprintf(path, sizeof path, "/v1/sessions/t/%s", sc->before);
    must("POST", path, "", 200);
}

/* Did all of the answer come? */
static bool is_whole(void)
{
    const char *end = strstr(inside.reply, "\r\n\r\n");
    const char *length = strcasestr(inside.reply, "\r\nContent-Length: ");
    if (!end)
        return false;
    if (length && length < end)
        return inside.n_reply == (size_t)(end + 4 - inside.reply) + strtoul(length + 18, NULL, 10);
    return inside.n_reply > 5 && !memcmp(inside.reply + inside.n_reply - 5, "0\r\n\r\n", 5);
}

enum outcome { DONE, FAILED, UNKNOWN };

static enum outcome outcome_of(void)
{
    bool stream = strstr(inside.reply, "text/event-stream") != NULL;
    if (inside.status == 504 && !strstr(inside.reply, "\"commit_unknown\""))
        fail_msg("a 504 that is no commit_unknown: %.600s", inside.reply);
    if (inside.status == 0 || !is_whole() || strstr(inside.reply, "\"commit_unknown\""))
        return UNKNOWN;
    if (inside.status / 100 == 2 && (!stream || strstr(inside.reply, "data: [DONE]")))
        return DONE;
    if (stream ? !strstr(inside.reply, "{\"error\":{\"message\":\"")
               : inside.status / 100 != 5 || !(strstr(inside.reply, "{\"error\":{\"message\":\"") ||
                                               strstr(inside.reply, "Content-Length: 0\r\n")))
        fail_msg("an answer that a fault does not excuse: %.600s", inside.reply);
    return FAILED;
}

/* --- one request, one fault --------------------------------------------------------------------*/

struct expected {
    char before[LOOK_MAX], after[LOOK_MAX];
    size_t files;
    double slots;
    uint64_t counts[INTERCEPT_KIND_COUNT], n_allocations; /* of an undisturbed run */
};

/* Again, under its key. On Redis it may be told to wait: where a lease could not be given back the
 * first try counts as running until that ends by itself. */
static bool asked_too_early(const struct scene *sc)
{
    assert_true(ask(sc));
    return !strncmp(store_name, "redis", 5) && inside.status == 409 &&
           strstr(inside.reply, "\"idempotency_in_flight\"");
}

static void check_looks(const struct scene *sc, const struct expected *x, enum outcome o,
                        const char *what)
{
    char now[LOOK_MAX], stored[LOOK_MAX];
    if (sc->keyed && !asked_too_early(sc)) { /* it must be answered now, and have happened once */
        if (outcome_of() != DONE)
            fail_msg("%s: the retry is answered with %.600s", what, inside.reply);
        o = DONE;
    }
    look(now);
    bool is_before = !strcmp(now, x->before), is_after = !strcmp(now, x->after);
    if (!(o == DONE ? is_after : o == FAILED ? is_before : is_before || is_after))
        fail_msg("%s: was told that it %s, but:\n%s\nbefore:\n%s\nafterwards:\n%s", what,
                 o == DONE     ? "was done"
                 : o == FAILED ? "failed"
                               : "(nothing)",
                 now, x->before, x->after);
    put_away();
    look(stored);
    if (strcmp(now, stored) != 0)
        fail_msg("%s: in memory:\n%s\nin the store:\n%s", what, now, stored);
}

static void check_rest(const struct expected *x, const char *what)
{
    size_t n;
    gone("t");
    gone("new");
    must("GET", "/v1/sessions/by/snapshot", "", 200);
    const char *p = talk_body(&n);
    p = tensors_of(p, &n);
    if (n != n_snapshot || memcmp(p, snapshot, n) != 0)
        fail_msg("%s: another session has changed", what);
    must("POST", "/v1/sessions/base/pause", "", 200);
    must("POST", "/v1/sessions/by/pause", "", 200);
    double slots = talk_metric("slate_slots_used");
    if (slots != x->slots)
        fail_msg("%s: %g slots are in use, not %g", what, slots, x->slots);
    int64_t deadline = client_now_ms() + 20000;
    size_t files;
    while ((files = process_files(getpid())) >
           x->files) { /* a connection of the store comes back by itself */
        if (client_now_ms() > deadline)
            fail_msg("%s: %zu descriptors are open, not %zu", what, files, x->files);
        must("GET", "/livez", "", 200);
    }
}

/* Without a descriptor to accept with libuv turns away all who wait in that moment: maybe the next
 * one, too. */
static void served_again(const char *what)
{
    int64_t deadline = client_now_ms() + 20000;
    while (!talk("GET", "/livez", "") || inside.status != 200)
        if (client_now_ms() > deadline)
            fail_msg("%s: nobody is served any more", what);
}

struct fault {
    int kind; /* intercept.h's; ALLOCATION: of ours (mem.h) */
    uint64_t n;
    int error;
};

static void describe(char dst[256], const struct scene *sc, const struct fault *f)
{
    snprintf(dst, 256, "%s on %.20s, call %llu of %s: %s", sc->name, store_name,
             (unsigned long long)f->n,
             f->kind == ALLOCATION ? "malloc" : intercept_rows[f->kind].name,
             f->error == INTERCEPT_SHORT ? "short" : strerror(f->error));
}

/* Asks, with the fault; false: it did not come to it. */
static bool ask_with(const struct scene *sc, const struct fault *f)
{
    uint64_t before = sl_mem_count();
    if (f->kind == ALLOCATION)
        sl_mem_fail_once((int64_t)f->n);
    else
        intercept_fail((enum intercept_kind)f->kind, f->n, f->error);
    (void)ask(sc);
    sl_mem_fail_after(-1);
    return f->kind == ALLOCATION ? sl_mem_count() - before > f->n : intercept_end();
}

static void attempt(const struct scene *sc, const struct expected *x, struct fault f)
{
    char what[256];
    describe(what, sc, &f);
    set_up(sc);
    if (getenv("SLATE_TEST_VERBOSE")) /* which one ended the program */
        print_message("%lld: %s\n", (long long)client_now_ms(), what);
    talk_until("slate_http_connections", 1); /* the scrape's own */
    int64_t begin_ms = client_now_ms();
    if (!ask_with(sc, &f))
        return;
    if (client_now_ms() - begin_ms > LONG_MS)
        fail_msg("%s: it hung", what);
    enum outcome o = outcome_of();
    n_tried++;
    n_failed += o == FAILED;
    n_broken += o == UNKNOWN;
    served_again(what);
    talk_until("slate_requests_running", 0);
    talk_until("slate_http_requests_in_flight", 1);
    check_looks(sc, x, o, what);
    check_rest(x, what);
}

static void expectations(const struct scene *sc, struct expected *x)
{
    set_up(sc);
    look(x->before);
    set_up(sc);
    talk_until("slate_http_connections", 1);
    intercept_clear();
    uint64_t allocations = sl_mem_count();
    assert_true(ask(sc));
    x->n_allocations = sl_mem_count() - allocations;
    for (size_t i = 0; i < INTERCEPT_KIND_COUNT; i++)
        x->counts[i] = intercept_count((enum intercept_kind)i);
    if (outcome_of() != DONE)
        fail_msg("%s is answered with %.600s", sc->name, inside.reply);
    talk_until("slate_requests_running", 0);
    look(x->after);
    gone("t");
    gone("new");
    must("POST", "/v1/sessions/base/pause", "", 200);
    must("POST", "/v1/sessions/by/pause", "", 200);
    x->slots = talk_metric("slate_slots_used");
    talk_until("slate_http_connections", 1);
    x->files = process_files(getpid());
}

static void each_call_fails(void **state)
{
    static struct expected x;
    unsigned turn = 0;
    (void)state;
    n_tried = n_failed = n_broken = 0;
    for (size_t s = 0; s < sizeof scenes / sizeof *scenes; s++) {
        expectations(&scenes[s], &x);
        for (int k = 0; k < INTERCEPT_KIND_COUNT; k++) {
            assert_true(x.counts[k] < MOST_CALLS);
            for (uint64_t n = 0; n < x.counts[k]; n++)
                for (const int *e = intercept_rows[k].errors; *e; e++)
                    if (turn++ % stride == 0)
                        attempt(&scenes[s], &x, (struct fault){k, n, *e});
        }
    }
    print_message("%zu calls failed, each once: %zu requests were told, %zu had no answer\n",
                  n_tried, n_failed, n_broken);
    assert_true(n_tried > 400 / stride);
    /* A sessions' memory has hardly a call that can fail, and with Redis most of them are made good
     * by another connection: only of a folder's calls is every sample told of some. */
    bool told = strcmp(store_name, "dir") != 0 || n_failed > 0;
    assert_true(stride > STRIDE || (told && n_broken > 0));
}

static void each_allocation_fails(void **state)
{
    static struct expected x;
    unsigned turn = 0, every = stride == 1 ? 1 : 3 * stride;
    (void)state;
    n_tried = n_failed = n_broken = 0;
    for (size_t s = 0; s < sizeof scenes / sizeof *scenes; s++) {
        expectations(&scenes[s], &x);
        for (uint64_t n = 0; n < x.n_allocations; n++)
            if (turn++ % every == 0)
                attempt(&scenes[s], &x, (struct fault){ALLOCATION, n, ENOMEM});
    }
    print_message("%zu allocations failed, each once: %zu requests were told, %zu had no answer\n",
                  n_tried, n_failed, n_broken);
    assert_true(n_tried > 500 / every);
    assert_true(stride > STRIDE || n_failed > 0);
}

static int start_server(const char *store, bool tcp)
{
    static char model[300];
    snprintf(model, sizeof model, "--model=%s", seeded_bytes_model());
    return inside_start(store, tcp,
                        (const char *const[]){model, "--tokenizer=bytes", "--chat-template=plain",
                                              !strcmp(store, "memory") ? "--sessions-in-memory=8"
                                                                       : "--sessions-in-memory=4",
                                              "--threads=1", "--log-level=error", "--keep-turns=2",
                                              NULL});
}

static int start_on(const char *store, bool tcp)
{
    snprintf(store_name, sizeof store_name, "%s", store);
    if (start_server(store, tcp))
        return -1;
    must("POST", "/v1/sessions", "{\"id\":\"base\",\"prompt\":\"hello\",\"metadata\":{\"m\":0}}",
         201);
    must("POST", "/v1/sessions", "{\"id\":\"by\",\"prompt\":\"somebody else\"}", 201);
    must("POST", "/v1/generate", "{\"session\":\"base\",\"prompt\":\"x\",\"max_tokens\":3}", 200);
    must("GET", "/v1/sessions/by/snapshot", "", 200);
    const char *p = talk_body(&n_snapshot);
    p = tensors_of(p, &n_snapshot);
    memcpy(snapshot, p, n_snapshot);
    must("POST", "/v1/sessions", "{\"id\":\"far\",\"prompt\":\"from far away\"}", 201);
    must("GET", "/v1/sessions/far/snapshot", "", 200);
    p = talk_body(&n_moved);
    memcpy(moved, p, n_moved);
    gone("far");
    return 0;
}

static int start_memory(void **state)
{
    (void)state;
    return start_on("memory", false);
}

static int start_dir(void **state)
{
    (void)state;
    return start_on("dir", true);
}

static int start_redis(void **state)
{
    (void)state;
    redis_init(&redis, "calls", NULL);
    return start_on(redis.spec, true);
}

static int stop(void **state)
{
    (void)state;
    return inside_stop();
}

static int stop_redis(void **state)
{
    int rc = stop(state);
    redis_done(&redis);
    return rc;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails),
                                       cmocka_unit_test(each_allocation_fails)};
    if (argc > 1)
        stride = (unsigned)strtoul(argv[1], NULL, 10);
    assert_true(stride > 0);
#if defined(__SANITIZE_THREAD__)
    print_message(
        "skipped: 6 cases of failing calls: the thread sanitizer does not see what openat() "
        "opens, and its reports make calls that are intercepted here\n");
    return 0;
#endif
    intercept_not_here();
    int rc = cmocka_run_group_tests_name("calls, memory", tests, start_memory, stop);
    rc += cmocka_run_group_tests_name("calls, dir:", tests, start_dir, stop);
    return rc + cmocka_run_group_tests_name("calls, redis:", tests, start_redis, stop_redis);
}
