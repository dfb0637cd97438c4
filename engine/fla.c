/* fla.c: see fla.h. */
#include "engine/fla.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#define L2_EPS 1e-6f

/* --- settings -----------------------------------------------------------------------------------
 */

static size_t up_to(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* The width that intermediate_size gives, or hidden_ratio where it is absent. */
static size_t feed_forward_width(struct sl_load *l, double ratio)
{
    size_t n = sl_load_size(l, "intermediate_size", 0, SL_D_FFN_MAX);
    if (n > 0 || !sl_load_ok(l))
        return n;
    /* null does not stand for the class's default here, but for the feed-forward's own, 4. */
    double by = sl_load_number(
        l, "hidden_ratio",
        sl_settings_find(l->tensors->settings, "hidden_ratio") ? (double)NAN : ratio, 1e-3, 1024);
    by = isnan(by) ? 4 : by;
    n = up_to((size_t)((double)l->config.d_model * by * 2 / 3), 256);
    if (n < 1 || n > SL_D_FFN_MAX)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                             "hidden_size %zu and hidden_ratio %g make a feed-forward of %zu; 1 to "
                             "%d is possible",
                             l->config.d_model, by, n, SL_D_FFN_MAX);
    return n;
}

void sl_fla_config(struct sl_load *l, const struct sl_fla_class *c)
{
    struct sl_config *s = &l->config;
    s->d_model = sl_load_size(l, "hidden_size", c->hidden_size, SL_D_MODEL_MAX);
    s->n_layers = sl_load_size(l, "num_hidden_layers", c->num_hidden_layers, SL_LAYERS_MAX);
    s->vocab_size = sl_load_size(l, "vocab_size", 32000, SL_VOCAB_MAX);
    s->norm_eps = (float)sl_load_number(l, "norm_eps", c->norm_eps, 0, 1);
    s->tied = sl_load_flag(l, "tie_word_embeddings", false);
    sl_load_refuse(l, "attn", "a hybrid with softmax attention");
    sl_load_refuse(l, "attnres_block_size", "attention over earlier layers");
    sl_load_refuse(l, "quantization_config", "a quantised model");
    if (c->hidden_ratio > 0) {
        l->quiet = true;
        s->d_ffn = feed_forward_width(l, c->hidden_ratio);
        l->quiet = false;
    }
}

size_t sl_fla_width(struct sl_load *l, const char *key, double absent, size_t d)
{
    double by = sl_load_number(l, key, absent, 1e-6, 1024);
    double n = floor((double)d * by);
    if (n >= 1 && n <= SL_D_FFN_MAX)
        return (size_t)n;
    sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                         "%s %g of %zu channels makes %g; 1 to %d is possible", key, by, d, n,
                         SL_D_FFN_MAX);
    return 1;
}

size_t sl_fla_divide(struct sl_load *l, const char *what, size_t n, const char *by_what, size_t by)
{
    if (by > 0 && n >= by && n % by == 0)
        return n / by;
    sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s, %zu, is no multiple of %s, %zu", what, n,
                         by_what, by);
    return 1;
}

void sl_fla_swish_only(struct sl_load *l)
{
    static const char *const words[] = {"swish", "silu", NULL};
    (void)sl_load_choice(l, "hidden_act", 0, words);
}

void sl_fla_config_heads(struct sl_load *l, size_t num_heads, double expand_k)
{
    struct sl_config *c = &l->config;
    sl_fla_swish_only(l);
    c->n_heads = sl_load_size(l, "num_heads", num_heads, SL_HEADS_MAX);
    c->head_size =
        sl_fla_divide(l, "the keys' width", sl_fla_width(l, "expand_k", expand_k, c->d_model),
                      "num_heads", c->n_heads);
}

/* --- activations --------------------------------------------------------------------------------
 */

void sl_fla_activate(const struct sl_kernels *k, enum sl_fla_act act, float *y, size_t n)
{
    switch (act) {
    case SL_ACT_NONE:
        break;
    case SL_ACT_SILU:
        k->vsilu(y, y, n);
        break;
    case SL_ACT_RELU:
        k->vrelu(y, y, n);
        break;
    case SL_ACT_RELU2:
        k->vrelu2(y, y, n);
        break;
    case SL_ACT_ELU1:
        k->velu1(y, y, n);
        break;
    case SL_ACT_SIGMOID:
        k->vsigmoid(y, y, n);
        break;
    }
}

/* The setting feature_map of GLA and RetNet, a function by the library's name; null is none. */
static enum sl_fla_act feature_map(struct sl_load *l)
{
    static const char *const words[] = {"relu", "sqrelu", "sigmoid", "swish", "silu", NULL};
    static const enum sl_fla_act acts[] = {SL_ACT_RELU, SL_ACT_RELU2, SL_ACT_SIGMOID, SL_ACT_SILU,
                                           SL_ACT_SILU};
    size_t i = sl_load_choice(l, "feature_map", SIZE_MAX, words);
    return i == SIZE_MAX ? SL_ACT_NONE : acts[i];
}

void sl_fla_l2_norm(const struct sl_kernels *k, float *y, const float *x, size_t n, float scale)
{
    k->vscale(y, x, scale / sqrtf(k->dot16(x, x, n) + L2_EPS), n);
}

/* --- loading ------------------------------------------------------------------------------------
 */

static size_t width(const struct sl_fla_attn *a, size_t i)
{
    return sl_fla_heads(a, i) * (i == SL_FLA_V ? a->d_v : a->d_k);
}

void sl_fla_heads_load(struct sl_load *l, struct sl_fla_attn *a, double expand_v)
{
    const struct sl_config *c = &l->config;
    a->heads = c->n_heads, a->d_k = c->head_size;
    a->d_v =
        sl_fla_divide(l, "the values' width", sl_fla_width(l, "expand_v", expand_v, c->d_model),
                      "num_heads", c->n_heads);
}

void sl_fla_share_load(struct sl_load *l, struct sl_fla_attn *a)
{
    size_t kv = sl_load_size(l, "num_kv_heads", 0, SL_HEADS_MAX);
    a->share[SL_FLA_Q] = 1;
    a->share[SL_FLA_K] = a->share[SL_FLA_V] =
        sl_fla_divide(l, "num_heads", a->heads, "num_kv_heads", kv ? kv : a->heads);
}

void sl_fla_attn_load(struct sl_load *l, struct sl_fla_attn *a, size_t i, const char *norm,
                      size_t d_features)
{
    size_t d = l->config.d_model, d_out = a->heads * a->d_v;
    for (size_t j = 0; j < SL_FLA_QKV; j++)
        sl_load_matrix(l, &a->w[j], width(a, j), d, SL_OUT_IN,
                       "model.layers.%zu.attn.%c_proj.weight", i, "qkv"[j]);
    if (a->gated)
        sl_load_matrix(l, &a->g, d_out, d, SL_OUT_IN, "model.layers.%zu.attn.g_proj.weight", i);
    sl_load_matrix(l, &a->o, d, d_out, SL_OUT_IN, "model.layers.%zu.attn.o_proj.weight", i);
    a->norm.rms = true;
    a->norm.eps = l->config.norm_eps;
    if (norm)
        sl_load_vector(l, &a->norm.w, a->d_v, "model.layers.%zu.attn.%s.weight", i, norm);
    a->state = sl_load_state(l, SL_DTYPE_F32, 3, (size_t[]){a->heads, d_features, a->d_v},
                             "layers.%zu.mixer.state", i);
}

/* The name of the output norm of GLA and RetNet, which is another where the library fuses norm and
 * gate; NULL where elementwise_affine is false. */
static const char *gate_norm(struct sl_load *l, size_t i, bool gated)
{
    if (!sl_load_flag(l, "elementwise_affine", true))
        return NULL;
    bool plain = !gated || sl_load_has(l, "model.layers.%zu.attn.g_norm.weight", i);
    return plain ? "g_norm" : "g_norm_swish_gate";
}

void sl_fla_conv_load(struct sl_load *l, struct sl_fla_attn *a, size_t i, bool absent)
{
    if (!sl_load_flag(l, "use_short_conv", absent))
        return;
    size_t taps = sl_load_size(l, "conv_size", 4, SL_TAPS_MAX);
    for (size_t j = 0; j < SL_FLA_QKV; j++) {
        char name[64], state[64];
        (void)snprintf(name, sizeof name, "model.layers.%zu.attn.%c_conv1d", i, "qkv"[j]);
        (void)snprintf(state, sizeof state, "layers.%zu.mixer.%c_conv", i, "qkv"[j]);
        sl_conv_load(l, &a->conv[j], width(a, j), taps, false, name, state);
    }
}

void sl_fla_gated_load(struct sl_load *l, struct sl_fla_attn *a, size_t i)
{
    sl_fla_conv_load(l, a, i, false);
    enum sl_fla_act silu = a->conv[0].taps ? SL_ACT_SILU : SL_ACT_NONE;
    a->act[SL_FLA_Q][0] = a->act[SL_FLA_K][0] = a->act[SL_FLA_V][0] = silu;
    a->act[SL_FLA_Q][1] = a->act[SL_FLA_K][1] = feature_map(l);
    a->gated = sl_load_flag(l, "use_output_gate", true);
    sl_fla_attn_load(l, a, i, gate_norm(l, i, a->gated), a->d_k);
}

size_t sl_fla_row_floats(const struct sl_load *l, const struct sl_fla_attn *a)
{
    size_t n = sl_row_floats(l->config.d_model) + sl_row_floats(a->heads * a->d_v);
    if (a->gated)
        n += sl_row_floats(a->heads * a->d_v);
    for (size_t i = 0; i < SL_FLA_QKV; i++)
        n += sl_row_floats(width(a, i));
    return n;
}

/* --- running ------------------------------------------------------------------------------------
 */

void sl_fla_plan(struct sl_fla_job *j, const struct sl_pass *p, const struct sl_fla_attn *a)
{
    j->p = p, j->a = a;
    j->used = 0;
    for (size_t i = 0; i < SL_FLA_QKV; i++) {
        j->ld[i] = sl_row_floats(width(a, i));
        j->x[i] = sl_pass_take(p, &j->used, j->ld[i]);
    }
    j->ld_out = sl_row_floats(a->heads * a->d_v);
    j->out = sl_pass_take(p, &j->used, j->ld_out);
    j->g = a->gated ? sl_pass_take(p, &j->used, j->ld_out) : NULL;
    j->y = sl_pass_take(p, &j->used, p->ld);
}

static void activate(const struct sl_fla_job *j, size_t i, float *y, size_t n)
{
    sl_fla_activate(j->p->k, j->a->act[i][0], y, n);
    sl_fla_activate(j->p->k, j->a->act[i][1], y, n);
}

static void activate_tile(const struct sl_fla_job *j, size_t i, const struct sl_tile *t)
{
    for (size_t r = 0; r < j->p->n_rows; r++)
        activate(j, i, j->x[i] + r * j->ld[i] + t->col, t->col_end - t->col);
}

static void q_tile(const void *arg, const struct sl_tile *t)
{
    activate_tile(arg, SL_FLA_Q, t);
}

static void k_tile(const void *arg, const struct sl_tile *t)
{
    activate_tile(arg, SL_FLA_K, t);
}

static void v_tile(const void *arg, const struct sl_tile *t)
{
    activate_tile(arg, SL_FLA_V, t);
}

static void gate_tile(const void *arg, const struct sl_tile *t)
{
    const struct sl_fla_job *j = arg;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->g + r * j->ld_out + t->col;
        j->p->k->vsilu(y, y, t->col_end - t->col);
    }
}

/* One block of channels of q, k or v. */
static void conv_block(const void *arg, const struct sl_span *span, size_t block, float *tmp)
{
    const struct sl_fla_job *j = arg;
    size_t i = 0, n;
    for (; block >= sl_conv_blocks(&j->a->conv[i]); i++)
        block -= sl_conv_blocks(&j->a->conv[i]);
    size_t first = sl_conv_block(j->p, &j->a->conv[i], span, j->x[i], j->ld[i], block, tmp, &n);
    for (size_t t = span->row; t < span->row + span->n_rows; t++)
        activate(j, i, j->x[i] + t * j->ld[i] + first, n);
}

static size_t conv_blocks(const struct sl_fla_attn *a)
{
    size_t n = 0;
    for (size_t i = 0; i < SL_FLA_QKV; i++)
        n += sl_conv_blocks(&a->conv[i]);
    return n;
}

void sl_fla_project(struct sl_fla_job *j, const struct sl_norm *norm, const struct sl_product *more,
                    size_t n)
{
    static void (*const tiles[])(const void *, const struct sl_tile *) = {q_tile, k_tile, v_tile};
    const struct sl_pass *p = j->p;
    const struct sl_fla_attn *a = j->a;
    struct sl_product v[SL_FLA_QKV + 1 + SL_FLA_MORE_MAX];
    size_t n_v = 0;
    assert(n <= SL_FLA_MORE_MAX);
    for (size_t i = 0; i < SL_FLA_QKV; i++)
        v[n_v++] = (struct sl_product){&a->w[i], p->xn,    p->ld,
                                       j->x[i],  j->ld[i], a->conv[i].taps ? NULL : tiles[i]};
    if (a->gated)
        v[n_v++] = (struct sl_product){&a->g, p->xn, p->ld, j->g, j->ld_out, gate_tile};
    for (size_t i = 0; i < n; i++)
        v[n_v++] = more[i];
    sl_pass_norm(p, norm);
    sl_pass_products(p, v, n_v, j, NULL);
    if (conv_blocks(a) > 0)
        sl_pass_heads(p, conv_blocks(a), conv_block, j);
}

static void finish(const struct sl_fla_job *j, size_t t, size_t h)
{
    const struct sl_fla_attn *a = j->a;
    float *o = sl_fla_out(j, t, h);
    sl_norm_row(j->p->k, &a->norm, o, o, a->d_v);
    if (a->gated)
        j->p->k->vmul(o, o, j->g + t * j->ld_out + h * a->d_v, a->d_v);
}

void sl_fla_finish_span(const struct sl_fla_job *j, const struct sl_span *span, size_t h)
{
    for (size_t t = span->row; t < span->row + span->n_rows; t++)
        finish(j, t, h);
}

void sl_fla_run(const struct sl_fla_job *j, const struct sl_span *span, size_t h,
                struct sl_recurrence *r, size_t n_k, bool delta, sl_recur_row_fn *row,
                const void *arg, float *tmp)
{
    r->n_k = n_k, r->n_v = j->a->d_v;
    r->v = sl_fla_at(j, SL_FLA_V, span->row, h), r->ld_v = j->ld[SL_FLA_V];
    r->o = sl_fla_out(j, span->row, h), r->ld_o = j->ld_out;
    r->s = sl_fla_state(j, span, h, n_k);
    sl_recur_run(j->p, span, r, delta, h, row, arg, tmp);
}

void sl_fla_recur(struct sl_fla_job *j, void (*rule)(const void *arg, const struct sl_span *span,
                                                     size_t head, float *tmp))
{
    sl_pass_heads(j->p, j->a->heads, rule, j);
    sl_pass_add_product(j->p, &j->a->o, j->out, j->ld_out, j->y);
}
