/* linear.c: linear attention (Katharopoulos et al. 2020, arXiv:2006.16236, equations 18 to 20), as
 * flash-linear-attention holds it.
 *
 * Per head, with a feature map φ, F its width, S [feature][value]:
 *
 *   S_t = S_{t-1} + φ(k_t) v_tᵀ     z_t = z_{t-1} + φ(k_t)     o_t = S_tᵀ φ(q_t) / √F
 *
 * and, where norm_feature_map is set (it is not by default), o_t is divided by z_tᵀ φ(q_t) / √F +
 * 1e-10; only then is there a z. φ(q) and φ(k) may each be divided by their sum + 1e-4 first. The
 * maps:
 *
 *   elu                   elu(x) + 1                relu, identity
 *   elementwise_product   (L_1 x + b_1) ⊙ (L_2 x + b_2)
 *   hedgehog              softmax([2y, -2y]), y = L x + b           (Zhang et al. 2024,
 * arXiv:2402.04347)
 *
 * with one L for all heads. What stands around it: fla.h. */
#include <math.h>

#include "engine/block.h"
#include "engine/fla.h"

#define SUM_EPS 1e-4f
#define DENOMINATOR_EPS 1e-10f

enum map { MAP_PRODUCT, MAP_HEDGEHOG, MAP_ELU, MAP_RELU, MAP_IDENTITY };
enum { ROWS = 8 /* of a head at a time, through L */ };

/* φ of the queries or of the keys. */
struct features {
    struct sl_matrix w[2];
    const float *b[2];
};

struct layer {
    struct sl_fla_attn a;
    enum map map;
    size_t width; /* F */
    struct features of[2];
    bool sum_norm[2], denominator;
    size_t z; /* offset of [heads][F] in a slot */
    float scale;
};

static size_t maps_of(const struct layer *m)
{
    return m->map == MAP_PRODUCT ? 2 : m->map == MAP_HEDGEHOG ? 1 : 0;
}

/* --- loading ------------------------------------------------------------------------------------
 */

static void config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 24, .hidden_ratio = 4, .norm_eps = 1e-6};
    sl_fla_config(l, &class);
    sl_fla_config_heads(l, 4, 1);
}

/* The map of the queries ('q') or keys ('k'), under its own name or, where both are one, under
 * either. */
static void load_map(struct sl_load *l, struct layer *m, size_t i, size_t which, bool tied)
{
    struct features *f = &m->of[which];
    char letter = "qk"[which], other = "kq"[which];
    for (size_t j = 0; j < maps_of(m); j++) {
        static const char *const names[][2] = {{"layer1", "layer2"}, {"layer", NULL}};
        const char *name = names[m->map][j];
        if (tied &&
            !sl_load_has(l, "model.layers.%zu.attn.feature_map_%c.%s.weight", i, letter, name))
            letter = other;
        sl_load_small(l, &f->w[j], m->a.d_k, m->a.d_k, SL_OUT_IN,
                      "model.layers.%zu.attn.feature_map_%c.%s.weight", i, letter, name);
        sl_load_vector(l, &f->b[j], m->a.d_k, "model.layers.%zu.attn.feature_map_%c.%s.bias", i,
                       letter, name);
    }
}

static void load_maps(struct sl_load *l, struct layer *m, size_t i)
{
    static const char *const words[] = {
        "elementwise_product", "hedgehog", "elu", "relu", "identity", NULL};
    static const enum sl_fla_act acts[] = {SL_ACT_NONE, SL_ACT_NONE, SL_ACT_ELU1, SL_ACT_RELU,
                                           SL_ACT_NONE};
    m->map = (enum map)sl_load_choice(l, "feature_map", MAP_PRODUCT, words);
    m->a.act[SL_FLA_Q][0] = m->a.act[SL_FLA_K][0] = acts[m->map];
    m->width = m->map == MAP_HEDGEHOG ? 2 * m->a.d_k : m->a.d_k;
    bool tied = sl_load_flag(l, "tie_feature_map_qk", false);
    load_map(l, m, i, SL_FLA_Q, tied);
    load_map(l, m, i, SL_FLA_K, tied);
}

static size_t features_floats(const struct layer *m, size_t which)
{
    return maps_of(m) ? sl_fla_heads(&m->a, which) * sl_row_floats(m->width) : 0;
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    struct sl_fla_attn *a = &m->a;
    sl_fla_heads_load(l, a, 1);
    sl_fla_share_load(l, a);
    load_maps(l, m, i);
    bool affine = sl_load_flag(l, "elementwise_affine", true);
    sl_fla_attn_load(l, a, i, affine ? "norm" : NULL, m->width);
    m->sum_norm[SL_FLA_Q] = sl_load_flag(l, "norm_q", false);
    m->sum_norm[SL_FLA_K] = sl_load_flag(l, "norm_k", false);
    m->denominator = sl_load_flag(l, "norm_feature_map", false);
    if (m->denominator)
        m->z = sl_load_state(l, SL_DTYPE_F32, 2, (size_t[]){a->heads, m->width},
                             "layers.%zu.mixer.z", i);
    m->scale = (float)(1 / sqrt((double)m->width));
    size_t room = sl_row_floats(m->width);
    sl_load_scratch(
        l, sl_fla_row_floats(l, a) + features_floats(m, SL_FLA_Q) + features_floats(m, SL_FLA_K),
        ROWS * room);
    sl_load_recurrence(l, &(struct sl_recur_shape){.n_k = m->width,
                                                   .n_v = a->d_v,
                                                   .decay = SL_DECAY_NONE,
                                                   .denominator = m->denominator});
}

/* --- running ------------------------------------------------------------------------------------
 */

struct job {
    struct sl_fla_job f;
    const struct layer *m;
    float *phi[2]; /* [n_rows][heads of it][room], where the map has an L; else NULL */
    size_t ld[2], room;
};

/* softmax([2y, -2y]) of y = row[0 … d) */
static void softmax_pair(const struct sl_kernels *k, float *row, size_t d)
{
    for (size_t i = 0; i < d; i++) {
        row[i] = 2 * row[i];
        row[d + i] = -row[i];
    }
    float top = k->max(row, 2 * d);
    for (size_t i = 0; i < 2 * d; i++)
        row[i] -= top;
    k->vexp(row, row, 2 * d);
    k->vscale(row, row, 1 / k->sum16(row, 2 * d), 2 * d);
}

/* φ of rows [row, row + n) of one head; tmp: [ROWS][room]. */
static void map_rows(const struct job *j, size_t which, size_t head, size_t row, size_t n,
                     float *tmp)
{
    const struct features *f = &j->m->of[which];
    const struct sl_kernels *k = j->f.p->k;
    size_t d = j->m->a.d_k, ldx = j->f.ld[which];
    const float *x = j->f.x[which] + row * ldx + head * d;
    float *y = j->phi[which] + row * j->ld[which] + head * j->room;
    k->matmul(y, j->ld[which], x, ldx, n, f->w[0].panels, f->w[0].type, d, 0, sl_panels(d));
    if (j->m->map == MAP_PRODUCT)
        k->matmul(tmp, j->room, x, ldx, n, f->w[1].panels, f->w[1].type, d, 0, sl_panels(d));
    for (size_t r = 0; r < n; r++, y += j->ld[which], tmp += j->room) {
        k->vadd(y, y, f->b[0], d);
        if (j->m->map == MAP_HEDGEHOG) {
            softmax_pair(k, y, d);
            continue;
        }
        k->vadd(tmp, tmp, f->b[1], d);
        k->vmul(y, y, tmp, d);
    }
}

/* Items: the heads of the queries, then those of the keys. */
static void map_head(const void *arg, const struct sl_span *span, size_t item, float *tmp)
{
    const struct job *j = arg;
    size_t n_q = sl_fla_heads(j->f.a, SL_FLA_Q), which = item < n_q ? SL_FLA_Q : SL_FLA_K;
    size_t head = item < n_q ? item : item - n_q;
    for (size_t t = 0; t < span->n_rows; t += ROWS)
        map_rows(j, which, head, span->row + t, span->n_rows - t < ROWS ? span->n_rows - t : ROWS,
                 tmp);
}

/* φ of row t for head h of the state, divided by its sum where that is asked for, times scale. */
static void features(const struct job *j, float *y, size_t which, size_t t, size_t h, float scale)
{
    const struct sl_kernels *k = j->f.p->k;
    size_t n = j->m->width;
    const float *x = sl_fla_at(&j->f, which, t, h);
    if (j->phi[which])
        x = j->phi[which] + t * j->ld[which] + h / j->f.a->share[which] * j->room;
    if (j->m->sum_norm[which])
        scale /= k->sum16(x, n) + SUM_EPS;
    k->vscale(y, x, scale, n);
}

static void recur_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct job *j = arg;
    features(j, x->q, SL_FLA_Q, t, head, j->m->scale);
    features(j, x->k, SL_FLA_K, t, head, 1);
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    const struct sl_fla_job *f = &j->f;
    size_t n = j->m->width;
    float *z = (float *)(void *)(span->state + j->m->z) + head * n;
    struct sl_recurrence r = {.decay = SL_DECAY_NONE, .z = j->m->denominator ? z : NULL};
    sl_fla_run(f, span, head, &r, n, false, recur_row, j, tmp);
    for (size_t t = 0; r.z && t < span->n_rows; t++) {
        float *out = sl_fla_out(f, span->row + t, head);
        f->p->k->vscale(out, out, 1 / (r.den[t] + DENOMINATOR_EPS), f->a->d_v);
    }
    sl_fla_finish_span(f, span, head);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.m = layer};
    sl_fla_plan(&j.f, p, &j.m->a);
    j.room = sl_row_floats(j.m->width);
    for (size_t i = 0; i < 2 && maps_of(j.m); i++) {
        j.ld[i] = features_floats(j.m, i);
        j.phi[i] = sl_pass_take(p, &j.f.used, j.ld[i]);
    }
    sl_fla_project(&j.f, norm, NULL, 0);
    if (maps_of(j.m))
        sl_pass_heads(p, sl_fla_heads(j.f.a, SL_FLA_Q) + sl_fla_heads(j.f.a, SL_FLA_K), map_head,
                      &j);
    sl_fla_recur(&j.f, recur);
}

const struct sl_mixer sl_mixer_linear = {
    .arch = "linear",
    .title = "linear attention",
    .model_type = "linear_attn",
    .block = &sl_block_fla,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
