/* failover_bench.c: what it costs that any server of a fleet serves any session.
 *
 *   failover_bench [rounds] [lease, ms] [slate serve options …]      (default: 5 rounds, 15,000 ms)
 *
 * Two servers and a Redis of this machine, the embedded model. Fail-over: one server is killed
 * (kill -9), and the other one is asked at once for a turn of a session that was only in the dead
 * one's memory, and for one of a session that had a turn running there: again and again, until it
 * is given, which is when the lease has run out. Moved: sessions that the one has served are
 * brought to the other one, and back. Printed are medians, and the fastest and slowest. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/cli/limits.h"
#include "tests/support/serving.h"

#define FOLDER "build/failover-bench"

enum { OPTIONS_MAX = 24, MANY = 256, AGAIN_MS = 5 };

static size_t rounds = 5;
static unsigned long lease_ms = 15000;
static char store[64], lease[32], timeout[40];
static const char *options[OPTIONS_MAX + 1];

/* --- after a kill --------------------------------------------------------------------------------
 */

/* A turn that has begun to answer and will not end. */
static int endless_turn(const struct serving *s, const char *id)
{
    char body[256], request[512], some[4096];
    unsigned port = 0;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (sscanf(s->base, "http://127.0.0.1:%u", &port) != 1)
        serving_die("no port");
    in.sin_port = htons((uint16_t)port);
    snprintf(body, sizeof body,
             "{\"session\":\"%s\",\"prompt\":\"Once\",\"max_tokens\":1000000,\"ignore_eos\":true,"
             "\"stream\":true}",
             id);
    snprintf(request, sizeof request,
             "POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&in, sizeof in) != 0 ||
        write(fd, request, strlen(request)) != (ssize_t)strlen(request))
        serving_die("a turn cannot be asked for");
    size_t n = 0;
    do {
        ssize_t r = read(fd, some + n, sizeof some - 1 - n);
        if (r <= 0)
            serving_die("a turn does not begin");
        n += (size_t)r;
        some[n] = '\0';
    } while (!strstr(some, "data: "));
    return fd;
}

/* Milliseconds from `since` until a turn is given. */
static double until_served(struct serving *s, const char *id, double since)
{
    char body[128];
    struct answer a;
    snprintf(body, sizeof body, "{\"session\":\"%s\",\"prompt\":\"And?\",\"max_tokens\":1}", id);
    for (;;) {
        serving_ask(s, &a, "/v1/generate", body);
        if (a.status == 200)
            return 1e3 * (bench_now() - since);
        if (a.status != 409)
            serving_die("a turn failed");
        poll(NULL, 0, AGAIN_MS);
    }
}

static void bench_failover(void)
{
    struct series idle = {0}, running = {0};
    struct serving s[2];
    for (int i = 0; i < 2; i++)
        serving_start(&s[i], options);
    for (size_t r = 0; r < rounds; r++) {
        char id[2][32], body[128];
        struct answer a;
        for (int i = 0; i < 2; i++) {
            snprintf(id[i], sizeof id[i], "f%zu-%d", r, i);
            snprintf(body, sizeof body, "{\"id\":\"%s\",\"prompt\":\"Once upon a time\"}", id[i]);
            serving_must(&s[0], &a, "/v1/sessions", body);
        }
        int fd = endless_turn(&s[0], id[1]);
        double since = bench_now();
        serving_end(&s[0], SIGKILL);
        series_add(&idle, until_served(&s[1], id[0], since));
        series_add(&running, until_served(&s[1], id[1], since));
        close(fd);
        serving_start(&s[0], options);
    }
    printf("from kill -9 to an answered turn on another server, ms (%s)\n", lease + 2);
    printf("  of a session without a turn          %8.1f   (%.1f to %.1f)\n", series_median(&idle),
           series_quantile(&idle, 0), series_quantile(&idle, 1));
    printf("  of one that had a turn running       %8.0f   (%.0f to %.0f)\n\n",
           series_median(&running), series_quantile(&running, 0), series_quantile(&running, 1));
    for (int i = 0; i < 2; i++)
        serving_end(&s[i], SIGTERM);
}

/* --- moves ---------------------------------------------------------------------------------------
 */

static void make_session(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    snprintf(path, 160, "/v1/sessions");
    snprintf(body, 512, "{\"id\":\"m%zu\",\"prompt\":\"Once upon a time\"}", i);
}

static void make_pause(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    (void)body;
    snprintf(path, 160, "/v1/sessions/m%zu/pause", i);
}

static void make_resume(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    (void)body;
    snprintf(path, 160, "/v1/sessions/m%zu/resume", i);
}

/* There are more of them than a server has in memory, so each is brought from Redis each time. */
static void bench_moves(void)
{
    struct series one = {0}, many = {0};
    struct serving s[2];
    struct serving_load make = {.n = MANY, .at_once = 8, .make = make_session},
                        pause = {.n = MANY, .at_once = 8, .make = make_pause},
                        by_one = {.n = MANY, .at_once = 1, .make = make_resume},
                        by_many = {.n = MANY, .at_once = 8, .make = make_resume};
    for (int i = 0; i < 2; i++)
        serving_start(&s[i], options);
    (void)serving_run(&s[0], &make);
    (void)serving_run(&s[0], &pause);
    for (size_t r = 0; r < rounds; r++) {
        series_add(&one, MANY / serving_run(&s[1], &by_one));
        series_add(&many, MANY / serving_run(&s[0], &by_many));
    }
    printf("sessions brought from one server to another, a second\n");
    printf("  one after another                    %8.0f   (%.0f to %.0f)\n", series_median(&one),
           series_quantile(&one, 0), series_quantile(&one, 1));
    printf("  eight at once                        %8.0f   (%.0f to %.0f)\n", series_median(&many),
           series_quantile(&many, 0), series_quantile(&many, 1));
    for (int i = 0; i < 2; i++)
        serving_end(&s[i], SIGTERM);
}

int main(int argc, char **argv)
{
    unsigned port;
    size_t n = 0;
    if (argc > 1)
        rounds = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        lease_ms = strtoul(argv[2], NULL, 10);
    snprintf(lease, sizeof lease, "--lease=%lums", lease_ms);
    snprintf(timeout, sizeof timeout, "--store-timeout=%lums", lease_ms / 3);
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    pid_t redis = serving_redis(FOLDER, &port);
    snprintf(store, sizeof store, "--store=redis://127.0.0.1:%u", port);
    options[n++] = store;
    options[n++] = lease;
    options[n++] = timeout;
    options[n++] = "--sessions-in-memory=64";
    for (int i = 3; i < argc && n < OPTIONS_MAX; i++)
        options[n++] = argv[i];
    curl_global_init(CURL_GLOBAL_DEFAULT);
    bench_failover();
    bench_moves();
    kill(redis, SIGTERM);
    waitpid(redis, NULL, 0);
    return system("rm -rf " FOLDER) ? 1 : 0;
}
