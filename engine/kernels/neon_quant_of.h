/* neon_quant_of.h: products of Q8 and Q4 matrices on arm64; see quant.h for the layout, kernels.h
 * for the order. Included once by each file that multiplies bytes in its own way and has defined
 *
 *   SL_MATMUL_Q           the function's name
 *   MAX_ROWS, MAX_PANELS  of a tile
 *   MAX_SUMS              rows × panels of a tile at most
 *   dots(rows, panels, type, ready, sum, j, w, x)
 *                         sum[panel * rows + row][i] = the integer sums of outputs 4i … 4i + 3 over
 * one group: codes at w, rows' inputs at x; the first four are constants TILES(X, TYPE) X(rows,
 * panels, TYPE) for every tile that there is ROWS(X, TYPE)         X(rows, TYPE) for (MAX_ROWS + 1)
 * / 2 to MAX_ROWS rows
 *
 * Few rows (up to MAX_ROWS): bound by reading the codes; all of k for some rows × panels at once,
 * as many streams as panels. Many rows: bound by arithmetic; blocks of K_GROUPS groups stay in the
 * first cache for all rows, and the levels of 4-bit codes are looked up once, into a buffer. */
#include <assert.h>
#include <string.h>

#include "engine/kernels/neon.h"
#include "engine/kernels/quant.h"

typedef void tile_fn(const struct job *j);

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *job)
{
    float32x4_t acc[MAX_SUMS][REGISTERS];
    int32x4_t sum[MAX_SUMS][REGISTERS];
    const struct job j = *job;
    const struct sl_group *x = j.x;
    const uint8_t *w = j.w, *scales = j.scales;
    const int n = rows * panels * REGISTERS;
#define ROW(i) (i / REGISTERS % rows)
#define PLACE(i)                                                                                   \
    (j.y + (size_t)ROW(i) * j.ldy + (size_t)(i / REGISTERS / rows) * SL_PANEL +                    \
     (size_t)(i % REGISTERS) * 4)
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        acc[i / REGISTERS][i % REGISTERS] = j.first ? vdupq_n_f32(0) : vld1q_f32(PLACE(i));
    for (size_t g = 0; g < j.n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        dots(rows, panels, type, ready, sum, &j, w, x);
        w += ready ? SL_Q8_GROUP : sl_group_bytes(type);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            int at = i / REGISTERS, k = i % REGISTERS;
            const uint8_t *d = scales + (size_t)(at / rows) * j.panel + (size_t)k * 8;
            float32x4_t scale = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(d)));
            scale = vmulq_n_f32(scale, x[(size_t)ROW(i) * j.ldx].scale);
            acc[at][k] = vfmaq_f32(acc[at][k], vcvtq_f32_s32(sum[at][k]), scale);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        vst1q_f32(PLACE(i), acc[i / REGISTERS][i % REGISTERS]);
#undef PLACE
#undef ROW
}

#define TILE(R, P, TYPE)                                                                           \
    static void tile_##R##_##P##_##TYPE(const struct job *j)                                       \
    {                                                                                              \
        tile(R, P, SL_DTYPE_##TYPE, false, j);                                                     \
    }
TILES(TILE, Q8)
TILES(TILE, Q4)

#define READY(R, TYPE)                                                                             \
    static void ready_##R##_##TYPE(const struct job *j)                                            \
    {                                                                                              \
        tile(R, 1, SL_DTYPE_##TYPE, true, j);                                                      \
    }
ROWS(READY, Q8)
ROWS(READY, Q4)

#define TILE_ENTRY(R, P, TYPE) [SL_DTYPE_##TYPE != SL_DTYPE_Q8][R][P] = tile_##R##_##P##_##TYPE,
static tile_fn *const tiles[2][MAX_ROWS + 1][MAX_PANELS + 1] = {TILES(TILE_ENTRY, Q8)
                                                                    TILES(TILE_ENTRY, Q4)};
#define READY_ENTRY(R, TYPE) [SL_DTYPE_##TYPE != SL_DTYPE_Q8][R] = ready_##R##_##TYPE,
static tile_fn *const readies[2][MAX_ROWS + 1] = {ROWS(READY_ENTRY, Q8) ROWS(READY_ENTRY, Q4)};

static void few_rows(struct job j, size_t rows, enum sl_dtype type, size_t n_panels)
{
    tile_fn *const *wide = tiles[type != SL_DTYPE_Q8][rows];
    size_t at_once = MAX_PANELS;
    for (; n_panels > 0; n_panels -= at_once) {
        while (at_once > n_panels || !wide[at_once])
            at_once--;
        wide[at_once](&j);
        j.y += at_once * SL_PANEL;
        j.w += at_once * j.panel;
        j.scales += at_once * j.panel;
    }
}

static void look_up(int8_t *to, int8x16_t levels, const uint8_t *codes, size_t n_groups)
{
    for (size_t i = 0; i < n_groups * SL_STEPS; i++, codes += SL_STEP_CODES / 2) {
        int8x16_t w[REGISTERS];
        step_codes(SL_DTYPE_Q4, false, w, codes, levels);
        for (int k = 0; k < REGISTERS; k++, to += 16)
            vst1q_s8(to, w[k]);
    }
}

/* One panel for all rows. */
static void many_rows(const struct job *all, size_t rows, enum sl_dtype type)
{
    _Alignas(SL_ALIGN) int8_t levels[K_GROUPS * SL_Q8_GROUP];
    const size_t n_blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (size_t g = 0, n; g < all->n_groups; g += n) {
        n = all->n_groups - g < K_GROUPS ? all->n_groups - g : K_GROUPS;
        const uint8_t *w = all->w + g * sl_group_bytes(type);
        if (type != SL_DTYPE_Q8) {
            look_up(levels, all->levels, w, n);
            w = (const uint8_t *)levels;
        }
        for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
            end = rows * (i + 1) / n_blocks;
            const struct job j = {.y = all->y + r * all->ldy,
                                  .ldy = all->ldy,
                                  .x = all->x + r * all->ldx + g,
                                  .ldx = all->ldx,
                                  .n_groups = n,
                                  .scales = all->scales + g * SL_GROUP_SCALES,
                                  .w = w,
                                  .first = g == 0};
            readies[type != SL_DTYPE_Q8][end - r](&j);
        }
    }
}

void SL_MATMUL_Q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                 const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                 size_t panel_end)
{
    assert(sl_is_quantised(type));
    size_t n_groups = sl_groups(n_in);
    struct job j = {.y = y + panel_begin * SL_PANEL,
                    .ldy = ldy,
                    .x = x,
                    .ldx = ldx,
                    .n_groups = n_groups,
                    .panel = sl_q_panel_bytes(type, n_groups),
                    .first = true,
                    .levels = vreinterpretq_s8_u8(
                        vsubq_u8(vld1q_u8(sl_levels_of(type)), vdupq_n_u8(SL_Q4_ZERO)))};
    if (panel_begin >= panel_end || rows == 0)
        return;
    j.scales = (const uint8_t *)panels + panel_begin * j.panel;
    j.w = j.scales + sl_scales_bytes(n_groups);
    if (rows <= MAX_ROWS || n_in == 0) {
        for (size_t r = 0; r < rows; r += MAX_ROWS, j.x += MAX_ROWS * ldx, j.y += MAX_ROWS * ldy)
            few_rows(j, rows - r < MAX_ROWS ? rows - r : MAX_ROWS, type, panel_end - panel_begin);
        return;
    }
    for (size_t p = panel_begin; p < panel_end; p++) {
        many_rows(&j, rows, type);
        j.y += SL_PANEL;
        j.w += j.panel;
        j.scales += j.panel;
    }
}
