/* avx512_quant.c: products of Q8 and Q4 matrices with AVX-512 and its dot products of bytes (VNNI).
 *
 * A step's 64 codes are one register: four inputs of 16 outputs. One instruction multiplies them
 * with a row's four inputs and adds up in 32 bits, without saturation. Its first factor is
 * unsigned: Q8 codes are taken plus 128, Q4 levels as they are, and what that adds too much is
 * known of the row's group (its offset, -16 Σ q) and starts the sum.
 *
 * Few rows (up to 4): bound by reading, some panels at once, prefetched ahead. Many rows: the first
 * thing is to make unsigned codes of a block of k, in a buffer; then up to 12 rows at a time. */
#include <assert.h>

#include "engine/kernels/avx512.h"
#include "engine/kernels/quant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 8, /* rows × panels of a tile */
    MAX_ROWS = 12,
    K_GROUPS = 32 /* of a block of k: 16 KiB of codes */
};

static ALWAYS_INLINE __m512i unsigned_codes(const enum sl_dtype type, const uint8_t *w,
                                            const uint8_t *levels)
{
    if (type == SL_DTYPE_Q8)
        return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8((char)0x80));
    const __m256i low = _mm256_set1_epi8(15);
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)levels));
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)w);
    __m256i lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    return _mm512_shuffle_epi8(table, _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}

static ALWAYS_INLINE __m512i four_inputs(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

/* -Σ (what the codes have too much) · q */
static ALWAYS_INLINE __m512i start(const enum sl_dtype type, int32_t offset)
{
    __m512i v = _mm512_set1_epi32(offset);
    return type == SL_DTYPE_Q8 ? _mm512_slli_epi32(v, 3) : v;
}

static ALWAYS_INLINE __m512 scales16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static ALWAYS_INLINE __m512 add_group(__m512 acc, __m512i sum, __m512 d, float s)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, _mm512_set1_ps(s)), acc);
}

/* Some rows × panels over n_groups groups. */
struct job {
    float *y;
    size_t ldy;
    const struct sl_group *x;
    size_t ldx, n_groups;
    const uint8_t *scales, *w;
    size_t panel;          /* bytes from one panel to the next */
    bool first;            /* sums start here, else they go on from y */
    const uint8_t *levels; /* of 4-bit codes */
};

/* `ready`: the codes are unsigned already, 64 bytes a step. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    __m512 acc[MAX_ROWS];
    __m512i sum[MAX_ROWS];
    const struct sl_group *x = j->x;
    const size_t ldx = j->ldx, panel = j->panel;
    const size_t step = ready || type == SL_DTYPE_Q8 ? SL_STEP_CODES : SL_STEP_CODES / 2;
    const uint8_t *w = j->w, *scales = j->scales, *levels = j->levels;
#pragma GCC unroll 12
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i] = j->first ? _mm512_setzero_ps() : _mm512_loadu_ps(y);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        const size_t ahead = sl_ahead(type, j->n_groups, panel, (size_t)panels, g);
#pragma GCC unroll 12
        for (int i = 0; i < rows * panels; i++)
            sum[i] = start(type, x[(size_t)(i % rows) * ldx].offset);
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++, w += step) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const uint8_t *at = w + (size_t)p * panel;
                __m512i v = ready ? _mm512_load_si512(at) : unsigned_codes(type, at, levels);
                if (!ready && (type == SL_DTYPE_Q8 || s % 2 == 0))
                    _mm_prefetch(at + ahead, _MM_HINT_T0);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++)
                    sum[p * rows + r] = _mm512_dpbusd_epi32(
                        sum[p * rows + r], v, four_inputs(x[(size_t)r * ldx].q + s * SL_STEP));
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = scales + (size_t)p * panel;
            __m512 d = scales16(at);
            if (!ready)
                _mm_prefetch(at + (size_t)panels * panel, _MM_HINT_T0);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    add_group(acc[p * rows + r], sum[p * rows + r], d, x[(size_t)r * ldx].scale);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows * panels; i++)
        _mm512_storeu_ps(j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL,
                         acc[i]);
}

typedef void tile_fn(const struct job *j);

#define TILE(R, P, TYPE)                                                                           \
    static void tile_##R##_##P##_##TYPE(const struct job *j)                                       \
    {                                                                                              \
        tile(R, P, SL_DTYPE_##TYPE, false, j);                                                     \
    }
#define READY(R, TYPE)                                                                             \
    static void ready_##R##_##TYPE(const struct job *j)                                            \
    {                                                                                              \
        tile(R, 1, SL_DTYPE_##TYPE, true, j);                                                      \
    }
/* X(rows, panels, type) */
#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(2, 4, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)                                                                                  \
    X(4, 2, TYPE)
/* More than 12 rows come in blocks as equal as can be, which have 6 rows or more. */
#define READIES(X, TYPE)                                                                           \
    X(5, TYPE)                                                                                     \
    X(6, TYPE)                                                                                     \
    X(7, TYPE)                                                                                     \
    X(8, TYPE)                                                                                     \
    X(9, TYPE)                                                                                     \
    X(10, TYPE)                                                                                    \
    X(11, TYPE)                                                                                    \
    X(12, TYPE)
TILES(TILE, Q8)
TILES(TILE, Q4)
READIES(READY, Q8)
READIES(READY, Q4)

#define TILE_ENTRY(R, P, TYPE) [SL_DTYPE_##TYPE - SL_DTYPE_Q8][R][P] = tile_##R##_##P##_##TYPE,
static tile_fn *const tiles[2][FEW_ROWS + 1][MAX_PANELS + 1] = {TILES(TILE_ENTRY, Q8)
                                                                    TILES(TILE_ENTRY, Q4)};
#define READY_ENTRY(R, TYPE) [SL_DTYPE_##TYPE - SL_DTYPE_Q8][R] = ready_##R##_##TYPE,
static tile_fn *const readies[2][MAX_ROWS + 1] = {READIES(READY_ENTRY, Q8)
                                                      READIES(READY_ENTRY, Q4)};

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

static void make_ready(uint8_t *to, enum sl_dtype type, const uint8_t *w, size_t n_groups,
                       const uint8_t *levels)
{
    size_t step = type == SL_DTYPE_Q8 ? SL_STEP_CODES : SL_STEP_CODES / 2;
    for (size_t i = 0; i < n_groups * SL_STEPS; i++, to += SL_STEP_CODES, w += step)
        _mm512_store_si512(to, type == SL_DTYPE_Q8 ? unsigned_codes(SL_DTYPE_Q8, w, levels)
                                                   : unsigned_codes(SL_DTYPE_Q4, w, levels));
}

/* One panel for all rows. */
static void many_rows(const struct job *all, size_t rows, enum sl_dtype type)
{
    _Alignas(SL_ALIGN) uint8_t codes[K_GROUPS * SL_Q8_GROUP];
    const size_t n_blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (size_t g = 0, n; g < all->n_groups; g += n) {
        n = all->n_groups - g < K_GROUPS ? all->n_groups - g : K_GROUPS;
        make_ready(codes, type, all->w + g * sl_group_bytes(type), n, all->levels);
        for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
            end = rows * (i + 1) / n_blocks;
            const struct job j = {.y = all->y + r * all->ldy,
                                  .ldy = all->ldy,
                                  .x = all->x + r * all->ldx + g,
                                  .ldx = all->ldx,
                                  .n_groups = n,
                                  .scales = all->scales + g * SL_GROUP_SCALES,
                                  .w = codes,
                                  .first = g == 0};
            readies[type != SL_DTYPE_Q8][end - r](&j);
        }
    }
}

void sl_avx512_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
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
                    .levels = sl_levels_of(type)};
    if (panel_begin >= panel_end || rows == 0)
        return;
    j.scales = (const uint8_t *)panels + panel_begin * j.panel;
    j.w = j.scales + sl_scales_bytes(n_groups);
    if (rows <= FEW_ROWS || n_in == 0) {
        for (size_t r = 0; r < rows; r += FEW_ROWS, j.x += FEW_ROWS * ldx, j.y += FEW_ROWS * ldy)
            few_rows(j, rows - r < FEW_ROWS ? rows - r : FEW_ROWS, type, panel_end - panel_begin);
        return;
    }
    for (size_t p = panel_begin; p < panel_end; p++) {
        many_rows(&j, rows, type);
        j.y += SL_PANEL;
        j.w += j.panel;
        j.scales += j.panel;
    }
}
