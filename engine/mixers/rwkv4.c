/* rwkv4.c: RWKV-4 "Dove" (Peng et al. 2023, arXiv:2305.13048), as BlinkDL's files hold it.
 *
 * Each channel has a memory of its own: a mean of the values, weighted by e^k and by how long ago
 * they were, with another weight for the current one:
 *
 *   wkv_t = (Σ_{i<t} e^(k_i - (t-1-i)·w) v_i + e^(u + k_t) v_t) / (the same without v)
 *
 * where w = exp(time_decay) and u = time_first, and the output is W_o (σ(r) ⊙ wkv). The two sums
 * are kept divided by the largest e^… in them, whose logarithm is the third value of the state
 * (appendix D): num, den and peak; the kernel wkv4 is one step. Before the first token the peak is
 * far below any other.
 *
 * k, v and r come from x ⊙ mix + x_prev ⊙ (1 - mix), x the normalised row and x_prev the one
 * before.
 *
 * Four stages: mix, project, the recurrence, the output. */
#include "engine/block.h"
#include "engine/mixers/mixer.h"

enum { MIX_K, MIX_V, MIX_R, N_MIX };

#define PEAK_NONE -1e30F

/* Channels that one call of the recurrence takes: no channel needs another. */
enum { BLOCK = 64 };

struct layer {
    size_t d;
    const float *mix[N_MIX]; /* of the row before: one minus what the file has */
    struct sl_matrix k, v, r, o;
    const float *decay; /* -exp(time_decay) */
    const float *bonus;
    size_t shift, num, den, peak; /* offsets in a slot */
};

/* --- loading ------------------------------------------------------------------------------------
 */

static void config(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    c->n_layers = sl_load_count_layers(l, "blocks.");
    c->d_model = sl_load_axis(l, 0, SL_D_MODEL_MAX, "emb.weight");
    c->vocab_size = sl_load_axis(l, 1, SL_VOCAB_MAX, "emb.weight");
    c->n_heads = c->d_model;
    c->head_size = 1;
    c->d_ffn = sl_load_axis(l, 1, SL_D_FFN_MAX, "blocks.0.ffn.key.weight");
}

static void minus_exp(float *v, size_t n)
{
    const struct sl_kernels *k = sl_kernels_find("ref");
    k->vexp(v, v, n);
    k->vscale(v, v, -1, n);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    size_t d = l->config.d_model, ld = sl_row_floats(d);
    m->d = d;
    m->shift = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.shift", i);
    m->num = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.num", i);
    m->den = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.den", i);
    m->peak = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.peak", i);

    for (size_t j = 0; j < N_MIX; j++) {
        sl_load_vector(l, &m->mix[j], d, "blocks.%zu.att.time_mix_%c", i, "kvr"[j]);
        sl_load_map(l, sl_map_one_minus);
    }
    sl_load_matrix(l, &m->k, d, d, SL_OUT_IN, "blocks.%zu.att.key.weight", i);
    sl_load_matrix(l, &m->v, d, d, SL_OUT_IN, "blocks.%zu.att.value.weight", i);
    sl_load_matrix(l, &m->r, d, d, SL_OUT_IN, "blocks.%zu.att.receptance.weight", i);
    sl_load_matrix(l, &m->o, d, d, SL_OUT_IN, "blocks.%zu.att.output.weight", i);
    sl_load_vector(l, &m->decay, d, "blocks.%zu.att.time_decay", i);
    sl_load_map(l, minus_exp);
    sl_load_vector(l, &m->bonus, d, "blocks.%zu.att.time_first", i);

    sl_load_scratch(l, (N_MIX + 4) * ld, ld);
}

static void init(const void *layer, unsigned char *state)
{
    const struct layer *m = layer;
    float *peak = (float *)(void *)(state + m->peak);
    for (size_t i = 0; i < m->d; i++)
        peak[i] = PEAK_NONE;
}

/* --- running ------------------------------------------------------------------------------------
 */

struct job {
    const struct sl_pass *p;
    const struct sl_norm *norm;
    const struct layer *m;
    float *mixed[N_MIX], *k, *v, *r, *out; /* [n_rows][ld] each */
};

static void mix_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    sl_pass_mix(j->p, j->norm, j->m->shift, j->mixed, j->m->mix, N_MIX, part, n_parts);
}

static void sigmoid_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->r + r * j->p->ld + t->col;
        j->p->k->vsigmoid(y, y, t->col_end - t->col);
    }
}

static void project_stage(const struct job *j)
{
    const struct layer *m = j->m;
    size_t ld = j->p->ld;
    const struct sl_product v[] = {
        {&m->k, j->mixed[MIX_K], ld, j->k, ld, NULL},
        {&m->v, j->mixed[MIX_V], ld, j->v, ld, NULL},
        {&m->r, j->mixed[MIX_R], ld, j->r, ld, sigmoid_tile},
    };
    sl_pass_products(j->p, v, sizeof v / sizeof *v, j, NULL);
}

/* All tokens of one span in one block of channels, in order. */
static void recur(const void *arg, const struct sl_span *span, size_t block, float *tmp)
{
    (void)tmp;
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    const struct layer *m = j->m;
    size_t c = block * BLOCK, n = m->d - c < BLOCK ? m->d - c : BLOCK;
    float *num = (float *)(void *)(span->state + m->num) + c;
    float *den = (float *)(void *)(span->state + m->den) + c;
    float *peak = (float *)(void *)(span->state + m->peak) + c;
    for (size_t t = span->row; t < span->row + span->n_rows; t++) {
        size_t at = t * p->ld + c;
        p->k->wkv4(j->out + at, num, den, peak, m->decay + c, m->bonus + c, j->k + at, j->v + at,
                   n);
        p->k->vmul(j->out + at, j->out + at, j->r + at, n);
    }
    sl_pass_keep_shift(p, span, m->shift, c, c + n);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.p = p, .norm = norm, .m = layer};
    size_t used = 0;
    for (size_t i = 0; i < N_MIX; i++)
        j.mixed[i] = sl_pass_take(p, &used, p->ld);
    j.k = sl_pass_take(p, &used, p->ld);
    j.v = sl_pass_take(p, &used, p->ld);
    j.r = sl_pass_take(p, &used, p->ld);
    j.out = sl_pass_take(p, &used, p->ld);
    sl_workers_run(p->workers, mix_part, &j);
    project_stage(&j);
    sl_pass_heads(p, (j.m->d + BLOCK - 1) / BLOCK, recur, &j);
    sl_pass_add_product(p, &j.m->o, j.out, p->ld, j.k);
}

const struct sl_mixer sl_mixer_rwkv4 = {
    .arch = "rwkv4",
    .title = "RWKV-4",
    .block = &sl_block_rwkv4,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .init = init,
    .forward = forward,
};
