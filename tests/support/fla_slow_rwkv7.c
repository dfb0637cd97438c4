/* fla_slow_rwkv7.c: RWKV-7 as the library holds it. See fla_slow.h. */
#include "tests/support/fla_slow_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* x + (the row before - x) ⊙ mix */
static double *shifted(struct slow_model *m, const double *x, const double *mix)
{
    double *y = slow_room(m, m->n * m->d);
    for (size_t t = 0; t < m->n; t++)
        for (size_t c = 0; c < m->d; c++) {
            double now = x[t * m->d + c], before = t ? x[(t - 1) * m->d + c] : 0;
            y[t * m->d + c] = now + (before - now) * mix[c];
        }
    return y;
}

double *slow_layer_normed(struct slow_model *m, const double *x, const char *name, size_t i)
{
    char w[64], b[64];
    double *y = slow_room(m, m->n * m->d);
    (void)snprintf(w, sizeof w, "model.layers.%zu.%s.weight", i, name);
    (void)snprintf(b, sizeof b, "model.layers.%zu.%s.bias", i, name);
    const double *vw = slow_get(m, "%s", w),
                 *vb = slow_has(m, "%s", b) ? slow_get(m, "%s", b) : NULL;
    for (size_t t = 0; t < m->n; t++)
        slow_layer_norm(y + t * m->d, x + t * m->d, vw, vb, m->d, m->eps);
    return y;
}

/* One of the six mixed inputs. */
static double *mixed(struct slow_model *m, const double *x, size_t i, char letter)
{
    if (slow_has(m, LAYER "x_x", i))
        return shifted(m, x,
                       slow_get(m, LAYER "x_x", i) +
                           (size_t)(strchr("rwkvag", letter) - "rwkvag") * m->d);
    return shifted(m, x, slow_get(m, LAYER "x_%c", i, letter));
}

/* W_2 f(W_1 x) + b */
static double *low_rank(struct slow_model *m, const double *x, size_t i, char letter, size_t rank,
                        double (*f)(double))
{
    double *mid =
        slow_times(m, x, slow_get(m, LAYER "%c_lora.lora.0.weight", i, letter), rank, m->d);
    if (f)
        slow_map(mid, m->n * rank, f);
    double *y =
        slow_times(m, mid, slow_get(m, LAYER "%c_lora.lora.2.weight", i, letter), m->d, rank);
    const double *b = letter == 'g' ? NULL : slow_get(m, LAYER "%c_lora.lora.2.bias", i, letter);
    for (size_t e = 0; b && e < m->n * m->d; e++)
        y[e] += b[e % m->d];
    return y;
}

static double *times_of(struct slow_model *m, const double *x, size_t i, char letter)
{
    return slow_times(m, x, slow_get(m, LAYER "%c_proj.weight", i, letter), m->d, m->d);
}

/* κ of one head: of k ⊙ k_k, made long 1. */
static void kappa_of(const struct slow_model *m, double *kappa, const double *k, const double *k_k,
                     size_t n)
{
    double square = 0;
    for (size_t a = 0; a < n; a++) {
        kappa[a] = k[a] * k_k[a];
        square += kappa[a] * kappa[a];
    }
    double norm = slow_flag(m, "fuse_norm", true) ? sqrt(square + 1e-6) : fmax(sqrt(square), 1e-12);
    for (size_t a = 0; a < n; a++)
        kappa[a] /= norm;
}

struct rwkv {
    double *r, *w, *k, *v, *a, *g; /* [n][d] */
    const double *k_k, *k_a, *r_k, *norm_w, *norm_b;
};

/* One head at one token: S [value][key], the paper's. */
static void rwkv_step(const struct slow_model *m, const struct rwkv *x, double *s, double *out,
                      size_t t, size_t h, size_t n)
{
    size_t at = t * m->d + h * n;
    double kappa[64], key[64], bonus = 0;
    kappa_of(m, kappa, x->k + at, x->k_k + h * n, n);
    for (size_t a = 0; a < n; a++)
        key[a] = x->k[at + a] * (1 + (x->a[at + a] - 1) * x->k_a[h * n + a]);
    for (size_t v = 0; v < n; v++) {
        double erased = 0;
        for (size_t a = 0; a < n; a++)
            erased -= s[v * n + a] * kappa[a];
        out[v] = 0;
        for (size_t a = 0; a < n; a++) {
            s[v * n + a] = s[v * n + a] * x->w[at + a] + erased * kappa[a] * x->a[at + a] +
                           x->v[at + v] * key[a];
            out[v] += s[v * n + a] * x->r[at + a];
        }
    }
    slow_layer_norm(out, out, x->norm_w + h * n, x->norm_b + h * n, n, m->eps * (double)n);
    for (size_t a = 0; a < n; a++)
        bonus += x->r[at + a] * key[a] * x->r_k[h * n + a];
    for (size_t v = 0; v < n; v++)
        out[v] = (out[v] + bonus * x->v[at + v]) * x->g[at + v];
}

static double decay_of(double w)
{
    return exp(-exp(-0.5) * slow_sigmoid(w));
}

static double *rwkv7(struct slow_model *m, const double *x, size_t i, double **v_first)
{
    size_t n = slow_size(m, "head_dim", 64), heads = m->d / n;
    double *s = slow_room(m, heads * n * n), *o = slow_room(m, m->n * m->d);
    double *xv = mixed(m, x, i, 'v');
    struct rwkv y = {
        .r = times_of(m, mixed(m, x, i, 'r'), i, 'r'),
        .k = times_of(m, mixed(m, x, i, 'k'), i, 'k'),
        .v = times_of(m, xv, i, 'v'),
        .w = low_rank(m, mixed(m, x, i, 'w'), i, 'w', slow_size(m, "decay_low_rank_dim", 64), tanh),
        .a = low_rank(m, mixed(m, x, i, 'a'), i, 'a', slow_size(m, "a_low_rank_dim", 64), NULL),
        .g = low_rank(m, mixed(m, x, i, 'g'), i, 'g', slow_size(m, "gate_low_rank_dim", 128),
                      slow_sigmoid),
        .k_k = slow_get(m, LAYER "k_k", i),
        .k_a = slow_get(m, LAYER "k_a", i),
        .r_k = slow_get(m, LAYER "r_k", i),
        .norm_w = slow_get(m, LAYER "g_norm.weight", i),
        .norm_b = slow_get(m, LAYER "g_norm.bias", i)};
    slow_map(y.w, m->n * m->d, decay_of);
    slow_map(y.a, m->n * m->d, slow_sigmoid);
    if (i == 0) {
        *v_first = y.v;
    } else {
        double *mix = low_rank(m, xv, i, 'v', slow_size(m, "v_low_rank_dim", 16), NULL);
        for (size_t e = 0; e < m->n * m->d; e++)
            y.v[e] += ((*v_first)[e] - y.v[e]) * slow_sigmoid(mix[e]);
    }
    for (size_t t = 0; t < m->n; t++)
        for (size_t h = 0; h < heads; h++)
            rwkv_step(m, &y, s + h * n * n, o + t * m->d + h * n, t, h, n);
    return times_of(m, o, i, 'o');
}

void slow_rwkv7_layer(struct slow_model *m, double *x, size_t i, double **v_first)
{
    size_t n = slow_size(m, "intermediate_size", 0);
    slow_add(x, rwkv7(m, slow_layer_normed(m, x, "attn_norm", i), i, v_first), m->n * m->d);
    double *z = shifted(m, slow_layer_normed(m, x, "ffn_norm", i),
                        slow_get(m, "model.layers.%zu.ffn.x_k", i));
    double *wide = slow_times(m, z, slow_get(m, "model.layers.%zu.ffn.key.weight", i), n, m->d);
    slow_map(wide, m->n * n, slow_relu2);
    slow_add(x, slow_times(m, wide, slow_get(m, "model.layers.%zu.ffn.value.weight", i), m->d, n),
             m->n * m->d);
}
