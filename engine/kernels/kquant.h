/* kquant.h: how Q4_K and Q6_K matrices lie in memory. Private to kernels/.
 *
 * As Q8, Q5 and Q4 (quant.h): a panel is the scales of 16 outputs, padded to whole cache lines, and
 * then blocks of codes, one for each group of 32 inputs. But eight groups have a scale in common,
 * with whole numbers of 8 bits below it, as the blocks of a GGUF file have: what is read per
 * product is what the file has, and the values are the file's own.
 *
 *   scales   of eight groups:
 *            Q4_K  320 bytes: F16 d[16]; F16 m[16]; for each group u8 s[16] and u8 n[16]
 *                  w = (d s) code - m n
 *            Q6_K  288 bytes: F16 d[16]; for each group i8 s[16] of its first 16 inputs, and i8
 *                  s[16] of the last
 *                  w = (d s) (code - 32)
 *   Q4_K     256 bytes a group, codes as those of Q4
 *   Q6_K     384 bytes a group: the low four bits of all codes as those of Q4, then 16 bytes a
 * step: byte i has, from the lowest on, the two high bits of the codes i, i + 16, i + 32, i + 48
 *
 * Sums in 16 bits, of products with inputs of at most 127: Q4_K all eight steps, two inputs each:
 * 16 · 15 · 127 = 30,480. Q6_K two steps: 4 · 63 · 127 = 32,004; from the zero four steps of one
 * input: 4 · 32 · 127. With the scales in them a group's sums are below 2^24 (kernels.h), so that
 * they are exact in F32, too. */
#ifndef SLATE_KERNELS_KQUANT_H
#define SLATE_KERNELS_KQUANT_H

#include "engine/kernels/quant.h"

enum {
    SL_K_GROUPS = 8,                 /* that have their scales in one record */
    SL_K_GROUP_SCALES = 2 * SL_PANEL /* bytes of a group in it */
};

static inline size_t sl_k_record(enum sl_dtype type)
{
    return sl_scales_before(type, SL_K_GROUPS);
}

/* Of a record, where it says F16 m. */
enum { SL_Q4_K_MINS = SL_PANEL * 2 };

/* Of a record: from its start to those of its group i. */
static inline size_t sl_k_group_at(enum sl_dtype type, size_t i)
{
    size_t halves = type == SL_DTYPE_Q4_K ? 2 : 1; /* d, or d and m */
    return halves * SL_GROUP_SCALES + i * SL_K_GROUP_SCALES;
}

/* What a minimum counts for: beside a group's offset, which is -16 Σ q. */
#define SL_K_MIN_FACTOR 0x1p-4F

/* From a group's codes to the high bits of Q6_K. */
enum { SL_Q6_K_HIGH = SL_Q4_GROUP, SL_Q6_K_STEP_HIGH = SL_STEP_CODES / 4 };

/* What matmul_q does with these types. */
void sl_ref_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                     const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                     size_t panel_end);
#ifdef __x86_64__
void sl_avx2_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end);
void sl_avx2vnni_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                          const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                          size_t panel_end);
void sl_avx512_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                        const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                        size_t panel_end);
#endif
#ifdef __aarch64__
void sl_neon_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end);
void sl_neondot_matmul_k(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                         const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                         size_t panel_end);
#endif

/* sl_pack_blocks() of these types. */
void sl_pack_k_blocks(void *dst, enum sl_dtype type, const void *rows, size_t n_out, size_t n_in,
                      size_t panel_begin, size_t panel_end);

#endif
