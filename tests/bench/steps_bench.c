/* steps_bench.c: whole steps of a seeded RWKV-7 0.1B in F16: tokens per second in decode by the
 * number of sessions, and in prefill, beside the bounds that the machine sets, measured in the same
 * run.
 *
 *   steps_bench [rounds] [threads] [table]      (default: 5 rounds, 1 and 2 threads, the best
 * table)
 *
 * Bounds. One session: every weight but the embedding, and its state both ways, is read once a
 * token, at the speed of four streams a thread. Many: the floating-point operations of a token at
 * the speed of multiply-adds on registers. Limits and steps take turns, round by round; printed are
 * medians, and the share of the nearer bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "server/cli/limits.h"
#include "tests/support/runner.h"
#include "tests/support/seeded.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_THREADS = 2, SESSIONS = 64, PREFILL = 512 };

static const struct seeded_shape shape = SEEDED_0_1B;

static const struct work {
    const char *name;
    size_t sessions, chunk; /* a step has that many sessions with that many tokens each */
    size_t tokens;          /* of one measurement */
    bool logits;            /* of each session's last token, in each step */
} works[] = {
    {"decode, 1 session", 1, 1, 16, true},         {"decode, 8 sessions", 8, 1, 64, true},
    {"decode, 32 sessions", 32, 1, 128, true},     {"decode, 64 sessions", 64, 1, 192, true},
    {"prefill 512, one step", 1, 512, 512, false}, {"prefill 512, by 64", 1, 64, 512, false},
};

struct bench {
    struct sl_model *m;
    struct runner r;
    void *states[SESSIONS];
    float *logits;
    uint32_t tokens[PREFILL];
    const char *only;
    struct limits limits;
    struct series cells[COUNT(works)];
};

/* Operations of a token's way through the layers: two per weight of a matrix, and the recurrence,
 * which reads the state once and steps it: 9 per element. The head's are counted apart. */
static double layer_flop(void)
{
    double d = (double)shape.d_model, ranks = (double)(shape.rank_w + shape.rank_a + shape.rank_g);
    double mixer = 4 * d * d + 2 * d * (ranks + (double)shape.rank_v);
    double one = 2 * (mixer + 2 * d * (double)shape.d_ffn) + 9 * d * (double)shape.head_size;
    return one * (double)shape.n_layers;
}

static double head_flop(void)
{
    return 2 * (double)shape.d_model * (double)shape.vocab_size;
}

static double measure(struct bench *b, const struct work *w)
{
    struct sl_segment s[SESSIONS];
    size_t steps = w->tokens / (w->sessions * w->chunk);
    for (size_t i = 0; i < w->sessions; i++)
        s[i] = (struct sl_segment){.state = b->states[i],
                                   .tokens = b->tokens + (w->chunk == 1 ? i : 0),
                                   .n_tokens = w->chunk,
                                   .logits = w->logits ? b->logits + i * b->r.stride : NULL,
                                   .n_logits = w->logits};
    double begin = bench_now();
    for (size_t i = 0; i < steps; i++)
        sl_forward_run(b->r.forward, s, w->sessions);
    return (bench_now() - begin) / (double)w->tokens;
}

/* Seconds per token that no implementation of f32 arithmetic on these weights can beat. */
static double bound(const struct bench *b, const struct work *w, const char **ret_what)
{
    const struct sl_model_info *info = sl_model_info(b->m);
    double state = 2 * (double)info->state_bytes, weights = (double)info->weight_bytes;
    if (!w->logits) /* the head is not read */
        weights -= (double)sl_pack_bytes(info->weights, info->vocab_size, info->d_model);
    double rows = (double)(w->sessions * w->chunk);
    double bytes = (weights + state * (double)w->sessions) / rows;
    double memory = bytes / 1e9 / series_median(&b->limits.read_4);
    double flop = layer_flop() + (w->logits ? head_flop() : 0);
    double arithmetic = b->limits.fma.n ? flop / 1e9 / series_median(&b->limits.fma) : 0;
    *ret_what = memory > arithmetic ? "memory" : "arithmetic";
    return memory > arithmetic ? memory : arithmetic;
}

static void print(const struct bench *b, size_t n_threads)
{
    printf("\n%s, %zu thread%s: reading %.1f GB/s (%.1f to %.1f)", sl_model_info(b->m)->kernels,
           n_threads, n_threads > 1 ? "s" : "", series_median(&b->limits.read_4),
           series_quantile(&b->limits.read_4, 0), series_quantile(&b->limits.read_4, 1));
    if (b->limits.fma.n)
        printf(", multiply-adds %.1f GFLOP/s (%.1f to %.1f)", series_median(&b->limits.fma),
               series_quantile(&b->limits.fma, 0), series_quantile(&b->limits.fma, 1));
    printf("\n  %-22s %10s %22s %10s %7s  of\n", "", "tokens/s", "(range)", "bound", "share");
    for (size_t i = 0; i < COUNT(works); i++) {
        if (b->cells[i].n == 0)
            continue;
        const char *what;
        double best = bound(b, &works[i], &what), t = series_median(&b->cells[i]);
        printf("  %-22s %10.1f   (%7.1f to %7.1f) %10.1f %6.0f%%  %s\n", works[i].name, 1 / t,
               1 / series_quantile(&b->cells[i], 1), 1 / series_quantile(&b->cells[i], 0), 1 / best,
               100 * best / t, what);
    }
}

static void run(struct bench *b, size_t n_threads, size_t n_rounds)
{
    memset(&b->limits, 0, sizeof b->limits);
    memset(b->cells, 0, sizeof b->cells);
    runner_open(&b->r, b->m, n_threads, PREFILL, SESSIONS);
    for (size_t round = 0; round < n_rounds; round++) {
        /* The weights themselves: as large as a model, in the pages they are read from. */
        limits_measure(&b->limits, b->r.workers, sl_model_info(b->m)->kernels, b->m->arena,
                       sl_model_info(b->m)->weight_bytes);
        for (size_t i = 0; i < COUNT(works); i++)
            if (strstr(works[i].name, b->only))
                series_add(&b->cells[i], measure(b, &works[i]));
    }
    print(b, n_threads);
    runner_close(&b->r);
}

int main(int argc, char **argv)
{
    static struct bench b;
    size_t n_rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    size_t threads = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    const struct sl_model_options opt = {.kernels = argc > 3 && argv[3][0] ? argv[3] : NULL};
    b.only = argc > 4 ? argv[4] : "";
    unsigned char *bytes;
    size_t n_bytes;
    if (n_rounds < 1 || n_rounds > SERIES_MAX || threads > MAX_THREADS) {
        fprintf(stderr, "usage: steps_bench [1 to %d rounds] [0 to %d threads] [table] [work]\n",
                SERIES_MAX, MAX_THREADS);
        return 2;
    }
    b.m = seeded_open(&shape, &opt, &bytes, &n_bytes);
    const struct sl_model_info *info = sl_model_info(b.m);
    printf(
        "RWKV-7, %zu x %zu, %s: %.1f MB of weights, %.2f MB of state, %.0f MFLOP a token and %.0f "
        "for its logits\n",
        info->n_layers, info->d_model, sl_dtype_name(info->weights),
        (double)info->weight_bytes / 1e6, (double)info->state_bytes / 1e6, layer_flop() / 1e6,
        head_flop() / 1e6);
    for (size_t i = 0; i < SESSIONS; i++)
        b.states[i] = runner_state(b.m);
    for (size_t i = 0; i < PREFILL; i++)
        b.tokens[i] = (uint32_t)(i * 2654435761u % info->vocab_size);
    b.logits = runner_logits(b.m, SESSIONS);
    for (size_t t = 1; t <= MAX_THREADS; t++)
        if (threads == 0 || threads == t)
            run(&b, t, n_rounds);
    for (size_t i = 0; i < SESSIONS; i++)
        sl_free(b.states[i]);
    sl_free(b.logits);
    sl_model_close(b.m);
    free(bytes);
    return 0;
}
