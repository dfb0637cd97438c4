/* bench.c: `slate bench`: what things cost on this machine.
 *
 * --modes: one head of each family of rules over a prompt of n tokens, in the three forms of its
 * recurrence (engine/forms.h): time per token and memory against n. The recurrent form costs the
 * same per token at any length and the parallel one grows with it; between them lies the chunkwise
 * one. The recurrent form is measured as `--numerics exact` runs it, by the engine's own kernels;
 * the others stand on OpenBLAS. All forms of a row run in turn, round after round, on one thread,
 * whose own time counts; the median of the rounds is told.
 *
 * --shape: whole steps of a model (bench_steps.c). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/kernels/blas.h"
#include "engine/recur.h"
#include "server/cli/bench_steps.h"
#include "server/cli/cli.h"
#include "server/cli/values.h"
#include "server/config.h"

struct options {
    bool modes, json, csv;
    uint64_t head_size;
    uint64_t max_tokens;
    const char *kernels;
    const char *shape, *weights, *batch;
    uint64_t prompt, threads, rounds;
    const char *peer;
};

static const struct sl_option rows[] = {
    {.name = "modes",
     .type = SL_OPTION_BOOL,
     .offset = offsetof(struct options, modes),
     .dflt = "false",
     .help = "Recurrent, chunkwise and parallel form of each rule: time and memory by length.",
     .commands = SL_CMD_BENCH},
    {.name = "shape",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, shape),
     .arg = "NAME",
     .help =
         "Steps of a model of this shape, beside the limits of the machine, measured in the same "
         "run: rwkv7-0.1b, rwkv7-0.4b, rwkv7-1.5b, rwkv7-tiny.",
     .commands = SL_CMD_BENCH},
    {.name = "weights",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, weights),
     .dflt = "bf16,q8,q4",
     .arg = "LIST",
     .help = "--shape: how matrices are kept: of f32, bf16, f16, q8, q4.",
     .commands = SL_CMD_BENCH},
    {.name = "batch",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, batch),
     .dflt = "1,8,32",
     .arg = "LIST",
     .help = "--shape: how many sessions decode together; each up to 1024.",
     .commands = SL_CMD_BENCH},
    {.name = "prompt",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, prompt),
     .dflt = "512",
     .min = 0,
     .max = 4096,
     .arg = "N",
     .help = "--shape: tokens of the prompt whose reading is measured too; 0: none.",
     .commands = SL_CMD_BENCH},
    {.name = "threads",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, threads),
     .dflt = "0",
     .min = 0,
     .max = SL_MAX_THREADS,
     .arg = "N",
     .help = "--shape: threads that compute; 0: one for each processor.",
     .commands = SL_CMD_BENCH},
    {.name = "rounds",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, rounds),
     .dflt = "5",
     .min = 1,
     .max = 15,
     .arg = "N",
     .help = "--shape: how often all is measured, in turn; the median is told.",
     .commands = SL_CMD_BENCH},
    {.name = "peer-llama",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, peer),
     .arg = "BUILD",
     .help = "--shape: the folder of a llama.cpp build: its llama-batched-bench takes turns with "
             "ours, on the same weights (written below TMPDIR, gone at the end), and the ratio is "
             "told.",
     .commands = SL_CMD_BENCH},
    {.name = "head-size",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, head_size),
     .dflt = "64",
     .min = 1,
     .max = 512,
     .arg = "N",
     .help = "--modes: channels of keys and of values.",
     .commands = SL_CMD_BENCH},
    {.name = "max-tokens",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, max_tokens),
     .dflt = "2048",
     .min = 16,
     .max = 8192,
     .arg = "N",
     .help = "--modes: the longest prompt; lengths are 16, 32, 64, … up to it.",
     .commands = SL_CMD_BENCH},
    {.name = "kernels",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, kernels),
     .arg = "NAME",
     .help = "Which arithmetic kernels run (with --modes: the recurrent form); see slate serve "
             "--help.",

     .commands = SL_CMD_BENCH},
    {.name = "json",
     .type = SL_OPTION_BOOL,
     .offset = offsetof(struct options, json),
     .dflt = "false",
     .help = "JSON instead of tables: with --modes one object, with --shape a list.",
     .commands = SL_CMD_BENCH},
    {.name = "csv",
     .type = SL_OPTION_BOOL,
     .offset = offsetof(struct options, csv),
     .dflt = "false",
     .help =
         "CSV instead of tables: a line of names, then one for each rule and length (--modes) or "
         "for each row of the table (--shape), with what --json says.",
     .commands = SL_CMD_BENCH},
};

/* --- the rules ---------------------------------------------------------------------------------*/

struct rule {
    const char *name; /* of the family, as its mixers have it */
    enum sl_decay decay;
    bool delta, denominator;
};

static const struct rule rules[] = {
    {.name = "linear attention", .decay = SL_DECAY_NONE, .denominator = true},
    {.name = "RetNet", .decay = SL_DECAY_SCALAR},
    {.name = "GLA", .decay = SL_DECAY_CHANNEL},
    {.name = "DeltaNet", .decay = SL_DECAY_NONE, .delta = true},
    {.name = "gated DeltaNet", .decay = SL_DECAY_SCALAR, .delta = true},
};
enum { N_RULES = sizeof rules / sizeof *rules };

/* One head's prompt, and room for what comes out. */
struct head {
    const struct sl_kernels *kernels;
    const struct rule *rule;
    struct sl_recurrence r;
    float *memory, *scratch;
};

static void fill(float *x, size_t n, float lo, float hi, uint32_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        x[i] = lo + (hi - lo) * (float)(*seed >> 8) * 0x1p-24f;
    }
}

static size_t most_scratch(size_t n, size_t d, size_t g)
{
    size_t most = g; /* the exact one's */
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        size_t k = sl_form_scratch((enum sl_form)f, n, d, d);
        most = k > most ? k : most;
    }
    return most;
}

static enum sl_code head_init(struct head *h, const struct sl_kernels *kernels,
                              const struct rule *rule, size_t n, size_t d, struct sl_error *err)
{
    size_t g = rule->decay == SL_DECAY_CHANNEL ? n * d : n;
    size_t all = 4 * n * d + g + 2 * n + d * d + d + 16, scratch = most_scratch(n, d, g);
    uint32_t seed = 1;
    h->kernels = kernels;
    h->rule = rule;
    h->memory = sl_aligned_calloc((all + scratch) * sizeof *h->memory);
    if (!h->memory)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a prompt of %zu tokens", n);
    float *p = h->memory;
    h->scratch = p, p += (scratch + 15) / 16 * 16;
    float *q = p, *k = q + n * d, *v = k + n * d, *o = v + n * d, *log_decay = o + n * d,
          *beta = log_decay + g, *den = beta + n, *s = den + n, *z = s + d * d;
    fill(q, 3 * n * d, 0, 1, &seed);
    for (size_t i = 0; i < n * d; i++)
        k[i] /= sqrtf((float)d);
    fill(log_decay, g, -0.1f, 0, &seed);
    fill(beta, n, 0, 1, &seed);
    h->r = (struct sl_recurrence){.n = n,
                                  .n_k = d,
                                  .n_v = d,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .ld_q = d,
                                  .ld_k = d,
                                  .ld_v = d,
                                  .ld_o = d,
                                  .s = s,
                                  .z = rule->denominator ? z : NULL,
                                  .den = den,
                                  .decay = rule->decay,
                                  .g = log_decay,
                                  .ld_g = rule->decay == SL_DECAY_CHANNEL ? d : 1,
                                  .beta = rule->delta ? beta : NULL,
                                  .ld_beta = 1};
    return SL_OK;
}

static void run(struct head *h, enum sl_form form)
{
    memset(h->r.s, 0, h->r.n_k * h->r.n_v * sizeof *h->r.s);
    if (h->r.z)
        memset(h->r.z, 0, h->r.n_k * sizeof *h->r.z);
    if (form == SL_FORM_RECURRENT)
        sl_recur_exact(h->kernels, &h->r, h->scratch);
    else
        sl_form_run(form, &h->r, h->scratch);
}

/* --- measuring ---------------------------------------------------------------------------------*/

enum { LENGTHS_MAX = 16 };
enum { ROUNDS = 7, ROUND_TOKENS = 2048 /* a round runs about so many, of each form */ };

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* what else runs does not count */
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct row {
    size_t n;
    double ns[SL_FORM_COUNT];    /* per token, median */
    size_t bytes[SL_FORM_COUNT]; /* of state and scratch */
};

struct found {
    const struct rule *rule;
    struct row v[LENGTHS_MAX];
    size_t n;
};

static void measure(struct head *h, struct row *ret)
{
    double s[SL_FORM_COUNT][ROUNDS];
    size_t repeat = ROUND_TOKENS / h->r.n + 1, d = h->r.n_k;
    for (int f = 0; f < SL_FORM_COUNT; f++)
        run(h, (enum sl_form)f);
    for (size_t i = 0; i < ROUNDS; i++)
        for (int f = 0; f < SL_FORM_COUNT; f++) {
            double t = now_s();
            for (size_t j = 0; j < repeat; j++)
                run(h, (enum sl_form)f);
            s[f][i] = (now_s() - t) / (double)(repeat * h->r.n);
        }
    ret->n = h->r.n;
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        qsort(s[f], ROUNDS, sizeof s[f][0], by_size);
        ret->ns[f] = s[f][ROUNDS / 2] * 1e9;
        ret->bytes[f] =
            (d * d + (h->r.z ? d : 0) + sl_form_scratch((enum sl_form)f, h->r.n, d, d)) *
            sizeof(float);
    }
}

/* The first measured length from which on `a` is always the faster one; 0: there is none. */
static size_t wins_from(const struct row *v, size_t n, enum sl_form a, enum sl_form b)
{
    size_t from = 0;
    for (size_t i = n; i-- > 0 && v[i].ns[a] < v[i].ns[b];)
        from = v[i].n;
    return from;
}

/* --- telling -----------------------------------------------------------------------------------*/

static void tell_crossing(const struct row *v, size_t n, enum sl_form a, enum sl_form b)
{
    assert(n > 0); /* --max-tokens is at least the shortest length */
    size_t from = wins_from(v, n, a, b);
    if (from)
        printf("  from %zu tokens on the %s form is faster than the %s one\n", from,
               sl_form_names[a], sl_form_names[b]);
    else
        printf("  up to %zu tokens the %s form is not faster than the %s one\n", v[n - 1].n,
               sl_form_names[a], sl_form_names[b]);
}

static void tell(const struct rule *rule, const struct row *v, size_t n)
{
    printf("\n%s\n%8s", rule->name, "tokens");
    for (int f = 0; f < SL_FORM_COUNT; f++)
        printf(" %10s ns %9s", sl_form_names[f], "KiB");
    printf("\n");
    for (size_t i = 0; i < n; i++) {
        printf("%8zu", v[i].n);
        for (int f = 0; f < SL_FORM_COUNT; f++)
            printf(" %13.0f %9.0f", v[i].ns[f], (double)v[i].bytes[f] / 1024);
        printf("\n");
    }
    tell_crossing(v, n, SL_FORM_CHUNKWISE, SL_FORM_RECURRENT);
    tell_crossing(v, n, SL_FORM_RECURRENT, SL_FORM_PARALLEL);
    tell_crossing(v, n, SL_FORM_CHUNKWISE, SL_FORM_PARALLEL);
}

/* What stands in JSON and CSV, from the outside inwards. */

static void describe_bench(struct sl_values *to, const struct options *opt,
                           const struct sl_kernels *kernels)
{
    const struct sl_value all[] = {
        {.name = "head_size", .kind = SL_VALUE_COUNT, .count = opt->head_size},
        {.name = "kernels", .text = kernels->name},
        {.name = "openblas_core", .text = sl_blas_core()},
    };
    sl_values_add(to, all, sizeof all / sizeof *all);
}

static void describe_rule(struct sl_values *to, const struct rule *rule)
{
    sl_values_add(to, &(struct sl_value){.name = "rule", .text = rule->name}, 1);
}

static void describe_length(struct sl_values *to, const struct row *row)
{
    sl_values_add(to, &(struct sl_value){.name = "tokens", .kind = SL_VALUE_COUNT, .count = row->n},
                  1);
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        const struct sl_value form[] = {
            {.name = "ns_per_token",
             .group = sl_form_names[f],
             .kind = SL_VALUE_NUMBER,
             .number = row->ns[f],
             .digits = 1},
            {.name = "bytes",
             .group = sl_form_names[f],
             .kind = SL_VALUE_COUNT,
             .count = row->bytes[f]},
        };
        sl_values_add(to, form, sizeof form / sizeof *form);
    }
}

static void describe_crossings(struct sl_values *to, const struct row *v, size_t n)
{
    size_t chunks = wins_from(v, n, SL_FORM_CHUNKWISE, SL_FORM_RECURRENT);
    size_t recurs = wins_from(v, n, SL_FORM_RECURRENT, SL_FORM_PARALLEL);
    const struct sl_value all[] = {
        {.name = "chunkwise_beats_recurrent_from",
         .kind = SL_VALUE_COUNT,
         .null = chunks == 0,
         .count = chunks},
        {.name = "recurrent_beats_parallel_from",
         .kind = SL_VALUE_COUNT,
         .null = recurs == 0,
         .count = recurs},
    };
    sl_values_add(to, all, sizeof all / sizeof *all);
}

static void write_rule(struct sl_json_out *w, const struct found *f)
{
    struct sl_values name = {.n = 0}, crossings = {.n = 0};
    describe_rule(&name, f->rule);
    describe_crossings(&crossings, f->v, f->n);
    sl_out_open(w, '{');
    sl_values_json(w, &name);
    sl_out_key(w, "lengths");
    sl_out_open(w, '[');
    for (size_t i = 0; i < f->n; i++) {
        struct sl_values length = {.n = 0};
        describe_length(&length, &f->v[i]);
        sl_out_open(w, '{');
        sl_values_json(w, &length);
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
    sl_values_json(w, &crossings);
    sl_out_close(w, '}');
}

static void write_json(struct sl_buf *b, const struct options *opt,
                       const struct sl_kernels *kernels, const struct found *all)
{
    struct sl_json_out w = {.b = b};
    struct sl_values bench = {.n = 0};
    describe_bench(&bench, opt, kernels);
    sl_out_open(&w, '{');
    sl_values_json(&w, &bench);
    sl_out_key(&w, "modes");
    sl_out_open(&w, '[');
    for (size_t i = 0; i < N_RULES; i++)
        write_rule(&w, &all[i]);
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
    sl_buf_putc(b, '\n');
}

static void write_csv(struct sl_buf *b, const struct options *opt, const struct sl_kernels *kernels,
                      const struct found *all)
{
    for (size_t i = 0; i < N_RULES; i++)
        for (size_t k = 0; k < all[i].n; k++) {
            struct sl_values line = {.n = 0};
            describe_bench(&line, opt, kernels);
            describe_rule(&line, all[i].rule);
            describe_length(&line, &all[i].v[k]);
            describe_crossings(&line, all[i].v, all[i].n);
            sl_values_csv(b, &line);
        }
}

/* --- the command -------------------------------------------------------------------------------*/

enum { TEXT_MAX = 1 << 20 }; /* of JSON or CSV */

static enum sl_code measure_rule(const struct options *opt, const struct sl_kernels *kernels,
                                 const struct rule *rule, struct found *ret, struct sl_error *err)
{
    ret->rule = rule;
    ret->n = 0;
    for (size_t n = 16; n <= opt->max_tokens && ret->n < LENGTHS_MAX; n *= 2) {
        struct head h;
        enum sl_code c = head_init(&h, kernels, rule, n, opt->head_size, err);
        if (c)
            return c;
        measure(&h, &ret->v[ret->n++]);
        sl_free(h.memory);
    }
    return SL_OK;
}

static enum sl_code modes(const struct options *opt, struct sl_error *err)
{
    const struct sl_kernels *kernels = sl_kernels_find(opt->kernels);
    const bool tables = !opt->json && !opt->csv;
    struct found all[N_RULES];
    if (!kernels)
        return sl_fail(err, SL_E_USAGE, "--kernels %s: this machine has no such kernels",
                       opt->kernels);
    sl_blas_init();
    if (tables)
        printf("heads of %zu, one thread; recurrent: %s kernels, the others: OpenBLAS (%s)\n"
               "ns of the thread per token, median of %d rounds; KiB of state and scratch\n",
               (size_t)opt->head_size, kernels->name, sl_blas_core(), ROUNDS);
    for (size_t i = 0; i < N_RULES; i++) {
        enum sl_code c = measure_rule(opt, kernels, &rules[i], &all[i], err);
        if (c)
            return c;
        if (tables)
            tell(&rules[i], all[i].v, all[i].n);
    }
    if (tables)
        return SL_OK;
    struct sl_buf b;
    sl_buf_init(&b, TEXT_MAX);
    if (opt->json)
        write_json(&b, opt, kernels, all);
    else
        write_csv(&b, opt, kernels, all);
    return sl_values_print(&b, err);
}

int sl_cli_bench(int argc, char **argv)
{
    struct options opt = {0};
    struct sl_option_set set = {.rows = rows, .n = sizeof rows / sizeof *rows, .dst = &opt};
    struct sl_args args = {0};
    struct sl_error err;
    int rc = SL_EXIT_OK;
    enum sl_code c = sl_options_parse(&set, 1, SL_CMD_BENCH, argc, argv, &args, &err);
    if (!c && args.help) {
        sl_options_help(&set, 1, SL_CMD_BENCH);
        goto out;
    }
    if (!c && args.n_rest)
        c = sl_fail(&err, SL_E_USAGE, "'%s' is no option; see slate bench --help", args.rest[0]);
    if (!c && opt.modes == (opt.shape != NULL))
        c = sl_fail(&err, SL_E_USAGE,
                    "say what to measure: --modes or --shape; see slate bench "
                    "--help");
    if (!c && opt.json && opt.csv)
        c = sl_fail(&err, SL_E_USAGE, "--json and --csv: the output is one or the other");
    if (!c && opt.peer && !opt.shape)
        c = sl_fail(&err, SL_E_USAGE, "--peer-llama goes with --shape");
    if (!c)
        sl_cli_warn_strays("bench", &set, 1);
    if (!c && opt.modes)
        c = modes(&opt, &err);
    const struct sl_bench_steps steps = {.shape = opt.shape,
                                         .weights = opt.weights,
                                         .batch = opt.batch,
                                         .kernels = opt.kernels,
                                         .prompt = opt.prompt,
                                         .threads = opt.threads,
                                         .rounds = opt.rounds,
                                         .peer = opt.peer,
                                         .json = opt.json,
                                         .csv = opt.csv};
    if (!c && opt.shape)
        c = sl_bench_steps(&steps, &err);
    if (c)
        rc = sl_cli_fail("bench", &err);
out:
    sl_options_done(&set, 1, &args);
    return rc;
}
