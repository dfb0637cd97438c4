/* block_performer.c: the blocks of performer-pytorch's PerformerLM.
 *
 *   x = embedding + positions;  per layer:  x += mixer(norm(x));  x += W2 gelu(W1 norm'(x) + b1) +
 * b2 logits = head(norm(x)) + bias
 *
 * with LayerNorms and the exact GELU (by erf). Positions come from a table, fixed (pos_emb.emb) or
 * learned (pos_emb.emb.weight), so the model ends with it. Where there is no to_out the head is the
 * embedding.
 *
 * The library stores every layer twice, the second time as performer.proj_updater.instance.*; a
 * file whose two copies differ is no file of one model, and is refused. */
#include "engine/block.h"

#define EPS_LN 1e-5F
#define LAYER "performer.net.layers.%zu."
#define TWINS "performer.proj_updater.instance."

struct layer {
    struct sl_norm norm, norm_ffn;
    struct sl_matrix w1, w2;
    const float *b1, *b2;
};

static void load_ends(struct sl_load *l, struct sl_ends *ret)
{
    struct sl_config *c = &l->config;
    size_t d = c->d_model;
    bool learned = sl_load_has(l, "pos_emb.emb.weight");
    const char *table = learned ? "pos_emb.emb.weight" : "pos_emb.emb";
    c->max_tokens = sl_load_axis(l, 1, SL_POSITIONS_MAX, "%s", table);
    sl_load_embedding(l, &ret->embedding, c->vocab_size, d, "token_emb.weight");
    sl_load_grid(l, &ret->positions, c->max_tokens, d, "%s", table);
    ret->norm_out.eps = EPS_LN;
    sl_load_vector(l, &ret->norm_out.w, d, "norm.weight");
    sl_load_vector(l, &ret->norm_out.b, d, "norm.bias");
    c->tied = !sl_load_has(l, "to_out.weight") && !sl_load_has(l, "to_out.bias");
    sl_load_head(l, &ret->head, c->vocab_size, d, c->tied ? "token_emb.weight" : "to_out.weight");
    if (!c->tied)
        sl_load_vector(l, &ret->head_bias, c->vocab_size, "to_out.bias");
    sl_load_ignore(l, "performer.proj_updater.calls_since_last_redraw");
    sl_load_twins(l, TWINS, "performer.net.");
}

static void load_norm(struct sl_load *l, struct sl_norm *ret, size_t i, size_t which)
{
    ret->eps = EPS_LN;
    sl_load_vector(l, &ret->w, l->config.d_model, LAYER "%zu.norm.weight", i, which);
    sl_load_vector(l, &ret->b, l->config.d_model, LAYER "%zu.norm.bias", i, which);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *b = layer;
    size_t d = l->config.d_model, n = l->config.d_ffn;
    load_norm(l, &b->norm, i, 0);
    load_norm(l, &b->norm_ffn, i, 1);
    sl_load_matrix(l, &b->w1, n, d, SL_OUT_IN, LAYER "1.fn.fn.w1.weight", i);
    sl_load_vector(l, &b->b1, n, LAYER "1.fn.fn.w1.bias", i);
    sl_load_matrix(l, &b->w2, d, n, SL_OUT_IN, LAYER "1.fn.fn.w2.weight", i);
    sl_load_vector(l, &b->b2, d, LAYER "1.fn.fn.w2.bias", i);
    sl_load_scratch(l, sl_row_floats(d) + sl_row_floats(n), 0);
}

struct job {
    const struct sl_pass *p;
    const struct layer *b;
    float *wide, *y;
    size_t ld_wide;
};

static void gelu_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    size_t n = t->col_end - t->col;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->wide + r * j->ld_wide + t->col;
        j->p->k->vadd(y, y, j->b->b1 + t->col, n);
        j->p->k->vgelu(y, y, n);
    }
}

static void wide_stage(const struct job *j)
{
    const struct sl_product v = {&j->b->w1, j->p->xn, j->p->ld, j->wide, j->ld_wide, gelu_tile};
    sl_pass_products(j->p, &v, 1, j, NULL);
}

static void forward(const struct sl_pass *p, const void *layer, const struct sl_mixer *mixer,
                    const void *mixer_layer)
{
    const struct layer *b = layer;
    struct job j = {.p = p, .b = b, .ld_wide = sl_row_floats(b->w1.n_out)};
    size_t used = 0;
    mixer->forward(p, &b->norm, mixer_layer);
    j.y = sl_pass_take(p, &used, p->ld);
    j.wide = sl_pass_take(p, &used, j.ld_wide);
    sl_pass_norm(p, &b->norm_ffn);
    wide_stage(&j);
    sl_pass_add_biased(p, &b->w2, j.wide, j.ld_wide, b->b2, j.y);
}

const struct sl_block sl_block_performer = {
    .layer_bytes = sizeof(struct layer),
    .load_ends = load_ends,
    .load = load,
    .forward = forward,
};
