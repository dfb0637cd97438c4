/* ggml_blocks.c: see ggml_blocks.h. Plain loops: this runs once per weight, at load. */
#include "engine/formats/ggml_blocks.h"

#include <assert.h>

#include "engine/kernels/kblocks.h"
#include "engine/kernels/kernels.h"

static float half(const unsigned char *p)
{
    float f;
    sl_widen(&f, p, SL_DTYPE_F16, 1);
    return f;
}

/* --- one block ----------------------------------------------------------------------------------
 */

static void q8_0(float *y, const unsigned char *b)
{
    float d = half(b);
    for (size_t i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_0(float *y, const unsigned char *b)
{
    float d = half(b);
    for (size_t i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void q4_k(float *y, const unsigned char *p)
{
    struct sl_k_block b;
    sl_k_block_read(&b, SL_DTYPE_Q4_K, p);
    float d = half(b.d), m = half(b.m);
    for (size_t i = 0; i < SL_K_BLOCK; i++) {
        size_t group = i / 32;
        float product = d * (float)b.scale[group] * (float)b.code[i];
        y[i] = product - m * (float)b.min[group];
    }
}

static void q6_k(float *y, const unsigned char *p)
{
    struct sl_k_block b;
    sl_k_block_read(&b, SL_DTYPE_Q6_K, p);
    float d = half(b.d);
    for (size_t i = 0; i < SL_K_BLOCK; i++) {
        size_t group = i / 16;
        y[i] = d * (float)b.scale[group] * (float)(b.code[i] - 32);
    }
}

/* --- the table ----------------------------------------------------------------------------------
 */

static const struct block {
    const char *name;
    size_t weights, bytes;
    void (*dequantise)(float *y, const unsigned char *b);
} blocks[SL_BLOCK_COUNT] = {
    [SL_BLOCK_NONE] = {"none", 1, 1, NULL},         [SL_BLOCK_Q8_0] = {"Q8_0", 32, 34, q8_0},
    [SL_BLOCK_Q4_0] = {"Q4_0", 32, 18, q4_0},       [SL_BLOCK_Q4_K] = {"Q4_K", 256, 144, q4_k},
    [SL_BLOCK_Q6_K] = {"Q6_K", 256, 210, q6_k},     [SL_BLOCK_Q4_1] = {"Q4_1", 32, 20, NULL},
    [SL_BLOCK_Q5_0] = {"Q5_0", 32, 22, NULL},       [SL_BLOCK_Q5_1] = {"Q5_1", 32, 24, NULL},
    [SL_BLOCK_Q8_1] = {"Q8_1", 32, 40, NULL},       [SL_BLOCK_Q2_K] = {"Q2_K", 256, 84, NULL},
    [SL_BLOCK_Q3_K] = {"Q3_K", 256, 110, NULL},     [SL_BLOCK_Q5_K] = {"Q5_K", 256, 176, NULL},
    [SL_BLOCK_Q8_K] = {"Q8_K", 256, 292, NULL},     [SL_BLOCK_IQ2_XXS] = {"IQ2_XXS", 256, 66, NULL},
    [SL_BLOCK_IQ2_XS] = {"IQ2_XS", 256, 74, NULL},  [SL_BLOCK_IQ3_XXS] = {"IQ3_XXS", 256, 98, NULL},
    [SL_BLOCK_IQ1_S] = {"IQ1_S", 256, 50, NULL},    [SL_BLOCK_IQ4_NL] = {"IQ4_NL", 32, 18, NULL},
    [SL_BLOCK_IQ3_S] = {"IQ3_S", 256, 110, NULL},   [SL_BLOCK_IQ2_S] = {"IQ2_S", 256, 82, NULL},
    [SL_BLOCK_IQ4_XS] = {"IQ4_XS", 256, 136, NULL}, [SL_BLOCK_IQ1_M] = {"IQ1_M", 256, 56, NULL},
    [SL_BLOCK_TQ1_0] = {"TQ1_0", 256, 54, NULL},    [SL_BLOCK_TQ2_0] = {"TQ2_0", 256, 66, NULL},
    [SL_BLOCK_MXFP4] = {"MXFP4", 32, 17, NULL},     [SL_BLOCK_NVFP4] = {"NVFP4", 64, 36, NULL},
    [SL_BLOCK_Q1_0] = {"Q1_0", 128, 18, NULL},      [SL_BLOCK_Q2_0] = {"Q2_0", 64, 18, NULL},
};

const char *sl_block_name(enum sl_block_type t)
{
    assert((unsigned)t < SL_BLOCK_COUNT);
    return blocks[t].name;
}

size_t sl_block_weights(enum sl_block_type t)
{
    assert((unsigned)t < SL_BLOCK_COUNT);
    return blocks[t].weights;
}

size_t sl_block_bytes(enum sl_block_type t)
{
    assert((unsigned)t < SL_BLOCK_COUNT);
    return blocks[t].bytes;
}

enum sl_dtype sl_block_kept(enum sl_block_type t)
{
    static const enum sl_dtype kept[SL_BLOCK_UNREAD] = {[SL_BLOCK_Q8_0] = SL_DTYPE_Q8,
                                                        [SL_BLOCK_Q4_0] = SL_DTYPE_Q4_0,
                                                        [SL_BLOCK_Q4_K] = SL_DTYPE_Q4_K,
                                                        [SL_BLOCK_Q6_K] = SL_DTYPE_Q6_K};
    assert(sl_block_readable(t));
    return kept[t];
}

void sl_block_dequantise_row(float *y, const void *row, enum sl_block_type t, size_t n)
{
    assert(sl_block_readable(t) && n % blocks[t].weights == 0);
    const unsigned char *b = row;
    for (size_t i = 0; i < n; i += blocks[t].weights, b += blocks[t].bytes)
        blocks[t].dequantise(y + i, b);
}
