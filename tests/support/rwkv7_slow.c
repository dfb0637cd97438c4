/* rwkv7_slow.c: see rwkv7_slow.h. Equations: Peng et al. 2025 (arXiv:2503.14456), section 4, in the
 * paper's orientation: S is [value][key], S_t = S_{t-1} (diag(w) - κ̂ᵀ (a ⊙ κ̂)) + vᵀ k̃. */
#include "tests/support/rwkv7_slow.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slow {
    const struct sl_tensors *t;
    size_t n_layers, d, h, n, d_ffn, vocab;
    double *state;  /* [layer][h][n][n] */
    double *shifts; /* [layer][2][d] */
};

static double element(const struct sl_tensor *t, size_t i)
{
    if (t->dtype == SL_DTYPE_F32) {
        float f;
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        return (double)f;
    }
    uint16_t u;
    memcpy(&u, t->data + i * sizeof u, sizeof u);
    if (t->dtype == SL_DTYPE_BF16) {
        uint32_t w = (uint32_t)u << 16;
        float f;
        memcpy(&f, &w, sizeof f);
        return (double)f;
    }
    if (t->dtype != SL_DTYPE_F16)
        abort();
    int exponent = u >> 10 & 31, fraction = u & 1023;
    double m = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return u & 0x8000 ? -m : m;
}

static const struct sl_tensor *get(const struct slow *s, const char *fmt, ...) SL_PRINTF(2, 3);

static const struct sl_tensor *get(const struct slow *s, const char *fmt, ...)
{
    char name[96];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct sl_tensor *t = sl_tensors_find(s->t, name);
    if (!t || !t->contiguous) {
        fprintf(stderr, "rwkv7_slow: no tensor %s\n", name);
        abort();
    }
    return t;
}

static double *zeros(size_t n)
{
    double *v = calloc(n, sizeof *v);
    if (!v)
        abort();
    return v;
}

struct slow *slow_open(const struct sl_tensors *t)
{
    struct slow *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->t = t;
    char name[64];
    do
        (void)snprintf(name, sizeof name, "blocks.%zu.ln1.weight", s->n_layers);
    while (sl_tensors_find(t, name) && ++s->n_layers);
    s->vocab = get(s, "emb.weight")->shape[0];
    s->d = get(s, "emb.weight")->shape[1];
    s->h = get(s, "blocks.0.att.r_k")->shape[0];
    s->n = get(s, "blocks.0.att.r_k")->shape[1];
    s->d_ffn = get(s, "blocks.0.ffn.key.weight")->shape[0];
    s->state = zeros(s->n_layers * s->h * s->n * s->n);
    s->shifts = zeros(s->n_layers * 2 * s->d);
    return s;
}

void slow_close(struct slow *s)
{
    free(s->state);
    free(s->shifts);
    free(s);
}

void slow_begin(struct slow *s, const struct sl_tensors *tuned)
{
    struct slow file = {.t = tuned};
    size_t n = s->h * s->n * s->n;
    for (size_t layer = 0; layer < s->n_layers; layer++) {
        const struct sl_tensor *t = get(&file, "blocks.%zu.att.time_state", layer);
        for (size_t i = 0; i < n; i++)
            s->state[layer * n + i] = element(t, i);
    }
}

const double *slow_state(const struct slow *s, size_t layer)
{
    return s->state + layer * s->h * s->n * s->n;
}

const double *slow_shift(const struct slow *s, size_t layer, bool ffn)
{
    return s->shifts + (layer * 2 + ffn) * s->d;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void normalise(double *y, const double *x, const struct sl_tensor *w,
                      const struct sl_tensor *b, size_t first, size_t n, double eps)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(var + eps) * element(w, first + i) + element(b, first + i);
}

/* y = W x, W [n_out][n_in]. */
static double *apply(const struct sl_tensor *w, const double *x)
{
    double *y = zeros(w->shape[0]);
    for (size_t o = 0; o < w->shape[0]; o++)
        for (size_t i = 0; i < w->shape[1]; i++)
            y[o] += element(w, o * w->shape[1] + i) * x[i];
    return y;
}

/* y = x W, W [n_in][n_out]. */
static double *apply_right(const double *x, const struct sl_tensor *w)
{
    double *y = zeros(w->shape[1]);
    for (size_t i = 0; i < w->shape[0]; i++)
        for (size_t o = 0; o < w->shape[1]; o++)
            y[o] += x[i] * element(w, i * w->shape[1] + o);
    return y;
}

enum low_rank_form { NOTHING, TANH, SIGMOID };

/* inner(x W1) W2, then + bias and a sigmoid where there is one. */
static double *low_rank(const struct slow *s, size_t l, char letter, const double *x,
                        enum low_rank_form inner)
{
    const struct sl_tensor *w1 = get(s, "blocks.%zu.att.%c1", l, letter);
    double *mid = apply_right(x, w1);
    for (size_t i = 0; i < w1->shape[1]; i++)
        mid[i] = inner == TANH ? tanh(mid[i]) : inner == SIGMOID ? sigmoid(mid[i]) : mid[i];
    double *y = apply_right(mid, get(s, "blocks.%zu.att.%c2", l, letter));
    free(mid);
    if (letter == 'g')
        return y;
    const struct sl_tensor *bias = get(s, "blocks.%zu.att.%c0", l, letter);
    for (size_t i = 0; i < s->d; i++)
        y[i] = sigmoid(y[i] + element(bias, i));
    return y;
}

static double *mixed(const struct slow *s, const double *x, const double *prev,
                     const struct sl_tensor *m)
{
    double *y = zeros(s->d);
    for (size_t i = 0; i < s->d; i++)
        y[i] = x[i] + (prev[i] - x[i]) * element(m, i);
    return y;
}

/* One head: state update and what is read; everything points at the head's first channel. */
static void head_step(const struct slow *s, double *S, const double *w, const double *kappa,
                      const double *a, const double *key, const double *v, const double *r,
                      double *out)
{
    size_t n = s->n;
    double *kh = zeros(n), length = 0;
    for (size_t i = 0; i < n; i++)
        length += kappa[i] * kappa[i];
    for (size_t i = 0; i < n; i++)
        kh[i] = kappa[i] / fmax(sqrt(length), 1e-12);
    for (size_t i = 0; i < n; i++) {
        double *row = S + i * n, erased = 0;
        for (size_t j = 0; j < n; j++)
            erased += row[j] * kh[j];
        out[i] = 0;
        for (size_t j = 0; j < n; j++) {
            row[j] = row[j] * w[j] - erased * kh[j] * a[j] + v[i] * key[j];
            out[i] += row[j] * r[j];
        }
    }
    free(kh);
}

struct vectors {
    double *r, *w, *k, *v, *a, *g, *kappa, *key, *y;
};

static void heads(struct slow *s, size_t l, struct vectors *z)
{
    size_t n = s->n;
    const struct sl_tensor *r_k = get(s, "blocks.%zu.att.r_k", l);
    const struct sl_tensor *lw = get(s, "blocks.%zu.att.ln_x.weight", l);
    const struct sl_tensor *lb = get(s, "blocks.%zu.att.ln_x.bias", l);
    double *o = zeros(n);
    for (size_t h = 0; h < s->h; h++) {
        size_t c = h * n;
        head_step(s, s->state + (l * s->h + h) * n * n, z->w + c, z->kappa + c, z->a + c,
                  z->key + c, z->v + c, z->r + c, o);
        normalise(z->y + c, o, lw, lb, c, n, 64e-5);
        double bonus = 0;
        for (size_t i = 0; i < n; i++)
            bonus += z->r[c + i] * z->key[c + i] * element(r_k, c + i);
        for (size_t i = 0; i < n; i++)
            z->y[c + i] = (z->y[c + i] + bonus * z->v[c + i]) * z->g[c + i];
    }
    free(o);
}

static void time_mixing(struct slow *s, size_t l, double *x, double *v_first)
{
    size_t d = s->d;
    double *xx = zeros(d), *prev = s->shifts + l * 2 * d;
    normalise(xx, x, get(s, "blocks.%zu.ln1.weight", l), get(s, "blocks.%zu.ln1.bias", l), 0, d,
              1e-5);
    double *in[6];
    for (size_t i = 0; i < 6; i++)
        in[i] = mixed(s, xx, prev, get(s, "blocks.%zu.att.x_%c", l, "rwkvag"[i]));
    memcpy(prev, xx, d * sizeof *xx);
    struct vectors z = {
        .r = apply(get(s, "blocks.%zu.att.receptance.weight", l), in[0]),
        .w = low_rank(s, l, 'w', in[1], TANH),
        .k = apply(get(s, "blocks.%zu.att.key.weight", l), in[2]),
        .v = apply(get(s, "blocks.%zu.att.value.weight", l), in[3]),
        .a = low_rank(s, l, 'a', in[4], NOTHING),
        .g = low_rank(s, l, 'g', in[5], SIGMOID),
        .kappa = zeros(d),
        .key = zeros(d),
        .y = zeros(d),
    };
    double *gate = l ? low_rank(s, l, 'v', in[3], NOTHING) : zeros(d);
    const struct sl_tensor *k_k = get(s, "blocks.%zu.att.k_k", l);
    const struct sl_tensor *k_a = get(s, "blocks.%zu.att.k_a", l);
    for (size_t i = 0; i < d; i++) {
        z.w[i] = exp(-exp(-0.5) * z.w[i]);
        z.kappa[i] = z.k[i] * element(k_k, i);
        z.key[i] = z.k[i] * (1 + (z.a[i] - 1) * element(k_a, i));
        if (l == 0)
            v_first[i] = z.v[i];
        z.v[i] += (v_first[i] - z.v[i]) * gate[i];
    }
    heads(s, l, &z);
    double *y = apply(get(s, "blocks.%zu.att.output.weight", l), z.y);
    for (size_t i = 0; i < d; i++)
        x[i] += y[i];
    double *all[] = {xx,  z.r, z.w,  z.k,   z.v,   z.a,   z.g,   z.kappa, z.key,
                     z.y, y,   gate, in[0], in[1], in[2], in[3], in[4],   in[5]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void channel_mixing(struct slow *s, size_t l, double *x)
{
    size_t d = s->d;
    double *xx = zeros(d), *prev = s->shifts + (l * 2 + 1) * d;
    normalise(xx, x, get(s, "blocks.%zu.ln2.weight", l), get(s, "blocks.%zu.ln2.bias", l), 0, d,
              1e-5);
    double *in = mixed(s, xx, prev, get(s, "blocks.%zu.ffn.x_k", l));
    memcpy(prev, xx, d * sizeof *xx);
    double *k = apply(get(s, "blocks.%zu.ffn.key.weight", l), in);
    for (size_t i = 0; i < s->d_ffn; i++)
        k[i] = k[i] > 0 ? k[i] * k[i] : 0;
    double *y = apply(get(s, "blocks.%zu.ffn.value.weight", l), k);
    for (size_t i = 0; i < d; i++)
        x[i] += y[i];
    free(xx);
    free(in);
    free(k);
    free(y);
}

void slow_feed(struct slow *s, uint32_t token, double *logits)
{
    size_t d = s->d;
    double *e = zeros(d), *x = zeros(d), *v_first = zeros(d);
    for (size_t i = 0; i < d; i++)
        e[i] = element(get(s, "emb.weight"), token * d + i);
    normalise(x, e, get(s, "blocks.0.ln0.weight"), get(s, "blocks.0.ln0.bias"), 0, d, 1e-5);
    for (size_t l = 0; l < s->n_layers; l++) {
        time_mixing(s, l, x, v_first);
        channel_mixing(s, l, x);
    }
    if (logits) {
        normalise(e, x, get(s, "ln_out.weight"), get(s, "ln_out.bias"), 0, d, 1e-5);
        double *y = apply(get(s, "head.weight"), e);
        memcpy(logits, y, s->vocab * sizeof *y);
        free(y);
    }
    free(e);
    free(x);
    free(v_first);
}
