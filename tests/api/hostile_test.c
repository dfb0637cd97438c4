/* hostile_test.c: attacks, and eight honest clients that keep their throughput under each
 * (attack.h).
 *
 * Judged is 90 % of it where an argument asks for the long form (make soak). The short form, part
 * of every `make test`, prints the same two numbers and fails where a third is lost: on a machine
 * that others use, two slices of one and the same work may differ by a tenth.
 *
 * That a limit is what does it is shown by a server that has none (the option that sets it as wide
 * as it goes): the same attack then holds its connections, or fills the memory.
 *
 * `hostile_test 10000` (make soak) does it with so many idle connections, and for longer;
 * `hostile_test 1000 '*bombs*'` runs the tests of that name. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"
#include "tests/support/attack.h"
#include "tests/support/client.h"
#include "tests/support/process.h"
#include "tests/support/server.h"
#include "tests/support/smuggled.h"
#include "tests/support/tree.h"

#define JSON "Content-Type: application/json\r\n"
#define N(a) (sizeof(a) / sizeof *(a))

enum { WAIT_MS = 20000 };

static size_t n_idle = 1000;

/* --- a server and what it says of itself ------------------------------------------------------ */

/* It logs next to nothing: nobody reads it meanwhile. */
static struct server *start(const char *const *options)
{
    const char *all[32] = {"--log-level", "error", "--threads", "1", "--sessions-in-memory", "64"};
    size_t n = 6;
    for (size_t i = 0; options[i]; i++)
        all[n++] = options[i];
    struct server *s = server_start_loading(all);
    for (bool ready = false; !ready;) {
        struct raw_response *p = raw_ask(s, GET("/readyz"));
        ready = p->status == 200;
        raw_response_free(p);
    }
    return s;
}

static double resident_mib(const struct server *s)
{
    return (double)process_resident(s->pid) / 1048576;
}

/* That so many idle connections take, of this process, of the server and of the port that swallows
 * all: one end of each is there. */
static rlim_t descriptors(void)
{
    return n_idle + 1000;
}

/* --- connections that do nothing -------------------------------------------------------------- */

/* So many come, and all of them stay. They come in lots, each of which has room among those that
 * the kernel has not yet given to the server: what it drops there it may forget, and a client that
 * says nothing never learns of it. */
static void all_stay(const struct server *s, size_t n)
{
    enum { LOT = 500, LOTS_MAX = 256 };
    struct foes *f[LOTS_MAX];
    size_t n_lots = 0;
    int64_t end = client_now_ms() + WAIT_MS;
    for (size_t come = 0; come < n; n_lots++) {
        const struct foe_plan lot = {.n = n - come < LOT ? n - come : LOT};
        assert_true(n_lots < LOTS_MAX);
        f[n_lots] = foes_start(&lot, s->port);
        come += lot.n;
        for (double are;
             (are = raw_metric(s, "slate_http_connections")) <= (double)come;) /* and it asks */
            if (client_now_ms() >= end)
                fail_msg("of %zu connections the server has %.0f", come, are);
    }
    for (size_t i = 0; i < n_lots; i++)
        assert_int_equal(foes_open(f[i]), i + 1 < n_lots ? LOT : n - i * LOT);
    for (size_t i = 0; i < n_lots; i++)
        foes_stop(f[i], NULL);
    printf("idle connections: without the limit all %zu stay\n", n);
}

static void test_idle_connections(void **state)
{
    (void)state;
    struct rlimit r;
    char places[32];
    const struct foe_plan plan = {.n = n_idle};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    if (r.rlim_cur < descriptors()) {
        printf("skipped: %zu idle connections need more descriptors than there are\n", n_idle);
        skip();
    }
    snprintf(places, sizeof places, "%zu", n_idle / 4);
    struct server *s = start(ARGS("--max-connections", places));
    attack("idle connections", s, &plan);
    struct foes *f = foes_start(&plan, s->port);
    assert_true(raw_metric(s, "slate_http_connections") <= (double)n_idle / 4);
    assert_true(raw_metric(s, "slate_http_connections_shed_total") >= (double)n_idle / 2);
    foes_stop(f, NULL);
    server_stop(s);
    /* Without the limit they all stay. */
    s = start(ARGS("--max-connections", "100000"));
    all_stay(s, n_idle);
    server_stop(s);
}

/* --- slow heads and bodies -------------------------------------------------------------------- */

/* One byte at a time, for ever, and none of them puts the deadline off. With a wide one they stay.
 */
static void slow(const char *name, const struct foe_text *text, size_t at_once, const char *option)
{
    struct foe_plan plan = {
        .n = 200, .texts = text, .n_texts = 1, .at_once = at_once, .piece_ms = 50, .life_ms = 1000};
    char argument[64];
    snprintf(argument, sizeof argument, "--%s", option);
    struct server *s = start(ARGS(argument, "300ms"));
    attack(name, s, &plan);
    plan.life_ms = 0;
    struct foes *f = foes_start(&plan, s->port);
    assert_true(foes_leave(f, 0, WAIT_MS));
    struct foes_result res;
    foes_stop(f, &res);
    assert_memory_equal(res.last, "HTTP/1.1 408 ", 13);
    assert_non_null(strstr(res.last, option));
    server_stop(s);
    s = start(ARGS(argument, "1h"));
    f = foes_start(&plan, s->port);
    assert_false(foes_leave(f, plan.n - 1, 900));
    foes_stop(f, NULL);
    server_stop(s);
}

static char long_text[8192];

static void test_slow_headers(void **state)
{
    (void)state;
    static const char begin[] = "GET /livez HTTP/1.1\r\n" HOST "X-Slow: ";
    snprintf(long_text, sizeof long_text, "%s%04000d", begin, 0);
    slow("slow headers", &(struct foe_text){long_text, strlen(long_text)}, sizeof begin - 1,
         "header-timeout");
}

static void test_slow_bodies(void **state)
{
    (void)state;
    static const char begin[] =
        "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: 5000\r\n\r\n{\"prompt\":\"";
    snprintf(long_text, sizeof long_text, "%s%04000d", begin, 0);
    slow("slow bodies", &(struct foe_text){long_text, strlen(long_text)}, sizeof begin - 1,
         "body-timeout");
}

/* Large bodies of which the last byte never comes: they fill what bodies may take, and small ones
 * still find room. */
static void test_bodies_that_fill_the_memory(void **state)
{
    (void)state;
    enum { LARGE = 1 << 20 };
    static char text[LARGE + 256];
    int n =
        snprintf(text, sizeof text,
                 "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: %d\r\n\r\n", LARGE);
    memset(text + n, ' ', LARGE - 1);
    const struct foe_text all = {text, (size_t)n + LARGE - 1};
    const struct foe_plan plan = {.n = 12, .texts = &all, .n_texts = 1, .at_once = all.n};
    struct server *s =
        start(ARGS("--max-body", "1MiB", "--max-upload", "1MiB", "--max-body-memory", "8MiB"));
    struct foes *f = foes_start(&plan, s->port);
    while (raw_metric(s, "slate_http_body_bytes") < 6 << 20)
        ;
    foes_stop(f, NULL);
    attack("bodies that fill the memory", s, &plan);
    assert_true(raw_metric(s, "slate_http_body_bytes") <= 8 << 20);
    server_stop(s);
}

/* --- clients that do not read ----------------------------------------------------------------- */

static void make_session(const struct server *s, const char *id)
{
    char text[256];
    snprintf(text, sizeof text,
             "POST /v1/sessions HTTP/1.1\r\n" HOST JSON
             "Content-Length: %zu\r\n\r\n{\"id\":\"%s\"}",
             strlen(id) + 9, id);
    raw_expect_ask(s, text, 201, id);
}

/* They ask for large answers, a hundred each, and read 50 KB of them a second. What is kept for
 * them is bounded, and after a while they are cut off. Without the bounds all of it is in memory.
 */
static void test_slow_readers(void **state)
{
    (void)state;
    char *many = repeated("", GET("/v1/sessions/honest-0/snapshot"), 100, "");
    const struct foe_text text = {many, strlen(many)};
    const struct foe_plan plan = {.n = 20,
                                  .texts = &text,
                                  .n_texts = 1,
                                  .at_once = text.n,
                                  .piece_ms = 20,
                                  .reading = FOE_SIPS,
                                  .small_buffers = true};
    struct server *s = start(ARGS("--write-high", "64KiB", "--write-low", "16KiB",
                                  "--write-timeout", "500ms", "--write-rate", "1MiB"));
    attack("slow readers", s, &plan);
    double before = resident_mib(s);
    struct foes *f = foes_start(&plan, s->port);
    double bounded = 0;
    int64_t end = client_now_ms() + WAIT_MS;
    while (!foes_leave(f, 0, 20)) { /* reading a little does not keep them */
        assert_true(client_now_ms() < end);
        bounded = fmax(bounded, resident_mib(s) - before);
    }
    foes_stop(f, NULL);
    server_stop(s);
    s = start(ARGS("--write-high", "1GiB", "--read-ahead", "16MiB", "--write-timeout", "1h",
                   "--write-rate", "0"));
    make_session(s, "honest-0");
    before = resident_mib(s);
    f = foes_start(&plan, s->port);
    end = client_now_ms() + WAIT_MS;
    while (resident_mib(s) - before < 2 * bounded + 100)
        assert_true(client_now_ms() < end);
    printf("slow readers: %.0f MiB with the limits, more than %.0f without\n", bounded,
           resident_mib(s) - before);
    assert_int_equal(foes_open(f), plan.n);
    foes_stop(f, NULL);
    assert_true(bounded < 60);
    server_stop(s);
    sl_free(many);
}

/* Nor do they hold a turn: its tokens wait for them, its place does not. */
static void test_slow_readers_hold_no_turn(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":2000,\"ignore_eos\":true,"
                               "\"logprobs\":20,\"return_tokens\":true,\"stream\":true}";
    char text[512];
    snprintf(text, sizeof text,
             "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    const struct foe_text all = {text, strlen(text)};
    const struct foe_plan plan = {.n = 4,
                                  .texts = &all,
                                  .n_texts = 1,
                                  .at_once = all.n,
                                  .reading = FOE_DOES_NOT_READ,
                                  .small_buffers = true};
    struct server *s =
        start(ARGS("--max-running", "2", "--write-high", "16KiB", "--write-low", "4KiB"));
    struct foes *f = foes_start(&plan, s->port);
    while (raw_metric(s, "slate_turns_total") < (double)plan.n)
        ;
    assert_int_equal(foes_open(f), plan.n);
    assert_true(raw_metric(s, "slate_http_requests_in_flight") >= 2); /* one is this */
    assert_true(raw_metric(s, "slate_requests_running") < 1);
    foes_stop(f, NULL);
    server_stop(s);
}

/* --- half-closed, and sent ahead -------------------------------------------------------------- */

/* They say that they send no more, behind a request for a long turn: they count as gone, and so
 * does their turn. */
static void test_half_closed(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":\"Once\",\"max_tokens\":5000,\"ignore_eos\":true,\"stream\":true}";
    char text[512];
    snprintf(text, sizeof text,
             "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    const struct foe_text texts[] = {{text, strlen(text)},
                                     {GET("/livez"), strlen(GET("/livez"))},
                                     {text, strlen(text) - 5},
                                     {"", 0}};
    struct foe_plan plan = {.n = 40,
                            .texts = texts,
                            .n_texts = N(texts),
                            .at_once = sizeof text,
                            .life_ms = 500,
                            .half_close = true};
    struct server *s = start(ARGS("--max-running", "8"));
    attack("half-closed sockets", s, &plan);
    plan.life_ms = 0;
    struct foes *f = foes_start(&plan, s->port);
    assert_true(foes_leave(f, 0, WAIT_MS));
    foes_stop(f, NULL);
    while (raw_metric(s, "slate_requests_running") > 0.5)
        ;
    server_stop(s);
}

static void test_pipelines(void **state)
{
    (void)state;
    char *many = repeated("", GET("/livez"), 1000, "");
    const struct foe_text text = {many, strlen(many)};
    struct foe_plan plan = {
        .n = 1, .texts = &text, .n_texts = 1, .at_once = text.n, .life_ms = 500};
    struct server *s = start(ARGS(NULL));
    attack("pipelines of 1,000", s, &plan);
    /* And they are answered, all of them. */
    plan.life_ms = 0;
    double before = raw_metric(s, "slate_http_request_duration_seconds_count");
    struct foes *f = foes_start(&plan, s->port);
    while (raw_metric(s, "slate_http_request_duration_seconds_count") - before < 1000)
        ;
    foes_stop(f, NULL);
    server_stop(s);
    sl_free(many);
}

/* --- bytes that two could read in two ways ---------------------------------------------------- */

static void test_smuggling(void **state)
{
    (void)state;
    struct foe_text texts[N_SMUGGLED];
    struct server *s = start(ARGS(NULL));
    make_session(s, "smuggled");
    for (size_t i = 0; i < N_SMUGGLED; i++) {
        struct raw *r = raw_open(s);
        texts[i] = (struct foe_text){smuggled[i], strlen(smuggled[i])};
        raw_puts(r, smuggled[i]);
        struct raw_response *p = raw_read(r, false);
        if (p->status != 400)
            fail_msg("%s\nis answered with\n%s", smuggled[i], p->head);
        raw_response_free(p);
        (void)raw_wait_closed(r); /* and nothing else */
        raw_close(r);
    }
    raw_expect_ask(s, GET("/v1/sessions/smuggled"), 200, "smuggled");
    raw_expect_ask(s, SMUGGLED_REQUEST, 200, "smuggled"); /* it would have worked */
    make_session(s, "smuggled");
    const struct foe_plan plan = {
        .n = 8, .texts = texts, .n_texts = N(texts), .at_once = 4096, .life_ms = 100};
    attack("smuggling forms", s, &plan);
    raw_expect_ask(s, GET("/v1/sessions/smuggled"), 200, "smuggled");
    server_stop(s);
}

/* --- too much of everything ------------------------------------------------------------------- */

static void test_header_floods(void **state)
{
    (void)state;
    enum { LARGE = 1 << 20 };
    static char one[LARGE], line[LARGE / 4];
    static const char begin[] = "GET /livez HTTP/1.1\r\n" HOST;
    char *lines = repeated("", "X-Flood: yes\r\n", 5000, ""),
         *empty = repeated("", "a:\r\n", 101, "");
    char many[8192], *flood = malloc(strlen(lines) + 256);
    assert_non_null(flood);
    snprintf(one, sizeof one, "%sX-Flood: %0*d\r\n\r\n", begin, LARGE - 256, 0);
    snprintf(line, sizeof line, "GET /%0*d HTTP/1.1\r\n\r\n", LARGE / 4 - 64, 0);
    snprintf(many, sizeof many, "%s%s\r\n", begin, empty);
    sprintf(flood, "%s%s\r\n", begin, lines);
    const struct foe_text texts[] = {
        {one, strlen(one)}, {line, strlen(line)}, {many, strlen(many)}, {flood, strlen(flood)}};
    static const int status[] = {431, 414, 431, 431};
    struct server *s = start(ARGS(NULL));
    for (size_t i = 0; i < N(texts); i++) {
        struct raw *r = raw_open(s);
        raw_puts(r, texts[i].bytes);
        raw_expect(r, status[i]);
        raw_close(r);
    }
    const struct foe_plan plan = {
        .n = 8, .texts = texts, .n_texts = N(texts), .at_once = LARGE, .life_ms = 100};
    double before = resident_mib(s);
    attack("header floods", s, &plan);
    assert_true(resident_mib(s) - before < 60);
    server_stop(s);
    sl_free(lines);
    sl_free(empty);
    free(flood);
}

/* A body around `n` times `part`. */
static struct foe_text bomb(const char *begin, const char *part, size_t n, const char *end)
{
    char *body = repeated(begin, part, n, end);
    size_t room = strlen(body) + 256;
    char *text = malloc(room);
    assert_non_null(text);
    int size = snprintf(text, room,
                        "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
                        strlen(body), body);
    sl_free(body);
    return (struct foe_text){text, (size_t)size};
}

static void test_json_bombs(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    const struct foe_text texts[] = {
        bomb("{\"prompt\":[", "0,", 2 * (size_t)MIB, "0]}"),
        bomb("{\"x\":[", "{},", MIB, "0]}"),
        bomb("{\"x\":\"", "\\u0041", MIB / 2, "\"}"),
        bomb("{\"x\":[", "[],", MIB, "0]}"),
    };
    struct server *s = start(ARGS(NULL));
    const struct foe_plan plan = {
        .n = 1, .texts = texts, .n_texts = N(texts), .at_once = 16 * (size_t)MIB, .life_ms = 500};
    size_t usual = attack_terms.n_slice;
    attack_terms.n_slice *= 3;
    attack("JSON bombs", s, &plan);
    attack_terms.n_slice = usual;
    server_stop(s);
    for (size_t i = 0; i < N(texts); i++)
        free((void *)(uintptr_t)texts[i].bytes);
}

/* --- ids that are paths ----------------------------------------------------------------------- */

static const char *const tricks[] = {
    "..",
    ".",
    "%2e%2e",
    "%2E%2E%2Fetc",
    "..%2f..%2fetc%2fpasswd",
    "a%2fb",
    "a/../b",
    "a%5cb",
    "%00",
    "a%00b",
    "%c0%ae%c0%ae",
    "%252e%252e%252f",
    ".hidden",
    "a%0d%0aX-Injected:%201",
    "a%20b",
    "%ff",
    "con:",
    "a%3bb",
    "*",
    "~",
    "%2f",
    "a%7fb",
};

static void test_path_tricks(void **state)
{
    (void)state;
    static char requests[2 * N(tricks)][256];
    struct foe_text texts[2 * N(tricks)];
    char dir[] = "/tmp/slate-hostile-XXXXXX", aside[64], store[96], body[64];
    assert_non_null(mkdtemp(dir));
    snprintf(aside, sizeof aside, "%s/a", dir);
    snprintf(store, sizeof store, "dir:%s/store", aside);
    assert_int_equal(mkdir(aside, 0700), 0);
    struct server *s = start(ARGS("--store", store));
    for (size_t i = 0; i < 2 * N(tricks); i++) {
        const char *id = tricks[i / 2];
        if (i % 2 == 0)
            snprintf(requests[i], sizeof requests[i],
                     "PUT /v1/sessions/%s/snapshot HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx",
                     id);
        else {
            snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
            snprintf(requests[i], sizeof requests[i],
                     "POST /v1/sessions HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
        }
        texts[i] = (struct foe_text){requests[i], strlen(requests[i])};
        struct raw_response *p = raw_ask(s, requests[i]);
        if (p->status != 400 && p->status != 404)
            fail_msg("%s\nis answered with\n%s%s", requests[i], p->head, p->body);
        assert_null(strstr(p->head, "X-Injected"));
        raw_response_free(p);
    }
    const struct foe_plan plan = {
        .n = 8, .texts = texts, .n_texts = N(texts), .at_once = 4096, .life_ms = 100};
    attack("path tricks", s, &plan);
    server_stop(s);
    /* The store stands where it was made, and beside it nothing. */
    struct dirent **names;
    assert_int_equal(scandir(aside, &names, NULL, alphasort), 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(names[i]->d_name, ((const char *const[]){".", "..", "store"})[i]);
        free(names[i]);
    }
    free(names);
    remove_tree(dir);
}

/* --- the lot ---------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_connections), cmocka_unit_test(test_slow_headers),
        cmocka_unit_test(test_slow_bodies),      cmocka_unit_test(test_bodies_that_fill_the_memory),
        cmocka_unit_test(test_slow_readers),     cmocka_unit_test(test_slow_readers_hold_no_turn),
        cmocka_unit_test(test_half_closed),      cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_smuggling),        cmocka_unit_test(test_header_floods),
        cmocka_unit_test(test_json_bombs),       cmocka_unit_test(test_path_tricks),
    };
    struct rlimit r;
    if (argc > 1) {
        attack_terms.least = 0.9;
        n_idle = strtoul(argv[1], NULL, 10);
        if (n_idle > 1000)
            attack_terms.n_slice *= 4;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        rlim_t need = descriptors();
        const struct rlimit more = {need, need}; /* root may */
        r.rlim_cur = r.rlim_max;
        if (r.rlim_max >= need || setrlimit(RLIMIT_NOFILE, &more) != 0)
            (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
