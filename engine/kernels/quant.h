/* quant.h: how Q8, Q5 and Q4 matrices lie in memory, and what the codes mean. Private to kernels/.
 *
 * A panel is ceil(n_in / 32) scales of 16 outputs, padded to whole cache lines, and then as many
 * blocks of codes; both start on a cache line. Separate, so that no load of codes crosses a line.
 *
 *   scales   F16, 16 a group: those of the 16 outputs
 *   Q8       512 bytes a group: for s = 0 … 7 the 16 outputs' bytes of inputs 4s … 4s+3: what one
 *            instruction multiplies with four inputs of a row, over all outputs
 *   Q4       256 bytes a group: the same order; byte i of the 32 of a step has, low, the code at i
 *            and, high, the code at i + 32: outputs 0 … 7 and 8 … 15
 *   Q5       320 bytes a group: the low four bits as Q4 has its codes, then 64 bytes of the highest
 *            bits: bit s of byte i is that of code i of step s
 *
 * w = scale · (level - SL_Q4_ZERO). A Q5 code is its level, 0 … 31. A Q4 code is an index of
 * sl_q4_levels[], which lie closer where weights are frequent, and are below 32 as well: so that
 * eight products of a level and an input, of a magnitude of 127 at most, fit in 16 bits:
 * 8 · 31 · 127 = 31,496. */
#ifndef SLATE_KERNELS_QUANT_H
#define SLATE_KERNELS_QUANT_H

#include <math.h>
#include <string.h>

#include "engine/kernels/convert.h"
#include "engine/kernels/tables.h"

enum {
    SL_STEP = 4,                   /* inputs of a step */
    SL_STEPS = SL_GROUP / SL_STEP, /* of a group */
    SL_STEP_CODES = SL_PANEL * SL_STEP,
    SL_GROUP_SCALES = SL_PANEL * 2,    /* bytes */
    SL_Q8_GROUP = SL_PANEL * SL_GROUP, /* bytes */
    SL_Q4_GROUP = SL_PANEL * SL_GROUP / 2,
    SL_Q5_GROUP = SL_Q4_GROUP + SL_STEP_CODES,
    SL_Q4_ZERO = 16
};

/* Q4_0: w = scale · (code - 8), in the same terms. */
extern const uint8_t sl_q4_levels[16], sl_q4_0_levels[16];

static inline const uint8_t *sl_levels_of(enum sl_dtype type)
{
    return type == SL_DTYPE_Q4_0 ? sl_q4_0_levels : sl_q4_levels;
}

/* A matrix of floats as sl_pack_matrix() is told of it. */
struct sl_pack_source {
    const char *data;
    enum sl_dtype type;
    size_t n_out, n_in, stride_out, stride_in; /* in elements */
};

/* The 16 outputs from o on × 32 inputs from k on; what lies beyond n_out and n_in is zero. */
void sl_pack_read(float ret[SL_PANEL][SL_GROUP], const struct sl_pack_source *src, size_t o,
                  size_t k);

void sl_pack_quantised(void *dst, enum sl_dtype type, const struct sl_pack_source *src,
                       size_t panel_begin, size_t panel_end);

/* The codes for 32 weights of an output, and the F16 of their scale. Q8, Q5 or Q4. */
uint16_t sl_group_codes(uint8_t code[SL_GROUP], enum sl_dtype type, const float w[SL_GROUP]);
/* The 32 codes of output o of a panel, at their places in a group of zeros. */
void sl_put_codes(uint8_t *codes, enum sl_dtype type, size_t o, const uint8_t code[SL_GROUP]);

static inline size_t sl_group_bytes(enum sl_dtype type)
{
    return type == SL_DTYPE_Q8     ? SL_Q8_GROUP
           : type == SL_DTYPE_Q5   ? SL_Q5_GROUP
           : type == SL_DTYPE_Q6_K ? SL_Q4_GROUP * 3 / 2
                                   : SL_Q4_GROUP;
}

/* Bytes of the scales of g groups; of the types of kquant.h, which have records of eight, those of
 * the records that they need. */
static inline size_t sl_scales_before(enum sl_dtype type, size_t g)
{
    size_t record = type == SL_DTYPE_Q4_K ? 10 * SL_GROUP_SCALES : 9 * SL_GROUP_SCALES;
    return sl_is_k(type) ? (g + 7) / 8 * record : g * SL_GROUP_SCALES;
}

/* From a panel's start to its codes, and to the next panel. */
static inline size_t sl_scales_bytes(enum sl_dtype type, size_t n_groups)
{
    return (sl_scales_before(type, n_groups) + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
}

static inline size_t sl_q_panel_bytes(enum sl_dtype type, size_t n_groups)
{
    return sl_scales_bytes(type, n_groups) + n_groups * sl_group_bytes(type);
}

/* --- quantise() --- */

/* Of a group whose largest magnitude has the bits `top` (which have the order of magnitudes; NaN is
 * above all): its scale, and what its inputs are multiplied by. False: y is done, all of it. */
static inline bool sl_group_scale(struct sl_group *y, uint32_t top, float *ret_inverse)
{
    float m = sl_f32_from_bits(top);
    bool finite = top < 0x7f800000;
    if (!finite || m < 0x1p-100F) {
        *y = (struct sl_group){.scale = finite ? 0 : NAN};
        return false;
    }
    y->scale = m / 127;
    *ret_inverse = 127 / m;
    return true;
}

/* sum[h][p]: of the inputs of half h that are the first (p 0) or last two of their four. */
static inline void sl_group_sums(struct sl_group *y, const int16_t sum[2][2])
{
    for (size_t i = 0; i < 2; i++) {
        y->half[i] = (int16_t)(-16 * (sum[i][0] + sum[i][1]));
        y->pair[i] = (int16_t)(-16 * (sum[0][i] + sum[1][i]));
    }
    y->offset = y->half[0] + y->half[1];
}

/* A row by what does one group; the last one is filled up with zeros. */
static ALWAYS_INLINE void sl_quantise_row(void (*group)(struct sl_group *y, const float *x),
                                          struct sl_group *y, const float *x, size_t n)
{
    for (; n >= SL_GROUP; n -= SL_GROUP, x += SL_GROUP, y++)
        group(y, x);
    if (n > 0) {
        float rest[SL_GROUP] = {0};
        memcpy(rest, x, n * sizeof *x);
        group(y, rest);
    }
}

#endif
