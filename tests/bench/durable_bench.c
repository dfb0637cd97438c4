/* durable_bench.c: what durability costs: turns per second through HTTP, with every turn on disk
 * before its answer (turn), written at the end only (drain), in a Redis of this machine that syncs
 * each (redis), there with every turn of a session on the other one of two servers, which loads it
 * first (moves), and without a store (memory).
 *
 *   durable_bench [rounds] [seconds] [slate serve options …]     (default: 5 rounds of 2 seconds)
 *
 * One server per mode, all of them running, one measured at a time in turn (turn, drain, memory,
 * turn …), so that a machine whose speed drifts is the same for all. A client has one connection
 * and one session and asks again as soon as it was answered: 8 tokens read, 8 generated. Printed
 * are medians, the ratio to memory, round by round, and the servers' processor time for each turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <curl/curl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/cli/limits.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { CLIENTS_MAX = 32, ARGS_MAX = 32 };

static const struct mode {
    const char *name, *store, *durability;
    bool two; /* servers */
} modes[] = {{"turn", "dir:build/durable-bench/turn", "turn", false},
             {"drain", "dir:build/durable-bench/drain", "drain", false},
             {"redis", "redis://127.0.0.1:16379/0", "turn", false},
             {"moves", "redis://127.0.0.1:16379/1", "turn", true},
             {"memory", "memory", "turn", false}};

struct server {
    pid_t pid[2];
    char base[2][128]; /* both the same where there is one server */
};

static void die(const char *what)
{
    fprintf(stderr, "durable_bench: %s\n", what);
    exit(1);
}

static size_t drop(void *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

static long request(const char *url, const char *body)
{
    long status = 0;
    CURL *c = curl_easy_init();
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, drop);
    if (body) {
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    }
    if (curl_easy_perform(c) == CURLE_OK)
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(h);
    curl_easy_cleanup(c);
    return status;
}

static pid_t start_redis(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("redis-server", "redis-server", "--port", "16379", "--bind", "127.0.0.1", "--dir",
               "build/durable-bench", "--appendonly", "yes", "--appendfsync", "always", "--save",
               "", "--logfile", "redis.log", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static bool is_up(void)
{
    char answer[8] = "";
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(16379), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool up = connect(fd, (struct sockaddr *)&in, sizeof in) == 0 &&
              write(fd, "PING\r\n", 6) == 6 && read(fd, answer, 5) == 5 && answer[0] == '+';
    close(fd);
    return up;
}

static void start(struct server *s, size_t which, const struct mode *m, int argc, char **argv)
{
    const char *args[ARGS_MAX + 1] = {
        "build/release/slate", "serve",      "--listen", "127.0.0.1:0",
        "--log-level",         "error",      "--store",  m->store,
        "--durability",        m->durability};
    size_t n = 10;
    int out[2];
    char line[256] = "", url[160];
    for (int i = 0; i < argc && n < ARGS_MAX; i++)
        args[n++] = argv[i];
    if (pipe(out))
        die("no pipe");
    s->pid[which] = fork();
    if (s->pid[which] == 0) {
        dup2(out[1], STDOUT_FILENO);
        execv(args[0], (char *const *)(uintptr_t)args);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (!f || !fgets(line, sizeof line, f) ||
        sscanf(line, "listening on %127s", s->base[which]) != 1)
        die("the server does not start");
    snprintf(url, sizeof url, "%s/readyz", s->base[which]);
    while (request(url, NULL) != 200)
        ;
}

/* Turns that were answered in so many seconds by so many clients. */
static double turns(const struct server *s, size_t n, double seconds)
{
    static const char *const body =
        "{\"prompt\":[300,301,302,303,304,305,306,307],\"max_tokens\":8,"
        "\"ignore_eos\":true,\"session\":\"c%zu\"}";
    CURLM *m = curl_multi_init();
    CURL *c[CLIENTS_MAX];
    char url[2][160], text[CLIENTS_MAX][256];
    size_t n_done = 0, at[CLIENTS_MAX] = {0};
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    for (size_t i = 0; i < 2; i++)
        snprintf(url[i], sizeof url[i], "%s/v1/generate", s->base[i]);
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
                die("a turn failed");
            n_done++;
            curl_multi_remove_handle(m, one);
            size_t *which;
            curl_easy_getinfo(one, CURLINFO_PRIVATE, &which);
            curl_easy_setopt(one, CURLOPT_URL, url[++*which % 2]);
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
static double cpu(const struct server *s)
{
    double sum = 0;
    for (size_t i = 0; i < 2 && s->pid[i]; i++) {
        char path[64], line[512] = "";
        unsigned long user = 0, sys = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", s->pid[i]);
        FILE *f = fopen(path, "r");
        if (!f || !fgets(line, sizeof line, f) ||
            sscanf(line, "%*d (slate) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                   &sys) != 2)
            die("no processor time");
        fclose(f);
        sum += (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
    }
    return sum;
}

static void measure(const struct server *s, size_t n, size_t rounds, double seconds)
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

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 2;
    struct server s[COUNT(modes)];
    char url[160], body[64];
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (system("rm -rf build/durable-bench && mkdir -p build/durable-bench"))
        die("build/durable-bench cannot be made");
    pid_t redis = start_redis();
    while (!is_up())
        if (waitpid(redis, NULL, WNOHANG) != 0)
            die("redis-server does not start (port 16379)");
    for (size_t i = 0; i < COUNT(modes); i++) {
        start(&s[i], 0, &modes[i], argc > 3 ? argc - 3 : 0, argv + 3);
        s[i].pid[1] = 0;
        if (modes[i].two)
            start(&s[i], 1, &modes[i], argc > 3 ? argc - 3 : 0, argv + 3);
        else
            memcpy(s[i].base[1], s[i].base[0], sizeof s[i].base[1]);
        snprintf(url, sizeof url, "%s/v1/sessions", s[i].base[0]);
        for (size_t k = 0; k < CLIENTS_MAX; k++) {
            snprintf(body, sizeof body, "{\"id\":\"c%zu\"}", k);
            if (request(url, body) != 201)
                die("a session cannot be made");
        }
    }
    printf(
        "mode     sessions  turns/s (median)  of memory (worst to best)   processor, ms a turn\n");
    measure(s, 1, rounds, seconds);
    measure(s, CLIENTS_MAX, rounds, seconds);
    for (size_t i = 0; i < COUNT(modes); i++) {
        for (size_t k = 0; k < 2 && s[i].pid[k]; k++) {
            kill(s[i].pid[k], SIGTERM);
            waitpid(s[i].pid[k], NULL, 0);
        }
    }
    kill(redis, SIGTERM);
    waitpid(redis, NULL, 0);
    return system("rm -rf build/durable-bench") ? 1 : 0;
}
