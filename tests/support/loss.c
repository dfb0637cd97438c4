/* loss.c: see loss.h. */
#include "tests/support/loss.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "engine/model_priv.h"
#include "slate/tokenizer.h"
#include "tests/support/must.h"
#include "tests/support/runner.h"

/* --- text ---------------------------------------------------------------------------------------
 */

struct conversations {
    uint32_t *to;
    size_t n, skip;
};

/* A line of probe.txt: what it is about, what the user says, what the model answers. */
static void add_turn(struct conversations *c, const struct sl_tokenizer *t, const char *line,
                     const char *end)
{
    const char *one = memchr(line, '\t', (size_t)(end - line));
    const char *two = one ? memchr(one + 1, '\t', (size_t)(end - one - 1)) : NULL;
    char turn[1024];
    static uint32_t ids[sizeof turn];
    if (!two)
        return;
    (void)snprintf(turn, sizeof turn, "User: %.*s\n\nAssistant: %.*s\n\n", (int)(two - one - 1),
                   one + 1, (int)(end - two - 1), two + 1);
    size_t k = sl_tokenizer_encode_part(t, turn, strlen(turn), ids);
    for (size_t i = 0; i < k && c->n > 0; i++)
        if (c->skip > 0) {
            c->skip--;
        } else {
            *c->to++ = ids[i];
            c->n--;
        }
}

void loss_conversations(uint32_t *ret, size_t n, size_t skip)
{
    size_t n_vocab, n_probe;
    const void *vocabulary = sl_embedded_vocab_data(&n_vocab);
    const char *probe = sl_embedded_probe_data(&n_probe), *end = probe + n_probe;
    struct conversations c = {ret, n, skip};
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    must(sl_tokenizer_open_memory(&t, vocabulary, n_vocab, "embedded", &err), &err);
    while (c.n > 0) {
        assert(probe < end); /* there are not so many */
        const char *line = memchr(probe, '\n', (size_t)(end - probe));
        add_turn(&c, t, probe, line);
        probe = line + 1;
    }
    sl_tokenizer_close(t);
}

void loss_no_meaning(uint32_t *ret, size_t n, size_t vocab)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < n; i++)
        ret[i] = (uint32_t)(sl_random_next(&seed) % vocab);
}

/* --- predictions --------------------------------------------------------------------------------
 */

void loss_normalise(float *x, size_t n, size_t vocab)
{
    for (; n > 0; n--, x += vocab) {
        double top = (double)x[runner_argmax(x, vocab)], sum = 0;
        for (size_t v = 0; v < vocab; v++)
            sum += (double)expf((float)((double)x[v] - top));
        double all = top + log(sum);
        for (size_t v = 0; v < vocab; v++)
            x[v] = (float)((double)x[v] - all);
    }
}

float *loss_log_probabilities(const struct sl_model *m, const uint32_t *tokens, size_t n)
{
    assert(n % LOSS_LENGTH == 0);
    struct runner r;
    size_t vocab = sl_model_info(m)->vocab_size;
    runner_open(&r, m, sl_processors(), LOSS_LENGTH, 1);
    float *logits = runner_logits(m, LOSS_LENGTH);
    float *out = must_have(malloc(n * vocab * sizeof *out));
    for (size_t s = 0; s < n; s += LOSS_LENGTH) {
        void *state = runner_state(m);
        runner_feed(&r, state, tokens + s, LOSS_LENGTH, LOSS_LENGTH, logits);
        for (size_t i = 0; i < LOSS_LENGTH; i++)
            memcpy(out + (s + i) * vocab, logits + i * r.stride, vocab * sizeof *out);
        sl_free(state);
    }
    loss_normalise(out, n, vocab);
    sl_free(logits);
    runner_close(&r);
    return out;
}

/* --- compared -----------------------------------------------------------------------------------
 */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Σ p log(p/q), as a sum of what is never negative: of distributions p (log(p/q) - 1 + q/p). */
static double divergence(const float *p, const float *q, size_t vocab)
{
    double sum = 0;
    for (size_t v = 0; v < vocab; v++) {
        float d = q[v] - p[v];
        sum += (double)expf(p[v]) * (double)(expm1f(d) - d);
    }
    return sum;
}

double loss_difference(const double *a, const double *b, size_t n, double *ret_error)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        mean += (a[i] - b[i]) / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean);
    *ret_error = n > 1 ? sqrt(squares / (double)(n * (n - 1))) : INFINITY;
    return mean;
}

struct loss loss_of(const float *want, const float *got, size_t n, size_t vocab)
{
    static const double zeros[LOSS_SEQUENCES_MAX];
    struct loss r = {.n_sequences = n / LOSS_LENGTH};
    double *kl = must_have(malloc(n * sizeof *kl));
    assert(n % LOSS_LENGTH == 0 && r.n_sequences <= LOSS_SEQUENCES_MAX);
    for (size_t i = 0; i < n; i++) {
        const float *p = want + i * vocab, *q = got + i * vocab;
        kl[i] = divergence(p, q, vocab);
        r.kl_of[i / LOSS_LENGTH] += kl[i] / LOSS_LENGTH;
        if (runner_argmax(p, vocab) == runner_argmax(q, vocab))
            r.same_of[i / LOSS_LENGTH] += 1.0 / LOSS_LENGTH;
    }
    r.kl = loss_difference(r.kl_of, zeros, r.n_sequences, &r.kl_error);
    r.same = loss_difference(r.same_of, zeros, r.n_sequences, &r.same_error);
    qsort(kl, n, sizeof *kl, by_size);
    r.kl_99 = kl[n * 99 / 100];
    free(kl);
    return r;
}

/* --- models -------------------------------------------------------------------------------------
 */

struct sl_model *loss_open(const void *file, size_t n, enum sl_dtype weights)
{
    struct sl_model *m = NULL;
    struct sl_error err;
    const struct sl_model_options opt = {.weights = weights};
    must(sl_model_open_memory(&m, file, n, "a model", &opt, &err), &err);
    return m;
}

/* What that program asks for besides; token 0 ends texts. */
static void add_keys(struct gguf_maker *g, size_t vocab)
{
    char(*texts)[24] = must_have(malloc(vocab * sizeof *texts));
    const char **at = must_have(malloc(vocab * sizeof *at));
    int32_t *kinds = must_have(malloc(vocab * sizeof *kinds));
    for (size_t i = 0; i < vocab; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "t%zu", i);
        at[i] = texts[i];
        kinds[i] = i == 0 ? 3 : 1; /* a control token, normal ones */
    }
    gguf_u32(g, "rwkv7.context_length", 1 << 20);
    gguf_u32(g, "rwkv7.attention.head_count", 0);
    gguf_text(g, "tokenizer.ggml.model", "rwkv");
    gguf_texts(g, "tokenizer.ggml.tokens", at, vocab);
    gguf_words(g, "tokenizer.ggml.token_type", MAKE_I32, kinds, vocab);
    gguf_u32(g, "tokenizer.ggml.bos_token_id", 0);
    gguf_u32(g, "tokenizer.ggml.eos_token_id", 0);
    free(kinds);
    free(at);
    free(texts);
}

struct bytes loss_gguf(const unsigned char *file, size_t n,
                       const struct peer_blocks *(*blocks)(const char *file_name))
{
    struct gguf_maker g = {0};
    struct sl_tensors *t = NULL;
    struct sl_error err;
    struct bytes ret = {0};
    struct sl_model *m = loss_open(file, n, SL_DTYPE_NONE);
    const struct sl_model_info *info = sl_model_info(m);
    const struct gguf_sizes sizes = {.arch = "rwkv7",
                                     .n_layers = info->n_layers,
                                     .d_model = info->d_model,
                                     .head_size = info->head_size,
                                     .dtype = SL_DTYPE_F32,
                                     .blocks = blocks};
    must(sl_tensors_open_memory(&t, file, n, "a model", &err), &err);
    gguf_from_tensors(&g, t, &sizes);
    add_keys(&g, info->vocab_size);
    gguf_end(&g, &ret);
    gguf_done(&g);
    sl_tensors_close(t);
    sl_model_close(m);
    return ret;
}
