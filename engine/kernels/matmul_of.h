/* matmul_of.h: the matrix product of kernels.h for one instruction set: which tiles it is made of.
 * Included once by each file of products, which has defined
 *
 *   SL_MATMUL                the function's name
 *   tile(rows, panels, type, widens, job)
 *                            one tile; the first four are constants wherever it is called. widens:
 *                            the weights are left in job->wide as f32, in the outputs' order
 *   MAX_ROWS, MAX_PANELS     of a tile
 *   TILES(X, TYPE)           X(rows, panels, TYPE) for every tile that there is, TYPE passed on; of
 *                            one panel for any number of rows
 *   BLOCK_PANELS, BLOCKS(X, TYPE)
 *                            of them what many rows are cut into: tiles of 1 to BLOCK_PANELS panels
 *                            and (MAX_ROWS + 1) / 2 to MAX_ROWS rows
 *
 * Few rows (up to MAX_ROWS): the product is bound by reading the weights, a tile goes over all of
 * k. Several panels at once are several streams of reads, which memory serves faster than one. The
 * processor's own prefetching does not run far enough ahead: each stream asks for what it needs in
 * some AHEAD_BYTES (over all streams; measured with AVX2: 10 to 60 % faster, the most with one
 * stream). On x86 it asks for it into the second cache: what is on its way into the first holds
 * one of the few buffers that loads wait for as well (Zen 4: 1.2 to 1.7 times as fast so).
 *
 * Many rows: bound by arithmetic. k is cut into blocks of K_BLOCK inputs and panels into groups of
 * GROUP_PANELS; tiles run over such a block, so that their inputs stay in the first cache for all
 * panels of the group, which halves what is read again from the caches behind. The first rows widen
 * the weights on their way into a buffer, from where the other rows have them; meanwhile all rows
 * prefetch the next block, a little with every k, so that neither widening nor memory ever stands
 * alone. Sums are carried from block to block through y. Rows come in blocks as equal as can be. */
#include <assert.h>

#include "engine/kernels/matmul_tile.h"

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
TILES(TILE, F32)
TILES(TILE, F16)
TILES(TILE, BF16)
BLOCKS(WIDENING_TILE, F16)
BLOCKS(WIDENING_TILE, BF16)

#define TILE_ENTRY(R, P, TYPE) [TYPE][R][P] = tile_##R##_##P##_##TYPE,
#define WIDENING_ENTRY(R, P, TYPE) [TYPE][R][P] = widening_##R##_##P##_##TYPE,
static tile_fn *const tiles[N_WEIGHTS][MAX_ROWS + 1][MAX_PANELS + 1] = {
    TILES(TILE_ENTRY, F32) TILES(TILE_ENTRY, F16) TILES(TILE_ENTRY, BF16)};
static tile_fn *const widening_tiles[N_WEIGHTS][MAX_ROWS + 1][BLOCK_PANELS + 1] = {
    BLOCKS(WIDENING_ENTRY, F16) BLOCKS(WIDENING_ENTRY, BF16)};

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
            sl_ask_outputs(j.y, j.ldy, end - r, at_once);
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

void SL_MATMUL(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, const void *panels,
               enum sl_dtype type, size_t n_in, size_t panel_begin, size_t panel_end)
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
