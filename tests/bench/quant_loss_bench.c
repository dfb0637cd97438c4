/* quant_loss_bench.c: what weights of 8 and 4 bits cost: how far a model's predictions are from
 * those of the same weights in F32.
 *
 *   quant_loss_bench [FILE]      (default: the embedded model, and a seeded one)
 *
 * The embedded model reads the conversations that `slate probe model` asks it for; others read
 * tokens of no meaning. Printed are the mean and the 99th hundredth of the Kullback-Leibler
 * divergence of the next token's distribution, and how often the likeliest token is the same. For
 * comparison the same with the weights put through llama.cpp's Q8_0 and Q4_0 (each value replaced
 * by the one that its block would give back): computed in F32, without what 8-bit inputs cost and
 * with the head left alone, both in that program's favour; and those of Q8_0 with inputs of 8 bits
 * and a head of 8 bits, as that program computes (a block's values keep their codes: its largest is
 * 127 times its scale). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/convert.h"
#include "engine/model_priv.h"
#include "engine/models/embedded.h"
#include "slate/tokenizer.h"
#include "tests/support/must.h"
#include "tests/support/runner.h"
#include "tests/support/seeded.h"

enum { BLOCK = 32, LENGTH = 256, SEQUENCES = 40, TOKENS = LENGTH * SEQUENCES };

/* --- the other program's blocks -----------------------------------------------------------------
 */

static float half(float x)
{
    return sl_f32_from_f16(sl_f16_from_f32(x));
}

/* Codes are for the scale before it is rounded to F16. */
static void through_q8_0(float w[BLOCK])
{
    float m = 0;
    for (size_t i = 0; i < BLOCK; i++)
        m = fmaxf(m, fabsf(w[i]));
    float d = m / 127, inverse = d > 0 ? 1 / d : 0;
    for (size_t i = 0; i < BLOCK; i++)
        w[i] = roundf(w[i] * inverse) * half(d);
}

static void through_q4_0(float w[BLOCK])
{
    float top = 0;
    for (size_t i = 0; i < BLOCK; i++)
        top = fabsf(w[i]) > fabsf(top) ? w[i] : top;
    float d = top / -8, inverse = fabsf(d) > 0 ? 1 / d : 0;
    for (size_t i = 0; i < BLOCK; i++)
        w[i] = (fminf(floorf(w[i] * inverse + 8.5F), 15) - 8) * half(d);
}

static bool is_projection(const char *name)
{
    static const char *const ends[] = {"att.receptance.weight", "att.key.weight",
                                       "att.value.weight",      "att.output.weight",
                                       "ffn.key.weight",        "ffn.value.weight"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]), len = strlen(name);
        if (len >= n && strcmp(name + len - n, ends[i]) == 0)
            return true;
    }
    return false;
}

/* In place, in the bytes of a file in memory. */
static void put_through(unsigned char *bytes, size_t n, void (*through)(float w[BLOCK]))
{
    struct sl_tensors *ts = NULL;
    struct sl_error err;
    must(sl_tensors_open_memory(&ts, bytes, n, "copy", &err), &err);
    for (size_t t = 0; t < ts->n; t++) {
        const struct sl_tensor *x = &ts->v[t];
        size_t size = sl_dtype_size(x->dtype);
        if (!is_projection(x->name))
            continue;
        for (size_t i = 0; i + BLOCK <= x->n_elements; i += BLOCK) {
            unsigned char *at = bytes + (x->data - bytes) + i * size;
            float w[BLOCK];
            sl_widen(w, at, x->dtype, BLOCK);
            through(w);
            for (size_t k = 0; k < BLOCK; k++) {
                uint16_t h =
                    x->dtype == SL_DTYPE_BF16 ? sl_bf16_from_f32(w[k]) : sl_f16_from_f32(w[k]);
                memcpy(at + k * size, size == 2 ? (const void *)&h : (const void *)&w[k], size);
            }
        }
    }
    sl_tensors_close(ts);
}

/* --- measuring ----------------------------------------------------------------------------------
 */

struct text {
    uint32_t tokens[TOKENS];
};

/* Log probabilities of every position, [TOKENS][vocab]. */
static float *log_probabilities(const struct sl_model *m, const struct text *text)
{
    struct runner r;
    size_t vocab = sl_model_info(m)->vocab_size;
    runner_open(&r, m, sl_processors(), LENGTH, 1);
    float *logits = runner_logits(m, LENGTH);
    float *out = must_have(malloc((size_t)TOKENS * vocab * sizeof *out));
    for (size_t s = 0; s < SEQUENCES; s++) {
        void *state = runner_state(m);
        runner_feed(&r, state, text->tokens + s * LENGTH, LENGTH, LENGTH, logits);
        for (size_t i = 0; i < LENGTH; i++) {
            const float *x = logits + i * r.stride;
            double top = (double)x[runner_argmax(x, vocab)], sum = 0;
            for (size_t v = 0; v < vocab; v++)
                sum += exp((double)x[v] - top);
            for (size_t v = 0; v < vocab; v++)
                out[(s * LENGTH + i) * vocab + v] = (float)((double)x[v] - top - log(sum));
        }
        sl_free(state);
    }
    sl_free(logits);
    runner_close(&r);
    return out;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const char *name, const float *want, const float *got, size_t vocab,
                    size_t bytes)
{
    static double kl[TOKENS];
    double sum = 0;
    size_t same = 0;
    for (size_t i = 0; i < TOKENS; i++) {
        const float *p = want + i * vocab, *q = got + i * vocab;
        kl[i] = 0;
        for (size_t v = 0; v < vocab; v++)
            kl[i] += exp((double)p[v]) * ((double)p[v] - (double)q[v]);
        sum += kl[i];
        same += runner_argmax(p, vocab) == runner_argmax(q, vocab);
    }
    qsort(kl, TOKENS, sizeof *kl, by_size);
    printf("  %-26s %9.6f   %9.6f      %6.2f %%", name, sum / TOKENS, kl[TOKENS * 99 / 100],
           100.0 * (double)same / TOKENS);
    if (bytes)
        printf("   %7.2f MB", (double)bytes / 1e6);
    printf("\n");
}

static struct sl_model *open_bytes(const unsigned char *bytes, size_t n, enum sl_dtype weights)
{
    struct sl_model *m = NULL;
    struct sl_error err;
    const struct sl_model_options opt = {.weights = weights};
    must(sl_model_open_memory(&m, bytes, n, "bench", &opt, &err), &err);
    return m;
}

static void measure(const char *title, const unsigned char *bytes, size_t n,
                    const struct text *text)
{
    static const struct {
        const char *name;
        enum sl_dtype type;
        void (*through)(float w[BLOCK]);
    } ways[] = {{"BF16", SL_DTYPE_BF16, NULL},
                {"Q8", SL_DTYPE_Q8, NULL},
                {"Q4", SL_DTYPE_Q4, NULL},
                {"llama.cpp's Q8_0", SL_DTYPE_Q8, through_q8_0},
                {"llama.cpp's Q8_0 values", SL_DTYPE_F32, through_q8_0},
                {"llama.cpp's Q4_0 values", SL_DTYPE_F32, through_q4_0}};
    struct sl_model *m = open_bytes(bytes, n, SL_DTYPE_F32);
    size_t vocab = sl_model_info(m)->vocab_size;
    printf("\n%s, %d tokens, F32: %.2f MB\n  %-26s   mean KL   99 of 100   same token\n", title,
           TOKENS, (double)sl_model_info(m)->weight_bytes / 1e6, "");
    float *want = log_probabilities(m, text);
    sl_model_close(m);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        unsigned char *copy = must_have(malloc(n));
        memcpy(copy, bytes, n);
        if (ways[i].through)
            put_through(copy, n, ways[i].through);
        m = open_bytes(copy, n, ways[i].type);
        float *got = log_probabilities(m, text);
        compare(ways[i].name, want, got, vocab,
                ways[i].through ? 0 : sl_model_info(m)->weight_bytes);
        free(got);
        sl_model_close(m);
        free(copy);
    }
    free(want);
}

/* The answers that the embedded model is probed for, as conversations. */
static void conversations(struct text *ret)
{
    size_t n_vocab, n_probe, n = 0;
    const void *vocabulary = sl_embedded_vocab_data(&n_vocab);
    const char *probe = sl_embedded_probe_data(&n_probe), *end = probe + n_probe;
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    must(sl_tokenizer_open_memory(&t, vocabulary, n_vocab, "embedded", &err), &err);
    while (n < TOKENS) {
        if (probe >= end)
            probe = end - n_probe;
        const char *line = memchr(probe, '\n', (size_t)(end - probe));
        const char *one = memchr(probe, '\t', (size_t)(line - probe));
        const char *two = one ? memchr(one + 1, '\t', (size_t)(line - one - 1)) : NULL;
        char turn[1024];
        static uint32_t ids[sizeof turn];
        if (two) {
            (void)snprintf(turn, sizeof turn, "User: %.*s\n\nAssistant: %.*s\n\n",
                           (int)(two - one - 1), one + 1, (int)(line - two - 1), two + 1);
            size_t k = sl_tokenizer_encode_part(t, turn, strlen(turn), ids);
            for (size_t i = 0; i < k && n < TOKENS; i++)
                ret->tokens[n++] = ids[i];
        }
        probe = line + 1;
    }
    sl_tokenizer_close(t);
}

static void no_meaning(struct text *ret, size_t vocab)
{
    for (size_t i = 0; i < TOKENS; i++)
        ret->tokens[i] = (uint32_t)(i * 2654435761u % vocab);
}

static unsigned char *read_file(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    long n = ftell(f);
    unsigned char *bytes = must_have(malloc((size_t)n));
    rewind(f);
    if (fread(bytes, 1, (size_t)n, f) != (size_t)n) {
        perror(path);
        exit(1);
    }
    (void)fclose(f);
    *ret_n = (size_t)n;
    return bytes;
}

int main(int argc, char **argv)
{
    static struct text text;
    size_t n;
    if (argc > 1) {
        unsigned char *bytes = read_file(argv[1], &n);
        struct sl_model *m = open_bytes(bytes, n, SL_DTYPE_NONE);
        no_meaning(&text, sl_model_info(m)->vocab_size);
        sl_model_close(m);
        measure(argv[1], bytes, n, &text);
        free(bytes);
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    conversations(&text);
    const unsigned char *embedded = sl_embedded_model_data(&n);
    measure("the embedded model", embedded, n, &text);

    struct seeded_shape shape = SEEDED_0_1B;
    shape.n_layers = 4, shape.vocab_size = 2048, shape.dtype = SL_DTYPE_F32;
    struct seeded s;
    seeded_init(&s, &shape);
    unsigned char *bytes = seeded_bytes(&s, &n);
    no_meaning(&text, shape.vocab_size);
    measure("seeded, 4 x 768", bytes, n, &text);
    free(bytes);
    seeded_done(&s);
    return 0;
}
