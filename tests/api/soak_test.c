/* soak_test.c: mixed traffic for a long time: memory stays flat, a request costs at the end what it
 * cost at the beginning, what was remembered is remembered, and everything comes back.
 *
 * CLIENTS clients, each with SESSIONS sessions of its own, more of them than there are places in
 * memory: turns whole and streamed, under a key, cut off by a client that hangs up, forks,
 * creations and deletions, pauses, snapshots out and in, lists, requests that keep nothing,
 * requests that are wrong. A canary is asked the same in every window. First one server has all of
 * it, then three that share a Redis, behind HAProxy.
 *
 * SLATE_SOAK_SECONDS (`make soak-hour`: 3,600) says for how long, half of it for each. The time is
 * divided into windows; of each are told: requests, their median time and that of the slowest of a
 * hundred, processor time per request, resident memory, descriptors. The first third is the warming
 * up. How long a request takes hangs on what else the machine does: only long runs are judged by
 * it. */
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
#include "tests/support/balancer.h"
#include "tests/support/fleet.h"
#include "tests/support/node.h"
#include "tests/support/process.h"

enum {
    CLIENTS = 8,
    SESSIONS = 8,
    WINDOWS = 12,
    WARM = WINDOWS / 3,
    LONG_S = 300,
    SECONDS = 8,
    REQUESTS_MIN = 25,
    MEDIAN_SPARE_MS = 1,
    SLOW_SPARE_MS = 5
};

struct soaker {
    bool exists[SESSIONS];
    unsigned n_lives[SESSIONS]; /* of each: a new one has a new name */
    char key[32];
    struct call *call; /* NULL: none is under way */
    double since_ms;
    size_t session; /* what it is about */
    int status;     /* that is expected */
    bool creates, deletes;
    struct bytes kept; /* a snapshot; p NULL: none */
    bool keeps;        /* the answer is one */
};

struct window {
    size_t n, resident, files;
    double cpu_s, median_ms, slow_ms;
};

static struct node node;
static struct fleet fleet;
static struct balancer *balancer; /* NULL: the node it is */
static struct client *front;
static struct soaker soakers[CLIENTS];
static uint64_t random_state = 88172645463325252u;
static unsigned n_seeds;
static struct window windows[WINDOWS];
static struct {
    double *ms;
    size_t n, room;
} times;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % below;
}

static double now_ms(void) /* finer than client_now_ms(): drift is judged by it */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static struct client *client(void)
{
    return balancer ? front : node.a.client;
}

static size_t n_servers(void)
{
    return balancer ? FLEET_NODES : 1;
}

static struct client *server_client(size_t i)
{
    return balancer ? fleet_at(&fleet, (unsigned)i) : node.a.client;
}

static void until_all(const char *metric, double value)
{
    for (size_t i = 0; i < n_servers(); i++)
        until_metric(server_client(i), metric, value);
}

/* Of all servers: what they have, and the time of processors so far. */
static struct window figures(void)
{
    struct window w = {.n = 0};
    for (size_t i = 0; i < n_servers(); i++) {
        pid_t pid = (balancer ? fleet.node[i].server : node.a.server)->pid;
        w.resident += process_resident(pid);
        w.files += process_files(pid);
        w.cpu_s += process_cpu_s(pid);
    }
    return w;
}

/* --- requests ----------------------------------------------------------------------------------*/

static const char *name(const struct soaker *k, size_t session)
{
    static char ring[4][32];
    static unsigned turn;
    char *dst = ring[turn++ % 4];
    snprintf(dst, sizeof ring[0], "c%td-%zu-%u", k - soakers, session, k->n_lives[session]);
    return dst;
}

static struct call *ask(const char *method, const char *path)
{
    return call_start(client(), method, path, NULL, NULL, 0);
}

static void turn(struct soaker *k, bool stream, bool keyed)
{
    char body[256], lines[64];
    unsigned seed = ++n_seeds;
    snprintf(body, sizeof body,
             "{\"session\":\"%s\",\"prompt\":\"say %u\",\"seed\":%u,\"max_tokens\":%d,"
             "\"stream\":%s}",
             name(k, k->session), seed, seed, (int)draw(12), stream ? "true" : "false");
    snprintf(lines, sizeof lines, "Idempotency-Key: soak-%u", seed);
    k->call =
        call_start(client(), "POST", "/v1/generate", keyed ? lines : NULL, body, strlen(body));
}

static void make(struct soaker *k)
{
    size_t from = draw(SESSIONS);
    const char *id = name(k, k->session);
    k->status = 201;
    k->creates = true;
    if (k->exists[from])
        k->call = call_post(client(), session_path(name(k, from), "/fork"), "{'id':'%s'}", id);
    else if (k->kept.p)
        k->call = call_start(client(), "PUT", session_path(id, "/snapshot"),
                             "Content-Type: application/octet-stream", k->kept.p, k->kept.n);
    else
        k->call = call_post(client(), "/v1/sessions", "{'id':'%s','prompt':'hello'}", id);
}

static void other(struct soaker *k)
{
    switch (draw(5)) {
    case 0:
        k->call = ask("GET", "/v1/sessions?limit=20");
        break;
    case 1:
        k->call = call_post(client(), "/v1/generate", "{'prompt':'once','max_tokens':6}");
        break;
    case 2:
        k->call = call_post(client(), "/v1/chat/completions",
                            "{'messages':[{'role':'user','content':'hi'}],'max_tokens':4}");
        break;
    case 3:
        k->status = 400;
        k->call = call_post(client(), "/v1/generate", "{'prompt':'x','max_tokens':'many'}");
        break;
    default:
        k->status = 404;
        k->call = call_post(client(), "/v1/generate", "{'session':'nobody','prompt':'x'}");
    }
}

static void with_session(struct soaker *k)
{
    const char *id = name(k, k->session);
    uint64_t what = draw(20);
    if (what < 10) {
        turn(k, what < 5, what == 9);
    } else if (what < 12) {
        k->call = pause_start(client(), id);
    } else if (what < 14) {
        k->keeps = true;
        k->call = ask("GET", session_path(id, "/snapshot"));
    } else if (what < 16) {
        k->deletes = true;
        k->call = ask("DELETE", session_path(id, ""));
    } else {
        k->call = ask("GET", session_path(id, ""));
    }
}

/* Hangs up in the middle: what was begun is rolled back, or was done. */
static void hang_up(struct soaker *k)
{
    turn(k, true, false);
    call_until_events(k->call, 1);
    call_abort(k->call);
    k->call = NULL;
    until_free(client(), name(k, k->session));
}

static void begin(struct soaker *k)
{
    k->status = 200;
    k->creates = k->deletes = k->keeps = false;
    k->session = draw(SESSIONS);
    if (k->exists[k->session] && draw(40) == 0)
        hang_up(k);
    k->since_ms = now_ms();
    if (draw(6) == 0)
        other(k);
    else if (k->exists[k->session])
        with_session(k);
    else
        make(k);
}

static void note_time(double ms)
{
    if (times.n == times.room) {
        times.room = 2 * times.room + 1000;
        times.ms = realloc(times.ms, times.room * sizeof *times.ms);
        assert_non_null(times.ms);
    }
    times.ms[times.n++] = ms;
}

static void end(struct soaker *k)
{
    struct reply *r = expect(call_finish(k->call), k->status);
    note_time(now_ms() - k->since_ms);
    k->call = NULL;
    if (k->keeps) {
        sl_free(k->kept.p);
        k->kept = (struct bytes){.p = sl_malloc(r->n_body), .n = r->n_body};
        assert_non_null(k->kept.p);
        memcpy(k->kept.p, r->body, r->n_body);
    }
    if (k->creates)
        k->exists[k->session] = true;
    if (k->deletes) {
        k->exists[k->session] = false;
        k->n_lives[k->session]++;
    }
    reply_free(r);
}

/* --- windows -----------------------------------------------------------------------------------*/

static bool is_over(const struct reply *r, void *arg)
{
    (void)arg;
    return r->over;
}

static void run_until(int64_t ms)
{
    while (client_now_ms() < ms || times.n < REQUESTS_MIN) {
        for (size_t i = 0; i < CLIENTS; i++)
            if (!soakers[i].call)
                begin(&soakers[i]);
        call_until(soakers[draw(CLIENTS)].call, is_over, NULL);
        for (size_t i = 0; i < CLIENTS; i++)
            if (call_reply(soakers[i].call)->over)
                end(&soakers[i]);
    }
}

static void settle(void)
{
    for (size_t i = 0; i < CLIENTS; i++)
        if (soakers[i].call)
            end(&soakers[i]);
    until_all("slate_requests_running", 0);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The same answer as ever. */
static void ask_canary(size_t window)
{
    static char first[2048];
    char id[16];
    struct gen g;
    snprintf(id, sizeof id, "sung%zu", window);
    reply_free(expect(post(client(), "/v1/sessions/canary/fork", "{'id':'%s'}", id), 201));
    turn_of(client(), &g, id, "sing", 5);
    if (!first[0])
        snprintf(first, sizeof first, "%s", g.o.text);
    assert_string_equal(g.o.text, first);
    gen_done(&g);
    reply_free(expect(get(client(), session_path(id, "/memory")), 200)); /* one at a time */
    reply_free(expect(del(client(), session_path(id, "")), 200));
}

static void measure(struct window *w, double cpu_before)
{
    struct window now = figures();
    qsort(times.ms, times.n, sizeof *times.ms, compare);
    *w = (struct window){.n = times.n,
                         .resident = now.resident,
                         .files = now.files,
                         .cpu_s = now.cpu_s - cpu_before,
                         .median_ms = times.ms[times.n / 2],
                         .slow_ms = times.ms[times.n * 99 / 100]};
    times.n = 0;
    print_message("%6zu requests, median %.2f ms, one in 100 over %.1f ms, %.2f ms of processor "
                  "each, %.1f MB, %zu descriptors\n",
                  w->n, w->median_ms, w->slow_ms, 1000 * w->cpu_s / (double)w->n,
                  (double)w->resident / 1e6, w->files);
}

static double mean(size_t from, size_t to, double (*of)(const struct window *w))
{
    double sum = 0;
    for (size_t i = from; i < to; i++)
        sum += of(&windows[i]);
    return sum / (double)(to - from);
}

static double cpu_of(const struct window *w)
{
    return w->cpu_s / (double)w->n;
}

static double memory_of(const struct window *w)
{
    return (double)w->resident;
}

static double median_of(const struct window *w)
{
    return w->median_ms;
}

static double slow_of(const struct window *w)
{
    return w->slow_ms;
}

/* The last third beside the one after the warming up. */
static void judge(double seconds)
{
    size_t last = WINDOWS - WARM;
    double memory[2] = {mean(WARM, last, memory_of), mean(last, WINDOWS, memory_of)};
    double cpu[2] = {mean(WARM, last, cpu_of), mean(last, WINDOWS, cpu_of)};
    double ms[2] = {mean(WARM, last, median_of), mean(last, WINDOWS, median_of)};
    double slow[2] = {mean(WARM, last, slow_of), mean(last, WINDOWS, slow_of)};
    print_message("memory %.1f -> %.1f MB, processor %.2f -> %.2f ms a request, median %.2f -> "
                  "%.2f ms, one in 100 over %.1f -> %.1f ms\n",
                  memory[0] / 1e6, memory[1] / 1e6, 1000 * cpu[0], 1000 * cpu[1], ms[0], ms[1],
                  slow[0], slow[1]);
    if (process_figures_count())
        assert_true(memory[1] < memory[0] * 1.05 + 4e6);
    if (seconds >= LONG_S) {
        assert_true(cpu[1] < cpu[0] * 1.3);
        assert_true(ms[1] < ms[0] * 1.2 + MEDIAN_SPARE_MS);
        assert_true(slow[1] < slow[0] * 1.3 + SLOW_SPARE_MS);
    }
}

static void everything_comes_back(size_t files)
{
    for (size_t i = 0; i < CLIENTS; i++)
        for (size_t s = 0; s < SESSIONS; s++)
            if (soakers[i].exists[s])
                reply_free(expect(del(client(), session_path(name(&soakers[i], s), "")), 200));
    reply_free(expect(del(client(), "/v1/sessions/canary"), 200));
    for (size_t i = 0; i < n_servers(); i++) {
        struct reply *r = expect(get(server_client(i), "/v1/sessions"), 200);
        assert_int_equal(len_at(r->json, "data"), 0);
        reply_free(r);
    }
    if (!balancer) { /* in a fleet a server may not have heard yet that others deleted something */
        until_all("slate_slots_used", 0);
        until_all("slate_sessions", 0);
    }
    until_all("slate_http_requests_in_flight", 1); /* the scrape itself */
    until_all("slate_http_body_bytes", 0);
    assert_true(figures().files <= files + n_servers() * CLIENTS);
}

static void soak(void)
{
    const char *text = getenv("SLATE_SOAK_SECONDS");
    double seconds = (text ? strtod(text, NULL) : SECONDS) / 2;
    assert_true(seconds > 0);
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'canary','prompt':'a song'}"), 201));
    size_t files = figures().files;
    int64_t begin_ms = client_now_ms();
    for (size_t w = 0; w < WINDOWS; w++) {
        double cpu = figures().cpu_s;
        run_until(begin_ms + (int64_t)(seconds * 1000 * (double)(w + 1) / WINDOWS));
        settle();
        measure(&windows[w], cpu);
        ask_canary(w);
    }
    judge(seconds);
    everything_comes_back(files);
}

#define OPTIONS                                                                                    \
    "--tokenizer=bytes", "--model", seeded_bytes_model(), "--chat-template=plain",                 \
        "--sessions-in-memory=24", "--replay-limit=200"

static void on_a_server(void **state)
{
    (void)state;
    node_init(&node, "node", (const char *const[]){OPTIONS, NULL});
    node_start(&node);
    client_unrecorded(client());
    soak();
}

static void on_a_fleet(void **state)
{
    unsigned ports[FLEET_NODES];
    (void)state;
    fleet_start(&fleet, "soak",
                (const char *const[]){OPTIONS, "--lease=15s", "--store-timeout=5s", NULL});
    for (unsigned i = 0; i < FLEET_NODES; i++)
        ports[i] = fleet.node[i].port;
    balancer = balancer_start(BALANCER_HAPROXY_FLEET, ports);
    front = client_open(balancer_base(balancer));
    client_unrecorded(front);
    soak();
}

static int stop(void **state)
{
    (void)state;
    for (size_t i = 0; i < CLIENTS; i++) {
        sl_free(soakers[i].kept.p);
        soakers[i] = (struct soaker){.call = NULL};
    }
    free(times.ms);
    memset(&times, 0, sizeof times);
    client_close(front);
    front = NULL;
    if (balancer)
        balancer_stop(balancer);
    balancer = NULL;
    if (fleet.redis.pid)
        fleet_abandon(&fleet);
    memset(&fleet, 0, sizeof fleet);
    node_abandon(&node);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(on_a_server, stop),
        cmocka_unit_test_teardown(on_a_fleet, stop),
    };
    return cmocka_run_group_tests_name("soak", tests, NULL, NULL);
}
