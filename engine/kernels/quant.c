/* quant.c: matrices of 8, 5 and 4 bits: from floats to panels, and the scalar truth of their
 * product.
 *
 * Why these formats: a scale for every 32 inputs of an output follows the weights closely enough
 * that 8 bits cost next to nothing, and sums of integers within a group are exact in any order, so
 * that vector kernels are free to add as their instructions want, and still agree to the bit.
 *
 * Q8: the largest magnitude is put at 127, 126, … 120: eight scales, each rounded to F16 first,
 * then the nearest codes for it; the one with the least squared error stays. Against the first one
 * alone that error is 18 % less, because how 32 roundings fall is chance, and a scale of a few
 * hundredths more costs less than choosing among eight such chances gives. The largest magnitude
 * stays at a whole number, so that it is no error itself; and values that were Q8 come out as they
 * went in.
 *
 * Q4: 16 levels that are not evenly spaced (closer around zero, as weights are), found by descent
 * on the squared error over groups of normal, heavy-tailed and shifted values. A scale may be
 * negative: the levels reach further down than up, so the group's largest magnitude goes to one end
 * or the other. Some scales around those two are tried, each refitted to its codes by least
 * squares; the one with the least squared error stays. Q5: the same with 32 levels, even ones. */
#include "engine/kernels/kquant.h"

#include <assert.h>

const uint8_t sl_q4_levels[16] = {0, 3, 5, 7, 9, 11, 13, 15, 16, 18, 20, 22, 24, 26, 28, 31};
const uint8_t sl_q4_0_levels[16] = {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

/* --- packing ------------------------------------------------------------------------------------
 */

/* Halves that are added, or of which the larger stays, until four are left: loops of vectors, whose
 * order is the same for every compiler. */
#define FOLD(v, keep)                                                                              \
    do {                                                                                           \
        for (size_t i = 0; i < 16; i++)                                                            \
            keep(v[i], v[i + 16]);                                                                 \
        for (size_t i = 0; i < 8; i++)                                                             \
            keep(v[i], v[i + 8]);                                                                  \
        for (size_t i = 0; i < 4; i++)                                                             \
            keep(v[i], v[i + 4]);                                                                  \
        keep(v[0], v[2]);                                                                          \
        keep(v[1], v[3]);                                                                          \
        keep(v[0], v[1]);                                                                          \
    } while (0)
#define KEEP_SUM(a, b) ((a) += (b))
#define KEEP_LARGER(a, b) ((a) = (b) > (a) ? (b) : (a))

static float largest(const float w[SL_GROUP])
{
    float m[SL_GROUP];
    for (size_t i = 0; i < SL_GROUP; i++)
        m[i] = fabsf(w[i]);
    FOLD(m, KEEP_LARGER);
    return m[0];
}

#define ROUNDS 0x1.8p+23F /* x + ROUNDS has the nearest whole number, where |x| is below 2^22 */

/* Ties to even. */
static int32_t nearest(float x)
{
    return (int32_t)(sl_f32_bits(x + ROUNDS) - sl_f32_bits(ROUNDS));
}

static float q8_inverse(float scale)
{
    return scale > 0 ? 1 / scale : 0;
}

/* Bounded: a scale that is a coarse denormal may be half of what it was rounded from. Others are so
 * near to that that no code is above 127. */
static const float q8_coarse = 0x1p-16F;

static int32_t q8_code(float w, float inverse)
{
    int32_t code = nearest(w * inverse);
    code = code < 127 ? code : 127;
    return code > -127 ? code : -127;
}

/* Of the nearest codes. */
static ALWAYS_INLINE float q8_error(const float w[SL_GROUP], float scale, const bool coarse)
{
    float e[SL_GROUP], inverse = q8_inverse(scale);
    for (size_t i = 0; i < SL_GROUP; i++) {
        float code = coarse ? (float)q8_code(w[i], inverse) : w[i] * inverse + ROUNDS - ROUNDS;
        float rest = w[i] - scale * code;
        e[i] = rest * rest;
    }
    FOLD(e, KEEP_SUM);
    return e[0];
}

/* The F16 of the scale with the least error, of equals the least. m: the largest magnitude. Errors
 * are not negative, so that their bits have their order. */
static ALWAYS_INLINE uint16_t q8_scale(const float w[SL_GROUP], float m, const bool coarse)
{
    uint64_t best = UINT64_MAX;
    for (int end = 127; end >= 120; end--) {
        uint16_t half = sl_f16_from_f32(m / (float)end);
        float error = q8_error(w, sl_f32_from_f16(half), coarse);
        uint64_t both = (uint64_t)sl_f32_bits(error) << 16 | half;
        best = both < best ? both : best;
    }
    return (uint16_t)best;
}

/* Returns the scale's F16. */
static uint16_t pack_q8(int8_t code[SL_GROUP], const float w[SL_GROUP])
{
    float m = largest(w);
    uint16_t half = m < 127 * q8_coarse ? q8_scale(w, m, true) : q8_scale(w, m, false);
    float inverse = q8_inverse(sl_f32_from_f16(half));
    int32_t wide[SL_GROUP];
    for (size_t i = 0; i < SL_GROUP; i++)
        wide[i] = q8_code(w[i], inverse);
    for (size_t i = 0; i < SL_GROUP; i++)
        code[i] = (int8_t)wide[i];
    return half;
}

/* The codes whose levels are nearest for a scale of 1/inverse. */
static void q5_codes(uint8_t code[SL_GROUP], const float w[SL_GROUP], float inverse)
{
    for (size_t i = 0; i < SL_GROUP; i++) {
        float t = w[i] * inverse;
        t = t > 15 ? 15 : t < -16 ? -16 : t;
        code[i] = (uint8_t)(nearest(t) + SL_Q4_ZERO);
    }
}

static void q4_codes(uint8_t code[SL_GROUP], const float w[SL_GROUP], float inverse)
{
    float twice[SL_GROUP];
    for (size_t i = 0; i < SL_GROUP; i++) {
        twice[i] = 2 * (w[i] * inverse + SL_Q4_ZERO);
        code[i] = 0;
    }
    for (size_t c = 0; c < 15; c++) {
        float between = (float)(sl_q4_levels[c] + sl_q4_levels[c + 1]);
        for (size_t i = 0; i < SL_GROUP; i++)
            code[i] = (uint8_t)(code[i] + (twice[i] > between));
    }
}

static ALWAYS_INLINE float level(const enum sl_dtype type, uint8_t code)
{
    return (float)((type == SL_DTYPE_Q5 ? code : sl_q4_levels[code]) - SL_Q4_ZERO);
}

/* Q5 or Q4. Returns the scale's F16. */
static ALWAYS_INLINE uint16_t pack_levels(const enum sl_dtype type, uint8_t code[SL_GROUP],
                                          const float w[SL_GROUP])
{
    void (*const find)(uint8_t *, const float *, float) = type == SL_DTYPE_Q5 ? q5_codes : q4_codes;
    /* What levels the value of the largest magnitude is put at. */
    static const float ends[] = {-17.5F, -16, -15, -14, 14, 15, 16.5F};
    float top = 0, best_gain = -1, scale = 0;
    for (size_t i = 0; i < SL_GROUP; i++)
        top = fabsf(w[i]) > fabsf(top) ? w[i] : top;
    for (size_t e = 0; e < sizeof ends / sizeof *ends && fabsf(top) > 0x1p-100F; e++) {
        float wl = 0, ll = 0;
        find(code, w, ends[e] / top);
        for (size_t i = 0; i < SL_GROUP; i++) {
            float l = level(type, code[i]);
            wl += w[i] / top * l;
            ll += l * l;
        }
        /* With the scale wl/ll the squared error is Σ w² - wl²/ll. */
        if (ll > 0 && wl * wl / ll > best_gain) {
            best_gain = wl * wl / ll;
            scale = wl / ll * top;
        }
    }
    uint16_t half = sl_f16_from_f32(scale);
    scale = sl_f32_from_f16(half);
    find(code, w, fabsf(scale) > 0 ? 1 / scale : 0);
    return half;
}

static uint16_t pack_q5(uint8_t code[SL_GROUP], const float w[SL_GROUP])
{
    return pack_levels(SL_DTYPE_Q5, code, w);
}

static uint16_t pack_q4(uint8_t code[SL_GROUP], const float w[SL_GROUP])
{
    return pack_levels(SL_DTYPE_Q4, code, w);
}

uint16_t sl_group_codes(uint8_t code[SL_GROUP], enum sl_dtype type, const float w[SL_GROUP])
{
    return type == SL_DTYPE_Q8   ? pack_q8((int8_t *)code, w)
           : type == SL_DTYPE_Q5 ? pack_q5(code, w)
                                 : pack_q4(code, w);
}

void sl_put_codes(uint8_t *codes, enum sl_dtype type, size_t o, const uint8_t code[SL_GROUP])
{
    for (size_t s = 0; s < SL_STEPS && type == SL_DTYPE_Q8; s++)
        memcpy(codes + s * SL_STEP_CODES + o * SL_STEP, code + s * SL_STEP, SL_STEP);
    for (size_t k = 0; k < SL_GROUP && type != SL_DTYPE_Q8; k++) {
        size_t step = k / SL_STEP, at = o * SL_STEP + k % SL_STEP;
        uint8_t low = code[k] & 15;
        codes[step * (SL_STEP_CODES / 2) + at % 32] |= (uint8_t)(low << (at / 32 * 4));
        if (type == SL_DTYPE_Q5)
            codes[SL_Q4_GROUP + at] |= (uint8_t)(code[k] >> 4 << step);
    }
}

/* 16 outputs × 32 inputs, from floats, at their places. */
static void pack_group(uint8_t *codes, uint16_t scales[SL_PANEL], enum sl_dtype type,
                       float w[SL_PANEL][SL_GROUP])
{
    memset(codes, 0, sl_group_bytes(type));
    for (size_t o = 0; o < SL_PANEL; o++) {
        uint8_t code[SL_GROUP];
        scales[o] = sl_group_codes(code, type, w[o]);
        sl_put_codes(codes, type, o, code);
    }
}

void sl_pack_quantised(void *dst, enum sl_dtype type, const struct sl_pack_source *src,
                       size_t panel_begin, size_t panel_end)
{
    float w[SL_PANEL][SL_GROUP];
    size_t n_groups = sl_groups(src->n_in), bytes = sl_q_panel_bytes(type, n_groups);
    for (size_t p = panel_begin; p < panel_end; p++) {
        uint8_t *panel = (uint8_t *)dst + p * bytes,
                *codes = panel + sl_scales_bytes(type, n_groups);
        memset(panel, 0, sl_scales_bytes(type, n_groups));
        for (size_t g = 0; g < n_groups; g++) {
            uint16_t scales[SL_PANEL];
            sl_pack_read(w, src, p * SL_PANEL, g * SL_GROUP);
            pack_group(codes + g * sl_group_bytes(type), scales, type, w);
            memcpy(panel + g * SL_GROUP_SCALES, scales, sizeof scales);
        }
    }
}

enum { Q8_0_BYTES = 34, Q4_0_BYTES = 18 }; /* of a block: its scale as F16, and the codes */

/* The low nibbles are weights 0 … 15, the high ones 16 … 31. */
static void block_codes(uint8_t code[SL_GROUP], const uint8_t *block, enum sl_dtype type)
{
    const uint8_t *q = block + sizeof(uint16_t);
    for (size_t k = 0; k < SL_GROUP; k++)
        code[k] = (uint8_t)(type == SL_DTYPE_Q8 ? q[k] : q[k % 16] >> (k / 16 * 4) & 15);
}

void sl_pack_blocks(void *dst, enum sl_dtype type, const void *rows, size_t n_out, size_t n_in,
                    size_t panel_begin, size_t panel_end)
{
    if (sl_is_k(type)) {
        sl_pack_k_blocks(dst, type, rows, n_out, n_in, panel_begin, panel_end);
        return;
    }
    assert((type == SL_DTYPE_Q8 || type == SL_DTYPE_Q4_0) && n_in % SL_GROUP == 0);
    size_t n_groups = sl_groups(n_in), bytes = sl_q_panel_bytes(type, n_groups);
    size_t block_bytes = type == SL_DTYPE_Q8 ? Q8_0_BYTES : Q4_0_BYTES;
    for (size_t p = panel_begin; p < panel_end; p++) {
        uint8_t *panel = (uint8_t *)dst + p * bytes,
                *codes = panel + sl_scales_bytes(type, n_groups);
        memset(panel, 0, bytes);
        for (size_t o = 0; o < SL_PANEL && p * SL_PANEL + o < n_out; o++)
            for (size_t g = 0; g < n_groups; g++) {
                const uint8_t *block =
                    (const uint8_t *)rows + ((p * SL_PANEL + o) * n_groups + g) * block_bytes;
                uint8_t code[SL_GROUP];
                block_codes(code, block, type);
                sl_put_codes(codes + g * sl_group_bytes(type), type, o, code);
                memcpy(panel + (g * SL_PANEL + o) * sizeof(uint16_t), block, sizeof(uint16_t));
            }
    }
}

/* --- the scalar truth ---------------------------------------------------------------------------
 */

static void quantise_group(struct sl_group *y, const float *x)
{
    uint32_t top = 0;
    float inverse;
    for (size_t i = 0; i < SL_GROUP; i++) {
        uint32_t bits = sl_f32_bits(x[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    if (!sl_group_scale(y, top, &inverse))
        return;
    int16_t sum[2][2] = {{0}};
    for (size_t i = 0; i < SL_GROUP; i++) {
        int16_t *to = &sum[i / (SL_GROUP / 2)][i / 2 % 2];
        y->q[i] = (int8_t)nearest(x[i] * inverse);
        *to = (int16_t)(*to + y->q[i]);
    }
    sl_group_sums(y, sum);
}

void sl_ref_quantise(struct sl_group *y, const float *x, size_t n)
{
    sl_quantise_row(quantise_group, y, x, n);
}

/* Code i of step s of a group, in what it stands for. */
static int32_t code_at(const uint8_t *codes, enum sl_dtype type, size_t s, size_t i)
{
    if (type == SL_DTYPE_Q8)
        return (codes[s * SL_STEP_CODES + i] ^ 128) - 128; /* in two's complement */
    int32_t low = codes[s * (SL_STEP_CODES / 2) + i % 32] >> (i / 32 * 4) & 15;
    if (type == SL_DTYPE_Q5)
        return (low | (codes[SL_Q4_GROUP + i] >> s & 1) << 4) - SL_Q4_ZERO;
    return sl_levels_of(type)[low] - SL_Q4_ZERO;
}

/* What the integer products of 16 outputs and a row's group add up to. */
static void dot_group(int32_t sum[SL_PANEL], const uint8_t *codes, enum sl_dtype type,
                      const int8_t q[SL_GROUP])
{
    memset(sum, 0, SL_PANEL * sizeof *sum);
    for (size_t s = 0; s < SL_STEPS; s++)
        for (size_t i = 0; i < SL_STEP_CODES; i++)
            sum[i / SL_STEP] += code_at(codes, type, s, i) * q[s * SL_STEP + i % SL_STEP];
}

void sl_ref_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                     const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                     size_t panel_end)
{
    if (sl_is_k(type)) {
        sl_ref_matmul_k(y, ldy, x, ldx, rows, panels, type, n_in, panel_begin, panel_end);
        return;
    }
    assert(sl_is_quantised(type));
    size_t n_groups = sl_groups(n_in), bytes = sl_q_panel_bytes(type, n_groups);
    for (size_t p = panel_begin; p < panel_end; p++) {
        const uint8_t *panel = (const uint8_t *)panels + p * bytes;
        const uint8_t *codes = panel + sl_scales_bytes(type, n_groups);
        for (size_t r = 0; r < rows; r++) {
            float *acc = y + r * ldy + p * SL_PANEL;
            for (size_t o = 0; o < SL_PANEL; o++)
                acc[o] = 0;
            for (size_t g = 0; g < n_groups; g++) {
                const struct sl_group *in = x + r * ldx + g;
                float scale[SL_PANEL];
                int32_t sum[SL_PANEL];
                sl_widen(scale, panel + g * SL_GROUP_SCALES, SL_DTYPE_F16, SL_PANEL);
                dot_group(sum, codes + g * sl_group_bytes(type), type, in->q);
                for (size_t o = 0; o < SL_PANEL; o++)
                    acc[o] = fmaf((float)sum[o], scale[o] * in->scale, acc[o]);
            }
        }
    }
}
