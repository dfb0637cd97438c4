/* serve_test.c: `slate serve` as whoever runs it meets it: the command line, addresses and unix
 * sockets, the file of keys and SIGHUP, and how it ends: signals, draining. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/server.h"
#include "tests/support/tree.h"

static char dir[64]; /* of this test's files */

static const char *path_of(const char *name)
{
    static char path[4][128];
    static unsigned i;
    char *p = path[i++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static const char *write_file(const char *name, const char *text)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/slate-serve-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {"keys", "socket", "file"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
    return rmdir(dir);
}

/* --- the command line ------------------------------------------------------------------------- */

static void expect_exit(const char *const *args, int code, const char *part)
{
    char *err, *out;
    int got = program_run(args, &out, &err);
    if (got != code || (!strstr(err, part) && !strstr(out, part)))
        fail_msg("%s %s …: exit %d and '%s' were expected, but %d and\n%s%s", args[0],
                 args[0] ? args[1] : "", code, part, got, out, err);
    free(err);
    free(out);
}

static void test_command_line(void **state)
{
    (void)state;
    expect_exit((const char *const[]){NULL}, 2, "usage: slate");
    expect_exit(ARGS("--help"), 0, "serve");
    expect_exit(ARGS("--version"), 0, "slate 0.");
    expect_exit(ARGS("nonsense"), 2, "'nonsense'");
    expect_exit(ARGS("serve", "--help"), 0, "SLATE_MAX_BODY; default 16MiB; 1KiB to 1GiB");
    expect_exit(ARGS("serve", "--nonsense"), 2, "'--nonsense'");
    expect_exit(ARGS("serve", "--max-running", "0"), 2, "1 to 4096");
    expect_exit(ARGS("serve", "--listen", "0.0.0.0:0"), 2, "--insecure");
    expect_exit(ARGS("serve", "--listen", "here"), 2, "'here'");
    expect_exit(ARGS("serve", "--listen", "192.0.2.1:1", "--insecure"), 1, "192.0.2.1:1");
    expect_exit(ARGS("serve", "--listen", "127.0.0.1:0", "--api-keys", "/none/keys"), 3,
                "/none/keys");
    write_file("keys", "tooshort\n");
    expect_exit(ARGS("serve", "--listen", "127.0.0.1:0", "--api-keys", path_of("keys")), 3,
                "line 1");
}

/* It would do nothing, and nobody would be told. */
static void test_a_mistyped_variable(void **state)
{
    (void)state;
    setenv("SLATE_MAX_SESSION", "7", 1);
    expect_exit(ARGS("serve", "--listen", "127.0.0.1:0", "--api-keys", "/none/keys"), 3,
                " warn \"a variable of the environment names no option of slate serve: ignored\" "
                "variable=SLATE_MAX_SESSION\n");
    const char *const commands[][7] = {{"generate", "--prompt=a", "--model=/none"},
                                       {"convert", "/none", "/none.safetensors"},
                                       {"bench", "--shape=none"},
                                       {"probe", "rule", "--kernels=none"},
                                       {"probe", "model", "--model=/none"}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect_exit(commands[i], i == 2 || i == 3 ? 2 : 3,
                    ": the variable SLATE_MAX_SESSION names no option and was ignored\n");
    unsetenv("SLATE_MAX_SESSION");
}

static void test_the_address_is_in_use(void **state)
{
    (void)state;
    struct server *s = server_start_loading(ARGS("--log-level", "warn"));
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%u", s->port);
    expect_exit(ARGS("serve", "--listen", address), 1, "in use");
    raw_expect_ask(s, GET("/livez"), 200, "ok");
    server_stop(s);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void expect_slots(const char *const *args, double n)
{
    struct server *s = server_start(args);
    assert_true(raw_metric(s, "slate_slots_total") == n);
    server_stop(s);
}

/* --memory has room for so many states, of sessions, of turns that run and of turns that are being
 * stored; a few more are those of snapshots that are being written. */
static void test_memory(void **state)
{
    (void)state;
    enum { MIB = 64, MAX_RUNNING = 32, SAVES = 8 };
    char store[140], sessions[24], one_more[24];
    snprintf(store, sizeof store, "dir:%s", path_of("store"));
    struct server *s = server_start(ARGS("--threads=1"));
    double states = (double)(int)(MIB * 1048576.0 / raw_metric(s, "slate_state_bytes"));
    server_stop(s);
    expect_slots(ARGS("--memory=64MiB"), states + SAVES);
    expect_slots(ARGS("--memory=64MiB", "--store", store), states + SAVES);
    /* Fewer than that many sessions leave room for turns that are being stored. */
    snprintf(sessions, sizeof sessions, "%d", (int)states - 2 * MAX_RUNNING);
    snprintf(one_more, sizeof one_more, "%d", (int)states - 2 * MAX_RUNNING + 1);
    expect_slots(ARGS("--memory=64MiB", "--store", store, "--sessions-in-memory", sessions),
                 states + SAVES);
    expect_slots(ARGS("--memory=64MiB", "--store", store, "--sessions-in-memory=8"),
                 8 + 2 * MAX_RUNNING + (int)(states / 16) + SAVES);
    expect_slots(ARGS("--memory=64MiB", "--sessions-in-memory=8"), 8 + 2 * MAX_RUNNING + SAVES);
    expect_exit(ARGS("serve", "--listen", "127.0.0.1:0", "--memory=64MiB", "--store", store,
                     "--sessions-in-memory", one_more),
                2, "--memory is 64 MiB");
    remove_tree(path_of("store"));
}

/* --- unix sockets ----------------------------------------------------------------------------- */

static void test_unix_socket(void **state)
{
    (void)state;
    char listen[160];
    struct stat st;
    const char *path = path_of("socket");
    snprintf(listen, sizeof listen, "unix:%s", path);
    struct server *s = server_start_loading(ARGS("--listen", listen));
    assert_string_equal(s->unix_path, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0077, 0); /* its owner's alone */
    raw_expect_ask(s, "GET /metrics HTTP/1.1\r\nHost: anything\r\n\r\n", 200, "slate_ready");
    expect_exit(ARGS("serve", "--listen", listen), 1, "in use");
    raw_expect_ask(s, GET("/livez"), 200, "ok");
    /* Killed, it leaves its file; the next one takes the place. */
    assert_int_equal(server_end(s, SIGKILL), -SIGKILL);
    assert_int_equal(stat(path, &st), 0);
    s = server_start_loading(ARGS("--listen", listen));
    raw_expect_ask(s, GET("/livez"), 200, "ok");
    server_stop(s);
    assert_int_equal(stat(path, &st), -1);
    write_file("file", "no socket");
    snprintf(listen, sizeof listen, "unix:%s", path_of("file"));
    expect_exit(ARGS("serve", "--listen", listen), 1, "not a socket");
    assert_int_equal(stat(path_of("file"), &st), 0);
}

/* --- keys ------------------------------------------------------------------------------------- */

#define AS(key, path) "GET " path " HTTP/1.1\r\n" HOST "Authorization: Bearer " key "\r\n\r\n"

static void test_keys(void **state)
{
    (void)state;
    const char *keys = write_file("keys", "user-key-1 t user\nprobe-key-1 t metrics\n"
                                          "admin-key-1 t admin\n");
    struct server *s = server_start(ARGS("--api-keys", keys));
    raw_expect_ask(s, GET("/livez"), 200, "ok");
    raw_expect_ask(s, GET("/readyz"), 200, "ready");
    raw_expect_ask(s, GET("/v1/models"), 401, "WWW-Authenticate: Bearer realm=\"slate\"\r\n");
    raw_expect_ask(s, GET("/v1/models"), 401, "\"code\":\"invalid_api_key\"");
    raw_expect_ask(s, GET("/metrics"), 401, "\"type\":\"authentication_error\"");
    raw_expect_ask(s, AS("user-key-2", "/v1/models"), 401, "not known");
    raw_expect_ask(s, AS("user-key-1", "/v1/models"), 200, "data");
    raw_expect_ask(s, AS("user-key-1", "/metrics"), 403, "'metrics'");
    raw_expect_ask(s, AS("probe-key-1", "/metrics"), 200, "slate_ready 1");
    raw_expect_ask(s, AS("probe-key-1", "/v1/models"), 403, "'user'");
    raw_expect_ask(
        s, "POST /v1/admin/drain HTTP/1.1\r\n" HOST "Authorization: Bearer user-key-1\r\n\r\n", 403,
        "'admin'");
    /* SIGHUP: the file as it is now; connections stay. */
    struct raw *r = raw_open(s);
    raw_puts(r, AS("user-key-1", "/v1/models"));
    raw_expect(r, 200);
    write_file("keys", "user-key-2 t user\n");
    assert_int_equal(kill(s->pid, SIGHUP), 0);
    server_wait_log(s, "keys were read again\" keys=1");
    raw_puts(r, AS("user-key-1", "/v1/models"));
    raw_expect(r, 401);
    raw_puts(r, AS("user-key-2", "/v1/models"));
    raw_expect(r, 200);
    /* One that is wrong changes nothing. */
    write_file("keys", "broken\n");
    assert_int_equal(kill(s->pid, SIGHUP), 0);
    server_wait_log(s, "keys were not read again");
    raw_puts(r, AS("user-key-2", "/v1/models"));
    raw_expect(r, 200);
    raw_close(r);
    assert_null(strstr(s->log, "user-key"));
    server_stop(s);
}

/* --- signals and draining --------------------------------------------------------------------- */

static void test_signals_end_it(void **state)
{
    (void)state;
    assert_int_equal(server_end(server_start(ARGS("--log-level", "info")), SIGINT), 0);
    /* While it is still loading, too. */
    assert_int_equal(server_end(server_start_loading(ARGS("--log-level", "info")), SIGTERM), 0);
}

static void test_drain(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--drain-timeout", "100ms"));
    struct raw *stream = raw_open(s), *idle = raw_open(s);
    raw_puts(idle, GET("/livez"));
    raw_expect(idle, 200);
    raw_long_stream(stream);
    raw_wait_text(stream, "data: ");
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    server_wait_log(s, "draining");
    raw_expect_ask(s, GET("/readyz"), 503, "\"code\":\"draining\"");
    raw_puts(idle, "POST /v1/generate HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                   "Content-Length: 16\r\n\r\n{\"prompt\":\"abc\"}");
    struct raw_response *p = raw_read(idle, false);
    assert_int_equal(p->status, 503);
    assert_non_null(strstr(p->head, "\r\nConnection: close\r\n"));
    raw_response_free(p);
    /* The limit ends the turn as `paused`, with everything a response needs. */
    p = raw_read(stream, false);
    assert_true(p->chunked);
    assert_non_null(strstr(p->body, "\"finish_reason\":\"paused\""));
    assert_non_null(strstr(p->body, "data: [DONE]\n\n"));
    raw_response_free(p);
    raw_close(stream);
    raw_close(idle);
    assert_int_equal(server_end(s, 0), 0);
}

/* Whoever had connected before the end, and asks a moment later, is told; so who balances asks
 * another server. Cut off they would be errors that nobody made. (A machine may stand still for
 * longer than the second that a server waits: most rounds count.) */
static void test_the_last_requests_are_answered(void **state)
{
    enum { ROUNDS = 5 };
    static const char begin[] = "GET /v1/models HTTP/1.1\r\n";
    unsigned n_told = 0;
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        struct server *s = server_start(ARGS("--log-level", "info"));
        struct raw *fresh = raw_open(s), *begun = raw_open(s), *used = raw_open(s);
        raw_puts(begun, begin);
        raw_puts(used, GET("/livez"));
        raw_expect(used, 200);
        assert_int_equal(kill(s->pid, SIGTERM), 0);
        server_wait_log(s, "draining");
        struct raw *both[] = {fresh, begun};
        const char *rest[] = {GET("/v1/models"), HOST "\r\n"};
        unsigned n = 0;
        for (size_t k = 0; k < 2; k++)
            (void)raw_send_some(both[k], rest[k], strlen(rest[k]));
        for (size_t k = 0; k < 2; k++)
            n += raw_says(both[k], "\"code\":\"draining\"");
        n_told += n == 2;
        raw_wait_closed(used); /* it has had its answer */
        raw_close(used);
        raw_close(begun);
        raw_close(fresh);
        assert_int_equal(server_end(s, 0), 0);
    }
    assert_true(n_told > ROUNDS / 2);
}

static void test_an_upload_at_the_end_is_answered(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--log-level", "info"));
    struct raw *r = raw_open(s);
    raw_puts(r,
             "PUT /v1/sessions/kate/snapshot HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n");
    while (raw_metric(s, "slate_http_requests_in_flight") != 2)
        ;
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    struct raw_response *p = raw_read(r, false);
    assert_int_equal(p->status, 503);
    assert_non_null(strstr(p->body, "\"code\":\"draining\""));
    assert_non_null(strstr(p->head, "\r\nRetry-After: "));
    raw_response_free(p);
    raw_close(r);
    assert_int_equal(server_end(s, 0), 0);
}

/* The fresh connection's descriptor; -1: nobody listens any more. */
static int knock(const struct server *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)s->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&in, sizeof in) == 0)
        return fd;
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    return -1;
}

/* There is always one that has just come, and may be about to ask. */
static void test_who_comes_all_the_time_keeps_no_server(void **state)
{
    enum { EACH_MS = 200, KNOCKS = 100 };
    (void)state;
    struct server *s = server_start(ARGS("--log-level", "info"));
    int fd = knock(s), next = fd;
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    server_wait_log(s, "draining");
    for (int i = 0; i < KNOCKS && next >= 0; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_true(poll(&p, 1, EACH_MS) >= 0);
        next = knock(s);
        close(fd);
        fd = next;
    }
    assert_int_equal(next, -1);
    assert_int_equal(server_end(s, 0), 0);
}

static void test_a_second_signal_ends_at_once(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--drain-timeout", "1h"));
    struct raw *stream = raw_open(s);
    raw_long_stream(stream);
    raw_wait_text(stream, "data: ");
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    server_wait_log(s, "draining");
    assert_int_equal(server_end(s, SIGTERM), -SIGTERM);
    raw_close(stream);
}

static void test_drain_by_request(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--log-format", "text"));
    struct raw *r = raw_open(s);
    raw_puts(r, "POST /v1/admin/drain HTTP/1.1\r\n" HOST "\r\n");
    raw_expect(r, 202);
    raw_close(r);
    assert_int_equal(server_end(s, 0), 0);
}

/* Whoever has keys read again need not know whether the server is about to end. */
static void test_a_reload_at_the_end(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--log-level", "info"));
    struct pollfd end = {.fd = s->out, .events = POLLIN};
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    do {
        assert_int_equal(kill(s->pid, SIGHUP), 0);
    } while (poll(&end, 1, 1) == 0);
    assert_int_equal(server_end(s, 0), 0);
}

/* The first signal behind it changes nothing: turns go on to their end. */
static void test_a_signal_behind_a_drain_by_request(void **state)
{
    (void)state;
    struct server *s = server_start(ARGS("--drain-timeout", "1h"));
    struct raw *stream = raw_open(s), *r = raw_open(s);
    raw_long_stream(stream);
    raw_wait_text(stream, "data: ");
    raw_puts(r, "POST /v1/admin/drain HTTP/1.1\r\n" HOST "\r\n");
    raw_expect(r, 202);
    raw_close(r);
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    raw_expect_ask(s, GET("/livez"), 200, "ok");
    raw_close(stream);
    assert_int_equal(server_end(s, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_a_mistyped_variable),
        cmocka_unit_test(test_the_address_is_in_use),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_signals_end_it),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_the_last_requests_are_answered),
        cmocka_unit_test(test_an_upload_at_the_end_is_answered),
        cmocka_unit_test(test_who_comes_all_the_time_keeps_no_server),
        cmocka_unit_test(test_a_second_signal_ends_at_once),
        cmocka_unit_test(test_drain_by_request),
        cmocka_unit_test(test_a_reload_at_the_end),
        cmocka_unit_test(test_a_signal_behind_a_drain_by_request),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
