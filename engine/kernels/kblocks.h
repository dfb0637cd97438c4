/* kblocks.h: GGUF's blocks of 256 weights, taken apart: for who wants their values
 * (formats/ggml_blocks.c) and who packs them (kquant.c). What the numbers mean stands in
 * formats/ggml_blocks.h. */
#ifndef SLATE_KERNELS_KBLOCKS_H
#define SLATE_KERNELS_KBLOCKS_H

#include "slate/base.h"

enum { SL_K_BLOCK = 256, SL_Q4_K_BYTES = 144, SL_Q6_K_BYTES = 210 };

struct sl_k_block {
    const unsigned char *d, *m; /* F16, may be unaligned; m is NULL of Q6_K */
    int8_t scale[16];           /* Q4_K: eight, of 32 weights each; Q6_K: of 16 */
    uint8_t min[8];             /* of Q4_K */
    uint8_t code[SL_K_BLOCK];   /* 0 … 15, of Q6_K 0 … 63 */
};

/* type: Q4_K or Q6_K. */
void sl_k_block_read(struct sl_k_block *ret, enum sl_dtype type, const unsigned char *block);

#endif
