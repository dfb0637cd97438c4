/* delta_net.c: DeltaNet (Yang et al. 2024, arXiv:2406.06484, equation 3), as flash-linear-attention
 * holds it.
 *
 * Per head, with S [key][value]:
 *
 *   S_t = S_{t-1} + k_t u_tᵀ,   u_t = β_t (v_t - S_{t-1}ᵀ k_t)        o_t = S_tᵀ q_t / sqrt(d_k)
 *
 * that is, what k_t already retrieves is taken away in the measure β_t = σ(W_b x_t), or twice that,
 * before v_t is written. q and k have passed a convolution and an activation and are made unit
 * vectors or divided by their sum. What stands around it: fla.h. */
#include <math.h>

#include "engine/block.h"
#include "engine/fla.h"

struct layer {
    struct sl_fla_attn a;
    struct sl_matrix beta; /* n_out 0: β is 1 */
    bool sum_norm;
    float scale, beta_scale;
};

static void config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 24, .hidden_ratio = 4, .norm_eps = 1e-6};
    sl_fla_config(l, &class);
    sl_fla_config_heads(l, 16, 1);
    if (!sl_load_flag(l, "use_output_norm", true))
        sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED,
                             "use_output_norm is false; only true can be run");
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    static const char *const norms[] = {"l2", "sum", NULL};
    static const char *const words[] = {"silu", "relu", "elu", "identity", NULL};
    static const enum sl_fla_act acts[] = {SL_ACT_SILU, SL_ACT_RELU, SL_ACT_ELU1, SL_ACT_NONE};
    struct layer *m = layer;
    struct sl_fla_attn *a = &m->a;
    sl_fla_heads_load(l, a, 1);
    a->share[SL_FLA_Q] = a->share[SL_FLA_K] = a->share[SL_FLA_V] = 1;
    sl_fla_conv_load(l, a, i, true);
    enum sl_fla_act act = acts[sl_load_choice(l, "qk_activation", 0, words)];
    a->act[SL_FLA_Q][0] = a->act[SL_FLA_K][0] = act;
    a->act[SL_FLA_V][0] = SL_ACT_SILU;
    a->gated = sl_load_flag(l, "use_gate", false);
    sl_fla_attn_load(l, a, i, "o_norm", a->d_k);
    if (sl_load_flag(l, "use_beta", true))
        sl_load_small(l, &m->beta, a->heads, l->config.d_model, SL_OUT_IN,
                      "model.layers.%zu.attn.b_proj.weight", i);
    m->beta_scale = sl_load_flag(l, "allow_neg_eigval", false) ? 2 : 1;
    m->sum_norm = sl_load_choice(l, "qk_norm", 0, norms) == 1;
    m->scale = (float)(1 / sqrt((double)a->d_k));
    sl_load_scratch(l, sl_fla_row_floats(l, a) + sl_row_floats(a->heads), 0);
    sl_load_recurrence(l, &(struct sl_recur_shape){
                              .n_k = a->d_k, .n_v = a->d_v, .decay = SL_DECAY_NONE, .delta = true});
}

struct job {
    struct sl_fla_job f;
    const struct layer *m;
    float *beta; /* [n_rows][ld_beta]; NULL: 1 */
    size_t ld_beta;
};

static void beta_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->f.p->k;
    for (size_t r = 0; r < j->f.p->n_rows; r++) {
        float *y = j->beta + r * j->ld_beta + t->col;
        k->vsigmoid(y, y, t->col_end - t->col);
    }
}

static void normalise(const struct job *j, float *y, const float *x, float scale)
{
    const struct sl_kernels *k = j->f.p->k;
    size_t n = j->f.a->d_k;
    if (j->m->sum_norm)
        k->vscale(y, x, scale / k->sum16(x, n), n);
    else
        sl_fla_l2_norm(k, y, x, n, scale);
}

static float beta_of(const struct job *j, size_t t, size_t head)
{
    return (j->beta ? j->beta[t * j->ld_beta + head] : 1) * j->m->beta_scale;
}

static void recur_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct job *j = arg;
    normalise(j, x->q, sl_fla_at(&j->f, SL_FLA_Q, t, head), j->m->scale);
    normalise(j, x->k, sl_fla_at(&j->f, SL_FLA_K, t, head), 1);
    *x->beta = beta_of(j, t, head);
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    struct sl_recurrence r = {.decay = SL_DECAY_NONE};
    sl_fla_run(&j->f, span, head, &r, j->f.a->d_k, true, recur_row, j, tmp);
    sl_fla_finish_span(&j->f, span, head);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.m = layer};
    bool has_beta = j.m->beta.n_out > 0;
    sl_fla_plan(&j.f, p, &j.m->a);
    j.ld_beta = sl_row_floats(j.m->beta.n_out);
    j.beta = has_beta ? sl_pass_take(p, &j.f.used, j.ld_beta) : NULL;
    const struct sl_product more = {&j.m->beta, p->xn, p->ld, j.beta, j.ld_beta, beta_tile};
    sl_fla_project(&j.f, norm, &more, has_beta ? 1 : 0);
    sl_fla_recur(&j.f, recur);
}

const struct sl_mixer sl_mixer_delta_net = {
    .arch = "delta_net",
    .title = "DeltaNet",
    .model_type = "delta_net",
    .block = &sl_block_fla,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
