/* block_rwkv.c: the blocks of BlinkDL's RWKV files.
 *
 *   x = ln0(embedding);  per layer:  x += mixer(ln1(x));  x += ffn(ln2(x));  logits =
 * head(ln_out(x))
 *
 * The feed-forward ("channel mixing") works on the normalised row and the one before it, which the
 * state keeps apart from the mixer's:
 *
 *   RWKV-7        W_v relu(W_k x_k)²
 *   RWKV-4 to 6   σ(W_r x_r) ⊙ W_v relu(W_k x_k)²
 *
 * with x_• = x + (x_prev - x) ⊙ m_•; versions 4 and 5 store one minus m. */
#include "engine/block.h"

#define EPS_LN 1e-5f

struct layer {
    struct sl_norm ln1, ln2;
    const float *x_k, *x_r;
    struct sl_matrix key, value, receptance;
    bool gated; /* else there are no x_r and receptance */
    size_t shift;
};

static void load_norm(struct sl_load *l, struct sl_norm *ret, const char *prefix, size_t i,
                      const char *name)
{
    size_t d = l->config.d_model;
    ret->eps = l->config.norm_eps > 0 ? l->config.norm_eps : EPS_LN;
    sl_load_vector(l, &ret->w, d, "%s%zu.%s.weight", prefix, i, name);
    if (!l->config.bare)
        sl_load_vector(l, &ret->b, d, "%s%zu.%s.bias", prefix, i, name);
}

static void load_ends(struct sl_load *l, struct sl_ends *ret)
{
    size_t d = l->config.d_model, vocab = l->config.vocab_size;
    sl_load_embedding(l, &ret->embedding, vocab, d, "emb.weight");
    if (!l->config.no_norm_in)
        load_norm(l, &ret->norm_in, "blocks.", 0, "ln0");
    ret->norm_out.eps = l->config.norm_eps > 0 ? l->config.norm_eps : EPS_LN;
    sl_load_vector(l, &ret->norm_out.w, d, "ln_out.weight");
    if (!l->config.bare)
        sl_load_vector(l, &ret->norm_out.b, d, "ln_out.bias");
    sl_load_head(l, &ret->head, vocab, d, l->config.tied ? "emb.weight" : "head.weight");
    if (l->config.tied)
        sl_load_ignore(l, "head.weight");
}

/* The mixing vectors' names: `prefix` and then k or r. */
static void load_layer(struct sl_load *l, size_t i, struct layer *b, const char *prefix,
                       void (*map)(float *v, size_t n))
{
    size_t d = l->config.d_model, d_ffn = l->config.d_ffn, ld = sl_row_floats(d);
    load_norm(l, &b->ln1, "blocks.", i, "ln1");
    load_norm(l, &b->ln2, "blocks.", i, "ln2");
    sl_load_vector(l, &b->x_k, d, "blocks.%zu.ffn.%sk", i, prefix);
    sl_load_map(l, map);
    sl_load_matrix(l, &b->key, d_ffn, d, SL_OUT_IN, "blocks.%zu.ffn.key.weight", i);
    sl_load_matrix(l, &b->value, d, d_ffn, SL_OUT_IN, "blocks.%zu.ffn.value.weight", i);
    if (b->gated) {
        sl_load_vector(l, &b->x_r, d, "blocks.%zu.ffn.%sr", i, prefix);
        sl_load_map(l, map);
        sl_load_matrix(l, &b->receptance, d, d, SL_OUT_IN, "blocks.%zu.ffn.receptance.weight", i);
    }
    b->shift = sl_load_state(l, SL_DTYPE_F32, 1, (size_t[]){d}, "layers.%zu.ffn.shift", i);
    sl_load_scratch(l, (b->gated ? 4 : 2) * ld + sl_row_floats(d_ffn), ld);
}

static void load_rwkv7(struct sl_load *l, size_t i, void *layer)
{
    load_layer(l, i, layer, "x_", NULL);
}

static void load_rwkv6(struct sl_load *l, size_t i, void *layer)
{
    struct layer *b = layer;
    b->gated = true;
    load_layer(l, i, b, "time_maa_", NULL);
}

static void load_rwkv4(struct sl_load *l, size_t i, void *layer)
{
    struct layer *b = layer;
    b->gated = true;
    load_layer(l, i, b, "time_mix_", sl_map_one_minus);
}

struct job {
    const struct sl_pass *p;
    const struct layer *b;
    float *mixed, *wide, *y;
    float *mixed_r, *gate; /* NULL where there is no gate */
};

static void mix_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    float *const mixed[] = {j->mixed, j->mixed_r};
    const float *const mix[] = {j->b->x_k, j->b->x_r};
    sl_pass_mix(j->p, &j->b->ln2, j->b->shift, mixed, mix, j->gate ? 2 : 1, part, n_parts);
}

static void relu2_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    size_t ld = sl_row_floats(j->b->key.n_out);
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->wide + r * ld + t->col;
        j->p->k->vrelu2(y, y, t->col_end - t->col);
    }
}

static void sigmoid_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->gate + r * j->p->ld + t->col;
        j->p->k->vsigmoid(y, y, t->col_end - t->col);
    }
}

static void keep_part(const void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    size_t begin, end;
    sl_work_range(p->n_spans, 1, part, n_parts, &begin, &end);
    for (size_t s = begin; s < end; s++)
        sl_pass_keep_shift(p, &p->spans[s], j->b->shift, 0, p->d_model);
}

static void key_stage(const struct job *j)
{
    const struct sl_pass *p = j->p;
    const struct sl_product v[] = {
        {&j->b->key, j->mixed, p->ld, j->wide, sl_row_floats(j->b->key.n_out), relu2_tile},
        {&j->b->receptance, j->mixed_r, p->ld, j->gate, p->ld, sigmoid_tile},
    };
    sl_pass_products(p, v, j->gate ? 2 : 1, j, keep_part);
}

static void feed_forward(const struct sl_pass *p, const struct layer *b)
{
    size_t used = 0, ld_wide = sl_row_floats(b->key.n_out);
    struct job j = {.p = p, .b = b};
    j.mixed = sl_pass_take(p, &used, p->ld);
    j.y = sl_pass_take(p, &used, p->ld);
    j.wide = sl_pass_take(p, &used, ld_wide);
    if (b->gated) {
        j.mixed_r = sl_pass_take(p, &used, p->ld);
        j.gate = sl_pass_take(p, &used, p->ld);
    }
    sl_workers_run(p->workers, mix_part, &j);
    key_stage(&j);
    sl_pass_add_gated(p, &b->value, j.wide, ld_wide, j.gate, j.y);
}

static void forward(const struct sl_pass *p, const void *layer, const struct sl_mixer *mixer,
                    const void *mixer_layer)
{
    const struct layer *b = layer;
    mixer->forward(p, &b->ln1, mixer_layer);
    feed_forward(p, b);
}

#define BLOCK(name, load_function)                                                                 \
    const struct sl_block name = {                                                                 \
        .layer_bytes = sizeof(struct layer),                                                       \
        .load_ends = load_ends,                                                                    \
        .load = load_function,                                                                     \
        .forward = forward,                                                                        \
    }

BLOCK(sl_block_rwkv4, load_rwkv4); /* and RWKV-5 */
BLOCK(sl_block_rwkv6, load_rwkv6);
BLOCK(sl_block_rwkv7, load_rwkv7);
