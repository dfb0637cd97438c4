/* performer.c: Performer, FAVOR+ attention (Choromanski et al. 2021, arXiv:2009.14794), as
 * performer-pytorch's PerformerLM holds it.
 *
 * Per head, with m random features of keys and queries of d channels, and S [feature][value]:
 *
 *   S_t = S_{t-1} + φ(k_t) v_tᵀ     z_t = z_{t-1} + φ(k_t)
 *   o_t = S_tᵀ φ(q_t) / (φ(q_t)·(z_t + 1e-6))
 *
 * x' = x / d^(1/4), W the random projection:
 *
 *   softmax kernel   φ(x) = (exp(W x' - |x'|²/2 - s) + 1e-4) / √m                         (lemma 1)
 *   relu kernel      φ(x) = max(W x', 0) + 1e-3                             (generalised attention)
 *
 * s keeps exp in range. For a query it is the largest W x' of its features, which cancels. For keys
 * the library takes the largest over the *whole* sequence, later tokens included, which nobody who
 * reads one token after the other can know. Here it is the largest so far (stabiliser=max): the
 * state keeps S and z without the 1e-4, the sum of values and that maximum, and rescales the first
 * two when the maximum grows; the 1e-4 is added when it is read:
 *
 *   S = (kv_exp + 1e-4 v_sum) / √m          z = (z_exp + 1e-4 n) / √m          n: tokens so far
 *
 * or s is 0 (stabiliser=none): the plain formula, good as long as keys are not large.
 * Which of the two kernels a model was trained with, its file does not say; the library's default
 * is softmax.
 *
 * Where positions are not learned, queries and keys are rotated first: neighbouring channels as
 * points in the plane, by the sines and cosines of their position in a table of the file's.
 *
 * Three stages: project, the recurrence, the output. */
#include <math.h>

#include "engine/block.h"
#include "engine/mixers/mixer.h"

#define LAYER "performer.net.layers.%zu.0."
#define EPS_SOFTMAX 1e-4F
#define EPS_RELU 1e-3F
#define EPS_DENOMINATOR 1e-6F
#define MAX_NONE -1e30F

enum kernel { SOFTMAX_MAX, SOFTMAX_PLAIN, RELU };

struct layer {
    enum kernel kernel;
    size_t n_heads, d, m; /* d channels of a head, m features */
    struct sl_matrix q, k, v, o;
    const float *bias[3], *bias_o; /* of q, k, v, and of the output; NULL: none */
    const float *projection;       /* [d][m]: W turned */
    const float *rotary;           /* [positions][d], sines then cosines; NULL: none */
    float scale, root;             /* d^(-1/4), 1/√m */
    size_t kv, z, v_sum, max;      /* offsets in a slot; the last two of SOFTMAX_MAX */
};

/* --- loading ------------------------------------------------------------------------------------
 */

enum { CHOICE_KERNEL, CHOICE_STABILISER };

static const struct sl_choice choices[] = {
    [CHOICE_KERNEL] = {"kernel", "the kernel that it was trained with", {"softmax", "relu"}},
    [CHOICE_STABILISER] = {"stabiliser",
                           "what keeps the softmax kernel's keys in range",
                           {"max", "none"}},
    {0},
};

static enum kernel kernel_of(const struct sl_load *l)
{
    if (sl_load_chosen(l, choices[CHOICE_KERNEL].name) == 1)
        return RELU;
    return sl_load_chosen(l, choices[CHOICE_STABILISER].name) == 1 ? SOFTMAX_PLAIN : SOFTMAX_MAX;
}

static void config(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    c->n_layers = sl_load_count_layers(l, "performer.net.layers.");
    c->d_model = sl_load_axis(l, 0, SL_D_MODEL_MAX, "token_emb.weight");
    c->vocab_size = sl_load_axis(l, 1, SL_VOCAB_MAX, "token_emb.weight");
    c->d_ffn = sl_load_axis(l, 1, SL_D_FFN_MAX, "performer.net.layers.0.1.fn.fn.w1.weight");
    c->head_size = sl_load_axis(l, 0, SL_HEAD_SIZE_MAX, LAYER "fn.fast_attention.projection_matrix",
                                (size_t)0);
    size_t inner = sl_load_axis(l, 1, SL_D_MODEL_MAX, LAYER "fn.to_q.weight", (size_t)0);
    c->n_heads = inner / c->head_size;
    if (sl_load_ok(l) && c->n_heads * c->head_size != inner)
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     LAYER "fn.to_q.weight gives %zu channels, which are no heads of the %zu of "
                           "fast_attention.projection_matrix",
                     (size_t)0, inner, c->head_size);
    if (c->head_size % 2 != 0)
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     LAYER "fn.fast_attention.projection_matrix is for heads of %zu channels; an "
                           "even number is needed",
                     (size_t)0, c->head_size);
    if (kernel_of(l) == RELU && sl_load_chosen(l, choices[CHOICE_STABILISER].name) != 0)
        sl_load_fail(l, SL_E_INVALID_VALUE,
                     "stabiliser=none is of the softmax kernel; the relu kernel has no stabiliser");
}

static void load_state(struct sl_load *l, size_t i, struct layer *m)
{
    const size_t shape[3] = {m->n_heads, m->m, m->d}, by_value[2] = {m->n_heads, m->d};
    bool max = m->kernel == SOFTMAX_MAX;
    m->kv =
        sl_load_state(l, SL_DTYPE_F32, 3, shape, "layers.%zu.mixer.%s", i, max ? "kv_exp" : "kv");
    m->z = sl_load_state(l, SL_DTYPE_F32, 2, shape, "layers.%zu.mixer.%s", i, max ? "z_exp" : "z");
    if (!max)
        return;
    m->v_sum = sl_load_state(l, SL_DTYPE_F32, 2, by_value, "layers.%zu.mixer.v_sum", i);
    m->max = sl_load_state(l, SL_DTYPE_F32, 1, shape, "layers.%zu.mixer.max", i);
}

/* Whether any layer has the tensor: then all must. */
static bool is_used(const struct sl_load *l, const char *name)
{
    for (size_t i = 0; i < l->config.n_layers; i++)
        if (sl_load_has(l, LAYER "fn.%s", i, name))
            return true;
    return false;
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    static const char *const names[] = {"to_q", "to_k", "to_v"};
    struct layer *m = layer;
    const struct sl_config *c = &l->config;
    struct sl_matrix *const matrices[] = {&m->q, &m->k, &m->v};
    size_t d = c->d_model, inner = c->n_heads * c->head_size, ld = sl_row_floats(inner);
    m->kernel = kernel_of(l);
    m->n_heads = c->n_heads, m->d = c->head_size;
    m->m = sl_load_axis(l, 1, SL_HEAD_SIZE_MAX, LAYER "fn.fast_attention.projection_matrix",
                        (size_t)0);
    load_state(l, i, m);
    bool biased = is_used(l, "to_q.bias") || is_used(l, "to_k.bias") || is_used(l, "to_v.bias");
    for (size_t j = 0; j < 3; j++) {
        sl_load_matrix(l, matrices[j], inner, d, SL_OUT_IN, LAYER "fn.%s.weight", i, names[j]);
        if (biased)
            sl_load_vector(l, &m->bias[j], inner, LAYER "fn.%s.bias", i, names[j]);
    }
    sl_load_matrix(l, &m->o, d, inner, SL_OUT_IN, LAYER "fn.to_out.weight", i);
    if (is_used(l, "to_out.bias"))
        sl_load_vector(l, &m->bias_o, d, LAYER "fn.to_out.bias", i);
    sl_load_columns(l, &m->projection, m->m, m->d, LAYER "fn.fast_attention.projection_matrix", i);
    if (!sl_load_has(l, "pos_emb.emb.weight")) /* learned positions, and no rotation */
        sl_load_grid(l, &m->rotary, c->max_tokens, m->d, "layer_pos_emb.emb");
    m->scale = (float)(1 / sqrt(sqrt((double)m->d)));
    m->root = (float)(1 / sqrt((double)m->m));
    sl_load_scratch(l, 4 * ld + sl_row_floats(d), sl_row_floats(m->d) + 3 * sl_row_floats(m->m));
    if (m->kernel != SOFTMAX_MAX) /* that one's features depend on what came before */
        sl_load_recurrence(
            l, &(struct sl_recur_shape){
                   .n_k = m->m, .n_v = m->d, .decay = SL_DECAY_NONE, .denominator = true});
}

static void init(const void *layer, unsigned char *state)
{
    const struct layer *m = layer;
    float *max = (float *)(void *)(state + m->max);
    for (size_t i = 0; m->kernel == SOFTMAX_MAX && i < m->n_heads; i++)
        max[i] = MAX_NONE;
}

/* --- running ------------------------------------------------------------------------------------
 */

struct job {
    const struct sl_pass *p;
    const struct layer *m;
    size_t ld;              /* of n_heads · d */
    float *q, *k, *v, *out; /* [n_rows][ld] each */
    float *y;               /* [n_rows][p->ld] */
};

static void add_bias(const struct job *j, const struct sl_tile *t, float *y, size_t which)
{
    const float *bias = j->m->bias[which];
    for (size_t r = 0; bias && r < j->p->n_rows; r++)
        j->p->k->vadd(y + r * j->ld + t->col, y + r * j->ld + t->col, bias + t->col,
                      t->col_end - t->col);
}

static void q_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    add_bias(j, t, j->q, 0);
}

static void k_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    add_bias(j, t, j->k, 1);
}

static void v_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    add_bias(j, t, j->v, 2);
}

static void project_stage(const struct job *j)
{
    const struct layer *m = j->m;
    const struct sl_product v[] = {
        {&m->q, j->p->xn, j->p->ld, j->q, j->ld, q_tile},
        {&m->k, j->p->xn, j->p->ld, j->k, j->ld, k_tile},
        {&m->v, j->p->xn, j->p->ld, j->v, j->ld, v_tile},
    };
    sl_pass_products(j->p, v, 3, j, NULL);
}

/* x' of a query or key at a position: rotated, and shorter. */
static void turn(const struct layer *m, float *y, const float *x, size_t position)
{
    if (!m->rotary) {
        for (size_t i = 0; i < m->d; i++)
            y[i] = x[i] * m->scale;
        return;
    }
    const float *sine = m->rotary + position * m->d, *cosine = sine + m->d / 2;
    for (size_t i = 0; i < m->d / 2; i++) {
        y[2 * i] = (x[2 * i] * cosine[i] - x[2 * i + 1] * sine[i]) * m->scale;
        y[2 * i + 1] = (x[2 * i + 1] * cosine[i] + x[2 * i] * sine[i]) * m->scale;
    }
}

/* y[i] = exp(y[i] - less) + more, and `factor` of that. */
static void exp_less(const struct job *j, float *y, float less, float more, float factor)
{
    size_t n = j->m->m;
    for (size_t i = 0; i < n; i++)
        y[i] -= less;
    j->p->k->vexp(y, y, n);
    for (size_t i = 0; i < n; i++)
        y[i] = (y[i] + more) * factor;
}

static void relu_features(const struct job *j, float *y)
{
    j->p->k->vrelu(y, y, j->m->m);
    for (size_t i = 0; i < j->m->m; i++)
        y[i] += EPS_RELU;
}

/* What is at hand while a span's tokens go through one head. */
struct head {
    float *s, *z, *v_sum, *max; /* its state */
    float *x, *fq, *fk, *decay; /* scratch: [d], and three of [m] */
};

/* φ of the query, in h->fq. */
static void query_features(const struct job *j, struct head *h, const float *q, size_t position)
{
    const struct layer *m = j->m;
    const struct sl_kernels *k = j->p->k;
    turn(m, h->x, q, position);
    k->state_read(h->fq, m->projection, h->x, m->d, m->m);
    if (m->kernel == RELU)
        relu_features(j, h->fq);
    else
        exp_less(j, h->fq, k->dot16(h->x, h->x, m->d) / 2 + k->max(h->fq, m->m), EPS_SOFTMAX,
                 m->root);
}

/* φ of the key, in h->fk; by how much what is kept shrinks, in h->decay. */
static void key_features(const struct job *j, struct head *h, const float *key, size_t position)
{
    const struct layer *m = j->m;
    const struct sl_kernels *k = j->p->k;
    turn(m, h->x, key, position);
    k->state_read(h->fk, m->projection, h->x, m->d, m->m);
    if (m->kernel == RELU) {
        relu_features(j, h->fk);
        return;
    }
    float half = k->dot16(h->x, h->x, m->d) / 2;
    if (m->kernel == SOFTMAX_PLAIN) {
        exp_less(j, h->fk, half, EPS_SOFTMAX, m->root);
        return;
    }
    /* Rescaled at every token, by 1 where nothing grew: all tokens cost the same. */
    float old = *h->max, largest = k->max(h->fk, m->m), now = old > largest ? old : largest;
    float shrink = old - now;
    k->vexp(&shrink, &shrink, 1);
    for (size_t i = 0; i < m->m; i++)
        h->decay[i] = shrink;
    *h->max = now;
    exp_less(j, h->fk, half + now, 0, 1);
}

/* One token: written, then read. */
static void token(const struct job *j, struct head *h, const float *v, float *out, float n)
{
    const struct layer *m = j->m;
    const struct sl_kernels *k = j->p->k;
    bool max = m->kernel == SOFTMAX_MAX;
    float sum = k->sum16(h->fq, m->m);
    k->state_step(out, h->s, max ? h->decay : NULL, NULL, NULL, h->fk, v, h->fq, m->m, m->d);
    if (max)
        k->vmul(h->z, h->z, h->decay, m->m);
    k->vadd(h->z, h->z, h->fk, m->m);
    float below = k->dot16(h->fq, h->z, m->m);
    if (!max) {
        k->vscale(out, out, 1 / (below + EPS_DENOMINATOR * sum), m->d);
        return;
    }
    k->vadd(h->v_sum, h->v_sum, v, m->d);
    below = (below + EPS_SOFTMAX * n * sum) * m->root + EPS_DENOMINATOR * sum;
    float each = EPS_SOFTMAX * sum;
    for (size_t i = 0; i < m->d; i++)
        out[i] = (out[i] + each * h->v_sum[i]) * m->root / below;
}

/* --- in another form (recur.h) ------------------------------------------------------------------
 */

struct forms {
    const struct job *j;
    struct head *h;
    size_t first, position; /* of the span: its row, and that row's position */
};

static void form_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct forms *f = arg;
    size_t at = t * f->j->ld + head * f->j->m->d, position = f->position + t - f->first;
    f->h->fq = x->q, f->h->fk = x->k;
    query_features(f->j, f->h, f->j->q + at, position);
    key_features(f->j, f->h, f->j->k + at, position);
}

static void recur_by_form(const struct job *j, const struct sl_span *span, size_t head,
                          struct head *h, size_t position, float *tmp)
{
    const struct layer *m = j->m;
    const struct sl_kernels *k = j->p->k;
    const struct forms f = {j, h, span->row, position};
    size_t at = span->row * j->ld + head * m->d;
    struct sl_recurrence r = {.n_k = m->m,
                              .n_v = m->d,
                              .v = j->v + at,
                              .o = j->out + at,
                              .ld_v = j->ld,
                              .ld_o = j->ld,
                              .s = h->s,
                              .z = h->z,
                              .decay = SL_DECAY_NONE};
    sl_recur_run(j->p, span, &r, false, head, form_row, &f, tmp);
    for (size_t t = 0; t < span->n_rows; t++) {
        float sum = k->sum16(r.q + t * r.ld_q, m->m);
        k->vscale(r.o + t * r.ld_o, r.o + t * r.ld_o, 1 / (r.den[t] + EPS_DENOMINATOR * sum), m->d);
    }
}

/* All tokens of one span in one head, in order. */
static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    const struct layer *m = j->m;
    size_t room = sl_row_floats(m->m), c = head * m->d;
    unsigned char *state = span->state;
    struct head h = {.s = (float *)(void *)(state + m->kv) + c * m->m,
                     .z = (float *)(void *)(state + m->z) + head * m->m,
                     .v_sum = (float *)(void *)(state + m->v_sum) + c,
                     .max = (float *)(void *)(state + m->max) + head,
                     .x = tmp,
                     .fq = tmp + sl_row_floats(m->d)};
    h.fk = h.fq + room, h.decay = h.fk + room;
    if (m->kernel != SOFTMAX_MAX && sl_recur_has_form(j->p, span)) {
        recur_by_form(j, span, head, &h, span->position, h.decay + room);
        return;
    }
    for (size_t t = 0; t < span->n_rows; t++) {
        size_t at = (span->row + t) * j->ld + c, position = span->position + t;
        query_features(j, &h, j->q + at, position);
        key_features(j, &h, j->k + at, position);
        token(j, &h, j->v + at, j->out + at, (float)(position + 1));
    }
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {
        .p = p, .m = layer, .ld = sl_row_floats(((const struct layer *)layer)->q.n_out)};
    size_t used = 0;
    j.q = sl_pass_take(p, &used, j.ld);
    j.k = sl_pass_take(p, &used, j.ld);
    j.v = sl_pass_take(p, &used, j.ld);
    j.out = sl_pass_take(p, &used, j.ld);
    j.y = sl_pass_take(p, &used, p->ld);
    sl_pass_norm(p, norm);
    project_stage(&j);
    sl_pass_heads(p, j.m->n_heads, recur, &j);
    sl_pass_add_biased(p, &j.m->o, j.out, j.ld, j.m->bias_o, j.y);
}

const struct sl_mixer sl_mixer_performer = {
    .arch = "performer",
    .title = "Performer",
    .block = &sl_block_performer,
    .layer_bytes = sizeof(struct layer),
    .choices = choices,
    .config = config,
    .load = load,
    .init = init,
    .forward = forward,
};
