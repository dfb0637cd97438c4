/* rwkv7.c: RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456), as BlinkDL's files hold it, and as
 * flash-linear-attention does: other names, the low-rank matrices the other way round, and
 * settings. The converters of web-rwkv turn the low-rank matrices too and keep the names: only
 * their shapes tell.
 *
 * Per head, with keys and values of N channels and S [key][value] (the paper's S transposed):
 *
 *   S_t = diag(w) S_{t-1} + (κ ⊙ a)(-κᵀ S_{t-1}) + k̃ vᵀ          o_t = S_tᵀ r
 *
 *   w = exp(-e^(-1/2) σ(w0 + tanh(x_w W1) W2))      a = σ(a0 + (x_a A1) A2)
 *   κ = k ⊙ k_k, made one long per head              k̃ = k ⊙ (1 + (a - 1) ⊙ k_a)
 *   v ← v + (v_first - v) ⊙ σ(v0 + (x_v V1) V2)      in every layer but the first, whose v is
 * v_first g = σ(x_g G1) G2                                 x_• = x + (x_prev - x) ⊙ mix_•
 *
 * and the output is W_o (g ⊙ (GroupNorm(o) + (Σ r ⊙ k̃ ⊙ r_k) v)). x is the normalised row, and
 * x_prev the one before it, which the state keeps across steps. What decays is the key axis; the
 * erasing term reads the state before its decay.
 *
 * Five stages: mix, project, the low-rank pairs' second halves, the recurrence, the output. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/block.h"
#include "engine/fla.h"
#include "engine/mixers/tuned.h"

enum { MIX_R, MIX_W, MIX_K, MIX_V, MIX_A, MIX_G, N_MIX };

enum {
    ROWS = 16, /* tokens that go through a head's state before the next ones are looked at */
    AHEAD = 2  /* tokens whose rows are on their way (Zen 4: the stage takes 0.8 to 1.0 times) */
};

#define EPS_LN_X 64e-5f
#define DECAY_SCALE -0.6065306597126334f /* -exp(-1/2) */
#define KAPPA_MIN 1e-12f
#define KAPPA_EPS 1e-6f /* of the library's fused norm, under the root */

struct layer {
    bool first;           /* has no residual of values */
    bool fused;           /* κ is divided by sqrt(Σ + KAPPA_EPS) */
    size_t d, n_heads, n; /* d = n_heads · n */
    const float *mix[N_MIX];
    struct sl_matrix r, k, v, o;
    struct sl_matrix w1, w2, a1, a2, v1, v2, g1, g2;
    const float *w0, *a0, *v0;
    const float *k_k, *k_a, *r_k;
    struct sl_norm ln_x;
    struct sl_tuned tuned;
    size_t shift, state; /* offsets in a slot */
};

/* --- loading ------------------------------------------------------------------------------------
 */

#define TURNED(x)                                                                                  \
    {"blocks.*.att." x "1", "blocks.*.att." x "1", true},                                          \
    {                                                                                              \
        "blocks.*.att." x "2", "blocks.*.att." x "2", true                                         \
    }

static const struct sl_rename web_names[] = {
    TURNED("w"), TURNED("a"), TURNED("v"), TURNED("g"), {0},
};

/* Which way round the low-rank matrices are, by the first one that is not square. */
static void find_layout(struct sl_load *l)
{
    static const char *const firsts[] = {"blocks.0.att.w1", "blocks.0.att.a1", "blocks.0.att.g1",
                                         "blocks.1.att.v1"};
    size_t d = l->config.d_model, n_square = 0;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        const struct sl_tensor *t = sl_tensors_find(l->tensors, firsts[i]);
        if (!t || t->rank != 2 || (t->shape[0] != d && t->shape[1] != d))
            continue;
        if (t->shape[0] != t->shape[1]) {
            l->names = t->shape[1] == d ? web_names : NULL;
            if (l->names)
                sl_tuned_refuse(l);
            return;
        }
        n_square++;
    }
    bool other = strcmp(l->tensors->container, "safetensors") == 0 &&
                 !sl_tensors_meta(l->tensors, SL_TENSORS_CONVERTED);
    if (n_square > 0 && other)
        sl_load_fail(
            l, SL_E_MODEL_UNSUPPORTED,
            "all its low-rank matrices are square (%zu × %zu), so that BlinkDL's layout and "
            "that of web-rwkv's converter cannot be told apart; take the .pth",
            d, d);
}

static void config(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    c->n_layers = sl_load_count_layers(l, "blocks.");
    c->d_model = sl_load_axis(l, 0, SL_D_MODEL_MAX, "emb.weight");
    c->vocab_size = sl_load_axis(l, 1, SL_VOCAB_MAX, "emb.weight");
    c->n_heads = sl_load_axis(l, 1, SL_HEADS_MAX, "blocks.0.att.r_k");
    c->head_size = sl_load_axis(l, 0, SL_HEAD_SIZE_MAX, "blocks.0.att.r_k");
    c->d_ffn = sl_load_axis(l, 1, SL_D_FFN_MAX, "blocks.0.ffn.key.weight");
    if (sl_load_ok(l) && c->n_heads * c->head_size != c->d_model)
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     "blocks.0.att.r_k is %zu heads of %zu channels, which does not make the %zu "
                     "channels of emb.weight",
                     c->n_heads, c->head_size, c->d_model);
    if (sl_load_ok(l))
        find_layout(l);
}

/* A pair x @ w1 @ w2 with its rank in between, which is the file's to choose. Returns the floats of
 * a row between the two. */
static size_t load_low_rank(struct sl_load *l, struct sl_matrix *one, struct sl_matrix *two,
                            size_t i, char letter)
{
    size_t d = l->config.d_model;
    size_t rank = sl_load_axis(l, 0, SL_RANK_MAX, "blocks.%zu.att.%c1", i, letter);
    sl_load_small(l, one, rank, d, SL_IN_OUT, "blocks.%zu.att.%c1", i, letter);
    sl_load_small(l, two, d, rank, SL_IN_OUT, "blocks.%zu.att.%c2", i, letter);
    return sl_row_floats(rank);
}

static void load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    const struct sl_config *c = &l->config;
    size_t d = c->d_model, ld = sl_row_floats(d);
    m->first = i == 0;
    m->d = d, m->n_heads = c->n_heads, m->n = c->head_size;
    m->shift = sl_load_state(l, SL_DTYPE_F32, 1, (size_t[]){d}, "layers.%zu.mixer.shift", i);
    m->state = sl_load_state(l, SL_DTYPE_F32, 3, (size_t[]){m->n_heads, m->n, m->n},
                             "layers.%zu.mixer.state", i);
    sl_tuned_load(l, &m->tuned, m->n_heads, m->n, i);

    for (size_t j = 0; j < N_MIX; j++) {
        /* Files of early 2025 from the library have all six in one, in this order. */
        if (sl_load_has(l, "blocks.%zu.att.x_x", i))
            sl_load_row(l, &m->mix[j], j, N_MIX, d, "blocks.%zu.att.x_x", i);
        else
            sl_load_vector(l, &m->mix[j], d, "blocks.%zu.att.x_%c", i, "rwkvag"[j]);
    }
    sl_load_matrix(l, &m->r, d, d, SL_OUT_IN, "blocks.%zu.att.receptance.weight", i);
    sl_load_matrix(l, &m->k, d, d, SL_OUT_IN, "blocks.%zu.att.key.weight", i);
    sl_load_matrix(l, &m->v, d, d, SL_OUT_IN, "blocks.%zu.att.value.weight", i);
    size_t ranks = load_low_rank(l, &m->w1, &m->w2, i, 'w');
    ranks += load_low_rank(l, &m->a1, &m->a2, i, 'a');
    if (!m->first)
        ranks += load_low_rank(l, &m->v1, &m->v2, i, 'v');
    ranks += load_low_rank(l, &m->g1, &m->g2, i, 'g');
    sl_load_matrix(l, &m->o, d, d, SL_OUT_IN, "blocks.%zu.att.output.weight", i);

    sl_load_vector(l, &m->w0, d, "blocks.%zu.att.w0", i);
    sl_load_vector(l, &m->a0, d, "blocks.%zu.att.a0", i);
    if (!m->first)
        sl_load_vector(l, &m->v0, d, "blocks.%zu.att.v0", i);
    for (unsigned j = 0; m->first && j < 3; j++) /* which some files have there too */
        sl_load_ignore(l, "blocks.%zu.att.v%u", i, j);
    sl_load_vector(l, &m->k_k, d, "blocks.%zu.att.k_k", i);
    sl_load_vector(l, &m->k_a, d, "blocks.%zu.att.k_a", i);
    sl_load_grid(l, &m->r_k, m->n_heads, m->n, "blocks.%zu.att.r_k", i);
    sl_load_vector(l, &m->ln_x.w, d, "blocks.%zu.att.ln_x.weight", i);
    sl_load_vector(l, &m->ln_x.b, d, "blocks.%zu.att.ln_x.bias", i);
    m->ln_x.eps = EPS_LN_X;

    sl_load_scratch(l, (N_MIX + 4) * ld + ranks, ld);
    sl_load_scratch(l, 0, (size_t)2 * ROWS * sl_row_floats(m->n));
    sl_load_carry(l, ld);
}

static void init(const void *layer, unsigned char *state)
{
    const struct layer *m = layer;
    sl_tuned_init(&m->tuned, (float *)(void *)(state + m->state));
}

/* --- as flash-linear-attention holds it ---------------------------------------------------------
 */

#define HERE "blocks.*."
#define THERE "model.layers.*."
#define NORM(here, there)                                                                          \
    {here ".weight", there ".weight", false},                                                      \
    {                                                                                              \
        here ".bias", there ".bias", false                                                         \
    }
#define LOW_RANK(x)                                                                                \
    {HERE "att." x "1", THERE "attn." x "_lora.lora.0.weight", true},                              \
        {HERE "att." x "2", THERE "attn." x "_lora.lora.2.weight", true},                          \
    {                                                                                              \
        HERE "att." x "0", THERE "attn." x "_lora.lora.2.bias", false                              \
    }
#define PLAIN(here, there)                                                                         \
    {                                                                                              \
        HERE "att." here, THERE "attn." there, false                                               \
    }

static const struct sl_rename fla_names[] = {
    {"emb.weight", "model.embeddings.weight", false},
    {"head.weight", "lm_head.weight", false},
    NORM("ln_out", "model.norm"),
    NORM(HERE "ln0", THERE "pre_norm"),
    NORM(HERE "ln1", THERE "attn_norm"),
    NORM(HERE "ln2", THERE "ffn_norm"),
    {HERE "ffn.x_k", THERE "ffn.x_k", false},
    {HERE "ffn.key.weight", THERE "ffn.key.weight", false},
    {HERE "ffn.value.weight", THERE "ffn.value.weight", false},
    PLAIN("x_x", "x_x"),
    PLAIN("x_r", "x_r"),
    PLAIN("x_w", "x_w"),
    PLAIN("x_k", "x_k"),
    PLAIN("x_v", "x_v"),
    PLAIN("x_a", "x_a"),
    PLAIN("x_g", "x_g"),
    PLAIN("receptance.weight", "r_proj.weight"),
    PLAIN("key.weight", "k_proj.weight"),
    PLAIN("value.weight", "v_proj.weight"),
    PLAIN("output.weight", "o_proj.weight"),
    LOW_RANK("w"),
    LOW_RANK("a"),
    LOW_RANK("v"),
    LOW_RANK("g"),
    PLAIN("k_k", "k_k"),
    PLAIN("k_a", "k_a"),
    PLAIN("r_k", "r_k"),
    NORM(HERE "att.ln_x", THERE "attn.g_norm"),
    {0},
};

/* head_dim and num_heads, of which one may be null. */
static void fla_heads(struct sl_load *l)
{
    struct sl_config *c = &l->config;
    bool given = sl_load_set(l, "head_dim") || !sl_load_set(l, "num_heads");
    size_t n = sl_load_size(l, "num_heads", 0, SL_HEADS_MAX);
    c->head_size = given ? sl_load_size(l, "head_dim", 64, SL_HEAD_SIZE_MAX)
                         : sl_fla_divide(l, "hidden_size", c->d_model, "num_heads", n);
    c->n_heads = sl_fla_divide(l, "hidden_size", c->d_model, "head_dim", c->head_size);
    if (n && n != c->n_heads)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID,
                             "num_heads is %zu, but hidden_size %zu and head_dim %zu make %zu", n,
                             c->d_model, c->head_size, c->n_heads);
}

/* value_dim, a number or one for each layer, must be hidden_size. */
static void fla_values(struct sl_load *l)
{
    size_t d = l->config.d_model;
    bool list = sl_load_set(l, "value_dim.0");
    for (size_t i = 0; sl_load_set(l, "value_dim") && i < (list ? l->config.n_layers : 1); i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "value_dim.%zu", i);
        size_t n = sl_load_size(l, list ? key : "value_dim", d, SL_D_MODEL_MAX);
        if (n != d)
            sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED,
                                 "%s is %zu; only hidden_size, %zu, can be run",
                                 list ? key : "value_dim", n, d);
    }
}

static void fla_config(struct sl_load *l)
{
    static const struct sl_fla_class class = {
        .hidden_size = 2048, .num_hidden_layers = 24, .norm_eps = 1e-5};
    static const char *const words[] = {"sqrelu", NULL};
    struct sl_config *c = &l->config;
    sl_fla_config(l, &class);
    (void)sl_load_choice(l, "hidden_act", 0, words);
    c->bare = !sl_load_flag(l, "norm_bias", true);
    c->no_norm_in = !sl_load_flag(l, "norm_first", true);
    l->quiet = true;
    c->d_ffn = sl_load_size(l, "intermediate_size", 0, SL_D_FFN_MAX);
    if (c->d_ffn == 0) {
        size_t n = sl_fla_width(l, "hidden_ratio", 4, c->d_model);
        c->d_ffn = (n + 31) / 32 * 32;
    }
    fla_heads(l);
    fla_values(l);
    l->quiet = false;
}

/* The rank that the settings give to a low-rank pair is the one that it has. null: any. */
static void fla_rank(struct sl_load *l, const char *key, size_t absent, size_t rank)
{
    const struct sl_settings *s = l->tensors->settings;
    if (!sl_load_ok(l) || (sl_settings_find(s, key) && !sl_load_set(l, key)))
        return;
    size_t n = sl_load_size(l, key, absent, SL_RANK_MAX);
    if (n != rank)
        sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s is %zu, but the tensors' rank is %zu", key,
                             n, rank);
}

static void fla_load(struct sl_load *l, size_t i, void *layer)
{
    struct layer *m = layer;
    load(l, i, m);
    l->quiet = true;
    fla_rank(l, "decay_low_rank_dim", 64, m->w1.n_out);
    fla_rank(l, "a_low_rank_dim", 64, m->a1.n_out);
    fla_rank(l, "gate_low_rank_dim", 128, m->g1.n_out);
    if (!m->first)
        fla_rank(l, "v_low_rank_dim", 16, m->v1.n_out);
    l->quiet = false;
    m->ln_x.eps = l->config.norm_eps * (float)m->n;
    m->fused = sl_load_flag(l, "fuse_norm", true);
}

/* --- running ------------------------------------------------------------------------------------
 */

/* The activations of a layer, each [n_rows][ld] or [n_rows][a rank]. The mixed inputs are dead once
 * the projections are made, and the memory of four then holds what the second halves give. */
struct job {
    const struct sl_pass *p;
    const struct sl_norm *norm;
    const struct layer *m;
    float *mixed[N_MIX];
    float *r, *k, *v, *out;
    float *w_mid, *a_mid, *v_mid, *g_mid;
    float *w, *a, *v_gate, *g;
};

/* Some rows of a span, in the channels of one head. */
struct head_rows {
    size_t row, n, channel;
    size_t n_left;          /* of the span's, from the first of these on */
    float *kappa, *k_tilde; /* [n][ld] of the part's scratch */
    size_t ld;
};

static void plan(struct job *j)
{
    const struct sl_pass *p = j->p;
    const struct layer *m = j->m;
    size_t used = 0;
    for (size_t i = 0; i < N_MIX; i++)
        j->mixed[i] = sl_pass_take(p, &used, p->ld);
    j->r = sl_pass_take(p, &used, p->ld);
    j->k = sl_pass_take(p, &used, p->ld);
    /* The first layer's values are what all others mix in, so they outlive it. */
    j->v = m->first ? p->carry : sl_pass_take(p, &used, p->ld);
    j->out = sl_pass_take(p, &used, p->ld);
    j->w_mid = sl_pass_take(p, &used, sl_row_floats(m->w1.n_out));
    j->a_mid = sl_pass_take(p, &used, sl_row_floats(m->a1.n_out));
    j->v_mid = m->first ? NULL : sl_pass_take(p, &used, sl_row_floats(m->v1.n_out));
    j->g_mid = sl_pass_take(p, &used, sl_row_floats(m->g1.n_out));
    j->w = j->mixed[0];
    j->a = j->mixed[1];
    j->v_gate = j->mixed[2];
    j->g = j->mixed[3];
}

static void mix_part(void *arg, size_t part, size_t n_parts)
{
    const struct job *j = arg;
    sl_pass_mix(j->p, j->norm, j->m->shift, j->mixed, j->m->mix, N_MIX, part, n_parts);
}

static void tanh_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    size_t ld = sl_row_floats(j->m->w1.n_out);
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->w_mid + r * ld + t->col;
        j->p->k->vtanh(y, y, t->col_end - t->col);
    }
}

static void sigmoid_tile(const void *arg, const struct sl_tile *t)
{
    const struct job *j = arg;
    size_t ld = sl_row_floats(j->m->g1.n_out);
    for (size_t r = 0; r < j->p->n_rows; r++) {
        float *y = j->g_mid + r * ld + t->col;
        j->p->k->vsigmoid(y, y, t->col_end - t->col);
    }
}

static void project_stage(const struct job *j)
{
    const struct layer *m = j->m;
    size_t ld = j->p->ld;
    struct sl_product v[] = {
        {&m->r, j->mixed[MIX_R], ld, j->r, ld, NULL},
        {&m->k, j->mixed[MIX_K], ld, j->k, ld, NULL},
        {&m->v, j->mixed[MIX_V], ld, j->v, ld, NULL},
        {&m->w1, j->mixed[MIX_W], ld, j->w_mid, sl_row_floats(m->w1.n_out), tanh_tile},
        {&m->a1, j->mixed[MIX_A], ld, j->a_mid, sl_row_floats(m->a1.n_out), NULL},
        {&m->g1, j->mixed[MIX_G], ld, j->g_mid, sl_row_floats(m->g1.n_out), sigmoid_tile},
        {&m->v1, j->mixed[MIX_V], ld, j->v_mid, sl_row_floats(m->v1.n_out), NULL},
    };
    size_t n = sizeof v / sizeof *v - (m->first ? 1 : 0);
    sl_pass_products(j->p, v, n, j, NULL);
}

static void second_stage(const struct job *j)
{
    const struct layer *m = j->m;
    size_t ld = j->p->ld;
    struct sl_product v[] = {
        {&m->w2, j->w_mid, sl_row_floats(m->w1.n_out), j->w, ld, NULL},
        {&m->a2, j->a_mid, sl_row_floats(m->a1.n_out), j->a, ld, NULL},
        {&m->g2, j->g_mid, sl_row_floats(m->g1.n_out), j->g, ld, NULL},
        {&m->v2, j->v_mid, sl_row_floats(m->v1.n_out), j->v_gate, ld, NULL},
    };
    size_t n = sizeof v / sizeof *v - (m->first ? 1 : 0);
    sl_pass_products(j->p, v, n, j, NULL);
}

/* Asks memory for a head's channels of a row: rows lie far apart, and no processor guesses where
 * the next one is. */
static void ask_row(const struct job *j, size_t row, size_t channel)
{
    const float *const all[] = {j->w, j->a, j->k, j->v, j->r, j->g, j->v_gate, j->p->carry};
    const size_t n = sizeof all / sizeof *all - (j->m->first ? 2 : 0); /* no gate of values */
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < j->m->n; c += SL_PANEL)
            __builtin_prefetch(all[i] + row * j->p->ld + channel + c);
}

/* What a head's rows are before they go through its state: κ, k̃ and the rest in place. */
static void open_rows(const struct job *j, const struct head_rows *h)
{
    const struct layer *m = j->m;
    const size_t ld = j->p->ld, c = h->channel;
    struct sl_wkv7_gates g = {.w0 = m->w0 + c,
                              .a0 = m->a0 + c,
                              .k_k = m->k_k + c,
                              .k_a = m->k_a + c,
                              .v0 = m->first ? NULL : m->v0 + c,
                              .decay_scale = DECAY_SCALE,
                              .eps = m->fused ? KAPPA_EPS : 0,
                              .least = KAPPA_MIN};
    for (size_t t = 0; t < h->n; t++) {
        const size_t at = (h->row + t) * ld + c;
        if (t + AHEAD < h->n_left)
            ask_row(j, h->row + t + AHEAD, c);
        g.w = j->w + at;
        g.a = j->a + at;
        g.v = j->v + at;
        g.key = j->k + at;
        g.gate = m->first ? NULL : j->v_gate + at;
        g.v_first = m->first ? NULL : j->p->carry + at;
        g.kappa = h->kappa + t * h->ld;
        g.k_tilde = h->k_tilde + t * h->ld;
        j->p->k->wkv7_gates(&g, m->n);
    }
}

static void run_rows(const struct job *j, float *s, const struct head_rows *h)
{
    const size_t ld = j->p->ld, at = h->row * ld + h->channel;
    const struct sl_state_run run = {.n = h->n,
                                     .n_k = j->m->n,
                                     .n_v = j->m->n,
                                     .out = j->out + at,
                                     .ld_out = ld,
                                     .key = h->k_tilde,
                                     .val = j->v + at,
                                     .q = j->r + at,
                                     .ld_key = h->ld,
                                     .ld_val = ld,
                                     .ld_q = ld,
                                     .decay = j->w + at,
                                     .ld_decay = ld,
                                     .read = h->kappa,
                                     .ld_read = h->ld,
                                     .b = j->a + at, /* the sign of what is read is here */
                                     .ld_b = ld};
    j->p->k->state_run(s, &run);
}

/* The head's outputs: normalised, with what the bonus adds, times the gate. */
static void close_rows(const struct job *j, const struct head_rows *h)
{
    const struct layer *m = j->m;
    const size_t c = h->channel;
    struct sl_wkv7_out o = {
        .r_k = m->r_k + c, .w = m->ln_x.w + c, .b = m->ln_x.b + c, .eps = m->ln_x.eps};
    for (size_t t = 0; t < h->n; t++) {
        const size_t at = (h->row + t) * j->p->ld + c;
        o.out = j->out + at;
        o.r = j->r + at;
        o.k_tilde = h->k_tilde + t * h->ld;
        o.v = j->v + at;
        o.g = j->g + at;
        j->p->k->wkv7_out(&o, m->n);
    }
}

/* All tokens of one span in one head, in order; so many at a time that their channels, and the
 * state beside them, stay in the first-level cache. */
static void recur(const void *arg, const struct sl_span *span, size_t head, float *tmp)
{
    const struct job *j = arg;
    const struct layer *m = j->m;
    const size_t ld = sl_row_floats(m->n);
    struct head_rows h = {
        .channel = head * m->n, .kappa = tmp, .k_tilde = tmp + ROWS * ld, .ld = ld};
    float *s = (float *)(void *)(span->state + m->state) + h.channel * m->n;
    for (size_t t = 0; t < span->n_rows; t += ROWS) {
        h.n_left = span->n_rows - t;
        h.n = h.n_left < ROWS ? h.n_left : ROWS;
        h.row = span->row + t;
        open_rows(j, &h);
        run_rows(j, s, &h);
        close_rows(j, &h);
    }
    sl_pass_keep_shift(j->p, span, m->shift, h.channel, h.channel + m->n);
}

static void forward(const struct sl_pass *p, const struct sl_norm *norm, const void *layer)
{
    struct job j = {.p = p, .norm = norm, .m = layer};
    plan(&j);
    sl_workers_run(p->workers, mix_part, &j);
    project_stage(&j);
    second_stage(&j);
    sl_pass_heads(p, j.m->n_heads, recur, &j);
    sl_pass_add_product(p, &j.m->o, j.out, p->ld, j.w);
}

const struct sl_mixer sl_mixer_rwkv7 = {
    .arch = "rwkv7",
    .title = "RWKV-7",
    .block = &sl_block_rwkv7,
    .tuned = true,
    .layer_bytes = sizeof(struct layer),
    .config = config,
    .load = load,
    .init = init,
    .forward = forward,
};

const struct sl_mixer sl_mixer_fla_rwkv7 = {
    .arch = "fla_rwkv7",
    .title = "RWKV-7 of flash-linear-attention",
    .model_type = "rwkv7",
    .block = &sl_block_rwkv7,
    .tuned = true,
    .layer_bytes = sizeof(struct layer),
    .names = fla_names,
    .config = fla_config,
    .load = fla_load,
    .init = init,
    .forward = forward,
};
