/* avx2_matmul.c: the matrix product of kernels.h with AVX2, FMA and F16C.
 *
 * Lanes are outputs, so a register of sums holds 8 outputs of one row, and how rows and panels are
 * blocked changes no sum. FMA has a latency of four or five cycles and issues twice a cycle: ten
 * independent sums or more keep it busy, and 12 of the 16 registers hold them.
 *
 * Few rows (up to 6): the product is bound by reading the weights. R rows × P panels are done at
 * once, R·P ≤ 6, over all of k; weights are widened in registers as they come. Several panels at
 * once are several streams of reads, which memory serves faster than one. The processor's own
 * prefetching does not run far enough ahead: each stream asks for what it needs in some
 * AHEAD_BYTES (over all streams; measured: 10 to 60 % faster, the most with one stream).
 *
 * Many rows: bound by arithmetic. k is cut into blocks of K_BLOCK inputs and panels into groups of
 * GROUP_PANELS; up to 6 rows at a time run over such a block, so that their inputs stay in the
 * first cache for all panels of the group, which halves what is read again from the caches behind.
 * The first rows widen the weights on their way into a buffer, from where the other rows have them;
 * meanwhile all rows prefetch the next block, a little with every k, so that neither widening nor
 * memory ever stands alone. Sums are carried from block to block through y. */
#include <assert.h>

#include "engine/kernels/avx2.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
    MAX_TILE_ROWS = 6,
    MAX_TILE_PANELS = 6,
    MAX_TILE_SUMS = 6, /* rows × panels of a tile, two registers each */
    K_BLOCK = 128,
    GROUP_PANELS = 4, /* the buffer: 32 KiB, for the second cache */
    AHEAD_BYTES = 8192
};

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

/* One group of weights for all rows. With several panels it is the rows' inputs that stay in
 * registers from one panel to the next, and the halves of the weights come one after the other;
 * with one panel it is the weights that stay. Either way 16 registers are enough. */
static ALWAYS_INLINE void tile_step(const int rows, const bool by_half, const enum weights type,
                                    struct pair *acc, const char *w, const float *x, size_t ldx)
{
    if (by_half) {
        __m256 lo = weights16(type, w).lo;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            acc[r].lo = _mm256_fmadd_ps(lo, _mm256_broadcast_ss(x + (size_t)r * ldx), acc[r].lo);
        __m256 hi = weights16(type, w).hi;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            acc[r].hi = _mm256_fmadd_ps(hi, _mm256_broadcast_ss(x + (size_t)r * ldx), acc[r].hi);
        return;
    }
    struct pair v = weights16(type, w);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx);
        acc[r].lo = _mm256_fmadd_ps(v.lo, xk, acc[r].lo);
        acc[r].hi = _mm256_fmadd_ps(v.hi, xk, acc[r].hi);
    }
}

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
            const char *wp = w + (size_t)p * panel;
            _mm_prefetch(wp + AHEAD_BYTES / panels, _MM_HINT_T0);
            tile_step(rows, panels > 1, type, &acc[(size_t)p * (size_t)rows], wp, x + k, ldx);
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

/* One panel's block for up to 6 rows. */
struct block {
    float *y;
    size_t ldy;
    const float *x;
    size_t ldx;
    const char *w; /* n_k groups of the panel */
    float *wide;   /* where they are left as f32 (F16 and BF16) */
    size_t n_k;
    bool first;        /* sums start here, else they go on from y */
    const char *ahead; /* what will be needed next; ahead_step bytes of it are fetched per k */
    size_t ahead_step;
};

/* Outputs in order, unlike weights16(). */
static ALWAYS_INLINE struct pair ordered16(const enum weights type, const char *p)
{
    if (type != BF16)
        return weights16(type, p);
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)));
    return (struct pair){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                         _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

static ALWAYS_INLINE void block(const int rows, const enum weights type, const struct block *b)
{
    struct pair acc[MAX_TILE_ROWS];
    const size_t group = group_bytes(type), ldx = b->ldx, n_k = b->n_k, step = b->ahead_step;
    const float *x = b->x;
    const char *w = b->w, *ahead = b->ahead;
    float *wide = b->wide;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const float *p = b->y + (size_t)r * b->ldy;
        acc[r] = b->first ? (struct pair){_mm256_setzero_ps(), _mm256_setzero_ps()}
                          : (struct pair){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
    }
    for (size_t k = 0; k < n_k; k++, w += group, ahead += step) {
        struct pair v = ordered16(type, w);
        if (type != F32) {
            _mm256_store_ps(wide, v.lo);
            _mm256_store_ps(wide + 8, v.hi);
            wide += SL_PANEL;
        }
        _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx + k);
            acc[r].lo = _mm256_fmadd_ps(v.lo, xk, acc[r].lo);
            acc[r].hi = _mm256_fmadd_ps(v.hi, xk, acc[r].hi);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *p = b->y + (size_t)r * b->ldy;
        _mm256_storeu_ps(p, acc[r].lo);
        _mm256_storeu_ps(p + 8, acc[r].hi);
    }
}

typedef void block_fn(const struct block *b);

#define BLOCK(R, TYPE)                                                                             \
    static void block_##R##_##TYPE(const struct block *b)                                          \
    {                                                                                              \
        block(R, TYPE, b);                                                                         \
    }
/* Rows come in blocks as equal as can be, so that seven are three and four. */
#define BLOCKS(X, TYPE) X(3, TYPE) X(4, TYPE) X(5, TYPE) X(6, TYPE)
BLOCKS(BLOCK, F32)
BLOCKS(BLOCK, F16)
BLOCKS(BLOCK, BF16)

#define BLOCK_ENTRY(R, TYPE) [TYPE][R] = block_##R##_##TYPE,
static block_fn *const blocks[N_WEIGHTS][MAX_TILE_ROWS + 1] = {
    BLOCKS(BLOCK_ENTRY, F32) BLOCKS(BLOCK_ENTRY, F16) BLOCKS(BLOCK_ENTRY, BF16)};

struct many {
    float *y;
    size_t ldy;
    const float *x;
    size_t ldx, rows, n_in;
    const char *w; /* the first of the panels */
    enum weights type;
};

/* Inputs [k, k + n_k) of n_panels panels for all rows. The first rows widen the weights for the
 * others, and all fetch what comes next, each its share. */
static void group_block(const struct many *m, float *wide, size_t n_panels, size_t k, size_t n_k)
{
    const size_t group = group_bytes(m->type), panel = m->n_in * group;
    const size_t n_blocks = (m->rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    const size_t next = k + n_k < m->n_in ? n_k * group : n_panels * panel - k * group;
    const size_t step = (group + n_blocks - 1) / n_blocks;
    for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
        end = m->rows * (i + 1) / n_blocks;
        for (size_t p = 0; p < n_panels; p++) {
            const char *w = m->w + p * panel + k * group;
            struct block b = {
                .y = m->y + r * m->ldy + p * SL_PANEL,
                .ldy = m->ldy,
                .x = m->x + r * m->ldx + k,
                .ldx = m->ldx,
                .w = w,
                .wide = wide + p * K_BLOCK * SL_PANEL,
                .n_k = n_k,
                .first = k == 0,
                .ahead = w + next + i * n_k * step,
                .ahead_step = step,
            };
            if (i > 0 && m->type != F32) {
                b.w = (const char *)b.wide;
                blocks[F32][end - r](&b);
            } else {
                blocks[m->type][end - r](&b);
            }
        }
    }
}

static void many_rows(struct many *m, size_t n_panels)
{
    _Alignas(SL_ALIGN) float wide[GROUP_PANELS * K_BLOCK * SL_PANEL];
    for (size_t p = 0, n; p < n_panels; p += n) {
        n = n_panels - p < GROUP_PANELS ? n_panels - p : GROUP_PANELS;
        for (size_t k = 0, n_k; k < m->n_in; k += n_k) {
            n_k = m->n_in - k < K_BLOCK ? m->n_in - k : K_BLOCK;
            group_block(m, wide, n, k, n_k);
        }
        m->y += n * SL_PANEL;
        m->w += n * m->n_in * group_bytes(m->type);
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
    struct many m = {y, ldy, x, ldx, rows, n_in, w, t};
    many_rows(&m, panel_end - panel_begin);
}
