/* fla.h: what the models of the flash-linear-attention library have in common. Private to libslate.
 *
 * Most of its layers are one frame around one rule:
 *
 *   q, k, v = W_q x, W_k x, W_v x, each perhaps through a short convolution and an activation
 *   o_h     = the rule, per head, on q, k, v and what else it projects from x
 *   y       = W_o [RMSNorm(o_h) ⊙ w, perhaps ⊙ silu(W_g x)_h]
 *
 * x is the normalised row. There may be fewer heads of keys and values than of the state (or fewer
 * of queries and keys): head h of the state has the shared head h / share. A rule's mixer holds a
 * struct sl_fla_attn, loads it, and calls the stages below in turn, its own between them; the part
 * of its job that they need, struct sl_fla_job, comes first in it.
 *
 * Settings: the names and the defaults are those of the library's classes; see block_fla.c for what
 * lies around the mixer. */
#ifndef SLATE_ENGINE_FLA_H
#define SLATE_ENGINE_FLA_H

#include "engine/short_conv.h"

/* --- settings --- */

/* The defaults of a class. */
struct sl_fla_class {
    size_t hidden_size, num_hidden_layers;
    double hidden_ratio; /* of the feed-forward; 0: the class has none */
    double norm_eps;
};

/* Fills in l->config but for the heads, and refuses what no class of ours has. */
void sl_fla_config(struct sl_load *l, const struct sl_fla_class *c);

/* int(d · setting), as the library computes a width. */
size_t sl_fla_width(struct sl_load *l, const char *key, double absent, size_t d);

/* n / by, named for the message; an error when it does not divide, and then 1. */
size_t sl_fla_divide(struct sl_load *l, const char *what, size_t n, const char *by_what, size_t by);

/* hidden_act, which must be swish. */
void sl_fla_swish_only(struct sl_load *l);

/* num_heads and the width of a head's keys, which is expand_k · d_model over all heads, from these
 * defaults; and hidden_act, which must be swish. */
void sl_fla_config_heads(struct sl_load *l, size_t num_heads, double expand_k);

/* --- activations --- */

enum sl_fla_act {
    SL_ACT_NONE,
    SL_ACT_SILU,
    SL_ACT_RELU,
    SL_ACT_RELU2,
    SL_ACT_ELU1,
    SL_ACT_SIGMOID
};

void sl_fla_activate(const struct sl_kernels *k, enum sl_fla_act act, float *y, size_t n);

/* --- the frame --- */

enum { SL_FLA_Q, SL_FLA_K, SL_FLA_V, SL_FLA_QKV };

struct sl_fla_attn {
    size_t heads;             /* of the state */
    size_t d_k, d_v;          /* channels of a head */
    size_t share[SL_FLA_QKV]; /* heads of the state for each head of it */
    struct sl_matrix w[SL_FLA_QKV];
    struct sl_conv conv[SL_FLA_QKV];
    enum sl_fla_act act[SL_FLA_QKV][2]; /* one after the other */
    struct sl_matrix g, o;
    bool gated;
    struct sl_norm norm; /* of a head's output */
    size_t state;        /* offset of [heads][d_k][d_v] in a slot */
};

/* Heads of q, k or v. */
static inline size_t sl_fla_heads(const struct sl_fla_attn *a, size_t i)
{
    return a->heads / a->share[i];
}

/* heads, d_k and d_v as sl_fla_config_heads() has read them, and as expand_v says. */
void sl_fla_heads_load(struct sl_load *l, struct sl_fla_attn *a, double expand_v);
/* share: keys and values have num_kv_heads of the heads, or all. */
void sl_fla_share_load(struct sl_load *l, struct sl_fla_attn *a);

/* Declares it all, for layer i; heads, d_k, d_v, share, act and gated are set by the caller. `norm`
 * is the output norm's name ("g_norm"), NULL: it has no weights. d_features: keys of the state
 * (d_k, or more where a feature map widens them). */
void sl_fla_attn_load(struct sl_load *l, struct sl_fla_attn *a, size_t i, const char *norm,
                      size_t d_features);
/* The convolutions, where use_short_conv says so. */
void sl_fla_conv_load(struct sl_load *l, struct sl_fla_attn *a, size_t i, bool absent);

/* What GLA and RetNet have in common, heads and share having been set: convolutions, a feature map,
 * the gate, the output norm, and sl_fla_attn_load(). */
void sl_fla_gated_load(struct sl_load *l, struct sl_fla_attn *a, size_t i);

/* The first member of a mixer's job. */
struct sl_fla_job {
    const struct sl_pass *p;
    const struct sl_fla_attn *a;
    float *x[SL_FLA_QKV]; /* [n_rows][ld[…]] q, k, v */
    size_t ld[SL_FLA_QKV];
    float *g, *out; /* [n_rows][ld_out] silu(gate), and the heads' outputs */
    float *y;       /* [n_rows][p->ld] */
    size_t ld_out;
    size_t used; /* of the scratch, for what the mixer takes besides */
};

/* Scratch: floats of a row that sl_fla_plan() takes. */
size_t sl_fla_row_floats(const struct sl_load *l, const struct sl_fla_attn *a);
void sl_fla_plan(struct sl_fla_job *j, const struct sl_pass *p, const struct sl_fla_attn *a);

/* Stage 1: the norm; 2: the projections, with n more of the mixer's (arg of their after() is j);
 * 3: the convolutions. */
enum { SL_FLA_MORE_MAX = 4 };
void sl_fla_project(struct sl_fla_job *j, const struct sl_norm *norm, const struct sl_product *more,
                    size_t n);

/* Row t of q, k or v, as head h of the state has it. */
static inline float *sl_fla_at(const struct sl_fla_job *j, size_t i, size_t t, size_t h)
{
    size_t d = i == SL_FLA_V ? j->a->d_v : j->a->d_k;
    return j->x[i] + t * j->ld[i] + h / j->a->share[i] * d;
}

static inline float *sl_fla_out(const struct sl_fla_job *j, size_t t, size_t h)
{
    return j->out + t * j->ld_out + h * j->a->d_v;
}

static inline float *sl_fla_state(const struct sl_fla_job *j, const struct sl_span *span, size_t h,
                                  size_t d_features)
{
    return (float *)(void *)(span->state + j->a->state) + h * d_features * j->a->d_v;
}

/* What stands after the rule in the stage of the recurrence: a head's outputs of a span's rows,
 * normalised and gated, in place. */
void sl_fla_finish_span(const struct sl_fla_job *j, const struct sl_span *span, size_t h);

/* A span's recurrence (sl_recur_run): n_k channels of keys as the state has them; the caller has
 * set r->decay and, where there is one, r->z. */
void sl_fla_run(const struct sl_fla_job *j, const struct sl_span *span, size_t h,
                struct sl_recurrence *r, size_t n_k, bool delta, sl_recur_row_fn *row,
                const void *arg, float *tmp);

/* The recurrence, one stage over (span, head), and the output's projection, another. arg is j. */
void sl_fla_recur(struct sl_fla_job *j, void (*rule)(const void *arg, const struct sl_span *span,
                                                     size_t head, float *tmp));

/* y = x / sqrt(Σ x² + 1e-6) · scale */
void sl_fla_l2_norm(const struct sl_kernels *k, float *y, const float *x, size_t n, float scale);

#endif
