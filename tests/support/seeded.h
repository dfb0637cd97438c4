/* seeded.h: RWKV-7 models from a seed, of any shape, as .safetensors files with BlinkDL's names.
 *
 * They know nothing, but behave like models: decays from quick to very slow, logits of size 5-10,
 * finite over any number of tokens. A tensor's values depend on the seed, its name and the index
 * alone, so that a list can be edited (an entry dropped, reshaped, a NaN planted) and all else
 * stays as it was. */
#ifndef SLATE_TESTS_SEEDED_H
#define SLATE_TESTS_SEEDED_H

#include "slate/model.h"

struct seeded_shape {
    size_t n_layers, d_model, head_size, d_ffn, vocab_size;
    size_t rank_w, rank_a, rank_v, rank_g;
    enum sl_dtype dtype; /* F32, F16, BF16; others are written as zeros */
    uint64_t seed;
};

/* RWKV-7 "0.1B": 191 million parameters. */
#define SEEDED_0_1B                                                                                \
    {                                                                                              \
        .n_layers = 12, .d_model = 768, .head_size = 64, .d_ffn = 3072, .vocab_size = 65536,       \
        .rank_w = 64, .rank_a = 64, .rank_v = 32, .rank_g = 128, .dtype = SL_DTYPE_F16, .seed = 1  \
    }

/* Several heads, and no size that is a multiple of 16 but where it must be. */
#define SEEDED_ODD                                                                                 \
    {                                                                                              \
        .n_layers = 3, .d_model = 96, .head_size = 32, .d_ffn = 200, .vocab_size = 1001,           \
        .rank_w = 10, .rank_a = 12, .rank_v = 8, .rank_g = 20, .dtype = SL_DTYPE_F32, .seed = 2    \
    }

struct seeded_tensor {
    char name[64];
    enum sl_dtype dtype;
    unsigned rank;
    size_t shape[4];
    float mean, spread; /* uniform, `spread` the standard deviation */
    float ramp;         /* added: -ramp … +ramp along the last axis */
    size_t plant_at;    /* SIZE_MAX: nowhere */
    float plant;        /* a value put there */
    const char *values; /* the name whose values it has; NULL: its own */
};

struct seeded {
    uint64_t seed;
    const char *prefix; /* for whoever builds a list: of the layers' names */
    struct seeded_tensor *v;
    size_t n;
};

/* One more; the list is zeroed at first, but for its seed. */
struct seeded_tensor *seeded_add(struct seeded *s, enum sl_dtype dtype, unsigned rank,
                                 const size_t *shape, double mean, double spread, const char *name);

void seeded_init(struct seeded *s, const struct seeded_shape *shape);
void seeded_done(struct seeded *s);
struct seeded_tensor *seeded_find(struct seeded *s, const char *name);
void seeded_drop(struct seeded *s, const char *name);

/* A .safetensors file in memory; free(). */
unsigned char *seeded_bytes(const struct seeded *s, size_t *ret_n);
/* The same in a file. Ends the program when that fails. */
void seeded_write(const struct seeded *s, const char *path);

/* An opened model from a shape; *ret_bytes is what it is made from, to be freed after it. */
struct sl_model *seeded_open(const struct seeded_shape *shape, const struct sl_model_options *opt,
                             unsigned char **ret_bytes, size_t *ret_n);

#endif
