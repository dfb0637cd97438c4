/* fla_config_test.c: settings of flash-linear-attention's models that do not fit: each absurd,
 * contradictory or unknown one is refused by name. What is absent means what the library's classes
 * mean by it. (Tensors that do not fit: rules_input_test.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"

static const struct rule *rule_named(const char *title)
{
    for (const struct rule *r = rules; r->title; r++)
        if (strcmp(r->title, title) == 0)
            return r;
    fail_msg("no rule %s", title);
    return NULL;
}

/* The rule's settings with one key given another value (JSON), or none (NULL). free(). */
static char *edited(const struct rule *r, const char *key, const char *value)
{
    json_t *all = json_loads(r->settings, 0, NULL);
    assert_non_null(all);
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        json_object_set_new(all, key, v);
    } else {
        json_object_del(all, key);
    }
    char *text = json_dumps(all, 0);
    json_decref(all);
    return text;
}

static enum sl_code open_with(const struct rule *r, const char *settings, struct sl_model_info *ret,
                              struct sl_error *err)
{
    struct seeded s;
    struct sl_model *m = NULL;
    unsigned char *bytes;
    r->list(&s);
    enum sl_code c = rule_open_list(&m, &s, settings, &bytes, err);
    if (c == SL_OK)
        *ret = *sl_model_info(m);
    else
        assert_null(m);
    sl_model_close(m);
    free(bytes);
    seeded_done(&s);
    return c;
}

struct bad {
    const char *rule, *key, *value;
    enum sl_code code;
    const char *words[3]; /* in the message, beside the file's name */
};

#define INVALID SL_E_MODEL_INVALID
#define UNKNOWN SL_E_MODEL_UNSUPPORTED
#define LINEAR "linear, elementwise product"

static const struct bad bads[] = {
    /* absurd sizes */
    {LINEAR, "hidden_size", "0", INVALID, {"config.json: hidden_size is 0", "from 1 to 65536"}},
    {LINEAR, "hidden_size", "-40", INVALID, {"hidden_size is -40"}},
    {LINEAR, "hidden_size", "40.5", INVALID, {"hidden_size is 40.5", "whole number"}},
    {LINEAR, "hidden_size", "\"40\"", INVALID, {"hidden_size is \"40\""}},
    {LINEAR, "hidden_size", "null", INVALID, {"hidden_size is null"}},
    {LINEAR, "hidden_size", "true", INVALID, {"hidden_size is true"}},
    {LINEAR, "hidden_size", "[40]", INVALID, {"hidden_size is a list of 1"}},
    {LINEAR, "hidden_size", "65537", INVALID, {"hidden_size is 65537"}},
    {LINEAR, "hidden_size", "1e300", INVALID, {"hidden_size is 1"}},
    {LINEAR, "num_hidden_layers", "0", INVALID, {"num_hidden_layers is 0"}},
    {LINEAR, "num_hidden_layers", "1025", INVALID, {"num_hidden_layers is 1025", "1 to 1024"}},
    {LINEAR, "vocab_size", "0", INVALID, {"vocab_size is 0"}},
    {LINEAR, "num_heads", "0", INVALID, {"num_heads is 0"}},
    {LINEAR, "num_kv_heads", "0", INVALID, {"num_kv_heads is 0"}},
    {LINEAR, "intermediate_size", "2000000", INVALID, {"intermediate_size is 2"}},
    {LINEAR, "expand_k", "0", INVALID, {"expand_k is 0", "a number from"}},
    {LINEAR, "expand_v", "-1", INVALID, {"expand_v is -1"}},
    {LINEAR, "expand_v", "0.01", INVALID, {"expand_v 0.01 of 40 channels makes 0"}},
    {LINEAR, "norm_eps", "-1e-6", INVALID, {"norm_eps is -1"}},
    {LINEAR, "norm_eps", "\"small\"", INVALID, {"norm_eps is \"small\""}},
    {LINEAR, "norm_q", "1", INVALID, {"norm_q is 1", "true or false"}},
    {"gla, more", "conv_size", "0", INVALID, {"conv_size is 0"}},
    {"gla, more", "conv_size", "65", INVALID, {"conv_size is 65"}},
    {"gla, more", "clamp_min", "0.5", INVALID, {"clamp_min is 0.5"}},
    /* heads that do not divide */
    {LINEAR, "num_heads", "3", INVALID, {"keys' width, 40", "num_heads, 3"}},
    {LINEAR, "num_kv_heads", "3", INVALID, {"num_heads, 4", "num_kv_heads, 3"}},
    {LINEAR, "num_kv_heads", "8", INVALID, {"num_heads, 4", "num_kv_heads, 8"}},
    {LINEAR, "expand_v", "0.55", INVALID, {"values' width, 22", "num_heads, 4"}},
    {"retnet", "expand_k", "0.5", INVALID, {"5 channels of keys cannot be rotated", "even"}},
    {"delta_net", "num_heads", "7", INVALID, {"keys' width, 40", "num_heads, 7"}},
    {"gated_delta_net", "num_v_heads", "3", INVALID, {"num_v_heads, 3", "num_heads, 2"}},
    {"gated_delta_net", "num_v_heads", "1", INVALID, {"num_v_heads, 1", "num_heads, 2"}},
    {"gated_delta_net", "expand_v", "1.3", INVALID, {"head_dim 12", "expand_v 1.3", "15.6"}},
    {"mamba2", "head_dim", "7", INVALID, {"not whole heads of head_dim 7"}},
    {"mamba2, more", "n_groups", "3", INVALID, {"8 heads are no multiple of n_groups, 3"}},
    {"fla_rwkv7", "head_dim", "16", INVALID, {"hidden_size, 40", "head_dim, 16"}},
    /* contradictions */
    {"mamba2", "num_heads", "5", INVALID, {"num_heads is 5", "make 8 heads"}},
    {"mamba2, more", "dt_limit", "[0.5, 0.1]", INVALID, {"dt_limit", "no number lies between"}},
    {"mamba2, more", "dt_limit", "[0.5]", INVALID, {"dt_limit is no list of two"}},
    {"mamba2, more", "dt_limit", "[-1, 1]", INVALID, {"dt_limit.0 is -1"}},
    {"fla_rwkv7", "num_heads", "3", INVALID, {"num_heads is 3", "make 4"}},
    {"fla_rwkv7", "decay_low_rank_dim", "6", INVALID, {"decay_low_rank_dim is 6", "rank is 5"}},
    {"fla_rwkv7", "v_low_rank_dim", "5", INVALID, {"v_low_rank_dim is 5", "rank is 4"}},
    {"fla_rwkv7", "a_low_rank_dim", NULL, INVALID, {"a_low_rank_dim is 64", "rank is 6"}},
    /* against the tensors */
    {LINEAR,
     "vocab_size",
     "301",
     INVALID,
     {"model.embeddings.weight has the shape [300, 40]", "needs [301, 40]"}},
    {LINEAR, "intermediate_size", "73", INVALID, {"gate_proj.weight", "[72, 40]", "[73, 40]"}},
    {LINEAR, "intermediate_size", NULL, INVALID, {"gate_proj.weight", "[256, 40]"}},
    {LINEAR, "num_hidden_layers", "3", INVALID, {"tensor model.layers.2.", "is absent"}},
    {LINEAR, "num_hidden_layers", "1", INVALID, {"tensor model.layers.1.", "no part of the model"}},
    {LINEAR, "feature_map", "\"elu\"", INVALID, {"feature_map_k.layer1.bias", "no part"}},
    {LINEAR, "tie_word_embeddings", "\"no\"", INVALID, {"tie_word_embeddings is \"no\""}},
    {"gla", "use_short_conv", "true", INVALID, {"q_conv1d.weight", "absent"}},
    {"gla, more", "use_output_gate", "true", INVALID, {"g_proj.weight", "absent"}},
    {"delta_net", "use_beta", "false", INVALID, {"b_proj.weight", "no part"}},
    {"delta_net", "conv_size", "3", INVALID, {"conv1d.weight", "[40, 1, 4]", "[40, 3]"}},
    {"gated_delta_net", "use_gate", "false", INVALID, {"g_proj.weight", "no part"}},
    {"mamba2", "state_size", "13", INVALID, {"in_proj.weight", "needs"}},
    {"mamba2", "use_bias", "true", INVALID, {"in_proj.bias", "absent"}},
    {"mamba2", "rmsnorm", "false", INVALID, {"mixer.norm.weight", "no part"}},
    {"fla_rwkv7", "norm_bias", "false", INVALID, {"bias", "no part"}},
    {"fla_rwkv7", "norm_first", "false", INVALID, {"pre_norm", "no part"}},
    /* what is not served, by name */
    {LINEAR, "attn", "{\"layers\":[1],\"num_heads\":4}", UNKNOWN, {"attn is", "softmax"}},
    {"gla", "attn", "{\"layers\":[0]}", UNKNOWN, {"attn is", "softmax"}},
    {"mamba2", "attn", "{\"layers\":[0]}", UNKNOWN, {"attn is", "softmax"}},
    {"fla_rwkv7", "attn", "{\"layers\":[0]}", UNKNOWN, {"attn is", "softmax"}},
    {LINEAR, "attnres_block_size", "1", UNKNOWN, {"attnres_block_size is 1"}},
    {LINEAR, "quantization_config", "{\"bits\":4}", UNKNOWN, {"quantization_config"}},
    {LINEAR, "feature_map", "\"dpfp\"", UNKNOWN, {"feature_map is \"dpfp\"", "hedgehog"}},
    {LINEAR, "feature_map", "3", UNKNOWN, {"feature_map is 3"}},
    {LINEAR, "hidden_act", "\"powlu\"", UNKNOWN, {"hidden_act is \"powlu\"", "swish"}},
    {"retnet", "feature_map", "\"gelu\"", UNKNOWN, {"feature_map is \"gelu\""}},
    {"gla", "use_gk", "false", UNKNOWN, {"use_gk is false"}},
    {"gla", "use_gv", "true", UNKNOWN, {"use_gv is true"}},
    {"delta_net", "qk_norm", "\"l1\"", UNKNOWN, {"qk_norm is \"l1\"", "l2, sum"}},
    {"delta_net", "qk_activation", "\"gelu\"", UNKNOWN, {"qk_activation is \"gelu\""}},
    {"delta_net", "use_output_norm", "false", UNKNOWN, {"use_output_norm is false"}},
    {"mamba2", "hidden_act", "\"relu\"", UNKNOWN, {"hidden_act is \"relu\""}},
    {"mamba2", "rms_norm", "false", UNKNOWN, {"rms_norm is false"}},
    {"mamba2", "layer_norm_epsilon", "-1", INVALID, {"layer_norm_epsilon is -1"}},
    {"fla_rwkv7", "hidden_act", "\"relu\"", UNKNOWN, {"hidden_act is \"relu\""}},
    {"fla_rwkv7", "value_dim", "[40, 80]", UNKNOWN, {"value_dim.1 is 80"}},
    {"fla_rwkv7", "value_dim", "80", UNKNOWN, {"value_dim is 80"}},
};

static void test_bad_settings(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        const struct bad *b = &bads[i];
        struct sl_error err = {0};
        struct sl_model_info info;
        char *text = edited(rule_named(b->rule), b->key, b->value);
        enum sl_code c = open_with(rule_named(b->rule), text, &info, &err);
        bool told = strstr(err.message, "m/config.json: ") || strstr(err.message, "m/model.safet");
        for (size_t k = 0; k < 3 && b->words[k]; k++)
            told = told && strstr(err.message, b->words[k]);
        if (c != b->code || !told)
            fail_msg("%s with %s %s: %s: \"%s\"; expected %s and \"%s\"", b->rule, b->key,
                     b->value ? b->value : "absent", sl_code_name(c), c ? err.message : "",
                     sl_code_name(b->code), b->words[0]);
        free(text);
    }
}

/* What is absent is as if the class's default stood there; what matters enters the fingerprint. */
static void test_defaults(void **unused)
{
    (void)unused;
    static const struct {
        const char *rule, *key, *value;
        bool same;
    } cases[] = {
        {LINEAR, "num_heads", "4", true},
        {LINEAR, "expand_k", "1.0", true},
        {LINEAR, "feature_map", "\"elementwise_product\"", true},
        {LINEAR, "norm_feature_map", "false", true},
        {LINEAR, "elementwise_affine", "true", true},
        {LINEAR, "norm_eps", "1e-6", true},
        {LINEAR, "hidden_act", "\"swish\"", true},
        {LINEAR, "attn", "null", true},
        {LINEAR, "attnres_block_size", "null", true},
        {LINEAR, "use_cache", "false", true},
        {LINEAR, "transformers_version", "\"9\"", true},
        {LINEAR, "norm_eps", "1e-5", false},
        {LINEAR, "norm_q", "true", false},
        {LINEAR, "norm_feature_map", "true", false},
        {"retnet", "expand_v", "2", true},
        {"retnet", "norm_eps", "1e-6", true},
        {"retnet", "feature_map", "null", true},
        {"retnet", "feature_map", "\"relu\"", false},
        {"gla", "num_heads", "4", true},
        {"gla", "expand_k", "0.5", true},
        {"gla", "clamp_min", "null", true},
        {"gla", "clamp_min", "-1", false},
        {"delta_net", "qk_norm", "\"l2\"", true},
        {"delta_net", "qk_activation", "\"silu\"", true},
        {"delta_net", "use_short_conv", "true", true},
        {"delta_net", "use_gate", "false", true},
        {"delta_net", "allow_neg_eigval", "true", false},
        {"gated_delta_net", "use_short_conv", "true", true},
        {"gated_delta_net", "conv_size", "4", true},
        {"mamba2", "expand", "2", true},
        {"mamba2", "norm_eps", "1e-05", true},
        {"mamba2", "n_groups", "1", true},
        {"mamba2", "dt_limit", "[0.0, 1e300]", false},
        {"mamba2", "norm_before_gate", "true", false},
        {"mamba2", "layer_norm_epsilon", "1e-3", false},
        {"mamba2", "time_step_limit", "[0.0, 0.5]", false},
        {"gla", "num_kv_heads", "4", true},
        {"mamba2", "num_heads", "8", true},
        {"fla_rwkv7", "norm_eps", "1e-5", true},
        {"fla_rwkv7", "num_heads", "4", true},
        {"fla_rwkv7", "value_dim", "[40, 40]", true},
        {"fla_rwkv7", "fuse_norm", "false", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rule *r = rule_named(cases[i].rule);
        struct sl_error err;
        struct sl_model_info a, b;
        char *text = edited(r, cases[i].key, cases[i].value);
        if (open_with(r, r->settings, &a, &err) || open_with(r, text, &b, &err))
            fail_msg("%s, %s: %s", r->title, cases[i].key, err.message);
        if ((memcmp(a.fingerprint, b.fingerprint, 16) == 0) != cases[i].same)
            fail_msg("%s, %s %s: the fingerprint is %s", r->title, cases[i].key, cases[i].value,
                     cases[i].same ? "another" : "the same");
        free(text);
    }
}

/* --- tensors --- */

static enum sl_code open_list(const struct rule *r, const struct seeded *s, struct sl_error *err)
{
    struct sl_model *m = NULL;
    unsigned char *bytes;
    enum sl_code c = rule_open_list(&m, s, r->settings, &bytes, err);
    sl_model_close(m);
    free(bytes);
    return c;
}

/* A tied head may be in the file all the same, and does not count. */
static void test_tied(void **unused)
{
    (void)unused;
    const struct rule *r = rule_named("gla, more");
    struct seeded s;
    struct sl_error err;
    struct sl_model *m = NULL;
    unsigned char *bytes;
    r->list(&s);
    seeded_add(&s, SL_DTYPE_F32, 2, (size_t[]){300, 40}, 0, 1, "lm_head.weight");
    assert_int_equal(rule_open_list(&m, &s, r->settings, &bytes, &err), SL_OK);
    assert_int_equal(sl_model_info(m)->n_unused, 1);
    sl_model_close(m);
    free(bytes);
    seeded_done(&s);
}

/* Gated DeltaNet's files of the beginning of 2025 have a parameter that nothing used; Comba's,
 * which have its names, use theirs. */
static void test_unused_parameter(void **unused)
{
    (void)unused;
    static const struct {
        const char *type;
        enum sl_code code;
    } cases[] = {
        {"\"gated_deltanet\"", SL_OK},
        {"\"comba\"", SL_E_MODEL_INVALID},
        {NULL, SL_E_MODEL_INVALID},
        {"[1]", SL_E_MODEL_INVALID},
    };
    const struct rule *r = rule_named("gated_delta_net");
    struct seeded s;
    struct sl_model_info plain;
    struct sl_error err = {0};
    assert_int_equal(open_with(r, r->settings, &plain, &err), SL_OK);
    r->list(&s);
    for (size_t i = 0; i < 2; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "model.layers.%zu.attn.D", i);
        seeded_add(&s, SL_DTYPE_F32, 1, (size_t[]){4}, 1, 0, name);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_model *m = NULL;
        unsigned char *bytes;
        char *text = edited(r, "model_type", cases[i].type);
        enum sl_code c = rule_open_list(&m, &s, text, &bytes, &err);
        if (c != cases[i].code || (c && !strstr(err.message, "model.layers.0.attn.D is no part")))
            fail_msg("%s: %s: %s", cases[i].type, sl_code_name(c), err.message);
        if (!c) {
            assert_int_equal(sl_model_info(m)->n_unused, 2);
            assert_memory_equal(sl_model_info(m)->fingerprint, plain.fingerprint, 16);
        }
        sl_model_close(m);
        free(bytes);
        free(text);
    }
    seeded_done(&s);
}

/* Row by row, without what lies between rows. */
static float *logits_of(const struct seeded *s, const char *settings, size_t n_tokens)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    struct runner r;
    unsigned char *bytes;
    if (rule_open_list(&m, s, settings, &bytes, &err) != SL_OK)
        fail_msg("%s", err.message);
    runner_open(&r, m, 1, 32, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, n_tokens);
    uint32_t tokens[32];
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = (uint32_t)(i * 37 % 300);
    runner_feed(&r, state, tokens, n_tokens, n_tokens, logits);
    size_t vocab = sl_model_info(m)->vocab_size;
    for (size_t i = 1; i < n_tokens; i++)
        memmove(logits + i * vocab, logits + i * r.stride, vocab * sizeof *logits);
    sl_free(state);
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
    return logits;
}

/* Transformers, whose files have another name for the eps, gates first whatever they say of it. */
static void test_transformers_gates_first(void **unused)
{
    (void)unused;
    enum { N = 5 };
    struct rule r = *rule_named("mamba2");
    struct seeded s;
    r.list(&s);
    for (int transformers = 0; transformers < 2; transformers++) {
        char *first = edited(&r, transformers ? "layer_norm_epsilon" : "norm_eps", "1e-05");
        r.settings = first;
        char *said = edited(&r, "norm_before_gate", "true");
        float *want = logits_of(&s, first, N), *got = logits_of(&s, said, N);
        assert_true((memcmp(want, got, N * 300 * sizeof *want) == 0) == (transformers == 1));
        sl_free(want);
        sl_free(got);
        free(said);
        free(first);
        r.settings = rule_named("mamba2")->settings;
    }
    seeded_done(&s);
}

/* A limit that JSON has no word for, as json.dumps() writes it and as Transformers 5 does. */
static void test_no_upper_limit(void **unused)
{
    (void)unused;
    enum { N = 5 };
    static const char *const spelled[] = {"Infinity", "{\"__float__\": \"Infinity\"}", "0.3"};
    const struct rule *r = rule_named("mamba2");
    struct seeded s;
    struct sl_model_info info[3];
    struct sl_error err = {0};
    float *logits[3];
    r->list(&s);
    for (size_t i = 0; i < 3; i++) {
        char text[1024];
        int len = (int)(strrchr(r->settings, '}') - r->settings);
        (void)snprintf(text, sizeof text, "%.*s,\"time_step_limit\":[0.2, %s]}", len, r->settings,
                       spelled[i]);
        if (open_with(r, text, &info[i], &err) != SL_OK)
            fail_msg("%s", err.message);
        logits[i] = logits_of(&s, text, N);
    }
    assert_memory_equal(info[0].fingerprint, info[1].fingerprint, 16);
    assert_memory_equal(logits[0], logits[1], N * 300 * sizeof **logits);
    assert_memory_not_equal(info[0].fingerprint, info[2].fingerprint, 16);
    assert_memory_not_equal(logits[0], logits[2], N * 300 * sizeof **logits);
    for (size_t i = 0; i < 3; i++)
        sl_free(logits[i]);
    seeded_done(&s);
}

/* Mamba-2 under its authors' names for the settings and the embedding, whose rows are padded. */
static void test_authors_mamba(void **unused)
{
    (void)unused;
    static const char settings[] =
        "{\"d_model\":40,\"d_intermediate\":0,\"n_layer\":2,\"vocab_size\":297,"
        "\"ssm_cfg\":{\"layer\":\"Mamba2\",\"d_state\":12,\"headdim\":10},\"attn_layer_idx\":[],"
        "\"attn_cfg\":{},\"rms_norm\":true,\"residual_in_fp32\":true,\"fused_add_norm\":true,"
        "\"pad_vocab_size_multiple\":4,\"tie_embeddings\":true}";
    enum { N = 20 };
    const struct rule *r = rule_named("mamba2");
    struct seeded s;
    struct sl_error err;
    r->list(&s);
    char *fla = edited(r, "tie_word_embeddings", "true");
    float *want = logits_of(&s, fla, N);
    seeded_drop(&s, "lm_head.weight");
    unsigned char *bytes;
    struct sl_model *m = NULL;
    struct seeded_tensor *t = seeded_find(&s, "backbone.embeddings.weight");
    /* values depend on the name, so both are made zero but for one */
    t->spread = 0, t->plant_at = 37 * 40 + 3, t->plant = 2;
    sl_free(want);
    want = logits_of(&s, fla, N);
    (void)snprintf(t->name, sizeof t->name, "backbone.embedding.weight");
    float *got = logits_of(&s, settings, N);
    assert_memory_equal(got, want, N * 300 * sizeof *got);
    assert_true(fabs((double)got[1 * 300 + 37]) > 1e-3);
    char *hybrid = strdup(settings);
    assert_non_null(hybrid);
    memcpy(strstr(hybrid, "[]"), "[]", 2);
    char *at = strstr(hybrid, "\"d_intermediate\":0");
    at[strlen("\"d_intermediate\":")] = '8';
    assert_int_equal(rule_open_list(&m, &s, hybrid, &bytes, &err), SL_E_MODEL_UNSUPPORTED);
    assert_non_null(strstr(err.message, "d_intermediate"));
    free(bytes);
    free(hybrid);
    free(fla);
    sl_free(want);
    sl_free(got);
    seeded_done(&s);
}

/* Another model under a type that is known, and a type that is not. */
static void test_model_type(void **unused)
{
    (void)unused;
    const struct rule *gla = rule_named("gla");
    struct sl_error err = {0};
    struct sl_model_info info;
    char *text = edited(gla, "model_type", "\"retnet\"");
    assert_int_equal(open_with(gla, text, &info, &err), SL_E_MODEL_INVALID);
    free(text);
    /* the names tell it where the type does not */
    text = edited(gla, "model_type", "\"my_gla\"");
    assert_int_equal(open_with(gla, text, &info, &err), SL_OK);
    assert_string_equal(info.arch, "gla");
    free(text);
    text = edited(gla, "model_type", "[1]");
    assert_int_equal(open_with(gla, text, &info, &err), SL_OK);
    free(text);
}

static void test_no_memory(void **unused)
{
    (void)unused;
    static const char *const titles[] = {"linear, hedgehog", "mamba2, more", "fla_rwkv7, more"};
    for (size_t i = 0; i < 3; i++) {
        const struct rule *r = rule_named(titles[i]);
        struct seeded s;
        size_t n = 0;
        r->list(&s);
        for (;; n++) {
            struct sl_error err = {0};
            sl_mem_fail_after((int64_t)n);
            enum sl_code c = open_list(r, &s, &err);
            sl_mem_fail_after(-1);
            if (c == SL_OK)
                break;
            assert_int_equal(c, SL_E_NO_MEMORY);
        }
        assert_true(n > 10);
        seeded_done(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_transformers_gates_first),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_unused_parameter),
        cmocka_unit_test(test_no_upper_limit),
        cmocka_unit_test(test_authors_mamba),
        cmocka_unit_test(test_model_type),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("fla_config", tests, NULL, NULL);
}
