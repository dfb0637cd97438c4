/* avx512_matmul.c: the matrix product of kernels.h with AVX-512F: its tiles; matmul_of.h makes the
 * product of them.
 *
 * A register is a panel's width: 16 outputs of one row. Of 32 registers up to 24 hold sums, which
 * is more than FMA's latency asks for, so tiles are chosen for the reads: each weight that was
 * loaded and widened serves all rows of the tile, each input all of its panels. */
#include "engine/kernels/avx512.h"
#include "engine/kernels/matmul_tile.h"

enum {
    MAX_ROWS = 12,
    MAX_PANELS = 8,
    BLOCK_PANELS = 2,
    MAX_SUMS = 24 /* rows × panels of a tile, a register each */
};

static ALWAYS_INLINE __m512 weights16(const enum weights type, const char *p)
{
    if (type == F32)
        return _mm512_loadu_ps(p);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (type == F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum weights type,
                               const bool widens, const struct job *j)
{
    __m512 acc[MAX_SUMS], w[MAX_PANELS];
    const size_t w_panel = j->w_panel, ahead_panel = j->ahead_panel, ldx = j->ldx, n_k = j->n_k;
    const size_t ahead_step = j->ahead_step;
    /* Four pointers and small multiples of ldx reach twelve rows; twelve pointers are more than
     * there are registers. */
    const float *x0 = j->x, *x3 = x0 + 3 * ldx, *x6 = x3 + 3 * ldx, *x9 = x6 + 3 * ldx;
    const char *wk = j->w, *ahead = j->ahead;
    float *wide = j->wide;
#pragma GCC unroll 24
    for (int i = 0; i < rows * panels; i++) {
        const float *p = j->y + (size_t)(i / panels) * j->ldy + (size_t)(i % panels) * SL_PANEL;
        acc[i] = j->first ? _mm512_setzero_ps() : _mm512_loadu_ps(p);
    }
    for (size_t k = 0; k < n_k; k++, wk += group_bytes(type), ahead += ahead_step) {
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) {
            w[p] = weights16(type, wk + (size_t)p * w_panel);
            if (widens)
                _mm512_store_ps(wide + ((size_t)p * K_BLOCK + k) * SL_PANEL, w[p]);
            _mm_prefetch(ahead + (size_t)p * ahead_panel, _MM_HINT_T1);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const float *third = r < 3 ? x0 : r < 6 ? x3 : r < 9 ? x6 : x9;
            __m512 xk = _mm512_set1_ps(third[(size_t)(r % 3) * ldx]);
#pragma GCC unroll 8
            for (int p = 0; p < panels; p++)
                acc[r * panels + p] = _mm512_fmadd_ps(w[p], xk, acc[r * panels + p]);
        }
        x0++, x3++, x6++, x9++;
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * panels; i++)
        _mm512_storeu_ps(j->y + (size_t)(i / panels) * j->ldy + (size_t)(i % panels) * SL_PANEL,
                         acc[i]);
}

/* X(rows, panels, type) */
#define ONE_TWO(X, R, TYPE) X(R, 1, TYPE) X(R, 2, TYPE)
#define BLOCKS(X, TYPE)                                                                            \
    ONE_TWO(X, 6, TYPE)                                                                            \
    ONE_TWO(X, 7, TYPE)                                                                            \
    ONE_TWO(X, 8, TYPE)                                                                            \
    ONE_TWO(X, 9, TYPE)                                                                            \
    ONE_TWO(X, 10, TYPE)                                                                           \
    ONE_TWO(X, 11, TYPE)                                                                           \
    ONE_TWO(X, 12, TYPE)
#define ONE_TWO_FOUR(X, R, TYPE) ONE_TWO(X, R, TYPE) X(R, 4, TYPE)
#define TILES(X, TYPE)                                                                             \
    ONE_TWO_FOUR(X, 1, TYPE)                                                                       \
    X(1, 8, TYPE)                                                                                  \
    ONE_TWO_FOUR(X, 2, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 3, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 4, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 5, TYPE)                                                                       \
    X(6, 4, TYPE)                                                                                  \
    BLOCKS(X, TYPE)

#define SL_MATMUL sl_avx512_matmul
#include "engine/kernels/matmul_of.h"
