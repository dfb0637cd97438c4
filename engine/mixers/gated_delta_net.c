/* gated_delta_net.c: Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464, equation 10), as
 * flash-linear-attention holds it.
 *
 * Per head, with S [key][value]:
 *
 *   S_t = α_t S_{t-1} + k_t u_tᵀ,   u_t = β_t (v_t - α_t S_{t-1}ᵀ k_t)      o_t = S_tᵀ q_t /
 * sqrt(d_k) α_t = exp(-exp(A) softplus(a_t + b)),  β_t = σ(…), or twice that
 *
 * the state decays before it is corrected. q, k and v have passed a convolution and silu; q and k
 * are unit vectors. There may be more heads of values, and so of the state, than of queries and
 * keys. What stands around it: fla.h. */
#include <math.h>
#include <string.h>

#include "engine/block.h"
#include "engine/fla.h"

struct layer {
    struct sl_fla_attn a;
    struct sl_matrix alpha, beta;
    const float *a_log, *dt_bias;
    float scale, beta_scale;
};

static void config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 21, .hidden_ratio = 4, .norm_eps = 1e-6};
    struct sl_config *c = &l->config;
    sl_fla_config(l, &class);
    sl_fla_swish_only(l);
    c->head_size = sl_load_size(l, "head_dim", 256, SL_HEAD_SIZE_MAX);
    c->n_heads = sl_load_size(l, "num_heads", 6, SL_HEADS_MAX);
}

/* head_dim · expand_v, which must be whole. */
static size_t value_width(struct sl_load *l)
{
    double by = sl_load_number(l, "expand_v", 2, 1e-6, 1024);
    double n = (double)l->config.head_size * by, whole = floor(n);
    if (whole >= 1 && whole <= SL_HEAD_SIZE_MAX && n - whole <= 1e-5 * n)
        return (size_t)whole;
    sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                         "head_dim %zu and expand_v %g make values of %g; a whole number from 1 to "
                         "%d is needed",
                         l->config.head_size, by, n, SL_HEAD_SIZE_MAX);
    return 1;
}

/* Files of the beginning of 2025 have a D of ones that nothing uses. Comba, whose other names are
 * the same, uses one of its own: only the type tells them apart. */
static void ignore_old(struct sl_load *l, size_t i)
{
    const struct sl_setting *s = sl_settings_find(l->tensors->settings, "model_type");
    if (s && s->kind == SL_SETTING_TEXT &&
        strcmp(s->text, sl_mixer_gated_delta_net.model_type) == 0)
        sl_load_ignore(l, "model.layers.%zu.attn.D", i);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    struct sl_fla_attn *a = &m->a;
    const struct sl_config *c = &l->config;
    size_t n_v = sl_load_size(l, "num_v_heads", 0, SL_HEADS_MAX);
    a->heads = n_v ? n_v : c->n_heads;
    a->d_k = c->head_size, a->d_v = value_width(l);
    a->share[SL_FLA_Q] = a->share[SL_FLA_K] =
        sl_fla_divide(l, "num_v_heads", a->heads, "num_heads", c->n_heads);
    a->share[SL_FLA_V] = 1;
    a->act[SL_FLA_Q][0] = a->act[SL_FLA_K][0] = a->act[SL_FLA_V][0] = SL_ACT_SILU;
    sl_fla_conv_load(l, a, i, true);
    a->gated = sl_load_flag(l, "use_gate", true);
    sl_fla_attn_load(l, a, i, "o_norm", a->d_k);
    sl_load_small(l, &m->alpha, a->heads, c->d_model, SL_OUT_IN,
                  "model.layers.%zu.attn.a_proj.weight", i);
    sl_load_small(l, &m->beta, a->heads, c->d_model, SL_OUT_IN,
                  "model.layers.%zu.attn.b_proj.weight", i);
    sl_load_vector(l, &m->a_log, a->heads, "model.layers.%zu.attn.A_log", i);
    sl_load_vector(l, &m->dt_bias, a->heads, "model.layers.%zu.attn.dt_bias", i);
    ignore_old(l, i);
    m->beta_scale = sl_load_flag(l, "allow_neg_eigval", false) ? 2 : 1;
    m->scale = (float)(1 / sqrt((double)a->d_k));
    sl_load_scratch(l, sl_fla_row_floats(l, a) + 2 * sl_row_floats(a->heads), 0);
    sl_load_recurrence(l,
                       &(struct sl_recur_shape){
                           .n_k = a->d_k, .n_v = a->d_v, .decay = SL_DECAY_SCALAR, .delta = true});
}

struct job {
    struct sl_fla_job f;
    const struct layer *m;
    float *alpha,
        *beta; /* [n_rows][ld]; alpha: ln α in the rows whose recurrence has another form */
    size_t ld;
};

static void alpha_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->f.p->k;
    float rate[SL_PANEL];
    for (size_t c = t->col; c < t->col_end; c += SL_PANEL) {
        size_t n = t->col_end - c < SL_PANEL ? t->col_end - c : SL_PANEL;
        k->vexp(rate, j->m->a_log + c, n);
        k->vscale(rate, rate, -1, n);
        for (size_t r = 0; r < j->f.p->n_rows; r++) {
            float *y = j->alpha + r * j->ld + c;
            k->vadd(y, y, j->m->dt_bias + c, n);
            k->vsoftplus(y, y, n);
            k->vmul(y, y, rate, n);
            if (!sl_recur_has_form(j->f.p, &j->f.p->spans[j->f.p->row_span[r]]))
                k->vexp(y, y, n);
        }
    }
}

static void beta_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->f.p->k;
    for (size_t r = 0; r < j->f.p->n_rows; r++) {
        float *y = j->beta + r * j->ld + t->col;
        k->vsigmoid(y, y, t->col_end - t->col);
    }
}

static void recur_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->f.p->k;
    size_t n = j->f.a->d_k;
    sl_fla_l2_norm(k, x->q, sl_fla_at(&j->f, SL_FLA_Q, t, head), n, j->m->scale);
    sl_fla_l2_norm(k, x->k, sl_fla_at(&j->f, SL_FLA_K, t, head), n, 1);
    *x->g = j->alpha[t * j->ld + head];
    *x->beta = j->beta[t * j->ld + head] * j->m->beta_scale;
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    struct sl_recurrence r = {.decay = SL_DECAY_SCALAR};
    sl_fla_run(&j->f, span, head, &r, j->f.a->d_k, true, recur_row, j, tmp);
    sl_fla_finish_span(&j->f, span, head);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.m = layer};
    sl_fla_plan(&j.f, p, &j.m->a);
    j.ld = sl_row_floats(j.m->a.heads);
    j.alpha = sl_pass_take(p, &j.f.used, j.ld);
    j.beta = sl_pass_take(p, &j.f.used, j.ld);
    const struct sl_product more[] = {{&j.m->alpha, p->xn, p->ld, j.alpha, j.ld, alpha_tile},
                                      {&j.m->beta, p->xn, p->ld, j.beta, j.ld, beta_tile}};
    sl_fla_project(&j.f, norm, more, 2);
    sl_fla_recur(&j.f, recur);
}

const struct sl_mixer sl_mixer_gated_delta_net = {
    .arch = "gated_delta_net",
    .title = "Gated DeltaNet",
    .model_type = "gated_deltanet",
    .block = &sl_block_fla,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
