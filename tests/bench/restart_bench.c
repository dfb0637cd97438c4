/* restart_bench.c: what coming back costs, through HTTP: a server with many sessions on disk, a
 * session's first token, sessions a second, the replay of turns.
 *
 *   restart_bench [rounds] [sessions]            (default: 7 rounds, 10,000 sessions; below build/)
 *
 * Restart: from the start of the process until /readyz says 200, after kill -9 and after SIGTERM in
 * turn, beside the same with an empty store; a tiny model, every session with a snapshot's file and
 * a turn since. First token: one turn of a session that stayed in memory, one of a session that was
 * put into the store before, in turn; the load alone is the difference of two resumes of the same
 * kinds. Restored a second: resumes of more sessions than fit into memory. Replay: the turns of a
 * session after kill -9, beside a new session that reads as many tokens. The embedded model, but
 * for the restart. Printed are medians. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cli/limits.h"
#include "tests/support/seeded.h"
#include "tests/support/serving.h"

#define FOLDER "build/restart-bench"

static size_t rounds = 7, sessions = 10000;

/* --- restart -------------------------------------------------------------------------------------
 */

static void make_session(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    snprintf(path, 160, "/v1/sessions");
    snprintf(body, 512, "{\"id\":\"s%zu\",\"prompt\":[1,2,3,4,5,6,7,8]}", i);
}

static void make_turn(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    snprintf(path, 160, "/v1/generate");
    snprintf(body, 512, "{\"session\":\"s%zu\",\"prompt\":[9,10,11],\"max_tokens\":1}", i);
}

static void bench_restart(void)
{
    static const char *const full[] = {"--model=" FOLDER "/tiny.safetensors",
                                       "--tokenizer=bytes",
                                       "--store=dir:" FOLDER "/full",
                                       "--sessions-in-memory=64",
                                       "--replay-limit=1000",
                                       NULL};
    static const char *const empty[] = {"--model=" FOLDER "/tiny.safetensors",
                                        "--tokenizer=bytes",
                                        "--store=dir:" FOLDER "/empty",
                                        "--sessions-in-memory=64",
                                        "--replay-limit=1000",
                                        NULL};
    struct seeded_shape shape = SEEDED_ODD;
    shape.vocab_size = 256; /* as the tokenizer has */
    struct seeded seeded;
    struct serving s;
    struct series with = {0}, without = {0};
    seeded_init(&seeded, &shape);
    seeded_write(&seeded, FOLDER "/tiny.safetensors");
    seeded_done(&seeded);
    serving_start(&s, full);
    struct serving_load l = {.n = sessions, .at_once = 32, .make = make_session};
    double made = serving_run(&s, &l);
    l.make = make_turn;
    double turned = serving_run(&s, &l);
    for (size_t r = 0; r < rounds; r++) {
        serving_end(&s, r % 2 ? SIGTERM : SIGKILL);
        serving_start(&s, empty);
        series_add(&without, 1e3 * s.ready_s);
        serving_end(&s, SIGTERM);
        serving_start(&s, full);
        series_add(&with, 1e3 * s.ready_s);
    }
    serving_end(&s, SIGTERM);
    printf("ready after a restart, ms\n");
    printf("  with %6zu sessions in the store     %8.0f   (%.0f to %.0f)\n", sessions,
           series_median(&with), series_quantile(&with, 0), series_quantile(&with, 1));
    printf("  with none                            %8.0f   (%.0f to %.0f)\n",
           series_median(&without), series_quantile(&without, 0), series_quantile(&without, 1));
    printf("  (made at %.0f sessions a second; %.0f turns a second, each of a session that comes "
           "from\n"
           "  the store and pushes another one out)\n\n",
           (double)sessions / made, (double)sessions / turned);
}

/* --- first token ---------------------------------------------------------------------------------
 */

enum { PAIRS = 12 };

static const char *const plain[] = {"--store=dir:" FOLDER "/plain", "--sessions-in-memory=64",
                                    "--replay-limit=100000", NULL};

static double first_token(struct serving *s, const char *id)
{
    char body[256];
    struct answer a;
    snprintf(body, sizeof body,
             "{\"session\":\"%s\",\"prompt\":\" and then the dog went home to eat its\","
             "\"max_tokens\":2,\"ignore_eos\":true,\"stream\":true}",
             id);
    serving_must(s, &a, "/v1/generate", body);
    return 1e3 * a.first_seconds;
}

static double resume(struct serving *s, const char *id)
{
    char path[160];
    struct answer a;
    snprintf(path, sizeof path, "/v1/sessions/%s/resume", id);
    serving_must(s, &a, path, "");
    return 1e3 * a.seconds;
}

static void to_store(struct serving *s, const char *id)
{
    char path[160];
    struct answer a;
    snprintf(path, sizeof path, "/v1/sessions/%s/pause", id);
    serving_must(s, &a, path, "");
}

static double median_of(double *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double x = v[i];
        size_t k = i;
        for (; k && v[k - 1] > x; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
    return v[n / 2];
}

static void bench_first_token(struct serving *s)
{
    struct series stayed = {0}, restored = {0}, load = {0}, ratio = {0};
    struct answer a;
    serving_must(s, &a, "/v1/sessions", "{\"id\":\"stays\",\"prompt\":\"Once upon a time\"}");
    serving_must(s, &a, "/v1/sessions", "{\"id\":\"goes\",\"prompt\":\"Once upon a time\"}");
    first_token(s, "stays");
    first_token(s, "goes");
    for (size_t r = 0; r < rounds; r++) {
        double hot[PAIRS], cold[PAIRS], back[PAIRS];
        for (size_t i = 0; i < PAIRS; i++) {
            to_store(s, "goes");
            hot[i] = first_token(s, "stays");
            cold[i] = first_token(s, "goes");
            to_store(s, "goes");
            back[i] = -resume(s, "stays");
            back[i] += resume(s, "goes");
        }
        double h = median_of(hot, PAIRS), c = median_of(cold, PAIRS), l = median_of(back, PAIRS);
        series_add(&stayed, h);
        series_add(&restored, c);
        series_add(&load, l);
        series_add(&ratio, (c - l) / h);
    }
    printf("time to the first token, 10 tokens read, ms\n");
    printf("  of a session that stayed             %8.2f\n", series_median(&stayed));
    printf("  of one from the store                %8.2f\n", series_median(&restored));
    printf("  the load alone                       %8.2f\n", series_median(&load));
    printf("  from the store, less the load        %8.2f of one that stayed (%.2f to %.2f)\n\n",
           series_median(&ratio), series_quantile(&ratio, 0), series_quantile(&ratio, 1));
}

/* --- sessions a second ---------------------------------------------------------------------------
 */

enum { MANY = 256 };

static void make_resume(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    (void)body;
    snprintf(path, 160, "/v1/sessions/s%zu/resume", i % MANY);
}

static void make_get(void *arg, size_t i, char path[160], char body[512])
{
    (void)arg;
    (void)i;
    (void)body;
    snprintf(path, 160, "/v1/sessions/stays/resume");
}

static void bench_restored(struct serving *s)
{
    struct series one = {0}, many = {0}, nothing = {0};
    struct serving_load make = {.n = MANY, .at_once = 16, .make = make_session},
                        a = {.n = MANY, .at_once = 1, .make = make_resume},
                        b = {.n = MANY, .at_once = 8, .make = make_resume},
                        c = {.n = MANY, .at_once = 8, .make = make_get};
    (void)serving_run(s, &make);
    (void)serving_run(s, &a); /* the first time their snapshots are written */
    for (size_t r = 0; r < rounds; r++) {
        series_add(&one, MANY / serving_run(s, &a));
        series_add(&many, MANY / serving_run(s, &b));
        series_add(&nothing, MANY / serving_run(s, &c));
    }
    printf("sessions restored a second, %d in turn, 64 in memory\n", MANY);
    printf("  one after another                    %8.0f\n", series_median(&one));
    printf("  8 at once                            %8.0f\n", series_median(&many));
    printf("  (requests that load nothing, 8 at once: %.0f)\n\n", series_median(&nothing));
}

/* --- replay --------------------------------------------------------------------------------------
 */

enum { REPLAY_TURNS = 8, REPLAY_TOKENS = 128 };

static void read_tokens(struct serving *s, struct answer *a, const char *id, size_t n)
{
    static char body[REPLAY_TURNS * REPLAY_TOKENS * 4 + 128];
    size_t at = (size_t)snprintf(body, sizeof body,
                                 "{\"session\":\"%s\",\"max_tokens\":0,\"prompt\":[", id);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(body + at, sizeof body - at, "%s%zu", i ? "," : "", 300 + i % 97);
    snprintf(body + at, sizeof body - at, "]}");
    serving_must(s, a, "/v1/generate", body);
}

static void bench_replay(struct serving *s)
{
    struct series replay = {0}, fresh = {0}, ratio = {0};
    char id[64], body[128];
    struct answer a;
    for (size_t r = 0; r < rounds; r++) {
        snprintf(id, sizeof id, "replay-%zu", r);
        snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
        serving_must(s, &a, "/v1/sessions", body);
        for (size_t i = 0; i < REPLAY_TURNS; i++)
            read_tokens(s, &a, id, REPLAY_TOKENS);
        serving_end(s, SIGKILL);
        serving_start(s, plain);
        read_tokens(s, &a, "stays", 16); /* warm */
        read_tokens(s, &a, id, 1);
        double n = answer_number(&a, "computed_tokens"), ms = answer_number(&a, "prefill_ms");
        if (n < REPLAY_TURNS * REPLAY_TOKENS)
            serving_die("the turns were not replayed");
        double x = n / ms * 1e3;
        snprintf(body, sizeof body, "{\"id\":\"%s-fresh\"}", id);
        serving_must(s, &a, "/v1/sessions", body);
        snprintf(body, sizeof body, "%s-fresh", id);
        read_tokens(s, &a, body, REPLAY_TURNS * REPLAY_TOKENS);
        double y = answer_number(&a, "computed_tokens") / answer_number(&a, "prefill_ms") * 1e3;
        series_add(&replay, x);
        series_add(&fresh, y);
        series_add(&ratio, x / y);
    }
    printf("replay of %d turns of %d tokens, tokens a second\n", REPLAY_TURNS, REPLAY_TOKENS);
    printf("  replayed                             %8.0f\n", series_median(&replay));
    printf("  read by a new session                %8.0f\n", series_median(&fresh));
    printf("  ratio                                %8.2f   (%.2f to %.2f)\n", series_median(&ratio),
           series_quantile(&ratio, 0), series_quantile(&ratio, 1));
}

int main(int argc, char **argv)
{
    struct serving s;
    if (argc > 1)
        rounds = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        sessions = strtoul(argv[2], NULL, 10);
    if (rounds < 1 || rounds > SERIES_MAX || sessions < 1)
        serving_die("usage: restart_bench [rounds 1-15] [sessions]");
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    bench_restart();
    serving_start(&s, plain);
    bench_first_token(&s);
    bench_restored(&s);
    bench_replay(&s);
    serving_end(&s, SIGTERM);
    return system("rm -rf " FOLDER) ? 1 : 0;
}
