/* rules_rwkv.c: BlinkDL's RWKV-4, 5 and 6 for rules.c's table.
 *
 * Decays go from about 0.55 to 0.999 per token in all of them, so that half of something is
 * forgotten after one token or after some hundred. */
#include <math.h>
#include <stdio.h>

#include "tests/support/rules_priv.h"

enum { LAYERS = 2, D = 40, HEADS = 4, N = 10, FFN = 72, VOCAB = 300, RANK_MIX = 5, RANK_DECAY = 7 };

static struct seeded_tensor *add(struct seeded *s, unsigned rank, const size_t *shape, double mean,
                                 double spread, size_t i, const char *name)
{
    char full[64];
    (void)snprintf(full, sizeof full, "blocks.%zu.%s", i, name);
    return seeded_add(s, SL_DTYPE_F16, rank, shape, mean, spread, full);
}

/* A matrix that keeps the size of what goes through it, times `gain`. */
static void mat(struct seeded *s, size_t rows, size_t cols, size_t n_in, double gain, size_t i,
                const char *name)
{
    add(s, 2, (size_t[]){rows, cols}, 0, gain / sqrt((double)n_in), i, name);
}

static void square(struct seeded *s, double gain, size_t i, const char *name)
{
    mat(s, D, D, D, gain, i, name);
}

static struct seeded_tensor *vec(struct seeded *s, double mean, double spread, size_t i,
                                 const char *name)
{
    return add(s, 3, (size_t[]){1, 1, D}, mean, spread, i, name);
}

static void norm(struct seeded *s, const char *name)
{
    const size_t d = D;
    char full[64];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    seeded_add(s, SL_DTYPE_F16, 1, &d, 1, 0.1, full);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    seeded_add(s, SL_DTYPE_F16, 1, &d, 0, 0.05, full);
}

static void mixes(struct seeded *s, size_t i, const char *prefix, const char *letters)
{
    char name[32];
    for (const char *x = letters; *x; x++) {
        (void)snprintf(name, sizeof name, "%s%c", prefix, *x);
        vec(s, 0.5, 0.28, i, name);
    }
}

/* What all three have, but for the mixes' names; ln_x of 5 and 6. */
static void frame(struct seeded *s, const char *mix, bool ln_x)
{
    static const char *const norms[] = {"ln1", "ln2", "att.ln_x"};
    *s = (struct seeded){.seed = 37};
    seeded_add(s, SL_DTYPE_F16, 2, (size_t[]){VOCAB, D}, 0, 1, "emb.weight");
    norm(s, "blocks.0.ln0");
    for (size_t i = 0; i < LAYERS; i++) {
        char name[32];
        for (size_t k = 0; k < (ln_x ? 3 : 2); k++) {
            (void)snprintf(name, sizeof name, "blocks.%zu.%s", i, norms[k]);
            norm(s, name);
        }
        square(s, 1, i, "att.key.weight");
        square(s, 1, i, "att.value.weight");
        square(s, 1, i, "att.receptance.weight");
        square(s, 0.5, i, "att.output.weight");
        mixes(s, i, mix, "kr");
        mat(s, FFN, D, D, 1, i, "ffn.key.weight");
        square(s, 1, i, "ffn.receptance.weight");
        mat(s, D, FFN, FFN, 0.5, i, "ffn.value.weight");
    }
    norm(s, "ln_out");
    seeded_add(s, SL_DTYPE_F16, 2, (size_t[]){VOCAB, D}, 0, 2 / sqrt(D), "head.weight");
}

void rules_rwkv4(struct seeded *s)
{
    const size_t d = D;
    frame(s, "ffn.time_mix_", false);
    for (size_t i = 0; i < LAYERS; i++) {
        mixes(s, i, "att.time_mix_", "kvr");
        add(s, 1, &d, -3.7, 0.1, i, "att.time_decay")->ramp = 3.2F;
        add(s, 1, &d, 0.3, 0.5, i, "att.time_first");
    }
}

/* by_channel: decay and bonus per channel, the bonus as it is and not its logarithm. */
static void rwkv5(struct seeded *s, bool gated, bool by_channel)
{
    const size_t shape[2] = {HEADS, N};
    unsigned rank = by_channel ? 2 : 1;
    frame(s, "ffn.time_mix_", true);
    for (size_t i = 0; i < LAYERS; i++) {
        mixes(s, i, "att.time_mix_", gated ? "kvrg" : "kvr");
        if (gated)
            square(s, 2, i, "att.gate.weight");
        add(s, rank, shape, -3.7, 0.1, i, "att.time_decay")->ramp = 3.2F;
        if (by_channel)
            add(s, rank, shape, 0.5, 0.4, i, "att.time_faaaa");
        else
            add(s, rank, shape, -0.5, 0.4, i, "att.time_first");
    }
}

void rules_rwkv5_0(struct seeded *s)
{
    rwkv5(s, false, false);
}

void rules_rwkv5_1(struct seeded *s)
{
    rwkv5(s, true, false);
}

void rules_rwkv5_2(struct seeded *s)
{
    rwkv5(s, true, true);
}

void rules_rwkv6(struct seeded *s)
{
    const size_t heads[2] = {HEADS, N}, small[3] = {5, RANK_MIX, D};
    frame(s, "ffn.time_maa_", true);
    for (size_t i = 0; i < LAYERS; i++) {
        mixes(s, i, "att.time_maa_", "xwkvrg");
        mat(s, D, 5 * RANK_MIX, D, 1, i, "att.time_maa_w1");
        add(s, 3, small, 0, 0.3 / sqrt(RANK_MIX), i, "att.time_maa_w2");
        vec(s, -3.7, 0.1, i, "att.time_decay")->ramp = 3.2F;
        mat(s, D, RANK_DECAY, D, 1, i, "att.time_decay_w1");
        mat(s, RANK_DECAY, D, RANK_DECAY, 0.5, i, "att.time_decay_w2");
        add(s, 2, heads, 0.5, 0.4, i, "att.time_faaaa");
        square(s, 2, i, "att.gate.weight");
    }
}
