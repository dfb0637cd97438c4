/* rules.c: see rules.h. */
#include "tests/support/rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model_priv.h"
#include "tests/support/rules_priv.h"

enum { LAYERS = 2, D = 40, FFN = 72, VOCAB = 300, TAPS = 4 };

#define SIZES                                                                                      \
    "\"hidden_size\":40,\"num_hidden_layers\":2,\"intermediate_size\":72,\"vocab_size\":300,"      \
    "\"bos_token_id\":1"

/* --- lists --- */

/* A matrix that keeps the size of what goes through it, times `gain`. */
static void mat(struct seeded *s, size_t rows, size_t cols, double gain, const char *name, size_t i)
{
    char full[64];
    (void)snprintf(full, sizeof full, "%s%zu.%s", s->prefix, i, name);
    seeded_add(s, SL_DTYPE_F32, 2, (size_t[]){rows, cols}, 0, gain / sqrt((double)cols), full);
}

static struct seeded_tensor *vec(struct seeded *s, size_t n, double mean, double spread,
                                 const char *name, size_t i)
{
    char full[64];
    (void)snprintf(full, sizeof full, "%s%zu.%s", s->prefix, i, name);
    return seeded_add(s, SL_DTYPE_F32, 1, &n, mean, spread, full);
}

static void conv(struct seeded *s, size_t n, const char *name, size_t i)
{
    char full[64];
    (void)snprintf(full, sizeof full, "%s%zu.%s", s->prefix, i, name);
    seeded_add(s, SL_DTYPE_F32, 3, (size_t[]){n, 1, TAPS}, 0, 0.5, full);
}

static void convs(struct seeded *s, size_t q, size_t k, size_t v, size_t i)
{
    conv(s, q, "attn.q_conv1d.weight", i);
    conv(s, k, "attn.k_conv1d.weight", i);
    conv(s, v, "attn.v_conv1d.weight", i);
}

static void qkvo(struct seeded *s, size_t q, size_t k, size_t v, size_t o, size_t i)
{
    mat(s, q, D, 1, "attn.q_proj.weight", i);
    mat(s, k, D, 1, "attn.k_proj.weight", i);
    mat(s, v, D, 1, "attn.v_proj.weight", i);
    mat(s, D, o, 0.5, "attn.o_proj.weight", i);
}

static void named(struct seeded *s, const char *name, size_t rows, size_t cols, double gain)
{
    seeded_add(s, SL_DTYPE_F32, 2, (size_t[]){rows, cols}, 0, gain, name);
}

/* What stands around the mixers; `legacy` has gate and up projection in one tensor. */
static void frame(struct seeded *s, bool tied, bool legacy)
{
    const size_t d = D;
    *s = (struct seeded){.seed = 17, .prefix = "model.layers."};
    named(s, "model.embeddings.weight", VOCAB, D, 1);
    seeded_add(s, SL_DTYPE_F32, 1, &d, 1, 0.1, "model.norm.weight");
    if (!tied)
        named(s, "lm_head.weight", VOCAB, D, 2 / sqrt(D));
    for (size_t i = 0; i < LAYERS; i++) {
        vec(s, D, 1, 0.1, "attn_norm.weight", i);
        vec(s, D, 1, 0.1, "mlp_norm.weight", i);
        mat(s, legacy ? 2 * FFN : FFN, D, 1, "mlp.gate_proj.weight", i);
        if (!legacy)
            mat(s, FFN, D, 1, "mlp.up_proj.weight", i);
        mat(s, D, FFN, 0.5, "mlp.down_proj.weight", i);
    }
}

/* heads of 10, one pair of keys and values for two of queries; maps with two matrices each */
static void linear_product(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 20, 20, 40, i);
        vec(s, 10, 1, 0.1, "attn.norm.weight", i);
        for (size_t j = 0; j < 4; j++) {
            char name[48];
            (void)snprintf(name, sizeof name, "attn.feature_map_%c.layer%zu.weight", "qk"[j / 2],
                           j % 2 + 1);
            mat(s, 10, 10, 1, name, i);
            (void)snprintf(name, sizeof name, "attn.feature_map_%c.layer%zu.bias", "qk"[j / 2],
                           j % 2 + 1);
            vec(s, 10, 0, 0.3, name, i);
        }
    }
}

/* one map for both, and values of 15 */
static void linear_hedgehog(struct seeded *s)
{
    frame(s, true, true);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 40, 60, 60, i);
        vec(s, 15, 1, 0.1, "attn.norm.weight", i);
        mat(s, 10, 10, 1, "attn.feature_map_k.layer.weight", i);
        vec(s, 10, 0, 0.3, "attn.feature_map_k.layer.bias", i);
    }
}

/* elu, relu and identity have no weights; elementwise_affine is off */
static void linear_plain(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++)
        qkvo(s, 40, 40, 40, 40, i);
}

static void retnet(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 40, 80, 80, i);
        mat(s, 80, D, 1, "attn.g_proj.weight", i);
        vec(s, 20, 1, 0.1, "attn.g_norm_swish_gate.weight", i);
    }
}

static void retnet_more(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 20, 20, 40, i);
        convs(s, 40, 20, 20, i);
        vec(s, 10, 1, 0.1, "attn.g_norm.weight", i);
    }
}

static void gla_gates(struct seeded *s, size_t n, size_t i)
{
    mat(s, 7, D, 1, "attn.gk_proj.0.weight", i);
    mat(s, n, 7, 1, "attn.gk_proj.1.weight", i);
    vec(s, n, 1, 1, "attn.gk_proj.1.bias", i);
}

static void gla(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 20, 20, 40, 40, i);
        mat(s, 40, D, 1, "attn.g_proj.weight", i);
        vec(s, 10, 1, 0.1, "attn.g_norm_swish_gate.weight", i);
        gla_gates(s, 20, i);
    }
}

static void gla_more(struct seeded *s)
{
    frame(s, true, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 10, 10, 40, i);
        convs(s, 40, 10, 10, i);
        vec(s, 10, 1, 0.1, "attn.g_norm.weight", i);
        gla_gates(s, 10, i);
    }
}

static void delta_net(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 40, 40, 40, i);
        convs(s, 40, 40, 40, i);
        mat(s, 4, D, 1, "attn.b_proj.weight", i);
        vec(s, 10, 1, 0.1, "attn.o_norm.weight", i);
    }
}

/* no convolution, no beta, sums for norms */
static void delta_net_more(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 40, 40, 40, 40, i);
        mat(s, 40, D, 1, "attn.g_proj.weight", i);
        vec(s, 10, 1, 0.1, "attn.o_norm.weight", i);
    }
}

/* 2 heads of queries and keys of 12, 4 of values of 18 */
static void gated_delta_net(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 24, 24, 72, 72, i);
        convs(s, 24, 24, 72, i);
        mat(s, 72, D, 1, "attn.g_proj.weight", i);
        mat(s, 4, D, 1, "attn.a_proj.weight", i);
        mat(s, 4, D, 1, "attn.b_proj.weight", i);
        vec(s, 4, 0, 1, "attn.A_log", i);
        vec(s, 4, -3, 1, "attn.dt_bias", i);
        vec(s, 18, 1, 0.1, "attn.o_norm.weight", i);
    }
}

static void gated_delta_net_more(struct seeded *s)
{
    frame(s, false, false);
    for (size_t i = 0; i < LAYERS; i++) {
        qkvo(s, 24, 24, 24, 24, i);
        mat(s, 2, D, 1, "attn.a_proj.weight", i);
        mat(s, 2, D, 1, "attn.b_proj.weight", i);
        vec(s, 2, 0, 1, "attn.A_log", i);
        vec(s, 2, -3, 1, "attn.dt_bias", i);
        vec(s, 12, 1, 0.1, "attn.o_norm.weight", i);
    }
}

/* `inner` channels in heads, B and C of `bc` numbers in all, D of n_d. */
static void mamba(struct seeded *s, size_t heads, size_t bc, size_t n_d, bool bias, bool norm)
{
    enum { INNER = 2 * D };
    const size_t d = D;
    *s = (struct seeded){.seed = 23, .prefix = "backbone.layers."};
    named(s, "backbone.embeddings.weight", VOCAB, D, 1);
    seeded_add(s, SL_DTYPE_F32, 1, &d, 1, 0.1, "backbone.norm_f.weight");
    named(s, "lm_head.weight", VOCAB, D, 2 / sqrt(D));
    for (size_t i = 0; i < LAYERS; i++) {
        size_t n_conv = INNER + 2 * bc, n_in = INNER + n_conv + heads;
        vec(s, D, 1, 0.1, "norm.weight", i);
        mat(s, n_in, D, 1, "mixer.in_proj.weight", i);
        mat(s, D, INNER, 0.5, "mixer.out_proj.weight", i);
        conv(s, n_conv, "mixer.conv1d.weight", i);
        vec(s, heads, 0, 1, "mixer.A_log", i);
        vec(s, heads, -2, 1, "mixer.dt_bias", i);
        vec(s, n_d, 1, 0.3, "mixer.D", i);
        if (norm)
            vec(s, INNER, 1, 0.1, "mixer.norm.weight", i);
        if (bias) {
            vec(s, n_in, 0, 0.2, "mixer.in_proj.bias", i);
            vec(s, D, 0, 0.2, "mixer.out_proj.bias", i);
        } else {
            vec(s, n_conv, 0, 0.2, "mixer.conv1d.bias", i);
        }
    }
}

static void mamba2(struct seeded *s)
{
    mamba(s, 8, 12, 8, false, true);
}

/* two groups, biases everywhere but in the convolution, D for each channel */
static void mamba2_more(struct seeded *s)
{
    mamba(s, 8, 24, 80, true, true);
}

static void mamba2_no_norm(struct seeded *s)
{
    mamba(s, 8, 12, 8, false, false);
}

static void low_rank(struct seeded *s, char letter, size_t rank, bool bias, double gain, size_t i)
{
    char name[32];
    (void)snprintf(name, sizeof name, "attn.%c_lora.lora.0.weight", letter);
    mat(s, rank, D, 1, name, i);
    (void)snprintf(name, sizeof name, "attn.%c_lora.lora.2.weight", letter);
    mat(s, D, rank, gain, name, i);
    (void)snprintf(name, sizeof name, "attn.%c_lora.lora.2.bias", letter);
    if (bias)
        vec(s, D, letter == 'w' ? -2 : 0, 1, name, i);
}

static void layer_norm(struct seeded *s, bool bias, const char *name, size_t i)
{
    char full[32];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    vec(s, D, 1, 0.1, full, i);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    if (bias)
        vec(s, D, 0, 0.05, full, i);
}

static void rwkv7_layer(struct seeded *s, bool more, size_t i)
{
    if (!more && i == 0)
        layer_norm(s, true, "pre_norm", i);
    layer_norm(s, !more, "attn_norm", i);
    layer_norm(s, !more, "ffn_norm", i);
    layer_norm(s, true, "attn.g_norm", i);
    for (const char *x = more ? "x" : "rwkvag"; *x; x++) {
        char name[16];
        (void)snprintf(name, sizeof name, "attn.x_%c", *x);
        if (more)
            mat(s, 6, D, 1, name, i);
        else
            vec(s, D, 0.5, 0.28, name, i);
    }
    low_rank(s, 'w', 5, true, 0.5, i);
    low_rank(s, 'a', 6, true, 1, i);
    low_rank(s, 'g', 9, false, 2, i);
    if (i > 0)
        low_rank(s, 'v', 4, true, 1, i);
    vec(s, D, 0.85, 0.1, "attn.k_k", i);
    vec(s, D, 1, 0.1, "attn.k_a", i);
    mat(s, 4, 10, 0.6, "attn.r_k", i);
    mat(s, D, D, 1, "attn.r_proj.weight", i);
    mat(s, D, D, 1, "attn.k_proj.weight", i);
    mat(s, D, D, 1, "attn.v_proj.weight", i);
    mat(s, D, D, 0.5, "attn.o_proj.weight", i);
    vec(s, D, 0.5, 0.28, "ffn.x_k", i);
    mat(s, FFN, D, 1, "ffn.key.weight", i);
    mat(s, D, FFN, 0.5, "ffn.value.weight", i);
}

static void rwkv7_of(struct seeded *s, bool more)
{
    const size_t d = D;
    *s = (struct seeded){.seed = 29, .prefix = "model.layers."};
    named(s, "model.embeddings.weight", VOCAB, D, 1);
    seeded_add(s, SL_DTYPE_F32, 1, &d, 1, 0.1, "model.norm.weight");
    if (!more)
        seeded_add(s, SL_DTYPE_F32, 1, &d, 0, 0.05, "model.norm.bias");
    named(s, "lm_head.weight", VOCAB, D, 2 / sqrt(D));
    for (size_t i = 0; i < LAYERS; i++)
        rwkv7_layer(s, more, i);
}

static void fla_rwkv7(struct seeded *s)
{
    rwkv7_of(s, false);
}

static void fla_rwkv7_more(struct seeded *s)
{
    rwkv7_of(s, true);
}

static void rwkv7(struct seeded *s)
{
    const struct seeded_shape shape = {.n_layers = LAYERS,
                                       .d_model = D,
                                       .head_size = 10,
                                       .d_ffn = FFN,
                                       .vocab_size = VOCAB,
                                       .rank_w = 5,
                                       .rank_a = 6,
                                       .rank_v = 4,
                                       .rank_g = 9,
                                       .dtype = SL_DTYPE_BF16,
                                       .seed = 31};
    seeded_init(s, &shape);
}

/* --- the table --- */

#define MODEL(type, more) "{\"model_type\":\"" type "\"," SIZES more "}"
#define RANKS                                                                                      \
    ",\"head_dim\":10,\"decay_low_rank_dim\":5,\"a_low_rank_dim\":6,\"gate_low_rank_dim\":9,"      \
    "\"v_low_rank_dim\":4"

const struct rule rules[] = {
    {"linear, elementwise product", "linear", MODEL("linear_attn", ",\"num_kv_heads\":2"),
     linear_product, NULL},
    {"linear, hedgehog", "linear",
     MODEL("linear_attn",
           ",\"feature_map\":\"hedgehog\",\"tie_feature_map_qk\":true,\"norm_q\":true,"
           "\"norm_k\":true,\"norm_feature_map\":true,\"expand_v\":1.5,"
           "\"tie_word_embeddings\":true"),
     linear_hedgehog, NULL},
    {"linear, elu", "linear",
     MODEL("linear_attn", ",\"feature_map\":\"elu\",\"norm_feature_map\":true,"
                          "\"elementwise_affine\":false"),
     linear_plain, NULL},
    {"linear, relu", "linear",
     MODEL("linear_attn", ",\"feature_map\":\"relu\",\"norm_k\":true,"
                          "\"elementwise_affine\":false"),
     linear_plain, NULL},
    {"linear, identity", "linear",
     MODEL("linear_attn", ",\"feature_map\":\"identity\",\"elementwise_affine\":false"),
     linear_plain, NULL},
    {"retnet", "retnet", MODEL("retnet", ",\"num_heads\":4"), retnet, NULL},
    {"retnet, more", "retnet",
     MODEL("retnet", ",\"num_heads\":4,\"num_kv_heads\":2,\"expand_v\":1,\"use_short_conv\":true,"
                     "\"use_output_gate\":false,\"feature_map\":\"relu\""),
     retnet_more, NULL},
    {"gla", "gla", MODEL("gla", ""), gla, NULL},
    {"gla, more", "gla",
     MODEL("gla", ",\"expand_k\":1,\"num_kv_heads\":1,\"use_short_conv\":true,"
                  "\"use_output_gate\":false,\"clamp_min\":-0.02,\"tie_word_embeddings\":true"),
     gla_more, NULL},
    {"delta_net", "delta_net", MODEL("delta_net", ",\"num_heads\":4"), delta_net, NULL},
    {"delta_net, more", "delta_net",
     MODEL("delta_net", ",\"num_heads\":4,\"use_short_conv\":false,\"use_beta\":false,"
                        "\"use_gate\":true,\"qk_norm\":\"sum\",\"qk_activation\":\"elu\""),
     delta_net_more, NULL},
    {"gated_delta_net", "gated_delta_net",
     MODEL("gated_deltanet", ",\"num_heads\":2,\"head_dim\":12,\"num_v_heads\":4,"
                             "\"expand_v\":1.5,\"allow_neg_eigval\":true"),
     gated_delta_net, NULL},
    {"gated_delta_net, more", "gated_delta_net",
     MODEL("gated_deltanet", ",\"num_heads\":2,\"head_dim\":12,\"expand_v\":1,"
                             "\"use_gate\":false,\"use_short_conv\":false"),
     gated_delta_net_more, NULL},
    {"mamba2", "mamba2", MODEL("mamba2", ",\"state_size\":12,\"head_dim\":10"), mamba2, NULL},
    {"mamba2, more", "mamba2",
     MODEL("mamba2", ",\"state_size\":12,\"head_dim\":10,\"n_groups\":2,\"use_bias\":true,"
                     "\"use_conv_bias\":false,\"D_has_hdim\":true,\"norm_before_gate\":true,"
                     "\"dt_limit\":[0.01, 0.5]"),
     mamba2_more, NULL},
    {"mamba2, no norm", "mamba2",
     MODEL("mamba2", ",\"state_size\":12,\"head_dim\":10,\"rmsnorm\":false,"
                     "\"time_step_limit\":[0.0,Infinity]"),
     mamba2_no_norm, NULL},
    {"fla_rwkv7", "fla_rwkv7", MODEL("rwkv7", RANKS), fla_rwkv7, NULL},
    {"fla_rwkv7, more", "fla_rwkv7",
     MODEL("rwkv7", RANKS ",\"norm_bias\":false,\"norm_first\":false,\"fuse_norm\":false"),
     fla_rwkv7_more, NULL},
    {"rwkv4", "rwkv4", NULL, rules_rwkv4, NULL},
    {"rwkv5.0", "rwkv5", NULL, rules_rwkv5_0, NULL},
    {"rwkv5.1", "rwkv5", NULL, rules_rwkv5_1, "ln_x_eps=1e-5"},
    {"rwkv5.2", "rwkv5", NULL, rules_rwkv5_2, NULL},
    {"rwkv6", "rwkv6", NULL, rules_rwkv6, NULL},
    {"rwkv7", "rwkv7", NULL, rwkv7, NULL},
    {"performer", "performer", NULL, rules_performer, NULL},
    {"performer, no stabiliser", "performer", NULL, rules_performer_more, "stabiliser=none"},
    {"performer, relu", "performer", NULL, rules_performer, "kernel=relu"},
    {0},
};

/* --- files --- */

void rule_write(const struct rule *r, struct rule_files *f)
{
    struct seeded s;
    char path[64];
    (void)snprintf(f->folder, sizeof f->folder, "/tmp/slate-rule-XXXXXX");
    if (!mkdtemp(f->folder))
        abort();
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f->folder);
    r->list(&s);
    seeded_write(&s, path);
    seeded_done(&s);
    (void)snprintf(f->path, sizeof f->path, "%s", r->settings ? f->folder : path);
    if (!r->settings)
        return;
    (void)snprintf(path, sizeof path, "%s/config.json", f->folder);
    FILE *out = fopen(path, "wb");
    if (!out || fputs(r->settings, out) < 0 || fclose(out) != 0)
        abort();
}

void rule_remove(struct rule_files *f)
{
    static const char *const names[] = {"model.safetensors", "config.json"};
    char path[64];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", f->folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(f->folder);
}

enum sl_code rule_try(struct sl_model **ret, const struct rule *r, struct sl_model_options opt,
                      struct sl_error *err)
{
    struct rule_files f;
    rule_write(r, &f);
    opt.path = f.path;
    opt.rule = r->choices;
    enum sl_code c = sl_model_open(ret, &opt, err);
    rule_remove(&f); /* the mapping keeps the file */
    return c;
}

struct sl_model *rule_open(const struct rule *r, const char *kernels)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    if (rule_try(&m, r, (struct sl_model_options){.kernels = kernels}, &err) != SL_OK) {
        fprintf(stderr, "%s: %s\n", r->title, err.message);
        abort();
    }
    return m;
}

enum sl_code rule_open_list(struct sl_model **ret, const struct seeded *s, const char *settings,
                            unsigned char **ret_bytes, struct sl_error *err)
{
    size_t n;
    struct sl_tensors *t = NULL;
    struct sl_settings *set = NULL;
    *ret_bytes = NULL;
    enum sl_code c = sl_settings_read(&set, settings, strlen(settings), "m/config.json", err);
    if (c)
        return c;
    *ret_bytes = seeded_bytes(s, &n);
    c = sl_tensors_open_memory(&t, *ret_bytes, n, "m/model.safetensors", err);
    if (c) {
        sl_settings_close(set);
        return c;
    }
    sl_tensors_settle(t, set, "m/model.safetensors");
    return sl_model_open_tensors(ret, t, "m", NULL, err);
}
