/* kquant.c: matrices of Q4_K and Q6_K: from a GGUF file's blocks to panels, and the scalar truth of
 * their product. See kquant.h for the layout. */
#include "engine/kernels/kquant.h"

#include <assert.h>

#include "engine/kernels/kblocks.h"

/* --- blocks -------------------------------------------------------------------------------------
 */

/* The first four scales and minima are the low six bits of bytes 0 … 3 and 4 … 7. Those of the
 * other four are a nibble each of bytes 8 … 11, under the two high bits of bytes 0 … 3 and 4 … 7.
 */
static void read_q4_k(struct sl_k_block *b, const unsigned char *p)
{
    const unsigned char *s = p + 4, *q = p + 16;
    b->d = p;
    b->m = p + 2;
    for (size_t i = 0; i < 4; i++) {
        b->scale[i] = (int8_t)(s[i] & 63);
        b->min[i] = s[4 + i] & 63;
        b->scale[4 + i] = (int8_t)((s[8 + i] & 15) | s[i] >> 6 << 4);
        b->min[4 + i] = (uint8_t)(s[8 + i] >> 4 | s[4 + i] >> 6 << 4);
    }
    for (size_t i = 0; i < SL_K_BLOCK; i++) {
        unsigned char byte = q[i / 64 * 32 + i % 32];
        b->code[i] = i / 32 % 2 ? byte >> 4 : byte & 15;
    }
}

/* Of each half of 128 weights: weight i has the nibble of byte i % 64, the low one for the first
 * 64, and two bits of byte i % 32 of the high ones, counted from the low end by i / 32. */
static void read_q6_k(struct sl_k_block *b, const unsigned char *p)
{
    b->d = p + 208;
    b->m = NULL;
    memcpy(b->scale, p + 192, sizeof b->scale);
    for (size_t i = 0; i < SL_K_BLOCK; i++) {
        size_t part = i / 128, k = i % 128;
        unsigned low = p[part * 64 + k % 64], high = p[128 + part * 32 + k % 32];
        b->code[i] = (uint8_t)((k < 64 ? low & 15U : low >> 4) | (high >> k / 32 * 2 & 3U) << 4);
    }
}

void sl_k_block_read(struct sl_k_block *ret, enum sl_dtype type, const unsigned char *block)
{
    assert(sl_is_k(type));
    if (type == SL_DTYPE_Q4_K)
        read_q4_k(ret, block);
    else
        read_q6_k(ret, block);
}

/* --- packing ------------------------------------------------------------------------------------
 */

static void put_code(uint8_t *codes, enum sl_dtype type, size_t o, size_t k, uint8_t code)
{
    size_t step = k / SL_STEP, at = o * SL_STEP + k % SL_STEP;
    uint8_t *low = codes + step * (SL_STEP_CODES / 2) + at % 32;
    *low = (uint8_t)(*low | (code & 15) << (at / 32 * 4));
    if (type == SL_DTYPE_Q4_K)
        return;
    uint8_t *high = codes + SL_Q6_K_HIGH + step * SL_Q6_K_STEP_HIGH + at % 16;
    *high = (uint8_t)(*high | code >> 4 << (at / 16 * 2));
}

/* Output o of a panel: a record of scales, and the codes of its groups; all zeros before. */
static void put_block(uint8_t *record, uint8_t *codes, enum sl_dtype type, size_t o,
                      const struct sl_k_block *b)
{
    memcpy(record + o * sizeof(uint16_t), b->d, sizeof(uint16_t));
    if (b->m)
        memcpy(record + SL_Q4_K_MINS + o * sizeof(uint16_t), b->m, sizeof(uint16_t));
    for (size_t g = 0; g < SL_K_GROUPS; g++) {
        uint8_t *s = record + sl_k_group_at(type, g) + o;
        bool four = type == SL_DTYPE_Q4_K;
        s[0] = (uint8_t)b->scale[four ? g : 2 * g];
        s[SL_PANEL] = four ? b->min[g] : (uint8_t)b->scale[2 * g + 1];
        for (size_t k = 0; k < SL_GROUP; k++)
            put_code(codes + g * sl_group_bytes(type), type, o, k, b->code[g * SL_GROUP + k]);
    }
}

void sl_pack_k_blocks(void *dst, enum sl_dtype type, const void *rows, size_t n_out, size_t n_in,
                      size_t panel_begin, size_t panel_end)
{
    assert(sl_is_k(type) && n_in % SL_K_BLOCK == 0);
    size_t n_blocks = n_in / SL_K_BLOCK, n_groups = n_blocks * SL_K_GROUPS;
    size_t block_bytes = type == SL_DTYPE_Q4_K ? SL_Q4_K_BYTES : SL_Q6_K_BYTES;
    size_t bytes = sl_q_panel_bytes(type, n_groups);
    for (size_t p = panel_begin; p < panel_end; p++) {
        uint8_t *panel = (uint8_t *)dst + p * bytes;
        uint8_t *codes = panel + sl_scales_bytes(type, n_groups);
        memset(panel, 0, bytes);
        for (size_t o = 0; o < SL_PANEL && p * SL_PANEL + o < n_out; o++)
            for (size_t i = 0; i < n_blocks; i++) {
                struct sl_k_block b;
                sl_k_block_read(&b, type,
                                (const unsigned char *)rows +
                                    ((p * SL_PANEL + o) * n_blocks + i) * block_bytes);
                size_t g = i * SL_K_GROUPS;
                put_block(panel + sl_scales_before(type, g), codes + g * sl_group_bytes(type), type,
                          o, &b);
            }
    }
}

/* --- the scalar truth ---------------------------------------------------------------------------
 */

/* Of code i of a step, from the zero. */
static int32_t code_of(const uint8_t *codes, enum sl_dtype type, size_t step, size_t i)
{
    int32_t low = codes[step * (SL_STEP_CODES / 2) + i % 32] >> (i / 32 * 4) & 15;
    if (type == SL_DTYPE_Q4_K)
        return low;
    int32_t high = codes[SL_Q6_K_HIGH + step * SL_Q6_K_STEP_HIGH + i % 16] >> (i / 16 * 2) & 3;
    return (low | high << 4) - 32;
}

/* The sums of one group, scales and all, of 16 outputs. */
static void dot_group(int32_t sum[SL_PANEL], const uint8_t *codes, const uint8_t *scales,
                      enum sl_dtype type, const int8_t q[SL_GROUP])
{
    memset(sum, 0, SL_PANEL * sizeof *sum);
    for (size_t s = 0; s < SL_STEPS; s++)
        for (size_t i = 0; i < SL_STEP_CODES; i++) {
            size_t o = i / SL_STEP, half = type == SL_DTYPE_Q6_K ? s / (SL_STEPS / 2) : 0;
            int32_t scale = (scales[half * SL_PANEL + o] ^ 128) - 128; /* in two's complement */
            sum[o] += scale * code_of(codes, type, s, i) * q[s * SL_STEP + i % SL_STEP];
        }
}

/* One group of a row: record: its scales; g: its number there. */
static void add_group(float acc[SL_PANEL], const struct sl_group *x, const uint8_t *record,
                      size_t g, const uint8_t *codes, enum sl_dtype type)
{
    float d[SL_PANEL], m[SL_PANEL];
    int32_t sum[SL_PANEL];
    const uint8_t *scales = record + sl_k_group_at(type, g);
    sl_widen(d, record, SL_DTYPE_F16, SL_PANEL);
    dot_group(sum, codes, scales, type, x->q);
    for (size_t o = 0; o < SL_PANEL; o++)
        acc[o] = fmaf((float)sum[o], d[o] * x->scale, acc[o]);
    if (type == SL_DTYPE_Q6_K)
        return;
    sl_widen(m, record + SL_Q4_K_MINS, SL_DTYPE_F16, SL_PANEL);
    for (size_t o = 0; o < SL_PANEL; o++)
        acc[o] = fmaf(m[o] * SL_K_MIN_FACTOR * (float)scales[SL_PANEL + o],
                      (float)x->offset * x->scale, acc[o]);
}

void sl_ref_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                     const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                     size_t panel_end)
{
    size_t n_groups = sl_groups(n_in), bytes = sl_q_panel_bytes(type, n_groups);
    assert(n_groups % SL_K_GROUPS == 0);
    for (size_t p = panel_begin; p < panel_end; p++) {
        const uint8_t *panel = (const uint8_t *)panels + p * bytes;
        const uint8_t *codes = panel + sl_scales_bytes(type, n_groups);
        for (size_t r = 0; r < rows; r++) {
            float *acc = y + r * ldy + p * SL_PANEL;
            for (size_t o = 0; o < SL_PANEL; o++)
                acc[o] = 0;
            for (size_t g = 0; g < n_groups; g++)
                add_group(acc, x + r * ldx + g,
                          panel + sl_scales_before(type, g / SL_K_GROUPS * SL_K_GROUPS),
                          g % SL_K_GROUPS, codes + g * sl_group_bytes(type), type);
        }
    }
}
