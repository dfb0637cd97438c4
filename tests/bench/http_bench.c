/* http_bench.c: the server under streams: tokens per second, first tokens, the time between two,
 * what a neighbour's long prompt does to a stream, and memory per session; beside llama.cpp's
 * server with the same weights where its build is named.
 *
 *   http_bench [--model FILE|DIR [--tokenizer T] [--vocabulary 256] | --shape NAME [--type T]]
 *              [--clients 1,8,32] [--prompt 22] [--tokens 64] [--rounds 5] [--seconds 10]
 *              [--threads 2] [--weights T]
 *              [--peer-llama BUILD [--peer-model FILE.gguf] [--peer-options "…"]]
 *              [--format table|csv|json]
 *
 * steady     so many clients in a closed loop: each asks again as soon as it was answered. Their
 * first answers are of different lengths, so that they are not in step (that is `burst`), and
 *            counted is from a quarter of the time on.
 * burst      so many clients at once, from rest: the last first token; and the same with one token
 *            to generate, which is the prefill alone.
 * neighbour  one stream, then a prompt of 2,000 tokens beside it: its longest gap against its usual
 *            one, and against the longest of as many once it is alone again.
 * idle       the server's memory for sessions that nobody uses, beside their states, as a share of
 *            these.
 *
 * Servers are all running, one is measured at a time in turn, so that a machine whose speed drifts
 * is the same for all; printed are medians over rounds and the ratio of each round (Slate over
 * llama.cpp). Prompts are token ids drawn anew for each request, so that no cache has seen them.
 * With a peer both load the same file, unless --peer-model names another of the same weights.
 * --shape: a seeded model of a shape of `slate bench` as GGUF in F16 (build/http-bench/), which the
 * peer's llama-quantize brings to another type (--type Q8_0, Q4_0, Q4_K, Q6_K; all matrices alike).
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "server/cli/limits.h"
#include "server/cli/shape_gguf.h"
#include "tests/support/serving.h"
#include "tests/support/streams.h"

enum {
    COUNTS_MAX = 8,
    CLIENTS_MAX = 1024,
    TARGETS = 2,
    LONG_PROMPT = 2000,
    IDLE = 256,
    BODY_MAX = 64 * 1024,
    PATH_BYTES = 64,
    BYTES = 256 /* values of one */
};

#define FOLDER "build/http-bench"

enum format { TABLE, CSV, JSON };

static struct {
    const char *model, *tokenizer, *weights, *threads, *peer, *peer_model, *peer_options, *shape,
        *type;
    size_t clients[COUNTS_MAX], n_clients, prompt, tokens, rounds, vocabulary;
    double seconds;
    enum format format;
} opt = {.threads = "2",
         .clients = {1, 8, 32},
         .n_clients = 3,
         .prompt = 22,
         .tokens = 64,
         .rounds = 5,
         .seconds = 10};

struct target {
    const char *name;
    struct serving s;
};

static struct target targets[TARGETS];
static size_t n_targets;
static uint64_t seed = 1;

/* --- what is measured --------------------------------------------------------------------------*/

/* One line of the result: each value's rounds, for each target. */
enum value {
    RATE,
    FIRST_50,
    FIRST_99,
    GAP_50,
    GAP_99,
    PREFILL,
    LONGEST,
    ALONE,
    USUAL,
    ABOVE,
    VALUES
};

static const struct {
    const char *name;   /* as a key; the unit is its end */
    const char *column; /* of the table */
    double scale;       /* from seconds or units */
} values[VALUES] = {
    [RATE] = {"tokens_per_s", "tokens/s", 1},
    [FIRST_50] = {"first_token_p50_ms", "first p50", 1e3},
    [FIRST_99] = {"first_token_p99_ms", "first p99", 1e3},
    [GAP_50] = {"between_tokens_p50_ms", "between p50", 1e3},
    [GAP_99] = {"between_tokens_p99_ms", "between p99", 1e3},
    [PREFILL] = {"prefill_alone_ms", "prefill", 1e3},
    [LONGEST] = {"longest_gap_ms", "longest gap", 1e3},
    [ALONE] = {"longest_gap_alone_ms", "longest alone", 1e3},
    [USUAL] = {"usual_gap_ms", "usual gap", 1e3},
    [ABOVE] = {"share_above_state", "above state", 1},
};

struct row {
    const char *work;
    size_t clients;
    struct series cell[TARGETS][VALUES];
};

static void body(char *out, size_t n_prompt, size_t n_tokens)
{
    size_t n = (size_t)sprintf(out, "{\"prompt\":[");
    for (size_t i = 0; i < n_prompt; i++)
        n += (size_t)sprintf(out + n, "%s%" PRIu64, i ? "," : "",
                             1 + sl_random_next(&seed) % (opt.vocabulary - 1));
    sprintf(out + n,
            "],\"max_tokens\":%zu,\"ignore_eos\":true,\"temperature\":1,\"seed\":%" PRIu64
            ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
            n_tokens, sl_random_next(&seed) % 1000000);
}

static void begin_one(struct streams *v, size_t i, size_t n_prompt, size_t n_tokens)
{
    static char text[BODY_MAX];
    body(text, n_prompt, n_tokens);
    streams_ask(v, &v->all[i], text);
}

static size_t events(const struct streams *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->all[i].all_events;
    return n;
}

/* The stream's answer is whole: was it as long as it was to be? */
static void check_length(const struct stream *s, size_t n_tokens)
{
    if (s->tokens != n_tokens || !s->events)
        serving_die("an answer is not as long as it should be");
}

/* Each client asks again as soon as it was answered, until `until`; then, with `to_end`, all are
 * let end. First tokens of requests made from `from` on go to `first`, when they come. */
struct loop {
    struct streams v;
    struct sample first;
    double from;
    bool has_first[CLIENTS_MAX]; /* of the request that is being answered */
    size_t n_events, n_tokens;   /* of whole answers */
    size_t want[CLIENTS_MAX];    /* tokens of each client's answer */
};

static void loop_until(struct loop *l, double until, bool to_end)
{
    size_t running = 1;
    while (running && (to_end || bench_now() < until)) {
        streams_turn(&l->v);
        running = 0;
        for (size_t i = 0; i < l->v.n; i++) {
            struct stream *s = &l->v.all[i];
            if (s->events && !l->has_first[i] && s->started >= l->from)
                sample_add(&l->first, s->first - s->started);
            l->has_first[i] = s->events > 0;
            if (!s->running && s->events) {
                check_length(s, l->want[i]);
                l->want[i] = opt.tokens;
                l->n_events += s->events;
                l->n_tokens += s->tokens;
                s->events = 0;
                l->has_first[i] = false;
                if (bench_now() < until)
                    begin_one(&l->v, i, opt.prompt, opt.tokens);
            }
            running += s->running;
        }
    }
}

static void steady(struct row *row, size_t t)
{
    struct series *cell = row->cell[t];
    struct loop l = {.n_events = 0};
    struct sample gaps = {0};
    streams_init(&l.v, &targets[t].s, row->clients);
    double begin = bench_now(), from, end = begin + opt.seconds;
    l.from = begin + opt.seconds / 4;
    for (size_t i = 0; i < row->clients; i++) {
        l.want[i] = 1 + opt.tokens * i / row->clients;
        begin_one(&l.v, i, opt.prompt, l.want[i]);
    }
    loop_until(&l, l.from, false);
    for (size_t i = 0; i < row->clients; i++)
        sample_clear(&l.v.all[i].gaps);
    from = bench_now();
    size_t n = events(&l.v);
    loop_until(&l, end, false);
    end = bench_now();
    n = events(&l.v) - n;
    for (size_t i = 0; i < row->clients; i++)
        for (size_t k = 0; k < l.v.all[i].gaps.n; k++)
            sample_add(&gaps, l.v.all[i].gaps.value[k]);
    loop_until(&l, end, true);
    if (!l.first.n)
        serving_die("--seconds is too short: no request was made in the time that counts");
    series_add(&cell[FIRST_50], sample_quantile(&l.first, 0.5));
    series_add(&cell[FIRST_99], sample_quantile(&l.first, 0.99));
    series_add(&cell[RATE], (double)n * (double)l.n_tokens / (double)l.n_events / (end - from));
    series_add(&cell[GAP_50], sample_quantile(&gaps, 0.5));
    series_add(&cell[GAP_99], sample_quantile(&gaps, 0.99));
    sample_done(&gaps);
    sample_done(&l.first);
    streams_done(&l.v);
}

/* All at once; the first tokens' times to `first`. Seconds until the last answer was whole. */
static double all_at_once(const struct serving *server, size_t n, size_t n_tokens,
                          struct sample *first)
{
    struct streams v;
    size_t running = 1;
    streams_init(&v, server, n);
    double begin = bench_now();
    for (size_t i = 0; i < n; i++)
        begin_one(&v, i, opt.prompt, n_tokens);
    while (running) {
        streams_turn(&v);
        running = 0;
        for (size_t i = 0; i < n; i++)
            running += v.all[i].running;
    }
    double took = bench_now() - begin;
    for (size_t i = 0; i < n; i++)
        sample_add(first, v.all[i].first - v.all[i].started);
    streams_done(&v);
    return took;
}

static void burst(struct row *row, size_t t)
{
    struct sample first = {0}, alone = {0};
    struct series *cell = row->cell[t];
    series_add(&cell[PREFILL], all_at_once(&targets[t].s, row->clients, 1, &alone));
    all_at_once(&targets[t].s, row->clients, opt.tokens, &first);
    series_add(&cell[FIRST_50], sample_quantile(&first, 0.5));
    series_add(&cell[FIRST_99], sample_quantile(&first, 0.99));
    sample_done(&first);
    sample_done(&alone);
}

/* Until stream i of v has given n events, or ended. */
static void wait_events(struct streams *v, size_t i, size_t n)
{
    while (v->all[i].running && v->all[i].events < n)
        streams_turn(v);
}

static void neighbour(struct row *row, size_t t)
{
    enum { BEFORE = 48, STREAM = 4096 };
    struct streams v;
    struct series *cell = row->cell[t];
    streams_init(&v, &targets[t].s, 2);
    begin_one(&v, 0, opt.prompt, STREAM);
    wait_events(&v, 0, BEFORE);
    series_add(&cell[USUAL], sample_quantile(&v.all[0].gaps, 0.5));
    sample_clear(&v.all[0].gaps);
    begin_one(&v, 1, LONG_PROMPT, 1);
    while (v.all[1].running && v.all[0].running)
        streams_turn(&v);
    if (!v.all[0].running)
        serving_die("the stream ended before the long prompt was read");
    wait_events(&v, 0, v.all[0].events + 2); /* a gap that had begun belongs to it */
    series_add(&cell[LONGEST], sample_quantile(&v.all[0].gaps, 1));
    size_t n = v.all[0].gaps.n;
    sample_clear(&v.all[0].gaps);
    wait_events(&v, 0, v.all[0].events + n);
    if (!v.all[0].running)
        serving_die("the stream ended before it was alone for as long");
    series_add(&cell[ALONE], sample_quantile(&v.all[0].gaps, 1));
    streams_done(&v); /* the stream's client goes away */
}

/* --- memory of idle sessions -------------------------------------------------------------------*/

static double resident(pid_t pid)
{
    char path[64], line[256];
    double kb = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "Rss: %lf kB", &kb) != 1)
        ;
    if (!f || kb == 0)
        serving_die("/proc says nothing of the server's memory");
    fclose(f);
    return 1024 * kb;
}

static void make_idle(void *arg, size_t i, char path[160], char text[512])
{
    snprintf(path, 160, "/v1/sessions");
    snprintf(text, 512, "{\"id\":\"%s%zu\",\"prompt\":[1,2,3,4,5,6,7,8]}", (const char *)arg, i);
}

/* Once it grows no more while the server answers: a large slab becomes resident behind its start.
 */
static double resident_at_rest(struct serving *s)
{
    struct answer a;
    double last, now = resident(s->pid);
    do {
        last = now;
        for (int i = 0; i < 2000; i++)
            serving_must(s, &a, "/livez", NULL);
        now = resident(s->pid);
    } while (now > last);
    return now;
}

/* Slate alone: a session of llama.cpp is a slot, and slots are given at the start. So is Slate's
 * slab of states, which is resident from then on: what comes with a session is what it takes beside
 * its state. */
static void idle(struct row *row, const char *const *options)
{
    struct serving s;
    struct answer a;
    char warm[] = "warm", many[] = "idle";
    serving_start(&s, options);
    struct serving_load l = {.n = 64, .at_once = 32, .make = make_idle, .arg = warm};
    serving_run(&s, &l); /* what is made once only */
    double before = resident_at_rest(&s);
    l.arg = many;
    l.n = IDLE;
    serving_run(&s, &l);
    double each = (resident(s.pid) - before) / IDLE;
    serving_must(&s, &a, "/v1/models", NULL);
    series_add(&row->cell[0][ABOVE], each / answer_number(&a, "state_bytes"));
    serving_end(&s, SIGTERM);
}

/* --- what is printed ---------------------------------------------------------------------------*/

static bool has_peer(const struct row *r, enum value v)
{
    return n_targets == TARGETS && r->cell[1][v].n == r->cell[0][v].n;
}

/* Slate over the peer, round by round. */
static struct series ratio(const struct row *r, enum value v)
{
    struct series q = {.n = 0};
    for (size_t i = 0; i < r->cell[0][v].n; i++)
        series_add(&q, r->cell[0][v].value[i] / r->cell[1][v].value[i]);
    return q;
}

static void print_table(const struct row *rows, size_t n)
{
    printf("%-10s %7s  %-13s %12s %24s %24s\n", "work", "clients", "value", "Slate", "llama.cpp",
           "ratio");
    for (size_t i = 0; i < n; i++)
        for (enum value v = 0; v < VALUES; v++) {
            const struct series *a = &rows[i].cell[0][v], *b = &rows[i].cell[1][v];
            if (!a->n)
                continue;
            printf("%-10s %7zu  %-13s %12.4g", rows[i].work, rows[i].clients, values[v].column,
                   values[v].scale * series_median(a));
            if (has_peer(&rows[i], v)) {
                struct series q = ratio(&rows[i], v);
                printf(" %24.4g %8.2f (%.2f to %.2f)", values[v].scale * series_median(b),
                       series_median(&q), series_quantile(&q, 0), series_quantile(&q, 1));
            }
            putchar('\n');
        }
}

/* One value a line, or an object. */
static void print_values(const struct row *rows, size_t n, bool json)
{
    bool any = false;
    fputs(json ? "[" : "work,clients,server,value,median,lowest,highest\n", stdout);
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < n_targets; t++)
            for (enum value v = 0; v < VALUES; v++) {
                const struct series *s = &rows[i].cell[t][v];
                if (!s->n)
                    continue;
                const char *form =
                    json ? "%s{\"work\":\"%s\",\"clients\":%zu,\"server\":\"%s\",\"value\":\"%s\","
                           "\"median\":%.6g,\"lowest\":%.6g,\"highest\":%.6g}"
                         : "%s%s,%zu,%s,%s,%.6g,%.6g,%.6g\n";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                printf(form, json && any ? ",\n " : "", rows[i].work, rows[i].clients,
                       targets[t].name, values[v].name, values[v].scale * series_median(s),
                       values[v].scale * series_quantile(s, 0),
                       values[v].scale * series_quantile(s, 1));
#pragma GCC diagnostic pop
                any = true;
            }
    fputs(json ? "]\n" : "", stdout);
}

/* --- the command -------------------------------------------------------------------------------*/

static void usage(void)
{
    fputs("usage: http_bench [--model FILE|DIR [--tokenizer T] [--vocabulary 256] |\n"
          "  --shape NAME [--type T]] [--weights T] [--threads N]\n"
          "  [--clients 1,8,32] [--prompt 22] [--tokens 64] [--rounds 5] [--seconds 10]\n"
          "  [--format table|csv|json]\n"
          "  [--peer-llama BUILD [--peer-model FILE.gguf] [--peer-options \"...\"]]\n",
          stderr);
    exit(2);
}

static size_t number(const char *s, size_t max)
{
    char *end;
    size_t n = strtoul(s, &end, 10);
    if (end == s || *end || n < 1 || n > max)
        usage();
    return n;
}

static void read_clients(char *list)
{
    opt.n_clients = 0;
    for (char *save, *p = strtok_r(list, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        if (opt.n_clients == COUNTS_MAX)
            usage();
        opt.clients[opt.n_clients++] = number(p, CLIENTS_MAX);
    }
}

static enum format read_format(const char *s)
{
    static const char *const names[] = {"table", "csv", "json"};
    for (int i = 0; i < 3; i++)
        if (strcmp(s, names[i]) == 0)
            return (enum format)i;
    usage();
    return TABLE;
}

static void read_options(int argc, char **argv)
{
    static const struct option longs[] = {{"model", 1, NULL, 'm'},
                                          {"tokenizer", 1, NULL, 'k'},
                                          {"weights", 1, NULL, 'w'},
                                          {"threads", 1, NULL, 't'},
                                          {"clients", 1, NULL, 'c'},
                                          {"prompt", 1, NULL, 'p'},
                                          {"tokens", 1, NULL, 'n'},
                                          {"vocabulary", 1, NULL, 'v'},
                                          {"rounds", 1, NULL, 'r'},
                                          {"seconds", 1, NULL, 's'},
                                          {"format", 1, NULL, 'f'},
                                          {"peer-llama", 1, NULL, 'L'},
                                          {"peer-model", 1, NULL, 'M'},
                                          {"peer-options", 1, NULL, 'O'},
                                          {"shape", 1, NULL, 'S'},
                                          {"type", 1, NULL, 'T'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;)
        switch (c) {
        case 'm':
            opt.model = optarg;
            break;
        case 'k':
            opt.tokenizer = optarg;
            break;
        case 'w':
            opt.weights = optarg;
            break;
        case 't':
            opt.threads = optarg;
            break;
        case 'c':
            read_clients(optarg);
            break;
        case 'p':
            opt.prompt = number(optarg, LONG_PROMPT);
            break;
        case 'n':
            opt.tokens = number(optarg, 4096);
            break;
        case 'v':
            opt.vocabulary = number(optarg, UINT32_MAX);
            break;
        case 'r':
            opt.rounds = number(optarg, SERIES_MAX);
            break;
        case 's':
            opt.seconds = (double)number(optarg, 3600);
            break;
        case 'f':
            opt.format = read_format(optarg);
            break;
        case 'L':
            opt.peer = optarg;
            break;
        case 'M':
            opt.peer_model = optarg;
            break;
        case 'O':
            opt.peer_options = optarg;
            break;
        case 'S':
            opt.shape = optarg;
            break;
        case 'T':
            opt.type = optarg;
            break;
        default:
            usage();
        }
    if ((opt.shape && (opt.model || opt.tokenizer || opt.vocabulary)) ||
        (opt.type && !(opt.shape && opt.peer)))
        usage();
    if (!opt.shape && !opt.vocabulary)
        opt.vocabulary = 256;
    if (optind != argc || opt.vocabulary == 1)
        usage();
}

/* name and value, where there is a value; -> how many words. */
static size_t word(const char **out, const char *name, const char *value)
{
    if (!value)
        return 0;
    out[0] = name;
    out[1] = value;
    return 2;
}

static void quantise(const char *from, const char *to)
{
    char program[512];
    const char *const args[] = {program, "--pure", from, to, opt.type, NULL};
    int status;
    serving_find_llama(program, opt.peer, "llama-quantize");
    pid_t pid = serving_child(program, args, -1);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        serving_die("llama-quantize failed (does it know the --type?)");
}

/* The file's own texts, but for the single bytes that a vocabulary here has to have. The peer's has
 * them not: it ends a stream at bytes that are no UTF-8, which such a model may say. */
static void write_vocabulary(const char *path, size_t n)
{
    FILE *f = fopen(path, "w");
    for (size_t i = 1; f && i < n; i++)
        if (i <= BYTES)
            fprintf(f, "%zu b'\\x%02zx' 1\n", i, i - 1);
        else
            fprintf(f, "%zu 't%zu' %d\n", i, i, snprintf(NULL, 0, "t%zu", i));
    if (!f || fclose(f))
        serving_die(FOLDER ": no vocabulary could be written");
}

/* --shape: what --model and --tokenizer would name. */
static void make_model(void)
{
    static char path[PATH_BYTES];
    static const char f16[] = FOLDER "/F16.gguf", vocabulary[] = FOLDER "/vocabulary.txt";
    const struct sl_shape *s = sl_shape_find(opt.shape);
    struct sl_error err;
    unsigned char *file;
    size_t n;
    if (!s)
        usage();
    if (s->vocab_size <= 1 + BYTES)
        serving_die("--shape: its vocabulary has no room for all single bytes");
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    if (sl_shape_file(s, &file, &n, &err) || sl_shape_gguf(s, file, n, f16, &err))
        serving_die(err.message);
    sl_free(file);
    write_vocabulary(vocabulary, s->vocab_size);
    opt.tokenizer = vocabulary;
    opt.model = f16;
    opt.vocabulary = s->vocab_size;
    if (!opt.type || !strcmp(opt.type, "F16"))
        return;
    snprintf(path, sizeof path, FOLDER "/%.32s.gguf", opt.type);
    quantise(f16, path);
    opt.model = path;
}

static void start_peer(void)
{
    static char slots[24], room[24];
    const char *o[32] = {"-np", slots, "-c", room};
    size_t most = 2, n = 4;
    for (size_t i = 0; i < opt.n_clients; i++)
        most = opt.clients[i] > most ? opt.clients[i] : most;
    snprintf(slots, sizeof slots, "%zu", most);
    snprintf(room, sizeof room, "%zu", most * 8192);
    n += word(o + n, "-m", opt.peer_model ? opt.peer_model : opt.model);
    n += word(o + n, "-t", opt.threads);
    char *save, *text = strdup(opt.peer_options ? opt.peer_options : "");
    for (char *p = strtok_r(text, " ", &save); p && n < 31; p = strtok_r(NULL, " ", &save))
        o[n++] = p;
    targets[n_targets].name = "llama.cpp";
    serving_start_llama(&targets[n_targets++].s, opt.peer, o);
    free(text);
}

int main(int argc, char **argv)
{
    static struct row rows[2 * COUNTS_MAX + 2];
    const char *o[16] = {"--store=memory"};
    size_t n_rows = 0, n = 1;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    read_options(argc, argv);
    if (opt.shape)
        make_model();
    n += word(o + n, "--model", opt.model);
    n += word(o + n, "--tokenizer", opt.tokenizer);
    n += word(o + n, "--weights", opt.weights);
    word(o + n, "--threads", opt.threads);
    targets[n_targets].name = "slate";
    serving_start(&targets[n_targets++].s, o);
    if (opt.peer)
        start_peer();
    for (size_t i = 0; i < opt.n_clients; i++)
        rows[n_rows++] = (struct row){.work = "steady", .clients = opt.clients[i]};
    for (size_t i = 0; i < opt.n_clients; i++)
        rows[n_rows++] = (struct row){.work = "burst", .clients = opt.clients[i]};
    struct row *beside = &rows[n_rows++], *quiet = &rows[n_rows++];
    *beside = (struct row){.work = "neighbour", .clients = 1};
    *quiet = (struct row){.work = "idle", .clients = IDLE};
    for (size_t r = 0; r < opt.rounds; r++) {
        for (size_t i = 0; i < 2 * opt.n_clients; i++)
            for (size_t t = 0; t < n_targets; t++)
                (i < opt.n_clients ? steady : burst)(&rows[i], t);
        for (size_t t = 0; t < n_targets; t++)
            neighbour(beside, t);
        idle(quiet, o);
    }
    for (size_t t = 0; t < n_targets; t++)
        serving_end(&targets[t].s, SIGTERM);
    if (opt.format == TABLE)
        print_table(rows, n_rows);
    else
        print_values(rows, n_rows, opt.format == JSON);
    return opt.shape && system("rm -rf " FOLDER) ? 1 : 0;
}
