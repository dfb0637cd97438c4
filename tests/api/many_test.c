/* many_test.c: as many sessions as a store may hold. A server over a store of N sessions and one
 * over a store of a few: a page of the list (at its begin, in its middle, at its end) and a session
 * by its name must cost the same, the memory of each stored session is bounded, lists need none,
 * and while the log of all of them is rewritten no commit waits for it.
 *
 * The stores are made by the store itself, or, in Redis, by a script.
 *
 * Both servers run beside each other and are asked in turn, and times are the shortest of many:
 * what a machine with other work adds falls on both, or on neither. How long the loop stands still,
 * and what server and Redis do that wait for each other, is measured in their processor time, for
 * the same reason.
 *
 * `many_test 1000000` (make soak) does it with so many, and prints the figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "server/store/dir.h"
#include "tests/support/node.h"
#include "tests/support/process.h"
#include "tests/support/redis.h"

enum { AHEAD = 512, PAGE = 100, SAMPLES = 40, FEW_SHARE = 20 };

static size_t n_many = 20000;

static double now_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Ids in no order, so that neither hash nor list is filled from its end. */
static void name(char dst[40], size_t i)
{
    snprintf(dst, 40, "%08llx-%zu", (unsigned long long)(i * 2654435761u % 4294967291u), i);
}

/* --- a store made by the store -----------------------------------------------------------------*/

static int no_sync(int fd)
{
    (void)fd;
    return 0;
}

static struct filling {
    uv_loop_t loop;
    struct sl_store *st;
    size_t next, n, n_waiting;
    double longest; /* that the loop stood still, s of processor time */
} f;

static void on_put(void *arg, enum sl_code code, const struct sl_error *err);

static void put_more(void)
{
    while (f.next < f.n && f.n_waiting < AHEAD) {
        char id[40];
        name(id, f.next);
        struct sl_store_head h = {.key = {.tenant = "default", .id = id, .incarnation = {7}},
                                  .created_at = 1,
                                  .used_at = 1,
                                  .metadata = {"{\"a\":1}", f.next % 8 ? 0 : 7}};
        f.next++;
        f.n_waiting++;
        sl_store_put_head(f.st, &h, on_put, NULL);
    }
}

static void on_put(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    if (code)
        fail_msg("%s", err->message);
    f.n_waiting--;
    put_more();
}

static void turn_loop(void)
{
    double begin = now_of(CLOCK_THREAD_CPUTIME_ID);
    uv_run(&f.loop, UV_RUN_ONCE);
    double took = now_of(CLOCK_THREAD_CPUTIME_ID) - begin;
    f.longest = took > f.longest ? took : f.longest;
}

static void open_folder(const char *dir, uint64_t rewrite_bytes,
                        void (*head)(void *arg, const struct sl_store_head *h))
{
    static struct sl_store_io io;
    struct sl_error err;
    struct sl_store_options opt = {.loop = &f.loop, .log_rewrite_bytes = rewrite_bytes};
    io = sl_store_io_system;
    io.fdatasync = no_sync;
    io.fsync = no_sync;
    f = (struct filling){.n = 0};
    assert_int_equal(uv_loop_init(&f.loop), 0);
    if (sl_dir_open(&f.st, dir, &opt, &io, head, NULL, &err))
        fail_msg("%s", err.message);
}

static void close_folder(void)
{
    sl_store_close(f.st, NULL, NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

static void fill_folder(const char *dir, size_t n)
{
    open_folder(dir, 0, NULL);
    f.n = n;
    put_more();
    while (f.n_waiting)
        turn_loop();
    close_folder();
}

/* --- what it costs -----------------------------------------------------------------------------*/

/* A server over a store of n sessions, in a folder or in a Redis, and the least that each took. */
static struct side {
    size_t n;
    struct node node; /* node.a is the server, whatever its store is */
    struct redis redis;
    double ready_s, begin_ms, middle_ms, end_ms, find_ms, create_ms;
    double resident, resident_after; /* bytes */
    char (*ids)[40];                 /* by their bytes */
} few, many;

static double cpu_of(pid_t pid)
{
    clockid_t clock;
    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    return now_of(clock);
}

/* Milliseconds that the server has taken so far, with what it waits for: of a clock, or of
 * processors. */
static double spent_ms(const struct side *s)
{
    if (!s->redis.pid)
        return 1e3 * now_of(CLOCK_MONOTONIC);
    return 1e3 * (cpu_of(s->redis.pid) + cpu_of(s->node.a.server->pid));
}

static void keep_least(const struct side *s, double begin_ms, double *ret_ms)
{
    double took = spent_ms(s) - begin_ms;
    *ret_ms = took < *ret_ms ? took : *ret_ms;
}

/* A page behind `after`, whose first id must be `first`. */
static void ask_page(const struct side *s, const char *after, const char *first, double *ret_ms)
{
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions?limit=%d&after=%s", PAGE, after);
    double begin_ms = spent_ms(s);
    struct reply *r = expect(get(s->node.a.client, path), 200);
    keep_least(s, begin_ms, ret_ms);
    assert_int_equal(len_at(r->json, "data"), PAGE);
    assert_string_equal(str_at(r->json, "data.0.id"), first);
    reply_free(r);
}

static void ask_all(struct side *s, size_t i)
{
    struct client *c = s->node.a.client;
    char(*ids)[40] = s->ids, brief[80];
    ask_page(s, "", ids[0], &s->begin_ms);
    ask_page(s, ids[s->n / 2], ids[s->n / 2 + 1], &s->middle_ms);
    ask_page(s, ids[s->n - 1 - PAGE], ids[s->n - PAGE], &s->end_ms);
    const char *id = ids[i * (s->n / SAMPLES)];
    double begin_ms = spent_ms(s);
    reply_free(session_get(c, id));
    keep_least(s, begin_ms, &s->find_ms);
    expect_error(get(c, "/v1/sessions/nobody"), 404, "session_not_found", "session");
    snprintf(brief, sizeof brief, "%.8s-new", id);
    begin_ms = spent_ms(s);
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", brief), 201));
    keep_least(s, begin_ms, &s->create_ms);
    reply_free(expect(del(c, session_path(brief, "")), 200));
}

/* Pages one after another, as a client goes through all of them. */
static void list_all(const struct side *s)
{
    char after[64] = "", path[200];
    for (size_t i = 0; i < 4 * SAMPLES; i++) {
        snprintf(path, sizeof path, "/v1/sessions?limit=1000&after=%s", after);
        struct reply *r = expect(get(s->node.a.client, path), 200);
        bool more = bool_at(r->json, "has_more");
        snprintf(after, sizeof after, "%s", more ? str_at(r->json, "last_id") : "");
        reply_free(r);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void begin_side(struct side *s)
{
    s->begin_ms = s->middle_ms = s->end_ms = s->find_ms = s->create_ms = 1e9;
    s->ids = sl_calloc(s->n, sizeof *s->ids);
    assert_non_null(s->ids);
    for (size_t i = 0; i < s->n; i++)
        name(s->ids[i], i);
    qsort(s->ids, s->n, sizeof *s->ids, by_text);
    client_unrecorded(s->node.a.client);
    s->resident = (double)process_resident(s->node.a.server->pid);
}

static void end_side(struct side *s, const char *what)
{
    list_all(s);
    s->resident_after = (double)process_resident(s->node.a.server->pid);
    sl_free(s->ids);
    print_message(
        "%s, %7zu sessions: ready after %.2f s, %.0f MiB resident; page of %d: %.2f ms at "
        "the begin, %.2f in the middle, %.2f at the end; one found: %.2f ms; one made: "
        "%.2f ms\n",
        what, s->n, s->ready_s, s->resident / 1048576, PAGE, s->begin_ms, s->middle_ms, s->end_ms,
        s->find_ms, s->create_ms);
}

/* The same, within what a processor's caches make of it. */
static void expect_same(double many_ms, double few_ms, const char *what)
{
    double spare_ms = few.redis.pid ? 0.1 : 0.5; /* nothing else is in processor time */
    if (process_figures_count() && many_ms > 2 * few_ms + spare_ms)
        fail_msg("%s takes %.2f ms of many sessions and %.2f of few", what, many_ms, few_ms);
}

static void compare(const char *what)
{
    begin_side(&few);
    begin_side(&many);
    for (size_t i = 0; i < SAMPLES; i++) {
        ask_all(&few, i);
        ask_all(&many, i);
    }
    end_side(&few, what);
    end_side(&many, what);
    expect_same(many.begin_ms, few.begin_ms, "the first page");
    expect_same(many.middle_ms, few.middle_ms, "a page in the middle");
    expect_same(many.end_ms, few.end_ms, "the last page");
    expect_same(many.find_ms, few.find_ms, "to find a session");
    expect_same(many.create_ms, few.create_ms, "to make a session");
}

/* Room for twice as many sessions as there are. */
static const char *place_option(const struct side *s, char ret[64])
{
    snprintf(ret, 64, "--max-sessions=%zu", 2 * s->n);
    return ret;
}

/* --- dir: --------------------------------------------------------------------------------------*/

static void start_dir(struct side *s, const char *what, size_t n)
{
    char places[64];
    *s = (struct side){.n = n};
    node_init(&s->node, what,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    place_option(s, places), "--durability=drain", NULL});
    fill_folder(s->node.dir, n);
    double begin = now_of(CLOCK_MONOTONIC);
    node_start(&s->node);
    s->ready_s = now_of(CLOCK_MONOTONIC) - begin;
    assert_true(metric(s->node.a.client, "slate_sessions") == (double)n);
}

static void test_dir(void **state)
{
    (void)state;
    enum { EACH_MAX = 1100, LISTS_MAX = 8 << 20 };
    start_dir(&few, "few", n_many / FEW_SHARE);
    start_dir(&many, "many", n_many);
    compare("dir:");
    double each = (many.resident - few.resident) / (double)(many.n - few.n);
    print_message("dir: %.0f bytes of memory for each stored session; lists left %.1f MiB\n", each,
                  (many.resident_after - many.resident) / 1048576);
    if (process_figures_count())
        assert_true(each < EACH_MAX && many.resident_after - many.resident < LISTS_MAX);
    node_done(&few.node);
    node_done(&many.node);
}

/* --- its log, rewritten ------------------------------------------------------------------------*/

static uint64_t *versions; /* of every session */
static size_t n_done, n_told;

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    if (code)
        fail_msg("%s", err->message);
    f.n_waiting--;
    n_done++;
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    const uint64_t *expected = arg;
    if (!r)
        fail_msg("%s", err->message);
    assert_int_equal(r->head->version, *expected);
    assert_int_equal(r->n_turns, *expected); /* each is found where it lies now */
    f.n_waiting--;
}

static void append_turn(size_t i)
{
    char id[40];
    name(id, i);
    static const uint32_t tokens[64];
    struct sl_store_key k = {.tenant = "default", .id = id, .incarnation = {7}};
    struct sl_store_turn t = {
        .version = ++versions[i], .tokens = tokens, .n_tokens = 64, .continuation = {"{}", 2}};
    f.n_waiting++;
    sl_store_append_turn(f.st, &k, &t, on_done, NULL);
}

static void load(size_t i)
{
    char id[40];
    name(id, i);
    struct sl_store_key k = {.tenant = "default", .id = id, .incarnation = {7}};
    f.n_waiting++;
    sl_store_load(f.st, &k, NULL, on_loaded, &versions[i]);
}

static void on_told(void *arg, const struct sl_store_head *h)
{
    size_t i = strtoul(strchr(h->key.id, '-') + 1, NULL, 10);
    (void)arg;
    n_told++;
    assert_int_equal(h->version, versions[i]);
}

/* Commits and loads one after another, and sessions that are made and deleted so that the log has
 * something to lose, until it was rewritten twice. */
static double stall_of(size_t n)
{
    struct sl_store_stats st = {0};
    struct node node; /* never started */
    node_init(&node, "rewrite", (const char *const[]){NULL});
    fill_folder(node.dir, n);
    open_folder(node.dir, 1 << 20, NULL);
    versions = sl_calloc(n, sizeof *versions);
    char *text = sl_malloc(1 << 16);
    assert_true(versions && text);
    memset(text, 'x', 1 << 16);
    n_done = 0;
    for (size_t k = 1; st.rewrites < 2; k++) {
        char id[40];
        snprintf(id, sizeof id, "brief-%zu", k);
        struct sl_store_head h = {.key = {.tenant = "default", .id = id, .incarnation = {9}},
                                  .metadata = {text, 1 << 16}};
        append_turn(0);
        append_turn(k * 7919 % n);
        load(k * 104729 % n);
        load((k / 2 + 1) * 7919 % n);
        f.n_waiting += 2;
        sl_store_put_head(f.st, &h, on_done, NULL);
        sl_store_remove(f.st, &h.key, on_done, NULL);
        while (f.n_waiting)
            turn_loop();
        sl_store_stats(f.st, &st);
    }
    sl_free(text);
    double longest = f.longest;
    assert_int_equal(st.sessions, n);
    close_folder();
    /* And it is all there. */
    n_told = 0;
    open_folder(node.dir, 0, on_told);
    assert_int_equal(n_told, n);
    close_folder();
    sl_free(versions);
    node_done(&node);
    print_message("dir:, %7zu sessions: while its log was rewritten twice beside %zu commits, the "
                  "loop stood still for %.1f ms at the longest\n",
                  n, n_done, 1e3 * longest);
    return longest;
}

static void test_rewrite(void **state)
{
    (void)state;
    double brief = stall_of(n_many / FEW_SHARE), longest = stall_of(n_many);
    if (process_figures_count() && longest > 2 * brief + 0.010)
        fail_msg("the loop stands still for %.1f ms", 1e3 * longest);
}

/* --- redis: ------------------------------------------------------------------------------------*/

/* As redis_lua.c makes a session that has read nothing. */
static void fill_redis(struct redis *to, size_t n)
{
    static const char script[] =
        "for i=tonumber(ARGV[1]),tonumber(ARGV[2]) do "
        " local id=string.format('%08x-%d',i*2654435761%4294967291,i) "
        " redis.call('HSET','slate1:{default/'..id..'}','inc',string.rep('07',16),"
        "  'ver',string.rep('0',20),'tok','0','cre','1','use','1','ttl','0','meta','',"
        "  'sv',string.rep('0',20),'rt','0','fen','0','by','1') "
        " redis.call('ZADD','slate1:all','+inf','default/'..id) "
        " redis.call('ZADD','slate1:ids:default',0,id) "
        "end";
    enum { AT_ONCE = 5000 };
    for (size_t i = 0; i < n; i += AT_ONCE) {
        char first[24], last[24];
        snprintf(first, sizeof first, "%zu", i);
        snprintf(last, sizeof last, "%zu", i + AT_ONCE < n ? i + AT_ONCE - 1 : n - 1);
        redisReply *r = redis_ask(to, "EVAL %s 0 %s %s", script, first, last);
        assert_int_not_equal(r->type, REDIS_REPLY_ERROR);
        freeReplyObject(r);
    }
}

static double redis_memory(struct redis *in)
{
    redisReply *r = redis_ask(in, "INFO memory");
    const char *p = strstr(r->str, "used_memory:");
    assert_non_null(p);
    double v = strtod(p + strlen("used_memory:"), NULL);
    freeReplyObject(r);
    return v;
}

/* Returns the bytes of Redis' memory that each session takes. */
static double start_redis(struct side *s, const char *what, size_t n)
{
    char store[100], places[64];
    *s = (struct side){.n = n};
    redis_init(&s->redis, what, NULL);
    snprintf(store, sizeof store, "--store=%s", s->redis.spec);
    double before = redis_memory(&s->redis);
    fill_redis(&s->redis, n);
    double each = (redis_memory(&s->redis) - before) / (double)n;
    double begin = now_of(CLOCK_MONOTONIC);
    api_start(&s->node.a,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    place_option(s, places), store, NULL});
    s->ready_s = now_of(CLOCK_MONOTONIC) - begin;
    return each;
}

static void stop_redis(struct side *s)
{
    api_stop(&s->node.a);
    redis_done(&s->redis);
}

static void test_redis(void **state)
{
    (void)state;
    (void)start_redis(&few, "few", n_many / FEW_SHARE);
    double each = start_redis(&many, "many", n_many);
    compare("redis:, in processor time");
    print_message("redis: %.0f bytes of Redis' memory for each session; a server holds %.1f MiB "
                  "more for many of them\n",
                  each, (many.resident - few.resident) / 1048576);
    if (process_figures_count()) /* it holds none that it was not asked for */
        assert_true(many.resident - few.resident < 16 << 20 &&
                    many.resident_after - many.resident < 8 << 20);
    stop_redis(&few);
    stop_redis(&many);
}

/* After a failed test. */
static void abandon(struct side *s)
{
    node_abandon(&s->node);
    if (s->redis.pid)
        redis_done(&s->redis);
    *s = (struct side){0};
}

static int after(void **state)
{
    (void)state;
    abandon(&few);
    abandon(&many);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_dir, after),
        cmocka_unit_test_teardown(test_rewrite, after),
        cmocka_unit_test_teardown(test_redis, after),
    };
    if (argc > 1)
        n_many = strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("many", tests, NULL, NULL);
}
