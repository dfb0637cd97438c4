/* peer_blocks.h: llama.cpp's Q8_0 and Q4_0, written down a second time: what its quantiser makes of
 * weights, to be held beside what ours makes of them. For gguf_convert.h. */
#ifndef SLATE_TESTS_PEER_BLOCKS_H
#define SLATE_TESTS_PEER_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

enum { PEER_BLOCK = 32, PEER_BLOCK_BYTES = 34 }; /* weights; bytes at most */

struct peer_blocks {
    uint32_t type; /* GGML_Q8_0 … */
    size_t bytes;  /* of a block */
    void (*quantise)(unsigned char *block, const float w[PEER_BLOCK]);
};

/* Of a tensor by its name in a GGUF file, where a file of that type has it in blocks; else NULL.
 * Projections and feed-forward are; the head is Q8_0 in both (where its rows are of 256, a file of
 * Q4_0 has Q6_K, which is worse). The embedding is not, in that program's favour: its files have it
 * in blocks, too. */
const struct peer_blocks *peer_q8_0(const char *file);
const struct peer_blocks *peer_q4_0(const char *file);

#endif
