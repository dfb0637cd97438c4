/* describe.c: what kind of model a set of tensors is, by the names it has and lacks.
 *
 * For messages ("this file is GPT-2; …") and for choosing a loader. A table, the more particular
 * rows first; the first row that fits wins. A model in the naming of another library than its
 * authors' has an architecture name of its own, because a loader that reads one cannot read the
 * other. */
#include <string.h>

#include "engine/formats/tensors.h"

struct kind {
    const char *arch; /* NULL: nothing that could ever be served here */
    const char *words;
    const char *has[3];   /* all of them */
    const char *lacks[2]; /* none of them */
};

#define FLA "model.layers.0.attn."

static const struct kind kinds[] = {
    /* RWKV, as BlinkDL names it */
    {"rwkv7b",
     "RWKV-7b (RWKV-7 with DeepEmbed attention)",
     {"blocks.0.att.r_k", "blocks.0.qkv.qq.weight"},
     {0}},
    {"rwkv7a",
     "RWKV-7a (RWKV-7 with DeepEmbed)",
     {"blocks.0.att.r_k", "blocks.0.ffn.s_emb.weight"},
     {0}},
    {"rwkv8",
     "RWKV-8 (RWKV-7 with DeepEmbed)",
     {"blocks.0.att.r_k", "blocks.0.ffn.enn.weight"},
     {0}},
    {"rwkv7", "RWKV-7", {"blocks.0.att.r_k", "blocks.0.att.w1"}, {0}},
    /* One of those is missing: still best told by its reader, by name. */
    {"rwkv7", "RWKV-7", {"blocks.0.att.k_k", "blocks.0.att.k_a"}, {0}},
    {"rwkv6", "RWKV-6", {"blocks.0.att.time_maa_x"}, {0}},
    {"rwkv6", "RWKV-6", {"blocks.0.att.time_maa_w1"}, {0}},
    /* as web-rwkv's converter names it */
    {"rwkv6", "RWKV-6", {"blocks.0.att.time_mix_x"}, {0}},
    {"rwkv6", "RWKV-6", {"blocks.0.att.time_mix_w1"}, {0}},
    {"rwkv5", "RWKV-5", {"blocks.0.att.time_decay", "blocks.0.att.ln_x.weight"}, {0}},
    {"rwkv5", "RWKV-5", {"blocks.0.att.time_mix_k", "blocks.0.att.ln_x.bias"}, {0}},
    {"rwkv4", "RWKV-4", {"blocks.0.att.time_decay", "blocks.0.att.time_first"}, {0}},
    {"rwkv4", "RWKV-4", {"blocks.0.att.time_mix_k", "blocks.0.att.time_mix_v"}, {0}},
    {NULL,
     "a tuned initial state, which is no model by itself (--initial-state takes it)",
     {"blocks.0.att.time_state"},
     {0}},
    {"hf_rwkv4",
     "RWKV-4 in Hugging Face's naming",
     {"rwkv.blocks.0.attention.time_decay"},
     {"rwkv.blocks.0.attention.ln_x.weight"}},
    {"hf_rwkv5",
     "RWKV-5 or RWKV-6 in Hugging Face's naming",
     {"rwkv.blocks.0.attention.ln_x.weight"},
     {0}},
    /* the flash-linear-attention library */
    {"fla_rwkv7",
     "RWKV-7 in the naming of flash-linear-attention",
     {FLA "r_k", FLA "w_lora.lora.0.weight"},
     {0}},
    {"fla_rwkv6",
     "RWKV-6 in the naming of flash-linear-attention",
     {FLA "bonus", FLA "w_proj.lora.0.weight"},
     {0}},
    {"gated_delta_net",
     "Gated DeltaNet",
     {FLA "A_log", FLA "a_proj.weight", FLA "b_proj.weight"},
     {0}},
    {"delta_net", "DeltaNet", {FLA "b_proj.weight", FLA "k_proj.weight"}, {FLA "a_proj.weight"}},
    {"gla", "gated linear attention (GLA)", {FLA "gk_proj.0.weight"}, {0}},
    {"retnet", "RetNet", {FLA "g_proj.weight", FLA "g_norm_swish_gate.weight"}, {0}},
    {"retnet", "RetNet", {FLA "g_proj.weight", FLA "g_norm.weight"}, {0}},
    {"linear", "linear attention", {FLA "q_proj.weight", FLA "norm.weight"}, {FLA "g_proj.weight"}},
    {"mamba2",
     "Mamba-2",
     {"backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.in_proj.weight"},
     {"backbone.layers.0.mixer.x_proj.weight"}},
    {"mamba2",
     "Mamba-2",
     {"backbone.layers.0.mixer.A", "backbone.layers.0.mixer.in_proj.weight"},
     {"backbone.layers.0.mixer.x_proj.weight"}},
    {"mamba", "Mamba", {"backbone.layers.0.mixer.x_proj.weight"}, {0}},
    {"performer",
     "Performer (FAVOR+)",
     {"performer.net.layers.0.0.fn.fast_attention.projection_matrix"},
     {0}},
    {"performer", "Performer (FAVOR+)", {"performer.net.layers.0.0.fn.to_q.weight"}, {0}},
    /* what people have and try */
    {NULL,
     "a mixture-of-experts transformer",
     {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate.weight"},
     {0}},
    {NULL,
     "a mixture-of-experts transformer",
     {"model.layers.0.block_sparse_moe.gate.weight"},
     {0}},
    {NULL, "a Llama-like transformer", {"model.layers.0.self_attn.q_proj.weight"}, {0}},
    {NULL, "a Phi-3-like transformer", {"model.layers.0.self_attn.qkv_proj.weight"}, {0}},
    {NULL, "a Llama-like transformer in Meta's naming", {"layers.0.attention.wq.weight"}, {0}},
    {NULL,
     "an OPT transformer",
     {"model.decoder.layers.0.self_attn.q_proj.weight"},
     {"model.encoder.conv1.weight"}},
    {NULL, "Whisper", {"model.encoder.conv1.weight"}, {0}},
    {NULL, "GPT-2", {"transformer.h.0.attn.c_attn.weight"}, {0}},
    {NULL, "GPT-2", {"h.0.attn.c_attn.weight"}, {0}},
    {NULL, "GPT-J or GPT-Neo", {"transformer.h.0.attn.q_proj.weight"}, {0}},
    {NULL, "GPT-J or GPT-Neo", {"transformer.h.0.attn.attention.q_proj.weight"}, {0}},
    {NULL, "GPT-NeoX", {"gpt_neox.layers.0.attention.query_key_value.weight"}, {0}},
    {NULL, "BLOOM or Falcon", {"transformer.h.0.self_attention.query_key_value.weight"}, {0}},
    {NULL, "BLOOM or Falcon", {"h.0.self_attention.query_key_value.weight"}, {0}},
    {NULL, "BERT", {"bert.encoder.layer.0.attention.self.query.weight"}, {0}},
    {NULL, "BERT", {"encoder.layer.0.attention.self.query.weight"}, {0}},
    {NULL, "RoBERTa", {"roberta.encoder.layer.0.attention.self.query.weight"}, {0}},
    {NULL, "T5", {"encoder.block.0.layer.0.SelfAttention.q.weight"}, {0}},
    {NULL, "Stable Diffusion", {"model.diffusion_model.input_blocks.0.0.weight"}, {0}},
};

/* Kinds that show by how any name ends: they are asked first, for beside it the names are those of
 * the model that was adapted or quantised. */
static const struct {
    const char *suffix, *words;
} suffixes[] = {
    {".lora_A.weight", "a LoRA adapter, which is no model by itself"},
    {".lora_A.default.weight", "a LoRA adapter, which is no model by itself"},
    {".qweight", "a quantised model (GPTQ or AWQ)"},
};

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

static const char *by_suffix(const struct sl_tensors *t)
{
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++)
            if (ends_with(t->v[i].name, suffixes[k].suffix))
                return suffixes[k].words;
    return NULL;
}

static bool is_kind(const struct sl_tensors *t, const struct kind *k)
{
    for (size_t i = 0; i < sizeof k->has / sizeof *k->has && k->has[i]; i++)
        if (!sl_tensors_find(t, k->has[i]))
            return false;
    for (size_t i = 0; i < sizeof k->lacks / sizeof *k->lacks && k->lacks[i]; i++)
        if (sl_tensors_find(t, k->lacks[i]))
            return false;
    return true;
}

const char *sl_tensors_describe(const struct sl_tensors *t, const char **ret_arch)
{
    const char *words = by_suffix(t), *arch = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !words; i++)
        if (is_kind(t, &kinds[i])) {
            words = kinds[i].words;
            arch = kinds[i].arch;
        }
    if (ret_arch)
        *ret_arch = arch;
    return words ? words : "an unknown model";
}
