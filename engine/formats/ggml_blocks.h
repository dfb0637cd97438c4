/* ggml_blocks.h: the quantised element types of GGUF files, and their exact values. Private to
 * libslate.
 *
 * A row is a whole number of blocks; a block is a fixed number of weights with what they are scaled
 * by. All numbers are little-endian, f16 is IEEE half. y are the values of one block:
 *
 *   Q8_0   32 weights, 34 bytes:  f16 d; i8 q[32]                    y_i = d q_i
 *   Q4_0   32 weights, 18 bytes:  f16 d; u8 q[16]                    y_i = d (q_i - 8)
 *          the low nibbles of q are weights 0 … 15, the high ones 16 … 31
 *   Q4_K  256 weights, 144 bytes: f16 d; f16 m; u8 s[12]; u8 q[128]  y_i = (d s_g) q_i - m m_g
 *          g = i / 32; 64 weights lie in 32 bytes, the low nibbles first; s holds eight 6-bit
 *          scales s_g and eight 6-bit minima m_g
 *   Q6_K  256 weights, 210 bytes: u8 l[128]; u8 h[64]; i8 s[16]; f16 d   y_i = (d s_g) (q_i - 32)
 *          g = i / 16; q_i is 4 bits of l and 2 of h
 *
 * Every product above is exact in f32 for finite d and m (at most 24 bits), so that a value is
 * rounded once, in the difference of Q4_K, and any order of evaluation gives the same bits. */
#ifndef SLATE_FORMATS_GGML_BLOCKS_H
#define SLATE_FORMATS_GGML_BLOCKS_H

#include "slate/base.h"

enum sl_block_type {
    SL_BLOCK_NONE, /* elements by themselves, of an enum sl_dtype */
    SL_BLOCK_Q8_0,
    SL_BLOCK_Q4_0,
    SL_BLOCK_Q4_K,
    SL_BLOCK_Q6_K,
    /* From here on: known by name and size, so that a file can be told apart from a damaged one,
     * but not by value. */
    SL_BLOCK_UNREAD,
    SL_BLOCK_Q4_1 = SL_BLOCK_UNREAD,
    SL_BLOCK_Q5_0,
    SL_BLOCK_Q5_1,
    SL_BLOCK_Q8_1,
    SL_BLOCK_Q2_K,
    SL_BLOCK_Q3_K,
    SL_BLOCK_Q5_K,
    SL_BLOCK_Q8_K,
    SL_BLOCK_IQ2_XXS,
    SL_BLOCK_IQ2_XS,
    SL_BLOCK_IQ3_XXS,
    SL_BLOCK_IQ1_S,
    SL_BLOCK_IQ4_NL,
    SL_BLOCK_IQ3_S,
    SL_BLOCK_IQ2_S,
    SL_BLOCK_IQ4_XS,
    SL_BLOCK_IQ1_M,
    SL_BLOCK_TQ1_0,
    SL_BLOCK_TQ2_0,
    SL_BLOCK_MXFP4,
    SL_BLOCK_NVFP4,
    SL_BLOCK_Q1_0,
    SL_BLOCK_Q2_0,
    SL_BLOCK_COUNT
};

/* "Q8_0", …; "none" for SL_BLOCK_NONE. Static storage. */
const char *sl_block_name(enum sl_block_type t);

/* Weights of a block and its bytes; both 1 for SL_BLOCK_NONE. At most SL_BLOCK_WEIGHTS_MAX. */
enum { SL_BLOCK_WEIGHTS_MAX = 256 };
size_t sl_block_weights(enum sl_block_type t);
size_t sl_block_bytes(enum sl_block_type t);

/* Whether values can be had. Not of SL_BLOCK_NONE, whose elements are no blocks. */
static inline bool sl_block_readable(enum sl_block_type t)
{
    return t > SL_BLOCK_NONE && t < SL_BLOCK_UNREAD;
}

/* The type of panels that hold a block's own codes and scales (kernels.h). Of readable ones. */
enum sl_dtype sl_block_kept(enum sl_block_type t);

/* The values of n weights, which are whole blocks: y[n]; `blocks` may be unaligned. Any thread. */
void sl_block_dequantise_row(float *y, const void *blocks, enum sl_block_type t, size_t n);

#endif
