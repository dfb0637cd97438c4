/* routes_test.c: every route, with every allocation that it makes failing: the n-th alone, and the
 * n-th and all later ones, for every n.
 *
 * The whole program runs in a thread of the test (sl_cli_serve on a unix socket), so that its
 * allocator can be told to fail. What the client may see then: no answer at all (the connection is
 * closed), a 503, a stream that ends with an error event, or the answer, where it could be made
 * without that memory. What must hold afterwards: the next request is served, no turn runs, no
 * exchange is open, no slot is lost; and under the address sanitizer nothing has leaked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "server/cli/cli.h"
#include "tests/support/stores.h"

enum { MOST_ALLOCATIONS = 3000, REPLY_MAX = 1 << 20, DEADLINE_S = 60, BODY_MAX = 512 << 10 };

#define FOLDER "/tmp/slate-test-XXXXXX"
static char folder[sizeof FOLDER];
static char sock_path[64], listen_option[96], store_option[96];
static pthread_t thread;
static int exit_code;
static char reply[REPLY_MAX + 1];
static char with_state[BODY_MAX]; /* a request that brings its state and wants it back */

/* --- a client that allocates nothing ---------------------------------------------------------- */

/* Sends and reads to the end of the connection. false: nothing came. */
static bool talk(const char *method, const char *path, const char *body)
{
    static char request[BODY_MAX + 512];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval deadline = {.tv_sec = DEADLINE_S};
    memcpy(a.sun_path, sock_path, sizeof sock_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    size_t n = 0;
    reply[0] = '\0';
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return false;
    }
    int len = snprintf(request, sizeof request,
                       "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                       method, path, strlen(body), body);
    assert_true(len > 0 && (size_t)len < sizeof request);
    if (send(fd, request, (size_t)len, MSG_NOSIGNAL) == len) {
        for (;;) {
            ssize_t k = recv(fd, reply + n, REPLY_MAX - n, 0);
            if (k < 0 && errno == EAGAIN)
                fail_msg("%s %s: no answer in %d s", method, path, DEADLINE_S);
            if (k <= 0)
                break;
            n += (size_t)k;
            assert_true(n < REPLY_MAX);
        }
    }
    reply[n] = '\0';
    close(fd);
    return n > 0;
}

static int status(void)
{
    int s = 0;
    return sscanf(reply, "HTTP/1.1 %d", &s) == 1 ? s : 0;
}

static double metric(const char *name)
{
    char key[128];
    double v = -1;
    assert_true(talk("GET", "/metrics", ""));
    snprintf(key, sizeof key, "\n%s ", name);
    const char *p = strstr(reply, key);
    assert_non_null(p);
    assert_int_equal(sscanf(p + strlen(key), "%lf", &v), 1);
    return v;
}

/* --- the server ------------------------------------------------------------------------------- */

static void *serve(void *arg)
{
    static char *args[] = {
        "serve",       listen_option,       store_option, "--sessions-in-memory=4",
        "--threads=1", "--log-level=error", NULL};
    (void)arg;
    exit_code = sl_cli_serve(6, args);
    return NULL;
}

static int start(bool keeps)
{
    memcpy(folder, FOLDER, sizeof folder);
    if (!mkdtemp(folder))
        return -1;
    if (keeps)
        snprintf(store_option, sizeof store_option, "--store=dir:%s/store", folder);
    else
        snprintf(store_option, sizeof store_option, "--store=memory");
    snprintf(sock_path, sizeof sock_path, "%s/socket", folder);
    snprintf(listen_option, sizeof listen_option, "--listen=unix:%s", sock_path);
    if (pthread_create(&thread, NULL, serve, NULL))
        return -1;
    while (!talk("GET", "/readyz", "") || status() != 200)
        ;
    return 0;
}

static int start_forgetful(void **state)
{
    (void)state;
    return start(false);
}

static int start_keeping(void **state)
{
    (void)state;
    return start(true);
}

static int stop(void **state)
{
    (void)state;
    bool asked = talk("POST", "/v1/admin/drain", "") && status() == 202;
    if (!asked || pthread_join(thread, NULL))
        return -1;
    remove_tree(folder);
    return exit_code;
}

/* --- one request, every allocation -------------------------------------------------------------
 */

struct scene {
    const char *method, *path, *body;
    const char *undo; /* a session to delete afterwards, or NULL */
};

static void wait_until(const char *name, double value)
{
    while (metric(name) != value) /* talk() has the deadline of each step, the runner of all */
        ;
}

static void check_answer(const struct scene *sc, int64_t n)
{
    int s = status();
    bool is_stream = strstr(reply, "text/event-stream") != NULL;
    if (s == 503) /* the connection's memory is counted as a place; a body may have none */
        s = strstr(reply, "out_of_memory") || strstr(reply, "server_full") ||
                    strstr(reply, "Content-Length: 0\r\n")
                ? 200
                : 0;
    if (s / 100 != 2)
        fail_msg("%s %s without allocation %lld: %.300s", sc->method, sc->path, (long long)n,
                 reply);
    if (s == 200 && is_stream && !strstr(reply, "data: [DONE]\n\n"))
        /* Then it says why, or it was cut: chunked bodies end with an empty chunk. */
        assert_true(strstr(reply, "out_of_memory") || !strstr(reply, "\r\n0\r\n\r\n"));
}

static void undo(const struct scene *sc)
{
    char path[64];
    if (!sc->undo)
        return;
    snprintf(path, sizeof path, "/v1/sessions/%s", sc->undo);
    assert_true(talk("DELETE", path, ""));
    assert_true(status() == 200 || status() == 404);
}

static void torture(const struct scene *sc, void (*let_fail)(int64_t n))
{
    double slots = metric("slate_slots_used");
    for (int64_t n = 0;; n++) {
        assert_true(n < MOST_ALLOCATIONS);
        uint64_t before = sl_mem_count();
        let_fail(n);
        bool answered = talk(sc->method, sc->path, sc->body);
        sl_mem_fail_after(-1);
        bool all_had = sl_mem_count() - before <= (uint64_t)n;
        bool was_served = answered && status() / 100 == 2;
        if (answered && status())
            check_answer(sc, n);
        wait_until("slate_requests_running", 0);
        wait_until("slate_http_requests_in_flight", 1); /* the scrape itself */
        undo(sc);
        assert_true(metric("slate_slots_used") == slots);
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
    const char *at = strstr(reply, key);
    assert_non_null(at);
    at += strlen(key);
    int n = snprintf(with_state, sizeof with_state,
                     "{\"prompt\":\"x\",\"max_tokens\":2,\"seed\":1,\"return_state\":true,"
                     "\"initial_state\":\"%.*s\"}",
                     (int)strcspn(at, "\""), at);
    assert_in_range(n, 1000, BODY_MAX - 1);
}

static void every_route(void **state)
{
    (void)state;
    make_request_with_state();
    assert_true(talk("POST", "/v1/sessions", "{\"id\":\"base\",\"prompt\":\"hello\"}"));
    assert_int_equal(status(), 201);
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
