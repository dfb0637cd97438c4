/* tokens_bench.c: how fast text becomes tokens and logits become one.
 *
 *     tokens_bench [TOKENIZER [TEXT]]    also encodes the file TEXT (this one, where it is not
 * given) with another tokenizer, a tokenizer.json say
 *
 * Encoding: MB/s over text made of the vocabulary's own tokens (a seeded draw, as even over the ids
 * as text is not: the trie's worst locality) and over repeated English, and the speed of memcpy
 * beside it. Choosing: µs a choice over 65,536 tokens, the median of rounds, for logits that are
 * flat (normal, σ 0.6, as a seeded model's), wide (σ 4) and learnt (a few hundred likely ones);
 * beside it the time of one pass of exp over the row. The copy of the row, which a choice may
 * overwrite, is not counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/models/embedded.h"
#include "engine/sampler.h"

#define WORLD "../shared/reference/tokenizer/rwkv_vocab_v20230424.txt"

enum { VOCAB = 65536, ROUNDS = 41, TEXT = 4 << 20 };

static uint64_t rng_state = 1;

static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, compare_doubles);
    return v[n / 2];
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

/* --- encoding ----------------------------------------------------------------------------------
 */

static size_t token_text(const struct sl_tokenizer *t, unsigned char *text)
{
    size_t n = 0;
    while (n < TEXT) {
        size_t len;
        const unsigned char *b = sl_tokenizer_bytes(t, rnd((uint32_t)sl_tokenizer_size(t)), &len);
        if (len > TEXT - n)
            break;
        if (len > 0)
            memcpy(text + n, b, len);
        n += len;
    }
    return n;
}

static size_t english_text(unsigned char *text)
{
    static const char words[] =
        "The memory of a recurrent model is a matrix of fixed size: it holds at token ten million "
        "exactly as many bytes as at token ten, and what it forgets is decided by a rule.\n";
    size_t n = 0;
    for (; n + sizeof words <= TEXT; n += sizeof words - 1)
        memcpy(text + n, words, sizeof words - 1);
    return n;
}

static void bench_encode(const char *name, const struct sl_tokenizer *t, const unsigned char *text,
                         size_t n)
{
    struct sl_token_list ids = {0};
    const struct sl_tokenizer_text whole = {.s = text, .n = n};
    struct sl_error err;
    unsigned char *copy = need(malloc(n));
    double us[ROUNDS / 4], copy_us[ROUNDS / 4];
    for (size_t i = 0; i < ROUNDS / 4; i++) {
        double a = now_us();
        ids.n = 0;
        if (sl_tokenizer_encode(t, &whole, &ids, &err)) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
        double b = now_us();
        memcpy(copy, text, n);
        us[i] = b - a;
        copy_us[i] = now_us() - b;
    }
    double taken = median(us, ROUNDS / 4);
    printf("  %-28s %7.1f MB/s %6.2f M tokens/s   %.2f bytes a token   (memcpy: %.0f MB/s)\n", name,
           (double)n / taken, (double)ids.n / taken, (double)n / (double)ids.n,
           (double)n / median(copy_us, ROUNDS / 4));
    free(copy);
    sl_token_list_done(&ids);
}

static void bench_tokenizer(const char *name, struct sl_tokenizer *t)
{
    unsigned char *text = need(malloc(TEXT));
    printf("encoding, %s (%zu ids)\n", name, sl_tokenizer_size(t));
    bench_encode("random tokens", t, text, token_text(t, text));
    bench_encode("repeated English", t, text, english_text(text));
    free(text);
    sl_tokenizer_close(t);
}

/* What a prompt may be: a file's text, as often as it fits. */
static size_t file_text(const char *path, unsigned char *text)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, TEXT, f) : 0;
    if (f)
        fclose(f);
    if (!n) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    return n;
}

static int bench_file(const char *tokenizer, const char *path)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    unsigned char *text = need(malloc(TEXT));
    double a = now_us();
    if (sl_tokenizer_open(&t, tokenizer, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("encoding, %s (%zu ids, opened in %.1f ms)\n", tokenizer, sl_tokenizer_size(t),
           (now_us() - a) / 1000);
    bench_encode(path, t, text, file_text(path, text));
    bench_encode("repeated English", t, text, english_text(text));
    memset(text, 'a', TEXT);
    bench_encode("one letter, a word of 1 MiB", t, text, 1 << 20);
    free(text);
    sl_tokenizer_close(t);
    return 0;
}

static int bench_tokenizers(void)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    size_t n;
    const void *vocab = sl_embedded_vocab_data(&n);
    if (sl_tokenizer_open_memory(&t, vocab, n, "embedded", &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    bench_tokenizer("the embedded vocabulary", t);
    if (access(WORLD, R_OK) != 0) {
        printf("skipped: the World vocabulary: ../shared/reference is not here\n");
        return 0;
    }
    double a = now_us();
    if (sl_tokenizer_open(&t, WORLD, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("opening the World vocabulary: %.1f ms\n", (now_us() - a) / 1000);
    bench_tokenizer("the World vocabulary", t);
    return 0;
}

/* --- choosing ----------------------------------------------------------------------------------
 */

static const struct setting {
    const char *name;
    float temperature;
    uint32_t top_k;
    float top_p, min_p, typical_p;
    bool penalties; /* on 1,000 tokens */
    int n_top;
} settings[] = {
    {"greedy", 0, 0, 1, 0, 1, false, -1},
    {"temperature 1", 1, 0, 1, 0, 1, false, -1},
    {"temperature 0.7", 0.7F, 0, 1, 0, 1, false, -1},
    {"temperature 0.1", 0.1F, 0, 1, 0, 1, false, -1},
    {"top_p 0.5", 1, 0, 0.5F, 0, 1, false, -1},
    {"top_p 0.9", 1, 0, 0.9F, 0, 1, false, -1},
    {"top_p 0.95, temperature 0.8", 0.8F, 0, 0.95F, 0, 1, false, -1},
    {"top_k 40", 1, 40, 1, 0, 1, false, -1},
    {"top_k 20000", 1, 20000, 1, 0, 1, false, -1},
    {"min_p 0.05", 1, 0, 1, 0.05F, 1, false, -1},
    {"typical_p 0.9", 1, 0, 1, 0, 0.9F, false, -1},
    {"top_k 40, top_p 0.95, temperature 0.8", 0.8F, 40, 0.95F, 0, 1, false, -1},
    {"penalties on 1,000 tokens", 1, 0, 1, 0, 1, true, -1},
    {"20 logprobs", 1, 0, 1, 0, 1, false, 20},
};

static double bench_choice(struct sl_sampler *s, struct sl_sampler_scratch *x,
                           const struct setting *set, const float *row, float *work)
{
    double us[ROUNDS];
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.temperature = set->temperature;
    p.top_k = set->top_k;
    p.top_p = set->top_p;
    p.min_p = set->min_p;
    p.typical_p = set->typical_p;
    if (set->penalties) {
        p.presence_penalty = p.frequency_penalty = 0.4F;
        p.penalty_decay = 0.996F;
    }
    sl_sampler_start(s, &p, NULL, 0);
    for (size_t i = 0; set->penalties && i < 1000; i++)
        sl_sampler_accept(s, rnd(VOCAB));
    for (size_t i = 0; i < ROUNDS; i++) {
        uint32_t token;
        struct sl_token_logprobs lp;
        memcpy(work, row, VOCAB * sizeof *row);
        double a = now_us();
        if (sl_sampler_choose(s, x, work, NULL, set->n_top, &token, &lp) != SL_OK)
            exit(1);
        us[i] = now_us() - a;
    }
    return median(us, ROUNDS);
}

static double gauss(void)
{
    double u = (rnd(1 << 24) + 0.5) / (1 << 24), v = (rnd(1 << 24) + 0.5) / (1 << 24);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v);
}

static void fill_row(float *row, double spread)
{
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = (float)(spread * gauss());
}

/* As of a model that has learnt something: some hundred tokens, ranked, above all others. */
static void fill_learnt(float *row)
{
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = (float)(2.2 * gauss() - 4);
    for (int rank = 1; rank < 400; rank++)
        row[rnd(VOCAB)] = (float)(14 - 2 * log(rank) + 0.3 * gauss());
}

static double bench_exp(const struct sl_kernels *k, const float *row, float *work)
{
    double us[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        double a = now_us();
        k->vexp(work, row, VOCAB);
        us[i] = now_us() - a;
    }
    return median(us, ROUNDS);
}

static int bench_sampler(void)
{
    const struct sl_kernels *k = sl_kernels_find(NULL);
    struct sl_sampler *s = NULL;
    struct sl_sampler_scratch *x = NULL;
    struct sl_error err;
    if (sl_sampler_open(&s, k, VOCAB, &err) || sl_sampler_scratch_open(&x, VOCAB, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    float *flat = need(aligned_alloc(SL_ALIGN, VOCAB * sizeof *flat));
    float *wide = need(aligned_alloc(SL_ALIGN, VOCAB * sizeof *wide));
    float *learnt = need(aligned_alloc(SL_ALIGN, VOCAB * sizeof *learnt));
    float *work = need(aligned_alloc(SL_ALIGN, VOCAB * sizeof *work));
    fill_row(flat, 0.6);
    fill_row(wide, 4);
    fill_learnt(learnt);
    printf("choosing among %d tokens, kernels %s, µs            flat    wide  learnt\n", (int)VOCAB,
           k->name);
    printf("  %-44s %8.1f\n", "(one pass of exp over the row)", bench_exp(k, flat, work));
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        double a = bench_choice(s, x, &settings[i], flat, work);
        double b = bench_choice(s, x, &settings[i], wide, work);
        double c = bench_choice(s, x, &settings[i], learnt, work);
        printf("  %-44s %8.1f %7.1f %7.1f\n", settings[i].name, a, b, c);
    }
    free(flat);
    free(wide);
    free(learnt);
    free(work);
    sl_sampler_close(s);
    sl_sampler_scratch_close(x);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return bench_file(argv[1], argc > 2 ? argv[2] : __FILE__);
    int rc = bench_tokenizers();
    if (!rc)
        rc = bench_file("tests/vectors/tokenizer/neox.json", "README.md");
    return rc ? rc : bench_sampler();
}
