/* avx2_q8_rows.c: products of Q8 matrices with many rows, in 16 bits. Part of the AVX2 table; see
 * quant.h for the layout, kernels.h for the order.
 *
 * maddubs wants an unsigned factor, so bytes cost four instructions for 32 products: a sign, two
 * multiplications, an addition. Of 16 bits madd takes two signed factors: two multiplications and
 * two additions for as many products, the additions where no multiplication could run. (Zen 3, one
 * core, 32 rows: 140 against 126 thousand million operations a second.) What it takes is codes and
 * inputs of 16 bits: each is widened once for many uses.
 *
 * A step's four inputs are widened by shifts, the even ones of 32 bits and the odd ones, and so are
 * the codes: a register of codes multiplies inputs 4s and 4s + 2, or 4s + 1 and 4s + 3, of 8
 * outputs.
 *
 * Up to ALL_ROWS rows and GROUPS groups of all panels are one block: its inputs are widened into a
 * buffer for the second cache. Rows come up to ROWS at a time; the first of them that go through a
 * panel's codes widen these on their way, into a buffer for the first cache, and ask memory for
 * those that come next. Sums go on from block to block through y. */
#include "engine/kernels/avx2_quant.h"

enum { ROWS = 6, GROUPS = 16, ALL_ROWS = 96, ROW_BLOCKS = ALL_ROWS / ROWS };

/* Rows' inputs: of each group the even ones, then the odd ones. */
struct inputs {
    int16_t q[ROWS][GROUPS][SL_GROUP];
    float scale[ROWS][GROUPS];
};

/* Some rows × 16 outputs over n_groups groups. */
struct tile {
    float *y;
    size_t ldy, n_groups;
    bool first; /* sums start here, else they go on from y */
    const struct inputs *x;
    const uint8_t *scales, *codes;
    int16_t *wide; /* the codes in 16 bits, SL_STEP_CODES a step: even ones, then odd ones */
    ptrdiff_t ahead, ahead_d; /* bytes from codes, and from scales, to those that come next */
};

static ALWAYS_INLINE __m256i even_of(__m256i bytes)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}

static ALWAYS_INLINE __m256i odd_of(__m256i bytes)
{
    return _mm256_srai_epi16(bytes, 8);
}

static ALWAYS_INLINE void store32(void *p, __m256i v)
{
    _mm256_store_si256((__m256i *)p, v);
}

static void widen_inputs(struct inputs *to, const struct sl_group *x, size_t ldx, size_t rows,
                         size_t n_groups)
{
    for (size_t r = 0; r < rows; r++, x += ldx)
        for (size_t g = 0; g < n_groups; g++) {
            __m256i q = load32(x[g].q);
            store32(to->q[r][g], even_of(q));
            store32(to->q[r][g] + SL_GROUP / 2, odd_of(q));
            to->scale[r][g] = x[g].scale;
        }
}

/* Adds the products of a step's even or odd inputs, which lie at x of the first row. */
static ALWAYS_INLINE void add(const int rows, const bool first, struct pair *sum, struct pair w,
                              const int16_t *x)
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        int32_t two;
        memcpy(&two, x + (ptrdiff_t)r * GROUPS * SL_GROUP, sizeof two);
        __m256i q = _mm256_set1_epi32(two);
        __m256i lo = _mm256_madd_epi16(w.lo, q), hi = _mm256_madd_epi16(w.hi, q);
        sum[r].lo = first ? lo : so_far(_mm256_add_epi32(sum[r].lo, lo));
        sum[r].hi = first ? hi : so_far(_mm256_add_epi32(sum[r].hi, hi));
    }
}

static ALWAYS_INLINE void tile(const int rows, const bool widens, const struct tile *t)
{
    __m256 lo[ROWS], hi[ROWS];
    struct pair sum[ROWS];
    const __m256 zero = _mm256_setzero_ps();
    const uint8_t *codes = t->codes, *scales = t->scales;
    int16_t *wide = t->wide;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *y = t->y + (size_t)r * t->ldy;
        lo[r] = t->first ? zero : _mm256_loadu_ps(y);
        hi[r] = t->first ? zero : _mm256_loadu_ps(y + 8);
    }
    for (size_t g = 0; g < t->n_groups; g++, scales += SL_GROUP_SCALES) {
        const int16_t *x = t->x->q[0][g];
        if (widens)
            _mm_prefetch(scales + t->ahead_d, _MM_HINT_T1);
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++, wide += SL_STEP_CODES) {
            struct pair even, odd;
            if (widens) {
                __m256i a = load32(codes), b = load32(codes + 32);
                _mm_prefetch(codes + t->ahead, _MM_HINT_T1);
                even = (struct pair){even_of(a), even_of(b)};
                odd = (struct pair){odd_of(a), odd_of(b)};
                store32(wide, even.lo);
                store32(wide + 16, even.hi);
                store32(wide + 32, odd.lo);
                store32(wide + 48, odd.hi);
                codes += SL_STEP_CODES;
            } else {
                even = (struct pair){load32(wide), load32(wide + 16)};
                odd = (struct pair){load32(wide + 32), load32(wide + 48)};
            }
            add(rows, s == 0, sum, even, x + 2 * s);
            add(rows, false, sum, odd, x + SL_GROUP / 2 + 2 * s);
        }
        __m256 d_lo = scales8(scales), d_hi = scales8(scales + 16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float scale = t->x->scale[r][g];
            lo[r] = add_group(lo[r], sum[r].lo, d_lo, scale);
            hi[r] = add_group(hi[r], sum[r].hi, d_hi, scale);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *y = t->y + (size_t)r * t->ldy;
        _mm256_storeu_ps(y, lo[r]);
        _mm256_storeu_ps(y + 8, hi[r]);
    }
}

/* Of five rows or more every block has three or more, as it is asked for more than four rows. */
#define TILES(X) X(3) X(4) X(5) X(6)
#define TILE(R)                                                                                    \
    static void tile_##R(const struct tile *t)                                                     \
    {                                                                                              \
        tile(R, false, t);                                                                         \
    }                                                                                              \
    static void widening_##R(const struct tile *t)                                                 \
    {                                                                                              \
        tile(R, true, t);                                                                          \
    }
TILES(TILE)

typedef void tile_fn(const struct tile *t);
#define ENTRY(R) [R] = {tile_##R, widening_##R},
static tile_fn *const tiles[ROWS + 1][2] = {TILES(ENTRY)};

static size_t row_blocks(size_t rows)
{
    return (rows + ROWS - 1) / ROWS;
}

/* Of block i of some rows. */
static size_t first_row(size_t i, size_t rows)
{
    return rows * i / row_blocks(rows);
}

/* How far from groups [g, g + n_groups) of panel p, of `bytes` each, lie those that come next: of
 * the next panel, or the next groups of the first one; at the end what a next call would begin
 * with. */
static ptrdiff_t to_next(const struct job *all, size_t p, size_t n_panels, size_t g,
                         size_t n_groups, size_t bytes)
{
    ptrdiff_t panel = (ptrdiff_t)all->panel;
    if (p + 1 < n_panels)
        return panel;
    if (g + n_groups < all->n_groups)
        return (ptrdiff_t)(n_groups * bytes) - (ptrdiff_t)p * panel;
    return panel - (ptrdiff_t)(g * bytes);
}

/* The product with groups [g, g + n_groups) of all panels. */
static void add_groups(const struct job *all, size_t rows, size_t n_panels, size_t g,
                       size_t n_groups)
{
    _Alignas(SL_ALIGN) int16_t wide[GROUPS * SL_Q8_GROUP];
    _Alignas(SL_ALIGN) struct inputs x[ROW_BLOCKS];
    const size_t n_blocks = row_blocks(rows);
    for (size_t i = 0; i < n_blocks; i++)
        widen_inputs(&x[i], all->x + first_row(i, rows) * all->ldx + g, all->ldx,
                     first_row(i + 1, rows) - first_row(i, rows), n_groups);
    for (size_t p = 0; p < n_panels; p++) {
        const uint8_t *scales = all->scales + p * all->panel + g * SL_GROUP_SCALES;
        const uint8_t *codes = all->w + p * all->panel + g * SL_Q8_GROUP;
        for (size_t i = 0; i < n_blocks; i++) {
            size_t r = first_row(i, rows), end = first_row(i + 1, rows);
            const struct tile t = {.y = all->y + r * all->ldy + p * SL_PANEL,
                                   .ldy = all->ldy,
                                   .n_groups = n_groups,
                                   .first = g == 0,
                                   .x = &x[i],
                                   .scales = scales,
                                   .codes = codes,
                                   .wide = wide,
                                   .ahead = to_next(all, p, n_panels, g, n_groups, SL_Q8_GROUP),
                                   .ahead_d =
                                       to_next(all, p, n_panels, g, n_groups, SL_GROUP_SCALES)};
            sl_ask_outputs(t.y, t.ldy, end - r, 1);
            tiles[end - r][i == 0](&t);
        }
    }
}

static void some_rows(const struct job *all, size_t rows, size_t n_panels)
{
    const size_t n_blocks = (all->n_groups + GROUPS - 1) / GROUPS;
    for (size_t i = 0, g = 0, end; i < n_blocks; i++, g = end) {
        end = all->n_groups * (i + 1) / n_blocks;
        add_groups(all, rows, n_panels, g, end - g);
    }
}

void sl_avx2_q8_rows(const struct job *all, size_t rows, size_t n_panels)
{
    const size_t n_blocks = (rows + ALL_ROWS - 1) / ALL_ROWS;
    struct job j = *all;
    for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
        end = rows * (i + 1) / n_blocks;
        j.y = all->y + r * all->ldy;
        j.x = all->x + r * all->ldx;
        some_rows(&j, end - r, n_panels);
    }
}
