/* block.h: what surrounds a mixer. Private to libslate.
 *
 * A kind of block knows the names that a family of files gives to the embedding, the norms, the
 * feed-forward part and the head, and runs one layer: mixer, then feed-forward, each on normalised
 * rows and added to the residual stream. One file per kind, block_*.c; a mixer's row names its. */
#ifndef SLATE_ENGINE_BLOCK_H
#define SLATE_ENGINE_BLOCK_H

#include "engine/mixers/mixer.h"

/* Before the first layer and after the last. */
struct sl_ends {
    struct sl_embedding embedding;
    const float *positions; /* [config.max_tokens][d_model], added to the embedded row; or NULL */
    struct sl_norm norm_in; /* on the embedded row; w NULL: none */
    struct sl_norm norm_out;
    struct sl_matrix head;
    const float *head_bias; /* NULL: none */
};

struct sl_block {
    size_t layer_bytes; /* of the block's own struct, one per layer */
    void (*load_ends)(struct sl_load *l, struct sl_ends *ret);
    /* Declares what stands before and after the mixer of layer i. `layer` points at layer_bytes
     * zeroed bytes. */
    void (*load)(struct sl_load *l, size_t i, void *layer);
    /* One layer over all rows. */
    void (*forward)(const struct sl_pass *p, const void *layer, const struct sl_mixer *mixer,
                    const void *mixer_layer);
};

extern const struct sl_block sl_block_rwkv4, sl_block_rwkv6, sl_block_rwkv7;
extern const struct sl_block sl_block_performer;
extern const struct sl_block sl_block_fla, sl_block_mamba;

#endif
