/* rwkv5.c: RWKV-5 "Eagle" (Peng et al. 2024, arXiv:2404.05892), as BlinkDL's files hold it.
 *
 * Per head, with keys and values of N channels and S [key][value]:
 *
 *   o_t = (S_{t-1} + diag(u) k_t v_tᵀ)ᵀ r_t          S_t = diag(w) S_{t-1} + k_t v_tᵀ
 *
 * and the output is W_o (GroupNorm(o) ⊙ silu(g)). k, v, r and g come from
 * x ⊙ mix + x_prev ⊙ (1 - mix), x the normalised row and x_prev the one before.
 *
 * There were three versions, told apart by what a file has:
 *
 *          decay                    bonus u                        gate
 *   5.0    one per head             exp(time_first), per head      no
 *   5.1    one per head             exp(time_first), per head      yes
 *   5.2    one per channel          time_faaaa, per channel        yes
 *
 * (others count the first as 5.1). Each of the three columns is looked at by itself: the gate is
 * there when gate.weight is, and a value per head stands for all its channels. time_first is an
 * exponent only where it is per head: with a value per channel it is a time_faaaa that a converter
 * (web-rwkv's) has renamed. w = exp(-exp(time_decay)) in all of them.
 *
 * The norm's eps is 64e-5: of trained models and of the code since November 2023. Files of before,
 * and test files, may want 1e-5.
 *
 * Four stages: mix, project, the recurrence, the output. */
#include "engine/block.h"
#include "engine/mixers/mixer.h"
#include "engine/mixers/tuned.h"

enum { MIX_K, MIX_V, MIX_R, MIX_G, N_MIX };

/* One value per channel, or one per head. */
struct per_key {
    const float *v;
    bool by_channel;
};

struct layer {
    bool gated;
    size_t d, n_heads, n;    /* d = n_heads · n */
    const float *mix[N_MIX]; /* of the row before: one minus what the file has */
    struct sl_matrix k, v, r, g, o;
    struct per_key decay, bonus;
    struct sl_norm ln_x;
    struct sl_tuned tuned;
    size_t shift, state; /* offsets in a slot */
};

static size_t n_mix(const struct layer *m)
{
    return m->gated ? N_MIX : MIX_G;
}

/* --- loading ------------------------------------------------------------------------------------
 */

enum { CHOICE_EPS };

static const struct sl_choice choices[] = {
    [CHOICE_EPS] = {"ln_x_eps",
                    "the eps of RWKV-5's group norm: 64e-5, or 1e-5 for files from before November "
                    "2023",
                    {"64e-5", "1e-5"}},
    {0},
};

static void config(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    const char *decay = "blocks.0.att.time_decay";
    c->n_layers = sl_load_count_layers(l, "blocks.");
    c->d_model = sl_load_axis(l, 0, SL_D_MODEL_MAX, "emb.weight");
    c->vocab_size = sl_load_axis(l, 1, SL_VOCAB_MAX, "emb.weight");
    c->d_ffn = sl_load_axis(l, 1, SL_D_FFN_MAX, "blocks.0.ffn.key.weight");
    c->n_heads = sl_load_elements(l, SL_D_MODEL_MAX, "%s", decay);
    if (c->n_heads == c->d_model) /* [heads, channels] */
        c->n_heads = sl_load_axis(l, 1, SL_HEADS_MAX, "%s", decay);
    if (!sl_load_ok(l))
        return;
    c->head_size = c->d_model / c->n_heads;
    if (c->n_heads * c->head_size != c->d_model || c->head_size > SL_HEAD_SIZE_MAX)
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     "%s is of %zu heads, into which the %zu channels of emb.weight do not divide",
                     decay, c->n_heads, c->d_model);
}

static void exp_minus_exp(float *v, size_t n)
{
    const struct sl_kernels *k = sl_kernels_find("ref");
    k->vexp(v, v, n);
    k->vscale(v, v, -1, n);
    k->vexp(v, v, n);
}

static void exp_all(float *v, size_t n)
{
    sl_kernels_find("ref")->vexp(v, v, n);
}

static void load_per_key(struct sl_load *l, struct per_key *ret, size_t i, const char *name,
                         void (*map)(float *v, size_t n))
{
    const struct sl_config *c = &l->config;
    size_t n = sl_load_elements(l, SL_D_MODEL_MAX, "blocks.%zu.att.%s", i, name);
    ret->by_channel = n != c->n_heads;
    if (ret->by_channel)
        sl_load_grid(l, &ret->v, c->n_heads, c->head_size, "blocks.%zu.att.%s", i, name);
    else
        sl_load_vector(l, &ret->v, n, "blocks.%zu.att.%s", i, name);
    sl_load_map(l, map);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    const struct sl_config *c = &l->config;
    size_t d = c->d_model, ld = sl_row_floats(d), room = sl_row_floats(c->head_size);
    m->gated =
        sl_load_has(l, "blocks.0.att.gate.weight") || sl_load_has(l, "blocks.0.att.time_mix_g");
    m->d = d, m->n_heads = c->n_heads, m->n = c->head_size;
    m->shift = sl_load_state(l, SL_DTYPE_F32, 1, &d, "layers.%zu.mixer.shift", i);
    m->state = sl_load_state(l, SL_DTYPE_F32, 3, (size_t[]){m->n_heads, m->n, m->n},
                             "layers.%zu.mixer.state", i);
    sl_tuned_load(l, &m->tuned, m->n_heads, m->n, i);

    for (size_t j = 0; j < n_mix(m); j++) {
        sl_load_vector(l, &m->mix[j], d, "blocks.%zu.att.time_mix_%c", i, "kvrg"[j]);
        sl_load_map(l, sl_map_one_minus);
    }
    sl_load_matrix(l, &m->k, d, d, SL_OUT_IN, "blocks.%zu.att.key.weight", i);
    sl_load_matrix(l, &m->v, d, d, SL_OUT_IN, "blocks.%zu.att.value.weight", i);
    sl_load_matrix(l, &m->r, d, d, SL_OUT_IN, "blocks.%zu.att.receptance.weight", i);
    if (m->gated)
        sl_load_matrix(l, &m->g, d, d, SL_OUT_IN, "blocks.%zu.att.gate.weight", i);
    sl_load_matrix(l, &m->o, d, d, SL_OUT_IN, "blocks.%zu.att.output.weight", i);
    load_per_key(l, &m->decay, i, "time_decay", exp_minus_exp);
    bool plain = sl_load_has(l, "blocks.%zu.att.time_faaaa", i) ||
                 (m->decay.by_channel && !sl_load_has(l, "blocks.%zu.att.time_first", i));
    load_per_key(l, &m->bonus, i, plain ? "time_faaaa" : "time_first", NULL);
    if (!plain && m->bonus.by_channel)
        sl_tuned_refuse(l);
    else if (!plain)
        sl_load_map(l, exp_all);
    sl_load_vector(l, &m->ln_x.w, d, "blocks.%zu.att.ln_x.weight", i);
    sl_load_vector(l, &m->ln_x.b, d, "blocks.%zu.att.ln_x.bias", i);
    m->ln_x.eps = sl_load_chosen(l, choices[CHOICE_EPS].name) == 0 ? 64e-5F : 1e-5F;

    sl_load_scratch(l, (N_MIX + 5) * ld, ld > 2 * room ? ld : 2 * room);
}

static void init(const void *layer, unsigned char *state)
{
    const struct layer *m = layer;
    sl_tuned_init(&m->tuned, (float *)(void *)(state + m->state));
}

/* --- running ------------------------------------------------------------------------------------
 */

struct job {
    const struct sl_pass *p;
    const struct sl_norm *norm;
    const struct layer *m;
    float *mixed[N_MIX], *k, *v, *r, *g, *out; /* [n_rows][ld] each */
};

static void mix_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    sl_pass_mix(j->p, j->norm, j->m->shift, j->mixed, j->m->mix, n_mix(j->m), part, n_parts);
}

static void silu_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->g + r * j->p->ld + t->col;
        j->p->k->vsilu(y, y, t->col_end - t->col);
    }
}

static void project_stage(const struct job *j)
{
    const struct layer *m = j->m;
    size_t ld = j->p->ld;
    const struct sl_product v[N_MIX] = {
        {&m->k, j->mixed[MIX_K], ld, j->k, ld, NULL},
        {&m->v, j->mixed[MIX_V], ld, j->v, ld, NULL},
        {&m->r, j->mixed[MIX_R], ld, j->r, ld, NULL},
        {&m->g, j->mixed[MIX_G], ld, j->g, ld, silu_tile},
    };
    sl_pass_products(j->p, v, n_mix(m), j, NULL);
}

/* The head's values, one per channel; room for them in tmp. */
static const float *spread(const struct per_key *v, size_t head, size_t n, float *tmp)
{
    if (v->by_channel)
        return v->v + head * n;
    for (size_t i = 0; i < n; i++)
        tmp[i] = v->v[head];
    return tmp;
}

/* All tokens of one span in one head, in order. */
static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    const struct sl_pass *p = j->p;
    const struct layer *m = j->m;
    size_t n = m->n, c = head * n;
    float *s = (float *)(void *)(span->state + m->state) + c * n;
    const float *decay = spread(&m->decay, head, n, tmp);
    const float *bonus = spread(&m->bonus, head, n, tmp + sl_row_floats(n));
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
                                     .decay = decay,
                                     .bonus = bonus};
    p->k->state_run(s, &run);
    for (size_t t = span->row; t < span->row + span->n_rows; t++) {
        size_t at = t * p->ld + c;
        float *out = j->out + at;
        p->k->layer_norm(out, out, m->ln_x.w + c, m->ln_x.b + c, n, m->ln_x.eps);
        if (m->gated)
            p->k->vmul(out, out, j->g + at, n);
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
    j.g = sl_pass_take(p, &used, p->ld);
    j.out = sl_pass_take(p, &used, p->ld);
    sl_workers_run(p->workers, mix_part, &j);
    project_stage(&j);
    sl_pass_heads(p, j.m->n_heads, recur, &j);
    sl_pass_add_product(p, &j.m->o, j.out, p->ld, j.k);
}

const struct sl_mixer sl_mixer_rwkv5 = {
    .arch = "rwkv5",
    .title = "RWKV-5",
    .block = &sl_block_rwkv4,
    .tuned = true,
    .layer_bytes = sizeof(struct layer),
    .choices = choices,
    .config = config,
    .load = load,
    .init = init,
    .forward = forward,
};
