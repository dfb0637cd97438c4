/* routes_test.c: every route, with every allocation that it makes failing: the n-th alone, and the
 * n-th and all later ones, for every n.
 *
 * The whole program runs in a thread of the test (sl_cli_serve on a unix socket), so that its
 * allocator can be told to fail. What the client may see then: no answer at all (the connection is
 * closed), a 503, a 504 (done, but no memory to say so), a stream that ends with an error event, or
 * the answer, where it could be made without that memory. What must hold afterwards: the next
 * request is served, no turn runs, no exchange is open, no slot is lost; and under the address
 * sanitizer nothing has leaked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/inside.h"

enum { MOST_ALLOCATIONS = 3000 };

static char with_state[INSIDE_BODY_MAX]; /* a request that brings its state and wants it back */

static int start(const char *store)
{
    return inside_start(
        store, false,
        (const char *const[]){"--sessions-in-memory=4", "--threads=1", "--log-level=error", NULL});
}

static int start_forgetful(void **state)
{
    (void)state;
    return start("memory");
}

static int start_keeping(void **state)
{
    (void)state;
    return start("dir");
}

static int stop(void **state)
{
    (void)state;
    return inside_stop();
}

/* --- one request, every allocation ------------------------------------------------------------ */

struct scene {
    const char *method, *path, *body;
    const char *undo; /* a session to delete afterwards, or NULL */
};

static void check_answer(const struct scene *sc, int64_t n)
{
    int s = inside.status;
    bool is_stream = strstr(inside.reply, "text/event-stream") != NULL;
    if (s == 503 ||
        s == 504) /* the connection's memory is counted as a place; a body may have none */
        s = strstr(inside.reply, s == 504 ? "commit_unknown" : "out_of_memory") ||
                    strstr(inside.reply, "server_full") ||
                    strstr(inside.reply, "Content-Length: 0\r\n")
                ? 200
                : 0;
    if (s / 100 != 2)
        fail_msg("%s %s without allocation %lld: %.300s", sc->method, sc->path, (long long)n,
                 inside.reply);
    if (s == 200 && is_stream && !strstr(inside.reply, "data: [DONE]\n\n"))
        /* Then it says why, or it was cut: chunked bodies end with an empty chunk. */
        assert_true(strstr(inside.reply, "out_of_memory") ||
                    strstr(inside.reply, "commit_unknown") ||
                    !strstr(inside.reply, "\r\n0\r\n\r\n"));
}

static void undo(const struct scene *sc)
{
    char path[64];
    if (!sc->undo)
        return;
    snprintf(path, sizeof path, "/v1/sessions/%s", sc->undo);
    assert_true(talk("DELETE", path, ""));
    assert_true(inside.status == 200 || inside.status == 404);
}

static void torture(const struct scene *sc, void (*let_fail)(int64_t n))
{
    double slots = talk_metric("slate_slots_used");
    for (int64_t n = 0;; n++) {
        assert_true(n < MOST_ALLOCATIONS);
        uint64_t before = sl_mem_count();
        let_fail(n);
        bool answered = talk(sc->method, sc->path, sc->body);
        sl_mem_fail_after(-1);
        bool all_had = sl_mem_count() - before <= (uint64_t)n;
        bool was_served = answered && inside.status / 100 == 2;
        if (answered && inside.status)
            check_answer(sc, n);
        talk_until("slate_requests_running", 0);
        talk_until("slate_http_requests_in_flight", 1); /* the scrape itself */
        undo(sc);
        assert_true(talk_metric("slate_slots_used") == slots);
        if (all_had) {
            assert_true(was_served);
            assert_true(n > 3); /* a request without allocations would show that they do not fail */
            return;
        }
    }
}

static const struct scene scenes[] = {
    {"POST", "/v1/generate",
     "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"logprobs\":2,\"return_tokens\":true,"
     "\"stop\":[\"zzz\"]}",
     NULL},
    {"POST", "/v1/generate",
     "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"stream\":true,\"return_tokens\":true}",
     NULL},
    {"POST", "/v1/generate",
     "{\"session\":\"base\",\"max_tokens\":2,\"temperature\":0,"
     "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
     NULL},
    {"POST", "/v1/generate",
     "{\"prompt\":\"Once\",\"max_tokens\":2,\"seed\":1,\"return_state\":true}", NULL},
    {"POST", "/v1/generate", with_state, NULL},
    {"POST", "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2,\"logprobs\":1}", NULL},
    {"POST", "/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],"
     "\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
     NULL},
    {"POST", "/v1/sessions", "{\"id\":\"new\",\"prompt\":\"hello\",\"metadata\":{\"a\":1}}", "new"},
    {"POST", "/v1/sessions", "{\"id\":\"new\",\"from\":\"base\"}", "new"},
    {"GET", "/v1/sessions?limit=2", "", NULL},
    {"GET", "/v1/sessions/base", "", NULL},
    {"GET", "/v1/sessions/base/memory?half_life=2", "", NULL},
    {"PATCH", "/v1/sessions/base", "{\"metadata\":{\"b\":[1,2]}}", NULL},
    {"POST", "/v1/sessions/base/fork", "{\"id\":\"new\"}", "new"},
    {"POST", "/v1/sessions/base/cancel", "", NULL},
    {"GET", "/v1/models", "", NULL},
    {"GET", "/v1/models/slate-tiny", "", NULL},
    {"POST", "/v1/tokenize", "{\"text\":\"hello there\"}", NULL},
    {"POST", "/v1/detokenize", "{\"tokens\":[300,301]}", NULL},
};

static void make_request_with_state(void)
{
    static const char key[] = "\"state\":\"";
    assert_true(talk("POST", "/v1/generate",
                     "{\"prompt\":\"Once\",\"max_tokens\":2,\"return_state\":true}"));
    const char *at = strstr(inside.reply, key);
    assert_non_null(at);
    at += strlen(key);
    int n = snprintf(with_state, sizeof with_state,
                     "{\"prompt\":\"x\",\"max_tokens\":2,\"seed\":1,\"return_state\":true,"
                     "\"initial_state\":\"%.*s\"}",
                     (int)strcspn(at, "\""), at);
    assert_in_range(n, 1000, INSIDE_BODY_MAX - 1);
}

static void every_route(void **state)
{
    (void)state;
    make_request_with_state();
    assert_true(talk("POST", "/v1/sessions", "{\"id\":\"base\",\"prompt\":\"hello\"}"));
    assert_int_equal(inside.status, 201);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        torture(&scenes[i], sl_mem_fail_once);
        torture(&scenes[i], sl_mem_fail_after);
    }
}

int main(void)
{
    const struct CMUnitTest forgetful[] = {cmocka_unit_test(every_route)};
    const struct CMUnitTest keeping[] = {cmocka_unit_test(every_route)};
    int rc = cmocka_run_group_tests_name("routes without memory", forgetful, start_forgetful, stop);
    return rc + cmocka_run_group_tests_name("the same with a store", keeping, start_keeping, stop);
}
