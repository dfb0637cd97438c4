/* performer_slow.c: see rules_slow.h. FAVOR+ as attention over all tokens so far: weights
 * φ(q_t)·φ(k_s), every one of them worked out anew for each t, since the stabiliser of the keys
 * moves with t (Choromanski 2021, arXiv:2009.14794, and performer-pytorch's constants). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fla_slow_priv.h"
#include "tests/support/rules_slow.h"

#define NET "performer.net.layers.%zu."

struct performer {
    struct slow_model m;
    bool relu, plain; /* the kernel; no stabiliser */
    size_t i;         /* the layer at work */
};

static double *tensor(struct performer *p, const char *name)
{
    return slow_get(&p->m, NET "%s", p->i, name);
}

/* x Wᵀ + b; b is optional. */
static double *linear(struct performer *p, const double *x, const char *name, size_t rows,
                      size_t cols)
{
    char full[48];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    double *y = slow_times(&p->m, x, tensor(p, full), rows, cols);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    if (!slow_has(&p->m, NET "%s", p->i, full))
        return y;
    const double *b = tensor(p, full);
    for (size_t j = 0; j < p->m.n * rows; j++)
        y[j] += b[j % rows];
    return y;
}

static double *normed(struct performer *p, const double *x, const char *name)
{
    char full[48];
    size_t d = p->m.d;
    double *y = slow_room(&p->m, p->m.n * d);
    (void)snprintf(full, sizeof full, "%s.weight", name);
    const double *w = tensor(p, full);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    const double *b = tensor(p, full);
    for (size_t t = 0; t < p->m.n; t++)
        slow_layer_norm(y + t * d, x + t * d, w, b, d, 1e-5);
    return y;
}

/* Neighbours as points in the plane. */
static void rotate(struct performer *p, double *x, size_t width, size_t size)
{
    if (!slow_has(&p->m, "layer_pos_emb.emb"))
        return;
    const double *table = slow_get(&p->m, "layer_pos_emb.emb");
    for (size_t t = 0; t < p->m.n; t++)
        for (size_t j = 0; j < width; j += 2) {
            const double *row = table + t * size;
            size_t c = j % size / 2;
            double s = row[c], co = row[size / 2 + c], a = x[t * width + j],
                   b = x[t * width + j + 1];
            x[t * width + j] = a * co - b * s;
            x[t * width + j + 1] = b * co + a * s;
        }
}

/* W x' in ret; |x'|²/2 is returned. */
static double dash(const double *x, const double *w, size_t size, size_t m, double *ret)
{
    double half = 0, scale = pow((double)size, -0.25);
    for (size_t c = 0; c < size; c++)
        half += x[c] * x[c] * scale * scale / 2;
    for (size_t f = 0; f < m; f++) {
        ret[f] = 0;
        for (size_t c = 0; c < size; c++)
            ret[f] += w[f * size + c] * x[c] * scale;
    }
    return half;
}

static double feature(const struct performer *p, double dashed, double half, double less, size_t m)
{
    if (p->relu)
        return fmax(dashed, 0) + 1e-3;
    return (exp(dashed - half - less) + 1e-4) / sqrt((double)m);
}

static double largest(const double *x, size_t n)
{
    double most = x[0];
    for (size_t i = 1; i < n; i++)
        most = fmax(most, x[i]);
    return most;
}

/* One head; o is [n][width] and gets its channels. */
static void attend_head(struct performer *p, const double *q, const double *k, const double *v,
                        const double *w, size_t size, size_t m, size_t width, double *o)
{
    size_t n = p->m.n;
    double *dashed = slow_room(&p->m, n * m), *half = slow_room(&p->m, n);
    double *fq = slow_room(&p->m, m), so_far = -INFINITY;
    for (size_t t = 0; t < n; t++) {
        double q_half = dash(q + t * width, w, size, m, fq), below = 0;
        half[t] = dash(k + t * width, w, size, m, dashed + t * m);
        so_far = fmax(so_far, largest(dashed + t * m, m));
        double most = largest(fq, m);
        for (size_t f = 0; f < m; f++) {
            fq[f] = feature(p, fq[f], q_half, most, m);
            below += fq[f] * 1e-6;
        }
        for (size_t s = 0; s <= t; s++) {
            double weight = 0;
            for (size_t f = 0; f < m; f++)
                weight += fq[f] * feature(p, dashed[s * m + f], half[s], p->plain ? 0 : so_far, m);
            below += weight;
            for (size_t c = 0; c < size; c++)
                o[t * width + c] += weight * v[s * width + c];
        }
        for (size_t c = 0; c < size; c++)
            o[t * width + c] /= below;
    }
}

static void attend(struct performer *p, double *x)
{
    char name[80];
    (void)snprintf(name, sizeof name, NET "0.fn.fast_attention.projection_matrix", p->i);
    const struct sl_tensor *proj = sl_tensors_find(p->m.t, name);
    size_t m = proj->shape[0], size = proj->shape[1], d = p->m.d;
    (void)snprintf(name, sizeof name, NET "0.fn.to_q.weight", p->i);
    size_t width = sl_tensors_find(p->m.t, name)->shape[0];
    const double *z = normed(p, x, "0.norm");
    double *q = linear(p, z, "0.fn.to_q", width, d), *k = linear(p, z, "0.fn.to_k", width, d);
    double *v = linear(p, z, "0.fn.to_v", width, d), *o = slow_room(&p->m, p->m.n * width);
    const double *w = tensor(p, "0.fn.fast_attention.projection_matrix");
    rotate(p, q, width, size);
    rotate(p, k, width, size);
    for (size_t h = 0; h < width; h += size)
        attend_head(p, q + h, k + h, v + h, w, size, m, width, o + h);
    slow_add(x, linear(p, o, "0.fn.to_out", d, width), p->m.n * d);
}

static double gelu(double x)
{
    return x * erfc(-x / sqrt(2)) / 2;
}

double *performer_slow(const struct sl_tensors *t, const char *rule, const uint32_t *tokens,
                       size_t n, size_t *ret_vocab)
{
    const struct sl_tensor *emb = sl_tensors_find(t, "token_emb.weight");
    struct performer p = {.m = {.t = t, .n = n, .d = emb->shape[1]}};
    size_t d = p.m.d, vocab = *ret_vocab = emb->shape[0];
    p.relu = rule && strcmp(rule, "kernel=relu") == 0;
    p.plain = rule && strcmp(rule, "stabiliser=none") == 0;
    bool learned = slow_has(&p.m, "pos_emb.emb.weight");
    const double *table = slow_get(&p.m, "token_emb.weight");
    const double *positions = slow_get(&p.m, learned ? "pos_emb.emb.weight" : "pos_emb.emb");
    double *x = slow_room(&p.m, n * d), *logits = malloc(n * vocab * sizeof *logits);
    if (!logits)
        abort();
    for (size_t j = 0; j < n * d; j++)
        x[j] = table[tokens[j / d] * d + j % d] + positions[j];
    for (; slow_has(&p.m, NET "0.norm.weight", p.i); p.i++) {
        attend(&p, x);
        const double *z = normed(&p, x, "1.norm");
        char name[80];
        (void)snprintf(name, sizeof name, NET "1.fn.fn.w1.weight", p.i);
        size_t wide = sl_tensors_find(t, name)->shape[0];
        double *y = linear(&p, z, "1.fn.fn.w1", wide, d);
        slow_map(y, n * wide, gelu);
        slow_add(x, linear(&p, y, "1.fn.fn.w2", d, wide), n * d);
    }
    const double *w = slow_get(&p.m, "norm.weight"), *b = slow_get(&p.m, "norm.bias");
    for (size_t i = 0; i < n; i++)
        slow_layer_norm(x + i * d, x + i * d, w, b, d, 1e-5);
    const double *y = slow_times(&p.m, x, slow_get(&p.m, "to_out.weight"), vocab, d);
    const double *bias = slow_get(&p.m, "to_out.bias");
    for (size_t j = 0; j < n * vocab; j++)
        logits[j] = y[j] + bias[j % vocab];
    for (size_t i = 0; i < p.m.n_kept; i++)
        free(p.m.kept[i]);
    return logits;
}
