/* quant_of.h: the product of Q8 and Q4 matrices of kernels.h for one instruction set: which tiles
 * it is made of. Included once by each file of such products, which has defined
 *
 *   SL_MATMUL_Q           the function's name
 *   tile(rows, panels, type, ready, job)
 *                         one tile; the first four are constants wherever it is called. ready: of
 *                         one panel, and its codes are what make_ready() returned
 *   make_ready(buffer, type, w, n_groups, levels)
 *                         the codes at w as such a tile reads them, SL_STEP_CODES bytes a step:
 *                         returns where they are, in the buffer or as they were
 *   FEW_ROWS, MAX_PANELS  of a tile
 *   TILES(X, TYPE)        X(rows, panels, TYPE) for every tile that there is; of one panel for any
 *                         number of rows
 *   MAX_ROWS, READIES(X, TYPE)
 *                         X(rows, TYPE) for every ready tile that there is: what more than FEW_ROWS
 *                         rows are cut into, blocks of MAX_ROWS at most and as equal as can be
 *
 * Few rows: bound by reading the codes; all of k for some rows × panels at once, as many streams as
 * panels. Many rows: bound by arithmetic; blocks of K_GROUPS groups stay in the first cache for all
 * rows, and what there is to do about codes is done once, into a buffer. */
#include <assert.h>

#include "engine/kernels/quant_tile.h"

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
TILES(TILE, Q8)
TILES(TILE, Q4)
READIES(READY, Q8)
READIES(READY, Q4)

#define TILE_ENTRY(R, P, TYPE) [SL_DTYPE_##TYPE != SL_DTYPE_Q8][R][P] = tile_##R##_##P##_##TYPE,
#define READY_ENTRY(R, TYPE) [SL_DTYPE_##TYPE != SL_DTYPE_Q8][R] = ready_##R##_##TYPE,
static tile_fn *const tiles[2][FEW_ROWS + 1][MAX_PANELS + 1] = {TILES(TILE_ENTRY, Q8)
                                                                    TILES(TILE_ENTRY, Q4)};
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

/* One panel for all rows. */
static void many_rows(const struct job *all, size_t rows, enum sl_dtype type)
{
    _Alignas(SL_ALIGN) uint8_t buffer[K_GROUPS * SL_Q8_GROUP];
    const size_t n_blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (size_t g = 0, n; g < all->n_groups; g += n) {
        n = all->n_groups - g < K_GROUPS ? all->n_groups - g : K_GROUPS;
        const uint8_t *codes =
            make_ready(buffer, type, all->w + g * sl_group_bytes(type), n, all->levels);
        for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
            end = rows * (i + 1) / n_blocks;
            const struct job j = {.y = all->y + r * all->ldy,
                                  .ldy = all->ldy,
                                  .x = all->x + r * all->ldx + g,
                                  .ldx = all->ldx,
                                  .n_groups = n,
                                  .scales = all->scales + g * SL_GROUP_SCALES,
                                  .w = codes,
                                  .first = g == 0,
                                  .levels = all->levels};
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
