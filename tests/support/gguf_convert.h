/* gguf_convert.h: models with BlinkDL's names as GGUF files, by what llama.cpp's converter does to
 * names, shapes and values, written down here a second time.
 *
 * Failing to get memory ends the test program. */
#ifndef SLATE_TESTS_GGUF_CONVERT_H
#define SLATE_TESTS_GGUF_CONVERT_H

#include "engine/formats/tensors.h"
#include "tests/support/gguf_maker.h"
#include "tests/support/peer_blocks.h"

/* What the tensors of a file do not say. */
struct gguf_sizes {
    const char *arch; /* "rwkv7", "rwkv6" */
    size_t n_layers, d_model, head_size;
    unsigned rescale;    /* RWKV-6: halved once for so many layers; 0: never */
    enum sl_dtype dtype; /* of all elements; values must fit in it */
    bool apart;          /* RWKV-6: the five mixes one by one, as older files have them */
    /* Of tensors of several axes, where the last is whole blocks: Q8_0, or its values in F32. */
    enum { GGUF_AS_IT_IS, GGUF_BLOCKS, GGUF_BLOCK_VALUES } quantise;
    /* What tensors are instead, by name, where rows are whole blocks; NULL: nothing. */
    const struct peer_blocks *(*blocks)(const char *file);
};

void gguf_from_tensors(struct gguf_maker *g, const struct sl_tensors *t,
                       const struct gguf_sizes *sizes);

#endif
