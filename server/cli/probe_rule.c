/* probe_rule.c: `slate probe rule`: the memory rules themselves, without a model.
 *
 * Random keys of length 1 and Gaussian values are written into one head of each rule, one pair a
 * token, and some of them are asked for (slate/probe.h):
 *
 *   fresh        n pairs, each key once. What is lost is lost to the other pairs, and to decay.
 *   overwritten  n pairs, then n again with the same keys and other values. Asked for is the new
 *                value: a rule that only adds gives the sum of both, one that erases the new one.
 *
 * Error: the root of Σ|v̂ - v|² / Σ|v|² over what was asked: 0 is exact, 1 as good as nothing (a
 * memory that answers zero). Beside it the share of answers to which another stored value is
 * nearer, and of those to which the old value is. All sequences come from one seed: the same
 * numbers every time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "server/cli/cli.h"
#include "server/cli/probe.h"
#include "server/config.h"
#include "slate/probe.h"

enum {
    RULES_MAX = 16,
    POINTS_MAX = 16,
    PAIRS_MAX = 16384,
    ASKED_MAX = 64,
    N_SIZES = 3,
    JSON_MAX = 4 << 20
};

static const size_t sizes[N_SIZES] = {32, 64, 128};

struct options {
    bool json;
    uint64_t max_pairs, trials, seed;
    const char *svg, *kernels;
};

static const struct sl_option rows[] = {
    {.name = "max-pairs",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, max_pairs),
     .dflt = "1024",
     .min = 1,
     .max = PAIRS_MAX,
     .arg = "N",
     .help = "The most pairs; numbers are 1, 4, 16, 32, 64, … up to it.",
     .commands = SL_CMD_PROBE},
    {.name = "trials",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, trials),
     .dflt = "4",
     .min = 1,
     .max = 10000,
     .arg = "N",
     .help = "Sequences for each point.",
     .commands = SL_CMD_PROBE},
    {.name = "seed",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, seed),
     .dflt = "1",
     .min = 0,
     .max = 4294967295.0,
     .arg = "N",
     .help = "Of the keys and values.",
     .commands = SL_CMD_PROBE},
    {.name = "kernels",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, kernels),
     .arg = "NAME",
     .help = "Which arithmetic kernels run; see slate serve --help.",
     .commands = SL_CMD_PROBE},
    {.name = "json",
     .type = SL_OPTION_BOOL,
     .offset = offsetof(struct options, json),
     .dflt = "false",
     .help = "One JSON object instead of tables.",
     .commands = SL_CMD_PROBE},
    {.name = "svg",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, svg),
     .arg = "FILE",
     .help = "Charts of all tables, to a file.",
     .commands = SL_CMD_PROBE},
};

enum { FRESH, OVERWRITTEN, N_KINDS };
static const char *const kinds[N_KINDS] = {"fresh", "overwritten"};

/* One rule at one size, by number of pairs. */
struct curve {
    double error[N_KINDS][POINTS_MAX];
    double other[N_KINDS][POINTS_MAX]; /* nearer: another's value; the old value */
    size_t values;                     /* that the memory is made of */
};

struct probe {
    const struct options *opt;
    double pairs[POINTS_MAX];
    size_t n_points, n_rules;
    struct curve curves[N_SIZES][RULES_MAX];
    float *keys, *value[2]; /* [max_pairs][d]: the pairs of a sequence, the old and the new */
    size_t done;
};

/* --- sequences ---------------------------------------------------------------------------------*/

static void gaussian(float *x, size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        double r = sqrt(-2 * log(sl_random_unit(seed)));
        x[i] = (float)(r * cos(6.283185307179586477 * sl_random_unit(seed)));
    }
}

static double distance(const float *a, const float *b, size_t d)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

static void make_sequence(struct probe *p, size_t n, size_t d, uint64_t seed)
{
    gaussian(p->keys, n * d, &seed);
    for (size_t i = 0; i < n; i++) {
        double length = 0;
        for (size_t k = 0; k < d; k++)
            length += (double)p->keys[i * d + k] * (double)p->keys[i * d + k];
        for (size_t k = 0; k < d; k++)
            p->keys[i * d + k] *= (float)(1 / sqrt(length));
    }
    gaussian(p->value[0], n * d, &seed);
    gaussian(p->value[1], n * d, &seed);
}

/* Whether another stored value is nearer to what was read than the right one, number i. */
static bool is_another(const struct probe *p, const float *read, size_t i, size_t n, size_t d)
{
    double own = distance(read, p->value[0] + i * d, d);
    for (size_t k = 0; k < n; k++)
        if (k != i && distance(read, p->value[0] + k * d, d) < own)
            return true;
    return false;
}

struct sums {
    double error, size, other;
    size_t asked;
};

/* Asks for some of the n pairs, evenly spread over the order in which they were written. */
static void ask(const struct probe *p, struct sl_probe_memory *m, int kind, size_t n, size_t d,
                struct sums *s)
{
    size_t asked = n < ASKED_MAX ? n : ASKED_MAX;
    for (size_t a = 0; a < asked; a++) {
        float read[SL_PROBE_SIZE_MAX];
        size_t i = a * n / asked;
        const float *right = p->value[kind] + i * d;
        sl_probe_memory_read(m, p->keys + i * d, read);
        s->error += distance(read, right, d);
        for (size_t k = 0; k < d; k++)
            s->size += (double)right[k] * (double)right[k];
        s->other += kind == FRESH
                        ? is_another(p, read, i, n, d)
                        : distance(read, p->value[0] + i * d, d) < distance(read, right, d);
        s->asked++;
    }
}

static void write_all(const struct probe *p, struct sl_probe_memory *m, int which, size_t n,
                      size_t d)
{
    for (size_t i = 0; i < n; i++)
        sl_probe_memory_write(m, p->keys + i * d, p->value[which] + i * d);
}

/* --- measuring ---------------------------------------------------------------------------------*/

static enum sl_code measure(struct probe *p, size_t size, size_t rule, struct sl_error *err)
{
    struct sl_probe_memory *m = NULL;
    struct curve *c = &p->curves[size][rule];
    size_t d = sizes[size];
    enum sl_code code = sl_probe_memory_open(&m, rule, d, p->opt->kernels, p->opt->seed, err);
    if (code)
        return code;
    c->values = sl_probe_memory_values(m);
    for (size_t i = 0; i < p->n_points; i++) {
        struct sums s[N_KINDS] = {{0}};
        size_t n = (size_t)p->pairs[i];
        for (uint64_t t = 0; t < p->opt->trials; t++) {
            /* The same sequences for every rule. */
            make_sequence(p, n, d, p->opt->seed + (t << 32) + (n << 40));
            sl_probe_memory_clear(m);
            write_all(p, m, 0, n, d);
            ask(p, m, FRESH, n, d, &s[FRESH]);
            write_all(p, m, 1, n, d);
            ask(p, m, OVERWRITTEN, n, d, &s[OVERWRITTEN]);
        }
        for (int k = 0; k < N_KINDS; k++) {
            c->error[k][i] = sqrt(s[k].error / s[k].size);
            c->other[k][i] = s[k].other / (double)s[k].asked;
        }
        sl_probe_progress(++p->done, N_SIZES * p->n_rules * p->n_points,
                          sl_probe_rules[rule].title);
    }
    sl_probe_memory_close(m);
    return SL_OK;
}

static enum sl_code measure_all(struct probe *p, struct sl_error *err)
{
    size_t most = p->opt->max_pairs * sizes[N_SIZES - 1];
    enum sl_code c = SL_OK;
    while (sl_probe_rules[p->n_rules].name && p->n_rules < RULES_MAX)
        p->n_rules++;
    for (uint64_t n = 1; n <= p->opt->max_pairs && p->n_points < POINTS_MAX; n *= n < 16 ? 4 : 2)
        p->pairs[p->n_points++] = (double)n;
    p->keys = sl_calloc(most, sizeof *p->keys);
    for (size_t i = 0; i < 2; i++)
        p->value[i] = sl_calloc(most, sizeof *p->value[i]);
    if (!p->keys || !p->value[0] || !p->value[1])
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %llu pairs",
                       (unsigned long long)p->opt->max_pairs);
    for (size_t s = 0; s < N_SIZES && !c; s++)
        for (size_t r = 0; r < p->n_rules && !c; r++)
            c = measure(p, s, r, err);
    return c;
}

/* --- telling -----------------------------------------------------------------------------------*/

static void tell_table(const struct probe *p, size_t size, int kind)
{
    printf("\nHeads of %zu, %s\n%26s", sizes[size],
           kind == FRESH ? "fresh keys: error of what is read, by number of pairs"
                         : "overwritten keys: error against the new value",
           "pairs");
    for (size_t i = 0; i < p->n_points; i++)
        printf(" %6.0f", p->pairs[i]);
    printf("\n");
    for (size_t r = 0; r < p->n_rules; r++) {
        printf("%26s", sl_probe_rules[r].title);
        for (size_t i = 0; i < p->n_points; i++)
            printf(" %6.3f", p->curves[size][r].error[kind][i]);
        printf("\n");
    }
}

static void tell(const struct probe *p)
{
    printf(
        "Memory rules without a model: random keys and values, one head. Error: 0 is exact, 1 as "
        "good\nas nothing. Decays halve in %d tokens, or per channel in %d to %d.\n\n",
        SL_PROBE_HALF_LIFE, SL_PROBE_HALF_LIFE / 16, SL_PROBE_HALF_LIFE * 16);
    for (size_t r = 0; r < p->n_rules; r++)
        printf("%26s  %s\n", sl_probe_rules[r].title, sl_probe_rules[r].what);
    for (size_t s = 0; s < N_SIZES; s++)
        for (int k = 0; k < N_KINDS; k++)
            tell_table(p, s, k);
}

static void write_points(struct sl_json_out *w, const struct probe *p, const struct curve *c)
{
    static const char *const others[N_KINDS] = {"another_nearer", "old_nearer"};
    for (int k = 0; k < N_KINDS; k++) {
        sl_out_key(w, kinds[k]);
        sl_out_open(w, '[');
        for (size_t i = 0; i < p->n_points; i++) {
            sl_out_open(w, '{');
            sl_out_key(w, "pairs");
            sl_out_uint(w, (uint64_t)p->pairs[i]);
            sl_out_key(w, "error");
            sl_out_fixed(w, c->error[k][i], 6);
            sl_out_key(w, others[k]);
            sl_out_fixed(w, c->other[k][i], 4);
            sl_out_close(w, '}');
        }
        sl_out_close(w, ']');
    }
}

static enum sl_code write_json(const struct probe *p, struct sl_error *err)
{
    struct sl_buf b;
    struct sl_json_out w = {.b = &b};
    sl_buf_init(&b, JSON_MAX);
    sl_out_open(&w, '{');
    sl_out_key(&w, "half_life");
    sl_out_uint(&w, SL_PROBE_HALF_LIFE);
    sl_out_key(&w, "trials");
    sl_out_uint(&w, p->opt->trials);
    sl_out_key(&w, "rules");
    sl_out_open(&w, '[');
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t r = 0; r < p->n_rules; r++) {
            sl_out_open(&w, '{');
            sl_out_key(&w, "rule");
            sl_out_str(&w, sl_probe_rules[r].name);
            sl_out_key(&w, "head_size");
            sl_out_uint(&w, sizes[s]);
            sl_out_key(&w, "state_values");
            sl_out_uint(&w, p->curves[s][r].values);
            write_points(&w, p, &p->curves[s][r]);
            sl_out_close(&w, '}');
        }
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
    enum sl_code c = sl_buf_code(&b, err);
    if (!c)
        printf("%.*s\n", (int)b.len, b.data);
    sl_buf_done(&b);
    return c;
}

static enum sl_code write_charts(const struct probe *p, struct sl_error *err)
{
    enum { N = N_SIZES * N_KINDS };
    static const double top = 2; /* what is worse is as bad */
    static double y[N][RULES_MAX][POINTS_MAX];
    static struct sl_plot_series series[N][RULES_MAX];
    static char titles[N][64];
    struct sl_plot plots[N];
    for (size_t i = 0; i < N; i++) {
        size_t s = i / N_KINDS, k = i % N_KINDS;
        for (size_t r = 0; r < p->n_rules; r++) {
            for (size_t n = 0; n < p->n_points; n++)
                y[i][r][n] = fmin(p->curves[s][r].error[k][n], top);
            series[i][r] =
                (struct sl_plot_series){sl_probe_rules[r].title, p->pairs, y[i][r], p->n_points};
        }
        (void)snprintf(titles[i], sizeof titles[i], "Heads of %zu, %s keys", sizes[s], kinds[k]);
        plots[i] = (struct sl_plot){
            titles[i], "pairs written", "relative error (2: 2 or more)", true, 0, top,
            series[i], p->n_rules};
    }
    return sl_probe_write_svg(p->opt->svg, plots, N, err);
}

static enum sl_code probe(struct probe *p, struct sl_error *err)
{
    enum sl_code c = measure_all(p, err);
    if (!c && p->opt->json)
        c = write_json(p, err);
    else if (!c)
        tell(p);
    if (!c && p->opt->svg)
        c = write_charts(p, err);
    for (size_t i = 0; i < 2; i++)
        sl_free(p->value[i]);
    sl_free(p->keys);
    return c;
}

int sl_probe_rule(int argc, char **argv)
{
    struct options opt = {0};
    const struct sl_option_set set = {.rows = rows, .n = sizeof rows / sizeof *rows, .dst = &opt};
    struct sl_args args = {0};
    struct sl_error err;
    int rc = SL_EXIT_OK;
    struct probe *p = NULL;
    enum sl_code c = sl_options_parse(&set, 1, SL_CMD_PROBE, argc, argv, &args, &err);
    if (!c && args.help) {
        sl_options_help(&set, 1, SL_CMD_PROBE);
        goto out;
    }
    if (!c && args.n_rest)
        c = sl_fail(&err, SL_E_USAGE, "'%s' is no option; see slate probe rule --help",
                    args.rest[0]);
    if (!c)
        sl_cli_warn_strays("probe rule", &set, 1);
    if (!c && !(p = sl_calloc(1, sizeof *p)))
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory to probe with");
    if (!c) {
        p->opt = &opt;
        c = probe(p, &err);
    }
    if (c)
        rc = sl_cli_fail("probe rule", &err);
    sl_free(p);
out:
    sl_options_done(&set, 1, &args);
    return rc;
}
