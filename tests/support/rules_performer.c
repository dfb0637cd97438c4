/* rules_performer.c: performer-pytorch's models for rules.c's table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/rules_priv.h"

/* The model's width, that of all heads, of one, features, positions. */
enum { LAYERS = 2, D = 40, INNER = 48, N = 12, FEATURES = 21, FFN = 72, VOCAB = 300, LENGTH = 150 };

#define NET "performer.net.layers."
#define TWIN "performer.proj_updater.instance.layers."

static void grid(struct seeded *s, size_t rows, size_t cols, double spread, const char *name)
{
    seeded_add(s, SL_DTYPE_F32, 2, (size_t[]){rows, cols}, 0, spread, name);
}

static void vec(struct seeded *s, size_t n, double mean, double spread, const char *name)
{
    seeded_add(s, SL_DTYPE_F32, 1, &n, mean, spread, name);
}

static const char *in_layer(size_t i, const char *name)
{
    static char full[64];
    (void)snprintf(full, sizeof full, NET "%zu.%s", i, name);
    return full;
}

static void mat(struct seeded *s, size_t rows, size_t cols, double gain, size_t i, const char *name)
{
    grid(s, rows, cols, gain / sqrt((double)cols), in_layer(i, name));
}

static void layer(struct seeded *s, size_t i, bool biases)
{
    for (size_t k = 0; k < 2; k++) {
        vec(s, D, 1, 0.1, in_layer(i, k ? "1.norm.weight" : "0.norm.weight"));
        vec(s, D, 0, 0.05, in_layer(i, k ? "1.norm.bias" : "0.norm.bias"));
    }
    mat(s, INNER, D, 1, i, "0.fn.to_q.weight");
    mat(s, INNER, D, 1, i, "0.fn.to_k.weight");
    mat(s, INNER, D, 1, i, "0.fn.to_v.weight");
    mat(s, D, INNER, 0.5, i, "0.fn.to_out.weight");
    grid(s, FEATURES, N, 1, in_layer(i, "0.fn.fast_attention.projection_matrix"));
    if (biases) {
        vec(s, INNER, 0, 0.2, in_layer(i, "0.fn.to_q.bias"));
        vec(s, INNER, 0, 0.2, in_layer(i, "0.fn.to_k.bias"));
        vec(s, INNER, 0, 0.2, in_layer(i, "0.fn.to_v.bias"));
        vec(s, D, 0, 0.2, in_layer(i, "0.fn.to_out.bias"));
    }
    mat(s, FFN, D, 1, i, "1.fn.fn.w1.weight");
    vec(s, FFN, 0, 0.1, in_layer(i, "1.fn.fn.w1.bias"));
    mat(s, D, FFN, 0.5, i, "1.fn.fn.w2.weight");
    vec(s, D, 0, 0.1, in_layer(i, "1.fn.fn.w2.bias"));
}

static void performer(struct seeded *s, bool more)
{
    *s = (struct seeded){.seed = 41};
    grid(s, VOCAB, D, 1, "token_emb.weight");
    grid(s, LENGTH, D, 0.7, more ? "pos_emb.emb.weight" : "pos_emb.emb");
    for (size_t i = 0; i < LAYERS; i++)
        layer(s, i, more);
    vec(s, D, 1, 0.1, "norm.weight");
    vec(s, D, 0, 0.05, "norm.bias");
    if (!more)
        grid(s, LENGTH, N, 0.7, "layer_pos_emb.emb");
    grid(s, VOCAB, D, 2 / sqrt(D), "to_out.weight");
    vec(s, VOCAB, 0, 0.3, "to_out.bias");
}

void rules_performer(struct seeded *s)
{
    performer(s, false);
}

void rules_performer_more(struct seeded *s)
{
    performer(s, true);
}
