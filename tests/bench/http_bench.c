/* http_bench.c: the server under streams: tokens per second, first tokens, the time between two,
 * what a neighbour's long prompt does to a stream, and memory per session; beside llama.cpp's
 * server with the same weights where its build is named.
 *
 *   http_bench [--model FILE|DIR [--tokenizer T] [--vocabulary 256] | --shape NAME [--type T]]
 *              [--clients 1,8,32] [--prompt 22] [--tokens 64] [--rounds 5] [--seconds 10]
 *              [--threads 2] [--weights T] [--kernels NAME]
 *              [--peer-llama BUILD [--peer-model FILE.gguf] [--peer-options "…"]]
 *              [--format table|csv|json]
 *
 * What is done to them, `steady`, `burst`, `neighbour` and `idle`, is in works.h. The bound of
 * `steady` is what the engine gives with the same mix of tokens and nothing around it (direct.h),
 * here in this process.
 *
 * Servers are all running, one is measured at a time in turn, so that a machine whose speed drifts
 * is the same for all; printed are medians over rounds and the ratio of each round (Slate over
 * llama.cpp; in CSV and JSON as a server of the name "ratio"). With a peer both load the same file,
 * unless --peer-model names another of the same weights.
 *
 * --shape: a seeded model of a shape of `slate bench` as GGUF in F16 (build/http-bench/), which the
 * peer's llama-quantize brings to another type (--type Q8_0, Q4_0, Q4_K, Q6_K; all matrices alike).
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/direct.h"
#include "tests/support/serving.h"
#include "tests/support/shaped.h"
#include "tests/support/works.h"

enum { COUNTS_MAX = 8, TARGETS = 2, PATH_BYTES = 64 };

#define FOLDER "build/http-bench"

enum format { TABLE, CSV, JSON };

static struct {
    const char *model, *tokenizer, *weights, *threads, *peer, *peer_model, *peer_options, *shape,
        *type, *kernels;
    size_t clients[COUNTS_MAX], n_clients, rounds;
    struct works works;
    enum format format;
} opt = {.threads = "2",
         .clients = {1, 8, 32},
         .n_clients = 3,
         .rounds = 5,
         .works = {.prompt = 22, .tokens = 64, .seconds = 10, .seed = 1}};

struct target {
    const char *name;
    struct serving s;
};

static struct target targets[TARGETS];
static size_t n_targets;

/* --- the results -------------------------------------------------------------------------------*/

/* One line of the result: each value's rounds, for each target. */
static const struct {
    const char *name;   /* as a key; the unit is its end */
    const char *column; /* of the table */
    double scale;       /* from seconds or units */
} values[WORK_VALUES] = {
    [WORK_RATE] = {"tokens_per_s", "tokens/s", 1},
    [WORK_ENGINE] = {"engine_tokens_per_s", "engine alone", 1},
    [WORK_OF_ENGINE] = {"share_of_engine", "of engine's", 1},
    [WORK_FIRST_50] = {"first_token_p50_ms", "first p50", 1e3},
    [WORK_FIRST_99] = {"first_token_p99_ms", "first p99", 1e3},
    [WORK_GAP_50] = {"between_tokens_p50_ms", "between p50", 1e3},
    [WORK_GAP_99] = {"between_tokens_p99_ms", "between p99", 1e3},
    [WORK_UNEVEN] = {"between_tokens_p99_over_p50", "p99 / p50", 1},
    [WORK_PREFILL] = {"prefill_alone_ms", "prefill", 1e3},
    [WORK_LONGEST] = {"longest_gap_ms", "longest gap", 1e3},
    [WORK_ALONE] = {"longest_gap_alone_ms", "longest alone", 1e3},
    [WORK_USUAL] = {"usual_gap_ms", "usual gap", 1e3},
    [WORK_ABOVE] = {"share_above_state", "above state", 1},
};

struct row {
    const char *work;
    size_t clients;
    struct series cell[TARGETS][WORK_VALUES];
};

/* --- what is printed ---------------------------------------------------------------------------*/

static bool has_peer(const struct row *r, enum work_value v)
{
    return n_targets == TARGETS && r->cell[1][v].n == r->cell[0][v].n;
}

/* Slate over the peer, round by round. */
static struct series ratio(const struct row *r, enum work_value v)
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
        for (enum work_value v = 0; v < WORK_VALUES; v++) {
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
static void print_value(const struct row *r, const char *server, enum work_value v,
                        const struct series *s, double scale)
{
    const bool json = opt.format == JSON;
    static bool any;
    if (json)
        fputs(any ? ",\n " : "[", stdout);
    any = true;
    printf(json ? "{\"work\":\"%s\",\"clients\":%zu,\"server\":\"%s\",\"value\":\"%s\","
                : "%s,%zu,%s,%s,",
           r->work, r->clients, server, values[v].name);
    printf(json ? "\"median\":%.6g,\"lowest\":%.6g,\"highest\":%.6g}" : "%.6g,%.6g,%.6g\n",
           scale * series_median(s), scale * series_quantile(s, 0), scale * series_quantile(s, 1));
}

static void print_values(const struct row *rows, size_t n)
{
    if (opt.format == CSV)
        puts("work,clients,server,value,median,lowest,highest");
    for (size_t i = 0; i < n; i++)
        for (enum work_value v = 0; v < WORK_VALUES; v++) {
            for (size_t t = 0; t < n_targets; t++)
                if (rows[i].cell[t][v].n)
                    print_value(&rows[i], targets[t].name, v, &rows[i].cell[t][v], values[v].scale);
            if (rows[i].cell[0][v].n && has_peer(&rows[i], v)) {
                struct series q = ratio(&rows[i], v);
                print_value(&rows[i], "ratio", v, &q, 1);
            }
        }
    if (opt.format == JSON)
        puts("]");
}

/* --- the command -------------------------------------------------------------------------------*/

static void usage(void)
{
    fputs("usage: http_bench [--model FILE|DIR [--tokenizer T] [--vocabulary 256] |\n"
          "  --shape NAME [--type T]] [--weights T] [--kernels NAME] [--threads N]\n"
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
        opt.clients[opt.n_clients++] = number(p, WORK_CLIENTS_MAX);
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

static const struct option longs[] = {
    {"model", 1, NULL, 'm'},      {"tokenizer", 1, NULL, 'k'},  {"weights", 1, NULL, 'w'},
    {"kernels", 1, NULL, 'K'},    {"threads", 1, NULL, 't'},    {"clients", 1, NULL, 'c'},
    {"prompt", 1, NULL, 'p'},     {"tokens", 1, NULL, 'n'},     {"vocabulary", 1, NULL, 'v'},
    {"rounds", 1, NULL, 'r'},     {"seconds", 1, NULL, 's'},    {"format", 1, NULL, 'f'},
    {"peer-llama", 1, NULL, 'L'}, {"peer-model", 1, NULL, 'M'}, {"peer-options", 1, NULL, 'O'},
    {"shape", 1, NULL, 'S'},      {"type", 1, NULL, 'T'},       {NULL, 0, NULL, 0}};

static void read_options(int argc, char **argv)
{
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
        case 'K':
            opt.kernels = optarg;
            break;
        case 't':
            opt.threads = optarg;
            break;
        case 'c':
            read_clients(optarg);
            break;
        case 'p':
            opt.works.prompt = number(optarg, WORK_LONG_PROMPT);
            break;
        case 'n':
            opt.works.tokens = number(optarg, 4096);
            break;
        case 'v':
            opt.works.vocabulary = number(optarg, UINT32_MAX);
            break;
        case 'r':
            opt.rounds = number(optarg, SERIES_MAX);
            break;
        case 's':
            opt.works.seconds = (double)number(optarg, 3600);
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
    if ((opt.shape && (opt.model || opt.tokenizer || opt.works.vocabulary)) ||
        (opt.type && !(opt.shape && opt.peer)))
        usage();
    if (!opt.shape && !opt.works.vocabulary)
        opt.works.vocabulary = 256;
    if (optind != argc || opt.works.vocabulary == 1)
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

/* --shape: what --model and --tokenizer would name. */
static void make_model(void)
{
    static struct shaped made;
    static char path[PATH_BYTES];
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER))
        serving_die(FOLDER " cannot be made");
    shaped_write(&made, FOLDER, opt.shape);
    opt.tokenizer = made.tokenizer;
    opt.model = made.model;
    opt.works.vocabulary = made.vocabulary;
    if (!opt.type || !strcmp(opt.type, "F16"))
        return;
    snprintf(path, sizeof path, FOLDER "/%.32s.gguf", opt.type);
    quantise(made.model, path);
    opt.model = path;
}

/* Of all works. */
static size_t most_clients(void)
{
    size_t most = 2;
    for (size_t i = 0; i < opt.n_clients; i++)
        most = opt.clients[i] > most ? opt.clients[i] : most;
    return most;
}

static void start_peer(void)
{
    static char slots[24], room[24];
    const char *o[32] = {"-np", slots, "-c", room};
    size_t most = most_clients(), n = 4;
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

/* One round of all works with all servers. */
static void measure(struct row *rows, struct direct *engine, const char *const *options)
{
    struct row *beside = &rows[2 * opt.n_clients], *quiet = beside + 1;
    for (size_t i = 0; i < opt.n_clients; i++) {
        struct series *cell = rows[i].cell[0];
        for (size_t t = 0; t < n_targets; t++)
            work_steady(&opt.works, &targets[t].s, rows[i].clients, rows[i].cell[t]);
        direct_steady(&opt.works, engine, rows[i].clients, cell);
        const struct series *rate = &cell[WORK_RATE], *bound = &cell[WORK_ENGINE];
        series_add(&cell[WORK_OF_ENGINE], rate->value[rate->n - 1] / bound->value[bound->n - 1]);
    }
    for (size_t i = opt.n_clients; i < 2 * opt.n_clients; i++)
        for (size_t t = 0; t < n_targets; t++)
            work_burst(&opt.works, &targets[t].s, rows[i].clients, rows[i].cell[t]);
    for (size_t t = 0; t < n_targets; t++)
        work_neighbour(&opt.works, &targets[t].s, beside->cell[t]);
    work_idle(options, quiet->cell[0]);
}

int main(int argc, char **argv)
{
    static struct row rows[2 * COUNTS_MAX + 2];
    const char *o[16] = {"--store=memory"};
    size_t n_rows = 0, n = 1;
    struct direct engine;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    read_options(argc, argv);
    if (opt.shape)
        make_model();
    n += word(o + n, "--model", opt.model);
    n += word(o + n, "--tokenizer", opt.tokenizer);
    n += word(o + n, "--weights", opt.weights);
    n += word(o + n, "--kernels", opt.kernels);
    word(o + n, "--threads", opt.threads);
    targets[n_targets].name = "slate";
    serving_start(&targets[n_targets++].s, o);
    if (opt.peer)
        start_peer();
    direct_open(&engine,
                &(struct sl_config){.model = opt.model,
                                    .tokenizer = opt.tokenizer,
                                    .weights = opt.weights,
                                    .kernels = opt.kernels,
                                    .threads = number(opt.threads, SL_MAX_THREADS),
                                    .begin_token = "none"},
                most_clients());
    for (size_t i = 0; i < opt.n_clients; i++)
        rows[n_rows++] = (struct row){.work = "steady", .clients = opt.clients[i]};
    for (size_t i = 0; i < opt.n_clients; i++)
        rows[n_rows++] = (struct row){.work = "burst", .clients = opt.clients[i]};
    rows[n_rows++] = (struct row){.work = "neighbour", .clients = 1};
    rows[n_rows++] = (struct row){.work = "idle", .clients = WORK_IDLE};
    (void)work_settle(&targets[0].s);
    for (size_t r = 0; r < opt.rounds; r++)
        measure(rows, &engine, o);
    direct_close(&engine);
    for (size_t t = 0; t < n_targets; t++)
        serving_end(&targets[t].s, SIGTERM);
    if (opt.format == TABLE)
        print_table(rows, n_rows);
    else
        print_values(rows, n_rows);
    return opt.shape && system("rm -rf " FOLDER) ? 1 : 0;
}
