/* bench_steps.c: see bench_steps.h.
 *
 * Models of all the types that were asked for are open at once, and take turns, round by round,
 * with each other and with the limits (limits.h); told are medians.
 *
 * Bounds. Memory: all matrices that a step reads, and each session's state both ways, at the speed
 * of four streams a thread. Arithmetic: two operations for each weight at the rate of its type's
 * instructions, and those of the recurrence (a read and a step of the state: 9 an element) at that
 * of multiply-adds. The one that takes longer is the bound; the share is how near the steps come to
 * it.
 *
 * Sampling: after each step of decoding every session chooses its token, with settings that clients
 * send. It is no part of the rates, as it is none of a peer's; told is its share of the step.
 *
 * A peer (peer.h) measures the same in turn with each model; a round's ratio is of the two rates
 * that were measured one after the other. */
#include "server/cli/bench_steps.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "engine/sampler.h"
#include "server/cli/limits.h"
#include "server/cli/peer.h"
#include "server/cli/shape.h"
#include "server/cli/values.h"
#include "server/cli/weights.h"

enum { WEIGHTS_MAX = 5, BATCHES_MAX = 12, BATCH_MAX = 1024, WORKS_MAX = BATCHES_MAX + 1 };
enum { TEXT_MAX = 1 << 18 }; /* of JSON or CSV */

static const double MIN_SECONDS = 0.25; /* of one measurement */

struct work {
    bool prefill;
    size_t batch, tokens; /* sessions of a step, tokens of each */
};

struct model {
    const char *name; /* of its weights */
    struct sl_model *m;
    struct sl_forward *forward;
    struct series seconds[WORKS_MAX];  /* per token */
    double barriers[WORKS_MAX];        /* of a step */
    struct series sampling[WORKS_MAX]; /* share of a step and its sampling; decode */
    struct series peer[WORKS_MAX],
        ratio[WORKS_MAX]; /* the peer's tokens per second; ours over it */
};

struct bench {
    const struct sl_bench_steps *opt;
    const struct sl_shape *shape;
    char names[WEIGHTS_MAX][8];
    struct model models[WEIGHTS_MAX];
    size_t n_models;
    struct work works[WORKS_MAX];
    size_t n_works, most_sessions, most_rows;
    unsigned char *file;
    size_t file_bytes;
    struct sl_workers *workers;
    struct limits limits;
    unsigned char *states; /* most_sessions of them */
    float *logits;
    uint32_t *tokens; /* most_rows */
    struct sl_segment *segments;
    struct sl_sampler **samplers;          /* of the most_sessions */
    struct sl_sampler_scratch **scratches; /* of each worker */
    size_t stepping;                       /* sessions of the step at work */
    struct sl_peer *peer;                  /* NULL: none */
};

/* --- what was asked for -------------------------------------------------------------------------
 */

/* The next piece of a list with commas, of up to `max` bytes with the zero; false: it is longer, or
 * empty. */
static bool next_piece(const char **list, char *piece, size_t max)
{
    size_t n = strcspn(*list, ",");
    if (n == 0 || n >= max)
        return false;
    memcpy(piece, *list, n);
    piece[n] = '\0';
    *list += n + ((*list)[n] == ',');
    return true;
}

static enum sl_code parse_weights(struct bench *b, struct sl_error *err)
{
    for (const char *list = b->opt->weights; *list;) {
        enum sl_dtype t;
        if (b->n_models == WEIGHTS_MAX || !next_piece(&list, b->names[b->n_models], 8))
            return sl_fail(err, SL_E_USAGE,
                           "--weights %.60s: a list of up to %d of f32, bf16, f16, q8, q4",
                           b->opt->weights, WEIGHTS_MAX);
        b->models[b->n_models].name = b->names[b->n_models];
        enum sl_code c = sl_cli_weights("weights", b->names[b->n_models++], &t, err);
        if (c)
            return c;
    }
    return SL_OK;
}

static enum sl_code parse_batch(struct bench *b, struct sl_error *err)
{
    for (const char *list = b->opt->batch; *list;) {
        char piece[8];
        size_t n = 0;
        bool good = b->n_works < BATCHES_MAX && next_piece(&list, piece, sizeof piece);
        for (const char *s = piece; good && *s; s++) {
            good = *s >= '0' && *s <= '9';
            n = n * 10 + (size_t)(*s - '0');
        }
        if (!good || n < 1 || n > BATCH_MAX)
            return sl_fail(err, SL_E_USAGE,
                           "--batch %.60s: a list of up to %d numbers from 1 to %d", b->opt->batch,
                           BATCHES_MAX, BATCH_MAX);
        b->works[b->n_works++] = (struct work){.batch = n, .tokens = 1};
        b->most_sessions = n > b->most_sessions ? n : b->most_sessions;
    }
    b->most_rows = b->most_sessions;
    if (b->opt->prompt > 0)
        b->works[b->n_works++] = (struct work){true, 1, b->opt->prompt};
    if (b->opt->prompt > b->most_rows)
        b->most_rows = b->opt->prompt;
    return SL_OK;
}

static enum sl_code parse(struct bench *b, struct sl_error *err)
{
    char known[128];
    sl_shape_names(known, sizeof known);
    b->shape = sl_shape_find(b->opt->shape);
    if (!b->shape)
        return sl_fail(err, SL_E_USAGE, "--shape %.40s: there are %s", b->opt->shape, known);
    if (!*b->opt->weights || !*b->opt->batch)
        return sl_fail(err, SL_E_USAGE, "--weights and --batch must name something");
    enum sl_code c = parse_weights(b, err);
    return c ? c : parse_batch(b, err);
}

/* --- opening ------------------------------------------------------------------------------------
 */

static enum sl_code open_model(struct bench *b, struct model *m, struct sl_error *err)
{
    struct sl_model_options opt = {.kernels = b->opt->kernels};
    enum sl_code c = sl_cli_weights("weights", m->name, &opt.weights, err);
    if (!c)
        c = sl_model_open_memory(&m->m, b->file, b->file_bytes, b->shape->name, &opt, err);
    if (!c)
        c = sl_forward_open(&m->forward, m->m, b->workers, b->most_rows, b->most_sessions, err);
    return c;
}

static enum sl_code allocate(struct bench *b, struct sl_error *err)
{
    const struct sl_model *m = b->models[0].m;
    size_t state = sl_model_info(m)->state_bytes, stride = sl_model_logits_stride(m);
    b->states = sl_huge_alloc(state * b->most_sessions);
    b->logits = sl_huge_alloc(stride * sizeof(float) * b->most_sessions);
    b->tokens = sl_calloc(b->most_rows, sizeof *b->tokens);
    b->segments = sl_calloc(b->most_sessions, sizeof *b->segments);
    b->samplers = sl_calloc(b->most_sessions, sizeof(struct sl_sampler *));
    b->scratches = sl_calloc(sl_workers_threads(b->workers), sizeof(struct sl_sampler_scratch *));
    if (!b->states || !b->logits || !b->tokens || !b->segments || !b->samplers || !b->scratches)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu sessions", b->most_sessions);
    memset(b->logits, 0, stride * sizeof(float) * b->most_sessions);
    for (size_t i = 0; i < b->most_sessions; i++)
        sl_model_state_init(m, b->states + i * state);
    for (size_t i = 0; i < b->most_rows; i++)
        b->tokens[i] = (uint32_t)(i * 2654435761u % b->shape->vocab_size);
    return SL_OK;
}

static const struct sl_sampling sampling = {.temperature = 0.8f,
                                            .top_k = 40,
                                            .top_p = 0.95f,
                                            .typical_p = 1,
                                            .repetition_penalty = 1.1f,
                                            .presence_penalty = 0.3f,
                                            .frequency_penalty = 0.3f,
                                            .penalty_decay = 0.996f};

static enum sl_code open_samplers(struct bench *b, struct sl_error *err)
{
    const struct sl_model_info *info = sl_model_info(b->models[0].m);
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < sl_workers_threads(b->workers) && !c; i++)
        c = sl_sampler_scratch_open(&b->scratches[i], info->vocab_size, err);
    for (size_t i = 0; i < b->most_sessions && !c; i++) {
        c = sl_sampler_open(&b->samplers[i], sl_kernels_find(info->kernels), info->vocab_size, err);
        if (c)
            break;
        /* One choice, that its memory is there when choices are measured. */
        uint32_t token;
        sl_sampler_start(b->samplers[i], &sampling, NULL, 0);
        c = sl_sampler_choose(b->samplers[i], b->scratches[i % sl_workers_threads(b->workers)],
                              b->logits, NULL, -1, &token, NULL);
    }
    memset(b->logits, 0, info->vocab_size * sizeof *b->logits);
    return c;
}

static enum sl_code open_all(struct bench *b, struct sl_error *err)
{
    size_t threads = b->opt->threads ? b->opt->threads : sl_processors();
    enum sl_code c = sl_workers_open(&b->workers, threads, err);
    if (!c)
        c = sl_shape_file(b->shape, &b->file, &b->file_bytes, err);
    for (size_t i = 0; !c && i < b->n_models; i++)
        c = open_model(b, &b->models[i], err);
    if (!c)
        c = allocate(b, err);
    if (!c)
        c = open_samplers(b, err);
    if (!c && b->opt->peer)
        c = sl_peer_open(&b->peer, b->opt->peer, b->shape, b->file, b->file_bytes, threads, err);
    return c;
}

static void close_all(struct bench *b)
{
    for (size_t i = 0; i < b->n_models; i++) {
        sl_forward_close(b->models[i].forward);
        sl_model_close(b->models[i].m);
    }
    sl_peer_close(b->peer);
    for (size_t i = 0; b->scratches && i < sl_workers_threads(b->workers); i++)
        sl_sampler_scratch_close(b->scratches[i]);
    sl_free((void *)b->scratches);
    sl_workers_close(b->workers);
    for (size_t i = 0; b->samplers && i < b->most_sessions; i++)
        sl_sampler_close(b->samplers[i]);
    sl_free(b->samplers);
    sl_free(b->segments);
    sl_free(b->tokens);
    sl_free(b->logits);
    sl_free(b->states);
    sl_free(b->file);
}

/* --- measuring ----------------------------------------------------------------------------------
 */

static void choose_part(void *arg, size_t part, size_t n_parts)
{
    struct bench *b = arg;
    for (size_t i = part; i < b->stepping; i += n_parts) {
        uint32_t token;
        float *logits = b->segments[i].logits, *tops = sl_model_logits_tops(b->models[0].m, logits);
        if (sl_sampler_choose(b->samplers[i], b->scratches[part], logits, tops, -1, &token, NULL) ==
            SL_OK)
            sl_sampler_accept(b->samplers[i], token);
    }
}

/* Seconds per token; the share of sampling to m->sampling. */
static double measure(struct bench *b, struct model *m, size_t nth)
{
    const struct work *w = &b->works[nth];
    const size_t stride = sl_model_logits_stride(m->m), state = sl_model_info(m->m)->state_bytes;
    for (size_t i = 0; i < w->batch; i++)
        b->segments[i] = (struct sl_segment){.state = b->states + i * state,
                                             .tokens = b->tokens + (w->prefill ? 0 : i),
                                             .n_tokens = w->tokens,
                                             .logits = w->prefill ? NULL : b->logits + i * stride,
                                             .n_logits = !w->prefill};
    double forward = 0, choosing = 0;
    size_t steps = 0;
    uint64_t calls = 0;
    b->stepping = w->batch;
    sl_forward_run(m->forward, b->segments, w->batch); /* another program may have had the caches */
    for (; forward + choosing < MIN_SECONDS; steps++) {
        double begin = bench_now(), done;
        uint64_t before = sl_workers_calls(b->workers);
        sl_forward_run(m->forward, b->segments, w->batch);
        done = bench_now();
        calls += sl_workers_calls(b->workers) - before;
        forward += done - begin;
        if (w->prefill)
            continue;
        sl_workers_run(b->workers, choose_part, b);
        choosing += bench_now() - done;
    }
    if (!w->prefill)
        series_add(&m->sampling[nth], choosing / (forward + choosing));
    m->barriers[nth] = (double)calls / (double)steps;
    return forward / (double)(steps * w->batch * w->tokens);
}

/* The same works by the peer, after a round of ours. */
static enum sl_code measure_peer(struct bench *b, struct model *m, struct sl_error *err)
{
    size_t batch[WORKS_MAX], n = b->n_works - (b->opt->prompt > 0);
    double rate[WORKS_MAX];
    for (size_t w = 0; w < n; w++)
        batch[w] = b->works[w].batch;
    enum sl_code c = sl_peer_measure(b->peer, m->name, batch, n, b->opt->prompt, rate, err);
    for (size_t w = 0; w < b->n_works && !c; w++) {
        double ours = m->seconds[w].value[m->seconds[w].n - 1];
        series_add(&m->peer[w], rate[w]);
        series_add(&m->ratio[w], 1 / ours / rate[w]);
    }
    return c;
}

static enum sl_code measure_all(struct bench *b, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    for (uint64_t round = 0; round < b->opt->rounds && !c; round++)
        for (size_t i = 0; i < b->n_models && !c; i++) {
            struct model *m = &b->models[i];
            const struct sl_model_info *info = sl_model_info(m->m);
            /* The weights themselves: in the pages that they are read from. */
            limits_measure(&b->limits, b->workers, info->kernels, m->m->arena, info->weight_bytes);
            for (size_t w = 0; w < b->n_works; w++)
                series_add(&m->seconds[w], measure(b, m, w));
            if (b->peer)
                c = measure_peer(b, m, err);
        }
    return c;
}

static double seconds_at(const struct series *rate, double operations)
{
    return operations / 1e9 / series_median(rate);
}

/* Seconds per token that no program can beat here. */
static double bound(const struct bench *b, const struct model *m, const struct work *w,
                    const char **ret_what)
{
    const struct sl_shape *s = b->shape;
    const struct sl_matrix *head = &m->m->ends.head;
    const struct sl_model_info *info = sl_model_info(m->m);
    double d = (double)s->d_model, layers = (double)s->n_layers;
    double ranks = (double)(s->rank_w + s->rank_a + s->rank_v + s->rank_g);
    double large = 2 * layers * (4 * d * d + 2 * d * (double)s->d_ffn);
    double small = layers * (4 * d * ranks + 9 * d * (double)s->head_size);
    double bytes = (double)info->weight_bytes, rows = (double)(w->batch * w->tokens);
    double time = seconds_at(limits_arithmetic(&b->limits, info->weights), large) +
                  seconds_at(&b->limits.fma, small);
    if (w->prefill) /* its head is not read */
        bytes -= (double)sl_pack_bytes(head->type, head->n_out, head->n_in);
    else
        time +=
            seconds_at(limits_arithmetic(&b->limits, head->type), 2 * d * (double)s->vocab_size);
    bytes += 2 * (double)info->state_bytes * (double)w->batch;
    double memory = bytes / rows / 1e9 / series_median(&b->limits.read_4);
    *ret_what = memory > time ? "memory" : "arithmetic";
    return memory > time ? memory : time;
}

/* --- telling ------------------------------------------------------------------------------------
 */

static void tell_peer(const struct model *m, size_t w)
{
    if (m->peer[w].n)
        printf("  %10.1f   %6.2f (%.2f to %.2f)  %s", series_median(&m->peer[w]),
               series_median(&m->ratio[w]), series_quantile(&m->ratio[w], 0),
               series_quantile(&m->ratio[w], 1), sl_peer_type(m->name));
}

static void tell(const struct bench *b)
{
    const struct sl_model_info *info = sl_model_info(b->models[0].m);
    printf("%s, %s kernels, %zu threads; median of %d rounds (least and most)\n", b->shape->name,
           info->kernels, sl_workers_threads(b->workers), (int)b->opt->rounds);
    printf("limits: reading %.1f GB/s, multiply-adds %.1f GFLOP/s, products of bytes %.1f GOP/s, "
           "of 4 bits with bytes %.1f",
           series_median(&b->limits.read_4), series_median(&b->limits.fma),
           series_median(&b->limits.bytes), series_median(&b->limits.fours));
    printf("\n\n%-8s %-8s %6s %10s %22s %10s %6s  %-10s %8s %8s", "work", "weights", "batch",
           "tokens/s", "", "bound", "share", "of", "barriers", "sampling");
    printf(b->peer ? "  %10s    ratio\n" : "\n", "peer");
    for (size_t w = 0; w < b->n_works; w++)
        for (size_t i = 0; i < b->n_models; i++) {
            const struct model *m = &b->models[i];
            const struct work *k = &b->works[w];
            const char *what;
            double t = series_median(&m->seconds[w]), best = bound(b, m, k, &what);
            printf("%-8s %-8s %6zu %10.1f   (%7.1f to %7.1f) %10.1f %5.0f%%  %-10s %8.0f",
                   k->prefill ? "prefill" : "decode", m->name, k->batch, 1 / t,
                   1 / series_quantile(&m->seconds[w], 1), 1 / series_quantile(&m->seconds[w], 0),
                   1 / best, 100 * best / t, what, m->barriers[w]);
            if (m->sampling[w].n)
                printf(" %7.1f%%", 100 * series_median(&m->sampling[w]));
            else
                printf(" %8s", "");
            tell_peer(m, w);
            printf("\n");
        }
}

static struct sl_value range_of(const char *name, double least, double most, int digits)
{
    return (struct sl_value){
        .name = name, .kind = SL_VALUE_RANGE, .number = least, .most = most, .digits = digits};
}

static struct sl_value number_of(const char *name, double number, int digits)
{
    return (struct sl_value){
        .name = name, .kind = SL_VALUE_NUMBER, .number = number, .digits = digits};
}

static void describe_peer(struct sl_values *to, const struct model *m, size_t i)
{
    const bool none = m->peer[i].n == 0;
    struct sl_value all[] = {
        {.name = "peer_weights", .text = sl_peer_type(m->name)},
        number_of("peer_tokens_per_s", none ? 0 : series_median(&m->peer[i]), 1),
        number_of("ratio", none ? 0 : series_median(&m->ratio[i]), 3),
        range_of("ratio_range", none ? 0 : series_quantile(&m->ratio[i], 0),
                 none ? 0 : series_quantile(&m->ratio[i], 1), 3),
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        all[k].absent = none;
    sl_values_add(to, all, sizeof all / sizeof *all);
}

/* One work by one model. */
static void describe(struct sl_values *to, const struct bench *b, const struct model *m, size_t i)
{
    const struct work *k = &b->works[i];
    const bool samples = m->sampling[i].n > 0;
    const char *what;
    double t = series_median(&m->seconds[i]), best = bound(b, m, k, &what);
    const struct sl_value all[] = {
        {.name = "work", .text = k->prefill ? "prefill" : "decode"},
        {.name = "weights", .text = m->name},
        {.name = "batch", .kind = SL_VALUE_COUNT, .count = k->batch},
        number_of("tokens_per_s", 1 / t, 1),
        range_of("tokens_per_s_range", 1 / series_quantile(&m->seconds[i], 1),
                 1 / series_quantile(&m->seconds[i], 0), 1),
        {.name = "bound", .text = what},
        number_of("bound_tokens_per_s", 1 / best, 1),
        number_of("share", best / t, 3),
        number_of("barriers", m->barriers[i], 0),
        {.name = "sampling_share",
         .kind = SL_VALUE_NUMBER,
         .absent = !samples,
         .number = samples ? series_median(&m->sampling[i]) : 0,
         .digits = 4},
        {.name = "kernels", .text = sl_model_info(m->m)->kernels},
        {.name = "threads", .kind = SL_VALUE_COUNT, .count = sl_workers_threads(b->workers)},
    };
    sl_values_add(to, all, sizeof all / sizeof *all);
    describe_peer(to, m, i);
}

static enum sl_code write_all(const struct bench *b, struct sl_error *err)
{
    struct sl_buf buf;
    sl_buf_init(&buf, TEXT_MAX);
    struct sl_json_out w = {.b = &buf};
    if (b->opt->json)
        sl_out_open(&w, '[');
    for (size_t i = 0; i < b->n_works; i++)
        for (size_t k = 0; k < b->n_models; k++) {
            struct sl_values v = {.n = 0};
            describe(&v, b, &b->models[k], i);
            if (b->opt->csv) {
                sl_values_csv(&buf, &v);
                continue;
            }
            sl_out_open(&w, '{');
            sl_values_json(&w, &v);
            sl_out_close(&w, '}');
        }
    if (b->opt->json) {
        sl_out_close(&w, ']');
        sl_buf_putc(&buf, '\n');
    }
    return sl_values_print(&buf, err);
}

enum sl_code sl_bench_steps(const struct sl_bench_steps *opt, struct sl_error *err)
{
    struct bench b = {.opt = opt};
    enum sl_code c = parse(&b, err);
    if (!c)
        c = open_all(&b, err);
    if (!c)
        c = measure_all(&b, err);
    if (!c) {
        if (opt->json || opt->csv)
            c = write_all(&b, err);
        else
            tell(&b);
    }
    close_all(&b);
    return c;
}
