/* retnet.c: RetNet, "multi-scale retention" (Sun et al. 2023, arXiv:2307.08621, equations 5 to 7),
 * as flash-linear-attention holds it.
 *
 * Per head h, with S [key][value]:
 *
 *   S_t = γ_h S_{t-1} + k_t v_tᵀ        o_t = S_tᵀ q_t / sqrt(d_k)        γ_h = 1 - 2^(-5-h)
 *
 * where q_t and k_t have been rotated: channel i and channel i + d_k/2 as a point in the plane, by
 * the angle t · 10000^(-2i/d_k). So the position t is part of the state; it is kept once, by the
 * first layer, which also works the step's sines and cosines out for all. Angles are whole
 * fractions of a turn (kernels.h), as exact after a million tokens as after one. What stands around
 * it: fla.h. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/block.h"
#include "engine/fla.h"

#define BASE 10000.0
#define TURN 6.283185307179586477

enum { D_K_MAX = 256 /* the library's own limit */ };

struct layer {
    struct sl_fla_attn a;
    bool first;
    size_t position;            /* offset of the counter in a slot; of the first layer */
    uint64_t turn[D_K_MAX / 2]; /* per position */
    float scale;
};

static void config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 24, .hidden_ratio = 2, .norm_eps = 1e-6};
    sl_fla_config(l, &class);
    sl_fla_config_heads(l, 8, 1);
    size_t d_k = l->config.head_size;
    if (d_k % 2 != 0 || d_k > D_K_MAX)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                             "%zu channels of keys cannot be rotated; an even number up to %d is "
                             "needed",
                             d_k, D_K_MAX);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    struct sl_fla_attn *a = &m->a;
    m->first = i == 0;
    sl_fla_heads_load(l, a, 2);
    sl_fla_share_load(l, a);
    if (m->first)
        m->position =
            sl_load_state(l, SL_DTYPE_I64, 1, (size_t[]){1}, "layers.%zu.mixer.position", i);
    sl_fla_gated_load(l, a, i);
    m->scale = (float)(1 / sqrt((double)a->d_k));
    for (size_t j = 0; j < a->d_k / 2 && j < D_K_MAX / 2; j++)
        m->turn[j] = sl_turn(pow(BASE, -2 * (double)j / (double)a->d_k) / TURN);
    sl_load_scratch(l, sl_fla_row_floats(l, a), 0);
    sl_load_carry(l, sl_row_floats(a->d_k));
    sl_load_recurrence(
        l, &(struct sl_recur_shape){.n_k = a->d_k, .n_v = a->d_v, .decay = SL_DECAY_SCALAR});
}

struct job {
    struct sl_fla_job f;
    const struct layer *m;
    size_t ld_turn; /* of p->carry: the row's cosines, then its sines, d_k / 2 each */
};

/* The sines and cosines of a span's rows, and then the position after them. */
static void turn_span(const void *arg, const struct sl_span *span, size_t item, float *tmp)
{
    const struct job *j = arg;
    size_t half = j->f.a->d_k / 2;
    uint64_t *position = (uint64_t *)(void *)(span->state + j->m->position);
    (void)item, (void)tmp;
    for (size_t t = 0; t < span->n_rows; t++) {
        float *row = j->f.p->carry + (span->row + t) * j->ld_turn;
        sl_turns(row, row + half, j->m->turn, *position + t, half);
    }
    *position += span->n_rows;
}

/* y = x, turned and made longer by `scale`. */
static void rotate(const struct job *j, float *y, const float *x, size_t t, float scale)
{
    size_t half = j->f.a->d_k / 2;
    const float *cosine = j->f.p->carry + t * j->ld_turn, *sine = cosine + half;
    for (size_t i = 0; i < half; i++) {
        float re = x[i] * cosine[i] - x[half + i] * sine[i];
        float im = x[half + i] * cosine[i] + x[i] * sine[i];
        y[i] = re * scale;
        y[half + i] = im * scale;
    }
}

/* γ_h */
static double decay_of(size_t head)
{
    return 1 - ldexp(1, -5 - (int)head);
}

static void recur_row(const void *arg, size_t t, size_t head, const struct sl_recur_row *x)
{
    const struct job *j = arg;
    rotate(j, x->q, sl_fla_at(&j->f, SL_FLA_Q, t, head), t, j->m->scale);
    rotate(j, x->k, sl_fla_at(&j->f, SL_FLA_K, t, head), t, 1);
    double gamma = decay_of(head);
    const struct sl_pass *p = j->f.p;
    *x->g = (float)(sl_recur_has_form(p, &p->spans[p->row_span[t]]) ? log(gamma) : gamma);
}

static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    struct sl_recurrence r = {.decay = SL_DECAY_SCALAR};
    sl_fla_run(&j->f, span, head, &r, j->f.a->d_k, false, recur_row, j, tmp);
    sl_fla_finish_span(&j->f, span, head);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.m = layer};
    sl_fla_plan(&j.f, p, &j.m->a);
    j.ld_turn = sl_row_floats(j.m->a.d_k);
    if (j.m->first)
        sl_pass_heads(p, 1, turn_span, &j);
    sl_fla_project(&j.f, norm, NULL, 0);
    sl_fla_recur(&j.f, recur);
}

const struct sl_mixer sl_mixer_retnet = {
    .arch = "retnet",
    .title = "RetNet",
    .model_type = "retnet",
    .block = &sl_block_fla,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .forward = forward,
};
