/* gla.c: gated linear attention (Yang et al. 2023, arXiv:2312.06635, equation 4), as
 * flash-linear-attention holds it.
 *
 * Per head, with S [key][value]:
 *
 *   S_t = diag(α_t) S_{t-1} + k_t v_tᵀ        o_t = S_tᵀ q_t / sqrt(d_k)
 *   α_t = σ(W_2 W_1 x_t + b)^(1/16), a value per key; ln α is held to clamp_min where that is set
 *
 * The sixteenth root is the library's constant and in no file. What stands around it: fla.h. */
#include <math.h>
#include <string.h>

#include "engine/block.h"
#include "engine/fla.h"

#define ROOT (-1.0f / 16) /* ln α = -softplus(-x) / 16 */

struct layer {
    struct sl_fla_attn a;
    struct sl_matrix one, two;
    const float *bias;
    float scale, clamp_min; /* -infinity: none */
};

static void config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 24, .hidden_ratio = 4, .norm_eps = 1e-6};
    sl_fla_config(l, &class);
    sl_fla_config_heads(l, 4, 0.5);
    if (!sl_load_flag(l, "use_gk", true))
        sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED, "use_gk is false; only true can be run");
    sl_load_refuse(l, "use_gv", "a decay of the values");
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    struct sl_fla_attn *a = &m->a;
    sl_fla_heads_load(l, a, 1);
    sl_fla_share_load(l, a);
    sl_fla_gated_load(l, a, i);

    size_t rank = sl_load_axis(l, 1, SL_RANK_MAX, "model.layers.%zu.attn.gk_proj.0.weight", i);
    size_t n = a->heads / a->share[SL_FLA_K] * a->d_k;
    sl_load_small(l, &m->one, rank, l->config.d_model, SL_OUT_IN,
                  "model.layers.%zu.attn.gk_proj.0.weight", i);
    sl_load_small(l, &m->two, n, rank, SL_OUT_IN, "model.layers.%zu.attn.gk_proj.1.weight", i);
    sl_load_vector(l, &m->bias, n, "model.layers.%zu.attn.gk_proj.1.bias", i);
    double clamp = sl_load_number(l, "clamp_min", (double)NAN, -1e6, 0);
    m->clamp_min = isnan(clamp) ? -INFINITY : (float)clamp;
    m->scale = (float)(1 / sqrt((double)a->d_k));
    sl_load_scratch(l, sl_fla_row_floats(l, a) + sl_row_floats(rank) + sl_row_floats(n), 0);
    sl_load_recurrence(
        l, &(struct sl_recur_shape){.n_k = a->d_k, .n_v = a->d_v, .decay = SL_DECAY_CHANNEL});
}

struct job {
    struct sl_fla_job f;
    const struct layer *m;
    float *mid, *decay; /* [n_rows][…]; decay: ln α in the rows whose recurrence has another form */
    size_t ld_mid, ld_decay;
};

static void decay_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->f.p->k;
    size_t n = t->col_end - t->col;
    for (size_t r = 0; r < j->f.p->n_rows; r++) {
        float *y = j->decay + r * j->ld_decay + t->col;
        k->vadd(y, y, j->m->bias + t->col, n);
        k->vscale(y, y, -1, n);
        k->vsoftplus(y, y, n);
        k->vscale(y, y, ROOT, n);
        for (size_t i = 0; i < n; i++) /* NaN stays */
            y[i] = j->m->clamp_min > y[i] ? j->m->clamp_min : y[i];
        if (!sl_recur_has_form(j->f.p, &j->f.p->spans[j->f.p->row_span[r]]))
            k->vexp(y, y, n);
    }
}

static void decay_stage(const struct job *j)
{
    const struct sl_product v = {&j->m->two, j->mid, j->ld_mid, j->decay, j->ld_decay, decay_tile};
    sl_pass_products(j->f.p, &v, 1, j, NULL);
}

static float *decay_at(const struct job *j, size_t t, size_t head)
{
    const struct sl_fla_attn *a = j->f.a;
    return j->decay + t * j->ld_decay + head / a->share[SL_FLA_K] * a->d_k;
}

static void recur_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct job *j = arg;
    size_t n = j->f.a->d_k;
    j->f.p->k->vscale(x->q, sl_fla_at(&j->f, SL_FLA_Q, t, head), j->m->scale, n);
    memcpy(x->k, sl_fla_at(&j->f, SL_FLA_K, t, head), n * sizeof *x->k);
    memcpy(x->g, decay_at(j, t, head), n * sizeof *x->g);
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    struct sl_recurrence r = {.decay = SL_DECAY_CHANNEL};
    sl_fla_run(&j->f, span, head, &r, j->f.a->d_k, false, recur_row, j, tmp);
    sl_fla_finish_span(&j->f, span, head);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.m = layer};
    sl_fla_plan(&j.f, p, &j.m->a);
    j.ld_mid = sl_row_floats(j.m->one.n_out);
    j.ld_decay = sl_row_floats(j.m->two.n_out);
    j.mid = sl_pass_take(p, &j.f.used, j.ld_mid);
    j.decay = sl_pass_take(p, &j.f.used, j.ld_decay);
    const struct sl_product first = {&j.m->one, p->xn, p->ld, j.mid, j.ld_mid, NULL};
    sl_fla_project(&j.f, norm, &first, 1);
    decay_stage(&j);
    sl_fla_recur(&j.f, recur);
}

const struct sl_mixer sl_mixer_gla = {
    .arch = "gla",
    .title = "gated linear attention",
    .model_type = "gla",
    .block = &sl_block_fla,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
