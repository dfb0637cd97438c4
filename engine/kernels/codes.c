/* codes.c: rows of Q8, Q5 and Q4 codes with their scales, as `slate convert` writes them: made of
 * weights, read back as values, and laid out as panels. See kernels.h.
 *
 * Codes and scales are those that sl_pack_matrix() finds, so that panels made of them are the
 * panels that it makes. */
#include <assert.h>

#include "engine/kernels/quant.h"

enum { EIGHT_Q5 = 5 }; /* bytes of eight codes */

bool sl_code_can(enum sl_dtype type, size_t n_in)
{
    return type == SL_DTYPE_Q8 || (type == SL_DTYPE_Q5 && n_in % 8 == 0) ||
           (type == SL_DTYPE_Q4 && n_in % 2 == 0);
}

size_t sl_code_bytes(enum sl_dtype type, size_t n_in)
{
    assert(sl_code_can(type, n_in));
    return type == SL_DTYPE_Q8 ? n_in : type == SL_DTYPE_Q5 ? n_in / 8 * EIGHT_Q5 : n_in / 2;
}

static uint8_t code_at(enum sl_dtype type, const uint8_t *codes, size_t k)
{
    if (type == SL_DTYPE_Q8)
        return codes[k];
    if (type == SL_DTYPE_Q4)
        return (uint8_t)(codes[k / 2] >> (k % 2 * 4) & 15);
    const uint8_t *eight = codes + k / 8 * EIGHT_Q5;
    k %= 8;
    return (uint8_t)((eight[k / 2] >> (k % 2 * 4) & 15) | (eight[4] >> k & 1) << 4);
}

/* Into zeros. */
static void put_code(enum sl_dtype type, uint8_t *codes, size_t k, uint8_t code)
{
    if (type == SL_DTYPE_Q8) {
        codes[k] = code;
    } else if (type == SL_DTYPE_Q4) {
        codes[k / 2] |= (uint8_t)(code << (k % 2 * 4));
    } else {
        uint8_t *eight = codes + k / 8 * EIGHT_Q5;
        k %= 8;
        eight[k / 2] |= (uint8_t)((code & 15) << (k % 2 * 4));
        eight[4] |= (uint8_t)(code >> 4 << k);
    }
}

static uint8_t code_of_zero(enum sl_dtype type)
{
    return type == SL_DTYPE_Q8 ? 0 : type == SL_DTYPE_Q5 ? SL_Q4_ZERO : 8; /* of that level */
}

void sl_code_row(uint8_t *codes, uint16_t *scales, enum sl_dtype type, const float *w, size_t n_in)
{
    memset(codes, 0, sl_code_bytes(type, n_in));
    for (size_t k = 0; k < n_in; k += SL_GROUP) {
        size_t n = n_in - k < SL_GROUP ? n_in - k : SL_GROUP;
        float group[SL_GROUP] = {0};
        uint8_t code[SL_GROUP];
        memcpy(group, w + k, n * sizeof *w);
        scales[k / SL_GROUP] = sl_group_codes(code, type, group);
        for (size_t i = 0; i < n; i++)
            put_code(type, codes, k + i, code[i]);
    }
}

void sl_code_values(float *y, enum sl_dtype type, const uint8_t *codes, const void *scales,
                    size_t begin, size_t n)
{
    const unsigned char *s = scales;
    float scale = 0;
    for (size_t k = begin; k < begin + n; k++) {
        uint8_t code = code_at(type, codes, k);
        if (k == begin || k % SL_GROUP == 0)
            sl_widen(&scale, s + k / SL_GROUP * sizeof(uint16_t), SL_DTYPE_F16, 1);
        y[k - begin] = scale * (type == SL_DTYPE_Q8   ? (float)(int8_t)code
                                : type == SL_DTYPE_Q5 ? (float)(code - SL_Q4_ZERO)
                                                      : (float)(sl_q4_levels[code] - SL_Q4_ZERO));
    }
}

void sl_pack_codes(void *dst, enum sl_dtype type, const void *codes, const void *scales,
                   size_t n_out, size_t n_in, size_t panel_begin, size_t panel_end)
{
    size_t n_groups = sl_groups(n_in), bytes = sl_q_panel_bytes(type, n_groups);
    size_t row_bytes = sl_code_bytes(type, n_in);
    for (size_t p = panel_begin; p < panel_end; p++) {
        uint8_t *panel = (uint8_t *)dst + p * bytes, *to = panel + sl_scales_bytes(type, n_groups);
        memset(panel, 0, bytes);
        for (size_t o = 0; o < SL_PANEL; o++) {
            size_t row = p * SL_PANEL + o;
            const uint8_t *from = (const uint8_t *)codes + row * row_bytes;
            const uint8_t *s = (const uint8_t *)scales + row * n_groups * sizeof(uint16_t);
            for (size_t g = 0; g < n_groups; g++) {
                uint8_t code[SL_GROUP];
                for (size_t i = 0; i < SL_GROUP; i++)
                    code[i] = row < n_out && g * SL_GROUP + i < n_in
                                  ? code_at(type, from, g * SL_GROUP + i)
                                  : code_of_zero(type);
                sl_put_codes(to + g * sl_group_bytes(type), type, o, code);
                if (row < n_out)
                    memcpy(panel + (g * SL_PANEL + o) * sizeof(uint16_t), s + g * sizeof(uint16_t),
                           sizeof(uint16_t));
            }
        }
    }
}
