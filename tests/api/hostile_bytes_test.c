/* hostile_bytes_test.c: clients that send too much, or what could be read in two ways, and eight
 * honest ones that keep their throughput under each (attack.h; what is judged, and how to run it,
 * is said in hostile_test.c).
 *
 * What protects, and how a test shows that it is this. A twin: the same attack on a server whose
 * option is as wide as it goes does the harm. A rule has no option: what is asserted does not hold
 * in a build without it.
 *
 *   bodies that fill the memory
 *       --max-body-memory: a twin holds all of them
 *       its last eighth, for small ones: those find room when no large one does
 *   smuggling forms
 *       the scanner of http.c, then both llhttp, in its strict mode, and http.c's own checks, which
 *       refuse some forms each for itself: each form is a 400 and the end of its connection, and
 *       what it hides is not done
 *   header floods
 *       --max-header, --max-uri: a twin answers them, and holds as much of them as they send
 *       at most a hundred lines: a 431 that the twin gives, too
 *   JSON bombs
 *       the thread of low priority that reads what is above 64 KiB: most of the work is its
 *       what reading a body may allocate: a 413, and the memory
 *   path tricks
 *       what an id may be made of: a 400 or 404, and nothing beside the store */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"
#include "tests/support/client.h"
#include "tests/support/hostile.h"
#include "tests/support/process.h"
#include "tests/support/smuggled.h"
#include "tests/support/tree.h"

/* --- too many bodies -------------------------------------------------------------------------- */

/* Bodies of which the last byte never comes. Each takes BODY bytes, so that they can fill the
 * memory to its last byte. */
enum { BODY = 128 << 10, BODIES = 400, BODY_MEMORY = 8 << 20 };

/* Waits until all who are still there have sent theirs; says how many bytes are held for them. */
static double held_for(const struct server *s, struct foes *f)
{
    int64_t end = client_now_ms() + WAIT_MS;
    while (raw_metric(s, "slate_http_body_bytes") != (double)foes_open(f) * BODY)
        assert_true(client_now_ms() < end);
    return (double)foes_open(f) * BODY;
}

static void test_bodies_that_fill_the_memory(void **state)
{
    (void)state;
    struct foe_text all = hostile_post("", " ", BODY - 1, "");
    const struct foe_plan plan = {.n = BODIES, .texts = &all, .n_texts = 1, .at_once = all.n - 1};
    struct foe_text small = hostile_post("{\"prompt\":\"Once\",\"max_tokens\":1}", "", 0, "");
    struct server *s = hostile_start(
        ARGS("--max-body", "1MiB", "--max-upload", "1MiB", "--max-body-memory", "8MiB"));
    double before = hostile_resident_mib(s);
    struct foes *f = foes_start(&plan, s->port);
    double held = held_for(s, f), bounded = hostile_resident_mib(s) - before;
    assert_true(held > BODY_MEMORY / 2 &&
                held <= BODY_MEMORY); /* they have what there is for them */
    raw_expect_ask(s, all.bytes, 503, "--max-body-memory");
    raw_expect_ask(s, small.bytes, 200, "text");
    foes_stop(f, NULL);
    attack("bodies that fill the memory", s, &plan);
    server_stop(s);
    s = hostile_start(ARGS("--max-body-memory", "1TiB"));
    before = hostile_resident_mib(s);
    f = foes_start(&plan, s->port);
    double all_held = held_for(s, f), grown = hostile_resident_mib(s) - before;
    printf(
        "bodies that fill the memory: %.0f MiB are held, %.0f without the limit; the server grows "
        "by %.0f MiB, %.0f without\n",
        held / 1048576, all_held / 1048576, bounded, grown);
    assert_true(all_held == (double)BODIES * BODY);
    if (process_figures_count())
        assert_true(bounded < 30 && grown > 45);
    foes_stop(f, NULL);
    server_stop(s);
    free((void *)(uintptr_t)all.bytes);
    free((void *)(uintptr_t)small.bytes);
}

/* --- bytes that two could read in two ways ---------------------------------------------------- */

/* The scanner refuses these itself: they do not come as far as llhttp, which would, too. */
static void expect_scanned(const struct server *s)
{
    static const char *const why[][2] = {
        {"X: a\n", "does not end with CR LF"},
        {"X: a\rY: b\r\n", "does not end with CR LF"},
        {"X: a\x0bY: b\r\n", "a control byte"},
        {"X: a\r\n b\r\n", "folded lines are not allowed"},
    };
    for (size_t i = 0; i < N(why); i++) {
        char text[128];
        snprintf(text, sizeof text, "GET /livez HTTP/1.1\r\n" HOST "%s\r\n", why[i][0]);
        raw_expect_ask(s, text, 400, why[i][1]);
    }
}

static void test_smuggling(void **state)
{
    (void)state;
    struct foe_text texts[N_SMUGGLED];
    struct server *s = hostile_start(ARGS(NULL));
    expect_scanned(s);
    hostile_session(s, "smuggled");
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
    hostile_session(s, "smuggled");
    const struct foe_plan plan = {
        .n = 8, .texts = texts, .n_texts = N(texts), .at_once = 4096, .life_ms = 100};
    attack("smuggling forms", s, &plan);
    raw_expect_ask(s, GET("/v1/sessions/smuggled"), 200, "smuggled");
    server_stop(s);
}

/* --- too much of everything ------------------------------------------------------------------- */

/* Heads that do not end, a MiB each: what the server grows by while they are there. */
static double growth_under(const struct server *s, const struct foe_text *endless, bool stay)
{
    enum { MANY = 100 };
    const struct foe_plan plan = {.n = MANY, .texts = endless, .n_texts = 1, .at_once = endless->n};
    double before = hostile_resident_mib(s), most = 0;
    int64_t end = client_now_ms() + WAIT_MS;
    struct foes *f = foes_start(&plan, s->port);
    for (bool over = false; !over;) {
        over = foes_leave(f, 0, 20);
        most = fmax(most, hostile_resident_mib(s) - before);
        over = over || (stay && most > MANY * 3 / 4);
        assert_true(client_now_ms() < end);
    }
    assert_int_equal(foes_open(f), stay ? MANY : 0);
    foes_stop(f, NULL);
    return most;
}

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
    snprintf(line, sizeof line, "GET /%0*d HTTP/1.1\r\n" HOST "\r\n", LARGE / 4 - 64, 0);
    snprintf(many, sizeof many, "%s%s\r\n", begin, empty);
    sprintf(flood, "%s%s\r\n", begin, lines);
    const struct foe_text texts[] = {
        {one, strlen(one)}, {line, strlen(line)}, {many, strlen(many)}, {flood, strlen(flood)}};
    const struct foe_text endless = {one, strlen(one) - 4};
    static const int status[2][N(texts)] = {{431, 414, 431, 431}, {200, 404, 431, 431}};
    struct server *s[2] = {hostile_start(ARGS(NULL)),
                           hostile_start(ARGS("--max-header", "1MiB", "--max-uri", "512KiB",
                                              "--header-timeout", "1h"))};
    double grown[2];
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < N(texts); i++) {
            struct raw *r = raw_open(s[k]);
            raw_puts(r, texts[i].bytes);
            raw_expect(r, status[k][i]);
            raw_close(r);
        }
        grown[k] = growth_under(s[k], &endless, k == 1);
    }
    printf("header floods: the server grows by %.0f MiB, more than %.0f without the limits\n",
           grown[0], grown[1]);
    if (process_figures_count())
        assert_true(grown[0] < 30);
    server_stop(s[1]);
    const struct foe_plan plan = {
        .n = 8, .texts = texts, .n_texts = N(texts), .at_once = LARGE, .life_ms = 100};
    attack("header floods", s[0], &plan);
    server_stop(s[0]);
    sl_free(lines);
    sl_free(empty);
    free(flood);
}

static void test_json_bombs(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    const struct foe_text texts[] = {
        hostile_post("{\"prompt\":[", "0,", 2 * (size_t)MIB, "0]}"),
        hostile_post("{\"x\":[", "{},", MIB, "0]}"),
        hostile_post("{\"x\":\"", "\\u0041", MIB / 2, "\"}"),
        hostile_post("{\"x\":[", "[],", MIB, "0]}"),
        /* Not too much to be read: all of it has to be freed when it is refused. */
        hostile_post("{\"x\":[", "\"a\",", MIB, "0]}"),
    };
    static const int status[N(texts)] = {413, 413, 400, 413, 400};
    struct server *s = hostile_start(ARGS(NULL));
    double before = hostile_resident_mib(s), most = 0, most_usual = 0;
    for (size_t i = 0; i < N(texts); i++) {
        double cpu = process_cpu_s(s->pid), usual = process_cpu_usual_s(s->pid);
        process_forget_peak(s->pid);
        for (unsigned times = 0; times < 3; times++)
            raw_expect_ask(s, texts[i].bytes, status[i], "error");
        cpu = process_cpu_s(s->pid) - cpu;
        usual = process_cpu_usual_s(s->pid) - usual;
        most = fmax(most, (double)process_peak(s->pid) / 1048576 - before);
        most_usual = fmax(most_usual, usual / cpu);
    }
    printf("JSON bombs: the server grows by %.0f MiB; %.0f %% of the work at most is not of low "
           "priority\n",
           most, 100 * most_usual);
    assert_true(most_usual < (process_figures_count() ? 0.15 : 0.25));
    if (process_figures_count())
        assert_true(most < 150);
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
    struct server *s = hostile_start(ARGS("--store", store));
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
        cmocka_unit_test(test_bodies_that_fill_the_memory),
        cmocka_unit_test(test_smuggling),
        cmocka_unit_test(test_header_floods),
        cmocka_unit_test(test_json_bombs),
        cmocka_unit_test(test_path_tricks),
    };
    hostile_begin(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
