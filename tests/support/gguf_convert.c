/* gguf_convert.c: see gguf_convert.h. */
#include "tests/support/gguf_convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kernels/convert.h"

enum op {
    SAME,
    FLAT,
    TURN, /* the last two axes */
    HALVE /* 2 to the power of layer / rescale divides it */
};

static const struct row {
    const char *ours, *file;
    enum op op;
} ends[] =
    {
        {"emb.weight", "token_embd.weight", SAME},
        {"blocks.0.ln0.weight", "token_embd_norm.weight", SAME},
        {"blocks.0.ln0.bias", "token_embd_norm.bias", SAME},
        {"ln_out.weight", "output_norm.weight", SAME},
        {"ln_out.bias", "output_norm.bias", SAME},
        {"head.weight", "output.weight", SAME},
},
  layers[] = {
      {"ln1.weight", "attn_norm.weight", SAME},
      {"ln1.bias", "attn_norm.bias", SAME},
      {"ln2.weight", "attn_norm_2.weight", SAME},
      {"ln2.bias", "attn_norm_2.bias", SAME},
      {"att.ln_x.weight", "time_mix_ln.weight", SAME},
      {"att.ln_x.bias", "time_mix_ln.bias", SAME},
      {"att.receptance.weight", "time_mix_receptance.weight", SAME},
      {"att.key.weight", "time_mix_key.weight", SAME},
      {"att.value.weight", "time_mix_value.weight", SAME},
      {"att.gate.weight", "time_mix_gate.weight", SAME},
      {"att.output.weight", "time_mix_output.weight", HALVE},
      {"ffn.key.weight", "channel_mix_key.weight", SAME},
      {"ffn.value.weight", "channel_mix_value.weight", HALVE},
      {"ffn.receptance.weight", "channel_mix_receptance.weight", SAME},
      /* RWKV-7 */
      {"att.w0", "time_mix_w0.weight", FLAT},
      {"att.w1", "time_mix_w1.weight", TURN},
      {"att.w2", "time_mix_w2.weight", TURN},
      {"att.a0", "time_mix_a0.weight", FLAT},
      {"att.a1", "time_mix_a1.weight", TURN},
      {"att.a2", "time_mix_a2.weight", TURN},
      {"att.v0", "time_mix_v0.weight", FLAT},
      {"att.v1", "time_mix_v1.weight", TURN},
      {"att.v2", "time_mix_v2.weight", TURN},
      {"att.g1", "time_mix_g1.weight", TURN},
      {"att.g2", "time_mix_g2.weight", TURN},
      {"att.k_k", "time_mix_k_k.weight", FLAT},
      {"att.k_a", "time_mix_k_a.weight", FLAT},
      {"att.r_k", "time_mix_r_k.weight", FLAT},
      {"ffn.x_k", "channel_mix_lerp_k.weight", SAME},
      /* RWKV-6 */
      {"att.time_maa_x", "time_mix_lerp_x.weight", FLAT},
      {"att.time_maa_w1", "time_mix_w1.weight", TURN},
      {"att.time_maa_w2", "time_mix_w2.weight", TURN},
      {"att.time_decay", "time_mix_decay.weight", FLAT},
      {"att.time_decay_w1", "time_mix_decay_w1.weight", TURN},
      {"att.time_decay_w2", "time_mix_decay_w2.weight", TURN},
      {"att.time_faaaa", "time_mix_first.weight", SAME},
      {"ffn.time_maa_k", "channel_mix_lerp_k.weight", SAME},
      {"ffn.time_maa_r", "channel_mix_lerp_r.weight", SAME},
};

struct job {
    struct gguf_maker *g;
    const struct sl_tensors *t;
    const struct gguf_sizes *s;
    size_t layer;
};

static float *must_have(void *p)
{
    if (!p)
        abort();
    return p;
}

/* 32 weights: the scale as F16, then the codes. Their values to `values`. */
static void quantise(unsigned char block[34], float *values, const float *v)
{
    float most = 0;
    for (size_t i = 0; i < 32; i++)
        most = fmaxf(most, fabsf(v[i]));
    uint16_t d = sl_f16_from_f32(most / 127);
    float scale = sl_f32_from_f16(d);
    memcpy(block, &d, sizeof d);
    for (size_t i = 0; i < 32; i++) {
        float q = scale > 0 ? roundf(v[i] / scale) : 0;
        q = fminf(fmaxf(q, -128), 127);
        block[2 + i] = (unsigned char)(signed char)q;
        values[i] = scale * q;
    }
}

static void add_quantised(const struct job *j, const char *file, unsigned rank, const size_t *shape,
                          const float *v, size_t n)
{
    unsigned char *blocks = (unsigned char *)must_have(malloc(n / 32 * 34));
    float *values = must_have(malloc(n * sizeof *values));
    for (size_t i = 0; i < n; i += 32)
        quantise(blocks + i / 32 * 34, values + i, v + i);
    if (j->s->quantise == GGUF_BLOCKS)
        gguf_tensor(j->g, file, GGML_Q8_0, rank, shape, blocks, n / 32 * 34);
    else
        gguf_tensor(j->g, file, GGML_F32, rank, shape, values, n * sizeof *values);
    free(values);
    free(blocks);
}

static void add_blocks(const struct job *j, const struct peer_blocks *b, const char *file,
                       unsigned rank, const size_t *shape, const float *v, size_t n)
{
    size_t bytes = n / PEER_BLOCK * b->bytes;
    unsigned char *to = (unsigned char *)must_have(malloc(bytes));
    for (size_t i = 0; i < n / PEER_BLOCK; i++)
        b->quantise(to + i * b->bytes, v + i * PEER_BLOCK);
    gguf_tensor(j->g, file, b->type, rank, shape, to, bytes);
    free(to);
}

static void add(const struct job *j, const char *file, unsigned rank, const size_t *shape,
                const float *v, size_t n)
{
    const struct peer_blocks *b = j->s->blocks ? j->s->blocks(file) : NULL;
    if (b && shape[rank - 1] % PEER_BLOCK == 0) {
        add_blocks(j, b, file, rank, shape, v, n);
        return;
    }
    if (j->s->quantise != GGUF_AS_IT_IS && rank > 1 && shape[rank - 1] % 32 == 0) {
        add_quantised(j, file, rank, shape, v, n);
        return;
    }
    bool wide = j->s->dtype == SL_DTYPE_F32;
    uint16_t *h = (uint16_t *)(void *)must_have(calloc(n, sizeof *h));
    for (size_t i = 0; i < n && !wide; i++)
        h[i] = j->s->dtype == SL_DTYPE_F16 ? sl_f16_from_f32(v[i]) : sl_bf16_from_f32(v[i]);
    uint32_t type = wide ? GGML_F32 : j->s->dtype == SL_DTYPE_F16 ? GGML_F16 : GGML_BF16;
    gguf_tensor(j->g, file, type, rank, shape, wide ? (const void *)v : h, n * (wide ? 4 : 2));
    free(h);
}

/* dst[…][b][a] = src[…][a][b] */
static void turn(float *dst, const float *src, size_t count, size_t a, size_t b)
{
    for (size_t k = 0; k < count; k++)
        for (size_t x = 0; x < a; x++)
            for (size_t y = 0; y < b; y++)
                dst[(k * b + y) * a + x] = src[(k * a + x) * b + y];
}

static void convert(const struct job *j, const char *ours, const char *file, enum op op)
{
    const struct sl_tensor *t = sl_tensors_find(j->t, ours);
    if (!t)
        return;
    size_t n = t->n_elements, shape[4];
    unsigned rank = t->rank;
    float *v = must_have(calloc(n, sizeof *v)), *w = must_have(calloc(n, sizeof *w));
    memcpy(shape, t->shape, rank * sizeof *shape);
    sl_tensor_values(t, 0, n, v);
    for (size_t i = 0; i < n && op == HALVE && j->s->rescale; i++)
        v[i] = ldexpf(v[i], -(int)(j->layer / j->s->rescale));
    if (op == FLAT) {
        rank = 1;
        shape[0] = n;
    }
    if (op == TURN) {
        size_t a = shape[rank - 2], b = shape[rank - 1];
        turn(w, v, n / (a * b), a, b);
        shape[rank - 2] = b, shape[rank - 1] = a;
    }
    add(j, file, rank, shape, op == TURN ? w : v, n);
    free(w);
    free(v);
}

/* The mixes of a layer as one tensor; of files with the mixes apart as so many. */
static void fuse(const struct job *j, const char *prefix, const char *letters)
{
    size_t d = j->s->d_model, n = strlen(letters), shape[4] = {n, 1, 1, d};
    float *v = must_have(malloc(n * d * sizeof *v));
    char name[80];
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "blocks.%zu.att.%s%c", j->layer, prefix, letters[i]);
        const struct sl_tensor *t = sl_tensors_find(j->t, name);
        if (!t || t->n_elements != d)
            abort();
        sl_tensor_values(t, 0, d, v + i * d);
        (void)snprintf(name, sizeof name, "blk.%zu.time_mix_lerp_%c.weight", j->layer, letters[i]);
        if (j->s->apart)
            add(j, name, 1, &d, v + i * d, d);
    }
    (void)snprintf(name, sizeof name, "blk.%zu.time_mix_lerp_fused.weight", j->layer);
    if (!j->s->apart)
        add(j, name, 4, shape, v, n * d);
    free(v);
}

static size_t axis(const struct sl_tensors *t, const char *name, unsigned i)
{
    const struct sl_tensor *x = sl_tensors_find(t, name);
    if (!x)
        abort();
    return x->shape[i];
}

static void number(const struct job *j, const char *key, size_t v)
{
    char name[80];
    (void)snprintf(name, sizeof name, "%s.%s", j->s->arch, key);
    gguf_u32(j->g, name, (uint32_t)v);
}

static void keys(const struct job *j)
{
    char name[80];
    gguf_text(j->g, "general.architecture", j->s->arch);
    number(j, "block_count", j->s->n_layers);
    number(j, "embedding_length", j->s->d_model);
    number(j, "feed_forward_length", axis(j->t, "blocks.0.ffn.key.weight", 0));
    number(j, "wkv.head_size", j->s->head_size);
    (void)snprintf(name, sizeof name, "%s.attention.layer_norm_epsilon", j->s->arch);
    gguf_f32(j->g, name, 1e-5F);
    if (strcmp(j->s->arch, "rwkv6") == 0) {
        number(j, "rescale_every_n_layers", j->s->rescale);
        number(j, "time_mix_extra_dim", axis(j->t, "blocks.0.att.time_maa_w2", 1));
        number(j, "time_decay_extra_dim", axis(j->t, "blocks.0.att.time_decay_w1", 1));
        return;
    }
    number(j, "attention.decay_lora_rank", axis(j->t, "blocks.0.att.w1", 1));
    number(j, "attention.iclr_lora_rank", axis(j->t, "blocks.0.att.a1", 1));
    number(j, "attention.value_residual_mix_lora_rank", axis(j->t, "blocks.1.att.v1", 1));
    number(j, "attention.gate_lora_rank", axis(j->t, "blocks.0.att.g1", 1));
}

static void convert_layer(const struct job *j)
{
    char ours[64], file[64];
    bool six = strcmp(j->s->arch, "rwkv6") == 0;
    bool dummies = !six && j->layer == 0 && !sl_tensors_find(j->t, "blocks.0.att.v0");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        (void)snprintf(ours, sizeof ours, "blocks.%zu.%s", j->layer, layers[i].ours);
        (void)snprintf(file, sizeof file, "blk.%zu.%s", j->layer, layers[i].file);
        convert(j, ours, file, layers[i].op);
        /* what the converter puts where the first layer needs nothing */
        if (dummies && strncmp(layers[i].ours, "att.a", 5) == 0) {
            *strstr(file, "mix_a") = '\0';
            (void)snprintf(file + strlen(file), 16, "mix_v%c.weight", layers[i].ours[5]);
            convert(j, ours, file, layers[i].op);
        }
    }
    if (six)
        fuse(j, "time_maa_", "wkvrg");
    else
        fuse(j, "x_", "rwkvag");
}

void gguf_from_tensors(struct gguf_maker *g, const struct sl_tensors *t,
                       const struct gguf_sizes *sizes)
{
    struct job j = {.g = g, .t = t, .s = sizes};
    keys(&j);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        convert(&j, ends[i].ours, ends[i].file, ends[i].op);
    for (; j.layer < sizes->n_layers; j.layer++)
        convert_layer(&j);
}
