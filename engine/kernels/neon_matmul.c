/* neon_matmul.c: the matrix product of kernels.h with NEON: its tiles; matmul_of.h makes the
 * product of them.
 *
 * A register is 4 outputs, a panel's width four of them. Of 32 registers up to 24 hold sums, more
 * than what hides the latency of FMA. The rows' inputs are loaded four at a time, and FMA takes one
 * of them from its lane, which costs no instruction for spreading it.
 *
 * Rows and panels of the tiles are chosen for the registers and loads that the instructions need;
 * no measurement on an arm64 machine stands behind them. */
#include "engine/kernels/matmul_tile.h"
#include "engine/kernels/neon.h"

enum {
    MAX_ROWS = 5,
    MAX_PANELS = 6,
    BLOCK_PANELS = 1,
    MAX_SUMS = 6, /* rows × panels of a tile, four registers each */
    REGISTERS = 4 /* of a panel's width */
};

/* The 16 weights of a group. */
static ALWAYS_INLINE void weights16(const enum weights type, const char *p, float32x4_t *w)
{
    if (type == F32) {
        const float *f = (const float *)(const void *)p;
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++)
            w[i] = vld1q_f32(f + (ptrdiff_t)4 * i);
        return;
    }
    const uint16_t *h = (const uint16_t *)(const void *)p;
#pragma GCC unroll 2
    for (int i = 0; i < REGISTERS; i += 2) {
        uint16x8_t v = vld1q_u16(h + (ptrdiff_t)4 * i);
        if (type == F16) {
            w[i] = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(v)));
            w[i + 1] = vcvt_high_f32_f16(vreinterpretq_f16_u16(v));
        } else { /* the upper halves of floats */
            w[i] = vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), v));
            w[i + 1] = vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), v));
        }
    }
}

/* One group of weights times one input of each row: lane `lane` of x[row]. */
static ALWAYS_INLINE void add_group(const int rows, const enum weights type, float32x4_t *acc,
                                    const char *p, float *wide, const float32x4_t *x,
                                    const int lane)
{
    float32x4_t w[REGISTERS];
    weights16(type, p, w);
    if (wide) {
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++)
            vst1q_f32(wide + (ptrdiff_t)4 * i, w[i]);
    }
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++)
            acc[REGISTERS * r + i] = vfmaq_n_f32(acc[REGISTERS * r + i], w[i], x[r][lane]);
    }
}

/* Inputs k … k + n - 1 (n: 1 or 4) of all rows and panels; sums are [panel][row][register]. */
static ALWAYS_INLINE void add_inputs(const int n, const int rows, const int panels,
                                     const enum weights type, const bool widens, float32x4_t *acc,
                                     const struct job *j, size_t k)
{
    const size_t group = group_bytes(type);
    float32x4_t x[MAX_ROWS];
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++) {
        const float *p = j->x + (size_t)r * j->ldx + k;
        x[r] = n == 1 ? vdupq_n_f32(*p) : vld1q_f32(p);
    }
#pragma GCC unroll 6
    for (int p = 0; p < panels; p++) {
        const char *w = j->w + (size_t)p * j->w_panel;
        float *wide = j->wide + (size_t)p * K_BLOCK * SL_PANEL;
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            size_t at = k + (size_t)i;
            __builtin_prefetch(j->ahead + (size_t)p * j->ahead_panel + at * j->ahead_step);
            add_group(rows, type, acc + (ptrdiff_t)REGISTERS * rows * p, w + at * group,
                      widens ? wide + at * SL_PANEL : NULL, x, i);
        }
    }
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum weights type,
                               const bool widens, const struct job *job)
{
    float32x4_t acc[MAX_SUMS * REGISTERS];
    const struct job j = *job;
    const int n = rows * panels * REGISTERS, row = REGISTERS, panel = REGISTERS * rows;
#define PLACE(i)                                                                                   \
    (j.y + (size_t)((i) % panel / row) * j.ldy + (size_t)((i) / panel) * SL_PANEL +                \
     (size_t)((i) % row) * 4)
#pragma GCC unroll 24
    for (int i = 0; i < n; i++)
        acc[i] = j.first ? vdupq_n_f32(0) : vld1q_f32(PLACE(i));
    size_t k = 0;
    for (; k + 4 <= j.n_k; k += 4)
        add_inputs(4, rows, panels, type, widens, acc, &j, k);
    for (; k < j.n_k; k++)
        add_inputs(1, rows, panels, type, widens, acc, &j, k);
#pragma GCC unroll 24
    for (int i = 0; i < n; i++)
        vst1q_f32(PLACE(i), acc[i]);
#undef PLACE
}

/* X(rows, panels, type) */
#define BLOCKS(X, TYPE) X(3, 1, TYPE) X(4, 1, TYPE) X(5, 1, TYPE)
#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(1, 6, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(2, 3, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    BLOCKS(X, TYPE)

#define SL_MATMUL sl_neon_matmul
#include "engine/kernels/matmul_of.h"
