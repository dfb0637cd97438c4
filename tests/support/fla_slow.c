/* fla_slow.c: see fla_slow.h. Rows are tokens; [n][w] arrays are row after row. */
#include "tests/support/fla_slow_priv.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kernels/kernels.h"

/* --- reading --- */

double *slow_room(struct slow_model *m, size_t n)
{
    double *p = calloc(n ? n : 1, sizeof *p);
    if (!p || m->n_kept == KEPT_MAX)
        abort();
    return m->kept[m->n_kept++] = p;
}

static const struct sl_tensor *find(const struct slow_model *m, const char *fmt, va_list ap)
    SL_PRINTF(2, 0);

static const struct sl_tensor *find(const struct slow_model *m, const char *fmt, va_list ap)
{
    char name[128];
    (void)vsnprintf(name, sizeof name, fmt, ap);
    return sl_tensors_find(m->t, name);
}

bool slow_has(const struct slow_model *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool there = find(m, fmt, ap) != NULL;
    va_end(ap);
    return there;
}

/* A tensor's values; all of them, row-major. */
double *slow_get(struct slow_model *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const struct sl_tensor *t = find(m, fmt, ap);
    va_end(ap);
    if (!t) {
        fprintf(stderr, "fla_slow: no %s\n", fmt);
        abort();
    }
    double *v = slow_room(m, t->n_elements);
    float x;
    for (size_t i = 0; i < t->n_elements; i++) {
        sl_widen(&x, t->data + i * sl_dtype_size(t->dtype), t->dtype, 1);
        v[i] = (double)x;
    }
    return v;
}

static double number(const struct slow_model *m, const char *key, double absent)
{
    const struct sl_setting *s = sl_settings_find(m->t->settings, key);
    return s && s->kind == SL_SETTING_NUMBER ? s->number : absent;
}

size_t slow_size(const struct slow_model *m, const char *key, size_t absent)
{
    return (size_t)number(m, key, (double)absent);
}

bool slow_flag(const struct slow_model *m, const char *key, bool absent)
{
    const struct sl_setting *s = sl_settings_find(m->t->settings, key);
    return s && s->kind == SL_SETTING_BOOL ? s->flag : absent;
}

static bool is(const struct slow_model *m, const char *key, const char *absent, const char *what)
{
    const struct sl_setting *s = sl_settings_find(m->t->settings, key);
    return strcmp(s && s->kind == SL_SETTING_TEXT ? s->text : absent, what) == 0;
}

/* --- pieces --- */

static double silu(double x)
{
    return x / (1 + exp(-x));
}
double slow_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double softplus(double x)
{
    return log1p(exp(-fabs(x))) + fmax(x, 0);
}
static double relu(double x)
{
    return fmax(x, 0);
}
double slow_relu2(double x)
{
    return relu(x) * relu(x);
}
static double elu1(double x)
{
    return x > 0 ? x + 1 : exp(x);
}

void slow_map(double *x, size_t n, double (*f)(double))
{
    for (size_t i = 0; i < n; i++)
        x[i] = f(x[i]);
}

/* [n][rows] = x Wᵀ */
double *slow_times(struct slow_model *m, const double *x, const double *w, size_t rows, size_t cols)
{
    double *y = slow_room(m, m->n * rows);
    for (size_t t = 0; t < m->n; t++)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++)
                y[t * rows + r] += w[r * cols + c] * x[t * cols + c];
    return y;
}

/* One row; w or b NULL: none. */
static void rms(double *y, const double *x, const double *w, size_t n, double eps)
{
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += x[i] * x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(square + eps) * (w ? w[i] : 1);
}

void slow_layer_norm(double *y, const double *x, const double *w, const double *b, size_t n,
                     double eps)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + (b ? b[i] : 0);
}

/* y_t = b + Σ_j w[c][taps - 1 - j] x_{t-j}, whole sequence */
static double *convolve(struct slow_model *m, const double *x, const double *w, const double *b,
                        size_t d, size_t taps)
{
    double *y = slow_room(m, m->n * d);
    for (size_t t = 0; t < m->n; t++)
        for (size_t c = 0; c < d; c++) {
            y[t * d + c] = b ? b[c] : 0;
            for (size_t j = 0; j < taps && j <= t; j++)
                y[t * d + c] += w[c * taps + taps - 1 - j] * x[(t - j) * d + c];
        }
    return y;
}

/* A projection of the normalised rows, through its convolution where there is one. */
static double *project(struct slow_model *m, const double *x, size_t i, char letter, size_t d,
                       bool convolved)
{
    double *y = slow_times(m, x, slow_get(m, LAYER "%c_proj.weight", i, letter), d, m->d);
    if (convolved)
        y = convolve(m, y, slow_get(m, LAYER "%c_conv1d.weight", i, letter), NULL, d,
                     slow_size(m, "conv_size", 4));
    return y;
}

/* Norm and gate of each head, and the output's projection. */
static double *finish(struct slow_model *m, double *o, const double *x, size_t i, size_t heads,
                      size_t d_v, const double *w, bool gated)
{
    size_t d = heads * d_v;
    for (size_t h = 0; h < m->n * heads; h++)
        rms(o + h * d_v, o + h * d_v, w, d_v, m->eps);
    if (gated) {
        double *g = slow_times(m, x, slow_get(m, LAYER "g_proj.weight", i), d, m->d);
        for (size_t k = 0; k < m->n * d; k++)
            o[k] *= silu(g[k]);
    }
    return slow_times(m, o, slow_get(m, LAYER "o_proj.weight", i), m->d, d);
}

/* S [key][value]: s = diag(decay) s + k vᵀ, o = sᵀ q. decay NULL: 1. */
static void step(double *o, double *s, const double *decay, const double *k, const double *v,
                 const double *q, size_t n_k, size_t n_v)
{
    for (size_t c = 0; c < n_v; c++)
        o[c] = 0;
    for (size_t a = 0; a < n_k; a++)
        for (size_t c = 0; c < n_v; c++) {
            double *e = &s[a * n_v + c];
            *e = *e * (decay ? decay[a] : 1) + k[a] * v[c];
            o[c] += *e * q[a];
        }
}

/* What a key reads. */
static double recalled(const double *s, const double *k, size_t c, size_t n_k, size_t n_v)
{
    double sum = 0;
    for (size_t a = 0; a < n_k; a++)
        sum += s[a * n_v + c] * k[a];
    return sum;
}

/* --- the rules --- */

/* φ of all heads of x [n][heads · d] -> [n][heads · F] */
static double *features(struct slow_model *m, const double *x, size_t heads, size_t d, size_t i,
                        char letter, size_t *ret_f)
{
    const char *map_name = "elementwise_product";
    const struct sl_setting *s = sl_settings_find(m->t->settings, "feature_map");
    if (s && s->kind == SL_SETTING_TEXT)
        map_name = s->text;
    bool hedgehog = strcmp(map_name, "hedgehog") == 0;
    size_t f = *ret_f = hedgehog ? 2 * d : d;
    double *y = slow_room(m, m->n * heads * f);
    const double *w1 = NULL, *b1 = NULL, *w2 = NULL, *b2 = NULL;
    if (hedgehog) {
        if (!slow_has(m, LAYER "feature_map_%c.layer.weight", i, letter))
            letter = letter == 'q' ? 'k' : 'q'; /* tied */
        w1 = slow_get(m, LAYER "feature_map_%c.layer.weight", i, letter);
        b1 = slow_get(m, LAYER "feature_map_%c.layer.bias", i, letter);
    } else if (strcmp(map_name, "elementwise_product") == 0) {
        w1 = slow_get(m, LAYER "feature_map_%c.layer1.weight", i, letter);
        b1 = slow_get(m, LAYER "feature_map_%c.layer1.bias", i, letter);
        w2 = slow_get(m, LAYER "feature_map_%c.layer2.weight", i, letter);
        b2 = slow_get(m, LAYER "feature_map_%c.layer2.bias", i, letter);
    }
    for (size_t h = 0; h < m->n * heads; h++) {
        const double *in = x + h * d;
        double *out = y + h * f, total = 0;
        for (size_t r = 0; r < d; r++) {
            double one = w1 ? b1[r] : in[r], two = w2 ? b2[r] : 1;
            for (size_t c = 0; w1 && c < d; c++) {
                one += w1[r * d + c] * in[c];
                two += w2 ? w2[r * d + c] * in[c] : 0;
            }
            out[r] = one * two;
            if (hedgehog) {
                out[r] = exp(2 * one);
                out[d + r] = exp(-2 * one);
                total += out[r] + out[d + r];
            }
        }
        for (size_t r = 0; hedgehog && r < f; r++)
            out[r] /= total;
        if (strcmp(map_name, "elu") == 0)
            slow_map(out, f, elu1);
        if (strcmp(map_name, "relu") == 0)
            slow_map(out, f, relu);
        total = 0;
        for (size_t r = 0; r < f; r++)
            total += out[r];
        for (size_t r = 0; slow_flag(m, letter == 'q' ? "norm_q" : "norm_k", false) && r < f; r++)
            out[r] /= total + 1e-4;
    }
    return y;
}

static double *linear(struct slow_model *m, const double *x, size_t i)
{
    size_t heads = slow_size(m, "num_heads", 4), kv = slow_size(m, "num_kv_heads", heads), f;
    size_t d_k = (size_t)((double)m->d * number(m, "expand_k", 1)) / heads;
    size_t d_v = (size_t)((double)m->d * number(m, "expand_v", 1)) / heads;
    double *q = project(m, x, i, 'q', heads * d_k, false);
    double *k = project(m, x, i, 'k', kv * d_k, false);
    double *v = project(m, x, i, 'v', kv * d_v, false), *o = slow_room(m, m->n * heads * d_v);
    k = features(m, k, kv, d_k, i, 'k', &f);
    q = features(m, q, heads, d_k, i, 'q', &f);
    /* Each output from all keys before it: the quadratic form. */
    for (size_t t = 0; t < m->n; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t from = h / (heads / kv);
            double weight, total = 0, *out = o + (t * heads + h) * d_v;
            for (size_t u = 0; u <= t; u++) {
                weight = 0;
                for (size_t a = 0; a < f; a++)
                    weight += q[(t * heads + h) * f + a] * k[(u * kv + from) * f + a];
                weight /= sqrt((double)f);
                total += weight;
                for (size_t c = 0; c < d_v; c++)
                    out[c] += weight * v[(u * kv + from) * d_v + c];
            }
            for (size_t c = 0; slow_flag(m, "norm_feature_map", false) && c < d_v; c++)
                out[c] /= total + 1e-10;
        }
    return finish(m, o, x, i, heads, d_v,
                  slow_flag(m, "elementwise_affine", true) ? slow_get(m, LAYER "norm.weight", i)
                                                           : NULL,
                  false);
}

static void mapped(struct slow_model *m, double *x, size_t n, bool convolved, bool maps)
{
    if (convolved)
        slow_map(x, n, silu);
    if (maps && is(m, "feature_map", "", "relu"))
        slow_map(x, n, relu);
}

static void rotate(double *x, size_t t, size_t d)
{
    for (size_t a = 0; a < d / 2; a++) {
        double angle = (double)t * pow(10000, -2 * (double)a / (double)d), re = x[a];
        x[a] = re * cos(angle) - x[a + d / 2] * sin(angle);
        x[a + d / 2] = x[a + d / 2] * cos(angle) + re * sin(angle);
    }
}

/* RetNet and GLA, which differ in the decay and in the rotation. */
static double *decaying(struct slow_model *m, const double *x, size_t i)
{
    bool retnet = strcmp(m->type, "retnet") == 0, conv = slow_flag(m, "use_short_conv", false);
    size_t heads = slow_size(m, "num_heads", retnet ? 8 : 4),
           kv = slow_size(m, "num_kv_heads", heads);
    size_t d_k = (size_t)((double)m->d * number(m, "expand_k", retnet ? 1 : 0.5)) / heads;
    size_t d_v = (size_t)((double)m->d * number(m, "expand_v", retnet ? 2 : 1)) / heads;
    double *q = project(m, x, i, 'q', heads * d_k, conv),
           *k = project(m, x, i, 'k', kv * d_k, conv);
    double *v = project(m, x, i, 'v', kv * d_v, conv), *o = slow_room(m, m->n * heads * d_v);
    double *s = slow_room(m, heads * d_k * d_v), *decay = slow_room(m, m->n * kv * d_k);
    mapped(m, q, m->n * heads * d_k, conv, true);
    mapped(m, k, m->n * kv * d_k, conv, true);
    mapped(m, v, m->n * kv * d_v, conv, false);
    for (size_t h = 0; retnet && h < m->n * heads; h++)
        rotate(q + h * d_k, h / heads, d_k);
    for (size_t h = 0; retnet && h < m->n * kv; h++)
        rotate(k + h * d_k, h / kv, d_k);
    if (!retnet) {
        const double *b = slow_get(m, LAYER "gk_proj.1.bias", i);
        double *mid = slow_times(m, x, slow_get(m, LAYER "gk_proj.0.weight", i), 7, m->d);
        decay = slow_times(m, mid, slow_get(m, LAYER "gk_proj.1.weight", i), kv * d_k, 7);
        for (size_t a = 0; a < m->n * kv * d_k; a++)
            decay[a] = exp(fmax(log(slow_sigmoid(decay[a] + b[a % (kv * d_k)])) / 16,
                                number(m, "clamp_min", -1e9)));
    }
    for (size_t t = 0; t < m->n; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t from = t * kv + h / (heads / kv);
            double gamma[64], scaled[64];
            for (size_t a = 0; a < d_k; a++) {
                gamma[a] = retnet ? 1 - pow(2, -5 - (double)h) : decay[from * d_k + a];
                scaled[a] = q[(t * heads + h) * d_k + a] / sqrt((double)d_k);
            }
            step(o + (t * heads + h) * d_v, s + h * d_k * d_v, gamma, k + from * d_k,
                 v + from * d_v, scaled, d_k, d_v);
        }
    bool gated = slow_flag(m, "use_output_gate", true);
    return finish(m, o, x, i, heads, d_v,
                  gated ? slow_get(m, LAYER "g_norm_swish_gate.weight", i)
                        : slow_get(m, LAYER "g_norm.weight", i),
                  gated);
}

static void unit(double *x, size_t n, bool by_sum)
{
    double total = 0;
    for (size_t a = 0; a < n; a++)
        total += by_sum ? x[a] : x[a] * x[a];
    for (size_t a = 0; a < n; a++)
        x[a] /= by_sum ? total : sqrt(total + 1e-6);
}

/* DeltaNet, gated or not. */
static double *delta(struct slow_model *m, const double *x, size_t i)
{
    bool gated_rule = strcmp(m->type, "gated_deltanet") == 0,
         conv = slow_flag(m, "use_short_conv", true);
    size_t qk = slow_size(m, "num_heads", gated_rule ? 6 : 16);
    size_t heads = gated_rule ? slow_size(m, "num_v_heads", qk) : qk;
    size_t d_k = gated_rule ? slow_size(m, "head_dim", 256)
                            : (size_t)((double)m->d * number(m, "expand_k", 1)) / qk;
    size_t d_v = gated_rule ? (size_t)((double)d_k * number(m, "expand_v", 2))
                            : (size_t)((double)m->d * number(m, "expand_v", 1)) / qk;
    double *q = project(m, x, i, 'q', qk * d_k, conv), *k = project(m, x, i, 'k', qk * d_k, conv);
    double *v = project(m, x, i, 'v', heads * d_v, conv), *o = slow_room(m, m->n * heads * d_v);
    double *s = slow_room(m, heads * d_k * d_v), *u = slow_room(m, d_v), *b = NULL, *a = NULL,
           *dt = NULL;
    double (*act)(double) = gated_rule || is(m, "qk_activation", "silu", "silu") ? silu
                            : is(m, "qk_activation", "silu", "elu")              ? elu1
                                                                                 : relu;
    slow_map(q, m->n * qk * d_k, act);
    slow_map(k, m->n * qk * d_k, act);
    slow_map(v, m->n * heads * d_v, silu);
    for (size_t h = 0; h < m->n * qk; h++) {
        unit(q + h * d_k, d_k, is(m, "qk_norm", "l2", "sum"));
        unit(k + h * d_k, d_k, is(m, "qk_norm", "l2", "sum"));
    }
    if (slow_flag(m, "use_beta", true))
        b = slow_times(m, x, slow_get(m, LAYER "b_proj.weight", i), heads, m->d);
    if (gated_rule) {
        a = slow_times(m, x, slow_get(m, LAYER "a_proj.weight", i), heads, m->d);
        dt = slow_get(m, LAYER "dt_bias", i);
    }
    const double *rate = gated_rule ? slow_get(m, LAYER "A_log", i) : NULL;
    for (size_t t = 0; t < m->n; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t from = t * qk + h / (heads / qk);
            double *state = s + h * d_k * d_v, scaled[64];
            double beta = (b ? slow_sigmoid(b[t * heads + h]) : 1) *
                          (slow_flag(m, "allow_neg_eigval", false) ? 2 : 1);
            double alpha = gated_rule ? exp(-exp(rate[h]) * softplus(a[t * heads + h] + dt[h])) : 1;
            for (size_t e = 0; e < d_k * d_v; e++)
                state[e] *= alpha;
            for (size_t c = 0; c < d_v; c++)
                u[c] = beta * (v[(t * heads + h) * d_v + c] -
                               recalled(state, k + from * d_k, c, d_k, d_v));
            for (size_t e = 0; e < d_k; e++)
                scaled[e] = q[from * d_k + e] / sqrt((double)d_k);
            step(o + (t * heads + h) * d_v, state, NULL, k + from * d_k, u, scaled, d_k, d_v);
        }
    return finish(m, o, x, i, heads, d_v, slow_get(m, LAYER "o_norm.weight", i),
                  slow_flag(m, "use_gate", gated_rule));
}

#define MIXER "backbone.layers.%zu.mixer."

static double *mamba2(struct slow_model *m, const double *x, size_t i)
{
    size_t inner = (size_t)((double)m->d * number(m, "expand", 2)),
           p = slow_size(m, "head_dim", 64);
    size_t heads = inner / p, ns = slow_size(m, "state_size", 128),
           groups = slow_size(m, "n_groups", 1);
    size_t n_conv = inner + 2 * groups * ns, n_in = inner + n_conv + heads;
    bool bias = slow_flag(m, "use_bias", false), conv_bias = slow_flag(m, "use_conv_bias", true);
    double *in = slow_times(m, x, slow_get(m, MIXER "in_proj.weight", i), n_in, m->d);
    const double *in_bias = bias ? slow_get(m, MIXER "in_proj.bias", i) : NULL;
    const double *a = slow_get(m, MIXER "A_log", i), *dt_bias = slow_get(m, MIXER "dt_bias", i);
    const double *skip = slow_get(m, MIXER "D", i);
    double *xbc = slow_room(m, m->n * n_conv), *y = slow_room(m, m->n * inner),
           *s = slow_room(m, heads * p * ns);
    for (size_t e = 0; bias && e < m->n * n_in; e++)
        in[e] += in_bias[e % n_in];
    for (size_t t = 0; t < m->n; t++)
        memcpy(xbc + t * n_conv, in + t * n_in + inner, n_conv * sizeof *xbc);
    xbc = convolve(m, xbc, slow_get(m, MIXER "conv1d.weight", i),
                   conv_bias ? slow_get(m, MIXER "conv1d.bias", i) : NULL, n_conv, 4);
    slow_map(xbc, m->n * n_conv, silu);
    double lo = number(m, "dt_limit.0", 0), hi = number(m, "dt_limit.1", (double)INFINITY);
    for (size_t t = 0; t < m->n; t++)
        for (size_t h = 0; h < heads; h++) {
            const double *row = xbc + t * n_conv, *xs = row + h * p;
            const double *b = row + inner + h / (heads / groups) * ns, *c = b + groups * ns;
            double dt = softplus(in[t * n_in + inner + n_conv + h] + dt_bias[h]);
            dt = fmin(fmax(dt, lo), hi);
            for (size_t r = 0; r < p; r++) {
                double sum = 0, d = slow_flag(m, "D_has_hdim", false) ? skip[h * p + r] : skip[h];
                for (size_t e = 0; e < ns; e++) {
                    double *cell = &s[(h * p + r) * ns + e];
                    *cell = *cell * exp(-exp(a[h]) * dt) + dt * b[e] * xs[r];
                    sum += *cell * c[e];
                }
                y[t * inner + h * p + r] = sum + d * xs[r];
            }
        }
    bool norm = slow_flag(m, "rmsnorm", true),
         first = norm && slow_flag(m, "norm_before_gate", false);
    const double *w = norm ? slow_get(m, MIXER "norm.weight", i) : NULL;
    for (size_t t = 0; t < m->n; t++) {
        double *row = y + t * inner;
        for (size_t e = 0; !first && e < inner; e++)
            row[e] *= silu(in[t * n_in + e]);
        for (size_t g = 0; norm && g < groups; g++)
            rms(row + g * inner / groups, row + g * inner / groups, w + g * inner / groups,
                inner / groups, m->eps);
        for (size_t e = 0; first && e < inner; e++)
            row[e] *= silu(in[t * n_in + e]);
    }
    double *out = slow_times(m, y, slow_get(m, MIXER "out_proj.weight", i), m->d, inner);
    const double *out_bias = bias ? slow_get(m, MIXER "out_proj.bias", i) : NULL;
    for (size_t e = 0; bias && e < m->n * m->d; e++)
        out[e] += out_bias[e % m->d];
    return out;
}

/* --- models --- */

static double *feed_forward(struct slow_model *m, const double *x, size_t i)
{
    size_t n = slow_size(m, "intermediate_size", 0);
    double *both = slow_get(m, "model.layers.%zu.mlp.gate_proj.weight", i), *up = both + n * m->d;
    if (slow_has(m, "model.layers.%zu.mlp.up_proj.weight", i))
        up = slow_get(m, "model.layers.%zu.mlp.up_proj.weight", i);
    double *g = slow_times(m, x, both, n, m->d), *u = slow_times(m, x, up, n, m->d);
    for (size_t e = 0; e < m->n * n; e++)
        g[e] = silu(g[e]) * u[e];
    return slow_times(m, g, slow_get(m, "model.layers.%zu.mlp.down_proj.weight", i), m->d, n);
}

static double *normalised(struct slow_model *m, const double *x, const double *w)
{
    double *y = slow_room(m, m->n * m->d);
    for (size_t t = 0; t < m->n; t++)
        rms(y + t * m->d, x + t * m->d, w, m->d, m->eps);
    return y;
}

void slow_add(double *x, const double *y, size_t n)
{
    for (size_t e = 0; e < n; e++)
        x[e] += y[e];
}

static void run_layer(struct slow_model *m, double *x, size_t i)
{
    static const struct {
        const char *type;
        double *(*f)(struct slow_model *m, const double *x, size_t i);
    } rules[] = {{"linear_attn", linear}, {"retnet", decaying},      {"gla", decaying},
                 {"delta_net", delta},    {"gated_deltanet", delta}, {"mamba2", mamba2}};
    bool alone = strcmp(m->type, "mamba2") == 0;
    const double *w = alone ? slow_get(m, "backbone.layers.%zu.norm.weight", i)
                            : slow_get(m, "model.layers.%zu.attn_norm.weight", i);
    size_t k = 0;
    while (k < sizeof rules / sizeof *rules && strcmp(rules[k].type, m->type) != 0)
        k++;
    if (k == sizeof rules / sizeof *rules)
        abort();
    slow_add(x, rules[k].f(m, normalised(m, x, w), i), m->n * m->d);
    if (!alone)
        slow_add(x,
                 feed_forward(
                     m, normalised(m, x, slow_get(m, "model.layers.%zu.mlp_norm.weight", i)), i),
                 m->n * m->d);
}

/* --- all of it --- */

double *fla_slow(const struct sl_tensors *t, const uint32_t *tokens, size_t n, size_t *ret_vocab)
{
    struct slow_model *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->t = t, m->n = n;
    m->type = sl_settings_find(t->settings, "model_type")->text;
    bool mamba = strcmp(m->type, "mamba2") == 0, rwkv = strcmp(m->type, "rwkv7") == 0;
    const char *names = mamba ? "backbone" : "model";
    m->d = slow_size(m, "hidden_size", 2048);
    m->eps = number(m, "norm_eps", mamba || rwkv ? 1e-5 : 1e-6);
    size_t vocab = *ret_vocab = slow_size(m, "vocab_size", 32000);
    const double *embedding = slow_get(m, "%s.embeddings.weight", names);
    double *x = slow_room(m, n * m->d), *v_first = NULL;
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * m->d, embedding + tokens[i] * m->d, m->d * sizeof *x);
    if (rwkv && slow_flag(m, "norm_first", true))
        x = slow_layer_normed(m, x, "pre_norm", 0);
    for (size_t i = 0; i < slow_size(m, "num_hidden_layers", 24); i++) {
        if (rwkv)
            slow_rwkv7_layer(m, x, i, &v_first);
        else
            run_layer(m, x, i);
    }
    const double *w = slow_get(m, mamba ? "%s.norm_f.weight" : "%s.norm.weight", names);
    const double *b =
        rwkv && slow_has(m, "model.norm.bias") ? slow_get(m, "model.norm.bias") : NULL;
    for (size_t i = 0; i < n; i++) {
        if (rwkv)
            slow_layer_norm(x + i * m->d, x + i * m->d, w, b, m->d, m->eps);
        else
            rms(x + i * m->d, x + i * m->d, w, m->d, m->eps);
    }
    bool tied = slow_flag(m, "tie_word_embeddings", false);
    double *logits =
        slow_times(m, x, tied ? embedding : slow_get(m, "lm_head.weight"), vocab, m->d);
    double *ret = malloc(n * vocab * sizeof *ret);
    if (!ret)
        abort();
    memcpy(ret, logits, n * vocab * sizeof *ret);
    for (size_t i = 0; i < m->n_kept; i++)
        free(m->kept[i]);
    free(m);
    return ret;
}
