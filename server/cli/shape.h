/* shape.h: models that know nothing, of the shapes that models have: for `slate bench`, where what
 * a token costs does not depend on what the weights are. Any thread. */
#ifndef SLATE_SERVER_CLI_SHAPE_H
#define SLATE_SERVER_CLI_SHAPE_H

#include "slate/err.h"

struct sl_shape {
    const char *name; /* "rwkv7-0.1b" */
    size_t n_layers, d_model, head_size, d_ffn, vocab_size;
    size_t rank_w, rank_a, rank_v, rank_g;
};

/* NULL: no such shape; sl_shape_names() lists them in words. */
const struct sl_shape *sl_shape_find(const char *name);
void sl_shape_names(char *dst, size_t n);

/* A .safetensors file of RWKV-7 in F16, with decays from quick to slow and numbers that stay finite
 * over any length; sl_free(). Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_shape_file(const struct sl_shape *s, unsigned char **ret,
                                        size_t *ret_n, struct sl_error *err);

#endif
