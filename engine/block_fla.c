/* block_fla.c: the blocks of flash-linear-attention's models.
 *
 *   per layer:  x += mixer(norm(x));  x += W_down (silu(W_gate z) ⊙ W_up z),  z = norm'(x)
 *
 * with RMSNorms; the head may be the embedding. Before February 2025 the library kept the gate and
 * the up projection in one tensor, gate first, under the gate's name. Mamba-2's layers are the
 * mixer alone, and other names. */
#include "engine/block.h"

#include "engine/fla.h"

struct layer {
    struct sl_norm norm, norm_ffn;
    struct sl_matrix gate, up, down;
};

static void load_norm(struct sl_load *l, struct sl_norm *ret, const char *prefix, size_t i,
                      const char *name)
{
    ret->rms = true;
    ret->eps = l->config.norm_eps;
    sl_load_vector(l, &ret->w, l->config.d_model, "%s%zu.%s.weight", prefix, i, name);
}

/* `norm` is the last norm's name. */
static void load_some_ends(struct sl_load *l, struct sl_ends *ret, const char *embedding,
                           const char *norm)
{
    size_t d = l->config.d_model, vocab = l->config.vocab_size;
    sl_load_embedding(l, &ret->embedding, vocab, d, "%s", embedding);
    ret->norm_out.rms = true;
    ret->norm_out.eps = l->config.norm_eps;
    sl_load_vector(l, &ret->norm_out.w, d, "%s", norm);
    sl_load_head(l, &ret->head, vocab, d, "%s", l->config.tied ? embedding : "lm_head.weight");
    if (l->config.tied)
        sl_load_ignore(l, "lm_head.weight");
}

static void load_ends(struct sl_load *l, struct sl_ends *ret)
{
    load_some_ends(l, ret, "model.embeddings.weight", "model.norm.weight");
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *b = layer;
    size_t d = l->config.d_model, n = l->config.d_ffn;
    load_norm(l, &b->norm, "model.layers.", i, "attn_norm");
    load_norm(l, &b->norm_ffn, "model.layers.", i, "mlp_norm");
    size_t rows =
        sl_load_axis(l, 1, 2 * (size_t)SL_D_FFN_MAX, "model.layers.%zu.mlp.gate_proj.weight", i);
    if (sl_load_has(l, "model.layers.%zu.mlp.up_proj.weight", i) || rows != 2 * n) {
        sl_load_matrix(l, &b->gate, n, d, SL_OUT_IN, "model.layers.%zu.mlp.gate_proj.weight", i);
        sl_load_matrix(l, &b->up, n, d, SL_OUT_IN, "model.layers.%zu.mlp.up_proj.weight", i);
    } else {
        sl_load_stacked(l, &b->gate, 0, n, 2 * n, d, "model.layers.%zu.mlp.gate_proj.weight", i);
        sl_load_stacked(l, &b->up, n, n, 2 * n, d, "model.layers.%zu.mlp.gate_proj.weight", i);
    }
    sl_load_matrix(l, &b->down, d, n, SL_OUT_IN, "model.layers.%zu.mlp.down_proj.weight", i);
    sl_load_scratch(l, sl_row_floats(d) + 2 * sl_row_floats(n), 0);
}

struct job {
    const struct sl_pass *p;
    const struct layer *b;
    float *gate, *up, *y;
    size_t ld_wide;
};

static void wide_stage(const struct job *j)
{
    const struct sl_pass *p = j->p;
    const struct sl_product v[] = {
        {&j->b->gate, p->xn, p->ld, j->gate, j->ld_wide, NULL},
        {&j->b->up, p->xn, p->ld, j->up, j->ld_wide, NULL},
    };
    sl_pass_products(p, v, 2, j, NULL);
}

/* The two halves of a product meet only once both are there. */
static void gate_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    size_t begin, end, n = p->n_rows * j->ld_wide;
    sl_work_range(n, SL_PANEL, part, n_parts, &begin, &end);
    p->k->vsilu(j->gate + begin, j->gate + begin, end - begin);
    p->k->vmul(j->gate + begin, j->gate + begin, j->up + begin, end - begin);
}

static void forward(const struct sl_pass *p, const void *layer, const struct sl_mixer *mixer,
                    const void *mixer_layer)
{
    const struct layer *b = layer;
    size_t used = 0;
    struct job j = {.p = p, .b = b, .ld_wide = sl_row_floats(b->gate.n_out)};
    mixer->forward(p, &b->norm, mixer_layer);
    j.gate = sl_pass_take(p, &used, j.ld_wide);
    j.up = sl_pass_take(p, &used, j.ld_wide);
    j.y = sl_pass_take(p, &used, p->ld);
    sl_pass_norm(p, &b->norm_ffn);
    wide_stage(&j);
    sl_workers_run(p->workers, gate_part, &j);
    sl_pass_add_product(p, &b->down, j.gate, j.ld_wide, j.y);
}

const struct sl_block sl_block_fla = {
    .layer_bytes = sizeof(struct layer),
    .load_ends = load_ends,
    .load = load,
    .forward = forward,
};

/* --- Mamba-2 ------------------------------------------------------------------------------------
 */

static void load_ends_mamba(struct sl_load *l, struct sl_ends *ret)
{
    /* state-spaces' own files have the singular */
    bool theirs = sl_load_has(l, "backbone.embedding.weight");
    load_some_ends(l, ret, theirs ? "backbone.embedding.weight" : "backbone.embeddings.weight",
                   "backbone.norm_f.weight");
}

static void load_mamba(struct sl_load *l, size_t i, void *layer)
{
    load_norm(l, layer, "backbone.layers.", i, "norm");
}

static void forward_mamba(const struct sl_pass *p, const void *layer, const struct sl_mixer *mixer,
                          const void *mixer_layer)
{
    mixer->forward(p, layer, mixer_layer);
}

const struct sl_block sl_block_mamba = {
    .layer_bytes = sizeof(struct sl_norm),
    .load_ends = load_ends_mamba,
    .load = load_mamba,
    .forward = forward_mamba,
};
