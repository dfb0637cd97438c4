/* gguf_arch.c: a row for each architecture and each of its tensors. See gguf_arch.h.
 *
 * What llama.cpp's converter does to RWKV files: matrices that a model uses as x @ w are written as
 * nn.Linear has them, the mixes of a layer lie in one tensor, r_k is flat, and what RWKV-6 adds to
 * the residual stream is divided by a power of two that grows with the layer. To Mamba-2: A_log
 * becomes A = -exp(A_log), the convolution loses its axis of size 1, the norm has an axis for its
 * groups. */
#include "engine/formats/gguf_arch.h"

#include <stdio.h>
#include <string.h>

#define SIZE_MAX_ANY ((size_t)1 << 24) /* so that sums and products of three do not overflow */

/* --- RWKV-7 -------------------------------------------------------------------------------------
 */

static const struct sl_gguf_size rwkv7_sizes[] = {
    {'D', "embedding_length", SIZE_MAX_ANY},
    {'L', "block_count", SIZE_MAX_ANY},
    {'F', "feed_forward_length", SIZE_MAX_ANY},
    {'N', "wkv.head_size", SIZE_MAX_ANY},
    {'w', "attention.decay_lora_rank", SIZE_MAX_ANY},
    {'a', "attention.iclr_lora_rank", SIZE_MAX_ANY},
    {'v', "attention.value_residual_mix_lora_rank", SIZE_MAX_ANY},
    {'g', "attention.gate_lora_rank", SIZE_MAX_ANY},
    {0},
};

static const char *rwkv_heads(size_t size[128])
{
    if (size['D'] % size['N'] != 0)
        return "embedding_length is no multiple of wkv.head_size";
    size['H'] = size['D'] / size['N'];
    size['X'] = 5 * size['x']; /* of RWKV-6 */
    return NULL;
}

#define NORM(file, name)                                                                           \
    {file ".weight", name ".weight", "D", NULL, NULL, 0},                                          \
    {                                                                                              \
        file ".bias", name ".bias", "D", NULL, NULL, 0                                             \
    }
#define BOTH_ENDS                                                                                  \
    {"token_embd.weight", "emb.weight", "VD", NULL, NULL, 0},                                      \
        NORM("token_embd_norm", "blocks.0.ln0"), NORM("output_norm", "ln_out"),                    \
    {                                                                                              \
        "output.weight", "head.weight", "VD", NULL, NULL, 0                                        \
    }
#define LOW_RANK(x, flags)                                                                         \
    {"blk.*.time_mix_" x "0.weight", "blocks.*.att." x "0", "D", NULL, NULL, flags},               \
        {"blk.*.time_mix_" x "1.weight", "blocks.*.att." x "1", x "D", "D" x, NULL, flags},        \
    {                                                                                              \
        "blk.*.time_mix_" x "2.weight", "blocks.*.att." x "2", "D" x, x "D", NULL, flags           \
    }
#define ATT(file, name, shape, as)                                                                 \
    {                                                                                              \
        "blk.*.time_mix_" file ".weight", "blocks.*.att." name, shape, as, NULL, 0                 \
    }
#define FFN(file, name, shape)                                                                     \
    {                                                                                              \
        "blk.*.channel_mix_" file ".weight", "blocks.*.ffn." name, shape, NULL, NULL, 0            \
    }

static const struct sl_gguf_row rwkv7_rows[] = {
    BOTH_ENDS,
    NORM("blk.*.attn_norm", "blocks.*.ln1"),
    NORM("blk.*.attn_norm_2", "blocks.*.ln2"),
    {"blk.*.time_mix_lerp_fused.weight", "blocks.*.att.x_?", "6D", NULL, "rwkvag", 0},
    LOW_RANK("w", 0),
    LOW_RANK("a", 0),
    LOW_RANK("v", SL_GGUF_LATER),
    {"blk.*.time_mix_g1.weight", "blocks.*.att.g1", "gD", "Dg", NULL, 0},
    {"blk.*.time_mix_g2.weight", "blocks.*.att.g2", "Dg", "gD", NULL, 0},
    ATT("k_k", "k_k", "D", NULL),
    ATT("k_a", "k_a", "D", NULL),
    ATT("r_k", "r_k", "D", "HN"),
    ATT("key", "key.weight", "DD", NULL),
    ATT("value", "value.weight", "DD", NULL),
    ATT("receptance", "receptance.weight", "DD", NULL),
    ATT("output", "output.weight", "DD", NULL),
    NORM("blk.*.time_mix_ln", "blocks.*.att.ln_x"),
    FFN("lerp_k", "x_k", "D"),
    FFN("key", "key.weight", "FD"),
    FFN("value", "value.weight", "DF"),
    {0},
};

/* --- RWKV-6 -------------------------------------------------------------------------------------
 */

static const struct sl_gguf_size rwkv6_sizes[] = {
    {'D', "embedding_length", SIZE_MAX_ANY},
    {'L', "block_count", SIZE_MAX_ANY},
    {'F', "feed_forward_length", SIZE_MAX_ANY},
    {'N', "wkv.head_size", SIZE_MAX_ANY},
    {'x', "time_mix_extra_dim", SIZE_MAX_ANY},
    {'y', "time_decay_extra_dim", SIZE_MAX_ANY},
    {0},
};

/* Files of the end of 2024 have the five mixes one by one. */
#define MIX(x)                                                                                     \
    {                                                                                              \
        "blk.*.time_mix_lerp_" x ".weight", "blocks.*.att.time_maa_" x, "D", NULL, NULL,           \
            SL_GGUF_OPTIONAL                                                                       \
    }

static const struct sl_gguf_row rwkv6_rows[] = {
    BOTH_ENDS,
    NORM("blk.*.attn_norm", "blocks.*.ln1"),
    NORM("blk.*.attn_norm_2", "blocks.*.ln2"),
    {"blk.*.time_mix_lerp_fused.weight", "blocks.*.att.time_maa_?", "5D", NULL, "wkvrg",
     SL_GGUF_OPTIONAL},
    MIX("w"),
    MIX("k"),
    MIX("v"),
    MIX("r"),
    MIX("g"),
    ATT("lerp_x", "time_maa_x", "D", NULL),
    ATT("w1", "time_maa_w1", "XD", "DX"),
    ATT("w2", "time_maa_w2", "5Dx", "5xD"),
    ATT("decay", "time_decay", "D", NULL),
    ATT("decay_w1", "time_decay_w1", "yD", "Dy"),
    ATT("decay_w2", "time_decay_w2", "Dy", "yD"),
    ATT("first", "time_faaaa", "HN", NULL),
    ATT("key", "key.weight", "DD", NULL),
    ATT("value", "value.weight", "DD", NULL),
    ATT("receptance", "receptance.weight", "DD", NULL),
    ATT("gate", "gate.weight", "DD", NULL),
    {"blk.*.time_mix_output.weight", "blocks.*.att.output.weight", "DD", NULL, NULL,
     SL_GGUF_RESCALED},
    NORM("blk.*.time_mix_ln", "blocks.*.att.ln_x"),
    FFN("lerp_k", "time_maa_k", "D"),
    FFN("lerp_r", "time_maa_r", "D"),
    FFN("key", "key.weight", "FD"),
    FFN("receptance", "receptance.weight", "DD"),
    {"blk.*.channel_mix_value.weight", "blocks.*.ffn.value.weight", "DF", NULL, NULL,
     SL_GGUF_RESCALED},
    {0},
};

/* --- Mamba-2 ------------------------------------------------------------------------------------
 */

static const struct sl_gguf_size mamba2_sizes[] = {
    {'D', "embedding_length", SIZE_MAX_ANY}, {'L', "block_count", SIZE_MAX_ANY},
    {'K', "ssm.conv_kernel", SIZE_MAX_ANY},  {'I', "ssm.inner_size", SIZE_MAX_ANY},
    {'S', "ssm.state_size", SIZE_MAX_ANY},   {'H', "ssm.time_step_rank", SIZE_MAX_ANY},
    {'G', "ssm.group_count", SIZE_MAX_ANY},  {0},
};

static const char *mamba2_widths(size_t size[128])
{
    if (size['I'] % size['H'] != 0)
        return "ssm.inner_size is no multiple of ssm.time_step_rank, the number of heads";
    if (size['I'] % size['G'] != 0)
        return "ssm.inner_size is no multiple of ssm.group_count";
    size['C'] = size['I'] + 2 * size['G'] * size['S']; /* x, B and C */
    size['P'] = size['I'] + size['C'] + size['H'];     /* z, those, and dt */
    size['M'] = size['I'] / size['G'];
    return NULL;
}

#define SSM(file, name, shape, as)                                                                 \
    {                                                                                              \
        "blk.*.ssm_" file, "backbone.layers.*.mixer." name, shape, as, NULL, 0                     \
    }

static const struct sl_gguf_row mamba2_rows[] = {
    {"token_embd.weight", "backbone.embeddings.weight", "VD", NULL, NULL, 0},
    {"output_norm.weight", "backbone.norm_f.weight", "D", NULL, NULL, 0},
    {"output.weight", "lm_head.weight", "VD", NULL, NULL, SL_GGUF_OPTIONAL},
    {"blk.*.attn_norm.weight", "backbone.layers.*.norm.weight", "D", NULL, NULL, 0},
    SSM("in.weight", "in_proj.weight", "PD", NULL),
    SSM("conv1d.weight", "conv1d.weight", "CK", "C1K"),
    SSM("conv1d.bias", "conv1d.bias", "C", NULL),
    SSM("dt.bias", "dt_bias", "H", NULL),
    SSM("a", "A", "H", NULL),
    SSM("d", "D", "H", NULL),
    SSM("norm.weight", "norm.weight", "GM", "I"),
    SSM("out.weight", "out_proj.weight", "DI", NULL),
    {0},
};

/* --- the table ----------------------------------------------------------------------------------
 */

static const struct sl_gguf_arch archs[] = {
    {.name = "rwkv7",
     .title = "RWKV-7",
     .sizes = rwkv7_sizes,
     .derive = rwkv_heads,
     .rows = rwkv7_rows,
     .epsilon = "attention.layer_norm_epsilon",
     .only_epsilon = 1e-5},
    {.name = "rwkv6",
     .title = "RWKV-6",
     .sizes = rwkv6_sizes,
     .derive = rwkv_heads,
     .rows = rwkv6_rows,
     .epsilon = "attention.layer_norm_epsilon",
     .only_epsilon = 1e-5},
    {.name = "mamba2",
     .title = "Mamba-2",
     .sizes = mamba2_sizes,
     .derive = mamba2_widths,
     .rows = mamba2_rows,
     .epsilon = "attention.layer_norm_rms_epsilon",
     .mamba = true},
    {.name = "rwkv6qwen2",
     .refused =
         "RWKV-6 in the frame of Qwen2 (QRWKV) has other norms, grouped keys and values, and "
         "a gated feed-forward"},
    {.name = "arwkv7",
     .refused = "RWKV-7 in the frame of Qwen2 (ARWKV) has other norms and a gated feed-forward"},
    {.name = "mamba", .refused = "the first Mamba has a state of its own kind"},
};

void sl_gguf_arch_names(char *ret, size_t n)
{
    size_t len = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < sizeof archs / sizeof *archs && len < n; i++)
        if (!archs[i].refused)
            len += (size_t)snprintf(ret + len, n - len, len ? ", %s" : "%s", archs[i].name);
}

const struct sl_gguf_arch *sl_gguf_arch_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i].name) == n && memcmp(archs[i].name, name, n) == 0)
            return &archs[i];
    return NULL;
}
