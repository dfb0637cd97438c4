/* gguf_models.c: see gguf_models.h.
 *
 * Every row is a whole number of the blocks that its file has: 32 weights, or 256 in the wide
 * model. The ranks of RWKV-6 are those that llama.cpp's converter takes for granted, the head of 64
 * of RWKV-7 is what its AVX-512 kernel does (heads of 16 give it other logits in a batch than one
 * by one). */
#include "tests/support/gguf_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_priv.h"
#include "tests/support/rules.h"

enum { VOCAB = 272 };

struct list {
    struct seeded *s;
    enum sl_dtype dtype;
    const char *prefix; /* of a layer's names */
};

static struct seeded_tensor *add(const struct list *l, size_t i, const char *name, unsigned rank,
                                 const size_t *shape, double mean, double spread)
{
    char full[64];
    (void)snprintf(full, sizeof full, "%s%zu.%s", l->prefix, i, name);
    return seeded_add(l->s, l->dtype, rank, shape, mean, spread, full);
}

static struct seeded_tensor *vec(const struct list *l, size_t i, const char *name, size_t n,
                                 double mean, double spread)
{
    return add(l, i, name, 1, &n, mean, spread);
}

static void mat(const struct list *l, size_t i, const char *name, size_t rows, size_t cols,
                size_t n_in, double gain)
{
    add(l, i, name, 2, (size_t[]){rows, cols}, 0, gain / sqrt((double)n_in));
}

static void norm(const struct list *l, size_t i, const char *name, size_t n)
{
    char full[32];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    vec(l, i, full, n, 1, 0.1);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    vec(l, i, full, n, 0, 0.05);
}

static void end(const struct list *l, const char *name, size_t rows, size_t cols, double mean,
                double spread)
{
    if (rows)
        seeded_add(l->s, l->dtype, 2, (size_t[]){rows, cols}, mean, spread, name);
    else
        seeded_add(l->s, l->dtype, 1, &cols, mean, spread, name);
}

/* --- RWKV-7 -------------------------------------------------------------------------------------
 */

static void rwkv7(struct seeded *s, enum sl_dtype dtype)
{
    const struct seeded_shape shape = {.n_layers = 2,
                                       .d_model = 64,
                                       .head_size = 64,
                                       .d_ffn = 64,
                                       .vocab_size = VOCAB,
                                       .rank_w = 8,
                                       .rank_a = 12,
                                       .rank_v = 4,
                                       .rank_g = 16,
                                       .dtype = dtype,
                                       .seed = 71};
    seeded_init(s, &shape);
}

/* --- RWKV-6 -------------------------------------------------------------------------------------
 */

static void rwkv6_layer(const struct list *l, size_t i)
{
    enum { D = 32, HEADS = 2, N = 16, FFN = 64, MIX = 32, DECAY = 64 };
    char name[24];
    if (i == 0)
        norm(l, i, "ln0", D);
    norm(l, i, "ln1", D);
    norm(l, i, "ln2", D);
    norm(l, i, "att.ln_x", D);
    for (const char *x = "xwkvrg"; *x; x++) {
        (void)snprintf(name, sizeof name, "att.time_maa_%c", *x);
        vec(l, i, name, D, 0.5, 0.28);
    }
    mat(l, i, "att.time_maa_w1", D, 5 * MIX, D, 1);
    add(l, i, "att.time_maa_w2", 3, (size_t[]){5, MIX, D}, 0, 0.3 / sqrt(MIX));
    vec(l, i, "att.time_decay", D, -3.7, 0.1)->ramp = 3.2F;
    mat(l, i, "att.time_decay_w1", D, DECAY, D, 1);
    mat(l, i, "att.time_decay_w2", DECAY, D, DECAY, 0.5);
    add(l, i, "att.time_faaaa", 2, (size_t[]){HEADS, N}, 0.5, 0.4);
    mat(l, i, "att.key.weight", D, D, D, 1);
    mat(l, i, "att.value.weight", D, D, D, 1);
    mat(l, i, "att.receptance.weight", D, D, D, 1);
    mat(l, i, "att.gate.weight", D, D, D, 2);
    mat(l, i, "att.output.weight", D, D, D, 0.5);
    vec(l, i, "ffn.time_maa_k", D, 0.5, 0.28);
    vec(l, i, "ffn.time_maa_r", D, 0.5, 0.28);
    mat(l, i, "ffn.key.weight", FFN, D, D, 1);
    mat(l, i, "ffn.receptance.weight", D, D, D, 1);
    mat(l, i, "ffn.value.weight", D, FFN, FFN, 0.5);
}

static void rwkv6(struct seeded *s, enum sl_dtype dtype)
{
    enum { D = 32 };
    *s = (struct seeded){.seed = 61};
    const struct list l = {s, dtype, "blocks."};
    end(&l, "emb.weight", VOCAB, D, 0, 1);
    for (size_t i = 0; i < 2; i++)
        rwkv6_layer(&l, i);
    end(&l, "ln_out.weight", 0, D, 1, 0.1);
    end(&l, "ln_out.bias", 0, D, 0, 0.05);
    end(&l, "head.weight", VOCAB, D, 0, 2 / sqrt(D));
}

/* --- Mamba-2 ------------------------------------------------------------------------------------
 */

/* Heads of d_inner / heads channels, B and C of 16 numbers for each group. */
static void mamba(struct seeded *s, enum sl_dtype dtype, size_t layers, size_t d, size_t d_inner,
                  size_t groups, bool tied)
{
    enum { HEADS = 4, STATE = 16, TAPS = 4 };
    *s = (struct seeded){.seed = 21};
    const struct list l = {s, dtype, "backbone.layers."};
    size_t n_conv = d_inner + 2 * groups * STATE, n_in = d_inner + n_conv + HEADS;
    end(&l, "backbone.embeddings.weight", VOCAB, d, 0, tied ? 2 / sqrt((double)d) : 1);
    end(&l, "backbone.norm_f.weight", 0, d, 1, 0.1);
    if (!tied)
        end(&l, "lm_head.weight", VOCAB, d, 0, 2 / sqrt((double)d));
    for (size_t i = 0; i < layers; i++) {
        vec(&l, i, "norm.weight", d, 1, 0.1);
        mat(&l, i, "mixer.in_proj.weight", n_in, d, d, 1);
        mat(&l, i, "mixer.out_proj.weight", d, d_inner, d_inner, 0.5);
        add(&l, i, "mixer.conv1d.weight", 3, (size_t[]){n_conv, 1, TAPS}, 0, 1 / sqrt(TAPS));
        vec(&l, i, "mixer.conv1d.bias", n_conv, 0, 0.2);
        vec(&l, i, "mixer.A_log", HEADS, 0, 1);
        vec(&l, i, "mixer.dt_bias", HEADS, -2, 1);
        vec(&l, i, "mixer.D", HEADS, 1, 0.3);
        vec(&l, i, "mixer.norm.weight", d_inner, 1, 0.1);
    }
}

static void mamba2(struct seeded *s, enum sl_dtype dtype)
{
    mamba(s, dtype, 2, 32, 64, 2, false);
}

static void mamba2_wide(struct seeded *s, enum sl_dtype dtype)
{
    mamba(s, dtype, 1, 256, 256, 1, true);
}

#define MAMBA "{\"model_type\":\"mamba2\",\"vocab_size\":272,\"norm_eps\":1e-5,\"state_size\":16"
#define NARROW                                                                                     \
    MAMBA ",\"hidden_size\":32,\"num_hidden_layers\":2,\"expand\":2,\"head_dim\":16,"              \
          "\"n_groups\":2,\"tie_word_embeddings\":false}"
#define WIDE                                                                                       \
    MAMBA ",\"hidden_size\":256,\"num_hidden_layers\":1,\"expand\":1,\"head_dim\":64,"             \
          "\"n_groups\":1,\"tie_word_embeddings\":true}"

const struct gguf_model gguf_models[] = {
    {"rwkv7-q4_q8", NULL, SL_DTYPE_F32, rwkv7},
    {"rwkv6-f16", NULL, SL_DTYPE_F16, rwkv6},
    {"mamba2-bf16", NARROW, SL_DTYPE_BF16, mamba2},
    {"mamba2-q4_k_m", WIDE, SL_DTYPE_F32, mamba2_wide},
    {0},
};

const struct gguf_model *gguf_model_find(const char *name)
{
    for (const struct gguf_model *m = gguf_models; m->name; m++)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

struct sl_model *gguf_model_open(const struct gguf_model *m, enum sl_dtype weights,
                                 unsigned char **ret_bytes)
{
    struct seeded s;
    struct sl_error err;
    struct sl_model *model = NULL;
    enum sl_code c;
    m->list(&s, m->dtype);
    if (m->settings) {
        assert_int_equal(weights, SL_DTYPE_NONE);
        c = rule_open_list(&model, &s, m->settings, ret_bytes, &err);
    } else {
        size_t n;
        const struct sl_model_options opt = {.weights = weights};
        *ret_bytes = seeded_bytes(&s, &n);
        c = sl_model_open_memory(&model, *ret_bytes, n, "seeded", &opt, &err);
    }
    seeded_done(&s);
    if (c)
        fail_msg("%s: %s", m->name, err.message);
    return model;
}
