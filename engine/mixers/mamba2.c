/* mamba2.c: Mamba-2, the "state space duality" layer (Dao and Gu 2024, arXiv:2405.21060, section
 * 7), as flash-linear-attention and its authors hold it.
 *
 * One projection of the normalised row gives z, xBC and dt; xBC passes a short convolution and silu
 * and is then x (heads of P channels), B and C (N numbers for each group of heads). Per head, with
 * S [state][channel], what the paper calls the state transposed:
 *
 *   Δ   = min(max(softplus(dt + b), lo), hi)
 *   S_t = exp(-exp(A) Δ) S_{t-1} + B_t (Δ x_t)ᵀ        y_t = S_tᵀ C_t + D ⊙ x_t
 *
 * so B is the key, Δx the value and C the query. The output is W_o RMSNorm(y ⊙ silu(z)), the norm
 * over the channels of each group, or the norm before the gate, or no norm. Head h belongs to the
 * group h / (heads / groups). There is no feed-forward: the layer is all of its block. */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "engine/block.h"
#include "engine/short_conv.h"

struct layer {
    size_t heads, groups, d_head, d_state, d_inner; /* d_inner = heads · d_head */
    struct sl_matrix in, out;
    const float *in_bias, *out_bias;        /* NULL: none */
    struct sl_conv conv;                    /* over x, B, C */
    const float *rate, *dt_bias, *d, *norm; /* rate: exp(A); norm NULL: there is none */
    bool d_per_channel, norm_first;
    float dt_lo, dt_hi, eps;
    size_t state; /* offset of [heads][d_state][d_head] in a slot */
};

enum { ROWS = 16 /* of a head at a time: what is made of them stays in a cache */ };

/* --- settings -----------------------------------------------------------------------------------
 */

/* What the library calls its settings, and what the authors' files do. */
struct keys {
    const char *hidden_size, *num_hidden_layers, *tied, *state_size, *conv_kernel, *expand,
        *head_dim, *n_groups, *d_has_hdim, *rmsnorm, *norm_before_gate, *dt_limit, *use_bias,
        *use_conv_bias;
    size_t hidden_size_absent, num_hidden_layers_absent, vocab_size_absent;
    bool tied_absent;
};

static const struct keys of_fla = {
    .hidden_size = "hidden_size",
    .num_hidden_layers = "num_hidden_layers",
    .tied = "tie_word_embeddings",
    .state_size = "state_size",
    .conv_kernel = "conv_kernel",
    .expand = "expand",
    .head_dim = "head_dim",
    .n_groups = "n_groups",
    .d_has_hdim = "D_has_hdim",
    .rmsnorm = "rmsnorm",
    .norm_before_gate = "norm_before_gate",
    .dt_limit = "dt_limit",
    .use_bias = "use_bias",
    .use_conv_bias = "use_conv_bias",
    .hidden_size_absent = 2048,
    .num_hidden_layers_absent = 48,
    .vocab_size_absent = 32000,
    .tied_absent = false,
};

static const struct keys of_authors = {
    .hidden_size = "d_model",
    .num_hidden_layers = "n_layer",
    .tied = "tie_embeddings",
    .state_size = "ssm_cfg.d_state",
    .conv_kernel = "ssm_cfg.d_conv",
    .expand = "ssm_cfg.expand",
    .head_dim = "ssm_cfg.headdim",
    .n_groups = "ssm_cfg.ngroups",
    .d_has_hdim = "ssm_cfg.D_has_hdim",
    .rmsnorm = "ssm_cfg.rmsnorm",
    .norm_before_gate = "ssm_cfg.norm_before_gate",
    .dt_limit = "ssm_cfg.dt_limit",
    .use_bias = "ssm_cfg.bias",
    .use_conv_bias = "ssm_cfg.conv_bias",
    .hidden_size_absent = 2560,
    .num_hidden_layers_absent = 64,
    .vocab_size_absent = 50277,
    .tied_absent = true,
};

static const struct keys *keys_of(const struct sl_load *l)
{
    return sl_load_set(l, "ssm_cfg") || sl_load_set(l, "d_model") ? &of_authors : &of_fla;
}

/* What the authors' files say besides. Their embedding has rows that no token uses. */
static void config_of_authors(struct sl_load *l)
{
    static const char *const words[] = {"Mamba2", NULL};
    struct sl_config *c = &l->config;
    (void)sl_load_choice(l, "ssm_cfg.layer", SIZE_MAX, words);
    sl_load_refuse(l, "attn_layer_idx", "a hybrid with softmax attention");
    if (sl_load_number(l, "d_intermediate", 0, 0, 1e6) != 0)
        sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED,
                             "d_intermediate is not 0: a feed-forward cannot be run");
    size_t pad = sl_load_size(l, "pad_vocab_size_multiple", 8, SL_VOCAB_MAX);
    c->vocab_size = (c->vocab_size + pad - 1) / pad * pad;
}

/* The channels inside, as heads of d_head. */
static void config_heads(struct sl_load *l, const struct keys *k)
{
    struct sl_config *c = &l->config;
    double by = sl_load_number(l, k->expand, 2, 1e-3, 1024);
    double inner = floor(by * (double)c->d_model);
    c->head_size = sl_load_size(l, k->head_dim, 64, SL_HEAD_SIZE_MAX);
    if (!(inner >= 1 && inner <= SL_D_FFN_MAX) || (size_t)inner % c->head_size != 0 ||
        (size_t)inner / c->head_size > SL_HEADS_MAX) {
        sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                             "%s %g of %zu channels makes %g, which are not whole heads of %s %zu",
                             k->expand, by, c->d_model, inner, k->head_dim, c->head_size);
        return;
    }
    c->n_heads = (size_t)inner / c->head_size;
    size_t said = sl_load_size(l, "num_heads", 0, SL_HEADS_MAX);
    if (said && said != c->n_heads)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                             "num_heads is %zu, but %s and %s make %zu heads", said, k->expand,
                             k->head_dim, c->n_heads);
}

static void config(struct sl_load *l)
{
    static const char *const words[] = {"silu", "swish", NULL};
    const struct keys *k = keys_of(l);
    struct sl_config *c = &l->config;
    c->d_model = sl_load_size(l, k->hidden_size, k->hidden_size_absent, SL_D_MODEL_MAX);
    c->n_layers = sl_load_size(l, k->num_hidden_layers, k->num_hidden_layers_absent, SL_LAYERS_MAX);
    c->vocab_size = sl_load_size(l, "vocab_size", k->vocab_size_absent, SL_VOCAB_MAX);
    /* Under the name that the Transformers library has for it, too. */
    const char *eps = sl_load_set(l, "layer_norm_epsilon") ? "layer_norm_epsilon" : "norm_eps";
    c->norm_eps = (float)sl_load_number(l, eps, 1e-5, 0, 1);
    if (!sl_load_flag(l, "rms_norm", true))
        sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED, "rms_norm is false; only true can be run");
    c->tied = sl_load_flag(l, k->tied, k->tied_absent);
    (void)sl_load_choice(l, "hidden_act", 0, words);
    sl_load_refuse(l, "attn", "a hybrid with softmax attention");
    sl_load_refuse(l, "quantization_config", "a quantised model");
    if (k == &of_authors)
        config_of_authors(l);
    config_heads(l, k);
}

/* --- loading ------------------------------------------------------------------------------------
 */

/* Under its newer or its older name, a list of two. */
static void load_dt_limit(struct sl_load *l, struct layer *m, const char *key)
{
    char lo[64], hi[64];
    key = sl_load_set(l, key) ? key : "time_step_limit";
    (void)snprintf(lo, sizeof lo, "%s.0", key);
    (void)snprintf(hi, sizeof hi, "%s.1", key);
    if (sl_load_set(l, key) && (!sl_load_set(l, lo) || !sl_load_set(l, hi)))
        sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s is no list of two numbers", key);
    m->dt_lo = (float)sl_load_number(l, lo, 0, 0, 1e6);
    m->dt_hi = (float)sl_load_number(l, hi, (double)INFINITY, 0, (double)INFINITY);
    if (m->dt_lo > m->dt_hi)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s is from %g to %g; no number lies between",
                             key, (double)m->dt_lo, (double)m->dt_hi);
}

/* A width that would be beyond any file's; an error then, and 1. */
static size_t bounded(struct sl_load *l, const char *what, size_t n)
{
    if (n <= 4 * (size_t)SL_D_FFN_MAX)
        return n;
    sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s is %zu channels; at most %d are possible", what,
                         n, 4 * SL_D_FFN_MAX);
    return 1;
}

static void load_sizes(struct sl_load *l, struct layer *m, const struct keys *k)
{
    const struct sl_config *c = &l->config;
    m->heads = c->n_heads, m->d_head = c->head_size;
    m->d_inner = m->heads * m->d_head;
    m->d_state = sl_load_size(l, k->state_size, 128, SL_HEAD_SIZE_MAX);
    m->groups = sl_load_size(l, k->n_groups, 1, SL_HEADS_MAX);
    if (m->heads % m->groups != 0) {
        sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%zu heads are no multiple of %s, %zu",
                             m->heads, k->n_groups, m->groups);
        m->groups = 1;
    }
    m->eps = c->norm_eps;
}

static void map_exp(float *v, size_t n)
{
    sl_kernels_find(NULL)->vexp(v, v, n); /* the same bits by every table */
}

static void map_minus(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = -v[i];
}

/* The logarithm of the rate, or, in GGUF files, the rate with a minus. */
static void load_rate(struct sl_load *l, struct layer *m, size_t i)
{
    if (sl_load_has(l, "backbone.layers.%zu.mixer.A", i)) {
        sl_load_vector(l, &m->rate, m->heads, "backbone.layers.%zu.mixer.A", i);
        sl_load_map(l, map_minus);
    } else {
        sl_load_vector(l, &m->rate, m->heads, "backbone.layers.%zu.mixer.A_log", i);
        sl_load_map(l, map_exp);
    }
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    const struct keys *k = keys_of(l);
    struct layer *m = layer;
    size_t d = l->config.d_model;
    char name[64], state[64];
    load_sizes(l, m, k);
    size_t n_conv = bounded(l, "x, B and C", m->d_inner + 2 * m->groups * m->d_state);
    size_t n_in = n_conv + m->d_inner + m->heads;
    bool biased = sl_load_flag(l, k->use_bias, false);
    sl_load_matrix(l, &m->in, n_in, d, SL_OUT_IN, "backbone.layers.%zu.mixer.in_proj.weight", i);
    sl_load_matrix(l, &m->out, d, m->d_inner, SL_OUT_IN,
                   "backbone.layers.%zu.mixer.out_proj.weight", i);
    if (biased) {
        sl_load_vector(l, &m->in_bias, n_in, "backbone.layers.%zu.mixer.in_proj.bias", i);
        sl_load_vector(l, &m->out_bias, d, "backbone.layers.%zu.mixer.out_proj.bias", i);
    }
    (void)snprintf(name, sizeof name, "backbone.layers.%zu.mixer.conv1d", i);
    (void)snprintf(state, sizeof state, "layers.%zu.mixer.conv", i);
    sl_conv_load(l, &m->conv, n_conv, sl_load_size(l, k->conv_kernel, 4, SL_TAPS_MAX),
                 sl_load_flag(l, k->use_conv_bias, true), name, state);
    load_rate(l, m, i);
    sl_load_vector(l, &m->dt_bias, m->heads, "backbone.layers.%zu.mixer.dt_bias", i);
    m->d_per_channel = sl_load_flag(l, k->d_has_hdim, false);
    sl_load_vector(l, &m->d, m->d_per_channel ? m->d_inner : m->heads,
                   "backbone.layers.%zu.mixer.D", i);
    /* Transformers gates first whatever its config says (files of its 4.44 say true); only there
     * the eps has this name. */
    m->norm_first =
        sl_load_flag(l, k->norm_before_gate, false) && !sl_load_set(l, "layer_norm_epsilon");
    if (sl_load_flag(l, k->rmsnorm, true))
        sl_load_vector(l, &m->norm, m->d_inner, "backbone.layers.%zu.mixer.norm.weight", i);
    else
        m->norm_first = false;
    load_dt_limit(l, m, k->dt_limit);
    m->state = sl_load_state(l, SL_DTYPE_F32, 3, (size_t[]){m->heads, m->d_state, m->d_head},
                             "layers.%zu.mixer.state", i);
    sl_load_scratch(l, sl_row_floats(n_in) + sl_row_floats(m->d_inner) + sl_row_floats(d),
                    sl_row_floats(m->d_inner) + ROWS * (1 + sl_row_floats(m->d_head)));
}

/* --- running ------------------------------------------------------------------------------------
 */

struct job {
    const struct sl_pass *p;
    const struct layer *m;
    float *in, *y, *out; /* [n_rows][ld_in] z, x, B, C, dt; [n_rows][ld_y]; [n_rows][p->ld] */
    size_t ld_in, ld_y;
};

static void bias_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    for (size_t r = 0; j->m->in_bias && r < j->p->n_rows; r++) {
        float *y = j->in + r * j->ld_in + t->col;
        j->p->k->vadd(y, y, j->m->in_bias + t->col, t->col_end - t->col);
    }
}

static void project_stage(const struct job *j)
{
    const struct sl_product v = {&j->m->in, j->p->xn, j->p->ld, j->in, j->ld_in, bias_tile};
    sl_pass_products(j->p, &v, 1, j, NULL);
}

static void conv_block(const void *arg, const struct sl_span *span, size_t block, float *tmp)
{
    const struct job *j = arg;
    float *x = j->in + j->m->d_inner; /* after z */
    size_t n, first = sl_conv_block(j->p, &j->m->conv, span, x, j->ld_in, block, tmp, &n);
    for (size_t t = span->row; t < span->row + span->n_rows; t++)
        j->p->k->vsilu(x + t * j->ld_in + first, x + t * j->ld_in + first, n);
}

/* Δ and the state's decay of one head and token. */
static float step_size(const struct job *j, size_t head, float dt, float *ret_decay)
{
    const struct sl_kernels *k = j->p->k;
    const struct layer *m = j->m;
    float rate, delta = dt + m->dt_bias[head];
    k->vsoftplus(&delta, &delta, 1);
    delta = m->dt_lo > delta ? m->dt_lo : delta; /* NaN stays */
    delta = m->dt_hi < delta ? m->dt_hi : delta;
    rate = -m->rate[head] * delta;
    k->vexp(ret_decay, &rate, 1);
    return delta;
}

/* y ⊙= silu(z); tmp holds n. */
static void gate(const struct sl_kernels *k, float *y, const float *z, size_t n, float *tmp)
{
    k->vsilu(tmp, z, n);
    k->vmul(y, y, tmp, n);
}

/* What stands after the state: the head's own input, and the gate. */
static void finish_row(const struct job *j, size_t t, size_t head, float *tmp)
{
    const struct layer *m = j->m;
    const struct sl_kernels *k = j->p->k;
    size_t n = m->d_head, c = head * n;
    const float *z = j->in + t * j->ld_in + c, *x = z + m->d_inner;
    float *y = j->y + t * j->ld_y + c;
    if (m->d_per_channel)
        k->vmul(tmp, x, m->d + c, n);
    else
        k->vscale(tmp, x, m->d[head], n);
    k->vadd(y, y, tmp, n);
    if (!m->norm_first)
        gate(k, y, z, n, tmp);
}

/* n ≤ ROWS tokens of a head from row `first` on. */
static void run_rows(const struct job *j, float *s, size_t first, size_t n, size_t head, float *tmp)
{
    const struct layer *m = j->m;
    size_t d = m->d_head, group = head / (m->heads / m->groups), ld = j->ld_in;
    size_t room = sl_row_floats(d);
    const float *x = j->in + first * ld + m->d_inner, *b = x + m->d_inner;
    const float *c = b + m->groups * m->d_state, *dt = c + m->groups * m->d_state;
    float *alpha = tmp, *val = tmp + ROWS;
    for (size_t t = 0; t < n; t++) {
        float delta = step_size(j, head, dt[t * ld + head], &alpha[t]);
        j->p->k->vscale(val + t * room, x + t * ld + head * d, delta, d);
    }
    const struct sl_state_run run = {.n = n,
                                     .n_k = m->d_state,
                                     .n_v = d,
                                     .out = j->y + first * j->ld_y + head * d,
                                     .ld_out = j->ld_y,
                                     .key = b + group * m->d_state,
                                     .val = val,
                                     .q = c + group * m->d_state,
                                     .ld_key = ld,
                                     .ld_val = room,
                                     .ld_q = ld,
                                     .decay = alpha,
                                     .ld_decay = 1,
                                     .one_decay = true};
    j->p->k->state_run(s, &run);
    for (size_t t = first; t < first + n; t++)
        finish_row(j, t, head, val);
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    const struct layer *m = j->m;
    float *s = (float *)(void *)(span->state + m->state) + head * m->d_state * m->d_head;
    for (size_t t = 0; t < span->n_rows; t += ROWS) {
        size_t n = span->n_rows - t < ROWS ? span->n_rows - t : ROWS;
        run_rows(j, s, span->row + t, n, head, tmp);
    }
}

/* What needs all heads of a group; and the output's bias, which goes straight to the residual. */
static void finish_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    const struct layer *m = j->m;
    const struct sl_pass *p = j->p;
    size_t begin, end, n = m->d_inner / m->groups;
    sl_work_range(p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        float *y = j->y + r * j->ld_y;
        for (size_t g = 0; m->norm && g < m->groups; g++)
            p->k->rms_norm(y + g * n, y + g * n, m->norm + g * n, n, m->eps);
        if (m->norm_first)
            gate(p->k, y, j->in + r * j->ld_in, m->d_inner, sl_pass_part(p, part));
        if (m->out_bias)
            p->k->vadd(p->x + r * p->ld, p->x + r * p->ld, m->out_bias, p->d_model);
    }
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    size_t used = 0;
    struct job j = {.p = p, .m = layer};
    j.ld_in = sl_row_floats(j.m->in.n_out);
    j.ld_y = sl_row_floats(j.m->d_inner);
    j.in = sl_pass_take(p, &used, j.ld_in);
    j.y = sl_pass_take(p, &used, j.ld_y);
    j.out = sl_pass_take(p, &used, p->ld);
    sl_pass_norm(p, norm);
    project_stage(&j);
    sl_pass_heads(p, sl_conv_blocks(&j.m->conv), conv_block, &j);
    sl_pass_heads(p, j.m->heads, recur, &j);
    sl_workers_run(p->workers, finish_part, &j);
    sl_pass_add_product(p, &j.m->out, j.y, j.ld_y, j.out);
}

const struct sl_mixer sl_mixer_mamba2 = {
    .arch = "mamba2",
    .title = "Mamba-2",
    .model_type = "mamba2",
    .block = &sl_block_mamba,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
