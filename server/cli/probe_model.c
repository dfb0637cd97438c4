/* probe_model.c: `slate probe model`: what one model recalls, and how its states fill.
 *
 * Four questions, each asked of many seeded sequences at once:
 *
 *   conversations  the embedded model's own trade: a fact is told, and asked for after more talk
 *                  (probe_talk.h). Right: the greedy answer has the value in it, as a word.
 *   needle         for any model, in its own tokens: a pair of tokens somewhere, then others that
 *                  mean nothing; when the first of the pair comes again, is the second the
 * likeliest? pairs          multi-query recall: many such pairs in a row, each asked for on a copy
 * of the state. (Arora et al., "Zoology", 2023: what separates the memory rules.) growth norm and
 * effective rank of the states with length, and each head's half-life (slate/memory.h).
 *
 * A model that was never shown pairs of tokens may fail at them for want of habit, not of memory:
 * the half-lives then say how long it could remember. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "server/cli/cli.h"
#include "server/cli/probe.h"
#include "server/cli/probe_model.h"

enum {
    PIECE_BYTES = 1 << 20,
    ANSWER_TOKENS = 24,
    FIX_AFTER = 64, /* tokens until a correction */
    QUERIES = 16    /* of a sequence with many pairs, at most */
};

static const struct sl_option rows[] = {
    {.name = "conversations",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct sl_probe_options, conversations),
     .dflt = "100",
     .min = 0,
     .max = 100000,
     .arg = "N",
     .help = "Conversations of each kind, for the embedded model.",
     .commands = SL_CMD_PROBE},
    {.name = "sequences",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct sl_probe_options, sequences),
     .dflt = "64",
     .min = 1,
     .max = 100000,
     .arg = "N",
     .help = "Sequences of random tokens for each point of needle and pairs.",
     .commands = SL_CMD_PROBE},
    {.name = "max-distance",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct sl_probe_options, max_distance),
     .dflt = "2048",
     .min = 16,
     .max = 65536,
     .arg = "N",
     .help = "The longest distance in tokens.",
     .commands = SL_CMD_PROBE},
    {.name = "json",
     .type = SL_OPTION_BOOL,
     .offset = offsetof(struct sl_probe_options, json),
     .dflt = "false",
     .help = "One JSON object instead of tables.",
     .commands = SL_CMD_PROBE},
    {.name = "svg",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct sl_probe_options, svg),
     .arg = "FILE",
     .help = "Charts of all tables, to a file.",
     .commands = SL_CMD_PROBE},
};

static const struct {
    const char *name, *kind, *filler;
} talk_rows[SL_TALK_ROWS] = {
    [SL_TALK_SMALL] = {"small talk between", "told", "small"},
    [SL_TALK_FACTS] = {"other facts between", "told", "facts"},
    [SL_TALK_FIXED] = {"corrected", "corrected", "facts"},
    [SL_TALK_UNKNOWN] = {"never told", "never_told", "facts"},
    [SL_TALK_HELD] = {"unseen names", "unseen_name", "facts"},
};

static void step(struct sl_probe *p, const char *what)
{
    p->done++;
    sl_probe_progress(p->done < p->total ? p->done : p->total - 1, p->total, what);
}

/* 16, 128, 512, 1024, 2048, … up to the longest. */
static void talk_distances(struct sl_probe_curve *c, size_t longest)
{
    for (size_t d = 16; d <= longest && c->n < SL_PROBE_POINTS_MAX; d = d == 16    ? 128
                                                                        : d == 128 ? 512
                                                                                   : 2 * d)
        c->x[c->n++] = (double)d;
}

static void doublings(struct sl_probe_curve *c, size_t first, size_t longest)
{
    for (size_t d = first; d <= longest && c->n < SL_PROBE_POINTS_MAX; d *= 2)
        c->x[c->n++] = (double)d;
}

/* --- conversations -----------------------------------------------------------------------------*/

/* Text of each conversation at hand, and its tokens. */
struct pieces {
    struct sl_buf text[SL_PROBE_BATCH];
    uint32_t *tokens[SL_PROBE_BATCH];
    size_t n_tokens[SL_PROBE_BATCH];
    struct sl_token_list list[SL_PROBE_BATCH]; /* where they lie */
};

static void pieces_init(struct pieces *v)
{
    *v = (struct pieces){.n_tokens = {0}};
    for (size_t i = 0; i < SL_PROBE_BATCH; i++)
        sl_buf_init(&v->text[i], PIECE_BYTES);
}

static void pieces_done(struct pieces *v)
{
    for (size_t i = 0; i < SL_PROBE_BATCH; i++) {
        sl_buf_done(&v->text[i]);
        sl_token_list_done(&v->list[i]);
    }
}

static enum sl_code encode(struct sl_probe *p, struct pieces *v, size_t i, struct sl_error *err)
{
    enum sl_code c = sl_buf_code(&v->text[i], err);
    if (c)
        return c;
    struct sl_tokenizer_text text = {
        .s = v->text[i].data ? v->text[i].data : "", .n = v->text[i].len, .continues = true};
    v->list[i].n = 0;
    c = sl_tokenizer_encode(p->loaded.tokenizer, &text, &v->list[i], err);
    v->tokens[i] = v->list[i].v;
    v->n_tokens[i] = v->list[i].n;
    return c;
}

/* Filler of at least `want` tokens. */
static enum sl_code fill(struct sl_probe *p, struct pieces *v, struct sl_talk_case *c, size_t i,
                         size_t want, struct sl_error *err)
{
    enum sl_code rc;
    sl_buf_clear(&v->text[i]);
    do
        rc = encode(p, v, i, err);
    while (!rc && v->n_tokens[i] < want && (sl_talk_filler(c, &v->text[i]), true));
    return rc;
}

static bool ended(const struct sl_buf *answer)
{
    return answer->len >= 2 && memcmp(answer->data + answer->len - 2, "\n\n", 2) == 0;
}

/* Greedy answers of the forks, which were fed the questions; into v's texts. */
static void answer(struct sl_probe *p, struct pieces *v, size_t n)
{
    struct sl_probe_batch *b = &p->batch;
    uint32_t token[SL_PROBE_BATCH], *tokens[SL_PROBE_BATCH];
    size_t counts[SL_PROBE_BATCH], n_open = n;
    bool open[SL_PROBE_BATCH];
    for (size_t i = 0; i < n; i++) {
        sl_buf_clear(&v->text[i]);
        tokens[i] = &token[i];
        open[i] = true;
    }
    for (size_t k = 0; k < ANSWER_TOKENS && n_open; k++) {
        for (size_t i = 0; i < n; i++) {
            size_t n_bytes;
            counts[i] = 0;
            if (!open[i])
                continue;
            token[i] = sl_probe_likeliest(b, i);
            const unsigned char *s = sl_tokenizer_bytes(p->loaded.tokenizer, token[i], &n_bytes);
            sl_buf_put(&v->text[i], s ? (const char *)s : "", n_bytes);
            open[i] = s && !ended(&v->text[i]);
            n_open -= !open[i];
            counts[i] = open[i];
        }
        sl_probe_feed(b, b->fork, tokens, counts, n);
    }
}

static enum sl_code ask(struct sl_probe *p, struct sl_probe_curve *curve, size_t at,
                        struct pieces *v, struct sl_talk_case *cases, size_t n,
                        struct sl_error *err)
{
    enum sl_code c = SL_OK;
    sl_probe_fork(&p->batch, n);
    for (size_t i = 0; i < n && !c; i++) {
        sl_buf_clear(&v->text[i]);
        sl_talk_question(&cases[i], &v->text[i]);
        c = encode(p, v, i, err);
    }
    if (c)
        return c;
    sl_probe_feed(&p->batch, p->batch.fork, v->tokens, v->n_tokens, n);
    answer(p, v, n);
    for (size_t i = 0; i < n && !c; i++) {
        bool old;
        c = sl_buf_code(&v->text[i], err);
        if (c)
            break;
        curve->y[at] += sl_talk_is_right(&cases[i], v->text[i].data ? v->text[i].data : "",
                                         v->text[i].len, &old);
        curve->old[at] += old;
    }
    return c;
}

static enum sl_code feed_fillers(struct sl_probe *p, struct pieces *v, struct sl_talk_case *cases,
                                 size_t n, size_t want, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < n && !c; i++)
        c = fill(p, v, &cases[i], i, want, err);
    if (!c)
        sl_probe_feed(&p->batch, p->batch.state, v->tokens, v->n_tokens, n);
    return c;
}

static enum sl_code feed_pieces(struct sl_probe *p, struct pieces *v, struct sl_talk_case *cases,
                                size_t n, void (*write)(struct sl_talk_case *, struct sl_buf *),
                                struct sl_error *err)
{
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < n && !c; i++) {
        sl_buf_clear(&v->text[i]);
        write(&cases[i], &v->text[i]);
        c = encode(p, v, i, err);
    }
    if (!c)
        sl_probe_feed(&p->batch, p->batch.state, v->tokens, v->n_tokens, n);
    return c;
}

/* A batch of conversations of one row, asked at every distance: each goes on after the question was
 * put to a copy of its state. */
static enum sl_code converse(struct sl_probe *p, const struct sl_talk *talk, enum sl_talk_row row,
                             size_t first, size_t n, struct pieces *v, struct sl_error *err)
{
    struct sl_probe_curve *curve = &p->talk[row];
    struct sl_talk_case cases[SL_PROBE_BATCH];
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        sl_talk_case_init(&cases[i], talk, row, first + i);
    sl_probe_begin(&p->batch, n);
    enum sl_code c = feed_pieces(p, v, cases, n, sl_talk_before, err);
    if (!c && row == SL_TALK_FIXED)
        c = feed_fillers(p, v, cases, n, FIX_AFTER, err);
    if (!c && row == SL_TALK_FIXED)
        c = feed_pieces(p, v, cases, n, sl_talk_fix, err);
    for (size_t i = 0; i < curve->n && !c; i++) {
        c = feed_fillers(p, v, cases, n, (size_t)curve->x[i] - at, err);
        at = (size_t)curve->x[i];
        if (!c)
            c = ask(p, curve, i, v, cases, n, err);
    }
    return c;
}

static enum sl_code probe_talk(struct sl_probe *p, struct sl_error *err)
{
    struct sl_talk *talk = NULL;
    struct pieces v;
    size_t n = p->opt->conversations;
    pieces_init(&v);
    enum sl_code c = sl_talk_open(&talk, err);
    for (size_t row = 0; row < SL_TALK_ROWS && !c; row++) {
        struct sl_probe_curve *curve = &p->talk[row];
        *curve = (struct sl_probe_curve){.name = talk_rows[row].name,
                                         .kind = talk_rows[row].kind,
                                         .filler = talk_rows[row].filler,
                                         .samples = n};
        talk_distances(curve, p->opt->max_distance);
        for (size_t i = 0; i < n && !c; i += SL_PROBE_BATCH) {
            size_t k = n - i < SL_PROBE_BATCH ? n - i : SL_PROBE_BATCH;
            c = converse(p, talk, (enum sl_talk_row)row, i, k, &v, err);
            step(p, curve->name);
        }
        for (size_t i = 0; i < curve->n; i++) {
            curve->y[i] /= (double)n;
            curve->old[i] /= (double)n;
        }
    }
    p->has_talk = !c;
    sl_talk_close(talk);
    pieces_done(&v);
    return c;
}

/* --- tokens that mean nothing ------------------------------------------------------------------*/

/* n different tokens with bytes of their own, ret[0 … n); false: the vocabulary has not so many. */
static bool draw_different(const struct sl_probe *p, uint32_t *ret, size_t n, uint64_t *seed)
{
    size_t vocab = p->batch.info->vocab_size;
    if (2 * n > vocab)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes = 0, k = 0;
        do
            ret[i] = (uint32_t)(1 + sl_random_next(seed) % (vocab - 1));
        while (k++ < 1000 && (sl_tokenizer_bytes(p->loaded.tokenizer, ret[i], &n_bytes) == NULL));
        for (k = 0; k < i && ret[k] != ret[i]; k++)
            ;
        if (k < i)
            i--; /* again */
    }
    return true;
}

/* Can a text have so many tokens, behind a begin token? */
static bool has_room(const struct sl_probe *p, size_t n)
{
    return !p->batch.info->max_tokens || n < p->batch.info->max_tokens;
}

/* Sequences of n_pairs pairs and then `distance` other tokens; of each, some of the pairs are asked
 * for. Returns the share of right ones, NaN where the vocabulary or the table of positions is too
 * small. */
static double recall(struct sl_probe *p, size_t n_pairs, size_t distance, uint64_t seed)
{
    struct sl_probe_batch *b = &p->batch;
    if (!has_room(p, 2 * n_pairs + distance + 1))
        return (double)NAN;
    size_t length = 2 * n_pairs + distance, n_right = 0, n_asked = 0;
    size_t n_queries = n_pairs < QUERIES ? n_pairs : QUERIES;
    uint32_t *memory = sl_malloc(SL_PROBE_BATCH * length * sizeof *memory);
    for (size_t first = 0; memory && first < p->opt->sequences; first += SL_PROBE_BATCH) {
        size_t n = p->opt->sequences - first;
        n = n < SL_PROBE_BATCH ? n : SL_PROBE_BATCH;
        uint32_t *tokens[SL_PROBE_BATCH], *query[SL_PROBE_BATCH];
        size_t counts[SL_PROBE_BATCH], one[SL_PROBE_BATCH];
        bool enough = true;
        for (size_t i = 0; i < n; i++) {
            tokens[i] = memory + i * length;
            counts[i] = length;
            one[i] = 1;
            enough = enough && draw_different(p, tokens[i], 2 * n_pairs, &seed);
            for (size_t k = 2 * n_pairs; enough && k < length; k++) { /* none of the keys */
                do
                    tokens[i][k] =
                        (uint32_t)(1 + sl_random_next(&seed) % (b->info->vocab_size - 1));
                while (tokens[i][k] == tokens[i][0]);
            }
        }
        if (!enough)
            break;
        sl_probe_begin(b, n);
        sl_probe_feed(b, b->state, tokens, counts, n);
        for (size_t k = 0; k < n_queries; k++) {
            size_t pair = k * n_pairs / n_queries;
            sl_probe_fork(b, n);
            for (size_t i = 0; i < n; i++)
                query[i] = &tokens[i][2 * pair];
            sl_probe_feed(b, b->fork, query, one, n);
            for (size_t i = 0; i < n; i++)
                n_right += sl_probe_likeliest(b, i) == tokens[i][2 * pair + 1];
            n_asked += n;
        }
    }
    sl_free(memory);
    return n_asked ? (double)n_right / (double)n_asked : (double)NAN;
}

static void probe_tokens(struct sl_probe *p)
{
    p->needle = (struct sl_probe_curve){.name = "one pair", .samples = p->opt->sequences};
    doublings(&p->needle, 16, p->opt->max_distance);
    for (size_t i = 0; i < p->needle.n; i++) {
        p->needle.y[i] = recall(p, 1, (size_t)p->needle.x[i], 100 + i);
        step(p, "needle in a haystack");
    }
    p->pairs = (struct sl_probe_curve){.name = "pairs", .samples = p->opt->sequences};
    doublings(&p->pairs, 1, 256);
    for (size_t i = 0; i < p->pairs.n; i++) {
        p->pairs.y[i] = recall(p, (size_t)p->pairs.x[i], 0, 200 + i);
        step(p, "pairs of tokens");
    }
}

/* --- growth ------------------------------------------------------------------------------------*/

static enum sl_code probe_growth(struct sl_probe *p, struct sl_error *err)
{
    struct sl_probe_batch *b = &p->batch;
    uint64_t seed = 300;
    uint32_t token, *tokens = &token;
    size_t one = 1, length = 0;
    enum sl_code c = SL_OK;
    p->n_heads = sl_memory_heads(p->loaded.model);
    p->heads = sl_calloc(p->n_heads, sizeof *p->heads);
    if (!p->heads)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to measure a state");
    p->norm = (struct sl_probe_curve){.name = "norm (mean of heads)", .samples = 1};
    p->rank = (struct sl_probe_curve){.name = "effective rank (mean)", .samples = 1};
    doublings(&p->norm, 16, p->opt->max_distance);
    doublings(&p->rank, 16, p->opt->max_distance);
    sl_probe_begin(b, 1);
    for (size_t i = 0; i < p->norm.n && !c; i++) {
        if (!has_room(p, (size_t)p->norm.x[i])) {
            p->norm.y[i] = p->rank.y[i] = (double)NAN;
            continue;
        }
        for (; length < (size_t)p->norm.x[i]; length++) {
            token = (uint32_t)(1 + sl_random_next(&seed) % (b->info->vocab_size - 1));
            sl_probe_feed(b, b->state, &tokens, &one, 1);
            if (length + 1 == SL_PROBE_HALF_LIFE_AT) {
                sl_probe_fork(b, 1);
                p->half_life_at = length + 1;
            }
        }
        c = sl_memory_measure(p->loaded.model, b->state[0], p->heads, err);
        for (size_t h = 0; h < p->n_heads && !c; h++) {
            p->norm.y[i] += p->heads[h].norm / (double)p->n_heads;
            p->rank.y[i] += p->heads[h].effective_rank / (double)p->n_heads;
        }
        step(p, "growth of the state");
    }
    if (!p->half_life_at) {
        sl_probe_fork(b, 1);
        p->half_life_at = length;
    }
    token = sl_probe_likeliest(b, 0);
    size_t over = sl_model_room(p->loaded.model, b->fork[0]);
    p->half_life_over = over < SL_PROBE_HALF_LIFE_OVER ? over : SL_PROBE_HALF_LIFE_OVER;
    if (!c)
        c = sl_memory_half_lives(p->loaded.model, b->fork[0], &token, 1, p->half_life_over,
                                 p->heads, err);
    return c;
}

/* --- the command -------------------------------------------------------------------------------*/

static enum sl_code probe(struct sl_probe *p, const struct sl_config *config, struct sl_error *err)
{
    const struct sl_probe_options *opt = p->opt;
    size_t threads = config->threads ? (size_t)config->threads : sl_processors();
    enum sl_code c = sl_cli_load(&p->loaded, config, err);
    if (!c)
        c = sl_probe_batch_open(&p->batch, &p->loaded, threads, err);
    if (c)
        return c;
    bool talks = p->loaded.embedded && opt->conversations > 0;
    size_t batches = (opt->conversations + SL_PROBE_BATCH - 1) / SL_PROBE_BATCH;
    p->total = (talks ? SL_TALK_ROWS * batches : 0) + 9 + 2 * (size_t)SL_PROBE_POINTS_MAX;
    if (talks)
        c = probe_talk(p, err);
    if (!c) {
        probe_tokens(p);
        c = probe_growth(p, err);
    }
    sl_probe_progress(p->total, p->total, "");
    if (!c && opt->json)
        c = sl_probe_write_json(p, err);
    else if (!c)
        sl_probe_tell(p);
    if (!c && opt->svg)
        c = sl_probe_write_charts(p, err);
    return c;
}

int sl_probe_model(int argc, char **argv)
{
    struct sl_config config = {0};
    struct sl_probe_options opt = {0};
    struct sl_option_set sets[] = {{.rows = rows, .n = sizeof rows / sizeof *rows, .dst = &opt},
                                   {.dst = &config}};
    struct sl_args args = {0};
    struct sl_error err;
    struct sl_probe *p = NULL;
    int rc = SL_EXIT_OK;
    sets[1].rows = sl_config_options(&sets[1].n);
    enum sl_code c = sl_options_parse(sets, 2, SL_CMD_PROBE, argc, argv, &args, &err);
    if (!c && args.help) {
        sl_options_help(sets, 2, SL_CMD_PROBE);
        goto out;
    }
    if (!c && args.n_rest)
        c = sl_fail(&err, SL_E_USAGE, "'%s' is no option; see slate probe model --help",
                    args.rest[0]);
    if (!c)
        sl_cli_warn_strays("probe model", sets, 2);
    if (!c && !(p = sl_calloc(1, sizeof *p)))
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory to probe with");
    if (!c) {
        p->opt = &opt;
        c = probe(p, &config, &err);
    }
    if (c)
        rc = sl_cli_fail("probe model", &err);
    if (p) {
        sl_free(p->heads);
        sl_probe_batch_close(&p->batch);
        sl_cli_load_done(&p->loaded);
        sl_free(p);
    }
out:
    sl_options_done(sets, 2, &args);
    return rc;
}
