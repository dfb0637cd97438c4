/* rwkv_slow.c: see rules_slow.h. RWKV-4: Peng 2023, arXiv:2305.13048, equations 11 to 18; RWKV-5
 * and 6: Peng 2024, arXiv:2404.05892, section 4; what the papers leave open: BlinkDL's model code.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fla_slow_priv.h"
#include "tests/support/rules_slow.h"

struct rwkv {
    struct slow_model m;
    int version; /* 4, 5, 6 */
    double eps_ln_x;
    size_t i;                       /* the layer at work */
    const struct sl_tensors *tuned; /* what the memory holds at first; NULL: nothing */
};

static double *tensor(struct rwkv *r, const char *name)
{
    return slow_get(&r->m, "blocks.%zu.%s", r->i, name);
}

static double *normed(struct rwkv *r, const double *x, const char *name)
{
    char full[32];
    size_t d = r->m.d;
    double *y = slow_room(&r->m, r->m.n * d);
    (void)snprintf(full, sizeof full, "%s.weight", name);
    double *w = tensor(r, full);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    double *b = tensor(r, full);
    for (size_t t = 0; t < r->m.n; t++)
        slow_layer_norm(y + t * d, x + t * d, w, b, d, 1e-5);
    return y;
}

/* The row before, zeros before the first. */
static double before(const struct rwkv *r, const double *x, size_t t, size_t c)
{
    return t > 0 ? x[(t - 1) * r->m.d + c] : 0;
}

/* "att" or "ffn"; the letter's input. */
static double *mixed(struct rwkv *r, const double *x, const char *part, char letter)
{
    char name[32];
    size_t d = r->m.d;
    double *y = slow_room(&r->m, r->m.n * d);
    (void)snprintf(name, sizeof name, "%s.time_%s_%c", part, r->version < 6 ? "mix" : "maa",
                   letter);
    const double *m = tensor(r, name);
    for (size_t t = 0; t < r->m.n; t++)
        for (size_t c = 0; c < d; c++) {
            double now = x[t * d + c], old = before(r, x, t, c);
            y[t * d + c] =
                r->version < 6 ? now * m[c] + old * (1 - m[c]) : now + (old - now) * m[c];
        }
    return y;
}

/* RWKV-6: the share of the row before is the token's own. */
static double *mixed6(struct rwkv *r, const double *x, char letter)
{
    static const char order[] = "wkvrg";
    char name[32];
    size_t d = r->m.d, n = r->m.n, which = (size_t)(strchr(order, letter) - order);
    const double *w1 = tensor(r, "att.time_maa_w1"), *w2 = tensor(r, "att.time_maa_w2");
    const double *in = mixed(r, x, "att", 'x');
    (void)snprintf(name, sizeof name, "att.time_maa_%c", letter);
    const double *m = tensor(r, name);
    size_t rank = sl_tensors_find(r->m.t, "blocks.0.att.time_maa_w2")->shape[1];
    double *y = slow_room(&r->m, n * d);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < d; c++) {
            double share = m[c], now = x[t * d + c];
            for (size_t j = 0; j < rank; j++) {
                double s = 0;
                for (size_t k = 0; k < d; k++)
                    s += in[t * d + k] * w1[k * 5 * rank + which * rank + j];
                share += tanh(s) * w2[(which * rank + j) * d + c];
            }
            y[t * d + c] = now + (before(r, x, t, c) - now) * share;
        }
    return y;
}

static double *projected(struct rwkv *r, const double *x, char letter, const char *name)
{
    const double *in = r->version == 6 ? mixed6(r, x, letter) : mixed(r, x, "att", letter);
    return slow_times(&r->m, in, tensor(r, name), r->m.d, r->m.d);
}

/* Equation 16, as it stands. */
static double *wkv4(struct rwkv *r, const double *k, const double *v)
{
    size_t d = r->m.d, n = r->m.n;
    const double *decay = tensor(r, "att.time_decay"), *u = tensor(r, "att.time_first");
    double *y = slow_room(&r->m, n * d);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < d; c++) {
            double e = exp(u[c] + k[t * d + c]), above = e * v[t * d + c], below = e;
            for (size_t s = 0; s < t; s++) {
                e = exp(-(double)(t - 1 - s) * exp(decay[c]) + k[s * d + c]);
                above += e * v[s * d + c];
                below += e;
            }
            y[t * d + c] = above / below;
        }
    return y;
}

/* exp(-exp(time_decay)) for each token and channel. */
static double *decays(struct rwkv *r, const double *x, size_t size)
{
    size_t d = r->m.d, n = r->m.n, rank = 0;
    const double *base = tensor(r, "att.time_decay"), *w1 = NULL, *w2 = NULL, *in = NULL;
    size_t n_base = sl_tensors_find(r->m.t, "blocks.0.att.time_decay")->n_elements;
    if (r->version == 6) {
        w1 = tensor(r, "att.time_decay_w1"), w2 = tensor(r, "att.time_decay_w2");
        rank = sl_tensors_find(r->m.t, "blocks.0.att.time_decay_w1")->shape[1];
        in = mixed6(r, x, 'w');
    }
    double *y = slow_room(&r->m, n * d);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < d; c++) {
            double w = base[n_base == d ? c : c / size];
            for (size_t j = 0; j < rank; j++) {
                double s = 0;
                for (size_t k = 0; k < d; k++)
                    s += in[t * d + k] * w1[k * rank + j];
                w += tanh(s) * w2[j * d + c];
            }
            y[t * d + c] = exp(-exp(w));
        }
    return y;
}

/* o_t = Σ_{s<t} (Π_{s<j<t} w_j) ⊙ k_s · r_t v_s, and the token itself with the bonus. */
static double *wkv56(struct rwkv *r, const double *x, const double *k, const double *v,
                     const double *q, size_t size)
{
    size_t d = r->m.d, n = r->m.n;
    bool faaaa = slow_has(&r->m, "blocks.%zu.att.time_faaaa", r->i);
    const double *u = tensor(r, faaaa ? "att.time_faaaa" : "att.time_first");
    const double *w = decays(r, x, size);
    size_t n_u =
        sl_tensors_find(r->m.t, faaaa ? "blocks.0.att.time_faaaa" : "blocks.0.att.time_first")
            ->n_elements;
    double *y = slow_room(&r->m, n * d), *first = NULL; /* [head][value][key] */
    struct slow_model file = {.t = r->tuned};
    if (r->tuned)
        first = slow_get(&file, "blocks.%zu.att.time_state", r->i);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < d; c++) { /* channel c of keys */
            double left = 1, bonus = u[n_u == d ? c : c / size];
            bonus = faaaa || n_u == d ? bonus : exp(bonus);
            for (size_t s = t + 1; s-- > 0;) {
                double weight = q[t * d + c] * k[s * d + c] * (s == t ? bonus : left);
                for (size_t j = 0; j < size; j++) /* values of the same head */
                    y[t * d + c / size * size + j] += weight * v[s * d + c / size * size + j];
                if (s < t)
                    left *= w[s * d + c];
            }
            /* What was there before all tokens has faded like a token before the first. */
            for (size_t j = 0; first && j < size; j++)
                y[t * d + c / size * size + j] +=
                    q[t * d + c] * left * first[(c / size * size + j) * size + c % size];
        }
    free(first);
    return y;
}

static void attend(struct rwkv *r, double *x)
{
    size_t d = r->m.d, n = r->m.n;
    const double *z = normed(r, x, "ln1");
    const double *k = projected(r, z, 'k', "att.key.weight");
    const double *v = projected(r, z, 'v', "att.value.weight");
    double *q = projected(r, z, 'r', "att.receptance.weight"), *y;
    if (r->version == 4) {
        slow_map(q, n * d, slow_sigmoid);
        y = wkv4(r, k, v);
        for (size_t j = 0; j < n * d; j++)
            y[j] *= q[j];
    } else {
        const char *heads = slow_has(&r->m, "blocks.0.att.time_faaaa") ? "blocks.0.att.time_faaaa"
                                                                       : "blocks.0.att.time_first";
        size_t size = d / sl_tensors_find(r->m.t, heads)->shape[0];
        const double *w = tensor(r, "att.ln_x.weight"), *b = tensor(r, "att.ln_x.bias");
        y = wkv56(r, z, k, v, q, size);
        for (size_t j = 0; j < n * d; j += size)
            slow_layer_norm(y + j, y + j, w + j % d, b + j % d, size, r->eps_ln_x);
        if (slow_has(&r->m, "blocks.0.att.gate.weight")) {
            const double *g = projected(r, z, 'g', "att.gate.weight");
            for (size_t j = 0; j < n * d; j++)
                y[j] *= g[j] * slow_sigmoid(g[j]);
        }
    }
    slow_add(x, slow_times(&r->m, y, tensor(r, "att.output.weight"), d, d), n * d);
}

static void feed(struct rwkv *r, double *x)
{
    size_t d = r->m.d, n = r->m.n;
    size_t wide = sl_tensors_find(r->m.t, "blocks.0.ffn.key.weight")->shape[0];
    const double *z = normed(r, x, "ln2");
    double *k = slow_times(&r->m, mixed(r, z, "ffn", 'k'), tensor(r, "ffn.key.weight"), wide, d);
    double *g =
        slow_times(&r->m, mixed(r, z, "ffn", 'r'), tensor(r, "ffn.receptance.weight"), d, d);
    slow_map(k, n * wide, slow_relu2);
    slow_map(g, n * d, slow_sigmoid);
    const double *y = slow_times(&r->m, k, tensor(r, "ffn.value.weight"), d, wide);
    for (size_t j = 0; j < n * d; j++)
        x[j] += g[j] * y[j];
}

double *rwkv_slow(const struct sl_tensors *t, const char *rule, const uint32_t *tokens, size_t n,
                  size_t *ret_vocab)
{
    return rwkv_slow_from(t, NULL, rule, tokens, n, ret_vocab);
}

double *rwkv_slow_from(const struct sl_tensors *t, const struct sl_tensors *tuned, const char *rule,
                       const uint32_t *tokens, size_t n, size_t *ret_vocab)
{
    const struct sl_tensor *emb = sl_tensors_find(t, "emb.weight");
    struct rwkv r = {.m = {.t = t, .n = n, .d = emb->shape[1]}, .tuned = tuned};
    size_t d = r.m.d, vocab = *ret_vocab = emb->shape[0];
    r.version = sl_tensors_find(t, "blocks.0.att.time_maa_x")    ? 6
                : sl_tensors_find(t, "blocks.0.att.ln_x.weight") ? 5
                                                                 : 4;
    r.eps_ln_x = rule && strcmp(rule, "ln_x_eps=1e-5") == 0 ? 1e-5 : 64e-5;
    const double *table = slow_get(&r.m, "emb.weight");
    double *x = slow_room(&r.m, n * d), *logits = malloc(n * vocab * sizeof *logits);
    if (!logits)
        abort();
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * d, table + tokens[i] * d, d * sizeof *x);
    x = normed(&r, x, "ln0");
    for (; slow_has(&r.m, "blocks.%zu.ln1.weight", r.i); r.i++) {
        attend(&r, x);
        feed(&r, x);
    }
    const double *w = slow_get(&r.m, "ln_out.weight"), *b = slow_get(&r.m, "ln_out.bias");
    for (size_t i = 0; i < n; i++)
        slow_layer_norm(x + i * d, x + i * d, w, b, d, 1e-5);
    const double *y = slow_times(&r.m, x, slow_get(&r.m, "head.weight"), vocab, d);
    memcpy(logits, y, n * vocab * sizeof *logits);
    for (size_t i = 0; i < r.m.n_kept; i++)
        free(r.m.kept[i]);
    return logits;
}
