/* long_bench.c: a conversation that does not end: what a turn costs the server when its session has
 * seen a million tokens, beside the same turn on one that has just begun.
 *
 *   long_bench [tokens] [rounds] [slate serve options …]     (default: 1,000,000 tokens, 9 rounds)
 *
 * A session is told prompts, turn after turn through HTTP, every turn on disk before its answer,
 * until it has seen so many tokens. Then it and a new session take turns at the same requests,
 * round by round on one server, and the server's processor time for each is compared: how much else
 * the machine does then is the same for both. Told are the medians, the ratio (worst to best
 * round), the server's memory and what it keeps on disk, after a tenth of the way and at the end.
 * Ends with 1 where the old session costs 10 % more or memory or disk have grown by a tenth of
 * the tokens' own size or more: something then grows with the conversation. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cli/limits.h"
#include "tests/support/process.h"
#include "tests/support/serving.h"

#define FOLDER "build/long-bench"

enum { PROMPT = 1000, TOLD = 8, OPTIONS_MAX = 24, TURNS = 8 /* of a session in a round */ };
static const double DEARER_MAX = 1.10;

static struct serving server;

static void make_session(const char *id)
{
    char body[64];
    struct answer a;
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
    serving_must(&server, &a, "/v1/sessions", body);
}

/* A turn of n tokens read and TOLD generated; which n tokens hangs on `nth`. */
static void turn(const char *id, size_t n, size_t nth)
{
    static char body[16 * 1024];
    struct answer a;
    size_t len = (size_t)snprintf(body, sizeof body, "{\"session\":\"%s\",\"prompt\":[", id);
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(body + len, sizeof body - len, "%s%zu", i ? "," : "",
                                1 + (nth * 31 + i * 7) % 250);
    snprintf(body + len, sizeof body - len,
             "],\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":1,\"seed\":%zu}", TOLD, nth);
    serving_must(&server, &a, "/v1/generate", body);
}

static double disk_bytes(void)
{
    unsigned long kb = 0;
    FILE *f = popen("du -sk " FOLDER, "r");
    if (!f || fscanf(f, "%lu", &kb) != 1)
        serving_die("du says nothing of " FOLDER);
    pclose(f);
    return 1024 * (double)kb;
}

struct size {
    double memory, disk;
};

static struct size size_now(void)
{
    return (struct size){(double)process_resident(server.pid), disk_bytes()};
}

/* Tells the session until it has seen n tokens. -> what there was after a tenth of them. */
static struct size grow_old(const char *id, size_t n)
{
    struct size early = {0};
    for (size_t seen = 0, nth = 0; seen < n; nth++) {
        turn(id, PROMPT, nth);
        seen += PROMPT + TOLD;
        if (!early.disk && seen >= n / 10)
            early = size_now();
    }
    return early;
}

/* The server's processor time for a turn of that session, in milliseconds. */
static double cost(const char *id, size_t round)
{
    double before = process_cpu_s(server.pid);
    for (size_t i = 0; i < TURNS; i++)
        turn(id, PROMPT, round * TURNS + i);
    return 1000 * (process_cpu_s(server.pid) - before) / TURNS;
}

static void measure(size_t rounds, struct series *old, struct series *young, struct series *ratio)
{
    for (size_t r = 0; r < rounds; r++) {
        char id[32];
        snprintf(id, sizeof id, "young%zu", r);
        make_session(id);
        double of_young, of_old;
        if (r % 2) {
            of_young = cost(id, r);
            of_old = cost("old", r);
        } else {
            of_old = cost("old", r);
            of_young = cost(id, r);
        }
        series_add(old, of_old);
        series_add(young, of_young);
        series_add(ratio, of_old / of_young);
    }
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;
    size_t rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 9;
    const char *options[OPTIONS_MAX + 1] = {"--store", "dir:" FOLDER};
    if (n < 10 * PROMPT || rounds < 1 || rounds > SERIES_MAX)
        serving_die("long_bench [tokens, from 10,000] [rounds, up to 15] [slate serve options …]");
    for (int i = 3; i < argc && i - 1 < OPTIONS_MAX; i++)
        options[i - 1] = argv[i];
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    serving_start(&server, options);
    make_session("old");
    double begin = bench_now();
    struct size early = grow_old("old", n), late = size_now();
    printf("%zu tokens in %.0f s, in turns of %d + %d\n", n, bench_now() - begin, PROMPT, TOLD);
    printf("memory %.1f MB after a tenth of them, %.1f at the end; on disk %.1f, %.1f\n",
           early.memory / 1e6, late.memory / 1e6, early.disk / 1e6, late.disk / 1e6);
    struct series old = {0}, young = {0}, ratio = {0};
    measure(rounds, &old, &young, &ratio);
    printf("a turn: %.2f ms of processor time on that session, %.2f on a new one: %.3f (%.3f to "
           "%.3f)\n",
           series_median(&old), series_median(&young), series_median(&ratio),
           series_quantile(&ratio, 0), series_quantile(&ratio, 1));
    serving_end(&server, SIGTERM);
    bool grows = late.memory - early.memory > (double)n * 4 / 10 + 4e6 ||
                 late.disk - early.disk > (double)n * 4 / 10 + 4e6;
    if (grows || series_median(&ratio) > DEARER_MAX)
        puts("something grows with the conversation");
    if (system("rm -rf " FOLDER))
        return 1;
    return grows || series_median(&ratio) > DEARER_MAX;
}
