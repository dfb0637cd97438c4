/* durable_bench.c: what durability costs: turns per second through HTTP, with every turn on disk
 * before its answer (turn), written at the end only (drain), in a Redis of this machine that syncs
 * each (redis), there with every turn of a session on the other one of two servers, which loads it
 * first (moves; they share the cores), and without a store (memory).
 *
 *   durable_bench [rounds] [seconds] [--shape NAME] [slate serve options …]
 *
 * Rounds and seconds of each are 5 and 2 where nothing is said; the model is the embedded one, or a
 * seeded one of a shape of `slate bench`.
 * One server per mode, all of them running, one measured at a time in turn (turn, drain, memory,
 * turn …), so that a machine whose speed drifts is the same for all. A client has one connection
 * and one session and asks again as soon as it was answered: 8 tokens read, 8 generated. Printed
 * are medians, the ratio to memory, round by round, and the servers' processor time for each turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "server/cli/limits.h"
#include "tests/support/process.h"
#include "tests/support/serving.h"
#include "tests/support/shaped.h"

#define FOLDER "build/durable-bench"
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { CLIENTS_MAX = 32, SERVERS_MAX = 2, OPTIONS_MAX = 24 };

static const struct mode {
    const char *name;
    const char *store; /* with redis: its database */
    const char *durability;
    size_t n_servers;
    bool redis;
} modes[] = {{"turn", "dir:" FOLDER "/turn", "turn", 1, false},
             {"drain", "dir:" FOLDER "/drain", "drain", 1, false},
             {"redis", "0", "turn", 1, true},
             {"moves", "1", "turn", 2, true},
             {"memory", "memory", "turn", 1, false}};

struct servers {
    struct serving s[SERVERS_MAX];
    size_t n;
};

static size_t drop(void *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

/* argv: options besides, up to a NULL. */
static void start(struct servers *v, const struct mode *m, unsigned redis, const char *const *argv)
{
    char store[64], threads[24];
    const char *options[OPTIONS_MAX + 1] = {"--store",     store,       "--durability",
                                            m->durability, "--threads", threads};
    size_t n = 6, share = uv_available_parallelism() / m->n_servers;
    snprintf(threads, sizeof threads, "%zu", share ? share : 1);
    if (m->redis)
        snprintf(store, sizeof store, "redis://127.0.0.1:%u/%s", redis, m->store);
    else
        snprintf(store, sizeof store, "%s", m->store);
    while (*argv && n < OPTIONS_MAX)
        options[n++] = *argv++;
    for (v->n = 0; v->n < m->n_servers; v->n++)
        serving_start(&v->s[v->n], options);
}

/* Turns that were answered in so many seconds by so many clients. */
static double turns(const struct servers *v, size_t n, double seconds)
{
    static const char *const body =
        "{\"prompt\":[300,301,302,303,304,305,306,307],\"max_tokens\":8,"
        "\"ignore_eos\":true,\"session\":\"c%zu\"}";
    CURLM *m = curl_multi_init();
    CURL *c[CLIENTS_MAX];
    char url[SERVERS_MAX][160], text[CLIENTS_MAX][256];
    size_t n_done = 0, at[CLIENTS_MAX] = {0};
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    for (size_t i = 0; i < v->n; i++)
        snprintf(url[i], sizeof url[i], "%s/v1/generate", v->s[i].base);
    for (size_t i = 0; i < n; i++) {
        c[i] = curl_easy_init();
        snprintf(text[i], sizeof text[i], body, i);
        curl_easy_setopt(c[i], CURLOPT_URL, url[0]);
        curl_easy_setopt(c[i], CURLOPT_PRIVATE, &at[i]);
        curl_easy_setopt(c[i], CURLOPT_HTTPHEADER, h);
        curl_easy_setopt(c[i], CURLOPT_POSTFIELDS, text[i]);
        curl_easy_setopt(c[i], CURLOPT_WRITEFUNCTION, drop);
        curl_multi_add_handle(m, c[i]);
    }
    double begin = bench_now(), end = begin + seconds;
    int running = 1, left;
    while (running) {
        curl_multi_perform(m, &running);
        CURLMsg *msg;
        while ((msg = curl_multi_info_read(m, &left))) {
            long status = 0;
            CURL *one = msg->easy_handle;
            curl_easy_getinfo(one, CURLINFO_RESPONSE_CODE, &status);
            if (msg->data.result != CURLE_OK || status != 200)
                serving_die("a turn failed");
            n_done++;
            curl_multi_remove_handle(m, one);
            size_t *which;
            curl_easy_getinfo(one, CURLINFO_PRIVATE, &which);
            curl_easy_setopt(one, CURLOPT_URL, url[++*which % v->n]);
            if (bench_now() < end) {
                curl_multi_add_handle(m, one);
                running = 1;
            }
        }
        curl_multi_poll(m, NULL, 0, 100, NULL);
    }
    double took = bench_now() - begin;
    for (size_t i = 0; i < n; i++)
        curl_easy_cleanup(c[i]);
    curl_multi_cleanup(m);
    curl_slist_free_all(h);
    return (double)n_done / took;
}

/* Seconds that the mode's servers have used the processor, which a busy machine does not change. */
static double cpu(const struct servers *v)
{
    double sum = 0;
    for (size_t i = 0; i < v->n; i++)
        sum += process_cpu_s(v->s[i].pid);
    return sum;
}

static void measure(const struct servers *s, size_t n, size_t rounds, double seconds)
{
    struct series rate[COUNT(modes)] = {0}, ratio[COUNT(modes)] = {0}, cost[COUNT(modes)] = {0};
    for (size_t r = 0; r <= rounds; r++) {
        double v[COUNT(modes)];
        for (size_t i = 0; i < COUNT(modes); i++) {
            double before = cpu(&s[i]), begin = bench_now();
            v[i] = turns(&s[i], n, r ? seconds : 0.2);
            double n_turns = v[i] * (bench_now() - begin);
            if (r)
                series_add(&cost[i], (cpu(&s[i]) - before) * 1000 / n_turns);
        }
        for (size_t i = 0; r && i < COUNT(modes); i++) { /* round 0 warms up */
            series_add(&rate[i], v[i]);
            series_add(&ratio[i], v[i] / v[COUNT(modes) - 1]);
        }
    }
    for (size_t i = 0; i < COUNT(modes); i++)
        printf("%-8s %8zu %12.0f %9.2f  (%.2f to %.2f) %14.2f\n", modes[i].name, n,
               series_median(&rate[i]), series_median(&ratio[i]), series_quantile(&ratio[i], 0),
               series_quantile(&ratio[i], 1), series_median(&cost[i]));
}

/* The command line's, up to a NULL, with a shape's model in the place of its name. */
static void read_options(const char **ret, int argc, char **argv)
{
    static struct shaped made;
    size_t n = 0;
    int i = 3;
    if (i + 1 < argc && strcmp(argv[i], "--shape") == 0) {
        shaped_write(&made, FOLDER, argv[i + 1]);
        ret[n++] = "--model";
        ret[n++] = made.model;
        ret[n++] = "--tokenizer";
        ret[n++] = made.tokenizer;
        i += 2;
    }
    for (; i < argc && n < OPTIONS_MAX; i++)
        ret[n++] = argv[i];
}

int main(int argc, char **argv)
{
    const char *options[OPTIONS_MAX + 1] = {NULL};
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 2;
    struct servers s[COUNT(modes)];
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    read_options(options, argc, argv);
    unsigned port;
    pid_t redis = serving_redis(FOLDER, &port);
    for (size_t i = 0; i < COUNT(modes); i++) {
        start(&s[i], &modes[i], port, options);
        for (size_t k = 0; k < CLIENTS_MAX; k++) {
            char body[64];
            struct answer a;
            snprintf(body, sizeof body, "{\"id\":\"c%zu\"}", k);
            serving_must(&s[i].s[0], &a, "/v1/sessions", body);
        }
    }
    printf(
        "mode     sessions  turns/s (median)  of memory (worst to best)   processor, ms a turn\n");
    measure(s, 1, rounds, seconds);
    measure(s, CLIENTS_MAX, rounds, seconds);
    for (size_t i = 0; i < COUNT(modes); i++)
        for (size_t k = 0; k < s[i].n; k++)
            serving_end(&s[i].s[k], SIGTERM);
    kill(redis, SIGTERM);
    waitpid(redis, NULL, 0);
    return system("rm -rf " FOLDER) ? 1 : 0;
}
