/* avx512_matmul.c: the matrix product of kernels.h with AVX-512F.
 *
 * A register is a panel's width: 16 outputs of one row. Of 32 registers up to 24 hold sums, which
 * is more than FMA's latency asks for, so tiles are chosen for the reads: each weight that was
 * loaded and widened serves all rows of the tile, each input all of its panels.
 *
 * Up to 12 rows a tile goes over all of k at once. Above, k is cut into blocks of K_BLOCK inputs:
 * the first rows widen a block's weights on their way into a buffer, from where the other rows have
 * them; sums are carried from block to block through y. Why weights are asked for far ahead, and a
 * little at a time: avx2_matmul.c. */
#include <assert.h>

#include "engine/kernels/avx512.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
    MAX_ROWS = 12,
    MAX_PANELS = 8,
    MAX_SUMS = 24, /* rows × panels of a tile, a register each */
    K_BLOCK = 128,
    BLOCK_PANELS = 2, /* panels of a tile of many rows */
    GROUP_PANELS = 4, /* panels whose block is in the buffer: 32 KiB */
    AHEAD_BYTES = 8192
};

/* Types as the tables below are indexed. */
enum weights { F32, F16, BF16, N_WEIGHTS };

/* Some rows × panels over n_k inputs. */
struct job {
    float *y;
    size_t ldy;
    const float *x;
    size_t ldx;
    const char *w; /* the first panel's first group; others are w_panel bytes apart */
    size_t w_panel;
    size_t n_k;
    bool first;        /* sums start here, else they go on from y */
    float *wide;       /* where weights are left as f32, K_BLOCK groups a panel; or NULL */
    const char *ahead; /* what will be needed: of each panel, ahead_step bytes per k */
    size_t ahead_panel, ahead_step;
};

static ALWAYS_INLINE size_t group_bytes(const enum weights type)
{
    return type == F32 ? 64 : 32;
}

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
            _mm_prefetch(ahead + (size_t)p * ahead_panel, _MM_HINT_T0);
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

typedef void tile_fn(const struct job *j);

#define TILE(R, P, TYPE)                                                                           \
    static void tile_##R##_##P##_##TYPE(const struct job *j)                                       \
    {                                                                                              \
        tile(R, P, TYPE, false, j);                                                                \
    }
#define WIDENING_TILE(R, P, TYPE)                                                                  \
    static void widening_##R##_##P##_##TYPE(const struct job *j)                                   \
    {                                                                                              \
        tile(R, P, TYPE, true, j);                                                                 \
    }
#define TILE_ENTRY(R, P, TYPE) [TYPE][R][P] = tile_##R##_##P##_##TYPE,
#define WIDENING_ENTRY(R, P, TYPE) [TYPE][R][P] = widening_##R##_##P##_##TYPE,

/* X(rows, panels, type): the shapes of tiles. */
#define ONE_TWO(X, R, TYPE) X(R, 1, TYPE) X(R, 2, TYPE)
#define ONE_TWO_FOUR(X, R, TYPE) ONE_TWO(X, R, TYPE) X(R, 4, TYPE)
#define FEW(X, TYPE)                                                                               \
    ONE_TWO_FOUR(X, 1, TYPE)                                                                       \
    X(1, 8, TYPE)                                                                                  \
    ONE_TWO_FOUR(X, 2, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 3, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 4, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 5, TYPE)                                                                       \
    ONE_TWO_FOUR(X, 6, TYPE)
/* More than 12 rows come in blocks as equal as can be, which have 6 rows or more. */
#define MANY(X, TYPE)                                                                              \
    ONE_TWO(X, 7, TYPE)                                                                            \
    ONE_TWO(X, 8, TYPE)                                                                            \
    ONE_TWO(X, 9, TYPE)                                                                            \
    ONE_TWO(X, 10, TYPE)                                                                           \
    ONE_TWO(X, 11, TYPE)                                                                           \
    ONE_TWO(X, 12, TYPE)

FEW(TILE, F32)
MANY(TILE, F32)
FEW(TILE, F16)
MANY(TILE, F16)
FEW(TILE, BF16)
MANY(TILE, BF16)
ONE_TWO(WIDENING_TILE, 6, F16)
MANY(WIDENING_TILE, F16)
ONE_TWO(WIDENING_TILE, 6, BF16)
MANY(WIDENING_TILE, BF16)

static tile_fn *const tiles[N_WEIGHTS][MAX_ROWS + 1][MAX_PANELS + 1] = {
    FEW(TILE_ENTRY, F32) MANY(TILE_ENTRY, F32) FEW(TILE_ENTRY, F16) MANY(TILE_ENTRY, F16)
        FEW(TILE_ENTRY, BF16) MANY(TILE_ENTRY, BF16)};
static tile_fn *const widening_tiles[N_WEIGHTS][MAX_ROWS + 1][BLOCK_PANELS + 1] = {
    ONE_TWO(WIDENING_ENTRY, 6, F16) MANY(WIDENING_ENTRY, F16) ONE_TWO(WIDENING_ENTRY, 6, BF16)
        MANY(WIDENING_ENTRY, BF16)};

struct product {
    float *y;
    size_t ldy;
    const float *x;
    size_t ldx, rows, n_in;
    const char *w; /* the first of the panels */
    enum weights type;
};

static void few_rows(const struct product *m, size_t n_panels)
{
    tile_fn *const *wide = tiles[m->type][m->rows];
    const size_t group = group_bytes(m->type), panel = m->n_in * group;
    size_t at_once = MAX_PANELS;
    for (size_t p = 0; p < n_panels; p += at_once) {
        while (at_once > n_panels - p || !wide[at_once])
            at_once--;
        struct job j = {
            .y = m->y + p * SL_PANEL,
            .ldy = m->ldy,
            .x = m->x,
            .ldx = m->ldx,
            .w = m->w + p * panel,
            .w_panel = panel,
            .n_k = m->n_in,
            .first = true,
            .ahead = m->w + p * panel + AHEAD_BYTES / at_once,
            .ahead_panel = panel,
            .ahead_step = group,
        };
        wide[at_once](&j);
    }
}

/* Inputs [k, k + n_k) of panels [p, p + n) for all rows; `next` bytes on lies what comes next. */
static void block_of_rows(const struct product *m, float *wide, size_t p, size_t n, size_t k,
                          size_t n_k, size_t next)
{
    const size_t group = group_bytes(m->type), panel = m->n_in * group;
    const size_t n_blocks = (m->rows + MAX_ROWS - 1) / MAX_ROWS;
    const size_t step = (group + n_blocks - 1) / n_blocks;
    const char *w = m->w + p * panel + k * group;
    for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
        end = m->rows * (i + 1) / n_blocks;
        for (size_t q = 0, at_once; q < n; q += at_once) {
            at_once = n - q < BLOCK_PANELS ? n - q : BLOCK_PANELS;
            struct job j = {
                .y = m->y + r * m->ldy + (p + q) * SL_PANEL,
                .ldy = m->ldy,
                .x = m->x + r * m->ldx + k,
                .ldx = m->ldx,
                .w = w + q * panel,
                .w_panel = panel,
                .n_k = n_k,
                .first = k == 0,
                .wide = wide + q * K_BLOCK * SL_PANEL,
                .ahead = w + q * panel + next + i * n_k * step,
                .ahead_panel = panel,
                .ahead_step = step,
            };
            if (m->type == F32) {
                tiles[F32][end - r][at_once](&j);
            } else if (i == 0) {
                widening_tiles[m->type][end - r][at_once](&j);
            } else {
                j.w = (const char *)j.wide;
                j.w_panel = sizeof(float) * K_BLOCK * SL_PANEL;
                tiles[F32][end - r][at_once](&j);
            }
        }
    }
}

static void many_rows(const struct product *m, size_t n_panels)
{
    _Alignas(SL_ALIGN) float wide[GROUP_PANELS * K_BLOCK * SL_PANEL];
    const size_t group = group_bytes(m->type), panel = m->n_in * group;
    for (size_t p = 0, n; p < n_panels; p += n) {
        n = n_panels - p < GROUP_PANELS ? n_panels - p : GROUP_PANELS;
        for (size_t k = 0, n_k; k < m->n_in; k += n_k) {
            n_k = m->n_in - k < K_BLOCK ? m->n_in - k : K_BLOCK;
            size_t next = k + n_k < m->n_in ? n_k * group : n * panel - k * group;
            block_of_rows(m, wide, p, n, k, n_k, next);
        }
    }
}

void sl_avx512_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end)
{
    assert(type == SL_DTYPE_F32 || type == SL_DTYPE_F16 || type == SL_DTYPE_BF16);
    enum weights t = type == SL_DTYPE_F32 ? F32 : type == SL_DTYPE_F16 ? F16 : BF16;
    if (panel_begin >= panel_end || rows == 0)
        return;
    struct product m = {
        .y = y + panel_begin * SL_PANEL,
        .ldy = ldy,
        .x = x,
        .ldx = ldx,
        .rows = rows,
        .n_in = n_in,
        .w = (const char *)panels + panel_begin * n_in * group_bytes(t),
        .type = t,
    };
    if (rows > MAX_ROWS && n_in > 0) {
        many_rows(&m, panel_end - panel_begin);
        return;
    }
    for (size_t r = 0; r < rows; r += m.rows) { /* more than once only when n_in is 0 */
        m.rows = rows - r < MAX_ROWS ? rows - r : MAX_ROWS;
        m.y = y + r * ldy + panel_begin * SL_PANEL;
        few_rows(&m, panel_end - panel_begin);
    }
}
