/* avx2_matmul.c: the matrix product of kernels.h with AVX2, FMA and F16C: its tiles; matmul_of.h
 * makes the product of them.
 *
 * Lanes are outputs, so a register of sums holds 8 outputs of one row. FMA has a latency of four or
 * five cycles and issues twice a cycle: ten independent sums or more keep it busy, and 12 of the 16
 * registers hold them. */
#include "engine/kernels/avx2.h"
#include "engine/kernels/matmul_tile.h"

enum {
    MAX_ROWS = 6,
    MAX_PANELS = 6,
    BLOCK_PANELS = 1,
    MAX_SUMS = 6 /* rows × panels of a tile, two registers each */
};

struct pair {
    __m256 lo, hi;
};

/* The 16 weights of a group. BF16, unless they are to be in `order`: the even ones in lo, the odd
 * ones in hi, which takes two cheap instructions; in_order() puts sums in order at the end. */
static ALWAYS_INLINE struct pair weights16(const enum weights type, const bool order, const char *p)
{
    const float *f = (const float *)(const void *)p;
    const __m128i *h = (const __m128i *)(const void *)p;
    if (type == F32)
        return (struct pair){_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
    if (type == F16)
        return (struct pair){_mm256_cvtph_ps(_mm_loadu_si128(h)),
                             _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
    if (order) {
        __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
        __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
        return (struct pair){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                             _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
    }
    __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (struct pair){_mm256_castsi256_ps(_mm256_slli_epi32(two, 16)),
                         _mm256_castsi256_ps(_mm256_and_si256(two, upper))};
}

static ALWAYS_INLINE struct pair in_order(struct pair a)
{
    __m256 lo = _mm256_unpacklo_ps(a.lo, a.hi), hi = _mm256_unpackhi_ps(a.lo, a.hi);
    return (struct pair){_mm256_permute2f128_ps(lo, hi, 0x20),
                         _mm256_permute2f128_ps(lo, hi, 0x31)};
}

/* One group of weights for all rows, of one of several panels: it is the rows' inputs that stay in
 * registers from one panel to the next, and the halves of the weights come one after the other.
 * With one panel it is the weights that stay. Either way 16 registers are enough. */
static ALWAYS_INLINE void add_halves(const int rows, const enum weights type, struct pair *acc,
                                     const char *w, const float *x, size_t ldx)
{
    __m256 lo = weights16(type, false, w).lo;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        acc[r].lo = _mm256_fmadd_ps(lo, _mm256_broadcast_ss(x + (size_t)r * ldx), acc[r].lo);
    __m256 hi = weights16(type, false, w).hi;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        acc[r].hi = _mm256_fmadd_ps(hi, _mm256_broadcast_ss(x + (size_t)r * ldx), acc[r].hi);
}

static ALWAYS_INLINE void add_pair(const int rows, struct pair *acc, struct pair w, const float *x,
                                   size_t ldx)
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx);
        acc[r].lo = _mm256_fmadd_ps(w.lo, xk, acc[r].lo);
        acc[r].hi = _mm256_fmadd_ps(w.hi, xk, acc[r].hi);
    }
}

/* Sums are [panel][row]. A tile of BF16 that does not widen starts its sums: it has them in another
 * order on the way. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum weights type,
                               const bool widens, const struct job *j)
{
    struct pair acc[MAX_SUMS];
    const size_t group = group_bytes(type), ldx = j->ldx, ldy = j->ldy, n_k = j->n_k;
    const size_t w_panel = j->w_panel, ahead_panel = j->ahead_panel, ahead_step = j->ahead_step;
    const float *x = j->x;
    const char *w = j->w, *ahead = j->ahead;
    float *wide = j->wide;
#define PLACE(i) (j->y + (size_t)((i) % rows) * ldy + (size_t)((i) / rows) * SL_PANEL)
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++)
        acc[i] = j->first ? (struct pair){_mm256_setzero_ps(), _mm256_setzero_ps()}
                          : (struct pair){_mm256_loadu_ps(PLACE(i)), _mm256_loadu_ps(PLACE(i) + 8)};
    for (size_t k = 0; k < n_k; k++, w += group, ahead += ahead_step, x++) {
#pragma GCC unroll 6
        for (int p = 0; p < panels; p++) {
            _mm_prefetch(ahead + (size_t)p * ahead_panel, _MM_HINT_T1);
            if (panels > 1) {
                add_halves(rows, type, acc + (ptrdiff_t)p * rows, w + (size_t)p * w_panel, x, ldx);
                continue;
            }
            struct pair v = weights16(type, widens, w);
            if (widens) {
                _mm256_store_ps(wide, v.lo);
                _mm256_store_ps(wide + 8, v.hi);
                wide += SL_PANEL;
            }
            add_pair(rows, acc, v, x, ldx);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++) {
        struct pair o = type == BF16 && !widens ? in_order(acc[i]) : acc[i];
        _mm256_storeu_ps(PLACE(i), o.lo);
        _mm256_storeu_ps(PLACE(i) + 8, o.hi);
    }
#undef PLACE
}

/* X(rows, panels, type) */
#define BLOCKS(X, TYPE) X(3, 1, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE)
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

#define SL_MATMUL sl_avx2_matmul
#include "engine/kernels/matmul_of.h"
