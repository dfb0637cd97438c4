/* rwkv6.c: RWKV-6 "Finch" (Peng et al. 2024, arXiv:2404.05892), as BlinkDL's files hold it, and as
 * the converters of web-rwkv make them: other names, the low-rank matrices the other way round.
 *
 * RWKV-5's memory with a decay that each token chooses. Per head, with keys and values of N
 * channels and S [key][value]:
 *
 *   o_t = (S_{t-1} + diag(u) k_t v_tᵀ)ᵀ r_t          S_t = diag(w_t) S_{t-1} + k_t v_tᵀ
 *
 *   w = exp(-exp(time_decay + tanh(x_w W1) W2))
 *
 * and the output is W_o (GroupNorm(o) ⊙ silu(g)). How much of the row before goes into each input
 * is chosen by the token as well:
 *
 *   x_• = x + (x_prev - x) ⊙ (maa_• + tanh(x_x A1)_• A2_•)      x_x = x + (x_prev - x) ⊙ maa_x
 *
 * where A1 gives five small vectors, of w, k, v, r and g in this order, and A2 is a matrix for
 * each. x is the normalised row, and x_prev the one before it, which the state keeps across steps.
 *
 * Seven stages: mix for A1, A1, A2 with the five mixes, project, the decay, the recurrence, the
 * output. */
#include <string.h>

#include "engine/block.h"
#include "engine/mixers/mixer.h"
#include "engine/mixers/tuned.h"

enum { MIX_W, MIX_K, MIX_V, MIX_R, MIX_G, N_MIX };

#define EPS_LN_X 64e-5F

struct layer {
    size_t d, n_heads, n; /* d = n_heads · n */
    size_t rank;          /* of a mix */
    const float *mix_x, *mix[N_MIX];
    struct sl_matrix a1, a2[N_MIX];
    struct sl_matrix k, v, r, g, o, w1, w2;
    const float *decay, *bonus;
    struct sl_norm ln_x;
    struct sl_tuned tuned;
    size_t shift, state; /* offsets in a slot */
};

/* --- loading ------------------------------------------------------------------------------------
 */

#define MIX(part, x)                                                                               \
    {                                                                                              \
        "blocks.*." part ".time_maa_" x, "blocks.*." part ".time_mix_" x, false                    \
    }
#define TURNED(here, there)                                                                        \
    {                                                                                              \
        "blocks.*.att." here, "blocks.*.att." there, true                                          \
    }

static const struct sl_rename web_names[] = {
    MIX("att", "x"),
    MIX("att", "w"),
    MIX("att", "k"),
    MIX("att", "v"),
    MIX("att", "r"),
    MIX("att", "g"),
    MIX("ffn", "k"),
    MIX("ffn", "r"),
    TURNED("time_maa_w1", "time_mix_w1"),
    TURNED("time_maa_w2", "time_mix_w2"),
    TURNED("time_decay_w1", "time_decay_w1"),
    TURNED("time_decay_w2", "time_decay_w2"),
    {"blocks.*.att.time_faaaa", "blocks.*.att.time_first", false},
    {0},
};

static void config(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    if (sl_load_has(l, "blocks.0.att.time_mix_x") || sl_load_has(l, "blocks.0.att.time_mix_w1")) {
        l->names = web_names;
        sl_tuned_refuse(l);
    }
    c->n_layers = sl_load_count_layers(l, "blocks.");
    c->d_model = sl_load_axis(l, 0, SL_D_MODEL_MAX, "emb.weight");
    c->vocab_size = sl_load_axis(l, 1, SL_VOCAB_MAX, "emb.weight");
    c->n_heads = sl_load_axis(l, 1, SL_HEADS_MAX, "blocks.0.att.time_faaaa");
    c->head_size = sl_load_axis(l, 0, SL_HEAD_SIZE_MAX, "blocks.0.att.time_faaaa");
    c->d_ffn = sl_load_axis(l, 1, SL_D_FFN_MAX, "blocks.0.ffn.key.weight");
    if (sl_load_ok(l) && c->n_heads * c->head_size != c->d_model)
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     "blocks.0.att.time_faaaa is %zu heads of %zu channels, which does not make "
                     "the %zu channels of emb.weight",
                     c->n_heads, c->head_size, c->d_model);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    const struct sl_config *c = &l->config;
    size_t d = c->d_model, ld = sl_row_floats(d);
    m->d = d, m->n_heads = c->n_heads, m->n = c->head_size;
    m->shift = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.shift", i);
    m->state = sl_load_state(l, SL_DTYPE_F32, 3, (size_t[]){m->n_heads, m->n, m->n},
                             "layers.%zu.mixer.state", i);
    sl_tuned_load(l, &m->tuned, m->n_heads, m->n, i);

    m->rank = sl_load_axis(l, 1, SL_RANK_MAX, "blocks.%zu.att.time_maa_w2", i);
    sl_load_vector(l, &m->mix_x, d, "blocks.%zu.att.time_maa_x", i);
    sl_load_small(l, &m->a1, N_MIX * m->rank, d, SL_IN_OUT, "blocks.%zu.att.time_maa_w1", i);
    for (size_t j = 0; j < N_MIX; j++) {
        sl_load_vector(l, &m->mix[j], d, "blocks.%zu.att.time_maa_%c", i, "wkvrg"[j]);
        sl_load_slice(l, &m->a2[j], j, N_MIX, d, m->rank, SL_IN_OUT, "blocks.%zu.att.time_maa_w2",
                      i);
    }
    sl_load_matrix(l, &m->k, d, d, SL_OUT_IN, "blocks.%zu.att.key.weight", i);
    sl_load_matrix(l, &m->v, d, d, SL_OUT_IN, "blocks.%zu.att.value.weight", i);
    sl_load_matrix(l, &m->r, d, d, SL_OUT_IN, "blocks.%zu.att.receptance.weight", i);
    sl_load_matrix(l, &m->g, d, d, SL_OUT_IN, "blocks.%zu.att.gate.weight", i);
    sl_load_matrix(l, &m->o, d, d, SL_OUT_IN, "blocks.%zu.att.output.weight", i);
    size_t rank_w = sl_load_axis(l, 0, SL_RANK_MAX, "blocks.%zu.att.time_decay_w1", i);
    sl_load_small(l, &m->w1, rank_w, d, SL_IN_OUT, "blocks.%zu.att.time_decay_w1", i);
    sl_load_small(l, &m->w2, d, rank_w, SL_IN_OUT, "blocks.%zu.att.time_decay_w2", i);
    sl_load_vector(l, &m->decay, d, "blocks.%zu.att.time_decay", i);
    sl_load_grid(l, &m->bonus, m->n_heads, m->n, "blocks.%zu.att.time_faaaa", i);
    sl_load_vector(l, &m->ln_x.w, d, "blocks.%zu.att.ln_x.weight", i);
    sl_load_vector(l, &m->ln_x.b, d, "blocks.%zu.att.ln_x.bias", i);
    m->ln_x.eps = EPS_LN_X;

    sl_load_scratch(l, (N_MIX + 6) * ld + sl_row_floats(N_MIX * m->rank) + sl_row_floats(rank_w),
                    ld);
}

static void init(const void *layer, unsigned char *state)
{
    const struct layer *m = layer;
    sl_tuned_init(&m->tuned, (float *)(void *)(state + m->state));
}

/* --- running ------------------------------------------------------------------------------------
 */

/* The activations of a layer, each [n_rows][ld] or [n_rows][a rank]. Some hold two things, one
 * after the other. */
struct job {
    const struct sl_pass *p;
    const struct sl_norm *norm;
    const struct layer *m;
    float *prev, *mixed_x, *mid;
    float *mixed[N_MIX]; /* first the share of the row before */
    float *k, *v, *r, *g, *w_mid;
    float *w;   /* where prev was */
    float *out; /* where mixed_x was */
};

static void plan(struct job *j)
{
    const struct sl_pass *p = j->p;
    size_t used = 0;
    j->prev = sl_pass_take(p, &used, p->ld);
    j->mixed_x = sl_pass_take(p, &used, p->ld);
    j->mid = sl_pass_take(p, &used, sl_row_floats(j->m->a1.n_out));
    for (size_t i = 0; i < N_MIX; i++)
        j->mixed[i] = sl_pass_take(p, &used, p->ld);
    j->k = sl_pass_take(p, &used, p->ld);
    j->v = sl_pass_take(p, &used, p->ld);
    j->r = sl_pass_take(p, &used, p->ld);
    j->g = sl_pass_take(p, &used, p->ld);
    j->w_mid = sl_pass_take(p, &used, sl_row_floats(j->m->w1.n_out));
    j->w = j->prev;
    j->out = j->mixed_x;
}

static void mix_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    size_t begin, end;
    sl_work_range(p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        const float *prev =
            sl_pass_norm_row(p, j->norm, r, r == begin, j->m->shift, sl_pass_part(p, part));
        p->k->lerp(j->mixed_x + r * p->ld, p->xn + r * p->ld, prev, j->m->mix_x, p->d_model);
        memcpy(j->prev + r * p->ld, prev, p->d_model * sizeof *prev);
    }
}

static void tanh_rows(const struct job *j, const struct sl_tile *t, float *y, size_t ld)
{
    for (size_t r = 0; r < j->p->n_rows; r++)
        j->p->k->vtanh(y + r * ld + t->col, y + r * ld + t->col, t->col_end - t->col);
}

static void mid_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    tanh_rows(j, t, j->mid, sl_row_floats(j->m->a1.n_out));
}

static void small_stage(const struct job *j)
{
    const struct sl_matrix *a1 = &j->m->a1;
    const struct sl_product v = {a1,      j->mixed_x, j->p->ld, j->mid, sl_row_floats(a1->n_out),
                                 mid_tile};
    sl_pass_products(j->p, &v, 1, j, NULL);
}

/* What A2 gave for one of the five -> that input. */
static void mix_rows(const struct job *j, const struct sl_tile *t, size_t i)
{
    const struct sl_pass *p = j->p;
    size_t n = t->col_end - t->col;
    for (size_t r = 0; r < p->n_rows; r++) {
        size_t at = r * p->ld + t->col;
        float *y = j->mixed[i] + at;
        p->k->vadd(y, y, j->m->mix[i] + t->col, n);
        p->k->lerp(y, p->xn + at, j->prev + at, y, n);
    }
}

#define MIX_TILE(name, i)                                                                          \
    static void name(const void *arg, const struct sl_tile *t)                                     \
    {                                                                                              \
        mix_rows(arg, t, i);                                                                       \
    }
MIX_TILE(mix_w_tile, MIX_W)
MIX_TILE(mix_k_tile, MIX_K)
MIX_TILE(mix_v_tile, MIX_V)
MIX_TILE(mix_r_tile, MIX_R)
MIX_TILE(mix_g_tile, MIX_G)

static void inputs_stage(const struct job *j)
{
    static void (*const tiles[N_MIX])(const void *, const struct sl_tile *) = {
        mix_w_tile, mix_k_tile, mix_v_tile, mix_r_tile, mix_g_tile};
    struct sl_product v[N_MIX];
    for (size_t i = 0; i < N_MIX; i++)
        v[i] = (struct sl_product){&j->m->a2[i],
                                   j->mid + i * j->m->rank,
                                   sl_row_floats(j->m->a1.n_out),
                                   j->mixed[i],
                                   j->p->ld,
                                   tiles[i]};
    sl_pass_products(j->p, v, N_MIX, j, NULL);
}

static void silu_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->g + r * j->p->ld + t->col;
        j->p->k->vsilu(y, y, t->col_end - t->col);
    }
}

static void w_mid_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    tanh_rows(j, t, j->w_mid, sl_row_floats(j->m->w1.n_out));
}

static void project_stage(const struct job *j)
{
    const struct layer *m = j->m;
    size_t ld = j->p->ld;
    const struct sl_product v[] = {
        {&m->k, j->mixed[MIX_K], ld, j->k, ld, NULL},
        {&m->v, j->mixed[MIX_V], ld, j->v, ld, NULL},
        {&m->r, j->mixed[MIX_R], ld, j->r, ld, NULL},
        {&m->g, j->mixed[MIX_G], ld, j->g, ld, silu_tile},
        {&m->w1, j->mixed[MIX_W], ld, j->w_mid, sl_row_floats(m->w1.n_out), w_mid_tile},
    };
    sl_pass_products(j->p, v, sizeof v / sizeof *v, j, NULL);
}

static void decay_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    const struct sl_kernels *k = j->p->k;
    size_t n = t->col_end - t->col;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *w = j->w + r * j->p->ld + t->col;
        k->vadd(w, w, j->m->decay + t->col, n);
        k->vexp(w, w, n);
        k->vscale(w, w, -1, n);
        k->vexp(w, w, n);
    }
}

static void decay_stage(const struct job *j)
{
    const struct sl_matrix *w2 = &j->m->w2;
    const struct sl_product v = {w2, j->w_mid, sl_row_floats(w2->n_in), j->w, j->p->ld, decay_tile};
    sl_pass_products(j->p, &v, 1, j, NULL);
}

/* All tokens of one span in one head, in order. */
static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    (void)tmp;
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    const struct layer *m = j->m;
    size_t n = m->n, c = head * n;
    float *s = (float *)(void *)(span->state + m->state) + c * n;
    size_t first = span->row * p->ld + c;
    const struct sl_state_run run = {.n = span->n_rows,
                                     .n_k = n,
                                     .n_v = n,
                                     .out = j->out + first,
                                     .ld_out = p->ld,
                                     .key = j->k + first,
                                     .val = j->v + first,
                                     .q = j->r + first,
                                     .ld_key = p->ld,
                                     .ld_val = p->ld,
                                     .ld_q = p->ld,
                                     .decay = j->w + first,
                                     .ld_decay = p->ld,
                                     .bonus = m->bonus + c};
    p->k->state_run(s, &run);
    for (size_t t = span->row; t < span->row + span->n_rows; t++) {
        size_t at = t * p->ld + c;
        float *out = j->out + at;
        p->k->layer_norm(out, out, m->ln_x.w + c, m->ln_x.b + c, n, m->ln_x.eps);
        p->k->vmul(out, out, j->g + at, n);
    }
    sl_pass_keep_shift(p, span, m->shift, c, c + n);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.p = p, .norm = norm, .m = layer};
    plan(&j);
    sl_workers_run(p->workers, mix_part, &j);
    small_stage(&j);
    inputs_stage(&j);
    project_stage(&j);
    decay_stage(&j);
    sl_pass_heads(p, j.m->n_heads, recur, &j);
    sl_pass_add_product(p, &j.m->o, j.out, p->ld, j.k);
}

const struct sl_mixer sl_mixer_rwkv6 = {
    .arch = "rwkv6",
    .title = "RWKV-6",
    .block = &sl_block_rwkv6,
    .tuned = true,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .init = init,
    .forward = forward,
};
