/* avx2_matmul.c: the matrix product of kernels.h with AVX2, FMA and F16C.
 *
 * Lanes are outputs, so a register of sums holds 8 outputs of one row, and how rows and panels are
 * blocked changes no sum. FMA has a latency of four or five cycles and issues twice a cycle: ten
 * independent sums or more keep it busy, and 12 of the 16 registers hold them.
 *
 * Few rows (up to 6): the product is bound by reading the weights. R rows × P panels are done at
 * once, R·P ≤ 6, over all of k; weights are widened in registers as they come. Several panels at
 * once are several streams of reads, which memory serves faster than one.
 *
 * Many rows: bound by arithmetic. k is cut into blocks of K_BLOCK, whose weights are widened once
 * into a buffer that stays in the first cache; then up to 6 rows at a time run over it, with their
 * sums carried from block to block through y. */
#include <assert.h>

#include "engine/kernels/avx2.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { MAX_TILE_ROWS = 6, MAX_TILE_PANELS = 6, MAX_TILE_SUMS = 6, K_BLOCK = 256 };

/* Types as the tables below are indexed. */
enum weights { F32, F16, BF16, N_WEIGHTS };

struct pair {
    __m256 lo, hi;
};

/* The 16 weights of a group. BF16: the even ones in lo, the odd ones in hi, which takes two cheap
 * instructions; outputs() puts sums in order at the end. */
static ALWAYS_INLINE struct pair weights16(const enum weights type, const char *p)
{
    if (type == F32)
        return (struct pair){_mm256_loadu_ps((const float *)(const void *)p),
                             _mm256_loadu_ps((const float *)(const void *)(p + 32))};
    if (type == F16)
        return (struct pair){
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
    __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (struct pair){_mm256_castsi256_ps(_mm256_slli_epi32(two, 16)),
                         _mm256_castsi256_ps(_mm256_and_si256(two, upper))};
}

static ALWAYS_INLINE struct pair outputs(const enum weights type, struct pair a)
{
    if (type != BF16)
        return a;
    __m256 lo = _mm256_unpacklo_ps(a.lo, a.hi), hi = _mm256_unpackhi_ps(a.lo, a.hi);
    return (struct pair){_mm256_permute2f128_ps(lo, hi, 0x20),
                         _mm256_permute2f128_ps(lo, hi, 0x31)};
}

static ALWAYS_INLINE size_t group_bytes(const enum weights type)
{
    return type == F32 ? 64 : 32;
}

/* --- few rows ----------------------------------------------------------------------------------
 */

/* rows × panels at once; w points at the first panel. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum weights type, float *y,
                               size_t ldy, const float *x, size_t ldx, const char *w, size_t n_in)
{
    struct pair acc[MAX_TILE_SUMS];
    const size_t group = group_bytes(type), panel = n_in * group;
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++)
        acc[i] = (struct pair){_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t k = 0; k < n_in; k++, w += group) {
#pragma GCC unroll 6
        for (int p = 0; p < panels; p++) {
            struct pair v = weights16(type, w + (size_t)p * panel);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx + k);
                struct pair *a = &acc[p * rows + r];
                a->lo = _mm256_fmadd_ps(v.lo, xk, a->lo);
                a->hi = _mm256_fmadd_ps(v.hi, xk, a->hi);
            }
        }
    }
#pragma GCC unroll 6
    for (int p = 0; p < panels; p++) {
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            struct pair o = outputs(type, acc[p * rows + r]);
            _mm256_storeu_ps(y + (size_t)r * ldy + (size_t)p * SL_PANEL, o.lo);
            _mm256_storeu_ps(y + (size_t)r * ldy + (size_t)p * SL_PANEL + 8, o.hi);
        }
    }
}

typedef void tile_fn(float *y, size_t ldy, const float *x, size_t ldx, const char *w, size_t n_in);

#define TILE(R, P, TYPE)                                                                           \
    static void tile_##R##_##P##_##TYPE(float *y, size_t ldy, const float *x, size_t ldx,          \
                                        const char *w, size_t n_in)                                \
    {                                                                                              \
        tile(R, P, TYPE, y, ldy, x, ldx, w, n_in);                                                 \
    }
/* X(rows, panels, type) */
#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(1, 6, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(2, 3, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)                                                                                  \
    X(5, 1, TYPE)                                                                                  \
    X(6, 1, TYPE)
TILES(TILE, F32)
TILES(TILE, F16)
TILES(TILE, BF16)

#define ENTRY(R, P, TYPE) [TYPE][R][P] = tile_##R##_##P##_##TYPE,
static tile_fn *const tiles[N_WEIGHTS][MAX_TILE_ROWS + 1][MAX_TILE_PANELS + 1] = {
    TILES(ENTRY, F32) TILES(ENTRY, F16) TILES(ENTRY, BF16)};

static void few_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, const char *w,
                     enum weights type, size_t n_in, size_t n_panels)
{
    tile_fn *const *wide = tiles[type][rows];
    size_t at_once = MAX_TILE_PANELS;
    while (n_panels > 0) {
        while (at_once > n_panels || !wide[at_once])
            at_once--;
        wide[at_once](y, ldy, x, ldx, w, n_in);
        y += at_once * SL_PANEL;
        w += at_once * n_in * group_bytes(type);
        n_panels -= at_once;
    }
}

/* --- many rows ---------------------------------------------------------------------------------
 */

/* Adds n_k inputs' worth to the sums in y, or starts them. */
static ALWAYS_INLINE void block(const int rows, float *y, size_t ldy, const float *x, size_t ldx,
                                const float *w, size_t n_k, bool first)
{
    struct pair acc[MAX_TILE_ROWS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const float *p = y + (size_t)r * ldy;
        acc[r] = first ? (struct pair){_mm256_setzero_ps(), _mm256_setzero_ps()}
                       : (struct pair){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
    }
    for (size_t k = 0; k < n_k; k++, w += SL_PANEL) {
        __m256 lo = _mm256_loadu_ps(w), hi = _mm256_loadu_ps(w + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx + k);
            acc[r].lo = _mm256_fmadd_ps(lo, xk, acc[r].lo);
            acc[r].hi = _mm256_fmadd_ps(hi, xk, acc[r].hi);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *p = y + (size_t)r * ldy;
        _mm256_storeu_ps(p, acc[r].lo);
        _mm256_storeu_ps(p + 8, acc[r].hi);
    }
}

static void block_rows(size_t rows, float *y, size_t ldy, const float *x, size_t ldx,
                       const float *w, size_t n_k, bool first)
{
    switch (rows) {
    case 3:
        block(3, y, ldy, x, ldx, w, n_k, first);
        break;
    case 4:
        block(4, y, ldy, x, ldx, w, n_k, first);
        break;
    case 5:
        block(5, y, ldy, x, ldx, w, n_k, first);
        break;
    default:
        assert(rows == MAX_TILE_ROWS);
        block(MAX_TILE_ROWS, y, ldy, x, ldx, w, n_k, first);
    }
}

static ALWAYS_INLINE void widen(const enum weights type, float *y, const char *w, size_t n_k)
{
    for (size_t k = 0; k < n_k; k++) {
        struct pair v = outputs(type, weights16(type, w + k * group_bytes(type)));
        _mm256_store_ps(y + k * SL_PANEL, v.lo);
        _mm256_store_ps(y + k * SL_PANEL + 8, v.hi);
    }
}

static void many_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, const char *w,
                      enum weights type, size_t n_in, size_t n_panels)
{
    _Alignas(SL_ALIGN) float buffer[K_BLOCK * SL_PANEL];
    const size_t n_blocks = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    for (size_t p = 0; p < n_panels; p++, y += SL_PANEL) {
        for (size_t k = 0; k < n_in; k += K_BLOCK) {
            size_t n_k = n_in - k < K_BLOCK ? n_in - k : K_BLOCK;
            const float *wide = buffer;
            if (type == F32)
                wide = (const float *)(const void *)w;
            else if (type == F16)
                widen(F16, buffer, w, n_k);
            else
                widen(BF16, buffer, w, n_k);
            w += n_k * group_bytes(type);
            for (size_t b = 0, r = 0; b < n_blocks; b++) {
                size_t end = rows * (b + 1) / n_blocks; /* blocks as equal as can be */
                block_rows(end - r, y + r * ldy, ldy, x + r * ldx + k, ldx, wide, n_k, k == 0);
                r = end;
            }
        }
    }
}

void sl_avx2_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                    const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                    size_t panel_end)
{
    assert(type == SL_DTYPE_F32 || type == SL_DTYPE_F16 || type == SL_DTYPE_BF16);
    enum weights t = type == SL_DTYPE_F32 ? F32 : type == SL_DTYPE_F16 ? F16 : BF16;
    const char *w = (const char *)panels + panel_begin * n_in * group_bytes(t);
    y += panel_begin * SL_PANEL;
    if (panel_begin >= panel_end || rows == 0)
        return;
    if (rows <= MAX_TILE_ROWS || n_in == 0) {
        for (size_t r = 0; r < rows; r += MAX_TILE_ROWS) {
            size_t n = rows - r < MAX_TILE_ROWS ? rows - r : MAX_TILE_ROWS;
            few_rows(y + r * ldy, ldy, x + r * ldx, ldx, n, w, t, n_in, panel_end - panel_begin);
        }
        return;
    }
    many_rows(y, ldy, x, ldx, rows, w, t, n_in, panel_end - panel_begin);
}
